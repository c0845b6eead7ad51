//! Event dispatchers: as objects, their queue, waiting on them, and which events notify.
#![forbid(unsafe_code)]

mod create;
mod merge;
mod queue;
mod wait;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [create::cases, queue::cases, wait::cases, merge::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
