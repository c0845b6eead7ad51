//! Runs the driver of the conformance suite, for the test programs `conformance` and `conformance_crossed`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dapl_test::run::{Run, Sandbox, changed_by_2_0, of_2_0};
use dapl_test::stage::{Profile, built, stage, target_directory};

/// Watchdog of a run that takes a minute or two. Each case has its own watchdog.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Held during a run: the watchdogs of the cases assume a machine without other load.
static RUN_LOCK: Mutex<()> = Mutex::new(());

/// Runs all cases, or those that the arguments `more` select, through `libdat.so.1`, or through `libdat2.so.2` if they
/// have `--api 2.0`.
pub(crate) fn check_cases(provider: &str, registry: &str, more: &[&str]) {
    let _turn = RUN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let sandbox = Sandbox::new(&stage(Profile::Dev), Some(registry));
    let driver = built("dapl-conformance", Profile::Dev);
    let arguments = [&["run", "--provider", provider, "--complete"], more].concat();
    let finished = Run::start(sandbox.command(driver, &arguments)).finish(TIMEOUT);
    print!("{}", finished.stdout);
    assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.stdout, finished.stderr);
}

/// Runs all cases, including those of 2.0, or those that `more` selects, through `libdat2.so.2`.
pub(crate) fn check_cases_of_2_0(provider: &str, registry: &str, more: &[&str]) {
    let changed = changed_by_2_0();
    let report = target_directory().join("conformance-2.0");
    let path = |path: &Path| path.to_str().expect("the workspace path is UTF-8").to_owned();
    let (changed, report) = (path(&changed), path(&report));
    let options = ["--api", "2.0", "--open", "--except", &changed, "--report", &report];
    check_cases(provider, &of_2_0(registry), &[&options, more].concat());
}
