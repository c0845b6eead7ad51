//! The registry: the list of providers, providers that a program registers, and the names of return codes.
#![forbid(unsafe_code)]

mod add;
mod list;
mod strerror;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [list::cases, add::cases, strerror::cases];
    modules.into_iter().flat_map(|module| module()).collect()
}
