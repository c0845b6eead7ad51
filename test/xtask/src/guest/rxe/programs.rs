//! Debian's programs for DAT 2.0, unmodified, over the guest's device: with this project's libraries on both sides,
//! or the reference's on one side, in both roles; over rdma_cm and over the socket manager of 2.0.
//!
//! Their tests of unreliable datagrams are left out: no provider of this project has such endpoints. dtestsrq with
//! the reference's provider is also left out: before it ends, it waits for an asynchronous event of the shared receive
//! queue, which soft-RoCE does not report.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::interop::{FIRST_GID, Side};
use super::keeper::{GuestOutput, Keeper};
use super::setting::{Job, Setting};
use crate::Result;
use crate::guest::GuestNetwork;
use crate::reference::{ADAPTER, Reference, SOCKET_ADAPTER};
use crate::report::Report;

/// Time limit. The slowest program takes a minute on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A program that runs as server and as client.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    /// Text that the server prints when a client may start.
    ready: &'static str,
    /// TCP port on which the server listens shortly after it has printed `ready`; a client must not start before.
    /// `None`: it may start after `ready`.
    port: Option<u16>,
    /// Final text of a successful client and of a successful server.
    success: [&'static str; 2],
    /// Arguments for both server and client.
    common: &'static [&'static str],
}

/// Port at which clients of dtest, dtestx and dtestcm get the address of the server.
const TCP_PORT: Option<u16> = Some(15_828);

const PROGRAMS: [Program; 5] = [
    Program {
        name: "dtest",
        ready: "waiting for client",
        port: TCP_PORT,
        success: ["DAPL Test Complete. PASSED"; 2],
        common: &["-b", "4096", "-B", "10"],
    },
    Program {
        name: "dtestx",
        ready: "waiting to snd addr",
        port: TCP_PORT,
        success: ["IB extension test - immed/atomic test PASSED"; 2],
        common: &[],
    },
    Program {
        name: "dtestcm",
        ready: "waiting for client",
        port: TCP_PORT,
        success: ["DAPL Connection Test Complete."; 2],
        common: &["-c", "50", "-b", "10"],
    },
    Program {
        name: "dtestsrq",
        ready: "server ready",
        port: None,
        success: ["SRQ Test Complete."; 2],
        common: &["-c", "4", "-b", "1024"],
    },
    Program {
        name: "dapltest",
        ready: "Service Point Ready",
        port: None,
        success: ["End of Work", "Exiting."],
        common: &[],
    },
];

/// Runs two tests of dapltest, then ends the server. $1 is the program, $2 the adapter, $3 the address of the server.
const DAPLTEST: &str = r#"
run() { kind=$1; shift; "$program" -T "$kind" -D "$adapter" -s "$server" "$@" || exit 1; }
program=$1 adapter=$2 server=$3
run T -i 20 client RW 4096 2 server RR 5000 1 client SR 1024 1 server SR 99 2
run P -i 200 -m b RW 4096 2
run Q"#;

/// Libraries of server and client.
const PAIRS: [(Side, Side); 3] = [(Side::Ours, Side::Ours), (Side::Ours, Side::Theirs), (Side::Theirs, Side::Ours)];

/// A program, the libraries of its two sides, and the adapter of both.
#[derive(Clone, Copy)]
struct Case {
    program: &'static Program,
    server: Side,
    client: Side,
    adapter: &'static str,
}

