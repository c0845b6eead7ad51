//! Properties common to objects of all kinds: consumer contexts, handle types, double frees, and refused handles.
#![forbid(unsafe_code)]

mod contexts;
mod params;
mod refusals;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [contexts::cases, refusals::cases];
    modules.into_iter().flat_map(|module| module()).collect()
}
