//! What is asked of many: connections on one EVD, connecting, memory of idle endpoints, two senders. Nobody is beside us.
#![forbid(unsafe_code)]

use super::side::Effort;
use crate::Result;
use crate::bench::ours::{Ask, Perf, field};

/// What perf is asked for, and which of its fields are shown, by which name and unit.
type Question = (Ask, Vec<(&'static str, &'static str, &'static str)>);

/// A line of the table, before it is measured.
pub(super) struct Plan {
    /// By which it is asked for.
    pub(super) section: &'static str,
    title: String,
    questions: Vec<Question>,
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

/// The sections there are.
pub(super) const SECTIONS: [&str; 4] = ["connections", "connects", "memory", "senders"];

/// All of them.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    let crowd = |count: u32| {
        let ask = |mode| Ask::new(mode, 8, effort.count(50_000)).with(&["-c", &count.to_string()]);
        let questions =
            vec![(ask("lat"), vec![("usec", "one talks", "us")]), (ask("robin"), vec![("usec", "in turn", "us")])];
        Plan { section: "connections", title: format!("8 B ping-pong, connections: {count}"), questions }
    };
    let connects =
        |width, count, name| (Ask::new("connect", width, effort.count(count)), vec![("per_second", name, "/s")]);
    let fields =
        vec![("resident_kib", "resident", "KiB"), ("private_kib", "private", "KiB"), ("shared_kib", "shared", "KiB")];
    let rate = |clients, name| {
        let ask = Ask { clients, ..Ask::new("rate", 8, effort.count(2_000_000)) };
        (ask, vec![("mps", name, "M/s")])
    };
    let mut plans: Vec<Plan> = [1, 10, 100, 1_000].map(crowd).into();
    plans.push(Plan {
        section: "connects",
        title: "connections made".to_owned(),
        questions: vec![connects(1, 500, "one by one"), connects(100, 1_000, "100 at once")],
    });
    plans.push(Plan {
        section: "memory",
        title: "an idle endpoint of 1,000".to_owned(),
        questions: vec![(Ask::new("memory", 64, 1_000), fields)],
    });
    plans.push(Plan {
        section: "senders",
        title: "8 B messages into one process".to_owned(),
        questions: vec![rate(1, "one sends"), rate(2, "two send")],
    });
    plans
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
                let said = perf.run(ask).map_err(|reason| format!("{}: {reason}", self.title))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_has_a_plan() {
        let plans = plans(Effort::FULL);
        SECTIONS.iter().for_each(|name| assert!(plans.iter().any(|plan| plan.section == *name), "{name}"));
        assert!(plans.iter().all(|plan| SECTIONS.contains(&plan.section)));
    }
}
