//! Waits over sm: no wake-up is lost, and waits use little CPU time, also if both processes share a CPU.
//! `test/c/waits.c` measures CPU time, and counts the waits that sleep. No wall-clock time is checked. An adapter
//! without endpoints has no thread (`test/c/threads.c`, sm and usnic).
//!
//! The variable `DAPL_TEST_WAITS` sets the number of waits for the test that looks for lost wake-ups.

use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Added to the watchdog for each million waits.
const MILLION_WAITS_TIMEOUT: Duration = Duration::from_secs(300);

/// Number of waits: `DAPL_TEST_WAITS`, or `usual`.
fn count(usual: u32) -> u32 {
    std::env::var("DAPL_TEST_WAITS").ok().map_or(usual, |text| text.parse().expect("DAPL_TEST_WAITS is a number"))
}

fn waits(arguments: &[&str], limit: Duration) -> Finished {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let program = run::program(&stage, "test/c/waits.c");
    let mut command = sandbox.command(&program, &[&["sm0"], arguments].concat());
    command.env("DAPL_SPIN_US", "0"); // without it the waits would poll and seldom block
    let finished = Run::start(command).finish(limit);
    finished.expect_success("waits: OK, ");
    println!("{}", finished.stdout);
    finished
}

#[test]
fn every_sleeping_waiter_is_woken() {
    let count = count(400_000);
    let limit = TIMEOUT + MILLION_WAITS_TIMEOUT * count.div_ceil(1_000_000);
    waits(&[&count.to_string(), "8", "apart"], limit).expect_success(&format!("waits: OK, {} waits", count / 16 * 16));
}

#[test]
fn idle_process_uses_less_than_one_percent_of_a_processor() {
    waits(&["idle", "3"], TIMEOUT);
}

#[test]
fn two_processes_pinned_to_one_processor_wake_each_other() {
    waits(&["20000", "1", "together"], TIMEOUT);
    waits(&["20000", "4", "together"], TIMEOUT);
}

#[test]
fn two_polling_processes_pinned_to_one_processor_make_progress() {
    waits(&["200", "1", "together", "polling"], TIMEOUT);
}

#[test]
fn an_adapter_without_endpoints_has_no_thread() {
    for (name, registry) in [("sm0", SM0), ("usnic0", USNIC0)] {
        let stage = stage(Profile::Dev);
        let sandbox = Sandbox::new(&stage, Some(registry));
        let program = run::program(&stage, "test/c/threads.c");
        Run::start(sandbox.command(&program, &[name])).finish(TIMEOUT).expect_success("threads: OK");
    }
}
