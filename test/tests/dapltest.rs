//! dapltest over sm and usnic, as processes that find the adapter through a registry: its tests, options and results,
//! several clients at once, and faulty peers. A faulty peer is killed, sends nothing, has another version or sends
//! invalid data.
//!
//! dapltest checks the data; this suite checks the output and exit status of dapltest. Speed is never asserted.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox, USNIC0, check_closed_output};
use dapl_test::stage::{Profile, Stage, built, stage, workspace};
use serde_json::Value;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// A long timeout for clients whose server responds, because a busy machine may stall for some seconds.
const LONG_TIMEOUT: [&str; 2] = ["--timeout", "120"];
/// Operations of all kinds, in both directions, with one and with several segments.
const OPERATIONS: &str = "client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2 client SR 1024 3 -f \
                          server SR 2048 1 -f client RR 100 2 server RR 5000 1 -p client SR 70000 server SR 1";

/// An adapter with its own environment.
struct Environment {
    stage: Stage,
    sandbox: Sandbox,
    program: PathBuf,
    adapter: &'static str,
}

impl Environment {
    fn of(adapter: &'static str) -> Self {
        let stage = stage(Profile::Dev);
        let sandbox = Sandbox::new(&stage, Some(if adapter == "sm0" { SM0 } else { USNIC0 }));
        Environment { stage, sandbox, program: built("dapltest", Profile::Dev), adapter }
    }

    /// A dapltest command with the usual options and these arguments.
    fn command(&self, words: &str) -> Command {
        let mut command = self.sandbox.command(&self.program, &["-D", self.adapter]);
        command.args(LONG_TIMEOUT).args(words.split_whitespace());
        command
    }

    fn start(&self, words: &str) -> Run {
        Run::start(self.command(words))
    }

    /// Runs a client, or a test without a server.
    fn run(&self, words: &str) -> Finished {
        self.start(words).finish(TIMEOUT)
    }

    /// JSON output of a test that passed.
    fn json(&self, words: &str) -> Value {
        let finished = self.run(words);
        assert!(finished.status.success(), "{words}: {finished:#?}");
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"))
    }

    fn serve(&self, words: &str) -> Run {
        let server = self.start(&format!("-T S {words}"));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// Ends the server by a client with `-T Q`.
    fn quit(&self, server: Run) -> Finished {
        let quit = self.run("-T Q -s localhost");
        assert!(quit.status.success(), "{quit:#?}");
        let finished = server.finish(TIMEOUT);
        finished.expect_success("dapltest: quit");
        finished
    }

    /// Starts a client that misbehaves in this way.
    fn bad_client(&self, way: &str) -> Run {
        let program = run::program(&self.stage, "test/c/bad_client.c");
        self.sandbox.start(program, &[self.adapter, "45278", way])
    }
}

const ADAPTERS: [&str; 2] = ["sm0", "usnic0"];

#[test]
fn dapltest_transactions_with_data_checks_succeed() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for how in ["", "-P", "-Q"] {
            let words = format!("-T T -s localhost -V -t 2 -w 3 -i 30 {how} {OPERATIONS}");
            environment.run(&words).expect_success("dapltest: OK");
        }
        assert_eq!(environment.quit(server).stderr, "", "the server printed an error");
    }
}

#[test]
fn dapltest_transactions_without_data_checks_succeed() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for operations in ["client SR server SR", "server SR 10 client SR 100000 2 client RW 8 server RR", OPERATIONS] {
            environment.run(&format!("-T T -s localhost -w 2 -i 50 {operations}")).expect_success("dapltest: OK");
        }
        let said = environment.json("-T T -s localhost --json -i 20 client SR 100 server SR 10 2");
        assert_eq!((&said["ok"], &said["test"]), (&Value::Bool(true), &Value::from("transaction")));
        assert_eq!(said["bytes"], Value::from(20 * 120));
        assert!(said["iteration_us"]["p99.9"].as_f64() >= said["iteration_us"]["p50"].as_f64(), "{said}");
        environment.quit(server);
    }
}

