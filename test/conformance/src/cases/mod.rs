//! The cases, a directory per area and in it a file per call or claim. Each gives its own list; what an area lends to others
//! are scenes, ends and the like, never a case.
#![forbid(unsafe_code)]

mod cno;
mod connection;
mod consumers;
mod ep;
mod evd;
mod flags;
mod handles;
mod ia;
mod memory;
mod registry;
mod srq;
mod threads;
mod transfer;

use crate::case::Case;

/// All of them, in the order of reports.
pub(crate) fn all() -> Vec<Case> {
    let areas = [
        registry::cases,
        ia::cases,
        handles::cases,
        evd::cases,
        cno::cases,
        memory::cases,
        ep::cases,
        connection::cases,
        transfer::cases,
        flags::cases,
        srq::cases,
        threads::cases,
        consumers::cases,
    ];
    areas.into_iter().flat_map(|area| area()).collect()
}
