//! The programs that the verbs bench measures: their command lines for an operation, and parsers of their output.
//!
//! A changed output format is reported as an error: columns and fields are found by name, dapltest's figure by the
//! words around it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::stage::{Stage, workspace};

use super::contest::{Operation, YieldPolicy};
use crate::Result;
use crate::bench::side::CommandLines;
use crate::guest::{Clock, Guest, GuestNetwork};
use crate::json::field;
use crate::reference::{ADAPTER, Reference};

/// Time limit, longer than any run.
const LIMIT: Duration = Duration::from_secs(300);
/// Port of perftest's server.
const PERFTEST_PORT: &str = "tcp:18515";
/// This project's adapter on the guest's device.
const VERBS_ADAPTER: &str = "verbs0";

/// The measured implementations.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Side {
    Ours,
    Perftest,
    /// `verbs_bench` over the reference's libraries.
    Reference,
    /// The reference's own test program.
    Dapltest,
}

impl Side {
    pub(super) const ALL: [Side; 4] = [Side::Ours, Side::Perftest, Side::Reference, Side::Dapltest];

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Perftest => "perftest",
            Side::Reference => "reference",
            Side::Dapltest => "dapltest",
        }
    }

    /// Name in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Side::Ours => "dapl-rs",
            Side::Perftest => "perftest",
            Side::Reference => "2.0 reference",
            Side::Dapltest => "2.0 dapltest",
        }
    }

    pub(super) fn can(self, operation: &Operation) -> bool {
        match self {
            Side::Ours | Side::Reference => true,
            Side::Perftest => !operation.perftest.is_empty(),
            Side::Dapltest => !operation.dapltest.is_empty(),
        }
    }
}

/// Result of one run.
pub(super) struct Sample {
    /// Time per operation in microseconds, by the guest's clock.
    pub(super) usec: f64,
    /// Processor time of the whole run in microseconds, of server and client. `None` unless both programs ended with
    /// the run.
    pub(super) processor: Option<(f64, f64)>,
}

pub(super) struct Sides<'a> {
    stage: &'a Stage,
    reference: &'a Reference,
    clock: Clock,
    conf: PathBuf,
}

impl<'a> Sides<'a> {
    /// Compiles the C programs, `verbs_bench` also with the reference's library. Writes the dat.conf of this project's
    /// adapter.
    pub(super) fn new(stage: &'a Stage, reference: &'a Reference, clock: Clock) -> Result<Self> {
        let source = |name: &str| workspace().join("test/c").join(name);
        let sides = Sides { stage, reference, clock, conf: stage.root.join("etc/bench-verbs.conf") };
        stage.compile(&sides.program("verbs_bench"), &[&source("verbs_bench.c")], &["-O2"]);
        stage.compile(&sides.program("duet"), &[&source("duet.c")], &["-O2"]);
        stage.compile(&sides.program("turns.so"), &[&source("turns.c")], &["-O2", "-shared", "-fPIC", "-ldl"]);
        reference.compile(&sides.program("verbs_bench20"), &source("verbs_bench.c"))?;
        let line = format!("{VERBS_ADAPTER} u1.2 threadsafe default libdaplverbs.so.1 dapl.1.2 \"d0 0\" \"\"\n");
        fs::write(&sides.conf, line).map_err(|error| format!("{}: {error}", sides.conf.display()))?;
        Ok(sides)
    }

    /// Sets short time slices in a guest, because a program that polls memory uses its whole time slice.
    pub(super) fn prepare(&self, guest: &mut Guest) -> Result {
        output_of(guest, "echo 4 >/proc/sys/kernel/sched_rr_timeslice_ms").map(drop)
    }

    /// Runs server and client once in the guest.
    pub(super) fn run(&self, side: Side, operation: &Operation, count: u32, guest: &mut Guest) -> Result<Sample> {
        let mut text = String::new();
        let command = self.command(side, operation, count);
        let status = guest.run(&command, LIMIT, |line| text += &format!("{line}\n"))?;
        if status != 0 {
            return Err(format!("the programs ended with status {status}\n{text}"));
        }
        let usec = match side {
            Side::Ours | Side::Reference => field(&text, "usec"),
            Side::Perftest => perftest_usec(&text),
            Side::Dapltest => dapltest_usec(&text),
        };
        let usec = usec.ok_or_else(|| format!("the output of {} has no figure:\n{text}", side.title()))?;
        let processor = field(&text, "server_cpu").zip(field(&text, "client_cpu"));
        Ok(Sample { usec, processor: processor.filter(|_| side != Side::Dapltest) })
    }

