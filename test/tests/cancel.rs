//! `pthread_cancel` during the DAT calls that `test/c/cancel.c` makes, over sm and usnic. Waits are cancelled without
//! losing an event. Other calls complete, although a cancellation request is pending.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{self, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Adapter, registry and provider library.
const PROVIDERS: [(&str, &str, &str); 2] = [("sm0", SM0, "libdaplsm.so.1"), ("usnic0", USNIC0, "libdaplusnic.so.1")];

fn cancel(how: &str, rounds: &str, log: &str, with_library: bool) {
    for (adapter, registry, library) in PROVIDERS {
        let stage = stage(Profile::Dev);
        let sandbox = Sandbox::new(&stage, Some(registry));
        let program = run::program(&stage, "test/c/cancel.c");
        let library: &[&str] = if with_library { &[library] } else { &[] };
        let mut command = sandbox.command(&program, &[&[adapter, how, rounds], library].concat());
        command.env("DAPL_DBG_TYPE", log);
        let finished = run::Run::start(command).finish(TIMEOUT);
        finished.expect_success("cancel: OK, ");
        println!("{adapter}: {}", finished.stdout);
    }
}

#[test]
fn calls_complete_with_a_thread_cancellation_pending() {
    cancel("pending", "20", "0", false);
}

/// The provider logs its actions here. It writes each log line with write(2), which is a cancellation point.
#[test]
fn calls_that_log_complete_with_a_thread_cancellation_pending() {
    cancel("pending", "5", "0xffff", true);
}

#[test]
fn waiting_threads_can_be_cancelled_at_any_moment() {
    cancel("anywhere", "300", "0", false);
}

/// Fails if the handler of a late cancellation signal unwinds a call that defers cancellation.
#[test]
fn late_signal_of_a_cancelled_wait_does_not_end_the_next_call() {
    let stage = stage(Profile::Dev);
    let program = run::program_2(&stage, "test/c/late_cancel.c");
    for (adapter, registry, _) in PROVIDERS {
        let sandbox = Sandbox::new(&stage, Some(&run::of_2_0(registry)));
        let mut command = sandbox.command(&program, &[adapter]);
        command.env("DAPL_DBG_TYPE", "0xffff");
        let finished = run::Run::start(command).finish(TIMEOUT);
        finished.expect_success("late_cancel: ");
        println!("{adapter}: {}", finished.stdout);
    }
}

#[test]
fn cancelled_waits_lose_no_event() {
    cancel("waits", "2000", "0", false);
}
