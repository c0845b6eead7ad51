//! Runs seeds. If a seed fails, removes parts of its scenario as long as it still fails, in a limited number of runs,
//! and prints the reduced scenario with the command that repeats it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::run::run;
use super::scenario::{EndPlan, Scenario};
use crate::proto::congestion::Algorithm;

/// Maximum number of runs to reduce a scenario.
const TRIES: u32 = 400;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a seed. If it fails, panics with the reduced scenario.
pub(super) fn check(seed: u64) {
    let scenario = Scenario::of(seed);
    let Err(first) = attempt(&scenario) else { return };
    let (scenario, last) = shrink(scenario, &first);
    if std::env::var_os("DAPL_SIM_TRACE").is_some() {
        quietly(|| drop(catch_unwind(AssertUnwindSafe(|| run(&scenario, true)))));
    }
    panic!(
        "seed {seed} failed: {first}\nthe reduced scenario failed: {last}\n{scenario:?}\nto repeat: \
         DAPL_SIM_SEED={seed} cargo test -p daplusnic transfers_complete_under_random_network_conditions\n\
         to print the packets of the reduced scenario: set DAPL_SIM_TRACE=1, add -- --nocapture"
    );
}

/// Runs all seeds, and panics with a list of the failures, if any.
pub(super) fn count(seeds: std::ops::Range<u64>) {
    let failures: Vec<String> = seeds
        .filter_map(|seed| Some(format!("{seed}: {}", attempt(&Scenario::of(seed)).err()?.lines().next()?)))
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

fn attempt(scenario: &Scenario) -> Result<(), String> {
    let outcome = quietly(|| catch_unwind(AssertUnwindSafe(|| run(scenario, false))));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Runs `body`, and suppresses the panic messages of this thread. With `DAPL_SIM_TRACE` they go to the standard output.
fn quietly<T>(body: impl FnOnce() -> T) -> T {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            } else if std::env::var_os("DAPL_SIM_TRACE").is_some() {
                println!("{info}");
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = body();
    IS_QUIET.set(false);
    outcome
}

/// Removes parts of a failing scenario while it still fails with a similar message (`is_alike`). Returns the reduced
/// scenario and its failure.
fn shrink(mut scenario: Scenario, first: &str) -> (Scenario, String) {
    let mut last = first.to_owned();
    let mut tries = 0;
    loop {
        let mut has_shrunk = false;
        for simpler in simpler(&scenario) {
            tries += 1;
            if tries > TRIES {
                return (scenario, last);
            }
            if let Err(why) = attempt(&simpler).or_else(|why| if is_alike(&why, first) { Err(why) } else { Ok(()) }) {
                (scenario, last, has_shrunk) = (simpler, why, true);
                break;
            }
        }
        if !has_shrunk {
            return (scenario, last);
        }
    }
}

/// Whether the first 24 characters of two failures are equal, not counting digits.
fn is_alike(one: &str, other: &str) -> bool {
    let words = |text: &str| text.chars().filter(|char| !char.is_ascii_digit()).take(24).collect::<String>();
    words(one) == words(other)
}

/// Returns simpler variants of a scenario, the largest reductions first.
fn simpler(of: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut less = of.clone();
        change(&mut less);
        if format!("{less:?}") != format!("{of:?}") {
            all.push(less);
        }
    };
    for at in 0..of.links.len() {
        with(&|it| it.leave_out(at));
    }
    with(&|it| it.faults.clear());
    with(&|it| it.actions.clear());
    (0..of.faults.len()).for_each(|at| with(&|it| _ = it.faults.remove(at)));
    (0..of.actions.len()).for_each(|at| with(&|it| _ = it.actions.remove(at)));
    for at in 0..of.links.len() {
        for side in 0..2 {
            let count = of.links[at].sides[side].items.len();
            let mut piece = count;
            while piece > 0 {
                for start in (0..count).step_by(piece) {
                    let end = (start + piece).min(count);
                    with(&|it| drop(it.links[at].sides[side].items.drain(start..end)));
                }
                piece /= 2;
            }
        }
    }
    for at in 0..of.links.len() {
        with(&|it| (it.links[at].withdraw, it.links[at].think, it.links[at].start) = (None, 0, 0));
        with(&|it| it.links[at].finish = EndPlan::Drain(0));
        for side in 0..2 {
            with(&|it| it.links[at].sides[side].shared = false);
            with(&|it| it.links[at].sides[side].spare_recvs = 0);
            with(&|it| it.links[at].sides[side].psn = Some(1));
            with(&|it| it.links[at].sides[side].burst = 10_000);
            with(&|it| it.links[at].sides[side].congestion = Algorithm::default());
            for item in 0..of.links[at].sides[side].items.len() {
                with(&|it| it.links[at].sides[side].items[item].length /= 2);
                with(&|it| {
                    (it.links[at].sides[side].items[item].at, it.links[at].sides[side].items[item].recv_at) = (0, 0)
                });
                with(&|it| it.links[at].sides[side].items[item].fence = false);
            }
        }
    }
    with(&|it| it.sealed = false);
    for at in 0..of.faults.len() {
        with(&|it| it.faults[at].from = 0);
        with(&|it| it.faults[at].until = it.faults[at].from + (it.faults[at].until - it.faults[at].from) / 2);
    }
    all
}
