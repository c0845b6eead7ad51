//! Compiles small C and C++ programs of `test/c` against the shared objects, as existing DAT programs are, and runs
//! them over sm, some of them also under valgrind.
//!
//! The head of each source describes the program. Each test runs one program in its own environment and checks the
//! program's result line.

use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(400);

fn consume(source: &str, arguments: &[&str]) -> Finished {
    let finished = run_alone(source, arguments);
    assert_eq!(finished.stderr, "", "the program printed an error: {finished:#?}");
    finished
}

/// Runs a program that uses invalid keys: it may log refused accesses, but nothing else.
fn consume_with_refusals(source: &str, arguments: &[&str]) -> Finished {
    let finished = run_alone(source, arguments);
    let is_expected = |line: &str| line.contains("DAT_DTO_ERR_REMOTE_ACCESS") || line.contains("repeated");
    assert!(finished.stderr.lines().all(is_expected), "{finished:#?}");
    finished
}

fn run_alone(source: &str, arguments: &[&str]) -> Finished {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, source);
    Sandbox::new(&stage, Some(SM0)).start(program, arguments).finish(TIMEOUT)
}

fn under_valgrind(source: &str, arguments: &[&str]) -> Option<Finished> {
    if !run::has_tool("valgrind") {
        println!("skipped: valgrind is missing; install the Debian package valgrind");
        return None;
    }
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, source);
    let options = [
        "--quiet",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect,possible",
        "--errors-for-leak-kinds=definite,indirect,possible",
        "--error-exitcode=99",
    ];
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let mut command = sandbox.command("valgrind", &options);
    command.arg(program).args(arguments);
    Some(Run::start(command).finish(3 * TIMEOUT))
}

#[test]
fn first_program_of_the_readme_succeeds() {
    consume("test/c/first.c", &[]).expect_success("messages of up to ");
}

#[test]
fn cxx_program_compiles_and_succeeds() {
    consume("test/c/cxx.cc", &[]).expect_success("cxx: OK");
}

#[test]
fn libdat_opened_by_dlopen_with_rtld_local_works() {
    consume("test/c/dlopen_local.c", &[]).expect_success("dlopen_local: OK");
}

#[test]
fn arbitrary_values_are_refused_as_handles() {
    consume("test/c/garbage.c", &[]).expect_success("garbage: OK");
}

#[test]
fn ten_thousand_endpoints_on_one_evd_lose_no_event() {
    consume("test/c/many_endpoints.c", &["10000"]).expect_success("\"endpoints\":10000");
}

#[test]
fn windows_grant_a_process_access_only_to_their_range() {
    consume_with_refusals("test/c/window.c", &[]).expect_success("window: OK, 20 rounds");
}

#[test]
fn windows_with_shared_buffers_grant_access_only_to_their_range() {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let mut command = sandbox.command(run::program(&stage, "test/c/window.c"), &[]);
    command.env("DAPL_SM_RMA", "mmap");
    Run::start(command).finish(TIMEOUT).expect_success("window: OK, 20 rounds");
}

#[test]
fn shared_memory_of_another_process_is_mapped_and_copied_directly() {
    for kind in ["file", "segment"] {
        consume_with_refusals("test/c/exported.c", &["sm0", kind, "mapped"])
            .expect_success(&format!("exported: OK, {kind} mapped"));
    }
}

#[test]
fn shared_memory_is_not_mapped_if_shared_buffers_are_configured() {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let mut command = sandbox.command(run::program(&stage, "test/c/exported.c"), &["sm0", "file", "not"]);
    command.env("DAPL_SM_RMA", "mmap");
    Run::start(command).finish(TIMEOUT).expect_success("exported: OK, file not");
}

#[test]
fn mapped_shared_memory_leaks_no_memory() {
    for kind in ["file", "segment"] {
        if let Some(finished) = under_valgrind("test/c/exported.c", &["sm0", kind, "mapped"]) {
            finished.expect_success(&format!("exported: OK, {kind} mapped"));
        }
    }
}

#[test]
fn one_shared_queue_receives_from_four_processes() {
    consume("test/c/srq.c", &[]).expect_success("srq: OK, 2000 messages");
}

#[test]
fn memory_windows_leak_no_memory() {
    if let Some(finished) = under_valgrind("test/c/window.c", &[]) {
        finished.expect_success("window: OK, 20 rounds");
    }
}

#[test]
fn one_thread_connects_to_itself() {
    consume("test/c/selfconnect.c", &[]).expect_success("selfconnect: OK, 100 rounds");
}

#[test]
fn one_thread_connects_to_itself_and_leaks_no_memory() {
    if let Some(finished) = under_valgrind("test/c/selfconnect.c", &["sm0", "3"]) {
        finished.expect_success("selfconnect: OK, 3 rounds");
    }
}

#[test]
fn invalid_pointers_are_refused_without_being_read() {
    if let Some(finished) = under_valgrind("test/c/garbage.c", &[]) {
        finished.expect_success("garbage: OK");
    }
}

/// Runs `net` as two processes that stream to each other. The suite `net` runs the same over a network.
fn net(options: &[&str]) -> (Sandbox, Run, Run) {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/net.c");
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let common = [&["-P", "sm0"], options].concat();
    let server = sandbox.start(&program, &[&["-s"], &common[..]].concat());
    server.wait_for("listening", TIMEOUT);
    let client = sandbox.start(&program, &[&["-h", "localhost"], &common[..]].concat());
    [&client, &server].into_iter().for_each(|run| run.wait_for("flowing", TIMEOUT));
    (sandbox, server, client)
}

#[test]
fn bidirectional_streams_end_with_a_disconnect() {
    let (_room, server, client) = net(&["-2", "-t", "1"]);
    client.finish(TIMEOUT).expect_success("net: OK (disconnected;");
    server.finish(TIMEOUT).expect_success("net: OK (disconnected;");
}

#[test]
fn stream_ends_when_the_peer_is_killed() {
    let (_room, mut server, client) = net(&["-2", "-e", "-t", "600"]);
    server.kill();
    client.finish(TIMEOUT).expect_success("net: OK (");
}
