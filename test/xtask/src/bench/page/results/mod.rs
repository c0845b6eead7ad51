//! Reads the benches' JSON files for the page. Only `of_files` does I/O.
//!
//! For a file that cannot be parsed, the page shows the reason, such as a missing field, and no figures.
#![forbid(unsafe_code)]

mod verbs;

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::Result;
use crate::bench::chart::HorizontalAxis;
use crate::bench::found::order;
use crate::bench::median;
use crate::bench::side::CommandLines;

/// The providers, in the order of the page.
pub(super) const PROVIDERS: [&str; 3] = ["sm", "usnic", "verbs"];

/// All results of one provider.
pub(super) struct Section {
    pub(super) provider: &'static str,
    /// Reason why all or some figures of this provider are missing.
    pub(super) trouble: Option<String>,
    pub(super) findings: Option<ResultFile>,
}

/// Content of a result file.
#[derive(Debug)]
pub(super) struct ResultFile {
    /// Facts about the machine: name and value.
    pub(super) facts: Vec<(String, String)>,
    pub(super) is_quick: bool,
    pub(super) contests: Vec<Contest>,
    pub(super) charts: Vec<Chart>,
    pub(super) not_measured: Vec<String>,
}

/// A figure with the figures of its peers. A ratio is always this project's figure divided by the peer's.
#[derive(Debug)]
pub(super) struct Contest {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) unit: String,
    /// Network between server and client; `None` for verbs, whose programs run in one guest.
    pub(super) place: Option<String>,
    pub(super) ours: Measure,
    /// The peers and their figures; empty for a target without a peer.
    pub(super) peers: Vec<(String, Measure)>,
    /// The best peer's figure, and the ratio to it.
    pub(super) against: Option<(f64, f64)>,
    pub(super) less_is_better: bool,
    pub(super) target: Option<Bound>,
    /// Stretch target: stricter than the target.
    pub(super) stretch: Option<Bound>,
}

/// A target value, as upper or lower bound.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) words: String,
    pub(super) value: f64,
    pub(super) is_met: bool,
}

/// A figure: samples of all runs, and the commands of server and client.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub(super) samples: Vec<f64>,
    pub(super) ends: CommandLines,
}

/// A chart with lines over a variable.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) section: String,
    pub(super) title: String,
    pub(super) up: String,
    pub(super) unit: String,
    pub(super) across: HorizontalAxis,
    pub(super) lines: Vec<MeasuredLine>,
}

/// A line of a chart: its name and, for each size or count, the figure.
#[derive(Clone, Debug)]
pub(super) struct MeasuredLine {
    pub(super) name: String,
    pub(super) points: Vec<(u32, Measure)>,
}

impl Measure {
    pub(super) fn median(&self) -> f64 {
        median(&self.samples)
    }

    /// Lowest and highest sample.
    pub(super) fn spread(&self) -> (f64, f64) {
        self.samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| (low.min(*one), high.max(*one)))
    }
}

impl Contest {
    /// Whether a target exists and was missed.
    pub(super) fn is_missed(&self) -> bool {
        self.target.as_ref().is_some_and(|target| !target.is_met)
    }
}

