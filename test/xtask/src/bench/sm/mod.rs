//! The sm bench: contests with the targets S1 to S9 and others, measurements that are not compared with another program
//! (`scale`), and figures over message sizes.
//!
//! The submodules list what is measured; the modules of `bench` measure and print. The table marks the targets that are
//! met; the exit status shows only whether everything could be measured.
#![forbid(unsafe_code)]

mod contests;
mod curves;
mod scale;

use dapl_test::stage::Profile;

use super::found::{self, Bench, Lists, SelectedMeasurements};
use super::ours::{Perf, SM};
use super::report::PEERS;
use super::side::Effort;
use crate::cli::Selection;
use crate::{Result, setup, tree};

pub(super) const BENCH: Bench = Bench {
    name: "sm",
    adapter: &SM,
    packages: &PEERS,
    caption: "cargo xtask bench sm: two processes, each on its own processor; medians",
};

/// All measurements of this bench.
pub(super) fn lists(effort: Effort) -> Lists {
    Lists { contests: contests::contests(effort), plans: scale::plans(effort), families: curves::plans(effort) }
}

/// Runs all measurements, or those named. With `--quick` they have fewer rounds and operations.
pub(crate) fn sm(selection: &Selection) -> Result {
    let wanted = SelectedMeasurements::new(BENCH.name, selection, &lists(Effort::FULL))?;
    setup::require(&[setup::TASKSET, setup::UCX, setup::FABRIC])?;
    let tree = tree::build(Profile::Dist)?;
    let perf = Perf::new(&tree.stage, BENCH.adapter);
    found::run(&BENCH, &perf, &tree.stage, &wanted, lists(wanted.effort()))
}
