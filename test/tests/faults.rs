//! Failures around sm: peers that die or do not respond, directories with wrong permissions, a full file system.
//!
//! The surviving process gets one event and flushed completions. An error message names the directory and the cause.
//! Files of a killed process are removed by the surviving or by the next process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, SM0, Sandbox};
use dapl_test::stage::{Profile, Stage, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

fn setting() -> (Stage, Sandbox) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    (stage, sandbox)
}

fn left_behind(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path().display().to_string()).collect()
}

fn survives(arguments: &[&str], rma: &str) {
    let (stage, sandbox) = setting();
    let survivor = run::program(&stage, "test/c/survivor.c");
    let mut command = sandbox.command(survivor, &[&["sm0"], arguments].concat());
    command.env("DAPL_SM_RMA", rma);
    run::Run::start(command).finish(TIMEOUT).expect_success("survivor: OK");
    assert_eq!(left_behind(&sandbox.sm()), Vec::<String>::new());
}

#[test]
fn idle_connection_breaks_if_the_peer_is_killed() {
    survives(&["kill"], "auto");
}

#[test]
fn connection_breaks_if_the_peer_is_killed_during_writes() {
    survives(&["kill", "busy"], "auto");
}

#[test]
fn connection_breaks_if_the_peer_is_killed_during_bounced_writes() {
    survives(&["kill", "busy"], "mmap");
}

#[test]
fn connection_ends_if_the_peer_exits_without_closing() {
    survives(&["exit"], "auto");
}

#[test]
fn connection_to_an_unresponsive_peer_times_out() {
    let (stage, sandbox) = setting();
    let survivor = run::program(&stage, "test/c/survivor.c");
    let mut command = sandbox.command(survivor, &["sm0", "stop"]);
    command.env("DAPL_KEEPALIVE_MS", "100").env("DAPL_GIVE_UP_MS", "1000");
    run::Run::start(command).finish(TIMEOUT).expect_success("survivor: OK");
}

#[test]
fn shared_memory_of_a_killed_process_is_released() {
    let (stage, sandbox) = setting();
    sandbox.start(run::program(&stage, "test/c/shared.c"), &[]).finish(TIMEOUT).expect_success("shared: OK");
    assert_eq!(left_behind(&sandbox.sm()), Vec::<String>::new());
}

/// Runs `test/c/first.c` with another base directory for sm. The run must fail; the caller checks the message.
fn refused(stage: &Stage, sandbox: &Sandbox, base: &Path) -> Finished {
    let first = run::program(stage, "test/c/first.c");
    let mut command = sandbox.command(first, &[]);
    command.env("DAPL_DIR", base);
    let finished = run::Run::start(command).finish(TIMEOUT);
    assert!(!finished.status.success(), "{finished:#?}");
    finished
}

#[test]
fn directory_accessible_to_other_users_is_refused() {
    let (stage, sandbox) = setting();
    let open = sandbox.sm().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let finished = refused(&stage, &sandbox, &open);
    for part in [open.to_str().unwrap(), "0755", "0700", "DAPL_DIR"] {
        assert!(finished.stderr.contains(part), "{part}: {finished:#?}");
    }
}

#[test]
fn relative_or_too_long_directory_is_refused() {
    let (stage, sandbox) = setting();
    for base in [Path::new("here"), &sandbox.sm().join("x".repeat(90))] {
        let finished = refused(&stage, &sandbox, base);
        assert!(finished.stderr.contains("is not an absolute path without"), "{finished:#?}");
    }
}

#[test]
fn full_file_system_of_dapl_dir_is_named() {
    let (stage, sandbox) = setting();
    let small = sandbox.sm().join("small");
    fs::create_dir(&small).unwrap();
    let mount =
        |arguments: &[&str]| Command::new(arguments[0]).args(&arguments[1..]).status().is_ok_and(|s| s.success());
    let at = small.to_str().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3,mode=700", "tmpfs", at]) {
        eprintln!("skipped: a small file system cannot be mounted at {at} (not permitted)");
        return;
    }
    let finished = refused(&stage, &sandbox, &small);
    assert!(mount(&["umount", at]));
    assert!(finished.stderr.contains(at) && finished.stderr.contains("free space there"), "{finished:#?}");
}

#[test]
fn files_of_exited_processes_are_removed_by_the_next_process() {
    let (stage, sandbox) = setting();
    let dead = sandbox.sm().join("1/1");
    fs::create_dir_all(dead.join("conns/77")).unwrap();
    fs::create_dir(sandbox.sm().join("quals")).unwrap();
    for file in [dead.join("lock"), dead.join("sock"), sandbox.sm().join("quals/45248")] {
        fs::write(file, "").unwrap();
    }
    let first = run::program(&stage, "test/c/first.c");
    let finished = sandbox.start(first, &[]).finish(TIMEOUT);
    assert!(finished.status.success(), "{finished:#?}");
    assert_eq!(left_behind(&sandbox.sm()), Vec::<String>::new());
}
