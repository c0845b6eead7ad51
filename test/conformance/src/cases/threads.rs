//! Many threads inside the library at once. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![]
}
