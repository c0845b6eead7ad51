//! Error paths of the object layer: `test/c/walk.c` uses every kind of object again and again, and each time another
//! call of the provider fails, or the limit of descriptors or of address space is different. The program checks that no
//! object is left afterwards.
//!
//! Uses libdaplfaulty, which is staged here and never installed. Failing allocations are not covered, since Rust then
//! aborts the process. Failures of system calls, such as for descriptors and mappings, are covered.

use std::time::Duration;

use dapl_test::run::{self, Finished, Sandbox};
use dapl_test::stage::{Profile, Stage, stage_with};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

const REGISTRY: &str = "faulty0 u1.2 threadsafe default libdaplfaulty.so.1 dapl.1.2 \"\" \"\"\n";

/// Number of walks in which a call failed, from the output of the program `walk`: one line per walk.
fn steps(finished: &Finished) -> usize {
    finished.stdout.lines().filter(|line| line.contains(": ") && !line.ends_with(": nothing")).count()
}

fn setting() -> (Stage, Sandbox) {
    let stage = stage_with(Profile::Dev, &["daplsm", "daplfaulty"]);
    let sandbox = Sandbox::new(&stage, Some(REGISTRY));
    (stage, sandbox)
}

/// Runs the program `walk` in this mode; in more than `least` of its walks a call must have failed.
fn walk(mode: &str, plan: &str, least: usize) {
    let (stage, sandbox) = setting();
    let walk = run::program(&stage, "test/c/walk.c");
    let mut command = sandbox.command(walk, &["faulty0", mode]);
    command.env("DAPL_FAULTY", plan);
    // Without cached stacks, every new thread needs address space, so that thread creation can fail.
    command.env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0");
    let finished = run::Run::start(command).finish(TIMEOUT);
    finished.expect_success("walk: OK");
    assert!(steps(&finished) > least, "only {} steps had a failed call: {finished:#?}", steps(&finished));
}

#[test]
fn refused_calls_succeed_when_repeated() {
    walk("again", "", 40);
}

#[test]
fn abrupt_close_frees_partly_created_objects() {
    walk("stop", "", 40);
}

#[test]
fn asynchronously_failing_transfer_leaves_no_object() {
    walk("spoil", "", 3);
}

#[test]
fn calls_that_lack_descriptors_fail_and_leak_nothing() {
    walk("files", "", 10);
}

#[test]
fn calls_that_lack_address_space_fail_and_leak_nothing() {
    walk("memory", "", 10);
}

#[test]
fn calls_that_cannot_start_a_thread_fail_and_leak_nothing() {
    walk("threads", "", 3);
}

#[test]
fn refused_calls_succeed_when_repeated_over_a_slow_provider() {
    walk("again", "delay=event:2,delay=request:30,delay=create_qp:1,delay=accept:2,delay=connect:1,delay=reset:1", 40);
}

#[test]
fn fault_plan_is_read_from_dapl_faulty() {
    let (stage, sandbox) = setting();
    let first = run::program(&stage, "test/c/first.c");
    let run = |plan: &str| {
        let mut command = sandbox.command(&first, &["faulty0"]);
        command.env("DAPL_FAULTY", plan);
        run::Run::start(command).finish(TIMEOUT)
    };
    run("refuse=open").expect_failure("INSUFFICIENT_RESOURCES");
    run("fail=1").expect_failure("INSUFFICIENT_RESOURCES");
    let counted = run("count,fail=open:2");
    assert!(counted.status.success() && counted.stderr.contains("faulty: 1 calls"), "{counted:#?}");
    let unknown = run("refuse=everything");
    assert!(unknown.status.success() && unknown.stderr.contains("refuse=everything is not understood"), "{unknown:#?}");
}

#[test]
fn valgrind_finds_no_leak_after_failed_calls() {
    if !run::has_tool("valgrind") {
        eprintln!("skipped: valgrind is missing; install the Debian package valgrind");
        return;
    }
    let (stage, sandbox) = setting();
    let walk = run::program(&stage, "test/c/walk.c");
    let walk = walk.to_str().expect("the path of the target directory is UTF-8");
    let leaks = "--errors-for-leak-kinds=definite,indirect";
    let arguments = ["--quiet", "--error-exitcode=99", "--leak-check=full", leaks, walk, "faulty0", "stop"];
    sandbox.start("valgrind", &arguments).finish(TIMEOUT).expect_success("walk: OK");
}
