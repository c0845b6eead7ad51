//! The usnic provider compared with sockperf, iperf3 and libfabric: contests with the targets U1 to U7 and others, and
//! figures over sizes and over packet loss. Also measurements that are not compared with another program: percentiles,
//! many connections, connection rate, memory.
//!
//! This module and its submodules list what is measured; the modules of `bench` measure and print. Loss is measured
//! between network namespaces, with the same drop rule for all programs. The table marks which targets are met; the
//! exit status shows only whether everything could be measured.
#![forbid(unsafe_code)]

mod contests;
mod curves;

use dapl_test::stage::Profile;

use super::found::{self, Bench, Lists, SelectedMeasurements};
use super::ours::{Perf, USNIC};
use super::scale::{connections, connects, memory, percentiles};
use super::side::Effort;
use crate::cli::Selection;
use crate::net::wire;
use crate::{Result, setup, tree};

pub(super) const BENCH: Bench = Bench {
    name: "usnic",
    adapter: &USNIC,
    packages: &["sockperf", "iperf3", "libfabric-bin"],
    caption: "cargo xtask bench usnic: two processes, each on its own processor; medians",
};

/// All measurements of this bench.
pub(super) fn lists(effort: Effort) -> Lists {
    let counts = [1, 100, 1_000].map(|count| connections(effort, count));
    Lists {
        contests: contests::contests(effort),
        plans: percentiles(effort)
            .into_iter()
            .chain(counts)
            .chain([connects(effort)])
            .chain([10, 100, 1_000].map(memory))
            .collect(),
        families: curves::plans(effort),
    }
}

/// Runs all measurements, or those named. With `--quick` they have fewer rounds and operations.
pub(crate) fn usnic(selection: &Selection) -> Result {
    let wanted = SelectedMeasurements::new(BENCH.name, selection, &lists(Effort::FULL))?;
    setup::require(&[setup::TASKSET, setup::SOCKPERF, setup::IPERF, setup::FABRIC])?;
    if contests::LOSSY.iter().chain(&curves::LOSSY).any(|name| wanted.has(name)) {
        wire::prepare().map_err(|reason| format!("bench usnic: {reason}"))?;
    }
    let tree = tree::build(Profile::Dist)?;
    let perf = Perf::new(&tree.stage, BENCH.adapter);
    found::run(&BENCH, &perf, &tree.stage, &wanted, lists(wanted.effort()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::network::NetworkKind;

    #[test]
    fn lossy_contests_run_between_namespaces() {
        let lists = lists(Effort::FULL);
        for contest in &lists.contests {
            assert_eq!(
                contest.network_kind != NetworkKind::Loopback,
                contests::LOSSY.contains(&contest.id),
                "{}",
                contest.title
            );
        }
        for plan in &lists.families {
            let is_lossy = (plan.network_kind)(1) != NetworkKind::Loopback;
            assert_eq!(is_lossy, curves::LOSSY.contains(&plan.section), "{}", plan.title);
        }
    }

    #[test]
    fn every_usnic_target_has_a_contest() {
        let ids: Vec<_> = contests::contests(Effort::FULL).iter().map(|contest| contest.id).collect();
        ["U1", "U2", "U3", "U4", "U5", "U6", "U7", "busy", "cpu"]
            .iter()
            .for_each(|id| assert!(ids.contains(id), "{id}"));
    }
}
