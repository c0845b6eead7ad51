//! EVDs as objects, their queue, waits on an EVD, and which events notify.
#![forbid(unsafe_code)]

mod create;
mod free;
mod merge;
mod modify;
mod queue;
mod resize;
mod wait;
mod wait_ends;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [
        create::cases,
        modify::cases,
        resize::cases,
        free::cases,
        queue::cases,
        wait::cases,
        wait_ends::cases,
        merge::cases,
    ];
    modules.into_iter().flat_map(|module| module()).collect()
}
