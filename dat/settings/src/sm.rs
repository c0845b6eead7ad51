//! Settings of sm, in `ia_params` and in the environment.
//!
//! The first word of `ia_params` without `=` is the base directory.
#![forbid(unsafe_code)]

use crate::common::{dir, give_up, keepalive, listener_wait, spin};
use crate::{NumberNotation, Setting, SettingsTable, Values};

/// The settings of `libdaplsm.so.1`.
pub static SM: SettingsTable = SettingsTable {
    provider: "sm",
    prefix: "DAPL_SM",
    plain: &["dir"],
    notation: NumberNotation::Decimal,
    settings: SETTINGS,
};

const SETTINGS: &[Setting] = &[
    dir(),
    Setting {
        name: "rma",
        variable: "DAPL_SM_RMA",
        values: Values::Order(&["knem", "cma", "mmap"]),
        meaning: "method of RDMA, either KNEM's device (knem), cross-memory copy by the kernel (cma), or copies through shared \
                  buffers (mmap)",
    },
    Setting {
        name: "cma",
        variable: "DAPL_SM_CMA",
        values: Values::OneOf(&["closed", "open"]),
        meaning: "whether the user's other processes may access all memory of this one where Yama forbids it",
    },
    spin(),
    keepalive(5_000),
    give_up(60_000),
    listener_wait(),
];
