//! sm in restricted environments: without copies between processes by the kernel, in separate namespaces, with one
//! processor, with few descriptors, with little or no disk space, on a read-only file system, without /dev/shm, and
//! with hundreds of processes at once.
//!
//! sm uses the next best method, or fails with a message that names the problem, the object and the remedy.
//! `test/c/confined.c` creates the environments. If the system does not permit an environment, its test prints a
//! message and is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox};
use dapl_test::stage::{Profile, Stage, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Exit status of `confined` when the system does not permit a step.
const STATUS_NOT_PERMITTED: i32 = 77;

fn setting() -> (Stage, Sandbox) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    (stage, sandbox)
}

/// A command that runs a program in the environment that these steps of `confined` create.
fn confined(stage: &Stage, sandbox: &Sandbox, steps: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(run::program(stage, "test/c/confined.c"), steps);
    command.arg("--").arg(program).args(arguments);
    command
}

/// Whether the environment was not permitted; then prints a message.
fn is_skipped(finished: &Finished) -> bool {
    let is_skipped = finished.status.code() == Some(STATUS_NOT_PERMITTED);
    if is_skipped {
        eprintln!("skipped: {}", finished.stderr);
    }
    is_skipped
}

/// Runs a program with both endpoints in this environment. Returns `None` if the environment is not permitted.
fn run(stage: &Stage, sandbox: &Sandbox, steps: &[&str], source: &str) -> Option<Finished> {
    let program = run::program(stage, source);
    let finished = Run::start(confined(stage, sandbox, steps, &program, &[])).finish(TIMEOUT);
    (!is_skipped(&finished)).then_some(finished)
}

#[test]
fn misspelled_step_of_confined_is_an_error() {
    let (stage, sandbox) = setting();
    for steps in [&["readonyl=/tmp"][..], &["files"], &["files=many"], &["cpu=1"], &["small=/tmp"], &["cpu", "usr"]] {
        let finished = Run::start(confined(&stage, &sandbox, steps, Path::new("/bin/true"), &[])).finish(TIMEOUT);
        let last = steps[steps.len() - 1];
        assert_eq!(finished.status.code(), Some(2), "{steps:?}: {finished:#?}");
        assert!(finished.stderr.contains(&format!("confined: invalid step \"{last}\"")), "{finished:#?}");
    }
}

/// Runs a dtest server and client, each in its own environment; both must succeed.
fn pair(server_steps: &[&str], client_steps: &[&str]) {
    let (stage, sandbox) = setting();
    let dtest = run::program(&stage, "dtest/dtest.c");
    // Check first that both environments are permitted.
    for steps in [server_steps, client_steps] {
        let tried = Run::start(confined(&stage, &sandbox, steps, Path::new("/bin/true"), &[])).finish(TIMEOUT);
        if is_skipped(&tried) {
            return;
        }
    }
    let server = Run::start(confined(&stage, &sandbox, server_steps, &dtest, &[]));
    server.wait_for("listening", TIMEOUT);
    let client = Run::start(confined(&stage, &sandbox, client_steps, &dtest, &["-h", "localhost"])).finish(TIMEOUT);
    let server = server.finish(TIMEOUT);
    assert!(client.status.success() && server.status.success(), "client: {client:#?}\nserver: {server:#?}");
    client.expect_success("dtest: OK (checked ");
    server.expect_success("dtest: OK (checked ");
    assert_eq!((client.stderr.as_str(), server.stderr.as_str()), ("", ""), "dtest printed an error");
}

#[test]
fn transfers_succeed_if_the_kernel_refuses_process_vm_copies() {
    let (stage, sandbox) = setting();
    if let Some(finished) = run(&stage, &sandbox, &["nocma"], "test/c/window.c") {
        finished.expect_success("window: OK, 20 rounds");
    }
}

#[test]
fn transfers_succeed_if_one_side_is_refused_process_vm_copies() {
    pair(&["nocma"], &["cpu"]);
    pair(&["cpu"], &["nocma"]);
}

#[test]
fn processes_in_different_user_namespaces_connect() {
    pair(&["user"], &["cpu"]);
    pair(&["cpu"], &["user"]);
    pair(&["user"], &["user"]);
}

#[test]
fn processes_in_different_pid_namespaces_connect() {
    pair(&["pid"], &["cpu"]);
    pair(&["cpu"], &["pid"]);
    pair(&["pid"], &["pid"]);
}

#[test]
fn window_and_selfconnect_complete_on_one_processor() {
    let (stage, sandbox) = setting();
    for source in ["test/c/window.c", "test/c/selfconnect.c"] {
        if let Some(finished) = run(&stage, &sandbox, &["cpu"], source) {
            finished.expect_success(": OK");
        }
    }
}