#[test]
fn dapltest_performance_reports_each_operation() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for operation in ["SR 64", "RW 4096 2", "RR 10000"] {
            for mode in ["-m b", "-m p -p 1", "-m b -p 16"] {
                let said = environment.json(&format!("-T P -s localhost --json -i 300 {mode} {operation}"));
                assert_eq!((&said["ok"], &said["iterations"]), (&Value::Bool(true), &Value::from(300)));
                let rows = said["results"].as_array().expect("\"results\" is a list of rows");
                assert_eq!((rows.len(), &rows[0]["operations"]), (1, &Value::from(300)), "{said}");
                assert!(rows[0]["operation_us"]["p50"].as_f64().is_some_and(|time| time > 0.0), "{said}");
            }
        }
        environment.quit(server);
    }
}

#[test]
fn dapltest_performance_reports_all_sizes_in_one_run() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for (operation, mode) in
            [("SR", "-m p"), ("SR --bidirectional", "-m b"), ("RW", "-m b"), ("RR --bidirectional", "-m p")]
        {
            let (operation, direction) = operation.split_once(' ').unwrap_or((operation, ""));
            let words = format!(
                "-T P -s localhost --json --sizes 1..16,100,64K -i 50 --warm-up 7 {mode} {direction} {operation}"
            );
            let said = environment.json(&words);
            let rows = said["results"].as_array().expect("\"results\" is a list of rows");
            let sizes: Vec<u64> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
            assert_eq!(sizes, [1, 2, 4, 8, 16, 100, 65_536], "{said}");
            for row in rows {
                assert_eq!(row["operations"], 50, "warm-up operations are counted: {row}");
                let at = |name: &str| row["operation_us"][name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
                assert!(at("p50") <= at("p99") && at("p99") <= at("p99.9") && at("p99.9") <= at("max"), "{row}");
                for name in ["client_cpu", "server_cpu"] {
                    assert!(row[name]["user_s"].is_f64() && row[name]["system_percent"].is_f64(), "{row}");
                }
                assert_eq!(row["server_operations_per_s"].is_f64(), !direction.is_empty(), "{row}");
            }
        }
        environment.quit(server);
    }
}

#[test]
fn dapltest_performance_test_stops_after_the_given_time() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for operation in ["SR", "--bidirectional SR", "RW", "connect"] {
            let said = environment.json(&format!("-T P -s localhost --json --duration 100ms {operation}"));
            let row = &said["results"][0];
            assert!(row["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.1), "{said}");
            assert!(row["operations"].as_u64().is_some_and(|count| count > 0), "{said}");
            assert_eq!((&said["duration_s"], &said["iterations"]), (&Value::from(0.1), &Value::Null));
        }
        environment.quit(server);
    }
}

#[test]
fn dapltest_performance_counts_connects() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        for mode in ["-m b", "-m p"] {
            let said = environment.json(&format!("-T P -s localhost --json -i 20 --warm-up 2 {mode} connect"));
            assert_eq!(
                (&said["operation"], &said["results"][0]["operations"]),
                (&Value::from("connect"), &Value::from(20))
            );
        }
        assert_eq!(environment.quit(server).stderr, "", "the server printed an error");
    }
}

#[test]
fn a_result_names_adapter_machine_and_changed_settings() {
    let environment = Environment::of("sm0");
    let server = environment.serve("");
    let mut command = environment.command("-T P -s localhost -i 10 --sizes 8,64 SR");
    command.env("DAPL_SPIN_US", "7");
    let table = Run::start(command).finish(TIMEOUT);
    table.expect_success("dapltest: OK");
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert!(lines[0].starts_with("dapltest 0.") && lines[0].contains(", provider sm0 0."), "{table:#?}");
    assert!(lines[1].starts_with("settings of the environment") && lines[1].contains(" DAPL_SPIN_US=7"), "{table:#?}");
    let head = lines
        .iter()
        .position(|line| line.trim_start().starts_with("bytes "))
        .expect("the output has the head of the table");
    for name in ["p50", "p99", "p99.9", "client CPU", "server CPU"] {
        assert!(lines[head].contains(name), "{name}: {table:#?}");
    }
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    assert_eq!([1, 2].map(|n| first(lines[head + n])), [Some("8".to_owned()), Some("64".to_owned())], "{table:#?}");
    assert!(lines[head..head + 3].iter().all(|line| line.chars().count() == lines[head].chars().count()), "{table:#?}");
    let said = environment.json("-T P -s localhost --json -i 10 SR");
    for name in ["dapltest", "dat", "provider", "cpu", "kernel", "settings"] {
        assert!(!said["header"][name].is_null(), "{name}: {said}");
    }
    environment.quit(server);
}

