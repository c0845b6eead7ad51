/*
 * dat_vendor_specific.h - the place for names of one vendor's provider.
 *
 * There are none: the providers of this library differ by what dat_ia_query reports, not by what they declare.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAT_VENDOR_SPECIFIC_H_
#define _DAT_VENDOR_SPECIFIC_H_

#endif /* _DAT_VENDOR_SPECIFIC_H_ */
