//! Adapters: open, query and close.
#![forbid(unsafe_code)]

mod close;
mod open;
mod open_async;
mod query;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [open::cases, open_async::cases, close::cases, query::cases];
    modules.into_iter().flat_map(|module| module()).collect()
}
