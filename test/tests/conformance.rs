//! The conformance suite over each provider that needs no device, through both versions of libdat: every case, in one
//! process and in two.
//!
//! `cargo xtask test conformance` runs only this suite; with arguments it makes one run of the driver. The cases are in
//! `test/conformance`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dapl_test::run::{Run, SM0, Sandbox, USNIC0, changed_by_2_0, of_2_0};
use dapl_test::stage::{Profile, built, stage, target_directory};

/// Watchdog of a run that takes a minute or two. Each case has its own watchdog.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Held during a run: the watchdogs of the cases assume a machine without other load.
static RUN_LOCK: Mutex<()> = Mutex::new(());

fn check_all_cases(provider: &str, registry: &str, more: &[&str]) {
    let _turn = RUN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let sandbox = Sandbox::new(&stage(Profile::Dev), Some(registry));
    let driver = built("dapl-conformance", Profile::Dev);
    let arguments = [&["run", "--provider", provider, "--complete"], more].concat();
    let finished = Run::start(sandbox.command(driver, &arguments)).finish(TIMEOUT);
    print!("{}", finished.stdout);
    assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.stdout, finished.stderr);
}

#[test]
fn all_cases_pass_over_sm() {
    check_all_cases("sm0", SM0, &[]);
}

#[test]
fn all_cases_pass_over_usnic() {
    check_all_cases("usnic0", USNIC0, &[]);
}

/// Runs all cases, including those of 2.0, through `libdat2.so.2`.
fn check_all_cases_of_2_0(provider: &str, registry: &str) {
    let changed = changed_by_2_0();
    let report = target_directory().join("conformance-2.0");
    let path = |path: &Path| path.to_str().expect("the workspace path is UTF-8").to_owned();
    let more = ["--api", "2.0", "--open", "--except", &path(&changed), "--report", &path(&report)];
    check_all_cases(provider, &of_2_0(registry), &more);
}

#[test]
fn all_cases_of_2_0_pass_over_sm() {
    check_all_cases_of_2_0("sm0", SM0);
}

#[test]
fn all_cases_of_2_0_pass_over_usnic() {
    check_all_cases_of_2_0("usnic0", USNIC0);
}
