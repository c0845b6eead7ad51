//! The cases, a file per area. Each file gives its own list; nothing else is shared between them.
#![forbid(unsafe_code)]

mod cno;
mod cno_trigger;
mod connect;
mod consumers;
mod contexts;
mod disconnect;
mod ep;
mod ep_life;
mod ep_modify;
mod ep_query;
mod evd;
mod evd_merge;
mod evd_queue;
mod evd_wait;
mod fates;
mod flags;
mod handle_places;
mod handles;
mod ia_close;
mod ia_open_async;
mod ia_query;
mod memory;
mod points;
mod registry;
mod registry_ia;
mod requests;
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
        ia_open_async::cases,
        ia_close::cases,
        ia_query::cases,
        registry::cases,
        contexts::cases,
        handles::cases,
        evd::cases,
        evd_queue::cases,
        evd_wait::cases,
        evd_merge::cases,
        cno::cases,
        cno_trigger::cases,
        memory::cases,
        ep::cases,
        ep_query::cases,
        ep_modify::cases,
        ep_life::cases,
        states::cases,
        connect::cases,
        disconnect::cases,
        fates::cases,
        points::cases,
        requests::cases,
        transfer::cases,
        flags::cases,
        srq::cases,
        threads::cases,
        consumers::cases,
    ];
    areas.into_iter().flat_map(|area| area()).collect()
}
