/*
 * dat_vendor_specific.h - for declarations of one vendor's provider.
 *
 * There are none: dat_ia_query reports the differences between providers.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAT_VENDOR_SPECIFIC_H_
#define _DAT_VENDOR_SPECIFIC_H_

#endif /* _DAT_VENDOR_SPECIFIC_H_ */
