//! The registry as consumers may use it, and the words for codes.
#![forbid(unsafe_code)]

mod list;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    list::cases()
}
