//! Runs the selected measurements of the bench `sm` or `usnic`, and outputs the results: printed tables, JSON and a
//! chart.
#![forbid(unsafe_code)]

use dapl_test::stage::Stage;
use serde_json::{Value, json};

use super::contest::{Contest, Measured};
use super::curve::{self, Family, Point};
use super::ours::{Adapter, Perf};
use super::report::{load, machine, pretty, save, warn};
use super::scale::{self, Row};
use super::side::{CommandLines, Effort, Side};
use super::{chart, median};
use crate::Result;
use crate::cli::Selection;

/// A bench: its name, which its files also have, its adapter, and the Debian packages of its peers.
pub(super) struct Bench {
    pub(super) name: &'static str,
    pub(super) adapter: &'static Adapter,
    pub(super) packages: &'static [&'static str],
    /// Text below the charts.
    pub(super) caption: &'static str,
}

/// All contests, scale measurements and curves of the bench.
pub(super) struct Lists {
    pub(super) contests: Vec<Contest>,
    pub(super) plans: Vec<scale::Plan>,
    pub(super) families: Vec<curve::Plan>,
}

#[derive(Debug, Eq, PartialEq)]
pub(super) struct SelectedMeasurements<'a> {
    pub(super) is_quick: bool,
    /// Names of the selected measurements; empty selects all.
    pub(super) names: &'a [String],
}

/// All results of a run.
#[derive(Default)]
struct BenchResults {
    /// Load of the machine before the run.
    load: f64,
    is_quick: bool,
    contests: Vec<Measured>,
    rows: Vec<Row>,
    families: Vec<Family>,
    failures: Failures,
}

impl Lists {
    fn has(&self, name: &str) -> bool {
        self.contests.iter().any(|contest| contest.id == name)
            || self.plans.iter().any(|plan| plan.section.name == name)
            || self.families.iter().any(|plan| plan.section == name)
    }
}

impl<'a> SelectedMeasurements<'a> {
    /// Parses the selection. Fails if a name is in no list.
    pub(super) fn new(bench: &str, selection: &'a Selection, lists: &Lists) -> Result<Self> {
        match selection.names.iter().find(|name| !lists.has(name)) {
            Some(other) => {
                Err(format!("bench {bench}: unknown measurement {other}; see cargo xtask help bench {bench}"))
            }
            None => Ok(SelectedMeasurements { is_quick: selection.quick, names: &selection.names }),
        }
    }

    pub(super) fn effort(&self) -> Effort {
        if self.is_quick { Effort::QUICK } else { Effort::FULL }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// Measures the selection, prints and writes the results.
pub(super) fn run(
    bench: &Bench,
    perf: &Perf,
    stage: &Stage,
    wanted: &SelectedMeasurements<'_>,
    lists: Lists,
) -> Result {
    let effort = wanted.effort();
    let mut found = BenchResults { load: load(), is_quick: wanted.is_quick, ..BenchResults::default() };
    let contests = lists.contests.into_iter().filter(|contest| wanted.has(contest.id));
    found.contests = contests.filter_map(|contest| found.failures.keep(contest.measure(perf, effort))).collect();
    found.contests.sort_by_key(|measured| order(measured.contest.id));
    let plans = lists.plans.into_iter().filter(|plan| wanted.has(plan.section.name));
    found.rows = plans.filter_map(|plan| found.failures.keep(plan.measure(perf, effort))).collect();
    let families = lists.families.into_iter().filter(|plan| wanted.has(plan.section));
    found.families = families.filter_map(|plan| found.failures.keep(plan.measure(perf, effort))).collect();
    found.print();
    found.write(bench, stage)?;
    found.failures.into_result()
}

/// Sort key of a contest in tables: numbered targets first, by letter and number, then the other contests in list
/// order.
pub(super) fn order(id: &str) -> (bool, String, u32) {
    let digits = id.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    match digits.parse() {
        Ok(number) => (false, id[..id.len() - digits.len()].to_owned(), number),
        Err(_) => (true, String::new(), 0),
    }
}

/// Reasons of failed measurements. After a failure the other measurements continue.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.inspect_err(|reason| eprintln!("not measured: {reason}")).map_err(|reason| self.0.push(reason)).ok()
    }

    fn into_result(self) -> Result {
        let reasons: Vec<&str> = self.0.iter().map(|reason| reason.lines().next().unwrap_or_default()).collect();
        if reasons.is_empty() { Ok(()) } else { Err(format!("not measured:\n{}", reasons.join("\n"))) }
    }
}

