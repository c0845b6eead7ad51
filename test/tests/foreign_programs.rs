//! Debian's DAT 2.0 programs (dapl2-utils), unmodified, with this project's libdat2 and providers.
//!
//! The test of unreliable datagrams (`dtestx -u`) is left out, because no provider of this project supports them.

#[path = "foreign/debian.rs"]
mod debian;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dapl_test::program::skip;
use dapl_test::run::{Finished, Run, Sandbox, has_tool};
use dapl_test::stage::{Profile, stage, workspace};

use debian::debian;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

const ADAPTERS: &str = "\
sm0 u2.0 nonthreadsafe default libdaplsm.so.1 dapl.2.0 \"\" \"\"
usnic0 u2.0 nonthreadsafe default libdaplusnic.so.1 dapl.2.0 \"127.0.0.1\" \"\"
";

/// Held during a run: dtest, dtestx and dtestcm listen on a fixed TCP port.
static RUN_LOCK: Mutex<()> = Mutex::new(());

/// A program that runs as server and as client.
struct Program {
    name: &'static str,
    /// Output of the server when it is ready for a client.
    ready: &'static str,
    /// Last output of a successful server or client.
    success: &'static str,
}

const DTEST: Program = Program { name: "dtest", ready: "waiting for client", success: "DAPL Test Complete. PASSED" };
const DTESTX: Program =
    Program { name: "dtestx", ready: "waiting to snd addr", success: "IB extension test - immed/atomic test PASSED" };
const DTESTCM: Program =
    Program { name: "dtestcm", ready: "waiting for client", success: "DAPL Connection Test Complete." };
const DTESTSRQ: Program = Program { name: "dtestsrq", ready: "server ready", success: "SRQ Test Complete." };

/// Options of `stdbuf` for line-buffered output, also to a pipe.
const LINE_BUFFERED: &[&str] = &["-oL"];

/// A program's command in an environment, started by `stdbuf` with these options.
fn command(sandbox: &Sandbox, debian: &Path, start: &[&str], name: &str, arguments: &[&str]) -> Command {
    let mut command = sandbox.command("stdbuf", start);
    command.arg(debian.join("usr/bin").join(name)).args(arguments);
    // A client may connect before the server listens.
    command.env("DAPL_LISTENER_WAIT_MS", "60000");
    command
}

/// Checks the exit status and the output, because the exit status is 0 after some failures.
fn check(program: &Program, finished: &Finished) {
    let said = |text: &str| finished.stdout.contains(text) || finished.stderr.contains(text);
    let is_good = finished.status.success() && said(program.success) && !said("Error") && !said("FAILED");
    assert!(is_good, "{finished:#?}");
}

fn run(program: &Program, adapter: &str, arguments: &[&str]) -> Option<Finished> {
    run_by(LINE_BUFFERED, program, adapter, arguments)
}

/// Runs both sides, each started by `stdbuf` with the arguments `start`. Returns the client's output; `None` if
/// Debian's packages are not available.
fn run_by(start: &[&str], program: &Program, adapter: &str, arguments: &[&str]) -> Option<Finished> {
    let debian = debian()?;
    let stage = stage(Profile::Dev);
    let _one = RUN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let sandbox = Sandbox::new(&stage, Some(ADAPTERS));
    let side = |role: &[&str]| {
        let words = [&["-P", adapter], arguments, role].concat();
        Run::start(command(&sandbox, debian, start, program.name, &words))
    };
    let server = side(&["-s"]);
    server.wait_for(program.ready, TIMEOUT);
    // The server prints the ready line just before it listens for the client's TCP connection.
    let client = loop {
        let client = side(&["-h", "127.0.0.1"]).finish(TIMEOUT);
        if !client.stderr.contains("Couldn't connect to") {
            break client;
        }
        assert!(!server.has_ended(), "{client:#?}{}", server.so_far());
    };
    check(program, &client);
    check(program, &server.finish(TIMEOUT));
    Some(client)
}

/// Runs a `dapltest` server, one client for each test, and its limit tests without a server.
fn dapltest(adapter: &str) {
    let tests = [
        "T -i 20 -t 2 -w 2 client RW 4096 2 server RR 5000 1 client SR 1024 1 server SR 99 2",
        "T -V -i 20 client RW 4096 2 server RR 5000 1 client SR 1024 1 server SR 99 2",
        "P -i 200 -m b RW 4096 2",
        "P -i 200 -m p -p 5 RR 4096 2",
    ];
    dapltest_by(LINE_BUFFERED, adapter, &tests);
    let Some(debian) = debian() else { return };
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(ADAPTERS));
    let words = ["-T", "L", "-D", adapter, "-m", "12", "-w", "2"];
    let limits = Run::start(command(&sandbox, debian, LINE_BUFFERED, "dapltest", &words)).finish(TIMEOUT);
    assert!(limits.status.success() && limits.stdout.contains("OK"), "{limits:#?}");
}

