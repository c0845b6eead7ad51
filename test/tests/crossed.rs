//! Four processes that connect to each other at the same time, in both directions, over sm and usnic. Of two crossing
//! attempts, one is rejected; its EP is reset and accepts the peer's request (`test/c/crossed.c`).
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{self, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Each round has twelve requests.
const ROUNDS: usize = 1000;

fn crossed(adapter: &str, registry: &str, how: &[&str]) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(registry));
    let program = run::program(&stage, "test/c/crossed.c");
    let command = sandbox.command(&program, &[&[adapter, &ROUNDS.to_string(), "127.0.0.1"], how].concat());
    let finished = Run::start(command).finish(TIMEOUT);
    finished.expect_success(&format!("crossed: OK, {ROUNDS} rounds"));
    println!("{adapter}: {}", finished.stdout);
}

#[test]
fn crossed_connection_requests_become_one_connection_over_sm() {
    crossed("sm0", SM0, &[]);
}

#[test]
fn crossed_connection_requests_become_one_connection_over_usnic() {
    crossed("usnic0", USNIC0, &[]);
}

#[test]
fn separate_thread_accepts_crossed_requests_over_sm() {
    crossed("sm0", SM0, &["threads"]);
}

#[test]
fn separate_thread_accepts_crossed_requests_over_usnic() {
    crossed("usnic0", USNIC0, &["threads"]);
}
