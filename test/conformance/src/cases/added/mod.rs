//! Calls, arguments, memory types and return codes that only DAT 2.0 has. These cases run only against a
//! `libdat2.so.2`.
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

/// Prefix of all case names in this area.
pub(crate) const PREFIX: &str = "v2_";

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

/// Builds an error code of 2.0.
fn error(kind: DAT_RETURN, subtype: DAT_RETURN) -> DAT_RETURN {
    DAT_CLASS_ERROR | kind | subtype
}

/// `DAT_INVALID_PARAMETER` for parameter `n`, as numbered in 2.0.
fn argument(n: u32) -> DAT_RETURN {
    error(DAT_INVALID_PARAMETER, dat_abi::v2::DAT_INVALID_ARG1 + n - 1)
}
