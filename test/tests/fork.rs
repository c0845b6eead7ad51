//! Programs that fork: the child has a working library and none of the parent's handles, and its exit does not affect
//! the parent.
//!
//! The steps are in `test/c/fork.c`, with the real shared objects.

use std::time::Duration;

use dapl_test::run::{self, SM0, Sandbox};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(400);

fn fork(arguments: &[&str]) {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/fork.c");
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let finished = sandbox.start(program, arguments).finish(TIMEOUT);
    finished.expect_success("fork: OK");
}

#[test]
fn forked_child_has_no_handles_but_can_open_an_adapter() {
    fork(&[]);
}

#[test]
fn forked_child_finds_all_locks_unlocked() {
    fork(&["threads"]);
}
