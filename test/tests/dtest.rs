//! dtest over the sm provider, as a server and a client: for example with each way to wait, with messages from 1 byte
//! to 16 MiB, with a late, missing or killed peer, without a dat.conf, and with invalid options.
//!
//! dtest checks the data; this suite checks the output and exit status of dtest. Speed is never asserted.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Run, SM0, Sandbox};
use dapl_test::stage::{Profile, Stage, stage, workspace};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Watchdog of a run under valgrind.
const VALGRIND_TIMEOUT: Duration = Duration::from_secs(1200);

fn setting() -> (Stage, PathBuf) {
    let stage = stage(Profile::Dev);
    let dtest = run::program(&stage, "dtest/dtest.c");
    (stage, dtest)
}

fn client_arguments<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["-h", "localhost"], arguments].concat()
}

/// Runs a server and a client with the same arguments; both must succeed.
fn pair(sandbox: &Sandbox, dtest: &PathBuf, arguments: &[&str]) {
    let server = sandbox.start(dtest, arguments);
    server.wait_for("listening", TIMEOUT);
    let client = sandbox.start(dtest, &client_arguments(arguments));
    let client = client.finish(TIMEOUT);
    let server = server.finish(TIMEOUT);
    assert!(client.status.success() && server.status.success(), "client: {client:#?}\nserver: {server:#?}");
    client.expect_success("dtest: OK (checked ");
    server.expect_success("dtest: OK (checked ");
    assert_eq!((client.stderr.as_str(), server.stderr.as_str()), ("", ""), "dtest printed an error");
}

fn over_sm(arguments: &[&str]) {
    let (stage, dtest) = setting();
    pair(&Sandbox::new(&stage, Some(SM0)), &dtest, arguments);
}

#[test]
fn dtest_succeeds_with_default_options() {
    over_sm(&[]);
}

#[test]
fn dtest_prints_attributes_and_succeeds() {
    over_sm(&["-v", "-B", "1"]);
}

#[test]
fn dtest_succeeds_waiting_on_a_cno() {
    over_sm(&["-c"]);
}

#[test]
fn dtest_succeeds_polling() {
    over_sm(&["-p"]);
}

#[test]
fn dtest_obeys_the_stricter_rules_of_other_implementations() {
    let (stage, dtest) = setting();
    let strict = stage.root.join("strict-dtest.so");
    stage.compile(&strict, &[&workspace().join("test/c/strict.c")], &["-shared", "-fPIC"]);
    for mode in [&[][..], &["-c"], &["-p"]] {
        let sandbox = Sandbox::new(&stage, Some(SM0));
        let start = |arguments: &[&str]| {
            let mut command = sandbox.command(&dtest, arguments);
            command.env("LD_PRELOAD", &strict);
            Run::start(command)
        };
        let server = start(mode);
        server.wait_for("listening", TIMEOUT);
        start(&client_arguments(mode)).finish(TIMEOUT).expect_success("dtest: OK (checked ");
        server.finish(TIMEOUT).expect_success("dtest: OK (checked ");
    }
}

#[test]
fn dtest_transfers_messages_of_1_byte() {
    over_sm(&["-b", "1"]);
}

#[test]
fn dtest_transfers_messages_of_64_kib() {
    over_sm(&["-b", "65536", "-B", "50"]);
}

#[test]
fn dtest_transfers_messages_of_16_mib() {
    over_sm(&["-b", "16777216", "-B", "2"]);
}

#[test]
fn dtest_transfers_messages_of_unaligned_sizes() {
    for size in ["3", "4095", "4097", "100001"] {
        over_sm(&["-b", size, "-B", "3"]);
    }
}

#[test]
fn dtest_succeeds_with_delayed_abrupt_disconnect() {
    over_sm(&["-a", "-d", "-B", "1"]);
}

#[test]
fn dtest_server_and_client_can_wait_in_different_modes() {
    let (stage, dtest) = setting();
    for (server, client) in [("-c", "-p"), ("-p", "-c"), ("-v", "-p"), ("-c", "-v")] {
        let sandbox = Sandbox::new(&stage, Some(SM0));
        let server = sandbox.start(&dtest, &[server]);
        server.wait_for("listening", TIMEOUT);
        let client = sandbox.start(&dtest, &client_arguments(&[client]));
        client.finish(TIMEOUT).expect_success("dtest: OK");
        server.finish(TIMEOUT).expect_success("dtest: OK");
    }
}

#[test]
fn dtest_client_retries_until_the_server_listens() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let client = sandbox.start(&dtest, &client_arguments(&[]));
    client.wait_for("trying again", TIMEOUT);
    let server = sandbox.start(&dtest, &["-s"]);
    client.finish(TIMEOUT).expect_success("dtest: OK");
    server.finish(TIMEOUT).expect_success("dtest: OK");
}

#[test]
fn dtest_client_reports_a_missing_listener() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let client = sandbox.start(&dtest, &client_arguments(&[]));
    client.finish(TIMEOUT).expect_failure("no connection to localhost");
}