impl BenchResults {
    /// Prints the tables of contests, rows and curves, and warns of figures that are not for comparison.
    fn print(&self) {
        if !self.contests.is_empty() {
            println!("\n{}", heading());
            self.contests.iter().for_each(|measured| println!("{}", line(measured)));
            println!(
                "\n+ target met, ++ stretch target met, - target missed; ratios: this project's figure over the peer's"
            );
            for contest in self.contests.iter().map(|measured| &measured.contest) {
                let peers: Vec<String> = contest.peers.iter().map(Side::line).collect();
                let best = if peers.len() > 1 { "the best, in each round, of " } else { "" };
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
                format!("{:>12} {:<4} {:11}", rounded(median(&figure.samples)), figure.answer.unit, figure.answer.name)
            });
            println!("{:34}{}", row.title, figures.collect::<String>().trim_end());
        }
        self.families.iter().for_each(print_family);
        if self.is_quick {
            println!("\n--quick: one round and few operations; not for comparison");
        }
        warn(self.load);
    }

    /// Writes the JSON file, and the chart if a curve was measured.
    fn write(&self, bench: &Bench, stage: &Stage) -> Result {
        save(stage, &format!("{}.json", bench.name), &self.json(bench))?;
        if self.families.is_empty() {
            return Ok(());
        }
        let panels: Vec<_> = self.families.iter().map(Family::panel).collect();
        save(stage, &format!("{}.svg", bench.name), &chart::svg(&panels, bench.caption))
    }

    fn json(&self, bench: &Bench) -> String {
        let contests = self.contests.iter().map(|measured| contest_json(measured, bench.adapter.name));
        pretty(&json!({
            "machine": machine(self.load, bench.packages),
            "quick": self.is_quick,
            "contests": contests.collect::<Value>(),
            "scale": self.rows.iter().flat_map(row_json).collect::<Value>(),
            "curves": self.families.iter().flat_map(family_json).collect::<Value>(),
            "not_measured": self.failures.0,
        }))
    }
}

fn heading() -> String {
    format!("{:3} {:33}{:>15}{:>15}{:>11}  {:9} {:10}", "", "", "ours", "peer", "ratio", "target", "stretch")
}

/// Formats a contest as a line of the table.
fn line(measured: &Measured) -> String {
    let contest = &measured.contest;
    let figure = |value: f64| format!("{} {}", rounded(value), contest.shown.unit());
    let peer = measured.peer();
    let is_stretched = contest.stretch.is_some_and(|stretch| measured.meets(stretch));
    let mark = match (contest.must.map(|must| measured.meets(must)), is_stretched) {
        (Some(true), true) => "++",
        (Some(true), false) => "+",
        (Some(false), _) => "-",
        (None, _) => "",
    };
    let bound = |value: Option<f64>| value.map_or("-".to_owned(), |value| contest.bound(value));
    format!(
        "{:3} {:33}{:>15}{:>15}{:>11}  {:9} {:10}{mark}",
        contest.id,
        contest.title,
        figure(measured.ours()),
        peer.map_or("-".to_owned(), figure),
        peer.map_or(String::new(), |_| format!("{}x", rounded(measured.figure()))),
        bound(contest.must),
        bound(contest.stretch),
    )
}

/// Prints a family as a table: a row for each size, a column for each line.
pub(super) fn print_family(family: &Family) {
    println!("\n{}, {}", family.title, family.unit);
    print!("{:>12}", family.across.unit());
    family.curves.iter().for_each(|curve| print!("{:>16}", curve.name));
    println!();
    let mut sizes: Vec<u32> = family.curves.iter().flat_map(|curve| &curve.points).map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        print!("{size:>12}");
        for curve in &family.curves {
            let point = curve.points.iter().find(|point| point.size == size);
            print!("{:>16}", point.map_or("-".to_owned(), |point| rounded(median(&point.samples))));
        }
        println!();
    }
}

/// Formats a number with three or more significant digits, but at most five decimals.
pub(super) fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.1 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

fn contest_json(measured: &Measured, adapter: &str) -> Value {
    let contest = &measured.contest;
    let met = |bound: Option<f64>| bound.map(|bound| measured.meets(bound));
    let words = |bound: Option<f64>| bound.map(|bound| contest.bound(bound));
    let peer = |(peer, samples): (&Side, &Vec<f64>)| {
        let CommandLines { server, client } = peer.ends(adapter, contest.network_kind);
        json!({"program": peer.program(), "server": server, "client": client, "samples": samples})
    };
    let CommandLines { server, client } = contest.ours.ends(adapter, contest.network_kind);
    json!({
        "id": contest.id,
        "title": contest.title,
        "unit": contest.shown.unit(),
        "less_is_better": contest.shown.less_is_better(),
        "must": contest.must,
        "stretch": contest.stretch,
        "met": met(contest.must),
        "met_stretch": met(contest.stretch),
        "promise": words(contest.must),
        "hope": words(contest.stretch),
        "where": contest.network_kind.name(),
        "ours": measured.ours(),
        "peer": measured.peer(),
        "figure": measured.figure(),
        "server": server,
        "client": client,
        "samples": measured.ours,
        "peers": contest.peers.iter().zip(&measured.peers).map(peer).collect::<Value>(),
    })
}

