//! Calls that only DAT 2.0 has. These cases run against a `libdat2.so.2` alone.
#![forbid(unsafe_code)]

mod atomics;
mod connecting;
mod immediate;
mod objects;
mod refusals;
mod scenes;
mod windows;
mod zero_based;

use crate::kit::*;

/// How the names of all cases of this area begin.
pub(crate) const PREFIX: &str = "added_";

pub(crate) fn cases() -> Vec<Case> {
    [
        objects::cases(),
        connecting::cases(),
        immediate::cases(),
        atomics::cases(),
        windows::cases(),
        zero_based::cases(),
        refusals::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The code of an error of 2.0.
fn error(kind: DAT_RETURN, subtype: DAT_RETURN) -> DAT_RETURN {
    DAT_CLASS_ERROR | kind | subtype
}

/// `INVALID_PARAMETER` as 2.0 numbers it.
fn argument(n: u32) -> DAT_RETURN {
    error(DAT_INVALID_PARAMETER, dat_abi::v2::DAT_INVALID_ARG1 + n - 1)
}
