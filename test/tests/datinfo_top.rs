//! `datinfo top` with real processes over sm and usnic, one of them stopped, and with fake processes that send
//! truncated, invalid or too much data.
//!
//! Output and exit status are checked. Other programs of this machine may be listed too, so each test selects its own
//! process by pid. A fake uses a pid that no process has.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dapl_test::run::{Finished, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, built, stage};
use serde_json::Value;

#[path = "../../dat/datinfo/src/top/openmetrics/grammar_tests.rs"]
mod grammar;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Path of a program of the workspace, which is built once per test process.
fn program(name: &'static str) -> PathBuf {
    static BUILT: Mutex<Vec<(&str, PathBuf)>> = Mutex::new(Vec::new());
    let mut known = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.iter().any(|(known, _)| *known == name) {
        known.push((name, built(name, Profile::Dev)));
    }
    known.iter().find(|(known, _)| *known == name).unwrap().1.clone()
}

fn command(words: &str) -> Command {
    let mut command = Command::new(program("datinfo"));
    command.arg("top").args(words.split_whitespace());
    command
}

fn top(words: &str) -> Finished {
    Run::start(command(words)).finish(TIMEOUT)
}

/// The rows for a process, one per library.
fn rows(document: &Value, pid: u32) -> Vec<Value> {
    let all = document["processes"].as_array().unwrap_or_else(|| panic!("{document:#}"));
    all.iter().filter(|row| row["pid"] == pid).cloned().collect()
}

fn rows_now(pid: u32) -> Vec<Value> {
    let finished = top("--once --json");
    let document = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"));
    rows(&document, pid)
}

/// The row of a process after its reply. On a busy machine the reply may be late.
fn answered(pid: u32) -> Value {
    for _ in 0..20 {
        let mut rows = rows_now(pid);
        assert_eq!(rows.len(), 1, "{rows:#?}");
        if rows[0]["trouble"]["kind"] != "silent" {
            return rows.remove(0);
        }
    }
    panic!("process {pid} did not reply");
}

fn counter<'a>(of: &'a Value, name: &str) -> &'a Value {
    let counters = of["counters"].as_array().unwrap();
    counters.iter().find(|counter| counter["name"] == name).unwrap_or_else(|| panic!("{name}: {of:#}"))
}

/// A dapltest server that has had one client and is still listening; killed when dropped.
struct Served {
    sandbox: Sandbox,
    server: Run,
    adapter: &'static str,
}

impl Served {
    fn over(adapter: &'static str) -> Self {
        let sandbox = Sandbox::new(&stage(Profile::Dev), Some(if adapter == "sm0" { SM0 } else { USNIC0 }));
        let mut served = Served { server: start(&sandbox, adapter, "-T S"), sandbox, adapter };
        served.server.wait_for("listening", TIMEOUT);
        served.client("-T T -s localhost -i 10 client SR 1024 1 server SR 1024 1").finish(TIMEOUT).expect_success("");
        served
    }

    fn client(&mut self, words: &str) -> Run {
        start(&self.sandbox, self.adapter, words)
    }

