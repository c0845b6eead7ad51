//! The conformance suite over the sm provider, once, in a room of its own: every case, in one process and in two.
//!
//! `cargo xtask test conformance` runs it alone, and takes filters. What a case claims and proves stands in `test/conformance`.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{Room, Run, SM0};
use dapl_test::stage::{Profile, built, stage};

/// It takes a minute or two; each case has its own watchdog.
const LIMIT: Duration = Duration::from_secs(900);

#[test]
fn sm_keeps_every_promise() {
    let room = Room::new(&stage(Profile::Dev), Some(SM0));
    let driver = built("dapl-conformance", Profile::Dev);
    let finished = Run::start(room.command(driver, &["run", "--provider", "sm0", "--complete"])).finish(LIMIT);
    print!("{}", finished.stdout);
    assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.stdout, finished.stderr);
}