impl Case {
    fn title(&self) -> String {
        let manager = if self.adapter == SOCKET_ADAPTER { "socket_" } else { "" };
        let name = self.program.name;
        match (self.server, self.client) {
            (Side::Ours, Side::Ours) => format!("programs::{manager}{name}"),
            (server, client) => format!("interop::{manager}{name}_{}_serves_{}", server.name(), client.name()),
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let ends = |(server, client)| [ADAPTER, SOCKET_ADAPTER].map(|adapter| (server, client, adapter));
    let cases = PAIRS.into_iter().flat_map(ends).flat_map(|(server, client, adapter)| {
        PROGRAMS.iter().map(move |program| Case { program, server, client, adapter })
    });
    cases.filter(|case| case.program.name != "dtestsrq" || (case.server, case.client) == PAIRS[0])
}

/// Runs the selected checks.
pub(super) fn run(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let wanted: Vec<_> = cases().filter(|case| report.wants(&case.title())).collect();
    if wanted.is_empty() {
        return;
    }
    let programs = match Programs::new(setting) {
        Ok(programs) => programs,
        Err(reason) => return report.line("programs", Err(reason)),
    };
    for case in wanted {
        let answer = keeper.run(&programs.job(&case), LIMIT);
        check(report, &case.title(), answer, case.program);
    }
}

/// Reports whether a program succeeded, by its exit status and its output: after some failures the exit status is 0.
fn check(report: &mut Report, name: &str, answer: GuestOutput, program: &Program) {
    let has_line = |is_server: bool, text: &str| {
        answer.lines.iter().any(|line| line.starts_with("server | ") == is_server && line.contains(text))
    };
    let is_good = has_line(false, program.success[0]) && has_line(true, program.success[1]);
    let has_error = [true, false].iter().any(|side| has_line(*side, "Error") || has_line(*side, "FAILED"));
    match answer.result {
        Ok(0) if !is_good || has_error => {
            report.line(name, Err(answer.with("the output lacks a line of success, or has an error")));
        }
        _ => report.answer(name, answer),
    }
}

struct Programs<'a> {
    setting: &'a Setting,
    reference: Reference,
    /// Path of `duet`, which runs a server and its client.
    duet: String,
}

impl Programs<'_> {
    fn new(setting: &Setting) -> Result<Programs<'_>> {
        Ok(Programs { setting, reference: Reference::find()?, duet: setting.program("test/c/duet.c") })
    }

    /// Command line of one side with its environment, without arguments. Output is line-buffered.
    fn words(&self, side: Side, program: &str, variable: Option<&str>) -> Vec<String> {
        let mut words = vec!["env".to_owned()];
        words.extend(variable.map(str::to_owned));
        if side == Side::Theirs {
            let Reference { lib, conf, .. } = &self.reference;
            words.push(format!("LD_LIBRARY_PATH={}", lib.display()));
            words.push(format!("DAT_OVERRIDE={}", conf.display()));
        }
        // A hanging program ends before the job's time limit, so that the output of both sides is printed.
        words.extend(["timeout", "200", "stdbuf", "-oL"].map(str::to_owned));
        words.push(self.reference.program(program).display().to_string());
        words
    }

    /// Returns the job that runs server and client. Both use the same adapter name, because servers of dtest and
    /// dtestcm send their adapter name to the client, which opens it.
    fn job(&self, case: &Case) -> Job {
        let Case { program, server, client, adapter } = *case;
        let address = GuestNetwork::Alone.address().to_owned();
        let is_mixed = adapter == SOCKET_ADAPTER && server != client;
        let mut first = self.words(server, program.name, None);
        let mut second = self.words(client, program.name, Some(FIRST_GID).filter(|_| is_mixed));
        if program.name == "dapltest" {
            first.extend(["-T", "S", "-D", adapter].map(str::to_owned));
            // The last argument of the command line is the program.
            let last = second.pop().expect("the list is not empty: an element was pushed above");
            second.extend(["sh", "-c", DAPLTEST, "sh"].map(str::to_owned));
            second.extend([last, adapter.to_owned(), address]);
        } else {
            let common = || program.common.iter().map(|word| (*word).to_owned());
            first.extend(["-P", adapter, "-s"].map(str::to_owned).into_iter().chain(common()));
            second.extend(["-P", adapter, "-h", &address].map(str::to_owned).into_iter().chain(common()));
        }
        let port = program.port.map_or(String::new(), |port| format!("@{port}"));
        let words = [vec![format!("text{port}:{}", program.ready)], first, vec!["--".to_owned()], second].concat();
        self.setting.exec(self.duet.as_ref(), &words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
