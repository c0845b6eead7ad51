//! Benches: a promise, our figure and a peer's for it, measured in turns on the same two processors in one run.
//!
//! `sm`, `usnic`, `evd` (our own with more and more endpoints) and `verbs` are the benches; the rest is what they share. A
//! figure with a promise is the median of five. Nothing here judges: the status says only whether everything could be measured.
#![forbid(unsafe_code)]

mod chart;
mod contest;
mod crowd;
mod curve;
mod found;
mod ground;
mod mpi;
mod ours;
mod page;
mod pair;
mod patterns;
mod peers;
mod report;
mod scale;
mod side;
mod sm;
mod usnic;
mod verbs;

pub(crate) use crowd::evd;
pub(crate) use page::{all, report as page};
pub(crate) use sm::sm;
pub(crate) use usnic::usnic;
pub(crate) use verbs::verbs;

/// So many runs of each side, in turns; the median counts.
const ROUNDS: usize = 5;

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
