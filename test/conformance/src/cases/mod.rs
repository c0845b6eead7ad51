//! The cases, a file per area. Each file gives its own list; nothing else is shared between them.
#![forbid(unsafe_code)]

mod cno;
mod connect;
mod consumers;
mod ep;
mod ep_modify;
mod ep_query;
mod evd;
mod evd_queue;
mod flags;
mod handle_places;
mod handles;
mod memory;
mod registry_ia;
mod scene;
mod srq;
mod states;
mod threads;
mod transfer;

use crate::case::Case;

/// All of them, in the order of reports.
pub(crate) fn all() -> Vec<Case> {
    let areas = [
        registry_ia::cases,
        handles::cases,
        evd::cases,
        evd_queue::cases,
        cno::cases,
        memory::cases,
        ep::cases,
        ep_query::cases,
        ep_modify::cases,
        states::cases,
        connect::cases,
        transfer::cases,
        flags::cases,
        srq::cases,
        threads::cases,
        consumers::cases,
    ];
    areas.into_iter().flat_map(|area| area()).collect()
}
