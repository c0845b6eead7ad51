//! Shared receive queues: as objects, for messages of many connections, at disconnects, and their watermarks.
#![forbid(unsafe_code)]

mod broken;
mod deaths;
mod ends;
mod ep;
mod marks;
mod object;
mod pool;
mod queries;
mod receive;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        object::cases,
        ep::cases,
        queries::cases,
        receive::cases,
        ends::cases,
        broken::cases,
        deaths::cases,
        marks::cases,
    ];
    modules.into_iter().flat_map(|module| module()).collect()
}
