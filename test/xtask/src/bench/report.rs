//! What a bench leaves: a table to read, and JSON to compare, with the facts of the machine.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Contest, Measured, median};
use crate::Result;

/// The packages of sm's peers.
pub(super) const PEERS: [&str; 2] = ["ucx-utils", "libfabric-bin"];

/// Prints the table.
pub(super) fn print(measured: &[Measured<'_>], load: f64) {
    println!("\n{:4} {:24} {:>12} {:>12} {:>7}  {:9} now", "", "", "ours", "peer", "ratio", "target");
    for one in measured {
        let contest = &one.contest;
        let figure = |samples: &[f64]| format!("{:.3} {}", median(samples), contest.unit);
        let (ours, peer, ratio) = (figure(&one.ours), figure(&one.peer), format!("{:.2}x", one.ratio()));
        let (must, floor) = (bound(contest, contest.must), contest.floor.map_or("-".to_owned(), |f| bound(contest, f)));
        println!("{:4} {:24} {ours:>12} {peer:>12} {ratio:>7}  {must:9} {floor}", contest.id, contest.title);
    }
    for one in measured {
        println!("{:4} beside {}", one.contest.id, one.contest.peer_name);
    }
    if load > 1.0 {
        println!("the machine was busy before (load {load}): these figures say little");
    }
}

fn bound(contest: &Contest<'_>, ratio: f64) -> String {
    format!("{} {ratio}x", if contest.less_is_better { "<=" } else { ">=" })
}

/// Writes the JSON.
pub(super) fn write(measured: &[Measured<'_>], load: f64, path: &Path) -> Result {
    let contests: Vec<String> = measured.iter().map(contest).collect();
    let text = format!(
        "{{\n  \"machine\": {{{}}},\n  \"contests\": [\n{}\n  ]\n}}\n",
        machine(load, &PEERS),
        contests.join(",\n")
    );
    let written = fs::create_dir_all(path.parent().expect("it is a file below a directory"));
    written.and_then(|()| fs::write(path, text)).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn contest(one: &Measured<'_>) -> String {
    let Contest { id, title, unit, less_is_better, must, floor, peer_name, .. } = &one.contest;
    let floor = floor.map_or("null".to_owned(), |floor| floor.to_string());
    let (ours, peer) = (median(&one.ours), median(&one.peer));
    format!(
        "    {{\"id\": {}, \"title\": {}, \"unit\": {}, \"less_is_better\": {less_is_better}, \"peer_name\": {},\n     \
         \"ours\": {ours}, \"peer\": {peer}, \"ratio\": {:.4}, \"must\": {must}, \"floor\": {floor},\n     \
         \"ours_samples\": {:?}, \"peer_samples\": {:?}}}",
        json(id),
        json(title),
        json(unit),
        json(peer_name),
        one.ratio(),
        one.ours,
        one.peer
    )
}

/// The facts of the machine, and the versions of packages, as fields of JSON.
pub(super) fn machine(load: f64, packages: &[&str]) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let facts = format!(
        "\"cpu\": {}, \"processors\": {processors}, \"kernel\": {}, \"load_before\": {load}",
        json(model.trim_start_matches([' ', '\t', ':'])),
        json(read("/proc/sys/kernel/osrelease").trim())
    );
    packages.iter().fold(facts, |facts, package| format!("{facts}, {}: {}", json(package), json(&version(package))))
}

/// The average of the last minute, before the bench adds to it.
pub(super) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn version(package: &str) -> String {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// A string of JSON. Nothing here has control characters; what is odd becomes a question mark.
pub(super) fn json(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '?' });
    format!("\"{}\"", plain.collect::<String>())
}
