/*
 * udat_vendor_specific.h - for declarations of one vendor's user space provider. There are none.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _UDAT_VENDOR_SPECIFIC_H_
#define _UDAT_VENDOR_SPECIFIC_H_

#endif /* _UDAT_VENDOR_SPECIFIC_H_ */
