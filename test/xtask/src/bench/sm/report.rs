//! What the bench leaves: tables to read, JSON to compare, a chart.
#![forbid(unsafe_code)]

use dapl_test::stage::Stage;

use super::contests::Measured;
use super::curves::{Curve, Family};
use super::scale::Row;
use crate::Result;
use crate::bench::report::{PEERS, json, machine, save, warn};
use crate::bench::{chart, median};

/// Everything that was measured.
#[derive(Default)]
pub(super) struct Found {
    /// Of the machine, before.
    pub(super) load: f64,
    pub(super) is_quick: bool,
    pub(super) contests: Vec<Measured>,
    pub(super) rows: Vec<Row>,
    pub(super) families: Vec<Family>,
    pub(super) failures: Failures,
}

/// What could not be measured, and why. The rest is measured all the same.
#[derive(Default)]
pub(super) struct Failures(Vec<String>);

impl Failures {
    pub(super) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.inspect_err(|reason| eprintln!("not measured: {reason}")).map_err(|reason| self.0.push(reason)).ok()
    }

    pub(super) fn into_result(self) -> Result {
        let reasons: Vec<&str> = self.0.iter().map(|reason| reason.lines().next().unwrap_or_default()).collect();
        if reasons.is_empty() { Ok(()) } else { Err(format!("not measured:\n{}", reasons.join("\n"))) }
    }
}

impl Found {
    /// Prints the tables.
    pub(super) fn print(&self) {
        if !self.contests.is_empty() {
            println!("\n{}", heading());
            self.contests.iter().for_each(|measured| println!("{}", promise(measured)));
            println!("\n+ promise met, ++ more than promised (\"stretch\"), - not met; ratios: ours over the peer's");
            for contest in self.contests.iter().map(|measured| &measured.contest) {
                let peers: Vec<String> = contest.peers.iter().map(super::side::Side::line).collect();
                let best = if peers.len() > 1 { "the better, each round, of " } else { "" };
                if !peers.is_empty() {
                    println!("{} beside {best}{}", contest.id, peers.join(" | "));
                }
            }
        }
        if !self.rows.is_empty() {
            println!();
        }
        for row in &self.rows {
            let figures = row.figures.iter().map(|figure| {
                format!("{:>12} {:<4} {:11}", rounded(median(&figure.samples)), figure.unit, figure.name)
            });
            println!("{:34}{}", row.title, figures.collect::<String>().trim_end());
        }
        self.families.iter().for_each(print_family);
        if self.is_quick {
            println!("\n--quick: one round and few operations; these figures say little");
        }
        warn(self.load);
    }

    /// Writes the files.
    pub(super) fn write(&self, stage: &Stage) -> Result {
        save(stage, "sm.json", &self.json())?;
        if self.families.is_empty() {
            return Ok(());
        }
        let panels: Vec<_> = self.families.iter().map(Family::panel).collect();
        let caption = "cargo xtask bench sm: two processes, each on its own processor; medians";
        save(stage, "sm.svg", &chart::svg(&panels, caption))
    }

    fn json(&self) -> String {
        let list = |lines: Vec<String>| lines.join(",\n");
        format!(
            "{{\n  \"machine\": {{{}}},\n  \"quick\": {},\n  \"contests\": [\n{}\n  ],\n  \"scale\": [\n{}\n  ],\n  \
             \"curves\": [\n{}\n  ],\n  \"not_measured\": [\n{}\n  ]\n}}\n",
            machine(self.load, &PEERS),
            self.is_quick,
            list(self.contests.iter().map(contest_json).collect()),
            list(self.rows.iter().flat_map(row_json).collect()),
            list(self.families.iter().flat_map(family_json).collect()),
            list(self.failures.0.iter().map(|reason| format!("    {}", json(reason))).collect())
        )
    }
}

fn heading() -> String {
    format!("{:3} {:33}{:>15}{:>15}{:>11}  {:9} {:10}", "", "", "ours", "peer", "ratio", "promise", "stretch")
}

fn promise(measured: &Measured) -> String {
    let contest = &measured.contest;
    let figure = |value: f64| format!("{} {}", rounded(value), contest.shown.unit());
    let peer = measured.peer();
    let is_stretched = contest.stretch.is_some_and(|stretch| measured.meets(stretch));
    let mark = match (measured.meets(contest.must), is_stretched) {
        (true, true) => "++",
        (true, false) => "+",
        (false, _) => "-",
    };
    format!(
        "{:3} {:33}{:>15}{:>15}{:>11}  {:9} {:10}{mark}",
        contest.id,
        contest.title,
        figure(measured.ours()),
        peer.map_or("-".to_owned(), figure),
        peer.map_or(String::new(), |_| format!("{}x", rounded(measured.figure()))),
        contest.bound(contest.must),
        contest.stretch.map_or("-".to_owned(), |stretch| contest.bound(stretch)),
    )
}

