//! Writes the JSON result files of all benches except `instructions`, with facts about the machine.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use dapl_test::stage::{Stage, workspace};
use serde_json::{Map, Value};

use crate::Result;

/// Directory of the results, relative to the target directory.
pub(super) const DIRECTORY: &str = "bench";

/// System settings that affect figures, and their files in /sys and /proc.
const SETTINGS: [(&str, &str); 6] = [
    ("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("tcp_congestion_control", "/proc/sys/net/ipv4/tcp_congestion_control"),
    ("rmem_max", "/proc/sys/net/core/rmem_max"),
    ("wmem_max", "/proc/sys/net/core/wmem_max"),
    ("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
    ("huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
];

/// The packages of sm's peers.
pub(super) const PEERS: [&str; 2] = ["ucx-utils", "libfabric-bin"];

/// Writes a result file and prints its path.
pub(super) fn save(stage: &Stage, name: &str, text: &str) -> Result {
    let path = directory(stage).join(name);
    let written = fs::create_dir_all(directory(stage)).and_then(|()| fs::write(&path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn directory(stage: &Stage) -> PathBuf {
    stage.root.ancestors().nth(2).expect("the stage is two levels below the target directory").join(DIRECTORY)
}

/// Prints a warning if the machine was busy before the run.
pub(super) fn warn(load: f64) {
    if is_busy(load) {
        println!("other programs used the machine when the run began (load {load}): do not compare these figures");
    }
}

/// Whether this load means that other programs used the machine.
pub(super) fn is_busy(load: f64) -> bool {
    load > 1.0
}

/// Facts about the machine, and the versions of these packages.
pub(super) fn machine(load: f64, packages: &[&str]) -> Map<String, Value> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let facts = [
        ("date", output_of("date", &["-u", "+%F %H:%M UTC"]).into()),
        ("commit", output_of("git", &["describe", "--always", "--dirty", "--abbrev=10"]).into()),
        ("cpu", model.trim_start_matches([' ', '\t', ':']).into()),
        ("processors", processors.into()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().into()),
        ("load_before", load.into()),
    ];
    let settings = SETTINGS.iter().map(|(name, path)| (*name, Value::from(read(path).trim())));
    // A setting that this machine lacks is omitted.
    let settings = settings.filter(|(_, value)| value != "");
    let versions = packages.iter().map(|package| (*package, version(package).into()));
    facts.into_iter().chain(settings).chain(versions).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Load average of the last minute, read before the bench adds load.
pub(super) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn version(package: &str) -> String {
    output_of("dpkg-query", &["-W", "-f", "${Version}", package])
}

/// Output of a system program, run in the repository; empty if the program is missing.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(workspace()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Formats JSON as the text of a file.
pub(super) fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}