#[test]
fn dtest_server_times_out_without_a_client() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let server = sandbox.start(&dtest, &["-t", "1"]);
    server.finish(TIMEOUT).expect_failure("did not arrive within 1 s");
}

#[test]
fn dtest_reports_different_message_sizes() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let server = sandbox.start(&dtest, &["-b", "8"]);
    server.wait_for("listening", TIMEOUT);
    let client = sandbox.start(&dtest, &client_arguments(&["-b", "9"]));
    server.finish(TIMEOUT).expect_failure("runs with -b 9");
    client.finish(TIMEOUT).expect_failure("no connection to localhost");
}

fn killed_in_the_middle(mode: &[&str], victim_is_server: bool) {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let arguments = [mode, &["-B", "100000000", "-b", "4096"]].concat();
    let server = sandbox.start(&dtest, &arguments);
    server.wait_for("listening", TIMEOUT);
    let client = sandbox.start(&dtest, &client_arguments(&arguments));
    server.wait_for("connected", TIMEOUT);
    client.wait_for("connected", TIMEOUT);
    let (mut victim, survivor): (Run, Run) = if victim_is_server { (server, client) } else { (client, server) };
    victim.kill();
    survivor.finish(TIMEOUT).expect_failure("the connection: ");
}

#[test]
fn dtest_client_reports_a_killed_server() {
    for mode in [&[][..], &["-c"], &["-p"]] {
        killed_in_the_middle(mode, true);
    }
}

#[test]
fn dtest_server_reports_a_killed_client() {
    for mode in [&[][..], &["-c"], &["-p"]] {
        killed_in_the_middle(mode, false);
    }
}

#[test]
fn dtest_succeeds_without_any_dat_conf() {
    let usual = ["/etc/dat.conf", "/etc/rdma/compat-dapl/dat.conf", "/etc/rdma/dat.conf"];
    if let Some(file) = usual.iter().find(|file| std::fs::exists(file).unwrap_or(true)) {
        println!("skipped: {file} exists on this machine, so the built-in registry is not used");
        return;
    }
    let (stage, dtest) = setting();
    pair(&Sandbox::new(&stage, None), &dtest, &[]);
}

#[test]
fn dtest_reports_an_unknown_adapter_by_its_return_code() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    sandbox
        .start(&dtest, &["-P", "nothing"])
        .finish(TIMEOUT)
        .expect_failure("DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED");
}

#[test]
fn dtest_pairs_with_different_qualifiers_run_concurrently() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    std::thread::scope(|scope| {
        for qual in ["45248", "45249"] {
            let (sandbox, dtest) = (&sandbox, &dtest);
            scope.spawn(move || pair(sandbox, dtest, &["-q", qual, "-B", "50"]));
        }
    });
}

#[test]
fn dtest_connects_to_qualifiers_above_32_bits() {
    over_sm(&["-q", "18446744073709551615", "-B", "1"]);
    over_sm(&["-q", "0x300000000", "-B", "1"]);
}

#[test]
fn dtest_leaks_no_memory() {
    if !run::has_tool("valgrind") {
        println!("skipped: valgrind is missing; install the Debian package valgrind");
        return;
    }
    let (stage, dtest) = setting();
    for mode in ["-v", "-c", "-p"] {
        let sandbox = Sandbox::new(&stage, Some(SM0));
        let checked = |arguments: &[&str]| -> Command {
            let options = [
                "--quiet",
                "--leak-check=full",
                "--show-leak-kinds=definite,indirect",
                "--errors-for-leak-kinds=definite,indirect",
                "--error-exitcode=99",
            ];
            let common = ["-t", "600", "-b", "5000", "-B", "2", mode];
            let mut command = sandbox.command("valgrind", &options);
            command.arg(&dtest).args(common).args(arguments);
            command
        };
        let server = Run::start(checked(&[]));
        server.wait_for("listening", VALGRIND_TIMEOUT);
        let client = Run::start(checked(&["-h", "localhost"]));
        let (client, server) = (client.finish(VALGRIND_TIMEOUT), server.finish(VALGRIND_TIMEOUT));
        assert!(client.status.success() && server.status.success(), "client: {client:#?}\nserver: {server:#?}");
        client.expect_success("dtest: OK");
        server.expect_success("dtest: OK");
    }
}

#[test]
fn dtest_prints_help_and_rejects_malformed_options() {
    let (stage, dtest) = setting();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let help = sandbox.start(&dtest, &["--help"]).finish(TIMEOUT);
    assert!(help.status.success() && help.stdout.starts_with("usage: dtest"), "{help:#?}");
    sandbox.start(&dtest, &["-b", "1x"]).finish(TIMEOUT).expect_failure("is not a number from 1 to");
    sandbox.start(&dtest, &["-s", "-h", "localhost"]).finish(TIMEOUT).expect_failure("exclude each other");
}
