//! Connections: who asks, who listens, who answers, and how they end. What they carry is in `transfer`.
#![forbid(unsafe_code)]

mod connect;
mod cr;
pub(crate) mod disconnect;
mod fates;
mod psp;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [connect::cases, disconnect::cases, fates::cases, psp::cases, cr::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
