//! Measurements that are not compared with another program: many connections on one EVD, connection rate, memory per
//! idle endpoint, latency percentiles. The bench `sm` adds the message rate into one process.
#![forbid(unsafe_code)]

use super::chart::HorizontalAxis;
use super::network::{BenchNetwork, NetworkKind};
use super::ours::{Perf, PerfArguments};
use super::side::{CommandLines, Effort};
use crate::Result;
use crate::json::field;

/// A run of `perf`, and the fields to read from its output. `count` is the place of their figures on the horizontal
/// axis of the chart: a number of connections, endpoints or senders, or a size.
pub(super) struct PerfRun {
    pub(super) ask: PerfArguments,
    pub(super) count: u32,
    pub(super) answers: Vec<OutputField>,
}

/// A field of the program's JSON output that the bench reads.
#[derive(Clone, Copy)]
pub(super) struct OutputField {
    pub(super) field: &'static str,
    /// Label of the figure in its table row.
    pub(super) name: &'static str,
    /// Name of the chart line, which has one point for each count.
    pub(super) line: &'static str,
    pub(super) unit: &'static str,
}

/// A group of rows that forms one chart.
pub(super) struct Section {
    /// Name on the command line.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) up: &'static str,
    pub(super) across: HorizontalAxis,
}

const CONNECTIONS: Section = Section {
    name: "connections",
    title: "8 B ping-pong over one of many connections, and over all in turn",
    up: "microseconds",
    across: HorizontalAxis::Connections,
};
const CONNECTS: Section = Section {
    name: "connects",
    title: "Connections made",
    up: "connections per second",
    across: HorizontalAxis::AtOnce,
};
const MEMORY: Section =
    Section { name: "memory", title: "Memory of an idle endpoint", up: "KiB", across: HorizontalAxis::Endpoints };
const PERCENTILES: Section = Section {
    name: "percentiles",
    title: "Latency percentiles: half a round trip, both sides polling",
    up: "microseconds",
    across: HorizontalAxis::Bytes,
};
const WAIT_PERCENTILES: Section = Section {
    name: "wait-percentiles",
    title: "Latency percentiles: half a round trip, both sides waiting in dat_evd_wait",
    up: "microseconds",
    across: HorizontalAxis::Bytes,
};
/// One process, or two at the same time, send to another process.
pub(super) const SENDERS: Section = Section {
    name: "senders",
    title: "8 B messages into one process",
    up: "millions of messages per second",
    across: HorizontalAxis::Senders,
};

/// A table row, not yet measured.
pub(super) struct Plan {
    pub(super) section: &'static Section,
    pub(super) title: String,
    pub(super) questions: Vec<PerfRun>,
}

/// A measured table row.
pub(super) struct Row {
    pub(super) section: &'static Section,
    pub(super) title: String,
    pub(super) figures: Vec<Figure>,
}

/// A figure in a table row.
pub(super) struct Figure {
    pub(super) answer: OutputField,
    pub(super) count: u32,
    pub(super) ends: CommandLines,
    pub(super) samples: Vec<f64>,
}

/// Latency of an 8-byte ping-pong over one of `count` connections, and over all of them in turn.
pub(super) fn connections(effort: Effort, count: u32) -> Plan {
    let question = |mode, name| PerfRun {
        ask: PerfArguments::new(mode, 8, effort.count(50_000)).with(&["-c", &count.to_string()]),
        count,
        answers: vec![OutputField { field: "usec", name, line: name, unit: "us" }],
    };
    let questions = vec![question("lat", "one talks"), question("robin", "in turn")];
    Plan { section: &CONNECTIONS, title: format!("8 B ping-pong, connections: {count}"), questions }
}

/// Connections made per second, with 1, 10 and 100 connects in flight.
pub(super) fn connects(effort: Effort) -> Plan {
    let at_once = |width, count, name| PerfRun {
        ask: PerfArguments::new("connect", width, effort.count(count)),
        count: width,
        answers: vec![OutputField { field: "per_second", name, line: "dapl-rs", unit: "/s" }],
    };
    let questions =
        vec![at_once(1, 500, "one by one"), at_once(10, 1_000, "10 at once"), at_once(100, 1_000, "100 at once")];
    Plan { section: &CONNECTS, title: "connections made".to_owned(), questions }
}

/// Percentiles of ping-pong latency for a few sizes, polling and waiting.
pub(super) fn percentiles(effort: Effort) -> Vec<Plan> {
    let answer = |field, name| OutputField { field, name, line: name, unit: "us" };
    let plan = |section, title: &str, size: u32, options: &[&str]| {
        let ask = PerfArguments::new("lat", size, effort.count(50_000)).with(options);
        let answers = vec![answer("p50_usec", "p50"), answer("p99_usec", "p99"), answer("p99_9_usec", "p99.9")];
        Plan {
            section,
            title: format!("{size} B ping-pong, {title}"),
            questions: vec![PerfRun { ask, count: size, answers }],
        }
    };
    let polling = [8, 64, 4096, 65_536].map(|size| plan(&PERCENTILES, "polling", size, &["-r"]));
    let waiting = [8, 64, 4096, 65_536].map(|size| plan(&WAIT_PERCENTILES, "waiting", size, &["-r", "-w"]));
    polling.into_iter().chain(waiting).collect()
}

/// Memory of an idle endpoint in a process with `count` endpoints.
pub(super) fn memory(count: u32) -> Plan {
    let answer = |field, name| OutputField { field, name, line: name, unit: "KiB" };
    let answers =
        vec![answer("resident_kib", "resident"), answer("private_kib", "private"), answer("shared_kib", "shared")];
    let questions = vec![PerfRun { ask: PerfArguments::new("memory", count.min(64), count), count, answers }];
    Plan { section: &MEMORY, title: format!("an idle endpoint of {count}"), questions }
}

impl Plan {
    /// Measures all runs of the row, in alternation.
    pub(super) fn measure(self, perf: &Perf, effort: Effort) -> Result<Row> {
        let mut figures = Vec::new();
        for PerfRun { ask, count, answers } in &self.questions {
            let ends = CommandLines::of(ask, perf.adapter(), NetworkKind::Loopback);
            figures.extend(answers.iter().map(|answer| Figure {
                answer: *answer,
                count: *count,
                ends: ends.clone(),
                samples: Vec::new(),
            }));
        }
        for round in 1..=effort.few {
            let mut next = figures.iter_mut();
            for PerfRun { ask, answers, .. } in &self.questions {
                let output =
                    perf.run(ask, &BenchNetwork::loopback()).map_err(|reason| format!("{}: {reason}", self.title))?;
                for (OutputField { field: name, .. }, figure) in answers.iter().zip(&mut next) {
                    let sample = field(&output, name)
                        .ok_or_else(|| format!("the output of {} has no {name}: {output}", ask.line()))?;
                    figure.samples.push(sample);
                }
            }
            let values = figures.iter().map(|figure| {
                format!(" {} {:.3} {}", figure.answer.name, figure.samples[round - 1], figure.answer.unit)
            });
            eprintln!("{} round {round}:{}", self.title, values.collect::<Vec<_>>().join(","));
        }
        Ok(Row { section: self.section, title: self.title, figures })
    }
}
