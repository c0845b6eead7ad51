/* Maps the names of DAT 1.2 that the programs of test/c use to DAT 2.0, so that one source compiles for both. For
 * 2.0 this directory precedes the 1.2 headers in the include path.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef DAT20_UDAT_H
#define DAT20_UDAT_H

#include <dat2/udat.h>

/* 1.2's name of the address in an RMR triplet. An LMR triplet uses virtual_address in both versions. */
#define target_address virtual_address

/* In 2.0, dat_lmr_create has a parameter for the address type, and dat_cr_reject has two for private data. */
#define dat_lmr_create(ia, type, region, length, pz, privileges, ...) \
    dat_lmr_create(ia, type, region, length, pz, privileges, DAT_VA_TYPE_VA, __VA_ARGS__)
#define dat_cr_reject_with (dat_cr_reject)
#define dat_cr_reject(cr) dat_cr_reject(cr, 0, NULL)

#endif