impl Chart {
    /// Returns the sizes at which at least one line has a point.
    pub(super) fn places(&self) -> Vec<u32> {
        let mut places: Vec<u32> = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// Reads each provider's results in a directory. For failed benches, only files written since the start of the run
/// are used.
pub(super) fn of_files(directory: &Path, failed: &[Failed]) -> Vec<Section> {
    PROVIDERS.iter().map(|provider| section(directory, provider, failed)).collect()
}

/// A bench that failed in whole or in part.
pub(super) struct Failed {
    pub(super) provider: &'static str,
    pub(super) reason: String,
    /// Whether the failed bench has nevertheless written its file.
    pub(super) has_written: bool,
}

fn section(directory: &Path, provider: &'static str, failed: &[Failed]) -> Section {
    let failure = failed.iter().find(|failed| failed.provider == provider);
    let mut trouble = failure.map(|failed| format!("The bench failed: {}", failed.reason));
    if failure.is_some_and(|failed| !failed.has_written) {
        return Section { provider, trouble, findings: None };
    }
    let path = directory.join(format!("{provider}.json"));
    let findings = match fs::read_to_string(&path) {
        Ok(text) => parse(&text).map_err(|reason| {
            let again = format!("cargo xtask bench {provider} writes it anew");
            format!("{} is not understood: {reason}; {again}", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("Not measured: there is no {}; run cargo xtask bench {provider}", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    let findings = findings.map_err(|reason| trouble = Some(reason)).ok();
    Section { provider, trouble, findings }
}

/// Reads one provider's file.
pub(super) fn parse(text: &str) -> Result<ResultFile> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let contests: Vec<Value> = field(&file, "contests")?;
    // The file of verbs has another format: for each operation the times of several programs.
    let mut contests: Vec<Contest> = match contests.iter().any(|contest| contest.get("over_reference").is_some()) {
        true => contests.iter().map(verbs::contests).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(),
        false => contests.iter().map(contest).collect::<Result<_>>()?,
    };
    contests.sort_by_key(|contest| order(&contest.id));
    let mut charts = Vec::new();
    for line in field::<Vec<Value>>(&file, "curves")? {
        let points = field::<Vec<Value>>(&line, "points")?.iter().map(point).collect::<Result<_>>()?;
        add(&mut charts, &line, points)?;
    }
    for row in field::<Option<Vec<Value>>>(&file, "scale")?.unwrap_or_default() {
        let point = point(&row)?;
        add(&mut charts, &row, vec![point])?;
    }
    let (facts, is_quick, not_measured) = (facts(&file)?, field(&file, "quick")?, field(&file, "not_measured")?);
    Ok(ResultFile { facts, is_quick, contests, charts, not_measured })
}

/// Returns the facts about the machine, the most relevant first.
fn facts(file: &Value) -> Result<Vec<(String, String)>> {
    const FIRST: [&str; 6] = ["date", "commit", "cpu", "processors", "kernel", "load_before"];
    let machine: Map<String, Value> = field(file, "machine")?;
    let mut names: Vec<&str> = FIRST.into_iter().filter(|name| machine.contains_key(*name)).collect();
    names.extend(machine.keys().map(String::as_str).filter(|name| !FIRST.contains(name)));
    let value = |name: &str| machine[name].as_str().map_or_else(|| machine[name].to_string(), str::to_owned);
    Ok(names.into_iter().map(|name| (name.replace('_', " "), value(name))).collect())
}

fn contest(contest: &Value) -> Result<Contest> {
    let id: String = field(contest, "id")?;
    let read = || -> Result<Contest> {
        let bound = |value: &str, words: &str, met: &str| -> Result<Option<Bound>> {
            let bound = |value| Ok(Bound { value, words: field(contest, words)?, is_met: field(contest, met)? });
            field::<Option<f64>>(contest, value)?.map(bound).transpose()
        };
        let peer = |peer: &Value| Ok((field(peer, "program")?, measure(peer)?));
        let against = |peer| Ok::<_, String>((peer, field(contest, "figure")?));
        Ok(Contest {
            id: id.clone(),
            title: field(contest, "title")?,
            unit: field(contest, "unit")?,
            place: Some(field(contest, "where")?),
            ours: measure(contest)?,
            peers: field::<Vec<Value>>(contest, "peers")?.iter().map(peer).collect::<Result<_>>()?,
            against: field::<Option<f64>>(contest, "peer")?.map(against).transpose()?,
            less_is_better: field(contest, "less_is_better")?,
            target: bound("must", "promise", "met")?,
            stretch: bound("stretch", "hope", "met_stretch")?,
        })
    };
    read().map_err(|reason| format!("{id}: {reason}"))
}

/// Adds points to the line and the chart that `value` names.
fn add(charts: &mut Vec<Chart>, value: &Value, points: Vec<(u32, Measure)>) -> Result {
    let section: String = field(value, "section")?;
    let at = match charts.iter().position(|chart| chart.section == section) {
        Some(at) => at,
        None => {
            let across: String = field(value, "across")?;
            charts.push(Chart {
                title: field(value, "title")?,
                up: field(value, "up")?,
                unit: field(value, "unit")?,
                across: HorizontalAxis::called(&across)
                    .ok_or_else(|| format!("unknown quantity \"{across}\" of a horizontal axis"))?,
                lines: Vec::new(),
                section,
            });
            charts.len() - 1
        }
    };
    let (name, lines): (String, _) = (field(value, "name")?, &mut charts[at].lines);
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.extend(points),
        None => lines.push(MeasuredLine { name, points }),
    }
    Ok(())
}

fn point(value: &Value) -> Result<(u32, Measure)> {
    Ok((field(value, "at")?, measure(value)?))
}

fn measure(value: &Value) -> Result<Measure> {
    let samples: Vec<f64> = field(value, "samples")?;
    if samples.is_empty() {
        return Err("the list of samples of a figure is empty".to_owned());
    }
    Ok(Measure { samples, ends: CommandLines { server: field(value, "server")?, client: field(value, "client")? } })
}

/// Parses a field. An absent field counts as null.
fn field<T: DeserializeOwned>(value: &Value, name: &str) -> Result<T> {
    T::deserialize(&value[name]).map_err(|error| format!("\"{name}\": {error}"))
}
