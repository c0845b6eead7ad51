//! This project's side of the benches `sm` and `usnic`: `test/c/perf.c` over the staged libraries.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl_test::run::{SM0, Sandbox};
use dapl_test::stage::{Stage, workspace};

use super::network::BenchNetwork;
use super::pair::{Cores, PairOutput, ServerEnd, pair};
use crate::Result;
use crate::json::field;

/// Connection qualifier of the first run; each further run uses the next number.
const QUAL: u32 = 45_300;

/// Output of a server that accepts clients.
const READY: &str = "perf: listening";

/// Adapter of the measured provider.
pub(super) struct Adapter {
    pub(super) name: &'static str,
    /// Registry line. The word DEVICE, if the line has it, is replaced by the network interface.
    line: &'static str,
}

pub(super) const SM: Adapter = Adapter { name: "sm0", line: SM0 };
pub(super) const USNIC: Adapter =
    Adapter { name: "usnic0", line: "usnic0 u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"DEVICE\" \"\"\n" };

/// The program `perf` over one adapter.
pub(super) struct Perf {
    program: PathBuf,
    adapter: &'static Adapter,
    stage: Stage,
    next: AtomicU32,
}

/// A run of the program: its arguments, which are explained at the start of perf.c, and the processors of both sides.
#[derive(Clone, Debug)]
pub(super) struct PerfArguments {
    pub(super) mode: &'static str,
    pub(super) size: u32,
    pub(super) count: u32,
    pub(super) options: Vec<String>,
    /// Number of client processes; with two or more the server reports the figure.
    pub(super) clients: u32,
    pub(super) cores: Cores,
}

impl PerfArguments {
    /// Creates the arguments for a mode of `perf`, with its size and count.
    pub(super) fn new(mode: &'static str, size: u32, count: u32) -> Self {
        PerfArguments { mode, size, count, options: Vec::new(), clients: 1, cores: Cores::Apart }
    }

    pub(super) fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    pub(super) fn line(&self) -> String {
        ["perf"].into_iter().map(str::to_owned).chain(self.words()).collect::<Vec<_>>().join(" ")
    }

    /// Command lines of server and client, without processor pinning.
    pub(super) fn ends(&self, adapter: &str, host: &str) -> [String; 2] {
        let (words, clients) = (self.words().join(" "), self.clients);
        let served = if clients > 1 { format!("-p {clients} ") } else { String::new() };
        let times = if clients > 1 { format!(" ({clients} at once)") } else { String::new() };
        [format!("perf -s {served}-P {adapter} {words}"), format!("perf -h {host} -P {adapter} {words}{times}")]
    }

    fn words(&self) -> Vec<String> {
        let ends = [self.mode.to_owned(), self.size.to_string(), self.count.to_string()];
        self.options.iter().cloned().chain(ends).collect()
    }
}

impl Perf {
    /// Compiles the program.
    pub(super) fn new(stage: &Stage, adapter: &'static Adapter) -> Self {
        let program = stage.root.join("bin/perf");
        stage.compile(&program, &[&workspace().join("test/c/perf.c")], &["-O2"]);
        Perf { program, adapter, stage: stage.clone(), next: AtomicU32::new(QUAL) }
    }

    pub(super) fn adapter(&self) -> &'static str {
        self.adapter.name
    }

    /// Runs both sides and returns their output.
    pub(super) fn both(&self, ask: &PerfArguments, network: &BenchNetwork) -> Result<PairOutput> {
        let sandbox = Sandbox::new(&self.stage, Some(&self.adapter.line.replace("DEVICE", network.device())));
        let qual = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let words = ask.words();
        let words = || words.iter().map(String::as_str);
        let common = || ["-P", self.adapter.name, "-q", &qual].into_iter().chain(words());
        let processes = ask.clients.to_string();
        let server: Vec<&str> = ["-s", "-p", &processes].into_iter().chain(common()).collect();
        let client: Vec<&str> = ["-h", network.host()].into_iter().chain(common()).collect();
        let server = network.server(sandbox.command(&self.program, &server));
        let client = network.client(sandbox.command(&self.program, &client));
        let server_end = if ask.mode == "death" { ServerEnd::Suicide } else { ServerEnd::Itself };
        pair(&server, |server| server.has_printed(READY), (&client, ask.clients), ask.cores, server_end)
    }

    /// Runs server and client, and returns the JSON line of the client, or that of the server if there are several
    /// clients.
    pub(super) fn run(&self, ask: &PerfArguments, network: &BenchNetwork) -> Result<String> {
        let output = self.both(ask, network)?;
        Ok(if ask.clients > 1 { output.server } else { output.client })
    }

    /// Runs server and client, and returns the number in the field `name` of their JSON line.
    pub(super) fn figure(&self, ask: &PerfArguments, network: &BenchNetwork, name: &str) -> Result<f64> {
        let output = self.run(ask, network)?;
        field(&output, name).ok_or_else(|| format!("the output of {} has no {name}: {output}", ask.line()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_perf_precede_its_mode() {
        let ask = PerfArguments::new("write", 1_048_576, 500).with(&["-m", "-d", "16"]);
        assert_eq!(ask.line(), "perf -m -d 16 write 1048576 500");
        let ends = ask.ends("sm0", "localhost");
        assert_eq!(ends[0], "perf -s -P sm0 -m -d 16 write 1048576 500");
        assert_eq!(ends[1], "perf -h localhost -P sm0 -m -d 16 write 1048576 500");
        let [server, client] = PerfArguments { clients: 2, ..PerfArguments::new("rate", 8, 9) }.ends("sm0", "h");
        assert_eq!((&*server, &*client), ("perf -s -p 2 -P sm0 rate 8 9", "perf -h h -P sm0 rate 8 9 (2 at once)"));
    }
}
