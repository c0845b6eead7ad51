//! CNOs: as objects, waiting on them, what triggers them, and their agents.
#![forbid(unsafe_code)]

mod agent;
mod object;
mod trigger;
mod wait;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [object::cases, wait::cases, trigger::cases, agent::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
