//! Completion flags (events 4.1): suppressed, unsignalled, solicited, fenced, and those that mean nothing: a room per flag.
#![forbid(unsafe_code)]

mod fence;
mod notify;
mod suppress;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    [suppress::cases, notify::cases, fence::cases].into_iter().flat_map(|room| room()).collect()
}
