//! The first steps of each kind of user (`test/walkthrough.sh`): install, C programs, a Rust program, a new provider.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Run};
use dapl_test::stage::{target_directory, workspace};

/// Watchdog: the script compiles a Rust program and a provider.
const TIMEOUT: Duration = Duration::from_secs(900);

#[test]
fn walkthrough_succeeds_for_each_user() {
    if !run::has_tool("pkg-config") {
        return println!("skipped: pkg-config is missing; install the Debian package pkg-config");
    }
    let directory = target_directory().join("tmp/walkthrough");
    let _ = std::fs::remove_dir_all(&directory);
    let mut command = Command::new("bash");
    command.arg(workspace().join("test/walkthrough.sh")).arg(&directory);
    Run::start(command).finish(TIMEOUT).expect_success("walkthrough: OK");
}
