//! Checks that need one guest, among them unit tests of the provider, dtest, dapltest, Debian's programs, the reference
//! as the peer, killed peers and the conformance suite. The last checks are that no object of the device remains and
//! that the guest shuts down.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dapl_test::stage::{self, Profile, workspace};

use super::keeper::Keeper;
use super::setting::{Job, Setting, patient};
use super::{MANAGERS, conformance, interop, programs};
use crate::Result;
use crate::guest::GuestNetwork;
use crate::quiet::text_of;
use crate::report::Report;

/// Time limit for a hang. The slowest program takes some seconds, and more on a loaded machine.
const LIMIT: Duration = Duration::from_secs(180);
/// Time limit for long programs.
const LONG_LIMIT: Duration = Duration::from_secs(600);

/// Runs perftest as server and client: $1 is the server's address, the rest are a program and its arguments. 4853 is
/// port 18515 in hexadecimal.
const WITH_ITSELF: &str = r#"
address=$1; shift
"$@" & server=$!
until grep -qi ':4853 ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 1; sleep 0.1; done
"$@" "$address" && wait $server"#;

/// Runs dtest over shared memory: $1 is the program. The client waits for its server.
const OVER_SM: &str = r#"
"$1" -s -P sm0 & server=$!
"$1" -P sm0 -h localhost && wait $server"#;

/// Runs the Rust example as server and client: $1 is the program, $2 the server's address. The client waits for the
/// server.
const PING: &str = r#"
"$1" rxe0 4711 & server=$!
"$1" rxe0 4711 "$2" && wait $server"#;

/// Runs dtest as server and client: $1 is the program, $2 and $3 are environment variables of server and client, the
/// rest are arguments of both.
const DTEST: &str = include_str!("dtest.sh");

/// Runs four pairs concurrently: $1 is the script for one pair, the rest are the arguments of the script.
const FOUR_PAIRS: &str = r#"
pair=$1; shift; pids=
for qual in 45248 45249 45250 45251; do sh -c "$pair" sh "$@" -q $qual & pids="$pids $!"; done
for pid in $pids; do wait $pid || status=1; done
exit $status"#;

