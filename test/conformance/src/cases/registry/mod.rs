//! The registry as consumers use it, and the names of codes.
#![forbid(unsafe_code)]

mod add;
mod list;
mod strerror;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [list::cases, add::cases, strerror::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
