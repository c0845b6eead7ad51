//! What real programs rely on, one case per line of that list. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![]
}
