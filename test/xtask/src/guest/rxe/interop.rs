//! This provider and the 2.0 reference, each as server and as client of the other, with the observations of each side.
//!
//! `test/c/verbs_interop.c`, compiled for both, prints them, and they are compared here. The expected sizes and numbers are
//! those of rdma_cm over RoCE, which pads private data and carries no length. A qualifier above 65,535 reaches the other side
//! only if both fold it into the same port.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use dapl_test::stage::workspace;

use super::keeper::{Answer, Keeper};
use super::setting::{Job, Setting};
use crate::Result;
use crate::guest::Link;
use crate::reference::{ADAPTER, Reference};
use crate::report::Report;

/// Time limit; a case takes less than a second.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of private data that an accept carries.
const REPLY: u32 = 196;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Ours,
    Theirs,
}

impl Side {
    /// Size of the private data of a request that the consumer gets.
    fn request(self) -> u32 {
        match self {
            Side::Ours => 48,
            Side::Theirs => 56,
        }
    }

    /// Event of the consumer for a rejection.
    fn rejection(self) -> u32 {
        match self {
            Side::Ours => 0,
            Side::Theirs => 148,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Theirs => "the_reference",
        }
    }
}

/// Answer to a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Length of the private data in the reply, and the side that disconnects.
    Accept(u32, &'static str),
    Reject,
}

/// A connection, or a request that is rejected.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    server: Side,
    client: Side,
    qual: u32,
    /// Bytes of private data with the request.
    request: u32,
    fate: Fate,
}

/// All cases: the same in both directions, except for the maximum size that each side may send.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in [(Side::Ours, Side::Theirs), (Side::Theirs, Side::Ours)] {
        // Maximum of private data that each side accepts from its consumer.
        let (most, most_back) = match client {
            Side::Ours => (48, 160),
            Side::Theirs => (56, 196),
        };
        let case = |name, qual, request, fate| Case { name, server, client, qual, request, fate };
        cases.extend([
            case("no_private_data", 45_248, 0, Fate::Accept(0, "client")),
            case("a_byte_each_way", 45_249, 1, Fate::Accept(1, "server")),
            case("the_most_each_way", 45_250, most, Fate::Accept(most_back, "client")),
            case("a_qualifier_beyond_ports", 70_000, 10, Fate::Accept(20, "server")),
            case("refused", 45_251, 20, Fate::Reject),
        ]);
    }
    cases
}

impl Case {
    fn title(&self) -> String {
        format!("interop::{}_serves_{}_{}", self.server.name(), self.client.name(), self.name)
    }

    /// Lines that must be printed; others are permitted.
    fn expected(&self) -> Vec<String> {
        let (request, reported) = (self.request, self.server.request());
        let mut lines = vec![
            format!("server | request: size {reported}, {request} of {request} as sent, zeros behind"),
            format!("server | from: {}", Link::Alone.address()),
        ];
        match self.fate {
            Fate::Reject => lines.push(format!("event: PEER_REJECTED, size {}", self.client.rejection())),
            Fate::Accept(reply, _) => {
                lines.push(format!("event: ESTABLISHED, size {REPLY}"));
                lines.push(format!("reply: size {REPLY}, {reply} of {reply} as sent, zeros behind"));
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

/// The programs, and their environments.
struct Programs<'a> {
    setting: &'a Setting,
    reference: Reference,
    /// Runs a server and its client.
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

    /// Command line of one side. The test environment is this project's; the reference has its own libraries and
    /// registry.
    fn end(&self, side: Side, role: &[&str], qual: u32) -> Vec<String> {
        let (mut words, adapter) = match side {
            Side::Ours => (vec![self.ours.clone()], "rxe0"),
            Side::Theirs => {
                let Reference { lib, conf, .. } = &self.reference;
                let set = [("LD_LIBRARY_PATH", lib), ("DAT_OVERRIDE", conf)];
                let set = set.map(|(name, value)| format!("{name}={}", value.display()));
                let words = ["env".to_owned()].into_iter().chain(set).chain([self.theirs.display().to_string()]);
                (words.collect(), ADAPTER)
            }
        };
        words.extend(role.iter().chain(&["-P", adapter, "-q"]).map(|word| (*word).to_owned()));
        words.push(qual.to_string());
        words
    }

    fn job(&self, case: &Case) -> Job {
        let request = case.request.to_string();
        let scene = match case.fate {
            Fate::Accept(reply, end) => vec!["accept".to_owned(), request, reply.to_string(), end.to_owned()],
            Fate::Reject => vec!["reject".to_owned(), request],
        };
        let client = ["-h", Link::Alone.address()];
        let [server, client] = [(case.server, &["-s"][..]), (case.client, &client)]
            .map(|(side, role)| [self.end(side, role, case.qual), scene.clone()].concat());
        let words = [vec!["text:ready".to_owned()], server, vec!["--".to_owned()], client].concat();
        self.setting.exec(self.duet.as_ref(), &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a client without a server.
    fn no_listener(&self) -> Job {
        let words = self.end(Side::Ours, &["-h", Link::Alone.address()], 45_252);
        let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(["no-listener"]).collect();
        self.setting.exec(self.ours.as_ref(), &words)
    }
}

/// Runs all cases.
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

fn check_output(report: &mut Report, name: &str, answer: Answer, expected: &[String]) {
    let missing: Vec<&str> = expected.iter().filter(|line| !answer.said.contains(line)).map(String::as_str).collect();
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
    fn expects_padding_of_a_longer_request() {
        let case = cases().into_iter().find(|case| case.name == "the_most_each_way").unwrap();
        let line = "server | request: size 48, 56 of 56 as sent, zeros behind";
        assert!(case.expected().contains(&line.to_owned()), "{:?}", case.expected());
    }
}
