//! Behaviour that real programs rely on, line by line: each case does what one of them does.
//!
//! The number in a name is that of the line. Cases of other areas that prove a line too name it as their section.
#![forbid(unsafe_code)]

mod accepting;
mod closing;
mod completions;
mod connecting;
mod data;
mod limits;
pub(crate) mod names;

use crate::kit::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        data::cases(),
        connecting::cases(),
        accepting::cases(),
        closing::cases(),
        limits::cases(),
        completions::cases(),
        names::cases(),
    ];
    modules.into_iter().flatten().collect()
}
