//! The conformance suite over the providers that every machine has, once each, in environments of their own: every case, in one
//! process and in two.
//!
//! `cargo xtask test conformance` runs it alone, with filters. The cases are in `test/conformance`.
#![forbid(unsafe_code)]

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dapl_test::run::{Room, Run, SM0, USNIC0};
use dapl_test::stage::{Profile, built, stage};

/// It takes a minute or two; each case has its own watchdog.
const LIMIT: Duration = Duration::from_secs(900);

/// A case's watchdog is for a machine that it has to itself: one provider after the other.
static TURN: Mutex<()> = Mutex::new(());

fn keeps_every_promise(provider: &str, registry: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let room = Room::new(&stage(Profile::Dev), Some(registry));
    let driver = built("dapl-conformance", Profile::Dev);
    let finished = Run::start(room.command(driver, &["run", "--provider", provider, "--complete"])).finish(LIMIT);
    print!("{}", finished.stdout);
    assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.stdout, finished.stderr);
}

#[test]
fn sm_keeps_every_promise() {
    keeps_every_promise("sm0", SM0);
}

#[test]
fn usnic_keeps_every_promise() {
    keeps_every_promise("usnic0", USNIC0);
}