    fn pid(&self) -> u32 {
        self.server.id()
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.pid().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

fn start(sandbox: &Sandbox, adapter: &str, words: &str) -> Run {
    let mut command = sandbox.command(program("dapltest"), &["-D", adapter, "--timeout", "120"]);
    command.args(words.split_whitespace());
    Run::start(command)
}

#[test]
fn datinfo_top_shows_a_process_over_sm_with_its_counters() {
    let served = Served::over("sm0");
    let row = answered(served.pid());
    assert_eq!(row["program"], "dapltest");
    let adapter = &row["adapters"][0];
    assert_eq!((adapter["name"].as_str(), adapter["provider"].as_str()), (Some("sm0"), Some("sm")), "{row:#}");
    let posts = counter(adapter, "ep.posts.send");
    assert!(posts["kind"] == "sum" && posts["value"].as_u64().unwrap() >= 10, "{posts}");
    let (bytes, alive) = (counter(adapter, "ep.bytes.received"), counter(adapter, "alive.evd"));
    assert!(bytes["unit"] == "bytes" && bytes["value"].as_u64().unwrap() >= 10 * 1024, "{bytes}");
    assert!(alive["kind"] == "level" && alive["value"].as_u64().unwrap() > 0, "{alive}");
    let table = top("--once -v").stdout;
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{} ", served.pid())));
    assert!(line.is_some_and(|line| line.contains("dapltest") && line.contains("sm0")), "{table}");
    assert!(table.contains("PROGRAM") && table.contains("ep.posts.send"), "{table}");
}

#[test]
fn datinfo_top_shows_a_process_over_usnic_with_its_endpoints() {
    let mut served = Served::over("usnic0");
    let row = answered(served.pid());
    let adapter = &row["adapters"][0];
    assert!(counter(adapter, "sent")["value"].as_u64().unwrap() > 0, "no packets were counted: {row:#}");
    // The client keeps running until the output has shown it with a connected endpoint.
    let client = served.client("-T T -s localhost -i 100000000 client SR 1024 1 server SR 1024 1");
    let connected = (0..200).find_map(|_| {
        let row = rows_now(served.pid()).into_iter().next()?;
        let eps = row["adapters"][0]["endpoints"].as_array()?.clone();
        eps.into_iter().find(|ep| ep["state"] == "Connected")
    });
    let ep = connected.expect("the output lists a connected EP");
    for (name, unit, kind) in
        [("sent bytes", "bytes", "sum"), ("round trip", "ns", "level"), ("path mtu", "bytes", "level")]
    {
        let counter = counter(&ep, name);
        assert!(counter["unit"] == unit && counter["kind"] == kind && counter["value"].as_u64().is_some(), "{counter}");
    }
    drop(client);
}

#[test]
fn datinfo_top_omits_endpoints_on_request() {
    let mut served = Served::over("sm0");
    answered(served.pid());
    let client = served.client("-T T -s localhost -i 100000000 client SR 1024 1 server SR 1024 1");
    let adapter = |words: &str| {
        let finished = top(words);
        let document = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"));
        rows(&document, served.pid()).remove(0)["adapters"][0].clone()
    };
    while adapter("--once --json")["endpoints"].as_array().is_none_or(Vec::is_empty) {}
    let without = adapter("--once --json --no-endpoints");
    assert_eq!(without["endpoints"], serde_json::json!([]), "{without:#}");
    assert!(without["left_out"].as_u64() > Some(0), "{without:#}");
    assert!(top("--once -v").stdout.contains("  endpoint 0x"));
    let table = top("--once -v --no-endpoints").stdout;
    assert!(!table.contains("  endpoint 0x") && table.contains("endpoints that are not listed"), "{table}");
    drop(client);
}

#[test]
fn datinfo_top_prints_valid_openmetrics() {
    let served = Served::over("usnic0");
    answered(served.pid());
    let finished = top("--openmetrics");
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    let samples = grammar::samples(&finished.stdout).unwrap_or_else(|why| panic!("{why}\n{}", finished.stdout));
    assert!(samples > 50, "{samples}");
    let labels = format!(
        "{{pid=\"{}\",library=\"0\",program=\"dapltest\",adapter=\"usnic0\",provider=\"usnic\",ia=\"0x",
        served.pid()
    );
    for name in ["dapl_ia_ep_posts_send_total", "dapl_ia_sent_bytes_total", "dapl_ia_alive_evd"] {
        assert!(finished.stdout.contains(&format!("\n{name}{labels}")), "{name}: {}", finished.stdout);
    }
    assert!(!finished.stdout.contains("dapl_ep_"), "{}", finished.stdout);
}

#[test]
fn datinfo_top_prints_rates_until_the_pipe_is_closed() {
    let served = Served::over("sm0");
    let mut child = command("--json --interval 0.1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut documents = lines.by_ref().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let rate = documents.find_map(|document| {
        let row = rows(&document, served.pid()).into_iter().next()?;
        let counters = row["adapters"][0]["counters"].as_array()?.clone();
        counters.into_iter().find(|counter| counter["name"] == "ep.posts.send")?["per_second"].as_f64()
    });
    assert_eq!(rate, Some(0.0), "a rate is shown although no process sends");
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(0) && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn datinfo_top_clears_a_terminal_but_not_a_pipe() {
    let pipe = Run::start(command("--interval 0.1"));
    pipe.wait_for("\n\n", TIMEOUT);
    assert!(!pipe.has_printed("\x1b"), "{}", pipe.so_far());
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: script is missing; install the Debian package bsdutils");
        return;
    }
    let mut command = Command::new("script");
    let program = program("datinfo");
    command.args(["-qec", &format!("exec {} top --interval 0.1", program.display()), "/dev/null"]);
    let terminal = Run::start(command);
    terminal.wait_for("\x1b[J\x1b[H", TIMEOUT);
    assert!(terminal.has_printed("\x1b[H\x1b[2J") && terminal.has_printed("processes, "), "{}", terminal.so_far());
}

#[test]
fn stopped_process_affects_only_its_own_line_of_datinfo_top() {
    let (stopped, other) = (Served::over("sm0"), Served::over("sm0"));
    answered(stopped.pid());
    stopped.signal("-STOP");
    let rows = rows_now(stopped.pid());
    assert_eq!(rows[0]["trouble"]["kind"], "silent", "{rows:#?}");
    assert_eq!(rows[0]["program"], "dapltest", "{rows:#?}");
    assert_eq!(answered(other.pid())["program"], "dapltest");
    let table = top("--once").stdout;
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{} ", stopped.pid())));
    assert!(line.is_some_and(|line| line.contains("dapltest         no answer within")), "{table}");
    stopped.signal("-CONT");
    assert_eq!(answered(stopped.pid())["program"], "dapltest");
    let pid = stopped.pid();
    drop(stopped);
    assert!(rows_now(pid).is_empty(), "a process that has exited is still listed");
}

/// Starts a thread that acts as a fake process: it replies to every query with these bytes and closes the connection,
/// until this process ends. Returns the pid of the fake, which no process has.
fn fake(number: u32, says: &'static [u8]) -> u32 {
    let pid = 0x3000_0000 + (std::process::id() << 4) + number;
    // The socket's name contains the user id, which is that of the owner of /proc/self.
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let address = SocketAddr::from_abstract_name(format!("dapl-counters/{uid}/{pid}/0")).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            // The reader may close the connection first.
            let _ = peer.unwrap().write_all(says);
        }
    });
    pid
}

