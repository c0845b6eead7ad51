//! File descriptors of EVDs and CNOs: an event loop that waits for events in epoll_wait (`test/c/epoll.c`).
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{self, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

fn messages_by_epoll(adapter: &str, registry: &str, object: &[&str]) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(registry));
    let program = run::program(&stage, "test/c/epoll.c");
    let finished = sandbox.start(program, &[&[adapter, "127.0.0.1"], object].concat()).finish(TIMEOUT);
    finished.expect_success("epoll: OK, 2000 messages, by epoll");
}

#[test]
fn event_loop_waits_for_an_evd_over_sm() {
    messages_by_epoll("sm0", SM0, &[]);
}

#[test]
fn event_loop_waits_for_a_cno_over_sm() {
    messages_by_epoll("sm0", SM0, &["cno"]);
}

#[test]
fn event_loop_waits_for_an_evd_over_usnic() {
    messages_by_epoll("usnic0", USNIC0, &[]);
}

#[test]
fn event_loop_waits_for_a_cno_over_usnic() {
    messages_by_epoll("usnic0", USNIC0, &["cno"]);
}
