//! This provider and the reference (compat-dapl, the C implementation of DAT 2.0), each as server and as client, and
//! what each side observes.
//!
//! `test/c/verbs_interop.c`, compiled for both, prints the observations, which are compared here. The expected sizes
//! and numbers are those of rdma_cm over RoCE, which pads private data and carries no length, or of the socket
//! managers, which carry the length. A qualifier above 65,535 reaches the other side only if both implementations map
//! it to the same port.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use dapl_test::stage::workspace;

use super::keeper::{GuestOutput, Keeper};
use super::setting::{Job, Setting};
use crate::Result;
use crate::guest::GuestNetwork;
use crate::reference::{ADAPTER, Reference, SOCKET_ADAPTER};
use crate::report::Report;

/// Time limit. A case takes less than a second.
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum private data of an accept over rdma_cm, in bytes.
const REPLY: u32 = 196;
/// Maximum private data of any message over the socket managers, in bytes.
const SOCKET_DATA: u32 = 68;

/// Environment of this project's requester over the socket manager. The requester must use the port's first GID,
/// because an acceptor of the reference always uses that GID, whichever GID the requester has.
pub(super) const FIRST_GID: &str = "DAPL_VERBS_GID_INDEX=0";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Ours,
    Theirs,
}

/// Connection manager of both sides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Manager {
    /// rdma_cm. This project's program is a DAT 1.2 program.
    Rdma,
    /// TCP sockets, with the messages of the reference's socket provider. Both programs are DAT 2.0 programs, because
    /// only 2.0 gives a reject private data.
    Socket,
}

impl Manager {
    /// Size of a request's private data at the server, if the client sent `sent` bytes.
    fn request(self, server: Side, sent: u32) -> u32 {
        match (self, server) {
            (Manager::Socket, _) => sent,
            (Manager::Rdma, Side::Ours) => 48,
            (Manager::Rdma, Side::Theirs) => 56,
        }
    }

    /// Size of an accept's private data at the client, if the server sent `sent` bytes.
    fn reply(self, client: Side, sent: u32) -> u32 {
        match (self, client) {
            (Manager::Socket, Side::Ours) => sent,
            (Manager::Socket, Side::Theirs) => SOCKET_DATA,
            (Manager::Rdma, _) => REPLY,
        }
    }

    /// Size of a reject's private data at the client, if the server sent `sent` bytes.
    fn rejection(self, client: Side, sent: u32) -> u32 {
        match (self, client) {
            (Manager::Socket, _) => self.reply(client, sent),
            (Manager::Rdma, Side::Ours) => 0,
            (Manager::Rdma, Side::Theirs) => 148,
        }
    }

    /// Maximum private data in bytes that a client of this side can send, and that its peer can reply.
    fn most(self, client: Side) -> (u32, u32) {
        match (self, client) {
            (Manager::Socket, _) => (SOCKET_DATA, SOCKET_DATA),
            (Manager::Rdma, Side::Ours) => (48, 160),
            (Manager::Rdma, Side::Theirs) => (56, 196),
        }
    }
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Theirs => "the_reference",
        }
    }
}

/// The server's reply to a request.
#[derive(Clone, Copy, Debug)]
enum Decision {
    /// Accept: length of the reply's private data, and the side that disconnects.
    Accept(u32, &'static str),
    /// Reject: length of its private data.
    Reject(u32),
}

/// One connection, or one rejected request.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    manager: Manager,
    server: Side,
    client: Side,
    qual: u32,
    /// Bytes of private data in the request.
    request: u32,
    fate: Decision,
}

/// All cases. They are the same in both directions and over both managers, except for the maximum sizes, and for a
/// reject with private data, which only the socket manager transfers.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let sides = [(Side::Ours, Side::Theirs), (Side::Theirs, Side::Ours)];
    let managers = [(Manager::Rdma, 45_248), (Manager::Socket, 45_348)];
    for (manager, first) in managers {
        for (server, client) in sides {
            let (most, most_back) = manager.most(client);
            let case = |name, qual, request, fate| Case { name, manager, server, client, qual, request, fate };
            cases.extend([
                case("no_private_data", first, 0, Decision::Accept(0, "client")),
                case("a_byte_each_way", first + 1, 1, Decision::Accept(1, "server")),
                case("the_most_each_way", first + 2, most, Decision::Accept(most_back, "client")),
                case("a_qualifier_beyond_ports", 70_000, 10, Decision::Accept(20, "server")),
                case("refused", first + 3, 20, Decision::Reject(0)),
            ]);
            if manager == Manager::Socket {
                cases.push(case("refused_with_the_most", first + 4, 20, Decision::Reject(SOCKET_DATA)));
            }
        }
    }
    cases
}

impl Case {
    fn title(&self) -> String {
        let manager = if self.manager == Manager::Socket { "socket_" } else { "" };
        format!("interop::{manager}{}_serves_{}_{}", self.server.name(), self.client.name(), self.name)
    }

