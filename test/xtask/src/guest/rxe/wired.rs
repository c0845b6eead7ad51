//! Checks between two guests, among them dtest in each direction, a killed peer, a link that goes down, and a network
//! that drops and delays packets.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::MANAGERS;
use super::keeper::{TwoGuestJobs, Wire};
use super::setting::{Job, Setting, patient};
use crate::report::Report;

/// Time limit for a hang.
const LIMIT: Duration = Duration::from_secs(180);
/// Time limit with heavy loss, or if a retry time must pass.
const LONG_LIMIT: Duration = Duration::from_secs(400);

const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Guest of the server, as part of check names.
const SERVER_GUESTS: [&str; 2] = ["to_first", "to_second"];

/// Runs perftest's client against a server on another machine: $1 is the server's address, the rest a program and its
/// arguments.
const CLIENT: &str = r#"
address=$1; shift
for try in 1 2 3 4 5 6 7 8 9 10; do "$@" "$address" && exit 0; sleep 1; done; exit 1"#;

/// Runs the program in $2 and following. While data flow, runs the shell command $1, which kills the program or takes
/// the link down. The program must exit with `EXPECTED`. If this is 0, the link was taken down: the link is restored
/// and the device is created again, because soft-RoCE sends no more rdma_cm messages after one of them was sent over a
/// link that was down. The device is deleted while the link is still down. Otherwise the peer's retransmitted packets
/// could arrive during the deletion, and the guest's kernel could access the deleted device.
const WHEN_IT_FLOWS: &str = r#"
happens=$1; shift; output=$(mktemp)
"$@" >"$output" 2>&1 & job=$!
until grep -q listening "$output"; do kill -0 $job || { cat "$output"; exit 1; }; sleep 0.1; done
echo listening
until grep -q flowing "$output"; do kill -0 $job || { cat "$output"; exit 1; }; sleep 0.1; done
eval "$happens"
wait $job; status=$?
if [ "$EXPECTED" = 0 ]; then rdma link delete rxe0; ip link set eth0 up; rdma link add rxe0 type rxe netdev eth0; fi
cat "$output"; echo "it ended with $status"; [ $status = $EXPECTED ]"#;

/// Runs a program while incoming disconnect requests are dropped, until one has been dropped. The packet is RoCE v2
/// (UDP port 4791), a UD send (opcode 0x64) to QP 1, with a MAD of attribute 0x15 (DREQ).
const DISCONNECT_IS_DROPPED: &str = r#"
tc qdisc add dev eth0 clsact
tc filter add dev eth0 ingress protocol ip u32 match ip dport 4791 0xffff match u8 0x64 0xff at 28 \
    match u32 1 0xffffff at 32 match u16 0x15 0xffff at 64 action drop || exit 1
"$@" & job=$!
until tc -s filter show dev eth0 ingress | grep -q "dropped [1-9]"; do kill -0 $job || break; sleep 0.05; done
tc -s filter show dev eth0 ingress; tc qdisc del dev eth0 clsact
wait $job"#;

/// Runs the checks that need two guests, as far as they are selected.
pub(super) fn run(setting: &Setting, report: &mut Report) {
    let mut wire = Wire::default();
    // This check must be first, because it needs equal QP numbers on both sides.
    dtests(setting, report, &mut wire, "none");
    ends(setting, report, &mut wire, "none");
    for manager in MANAGERS.into_iter().filter(|manager| *manager != "none") {
        dtests(setting, report, &mut wire, manager);
        ends(setting, report, &mut wire, manager);
    }
    smoke(setting, report, &mut wire);
    lost_disconnect(setting, report, &mut wire);
    bad_network(setting, report, &mut wire);
    if let Some(result) = wire.off() {
        report.line("wired::guests_go", result);
    }
}

fn smoke(setting: &Setting, report: &mut Report, wire: &mut Wire) {
    let name = "wired::ping";
    if report.wants(name) {
        let answer = wire.run(1, &setting.shell("ping -c 3 -W 10 \"$1\"", &[ADDRESSES[0]]), LIMIT);
        report.answer(name, answer);
    }
    let name = "wired::ib_send_lat";
    if report.wants(name) {
        let program = ["ib_send_lat", "-d", "rxe0", "-n", "200", "-F"];
        let serve = setting.shell("echo starting; exec \"$@\"", &program);
        let call = setting.shell(CLIENT, &[&[ADDRESSES[0]], &program[..]].concat());
        report.answer(
            name,
            wire.meet(&TwoGuestJobs { host: 0, serve: &serve, ready: "starting", call: &call, limit: LIMIT }),
        );
    }
}