    /// Command lines of server and client, in the guest.
    pub(super) fn ends(&self, side: Side, operation: &Operation) -> CommandLines {
        ends(&self.command(side, operation, operation.count))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.stage.root.join("bin").join(name)
    }

    fn command(&self, side: Side, operation: &Operation, count: u32) -> Command {
        let address = GuestNetwork::Alone.address();
        match side {
            Side::Ours => {
                let program = self.program("verbs_bench");
                let mut command = self.duet(operation, "text:ready", &bench(&program, VERBS_ADAPTER, operation, count));
                command.env("LD_LIBRARY_PATH", &self.stage.lib).env("DAT_OVERRIDE", &self.conf);
                command
            }
            Side::Reference => {
                let program = self.program("verbs_bench20");
                let pair = bench(&program, ADAPTER, operation, count);
                self.over_reference(self.duet(operation, "text:ready", &pair))
            }
            Side::Perftest => {
                let mut words: Vec<String> = operation.perftest.iter().map(|word| (*word).to_owned()).collect();
                words.extend(["-d", "rxe0", "-F", "-s"].map(str::to_owned));
                words.extend([operation.size.to_string(), "-n".to_owned(), count.to_string()]);
                if operation.depth > 0 {
                    words.extend(["-t".to_owned(), operation.depth.to_string()]);
                }
                let server: Vec<OsString> = words.iter().map(OsString::from).collect();
                let client = server.iter().cloned().chain([address.into()]).collect();
                self.duet(operation, PERFTEST_PORT, &[server, client])
            }
            Side::Dapltest => {
                let program = self.reference.dapltest().display().to_string();
                let server = [&*program, "-T", "S", "-D", ADAPTER].map(OsString::from).to_vec();
                let to = format!("-D {ADAPTER} -s {address}");
                let (what, size, depth) = (operation.dapltest, operation.size, operation.depth);
                // The server runs until a client stops it by `-T Q`.
                let script = format!(
                    "'{program}' -T P {to} -i {count} -p {depth} -m p {what} {size} 1 && '{program}' -T Q {to} >&2"
                );
                let client = ["sh", "-c", &script].map(OsString::from).to_vec();
                self.over_reference(self.duet(operation, "text:Service Point Ready", &[server, client]))
            }
        }
    }