fn print_family(family: &Family) {
    println!("\n{}, {}", family.title, family.unit);
    print!("{:>10}", "bytes");
    family.curves.iter().for_each(|curve| print!("{:>16}", curve.name));
    println!();
    let mut sizes: Vec<u32> = family.curves.iter().flat_map(|curve| &curve.points).map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        print!("{size:>10}");
        for curve in &family.curves {
            let point = curve.points.iter().find(|point| point.size == size);
            print!("{:>16}", point.map_or("-".to_owned(), |point| rounded(median(&point.samples))));
        }
        println!();
    }
}

/// Three digits that count, at least.
fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.1 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

fn contest_json(measured: &Measured) -> String {
    let contest = &measured.contest;
    let (met, stretch) = (measured.meets(contest.must), or_null(contest.stretch));
    let peers: Vec<String> = contest
        .peers
        .iter()
        .zip(&measured.peers)
        .map(|(peer, samples)| format!("\n      {{\"command\": {}, \"samples\": {samples:?}}}", json(&peer.line())))
        .collect();
    format!(
        "    {{\"id\": {}, \"title\": {}, \"unit\": {}, \"less_is_better\": {}, \"must\": {}, \"stretch\": {stretch}, \
         \"met\": {met},\n     \"ours\": {}, \"peer\": {}, \"figure\": {}, \"command\": {},\n     \"samples\": {:?}, \
         \"peers\": [{}]}}",
        json(contest.id),
        json(contest.title),
        json(contest.shown.unit()),
        contest.shown.less_is_better(),
        contest.must,
        measured.ours(),
        or_null(measured.peer()),
        measured.figure(),
        json(&contest.ours.line()),
        measured.ours,
        peers.join(",")
    )
}

fn or_null(value: Option<f64>) -> String {
    value.map_or("null".to_owned(), |value| value.to_string())
}

fn row_json(row: &Row) -> Vec<String> {
    let figure = |figure: &super::scale::Figure| {
        format!(
            "    {{\"title\": {}, \"what\": {}, \"unit\": {}, \"command\": {}, \"median\": {}, \"samples\": {:?}}}",
            json(&row.title),
            json(figure.name),
            json(figure.unit),
            json(&figure.command),
            median(&figure.samples),
            figure.samples
        )
    };
    row.figures.iter().map(figure).collect()
}

fn family_json(family: &Family) -> Vec<String> {
    let curve = |curve: &Curve| {
        let points: Vec<String> = curve.points.iter().map(|point| {
            let (size, median) = (point.size, median(&point.samples));
            let (command, samples) = (json(&point.command), &point.samples);
            format!("\n      {{\"size\": {size}, \"median\": {median}, \"command\": {command}, \"samples\": {samples:?}}}")
        }).collect();
        format!(
            "    {{\"family\": {}, \"unit\": {}, \"name\": {}, \"points\": [{}]}}",
            json(family.section),
            json(family.unit),
            json(curve.name),
            points.join(",")
        )
    };
    family.curves.iter().map(curve).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sm::contests::contests;
    use crate::bench::sm::side::Effort;

    fn measured(id: &str, ours: f64, peer: f64) -> Measured {
        let contest = contests(Effort::FULL).into_iter().find(|contest| contest.id == id).unwrap();
        let peers = vec![vec![peer]; contest.peers.len()];
        Measured { contest, ours: vec![ours], peers }
    }

    #[test]
    fn a_mark_says_what_is_met() {
        assert!(promise(&measured("S1", 0.2, 0.1)).ends_with(" -"));
        assert!(promise(&measured("S1", 0.13, 0.1)).ends_with(" +"));
        assert!(promise(&measured("S1", 0.1, 0.1)).ends_with(" ++"));
        // Nothing is hoped for beyond the promise.
        assert!(promise(&measured("S9", 0.1, 0.0)).ends_with(" +"));
    }

    #[test]
    fn what_fails_is_said_at_the_end() {
        let mut failures = Failures::default();
        assert_eq!(failures.keep(Ok(7)), Some(7));
        assert_eq!(failures.keep::<u32>(Err("S1: gone\nwith a core".to_owned())), None);
        assert_eq!(failures.into_result(), Err("not measured:\nS1: gone".to_owned()));
        assert_eq!(Failures::default().into_result(), Ok(()));
    }

    #[test]
    fn small_figures_keep_their_digits() {
        assert_eq!([1234.6, 12.34, 1.234, 0.1234, 0.01234].map(rounded), ["1235", "12.3", "1.23", "0.123", "0.01234"]);
    }

    #[test]
    fn the_json_is_balanced_and_has_all_samples() {
        let found = Found { contests: vec![measured("S5", 3.5, 7.25), measured("S9", 0.5, 0.0)], ..Found::default() };
        let text = found.json();
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert_eq!(text.matches('[').count(), text.matches(']').count());
        assert!(text.contains("\"samples\": [3.5]") && text.matches("\"samples\": [7.25]").count() == 2, "{text}");
        assert!(text.contains("\"peer\": null") && text.contains("UCX_TLS=posix,cma,self ucx_perftest -t tag_bw"));
    }
}
