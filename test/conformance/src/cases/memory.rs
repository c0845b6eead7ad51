//! Protection zones, LMRs, RMRs: registration, binding, rights, freeing in the wrong order. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![]
}