fn row_json(row: &Row) -> impl Iterator<Item = Value> {
    row.figures.iter().map(|figure| {
        json!({
            "section": row.section.name,
            "title": row.section.title,
            "up": row.section.up,
            "across": row.section.across.name(),
            "row": row.title,
            "what": figure.answer.name,
            "unit": figure.answer.unit,
            "name": figure.answer.line,
            "at": figure.count,
            "server": figure.ends.server,
            "client": figure.ends.client,
            "median": median(&figure.samples),
            "samples": figure.samples,
        })
    })
}

/// The lines of a family as JSON objects.
pub(super) fn family_json(family: &Family) -> impl Iterator<Item = Value> {
    let point = |point: &Point| {
        let (CommandLines { server, client }, median) = (&point.ends, median(&point.samples));
        json!({"at": point.size, "median": median, "server": server, "client": client, "samples": point.samples})
    };
    family.curves.iter().map(move |curve| {
        json!({
            "section": family.section,
            "title": family.title,
            "up": family.up,
            "across": family.across.name(),
            "unit": family.unit,
            "name": curve.name,
            "points": curve.points.iter().map(point).collect::<Value>(),
        })
    })
}

#[cfg(test)]
pub(super) mod example;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sm::{BENCH, lists};

    fn measured(id: &str, ours: f64, peer: f64) -> Measured {
        let mut contest = lists(Effort::FULL).contests.into_iter().find(|contest| contest.id == id).unwrap();
        if !contest.peers.is_empty() {
            // Fixed bounds, so that the test does not depend on the bench's targets.
            (contest.must, contest.stretch) = (Some(1.5), Some(1.1));
        }
        let peers = vec![vec![peer]; contest.peers.len()];
        Measured { contest, ours: vec![ours], peers }
    }

    #[test]
    fn tables_begin_with_targets_in_numeric_order() {
        let mut ids = ["mpi", "V10", "S2", "busy", "V2", "S1", "U7"];
        ids.sort_by_key(|id| order(id));
        assert_eq!(ids, ["S1", "S2", "U7", "V2", "V10", "mpi", "busy"]);
    }

    #[test]
    fn bench_of_sm_selects_measurements_by_name() {
        let select =
            |quick, names: &[&str]| Selection { quick, names: names.iter().map(|name| (*name).into()).collect() };
        let (some, all) = (select(true, &["S5", "latency"]), select(false, &[]));
        let parse = |selection| SelectedMeasurements::new("sm", selection, &lists(Effort::FULL));
        let wanted = parse(&some).unwrap();
        assert_eq!(wanted, SelectedMeasurements { is_quick: true, names: &some.names });
        assert!(wanted.has("S5") && !wanted.has("S6") && !wanted.has("memory"));
        assert!(parse(&all).unwrap().has("S9"));
        assert!(parse(&select(false, &["S0"])).is_err());
    }

    #[test]
    fn bench_table_marks_targets_that_are_met() {
        assert!(line(&measured("S1", 0.2, 0.1)).ends_with(" -"));
        assert!(line(&measured("S1", 0.13, 0.1)).ends_with(" +"));
        assert!(line(&measured("S1", 0.1, 0.1)).ends_with(" ++"));
        let mut open = measured("S1", 0.2, 0.1);
        open.contest.must = None;
        assert!(line(&open).trim_end().ends_with("<= 1.1x"));
        // A figure without a stretch target.
        assert!(line(&measured("S9", 0.1, 0.0)).ends_with(" +"));
    }

    #[test]
    fn failed_measurements_are_listed_at_the_end() {
        let mut failures = Failures::default();
        assert_eq!(failures.keep(Ok(7)), Some(7));
        assert_eq!(failures.keep::<u32>(Err("S1: gone\nwith a core".to_owned())), None);
        assert_eq!(failures.into_result(), Err("not measured:\nS1: gone".to_owned()));
        assert_eq!(Failures::default().into_result(), Ok(()));
    }

    #[test]
    fn figures_are_rounded_to_three_digits() {
        assert_eq!([1234.6, 12.34, 1.234, 0.1234, 0.01234].map(rounded), ["1235", "12.3", "1.23", "0.123", "0.01234"]);
    }

    #[test]
    fn bench_json_has_all_samples() {
        let found = BenchResults {
            contests: vec![measured("S5", 3.5, 7.25), measured("S9", 0.5, 0.0)],
            ..BenchResults::default()
        };
        let text = found.json(&BENCH);
        let file: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["contests"][0]["samples"], json!([3.5]), "{text}");
        assert_eq!(
            (&file["contests"][0]["peers"][1]["samples"], &file["contests"][1]["peer"]),
            (&json!([7.25]), &Value::Null)
        );
        assert!(text.contains("UCX_TLS=posix,cma,self ucx_perftest localhost -t tag_bw"));
    }
}
