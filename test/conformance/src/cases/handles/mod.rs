//! What objects of all kinds have in common: their contexts, and handles that are refused. Never what a kind does.
#![forbid(unsafe_code)]

mod contexts;
mod places;
mod refusals;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [contexts::cases, refusals::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