#[test]
fn process_with_invalid_data_is_named_and_affects_no_other() {
    let honest = Served::over("sm0");
    static LONG: [u8; 5 << 20] = [b'\n'; 5 << 20];
    let fakes = [
        (fake(0, b"\x1b[2J\x00\xff\xfe"), "nonsense"),
        (fake(1, b"dapl-counters 7\nprocess\t1\tfuture\nend\n"), "version"),
        (fake(2, b"dapl-counters 1\nprocess\t1\thalf\nadapter\tsm0\tsm\n"), "cut"),
        (fake(3, b""), "cut"),
        (fake(4, &LONG), "too-much"),
        (fake(5, b"dapl-counters 1\nadapter\ta\tb\ncount\tx\t\t-1\nend\n"), "nonsense"),
    ];
    let hostile = fake(
        6,
        b"dapl-counters 1\nprocess\t1\t\x1b[31m\"}\\\nadapter\ta\"}\tb\\\ncount\ta b\t\t1\ncount\ta.b\t\t2\n\
                            level\ta-b\t\t3\nend\n",
    );
    for (pid, kind) in fakes {
        // On a machine that stalls, the longest reply may be cut off by the time limit.
        let rows = (0..20).map(|_| rows_now(pid)).find(|rows| rows[0]["trouble"]["kind"] != "silent");
        assert_eq!(rows.unwrap()[0]["trouble"]["kind"], kind, "{pid:#x}");
    }
    let row = answered(hostile);
    assert_eq!(row["program"], "?[31m\"}\\", "{row:#}");
    assert_eq!(answered(honest.pid())["program"], "dapltest");
    let table = top("--once -v");
    assert!(table.status.code() == Some(0) && !table.stdout.contains('\x1b'), "{table:#?}");
    for text in [
        "in version \"7\"",
        "the process closed the connection early",
        "sends invalid data",
        "the answer exceeds 4 MiB, or all answers together exceed 64 MiB, the limit of a sample",
    ] {
        assert!(table.stdout.contains(text), "{text}: {}", table.stdout);
    }
    let metrics = top("--openmetrics").stdout;
    grammar::samples(&metrics).unwrap_or_else(|why| panic!("{why}\n{metrics}"));
    assert!(
        metrics.contains(&format!("dapl_process_answered{{pid=\"{}\",library=\"0\"}} 0\n", fakes[0].0)),
        "{metrics}"
    );
}

#[test]
fn datinfo_top_exits_1_without_replies_and_2_for_invalid_arguments() {
    for wrong in [
        "--interval 0",
        "--interval x",
        "--once --interval 1",
        "--json --openmetrics",
        "--openmetrics -v",
        "--openmetrics --no-endpoints",
        "--endpoints",
        "x",
    ] {
        let finished = top(wrong);
        assert_eq!(finished.status.code(), Some(2), "{wrong}: {finished:#?}");
    }
    // Abstract local sockets belong to a network namespace, so a new namespace has none.
    let mut alone = Command::new("unshare");
    alone.args(["-rn", "true"]);
    if !alone.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: this machine permits no network namespace");
        return;
    }
    let program = program("datinfo");
    for (words, said) in [
        ("--once", "no process of this user publishes counters"),
        ("--once --json", "\"processes\": []"),
        ("--openmetrics", "# EOF\n"),
    ] {
        let mut command = Command::new("unshare");
        command.arg("-rn").arg(&program).arg("top").args(words.split_whitespace());
        let finished = Run::start(command).finish(TIMEOUT);
        assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
        assert!(finished.stdout.contains(said), "{finished:#?}");
    }
}