    fn over_reference(&self, mut command: Command) -> Command {
        let over = self.reference.command(Path::new("true"));
        command.envs(over.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Command that runs a server and its client. With `Clock::Time` each has a processor; with `Clock::Instructions`
    /// both share the only processor.
    fn duet(&self, operation: &Operation, ready: &str, [server, client]: &[Vec<OsString>; 2]) -> Command {
        let mut command = match self.clock {
            Clock::Instructions if operation.turns != YieldPolicy::Never => {
                let mut command = Command::new("chrt");
                command.args(["-r", "1"]).arg(self.program("duet"));
                command.env("LD_PRELOAD", self.program("turns.so"));
                command
            }
            _ => Command::new(self.program("duet")),
        };
        if operation.turns == YieldPolicy::After {
            command.env("TURNS", "after");
        }
        command.arg(ready);
        command.args(pinned(self.clock, "0")).args(server).arg("--").args(pinned(self.clock, "1")).args(client);
        command
    }
}

/// Splits the command of a `duet` into the two command lines.
fn ends(command: &Command) -> CommandLines {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| plain(&word.to_string_lossy())).collect();
    let duet = words.iter().position(|word| word == "duet").expect("the arguments contain `duet`");
    let preloaded = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
    let preloaded = preloaded.map(|library| format!("LD_PRELOAD={}", plain(&library.to_string_lossy())));
    // The argument after `duet` is the condition for a ready server.
    let mut sides = words[duet + 2..].split(|word| word == "--");
    let mut end = || {
        let side = sides.next().unwrap_or_default();
        preloaded.iter().chain(&words[..duet]).chain(side).cloned().collect::<Vec<_>>().join(" ")
    };
    CommandLines { server: end(), client: end() }
}

/// Quotes an argument for a shell, and removes directory names.
fn plain(word: &str) -> String {
    let word = if word.starts_with('/') { word.rsplit('/').next().unwrap_or(word) } else { word };
    if word.contains([' ', ';', '\'', '&']) { format!("\"{word}\"") } else { word.to_owned() }
}

fn pinned(clock: Clock, processor: &'static str) -> Vec<&'static str> {
    match clock {
        Clock::Time => vec!["taskset", "-c", processor],
        Clock::Instructions => Vec::new(),
    }
}

/// Command lines of `verbs_bench` as server and as client.
fn bench(program: &Path, adapter: &str, operation: &Operation, count: u32) -> [Vec<OsString>; 2] {
    let numbers = [operation.size, count, operation.depth].map(|number| number.to_string());
    let end = |side: &[&str]| {
        let mut words = vec![program.as_os_str().to_owned()];
        words.extend(side.iter().chain(&["-P", adapter, operation.what]).map(OsString::from));
        words.extend(numbers.iter().filter(|number| *number != "0").map(OsString::from));
        words
    };
    [end(&["-s"]), end(&["-h", GuestNetwork::Alone.address()])]
}

/// Output of a shell command in the guest.
pub(super) fn output_of(guest: &mut Guest, text: &str) -> Result<String> {
    let mut output = String::new();
    let mut command = Command::new("sh");
    let status = guest.run(command.args(["-c", text]), LIMIT, |line| output += line)?;
    if status == 0 { Ok(output) } else { Err(format!("{text:?} ended with status {status}: {output}")) }
}

/// Parses a table with one row. Returns the median of half a round trip, or the time computed from millions of
/// operations per second.
fn perftest_usec(output: &str) -> Option<f64> {
    let mut lines = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let names: Vec<&str> = lines.next()?.split_whitespace().collect();
    let row: Vec<&str> = lines.next()?.split_whitespace().collect();
    if let Some(column) = names.iter().position(|name| *name == "t_typical[usec]") {
        return row.get(column)?.parse().ok();
    }
    // Column names contain spaces, so the column is counted from the end.
    let rate: f64 = (*names.last()? == "MsgRate[Mpps]").then(|| row.last()?.parse().ok())??;
    (rate > 0.0).then(|| 1.0 / rate)
}

/// Parses `    Operation Throughput : 28515.21 ops/sec`.
fn dapltest_usec(output: &str) -> Option<f64> {
    let rest = output.lines().find_map(|line| line.trim_start().strip_prefix("Operation Throughput"))?;
    let rate: f64 = rest.trim_start_matches([' ', ':']).strip_suffix("ops/sec")?.trim_end().parse().ok()?;
    (rate > 0.0).then(|| 1e6 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_reports_latency_or_rate() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99% percentile[usec]\n \
                    64      1000          13.94          2785.03      15.10    \t       16.43       \t9.49\n";
        assert_eq!(perftest_usec(output), Some(15.10));
        let output = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    64         5000             2.54               2.18   \t\t   0.04\n";
        assert_eq!(perftest_usec(output), Some(25.0));
        assert_eq!(perftest_usec("Couldn't connect to 192.0.2.1:18515\n"), None);
        assert_eq!(perftest_usec(" #bytes  another[unit]\n 64  12\n"), None);
    }

    #[test]
    fn printed_commands_match_the_programs_started_on_each_host() {
        let mut command = Command::new("chrt");
        command.args(["-r", "1", "/t/bin/duet", "tcp:1", "/t/bin/bench", "-s", "send", "--", "sh", "-c", "a b && c"]);
        command.env("LD_PRELOAD", "/t/turns.so");
        let ends = ends(&command);
        assert_eq!(ends.server, "LD_PRELOAD=turns.so chrt -r 1 bench -s send");
        assert_eq!(ends.client, "LD_PRELOAD=turns.so chrt -r 1 sh -c \"a b && c\"");
    }

    #[test]
    fn dapltest_reports_a_rate() {
        assert_eq!(dapltest_usec("    Operation Throughput : 25000.00 ops/sec\n"), Some(40.0));
        assert_eq!(dapltest_usec("    Bandwidth            : 1.74 MB/sec\n"), None);
    }
}
