//! What is asked of many: connections on one EVD, connecting, memory of idle endpoints. Nobody is beside us.
#![forbid(unsafe_code)]

use super::ground::Ground;
use super::ours::{Ask, Perf};
use super::side::Effort;
use crate::Result;
use crate::json::field;

/// What perf is asked for, and which of its fields are shown, by which name and unit.
pub(super) type Question = (Ask, Vec<(&'static str, &'static str, &'static str)>);

/// A line of the table, before it is measured.
pub(super) struct Plan {
    /// By which it is asked for.
    pub(super) section: &'static str,
    pub(super) title: String,
    pub(super) questions: Vec<Question>,
}

/// The same, measured.
pub(super) struct Row {
    pub(super) title: String,
    pub(super) figures: Vec<Figure>,
}

/// One number of it.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) command: String,
    pub(super) samples: Vec<f64>,
}

/// 8-byte ping-pong over one of so many connections, and over all in turn.
pub(super) fn crowd(effort: Effort, count: u32) -> Plan {
    let ask = |mode| Ask::new(mode, 8, effort.count(50_000)).with(&["-c", &count.to_string()]);
    let questions =
        vec![(ask("lat"), vec![("usec", "one talks", "us")]), (ask("robin"), vec![("usec", "in turn", "us")])];
    Plan { section: "connections", title: format!("8 B ping-pong, connections: {count}"), questions }
}

/// Connections made in a second.
pub(super) fn connects(effort: Effort) -> Plan {
    let at_once =
        |width, count, name| (Ask::new("connect", width, effort.count(count)), vec![("per_second", name, "/s")]);
    let questions = vec![at_once(1, 500, "one by one"), at_once(100, 1_000, "100 at once")];
    Plan { section: "connects", title: "connections made".to_owned(), questions }
}

/// What one of a thousand costs that nobody uses.
pub(super) fn memory() -> Plan {
    let fields =
        vec![("resident_kib", "resident", "KiB"), ("private_kib", "private", "KiB"), ("shared_kib", "shared", "KiB")];
    let questions = vec![(Ask::new("memory", 64, 1_000), fields)];
    Plan { section: "memory", title: "an idle endpoint of 1,000".to_owned(), questions }
}

impl Plan {
    /// Asks in turns.
    pub(super) fn measure(self, perf: &Perf, effort: Effort) -> Result<Row> {
        let mut figures = Vec::new();
        for (ask, fields) in &self.questions {
            figures.extend(fields.iter().map(|(_, name, unit)| Figure {
                name,
                unit,
                command: ask.line(),
                samples: Vec::new(),
            }));
        }
        for round in 1..=effort.few {
            let mut next = figures.iter_mut();
            for (ask, fields) in &self.questions {
                let said = perf.run(ask, &Ground::here()).map_err(|reason| format!("{}: {reason}", self.title))?;
                for ((name, ..), figure) in fields.iter().zip(&mut next) {
                    let sample = field(&said, name).ok_or_else(|| format!("{} said no {name}: {said}", ask.line()))?;
                    figure.samples.push(sample);
                }
            }
            let said = figures
                .iter()
                .map(|figure| format!(" {} {:.3} {}", figure.name, figure.samples[round - 1], figure.unit));
            eprintln!("{} round {round}:{}", self.title, said.collect::<Vec<_>>().join(","));
        }
        Ok(Row { title: self.title, figures })
    }
}
