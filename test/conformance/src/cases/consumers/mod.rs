//! Behaviour that real programs rely on: the numbered items of `docs/spec/consumers.md`. Each case imitates one such
//! program.
//!
//! A case's name contains the number of its item. Two cases about resets have no item, and cite spec/endpoints. A case
//! in another area that tests an item cites the item as its section.
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