#[test]
fn dapltest_prints_the_rows_measured_before_a_failure() {
    let environment = Environment::of("sm0");
    let mut server = environment.serve("");
    let client = environment.start("-T P -s localhost --sizes 8,16 --duration 20m SR");
    client.wait_for("server CPU", TIMEOUT);
    server.kill();
    let finished = client.finish(TIMEOUT);
    finished.expect_failure("dapltest: ");
    assert!(
        finished.stdout.contains("performance test on sm0") && !finished.stdout.contains("dapltest: OK"),
        "{finished:#?}"
    );
}

#[test]
fn dapltest_limit_test_stops_at_the_given_maximum() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        environment.run("-T L -m 12 -w 2").expect_success("dapltest: OK");
        let said = environment.json("-T L --json -m 30 limit_pz limit_lmr");
        let limits = said["limits"].as_array().expect("\"limits\" is a list");
        assert_eq!(limits.len(), 2, "{said}");
        assert!(limits.iter().all(|limit| limit["made"] == 30 && limit["refused"].is_null()), "{said}");
    }
}

#[test]
fn dapltest_limit_test_reports_a_reached_limit() {
    let environment = Environment::of("sm0");
    let said = environment.json("-T L --json limit_rpost");
    assert!(said["limits"][0]["made"].as_u64().is_some_and(|made| made > 0), "{said}");
    assert!(said["limits"][0]["refused"].as_str().is_some_and(|words| words.contains("RESOURCES")), "{said}");
}

#[test]
fn dapltest_functional_cases_pass_and_can_be_chosen() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let all = environment.run("-T F -v");
        all.expect_success("dapltest: OK");
        let names = environment.run("-T F --list").stdout;
        assert!(all.stdout.contains(&format!(": {0} of {0} cases passed", names.lines().count())), "{all:#?}");
        let some = environment.run("-T F -v pz mem:2");
        assert!(some.stdout.contains("pz:1 ") && some.stdout.contains("mem:2 "), "{some:#?}");
        assert!(!some.stdout.contains("mem:1 ") && !some.stdout.contains("event:"), "{some:#?}");
    }
}

#[test]
fn dapltest_server_handles_concurrent_clients() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("");
        let words = [
            "-T T -s localhost -V -i 100 client SR 100 server SR 10",
            "-T T -s localhost -V -w 4 -i 30 client RW 10000 server RR 500",
            "-T T -s localhost -t 2 -i 200 client SR server SR",
            "-T P -s localhost -i 2000 RW 4096",
            "-T P -s localhost -i 2000 SR 10",
            "-T P -s localhost -i 2000 RR 100 3",
        ];
        let clients: Vec<Run> = words.into_iter().map(|words| environment.start(words)).collect();
        clients.into_iter().for_each(|client| client.finish(TIMEOUT).expect_success("dapltest: OK"));
        assert_eq!(environment.quit(server).stderr, "", "the server printed an error");
    }
}

