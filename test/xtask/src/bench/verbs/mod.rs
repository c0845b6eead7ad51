//! The verbs provider compared with perftest and the reference (compat-dapl, the C implementation of DAT 2.0), each
//! with the same operation in the same loop, in one guest.
//!
//! The guest is emulated, so the figures show how much code runs, not how fast hardware is. With wall-clock time,
//! repeated runs differ by a third, because the emulator shares processors with other load. So the guest's clock counts
//! instructions (`Clock::Instructions`): one processor, on which an instruction takes a nanosecond, for programs and
//! kernel. A figure is then reproducible to a fraction of a percent on a busy machine too, and differences of 3 % are
//! visible. soft-RoCE delivers a request within the call that posts it, so one processor is enough. Two polling
//! programs yield to each other when they find no completion (`test/c/turns.c`, for every measured implementation).
//! `--clock` runs the same list with wall-clock time and two processors, as a rough comparison only.
//!
//! The loops are perftest's: `test/c/verbs_bench.c` repeats them over DAT. It is compiled for this project and for the
//! reference. V10 to V14 use EVDs as larger programs do (`test/c/verbs_evds.h`); perftest has nothing comparable. Where
//! `dapltest` has such a test, its figure is shown too. The exit status shows only whether everything could be
//! measured.
#![forbid(unsafe_code)]

mod contest;
mod curves;
mod report;
mod sides;

#[cfg(test)]
pub(super) mod example;

use dapl_test::stage::Profile;

use self::contest::{Measured, OPERATIONS};
use self::curves::PLANS;
pub(super) use self::report::INSTRUCTIONS;
use self::sides::Sides;
use super::curve::Family;
use super::found::print_family;
use super::report::{load, save};
use super::{ROUNDS, chart};
use crate::cli::Selection;
use crate::guest::{Clock, Guest, GuestNetwork, prepare};
use crate::reference::Reference;
use crate::{Result, setup, tree};

/// Caption of the charts.
fn caption(clock: Clock) -> &'static str {
    match clock {
        Clock::Instructions => "cargo xtask bench verbs: an emulated guest whose clock counts instructions",
        Clock::Time => "cargo xtask bench verbs --clock: an emulated guest, by time",
    }
}

/// Selected measurements: those whose names are given, or all if no name is given.
struct SelectedMeasurements<'a> {
    clock: Clock,
    rounds: usize,
    names: &'a [String],
}

impl SelectedMeasurements<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

fn parse(clock: bool, selection: &Selection) -> Result<SelectedMeasurements<'_>> {
    let is_known = |name: &str| {
        OPERATIONS.iter().any(|operation| operation.id == name) || PLANS.iter().any(|plan| plan.section == name)
    };
    if let Some(other) = selection.names.iter().find(|name| !is_known(name)) {
        return Err(format!("bench verbs: unknown measurement {other}; see cargo xtask help bench verbs"));
    }
    let clock = if clock { Clock::Time } else { Clock::Instructions };
    Ok(SelectedMeasurements { clock, rounds: if selection.quick { 1 } else { ROUNDS }, names: &selection.names })
}

/// Runs the bench. `clock`: measure real time; `--quick`: one run each.
pub(crate) fn verbs(clock: bool, selection: &Selection) -> Result {
    let wanted = parse(clock, selection)?;
    let load = load();
    setup::require(&[setup::PERFTEST, setup::DEVINFO, setup::TASKSET])?;
    prepare()?;
    let reference = Reference::find()?;
    let tree = tree::build(Profile::Dist)?;
    let sides = Sides::new(&tree.stage, &reference, wanted.clock)?;
    let mut guest = Guest::boot_with(GuestNetwork::Alone, wanted.clock)?;
    sides.prepare(&mut guest)?;
    let mut measured = Vec::new();
    for operation in OPERATIONS.iter().filter(|one| wanted.has(one.id)) {
        measured.push(Measured::take(operation, &sides, &mut guest, wanted.rounds)?);
    }
    let kernel = sides::output_of(&mut guest, "uname -r")?;
    // From here on, a failing guest affects only the following measurements.
    let (mut families, mut failures) = (Vec::new(), Vec::new());
    for plan in PLANS.iter().filter(|plan| wanted.has(plan.section)) {
        match plan.measure(&sides, &mut guest) {
            Ok(family) => families.push(family),
            Err(reason) => failures.push(reason),
        }
    }
    failures.extend(guest.off().err());
    let facts =
        report::Facts { kernel, reference: reference.version, clock: wanted.clock, is_quick: wanted.rounds == 1, load };
    report::print(&measured, &facts);
    families.iter().for_each(print_family);
    let name = if wanted.clock == Clock::Time { "verbs-clock" } else { "verbs" };
    save(&tree.stage, &format!("{name}.json"), &report::text(&measured, &families, &failures, &facts))?;
    if !families.is_empty() {
        let panels: Vec<_> = families.iter().map(Family::panel).collect();
        save(&tree.stage, &format!("{name}.svg"), &chart::svg(&panels, caption(wanted.clock)))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("not measured:\n{}", failures.join("\n"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_of_verbs_selects_measurements_by_name() {
        let select =
            |quick, names: &[&str]| Selection { quick, names: names.iter().map(|name| (*name).into()).collect() };
        let (some, all) = (select(true, &["V4", "latency"]), select(false, &[]));
        let wanted = parse(false, &some).unwrap();
        assert!(wanted.has("V4") && wanted.has("latency") && !wanted.has("V5") && !wanted.has("connects"));
        assert_eq!((wanted.rounds, parse(false, &all).unwrap().rounds), (1, ROUNDS));
        assert!(parse(true, &all).unwrap().has("V14") && parse(false, &select(false, &["V0"])).is_err());
    }
}
