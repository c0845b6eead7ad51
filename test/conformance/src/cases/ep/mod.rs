//! Endpoints as objects, a room per call, and every state against every call. How they connect is in `connection`.
#![forbid(unsafe_code)]

pub(crate) mod create;
mod life;
mod modify;
mod query;
pub(crate) mod scene;
mod states;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [create::cases, query::cases, modify::cases, life::cases, states::cases];
    rooms.into_iter().flat_map(|room| room()).collect()
}
