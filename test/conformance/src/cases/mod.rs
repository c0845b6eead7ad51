//! The cases: one directory per area, in it one file per call or claim. Each file with cases returns their list, and an
//! area joins the lists of its files. Areas may use the helpers of other areas.
#![forbid(unsafe_code)]

pub(crate) mod added;
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

/// The areas' lists, in the order of reports.
const AREAS: [fn() -> Vec<Case>; 14] = [
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
    added::cases,
];

pub(crate) fn all() -> Vec<Case> {
    (0..AREAS.len()).flat_map(area).collect()
}

/// Returns the cases of one area, by its index.
pub(crate) fn area(number: usize) -> Vec<Case> {
    let mut cases = AREAS.get(number).map(|area| area()).unwrap_or_default();
    cases.iter_mut().for_each(|case| case.area = number);
    cases
}
