//! Simulates the whole protocol in one thread and in virtual time: processes establish and use connections over an
//! unreliable network. The same seed always gives the same run.
//!
//! | module | task |
//! |---|---|
//! | `scenario` | derives connections, work requests and network faults from a seed |
//! | `run` | executes a scenario |
//! | `peer`, `link`, `established` | a process, a connection, and one side of an established connection |
//! | `network` | delays, drops, duplicates, replays and corrupts packets |
//! | `oracle` | checks completions and memory contents |
//! | `verdict` | checks the final state of a run |
//! | `shrink` | removes parts from a failing scenario as long as it still fails |
//! | `random`, `reports` | pseudo-random numbers, and the texts of packets in a trace |
//!
//! | variable | effect |
//! |---|---|
//! | `DAPL_SIM_SEED=n` | the test of transfers runs only this seed |
//! | `DAPL_SIM_RUNS=n` | runs `n` seeds of transfers, and `n / 2` seeds with extension operations |
//! | `DAPL_SIM_FIRST=n` | the test of transfers begins with seed `n` (default 0) |
//! | `DAPL_SIM_TRACE=1` | prints the packets of the reduced scenario of a failing run |
//! | `DAPL_SIM_ALL=1` | the test of transfers continues after a failure, and lists all failures at its end |
//!
//! `cargo xtask test --rest` runs more seeds than `cargo xtask test`.

mod established;
mod link;
mod network;
mod oracle;
mod peer;
pub(crate) mod random;
mod reports;
mod run;
mod scenario;
mod shrink;
mod verdict;

use scenario::{EXTENDED, Scenario};

/// Seeds that have found defects. The test repeats them, unless `DAPL_SIM_SEED` or `DAPL_SIM_ALL` is set.
const FOUND: [u64; 10] = [12, 383, 2458, 6866, 22_237, 54_507, 61_142, 62_595, 82_725, 89_231];

/// Number of seeds of the test of transfers if `DAPL_SIM_RUNS` is not set. The test of extension operations runs half
/// as many.
const DEFAULT_RUNS: u64 = 500;

/// Number of seeds to run.
fn runs() -> u64 {
    number("DAPL_SIM_RUNS").unwrap_or(DEFAULT_RUNS)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: the value must be a number")))
}

#[test]
fn transfers_complete_under_random_network_conditions() {
    if let Some(seed) = number("DAPL_SIM_SEED") {
        return shrink::check(seed);
    }
    let first = number("DAPL_SIM_FIRST").unwrap_or(0);
    let all = first..first + runs();
    if std::env::var_os("DAPL_SIM_ALL").is_some() {
        return shrink::count(all);
    }
    FOUND.into_iter().chain(all).for_each(shrink::check);
}

#[test]
fn extension_operations_are_executed_once_under_random_network_conditions() {
    (0..runs() / 2).map(|seed| EXTENDED | seed).for_each(shrink::check);
}

#[test]
fn equal_seeds_give_equal_scenarios() {
    for seed in 0..3 {
        assert_eq!(format!("{:?}", Scenario::of(seed)), format!("{:?}", Scenario::of(seed)));
    }
    assert_ne!(format!("{:?}", Scenario::of(1)), format!("{:?}", Scenario::of(2)));
}
