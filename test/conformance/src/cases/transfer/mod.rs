//! Sends, receives, RDMA reads and writes, their completions and errors. One module per subject.
#![forbid(unsafe_code)]

mod breaks;
pub(crate) mod ends;
mod faults;
mod flush;
mod makes;
mod order;
mod plain;
mod posts;
mod sizes;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        plain::cases,
        sizes::cases,
        makes::cases,
        order::cases,
        faults::cases,
        breaks::cases,
        posts::cases,
        flush::cases,
    ];
    modules.into_iter().flat_map(|module| module()).collect()
}
