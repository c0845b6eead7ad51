//! Benches: measure figures of this project, most of them beside a peer program. The runs of both alternate, on the
//! same processors.
//!
//! The benches `sm`, `usnic` and `verbs` compare these providers with peers. `evd` measures growing numbers of
//! endpoints, and `instructions` counts the instructions of each call. `page` writes the HTML report; the other modules
//! are shared. A figure with a target is the median of five runs (of one with `--quick`). The exit status shows only
//! whether everything could be measured.
#![forbid(unsafe_code)]

mod chart;
mod contest;
mod curve;
mod found;
mod instructions;
mod many_endpoints;
mod mpi;
mod network;
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

pub(crate) use instructions::{check, instructions};
pub(crate) use many_endpoints::evd;
pub(crate) use page::{all, report as page};
pub(crate) use sm::sm;
pub(crate) use usnic::usnic;
pub(crate) use verbs::verbs;

/// Number of runs of each measurement. The runs of the measurements that are compared alternate; the median is
/// reported.
const ROUNDS: usize = 5;

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
