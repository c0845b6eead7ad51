//! Properties common to objects of all kinds: their contexts, and refused handles.
#![forbid(unsafe_code)]

mod contexts;
mod places;
mod refusals;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [contexts::cases, refusals::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
