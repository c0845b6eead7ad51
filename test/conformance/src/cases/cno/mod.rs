//! CNOs: lifetime, waits, triggers and agents.
#![forbid(unsafe_code)]

mod agent;
mod object;
mod trigger;
mod wait;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [object::cases, wait::cases, trigger::cases, agent::cases];
    modules.into_iter().flat_map(|module| module()).collect()
}