/// Runs a `dapltest` server, one client for each test, and a client that ends the server. All are started by `stdbuf`
/// with the arguments `start`.
fn dapltest_by(start: &[&str], adapter: &str, tests: &[&str]) {
    let Some(debian) = debian() else { return };
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(ADAPTERS));
    let start = |words: &[&str]| Run::start(command(&sandbox, debian, start, "dapltest", words));
    let server = start(&["-T", "S", "-D", adapter]);
    server.wait_for("Service Point Ready", TIMEOUT);
    for test in tests.iter().chain(&["Q"]) {
        let (kind, rest) = test.split_at(1);
        let words: Vec<&str> =
            ["-T", kind, "-D", adapter, "-s", "127.0.0.1"].into_iter().chain(rest.split_whitespace()).collect();
        let finished = start(&words).finish(TIMEOUT);
        let is_good = finished.status.success() && finished.stdout.contains("End of Work");
        assert!(is_good && !finished.stdout.contains("error"), "{test}: {finished:#?}");
    }
    let server = server.finish(TIMEOUT);
    assert!(server.status.success(), "{server:#?}");
}

#[test]
fn debian_dtest_transfers_data_over_this_libdat2() {
    for adapter in ["sm0", "usnic0"] {
        run(&DTEST, adapter, &["-b", "4096", "-B", "10"]);
        run(&DTEST, adapter, &["-b", "65536", "-c", "-B", "10"]);
        run(&DTEST, adapter, &["-b", "100000", "-p", "-B", "10"]);
        // With these options dtest queries the provider's attribute DAT_IB_RDMA_READ, without which it skips its RDMA
        // reads.
        if let Some(client) = run(&DTEST, adapter, &["-v", "-B", "3"]) {
            assert!(client.stdout.contains("rdma_read # 4 completed"), "{client:#?}");
        }
    }
}

#[test]
fn dtest_polls_memory_for_rdma_writes() {
    for adapter in ["sm0", "usnic0"] {
        run(&DTEST, adapter, &["-W", "-D", "-b", "4096", "-B", "10"]);
        run(&DTEST, adapter, &["-w", "-u", "-b", "4096", "-B", "10"]);
    }
}

#[test]
fn dtestx_uses_immediate_data_and_atomics() {
    for adapter in ["sm0", "usnic0"] {
        run(&DTESTX, adapter, &[]);
        run(&DTESTX, adapter, &["-b", "4096"]);
    }
}

/// `dtestx -q` queries an adapter's attributes by name and exits.
#[test]
fn dtestx_queries_an_adapter_by_name() {
    let Some(debian) = debian() else { return };
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(ADAPTERS));
    for adapter in ["sm0", "usnic0"] {
        let query = command(&sandbox, debian, LINE_BUFFERED, "dtestx", &["-P", adapter, "-q", "-s"]);
        let finished = Run::start(query).finish(TIMEOUT);
        let has = |text: &str| finished.stdout.contains(text);
        assert!(
            finished.status.success() && has("DAT_IB_FETCH_AND_ADD=TRUE") && has("DAT_IB_IMMED_DATA=TRUE"),
            "{finished:#?}"
        );
    }
}

/// The suppression in `foreign/debian.supp` covers dtest, which writes an uninitialised buffer to its TCP connection.
/// The programs also send uninitialised memory. Over usnic, reports of uninitialised values are off, because its sends
/// are system calls, for which valgrind would report the programs.
#[test]
fn valgrind_finds_nothing_in_libdat2_and_the_providers() {
    if !has_tool("valgrind") {
        skip("no valgrind");
        return;
    }
    let [common, own] = ["dat/debug/dapl-valgrind.supp", "test/tests/foreign/debian.supp"]
        .map(|file| format!("--suppressions={}", workspace().join(file).display()));
    let start = [LINE_BUFFERED, &["valgrind", "--quiet", "--error-exitcode=99", &common, &own]].concat();
    for (adapter, undefined) in [("sm0", "yes"), ("usnic0", "no")] {
        let option = format!("--undef-value-errors={undefined}");
        let start = [&start[..], &[&option]].concat();
        run_by(&start, &DTEST, adapter, &["-b", "4096", "-B", "10"]);
        run_by(&start, &DTESTX, adapter, &["-b", "4096"]);
        run_by(&start, &DTESTSRQ, adapter, &["-c", "2", "-B", "5"]);
        run_by(&start, &DTESTCM, adapter, &["-c", "10", "-b", "5"]);
        let tests =
            ["T -i 5 client RW 4096 2 server RR 5000 1 client SR 1024 1 server SR 99 2", "P -i 50 -m b RW 4096 2"];
        dapltest_by(&start, adapter, &tests);
    }
}

#[test]
fn dtestcm_connects_a_thousand_times() {
    for adapter in ["sm0", "usnic0"] {
        run(&DTESTCM, adapter, &[]);
        run(&DTESTCM, adapter, &["-w", "-m", "-c", "20", "-b", "10"]);
    }
}

#[test]
fn debian_dtestsrq_succeeds() {
    for adapter in ["sm0", "usnic0"] {
        // Without -b, the length of dtestsrq's buffers is the provider's attribute DAT_IB_TRANSPORT_MTU.
        run(&DTESTSRQ, adapter, &[]);
        run(&DTESTSRQ, adapter, &["-c", "10", "-B", "20", "-b", "5000"]);
        run(&DTESTSRQ, adapter, &["-S", "0"]);
    }
}

#[test]
fn debian_dapltest_succeeds_over_sm() {
    dapltest("sm0");
}

#[test]
fn debian_dapltest_succeeds_over_usnic() {
    dapltest("usnic0");
}