/// Runs dtest over sockets, with GIDs of different address families: $1 is dtest. Both sides must print the settings
/// to use.
const UNREACHABLE: &str = r#"
place=$(mktemp -d)
DAPL_VERBS_GID_INDEX=0 "$1" -P rxe0 -t 60 >"$place/server" 2>&1 & server=$!
until grep -q listening "$place/server"; do kill -0 $server || { cat "$place/server"; exit 1; }; sleep 0.1; done
"$1" -P rxe0 -t 60 -h 192.0.2.1 >"$place/client" 2>&1 && status=0 || status=$?
kill $server; wait $server; cat "$place"/*
[ $status != 0 ] || exit 1
for side in server client; do grep -q 'set DAPL_VERBS_GID_INDEX' "$place/$side" || exit 1; done
grep -q 'no path from GID fe80:[^ ]* (index 0) to GID ::ffff:192.0.2.1' "$place/server""#;

/// Sends a request before its listener exists: $1 is the program, $2 the address of the server.
const LATE_LISTENER: &str = r#"
"$1" -h "$2" -P rxe0 -q 45260 accept 8 8 client & client=$!
sleep 1
"$1" -s -P rxe0 -q 45260 accept 8 8 client && wait $client"#;

/// Kills the server of a bidirectional stream while data flow. $1 is the program `verbs_stream`. The client must detect
/// the end and succeed.
const STREAM: &str = r#"
place=$(mktemp -d)
DAPL_VERBS_PEER=+1 "$1" serve rxe0 >"$place/served" 2>&1 & server=$!
until grep -q listening "$place/served"; do kill -0 $server || { cat "$place/served"; exit 1; }; sleep 0.1; done
DAPL_VERBS_PEER=-1 "$1" call rxe0 192.0.2.1 >"$place/called" 2>&1 & caller=$!
until grep -q flowing "$place/called"; do kill -0 $caller || { cat "$place"/*; exit 1; }; sleep 0.1; done
kill -KILL $server; wait $caller; status=$?
cat "$place/served" "$place/called"; exit $status"#;

/// Runs dapltest as server and client, or a test of dapltest that needs no server.
const DAPLTEST: &str = include_str!("dapltest.sh");

/// Runs a program, then checks that the device has as many objects as before its first use. The kernel frees objects
/// slightly after their process has ended.
const OBJECTS: &str = r#"
"$@" || exit 1
for try in 1 2 3 4 5 6 7 8 9 10; do rdma resource show | cmp -s - /tmp/resources && exit 0; sleep 1; done
echo "before: $(cat /tmp/resources)"; echo "after:  $(rdma resource show)"; rdma resource show qp; exit 1"#;

/// Runs the checks that need only one guest, as far as they are selected.
pub(super) fn run(setting: &Setting, report: &mut Report) {
    let mut keeper = Keeper::default();
    let guest = &mut keeper;
    report.check(guest, "guest::comes_up", LIMIT, &setting.shell("ibv_devinfo -d rxe0 && rdma link && uname -r", &[]));
    for program in ["ib_send_lat", "ib_write_bw"] {
        let job =
            setting.shell(WITH_ITSELF, &[GuestNetwork::Alone.address(), program, "-d", "rxe0", "-n", "200", "-F"]);
        report.check(guest, &format!("guest::{program}"), LIMIT, &job);
    }
    report.check(guest, "guest::dtest_over_sm", LIMIT, &setting.shell(OVER_SM, &[&setting.dtest]));
    files_come_back(setting, report, guest);
    units(setting, report, guest);
    dtests(setting, report, guest);
    choices(setting, report, guest);
    udapl(setting, report, guest);
    dapltests(setting, report, guest);
    interop::run(setting, report, guest);
    programs::run(setting, report, guest);
    let interop = setting.program("test/c/verbs_interop.c");
    // The manager `none` is left out, because it sends no connection requests.
    for manager in &MANAGERS[..2] {
        let job = setting.shell(LATE_LISTENER, &[&interop, GuestNetwork::Alone.address()]);
        let job = job.with("DAPL_VERBS_CM", manager).with("DAPL_LISTENER_WAIT_MS", "60000");
        report.check(guest, &format!("listener::{manager}_retries_a_request_that_comes_first"), LIMIT, &job);
    }
    crossed(setting, report, guest);
    cancel(setting, report, guest);
    let stream = setting.program("test/c/verbs_stream.c");
    for manager in MANAGERS {
        let job = setting.shell(STREAM, &[&stream]).with("DAPL_VERBS_CM", manager);
        report.check(guest, &format!("killed::{manager}"), LONG_LIMIT, &job);
    }
    // A thousand endpoints of one process, which are five hundred connections.
    let many = setting.program("test/c/many_endpoints.c");
    report.check(
        guest,
        "many::five_hundred_connections",
        LONG_LIMIT,
        &setting.shell(OBJECTS, &[&many, "1000", "rxe0"]),
    );
    conformance::run(setting, report, guest);
    report.check(guest, "guest::nothing_is_left", LIMIT, &setting.shell(OBJECTS, &["true"]));
    if let Some(result) = keeper.off() {
        report.line("guest::goes", result);
    }
}

fn files_come_back(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let name = "guest::status_and_files_come_back";
    if !report.wants(name) {
        return;
    }
    let result = keeper.share().and_then(|share| {
        let file = share.join("kept");
        let answer = keeper.run(&setting.shell("echo kept >\"$1\"; exit 7", &[&file.to_string_lossy()]), LIMIT);
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        match (&answer.result, kept.as_str()) {
            (Ok(7), "kept\n") => Ok(()),
            (result, _) => {
                Err(answer.with(&format!("{result:?} and {kept:?} in the file, expected Ok(7) and \"kept\\n\"")))
            }
        }
    });
    report.line(name, result);
}

/// Runs the test programs of the verbs provider. In the guest no test may be skipped for lack of a device.
fn units(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let name = format!("unit::{}", stage::VERBS_PACKAGE);
    if !report.wants(&name) {
        return;
    }
    let programs = match test_programs(stage::VERBS_PACKAGE, &[]) {
        Ok(programs) => programs,
        Err(reason) => return report.line(&name, Err(reason)),
    };
    for program in programs {
        let answer = keeper.run(&setting.exec(&program, &["--nocapture", "--test-threads", "2"]), LONG_LIMIT);
        let skipped = answer.lines.iter().find(|line| line.contains("skipped: ")).cloned();
        match skipped {
            Some(line) => report.line(&name, Err(answer.with(&line))),
            None => report.answer(&name, answer),
        }
    }
}

/// Builds a package's test programs, like cargo test with these arguments.
fn test_programs(package: &str, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["test", "--quiet", "--no-run", "--message-format=json", "-p", package]);
    cargo.args(arguments);
    let text = text_of(&mut cargo)?;
    let named = text.lines().filter_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
    let programs: Vec<PathBuf> = named.map(|(path, _)| PathBuf::from(path)).collect();
    if programs.is_empty() { Err(format!("cargo names no test program of {package}")) } else { Ok(programs) }
}

/// Four processes connect to each other at the same time, in both directions, with and without a thread that accepts.
/// All receives are posted before the first send, and no process disconnects before all messages have arrived. In
/// another order about one of 6,000 sends over rxe fails: rxe's retransmission timer also runs while a send waits for a
/// receive, and a disconnect drops an acknowledgement that was not sent yet.
fn crossed(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    /// Each round has twelve requests. Over the other providers the suite `crossed` runs 1,000 rounds.
    const ROUNDS: &str = "100";
    let program = setting.program("test/c/crossed.c");
    // The manager `none` is left out, because it sends no connection requests.
    for manager in ["rdma", "socket", "socket2"] {
        for (kind, options) in [("polling", &[][..]), ("threads", &["threads"])] {
            let words = [&["rxe0", ROUNDS, GuestNetwork::Alone.address(), "meet"], options].concat();
            let job = setting.exec(program.as_ref(), &words).with("DAPL_VERBS_CM", manager);
            report.check(keeper, &format!("crossed::{manager}_{kind}"), LONG_LIMIT, &job);
        }
    }
}

/// Cancels threads in all calls, as the suite `cancel` does over the other providers: with a pending request, and at
/// random moments. Then no object of the device may remain.
fn cancel(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    const SOURCE: &str = "test/c/cancel.c";
    /// Rounds of each mode. All runs take about 20 seconds.
    const MODES: [(&str, &str); 2] = [("pending", "2"), ("anywhere", "15")];
    let versions = [("1_2", setting.program(SOURCE)), ("2_0", setting.program_2(SOURCE))];
    // The manager `none` is left out, because it sends no connection requests.
    for manager in &MANAGERS[..2] {
        for (version, program) in &versions {
            for (mode, rounds) in MODES {
                let job = setting.shell(OBJECTS, &[program, "rxe0", mode, rounds]).with("DAPL_VERBS_CM", manager);
                let job = if *version == "2_0" { job.with("DAT_OVERRIDE", &setting.conf_2_0) } else { job };
                report.check(keeper, &format!("cancel::{manager}_{version}_{mode}"), LIMIT, &job);
            }
        }
    }
}

/// Tests the Rust crate: its cases in one process, its example in two.
fn udapl(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    if report.wants("udapl::cases") {
        match test_programs("dapl-test", &["--test", "udapl"]) {
            Err(reason) => report.line("udapl::cases", Err(reason)),
            // Leaves out the cases that build and start other programs.
            Ok(programs) => programs.iter().for_each(|program| {
                let skipped = ["udapl_ping", "examples_in_one_process", "dat_abi_and_udapl_crates_can_be_packaged"];
                let mut words = vec!["--nocapture", "--test-threads", "1"];
                words.extend(skipped.iter().flat_map(|name| ["--skip", name]));
                let job = setting.exec(program, &words);
                report.check(keeper, "udapl::cases", LONG_LIMIT, &job.with("UDAPL_TEST_ADAPTER", "rxe0"));
            }),
        }
    }
    if report.wants("udapl::example") {
        let ping = stage::built_example("udapl-ping", "udapl/async", Profile::Dev).display().to_string();
        let job = setting.shell(PING, &[&ping, GuestNetwork::Alone.address()]);
        report.check(keeper, "udapl::example", LIMIT, &job);
    }
}

/// Runs dtest with fewer variants than the suite `dtest`: sizes, ways to wait, ways to end.
fn dtests(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let kinds: [(&str, &[&str]); 9] = [
        ("waiting", &["-B", "3"]),
        ("on_a_cno", &["-c", "-B", "3"]),
        ("polling", &["-p", "-B", "3"]),
        ("one_byte", &["-b", "1", "-B", "2"]),
        ("odd_size", &["-b", "4097", "-B", "2"]),
        ("another_odd_size", &["-b", "100001", "-B", "2"]),
        ("four_mebibytes", &["-b", "4194304", "-B", "1"]),
        ("delayed_abrupt_disconnect", &["-a", "-d", "-B", "1"]),
        ("attributes", &["-v", "-B", "1"]),
    ];
    for manager in MANAGERS {
        for (kind, options) in kinds {
            let job = dtest(setting, manager, DTEST, &[], options);
            report.check(keeper, &format!("dtest::{manager}_{kind}"), LIMIT, &job);
        }
    }
    // The manager `none` is left out: each of its queue pairs needs the peer's QP number, which is unknown if pairs
    // start concurrently.
    for manager in &MANAGERS[..2] {
        let job = dtest(setting, manager, FOUR_PAIRS, &[DTEST], &["-B", "2"]);
        report.check(keeper, &format!("dtest::{manager}_four_pairs_at_once"), LONG_LIMIT, &job);
    }
}

/// Tests that a registry line with a library name of the C implementation selects the connection manager: the server
/// sets the manager by a variable, the client only by the line. Also tests GIDs over the socket manager: one that the
/// acceptor chooses, and one without a path to the peer.
fn choices(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    const NO_VARIABLE: &str = "LC_ALL=C";
    for (library, manager) in [("cma", "rdma"), ("scm", "socket")] {
        let (adapter, server) = (format!("rxe-{library}"), format!("DAPL_VERBS_CM={manager}"));
        let words = [setting.dtest.as_str(), &server, NO_VARIABLE, "-P", &adapter, "-B", "1"];
        let name = format!("manager::a_line_with_libdapl{library}_gets_{manager}");
        report.check(keeper, &name, LIMIT, &setting.shell(DTEST, &words));
    }
    let words = [setting.dtest.as_str(), NO_VARIABLE, "DAPL_VERBS_GID_INDEX=0", "-B", "1"];
    let job = setting.shell(DTEST, &words).with("DAPL_VERBS_CM", "socket");
    report.check(keeper, "gid::an_acceptor_uses_a_gid_of_the_requesters_family", LIMIT, &job);
    let job = setting.shell(UNREACHABLE, &[&setting.dtest]).with("DAPL_VERBS_CM", "socket");
    report.check(keeper, "gid::a_gid_that_reaches_nothing_is_explained", LIMIT, &job);
}

/// Runs each test of dapltest, over the connection managers that allow several connections per listener.
fn dapltests(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let served: [(&str, &[&str]); 3] = [
        ("transaction", &["-T", "T", "-V", "-t", "2", "-w", "2", "-i", "20"]),
        ("transaction_on_a_cno", &["-T", "T", "-Q", "-i", "50"]),
        ("performance", &["-T", "P", "-i", "500", "RW", "4096", "2"]),
    ];
    const OPERATIONS: [&str; 16] = [
        "client", "RW", "4096", "2", "server", "RR", "5000", "1", "client", "SR", "1024", "1", "server", "SR", "99",
        "2",
    ];
    for manager in &MANAGERS[..2] {
        for (kind, options) in served {
            let operations = if kind == "performance" { &[][..] } else { &OPERATIONS[..] };
            let words = [&[setting.dapltest.as_str(), "served"], options, operations].concat();
            let job = setting.shell(DAPLTEST, &words).with("DAPL_VERBS_CM", manager);
            report.check(keeper, &format!("dapltest::{manager}_{kind}"), LIMIT, &job);
        }
        for (kind, options) in [("limits", &["-T", "L", "-m", "12", "-w", "2"][..]), ("functions", &["-T", "F"])] {
            let words = [&[setting.dapltest.as_str(), "alone"], options].concat();
            let job = setting.shell(DAPLTEST, &words).with("DAPL_VERBS_CM", manager);
            report.check(keeper, &format!("dapltest::{manager}_{kind}"), LIMIT, &job);
        }
    }
}

fn dtest(setting: &Setting, manager: &str, text: &str, before: &[&str], options: &[&str]) -> Job {
    // For the manager `none`, the peer's QP number relative to the own number: the client starts second and gets the
    // next number.
    let (server, client) = ("DAPL_VERBS_PEER=+1", "DAPL_VERBS_PEER=-1");
    let job = setting.shell(text, &[before, &[&setting.dtest, server, client], options].concat());
    patient(job.with("DAPL_VERBS_CM", manager), manager)
}
