/*
 * dat/udat.h of 1.2, as far as the programs here need it, over the headers of the 2.0 reference: so that one source is
 * compiled for both. For 2.0 this directory comes before ours in the search.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef DAT20_UDAT_H
#define DAT20_UDAT_H

#include <dat2/udat.h>

/* An RMR triplet's address. An LMR triplet has the name in both. */
#define target_address virtual_address

/* 2.0 asks which kind of address the memory has, and takes private data for a rejection. */
#define dat_lmr_create(ia, type, region, length, pz, privileges, ...) \
    dat_lmr_create(ia, type, region, length, pz, privileges, DAT_VA_TYPE_VA, __VA_ARGS__)
#define dat_cr_reject_with (dat_cr_reject)
#define dat_cr_reject(cr) dat_cr_reject(cr, 0, NULL)

#endif
