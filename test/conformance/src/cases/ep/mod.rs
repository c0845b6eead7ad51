//! Endpoints as objects: their calls, and the calls whose result depends on the EP state, in each state. Connecting is
//! in `connection`.
#![forbid(unsafe_code)]

mod create;
mod life;
mod modify;
mod modify_effects;
pub(crate) mod parts;
mod query;
pub(crate) mod scene;
mod states;
pub(crate) mod watermark;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        create::cases,
        query::cases,
        modify::cases,
        modify_effects::cases,
        life::cases,
        watermark::cases,
        states::cases,
    ];
    modules.into_iter().flat_map(|module| module()).collect()
}
