//! What all benches leave: JSON with the facts of the machine, and where it lies.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use dapl_test::stage::Stage;

use crate::Result;

/// The packages of sm's peers.
pub(super) const PEERS: [&str; 2] = ["ucx-utils", "libfabric-bin"];

/// Writes a file of the target directory's `bench/`, and says so.
pub(super) fn save(stage: &Stage, name: &str, text: &str) -> Result {
    let path = directory(stage).join(name);
    let written = fs::create_dir_all(directory(stage)).and_then(|()| fs::write(&path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn directory(stage: &Stage) -> PathBuf {
    stage.root.ancestors().nth(2).expect("a stage lies in the target directory").join("bench")
}

/// Says so if others used the machine.
pub(super) fn warn(load: f64) {
    if load > 1.0 {
        println!("the machine was busy before (load {load}): these figures say little");
    }
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