    /// Lines that the programs must print; others are permitted.
    fn expected(&self) -> Vec<String> {
        let (request, reported) = (self.request, self.manager.request(self.server, self.request));
        let mut lines = vec![
            format!("server | request: size {reported}, {request} of {request} as sent, then zeros"),
            format!("server | from: {}", GuestNetwork::Alone.address()),
        ];
        match self.fate {
            Decision::Reject(reason) => {
                let reported = self.manager.rejection(self.client, reason);
                lines.push(format!("event: PEER_REJECTED, size {reported}"));
                if reason > 0 {
                    lines.push(format!("reason: size {reported}, {reason} of {reason} as sent, then zeros"));
                }
            }
            Decision::Accept(reply, _) => {
                let reported = self.manager.reply(self.client, reply);
                lines.push(format!("event: ESTABLISHED, size {reported}"));
                lines.push(format!("reply: size {reported}, {reply} of {reply} as sent, then zeros"));
                for side in ["", "server | "] {
                    lines.extend([format!("{side}data: right"), format!("{side}end: DISCONNECTED")]);
                }
                // The following lines depend on the server's implementation.
                match self.server {
                    Side::Ours => lines.push("server | event: ESTABLISHED, size 0".to_owned()),
                    Side::Theirs => lines.push(format!("port: {}", self.qual)),
                }
            }
        }
        lines
    }
}

/// The two programs and their environments.
struct Programs<'a> {
    setting: &'a Setting,
    reference: Reference,
    /// Path of `duet`, which runs a server and its client.
    duet: String,
    ours: String,
    theirs: PathBuf,
}

impl Programs<'_> {
    fn new(setting: &Setting) -> Result<Programs<'_>> {
        const SOURCE: &str = "test/c/verbs_interop.c";
        let reference = Reference::find()?;
        let (duet, ours) = (setting.program("test/c/duet.c"), setting.program(SOURCE));
        let theirs = PathBuf::from(format!("{ours}20"));
        reference.compile(&theirs, &workspace().join(SOURCE))?;
        Ok(Programs { setting, reference, duet, ours, theirs })
    }

    /// Command line of one side. This project's side uses the test environment; the reference has its own libraries
    /// and registry.
    fn end(&self, manager: Manager, side: Side, role: &[&str], qual: u32) -> Vec<String> {
        let adapter = if manager == Manager::Socket { SOCKET_ADAPTER } else { ADAPTER };
        let (mut words, adapter) = match (side, manager) {
            (Side::Ours, Manager::Rdma) => (vec![self.ours.clone()], "rxe0"),
            (Side::Ours, Manager::Socket) => {
                let words = if role.contains(&"-h") { &["env", FIRST_GID][..] } else { &[] };
                let words = words.iter().map(|word| (*word).to_owned());
                (words.chain([self.theirs.display().to_string()]).collect(), adapter)
            }
            (Side::Theirs, _) => {
                let Reference { lib, conf, .. } = &self.reference;
                let set = [("LD_LIBRARY_PATH", lib), ("DAT_OVERRIDE", conf)];
                let set = set.map(|(name, value)| format!("{name}={}", value.display()));
                let words = ["env".to_owned()].into_iter().chain(set).chain([self.theirs.display().to_string()]);
                (words.collect(), adapter)
            }
        };
        words.extend(role.iter().chain(&["-P", adapter, "-q"]).map(|word| (*word).to_owned()));
        words.push(qual.to_string());
        words
    }

    fn job(&self, case: &Case) -> Job {
        let request = case.request.to_string();
        let scene = match case.fate {
            Decision::Accept(reply, end) => vec!["accept".to_owned(), request, reply.to_string(), end.to_owned()],
            Decision::Reject(reason) => vec!["reject".to_owned(), request, reason.to_string()],
        };
        let client = ["-h", GuestNetwork::Alone.address()];
        let [server, client] = [(case.server, &["-s"][..]), (case.client, &client)]
            .map(|(side, role)| [self.end(case.manager, side, role, case.qual), scene.clone()].concat());
        let words = [vec!["text:ready".to_owned()], server, vec!["--".to_owned()], client].concat();
        self.setting.exec(self.duet.as_ref(), &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a client without a server.
    fn no_listener(&self) -> Job {
        let words = self.end(Manager::Rdma, Side::Ours, &["-h", GuestNetwork::Alone.address()], 45_252);
        let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(["no-listener"]).collect();
        self.setting.exec(self.ours.as_ref(), &words)
    }
}

/// Runs the selected cases, and the connect without a listener if that is selected.
pub(super) fn run(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let wanted: Vec<Case> = cases().into_iter().filter(|case| report.wants(&case.title())).collect();
    let no_listener = "interop::reports_rejection_without_listener";
    let is_wanted = report.wants(no_listener);
    if wanted.is_empty() && !is_wanted {
        return;
    }
    let programs = match Programs::new(setting) {
        Ok(programs) => programs,
        Err(reason) => return report.line("interop", Err(reason)),
    };
    for case in wanted {
        let answer = keeper.run(&programs.job(&case), LIMIT);
        check_output(report, &case.title(), answer, &case.expected());
    }
    if is_wanted {
        let answer = keeper.run(&programs.no_listener(), LIMIT);
        check_output(report, no_listener, answer, &["event: NON_PEER_REJECTED, size 0".to_owned()]);
    }
}

fn check_output(report: &mut Report, name: &str, answer: GuestOutput, expected: &[String]) {
    let missing: Vec<&str> = expected.iter().filter(|line| !answer.lines.contains(line)).map(String::as_str).collect();
    match answer.result {
        Ok(0) if !missing.is_empty() => {
            report.line(name, Err(answer.with(&format!("missing in the output:\n{}", missing.join("\n")))))
        }
        _ => report.answer(name, answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_is_expected_with_padding() {
        let case = cases().into_iter().find(|case| case.name == "the_most_each_way").unwrap();
        let line = "server | request: size 48, 56 of 56 as sent, then zeros";
        assert!(case.expected().contains(&line.to_owned()), "{:?}", case.expected());
    }
}