#[test]
fn descriptor_limit_is_sufficient_or_named_in_the_error() {
    let (stage, sandbox) = setting();
    let dtest = run::program(&stage, "dtest/dtest.c");
    let mut worked = Vec::new();
    for files in [4, 11, 14, 17, 20, 40] {
        let server = sandbox.start(&dtest, &["-t", "2"]);
        server.wait_for("listening", TIMEOUT);
        let steps = format!("files={files}");
        let client = Run::start(confined(&stage, &sandbox, &[&steps], &dtest, &["-h", "127.0.0.1"])).finish(TIMEOUT);
        let server = server.finish(TIMEOUT);
        if client.status.success() {
            server.expect_success("dtest: OK (checked ");
            worked.push(files);
            continue;
        }
        // With too few descriptors the dynamic loader fails, and prints its own message.
        client.expect_failure("");
        let words = ["Too many open files", "No file descriptors", "ulimit -n", "Error 24"];
        assert!(words.iter().any(|words| client.stderr.contains(words)), "{files}: {client:#?}");
        assert_eq!(worked, [0; 0], "dtest succeeded with a limit of {files} files: {client:#?}");
    }
    assert!(worked.contains(&40), "{worked:?}");
}

#[test]
fn calls_without_a_descriptor_report_missing_resources() {
    let (stage, sandbox) = setting();
    let program = run::program(&stage, "test/c/descriptors.c");
    let finished = Run::start(confined(&stage, &sandbox, &["files=200"], &program, &[])).finish(TIMEOUT);
    if !is_skipped(&finished) {
        finished.expect_success("descriptors: OK");
        assert!(finished.stderr.contains("ulimit -n"), "{finished:#?}");
    }
}

#[test]
fn hundreds_of_processes_open_an_adapter_at_once() {
    let (stage, sandbox) = setting();
    let program = run::program(&stage, "test/c/openers.c");
    let finished = sandbox.start(&program, &["sm0", "500"]).finish(TIMEOUT);
    finished.expect_success("openers: OK");
    println!("{}", finished.stdout);
    assert_eq!(std::fs::read_dir(sandbox.sm()).unwrap().count(), 0, "a run directory entry is left");
}

#[test]
fn selfconnect_succeeds_on_a_small_file_system() {
    let (stage, sandbox) = setting();
    let steps = format!("small={}:64k", sandbox.sm().display());
    if let Some(finished) = run(&stage, &sandbox, &[&steps], "test/c/selfconnect.c") {
        finished.expect_success("selfconnect: OK");
    }
}

#[test]
fn full_file_system_is_named_in_the_error() {
    let (stage, sandbox) = setting();
    let base = sandbox.sm().display().to_string();
    let steps = [format!("small={base}:64M"), format!("full={base}")];
    if let Some(finished) = run(&stage, &sandbox, &[&steps[0], &steps[1]], "test/c/selfconnect.c") {
        for words in [base.as_str(), "No space left on device", "DAPL_DIR", "free space there"] {
            finished.expect_failure(words);
        }
    }
}

#[test]
fn read_only_directory_is_named_in_the_error() {
    let (stage, sandbox) = setting();
    let base = sandbox.sm().display().to_string();
    if let Some(finished) = run(&stage, &sandbox, &[&format!("readonly={base}")], "test/c/selfconnect.c") {
        for words in [base.as_str(), "Read-only file system", "DAPL_DIR", "DAT_PRIVILEGES_VIOLATION"] {
            finished.expect_failure(words);
        }
    }
}

/// A directory outside of /dev, removed when dropped.
struct Elsewhere(PathBuf);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn error_without_dev_shm_asks_for_dapl_dir_which_is_then_used() {
    let (stage, sandbox) = setting();
    let elsewhere = Elsewhere(std::env::temp_dir().join(format!("dapl-environments-{}", std::process::id())));
    std::fs::create_dir(&elsewhere.0).unwrap();
    let registry = elsewhere.0.join("dat.conf");
    std::fs::write(&registry, SM0).unwrap();
    let program = run::program(&stage, "test/c/selfconnect.c");
    let without = |base: Option<&Path>| {
        let mut command = confined(&stage, &sandbox, &["hidden=/dev"], &program, &[]);
        command.env("DAT_OVERRIDE", &registry).env_remove("DAPL_DIR");
        base.inspect(|base| _ = command.env("DAPL_DIR", base));
        Run::start(command).finish(TIMEOUT)
    };
    let finished = without(None);
    if is_skipped(&finished) {
        return;
    }
    for words in ["/dev/shm/dapl-", "DAPL_DIR", "set it to a directory that exists"] {
        finished.expect_failure(words);
    }
    without(Some(&elsewhere.0.join("sm"))).expect_success("selfconnect: OK");
}
