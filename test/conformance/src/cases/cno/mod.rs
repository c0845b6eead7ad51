//! CNOs: as objects, waiting on them, what triggers them, and their agents.
#![forbid(unsafe_code)]

mod trigger;
mod wait;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [wait::cases, trigger::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
