//! Behaviour that real programs rely on: the items of `docs/spec/consumers.md`. Each case does what one such program does.
//!
//! The number in a case's name is that of the item. Cases of other areas that test an item name it as their section.
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