#[test]
fn clients_that_violate_the_protocol_are_dropped_without_effect_on_others() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("--greeting 3");
        let idle = environment.bad_client("nothing");
        idle.wait_for("connected", TIMEOUT);
        for (way, wanted) in [("garbage", 1), ("version", 6), ("request", 1)] {
            let finished = environment.bad_client(way).finish(TIMEOUT);
            finished.expect_success("the server has ended the connection");
            assert!(
                finished.stdout.contains(&format!("the server sent a message of kind {wanted}\n")),
                "{way}: {finished:#?}"
            );
        }
        environment.run("-T T -s localhost -V -i 10 client SR 10 server SR 10").expect_success("dapltest: OK");
        idle.finish(TIMEOUT).expect_success("the server has ended the connection");
        let said = environment.quit(server).stderr;
        for reason in [
            "a client is dropped: a message of the peer did not arrive within 3 s",
            "a client is dropped: not a message of dapltest",
            "a client is dropped: the peer's version 3.7 is incompatible with version 2.0",
            "a client is dropped: the message is too short",
        ] {
            assert!(said.contains(reason), "{reason}: {said}");
        }
    }
}

#[test]
fn a_killed_client_is_detected_and_the_server_continues() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let server = environment.serve("-d");
        for words in ["-T T -s localhost -i 100000000 client SR server SR", "-T P -s localhost -i 100000000 -p 4 SR 10"]
        {
            let mut client = environment.start(words);
            let kind = if words.contains("-T T") { "Transaction(" } else { "Performance(" };
            server.wait_for(kind, TIMEOUT);
            client.kill();
            drop(client);
        }
        environment.run("-T T -s localhost -V -i 10 client SR 10 server SR 10").expect_success("dapltest: OK");
        let finished = environment.quit(server);
        assert!(finished.stderr.matches("a client is dropped: ").count() == 2, "{finished:#?}");
    }
}

#[test]
fn dapltest_clients_detect_a_killed_server() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let mut server = environment.serve("-d");
        let transaction = environment.start("-T T -s localhost -i 100000000 client SR server SR");
        let performance = environment.start("-T P -s localhost --json -i 100000000 -p 4 RW 10");
        server.wait_for("Transaction(", TIMEOUT);
        server.wait_for("Performance(", TIMEOUT);
        server.kill();
        transaction.finish(TIMEOUT).expect_failure("dapltest: ");
        let performance = performance.finish(TIMEOUT);
        performance.expect_failure("dapltest: ");
        let said: Value = serde_json::from_str(&performance.stdout).expect("a failed run prints JSON too");
        assert_eq!(said["ok"], Value::Bool(false), "{said}");
    }
}