/// Runs dtest between the guests, with the server in either guest.
fn dtests(setting: &Setting, report: &mut Report, wire: &mut Wire, manager: &str) {
    let kinds: [(&str, &[&str]); 2] =
        [("waiting", &["-B", "3"]), ("polling_a_mebibyte", &["-p", "-b", "1048576", "-B", "1"])];
    for (host, way) in SERVER_GUESTS.into_iter().enumerate() {
        for (kind, options) in kinds {
            let name = format!("wired::dtest_{manager}_{kind}_{way}");
            if report.wants(&name) {
                report.answer(&name, dtest(setting, wire, manager, host, options, LIMIT));
            }
        }
    }
}

fn dtest(
    setting: &Setting,
    wire: &mut Wire,
    manager: &str,
    host: usize,
    options: &[&str],
    limit: Duration,
) -> super::keeper::GuestOutput {
    let text = "exec \"$@\"";
    let common = [&[setting.dtest.as_str(), "-P", "rxe0", "-t", "120"], options].concat();
    let serve = over(patient(setting.shell(text, &common), manager), manager, ADDRESSES[1 - host]);
    let call = setting.shell(text, &[&common[..], &["-h", ADDRESSES[host]]].concat());
    let call = over(patient(call, manager), manager, ADDRESSES[host]);
    wire.meet(&TwoGuestJobs { host, serve: &serve, ready: "listening", call: &call, limit })
}

/// Sets the connection manager and the peer's address. Only the manager `none` uses the address.
fn over(job: Job, manager: &str, peer: &str) -> Job {
    job.with("DAPL_VERBS_CM", manager).with("DAPL_VERBS_PEER", peer)
}

/// Connections that end in the middle of a bidirectional stream, because one program is killed or the link goes down:
/// each surviving program gets one event and all completions.
fn ends(setting: &Setting, report: &mut Report, wire: &mut Wire, manager: &str) {
    let stream = setting.program("test/c/verbs_stream.c");
    // Exit status 137: the program was killed by SIGKILL, as intended.
    for (kind, happens, expected) in
        [("peer_is_killed", "kill -KILL $job", "137"), ("link_goes_down", "ip link set eth0 down", "0")]
    {
        let name = format!("wired::{kind}_{manager}");
        if !report.wants(&name) {
            continue;
        }
        let serve = setting.shell(WHEN_IT_FLOWS, &[happens, &stream, "serve", "rxe0"]).with("EXPECTED", expected);
        let call = setting.shell("exec \"$@\"", &[&stream, "call", "rxe0", ADDRESSES[0]]);
        let (serve, call) = (over(serve, manager, ADDRESSES[1]), over(call, manager, ADDRESSES[0]));
        report.answer(
            &name,
            wire.meet(&TwoGuestJobs { host: 0, serve: &serve, ready: "listening", call: &call, limit: LONG_LIMIT }),
        );
    }
}

/// The disconnect request is lost, and its sender closes the IA immediately. The peer must still detect the end.
fn lost_disconnect(setting: &Setting, report: &mut Report, wire: &mut Wire) {
    let name = "wired::disconnect_request_is_lost_rdma";
    if !report.wants(name) {
        return;
    }
    let program = [setting.dtest.as_str(), "-P", "rxe0", "-t", "30", "-B", "1", "-b", "4096"];
    let serve = setting.shell("exec \"$@\"", &program);
    let call = setting.shell(DISCONNECT_IS_DROPPED, &[&program[..], &["-h", ADDRESSES[0]]].concat());
    let (serve, call) = (over(serve, "rdma", ADDRESSES[1]), over(call, "rdma", ADDRESSES[0]));
    report.answer(
        name,
        wire.meet(&TwoGuestJobs { host: 0, serve: &serve, ready: "listening", call: &call, limit: LIMIT }),
    );
}

/// Runs dtest, which checks every byte, with 1 % loss and a delay of 20 ms.
fn bad_network(setting: &Setting, report: &mut Report, wire: &mut Wire) {
    let names: Vec<String> = MANAGERS[..2].iter().map(|manager| format!("wired::loss_and_delay_{manager}")).collect();
    let wanted: Vec<bool> = names.iter().map(|name| report.wants(name)).collect();
    if !wanted.contains(&true) {
        return;
    }
    let set = setting
        .shell("tc qdisc replace dev eth0 root netem loss 1% delay 20ms limit 10000 && tc qdisc show dev eth0", &[]);
    for end in 0..2 {
        let answer = wire.run(end, &set, LIMIT);
        report.answer(&format!("wired::netem_{end}"), answer);
    }
    for (at, manager) in MANAGERS[..2].iter().enumerate().filter(|(at, _)| wanted[*at]) {
        let options = ["-B", "1", "-b", "65536"];
        report.answer(&names[at], dtest(setting, wire, manager, at, &options, LONG_LIMIT));
    }
    for end in 0..2 {
        let answer = wire.run(end, &setting.shell("tc qdisc del dev eth0 root; tc -s qdisc show dev eth0", &[]), LIMIT);
        report.answer(&format!("wired::netem_{end}_is_gone"), answer);
    }
}
