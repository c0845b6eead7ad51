//! PZs, LMRs, RMRs and shared memory: registration, binding, privileges, transfers, and frees in the wrong order.
#![forbid(unsafe_code)]

mod bind;
mod bind_posts;
mod lmr;
mod lmr_uses;
mod make;
mod pz;
mod rmr;
mod shared;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let modules = [pz::cases, lmr::cases, lmr_uses::cases, shared::cases, rmr::cases, bind_posts::cases, bind::cases];
    modules.into_iter().flat_map(|module| module()).collect()
}