#[test]
fn dapltest_server_and_clients_print_their_messages_on_a_signal() {
    for (adapter, signal) in [("sm0", "INT"), ("usnic0", "TERM")] {
        let environment = Environment::of(adapter);
        let server = environment.serve("-d");
        let client = environment.start("-T T -s localhost -i 100000000 client SR server SR");
        server.wait_for("Transaction(", TIMEOUT);
        let killed = Command::new("kill").args([&format!("-{signal}"), &server.id().to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        client.finish(TIMEOUT).expect_failure("dapltest: ");
        server.finish(TIMEOUT).expect_success("dapltest: stopped");
    }
}

#[test]
fn dapltest_reports_a_missing_server() {
    let environment = Environment::of("sm0");
    let finished = environment.run("-T T -s localhost --tries 2 client SR server SR");
    finished.expect_failure("localhost, port 45278, 2 attempts: no connection: DAT_CONNECTION_EVENT_NON_PEER_REJECTED: rejected, no program listens there");
    assert_eq!(finished.status.code(), Some(1));
    environment.run("-T Q -s localhost --tries 1").expect_failure("no program listens there");
    environment.run("-T P -s no-such-host.invalid RW").expect_failure("no-such-host.invalid");
}

#[test]
fn invalid_dapltest_arguments_exit_with_status_2() {
    let environment = Environment::of("sm0");
    for words in [
        "-T X",
        "-T T client SR server SR",
        "-T P -s localhost",
        "-T S -m 4",
        "-T P -s localhost --sizes 0 SR",
        "-T P -s localhost --sizes 8..4 SR",
        "-T P -s localhost --duration 0 SR",
    ] {
        assert_eq!(environment.run(words).status.code(), Some(2), "{words}");
    }
    let help = environment.run("-h");
    assert!(help.status.success() && help.stdout.contains("-T <TEST>"), "{help:#?}");
    let longest = help.stdout.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
    assert!(longest.chars().count() <= 80, "the help has a line of over 80 columns: {longest}");
    let unknown = environment.run("-T F -D nothing pz:1");
    unknown.expect_failure("DAT_NAME_NOT_REGISTERED");
    assert_eq!(unknown.status.code(), Some(1));
}

#[test]
fn a_test_beyond_the_adapters_limits_is_refused_with_the_reason() {
    let environment = Environment::of("sm0");
    let server = environment.serve("");
    let finished = environment.run("-T T -s localhost -w 4096 client SR 1000000 server SR 1000000");
    finished.expect_failure("bytes at each side, more than");
    let service = environment.run("-T P -s localhost -R HT RW");
    service.expect_failure("DAT_MODEL_NOT_SUPPORTED");
    environment.quit(server);
}

#[test]
fn dapltest_runs_a_script() {
    let environment = Environment::of("sm0");
    let server = environment.serve("-n 50000");
    let script = std::env::temp_dir().join(format!("dapltest-{}.script", std::process::id()));
    std::fs::write(&script, "# a transaction\n-T T -n 50000\n-s localhost -i 10 -V\nclient SR 10 1\nserver RW 99\n")
        .unwrap();
    let finished = environment.run(&format!("-f {}", script.display()));
    std::fs::remove_file(&script).unwrap();
    finished.expect_success("dapltest: OK");
    environment.run("-T Q -s localhost -n 50000").expect_success("");
    server.finish(TIMEOUT).expect_success("dapltest: quit");
}

#[test]
fn endpoint_is_freed_only_after_its_completions_are_dequeued() {
    for adapter in ADAPTERS {
        let environment = Environment::of(adapter);
        let strict = environment.stage.root.join(format!("strict-{adapter}.so"));
        environment.stage.compile(&strict, &[&workspace().join("test/c/strict.c")], &["-shared", "-fPIC"]);
        let start = |words: &str| {
            let mut command = environment.command(words);
            command.env("LD_PRELOAD", &strict);
            Run::start(command)
        };
        let server = start("-T S -d");
        server.wait_for("listening", TIMEOUT);
        let operations =
            ["client SR 100 server SR 10", "client RW 100 2 client SR 10 1 -f server SR 10 1 -f server RR 50"];
        for words in operations.map(|operations| format!("-T T -s localhost -V -t 2 -w 2 -i 20 {operations}")) {
            start(&words).finish(TIMEOUT).expect_success("dapltest: OK");
        }
        for words in ["-T P -s localhost -i 100 SR 64", "-T P -s localhost -i 100 RW 64", "-T L -m 4", "-T F"] {
            start(words).finish(TIMEOUT).expect_success("dapltest: OK");
        }
        // The client is killed, so the server's receives are flushed.
        let mut client = start("-T T -s localhost -i 100000000 client SR server SR");
        server.wait_for("iterations: 100000000", TIMEOUT);
        client.kill();
        drop(client);
        start("-T T -s localhost -i 10 client SR server SR").finish(TIMEOUT).expect_success("dapltest: OK");
        start("-T Q -s localhost").finish(TIMEOUT).expect_success("");
        server.finish(TIMEOUT).expect_success("dapltest: quit");
    }
}

#[test]
fn every_option_of_dapltest_is_on_its_manual_page() {
    let page = std::fs::read_to_string(workspace().join("docs/man/dapltest1.1.md")).unwrap();
    let help = Environment::of("sm0").run("-h").stdout;
    let options = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    // Option lines of the help: `-h, --help`, `-T <TEST>`, `-d...`.
    let names = options.flat_map(|line| line.split(' ').take_while(|word| word.starts_with('-')));
    let names: Vec<&str> = names.map(|name| name.trim_end_matches([',', '.'])).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let is_there = ["`", " "].iter().any(|end| page.contains(&format!("- `{name}{end}")))
            || page.contains(&format!(", `{name}`:"));
        assert!(is_there, "{name}");
    }
}

#[test]
fn list_of_functional_tests_prints_no_error_if_stdout_has_no_reader() {
    let environment = Environment::of("sm0");
    check_closed_output(environment.command("-T F --list"));
}
