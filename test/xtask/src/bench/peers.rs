//! Peers of the benches `sm` and `usnic`: other projects' programs from Debian packages, and parsers of their output.
//!
//! The parsers report most changes of an output format as errors, so that they give no wrong figure: they find columns
//! by name, check the number of columns, or look for the words before a figure.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::process::Command;

use dapl_test::run::Run;

use super::network::BenchNetwork;
use super::pair::{Cores, ServerEnd, pair};
use crate::Result;
use crate::iperf::{self, Flow};

/// Bytes per megabyte in the output of `ucx_perftest`.
const UCX_MEGABYTE: f64 = 1_048_576.0;
/// UCX transports for processes on one host.
pub(super) const SHARED_MEMORY: &str = "posix,cma,self";

/// Result line of `ucx_perftest`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UcxOutput {
    /// Overall average latency in microseconds; one-way for ping-pong tests.
    pub(super) latency: f64,
    /// Overall average bandwidth in millions of bytes per second.
    pub(super) bandwidth: f64,
    /// Overall average rate in millions of messages per second.
    pub(super) rate: f64,
}

/// `ucx_perftest -t TEST -s SIZE -n COUNT`.
#[derive(Clone, Debug)]
pub(super) struct Ucx {
    pub(super) test: &'static str,
    pub(super) size: u32,
    pub(super) count: u32,
    /// `UCX_TLS`; `None`: UCX chooses.
    pub(super) transports: Option<&'static str>,
    /// Whether both sides block instead of polling.
    pub(super) sleeps: bool,
    pub(super) cores: Cores,
}

impl Ucx {
    /// Creates a test over shared memory that polls, with each side on a separate processor.
    pub(super) fn new(test: &'static str, size: u32, count: u32) -> Self {
        Ucx { test, size, count, transports: Some(SHARED_MEMORY), sleeps: false, cores: Cores::Apart }
    }

    pub(super) fn line(&self) -> String {
        let transports = self.transports.map_or(String::new(), |list| format!("UCX_TLS={list} "));
        format!("{transports}ucx_perftest {}", self.words().join(" "))
    }

    /// Command lines of both sides; the caller may put another program before each.
    pub(super) fn ends(&self) -> [String; 2] {
        let variables = self.transports.map_or(String::new(), |list| format!("env UCX_TLS={list} "));
        let words = self.words().join(" ");
        [format!("{variables}ucx_perftest"), format!("{variables}ucx_perftest localhost {words}")]
    }

    fn words(&self) -> Vec<String> {
        // ucx_perftest's default number of warm-up operations, limited by the measured count.
        let warm_up = (self.count / 10).clamp(1, 10_000);
        let text = format!("-t {} -s {} -n {} -w {warm_up}", self.test, self.size, self.count);
        let sleep = if self.sleeps { " -E sleep" } else { "" };
        (text + sleep).split(' ').map(str::to_owned).collect()
    }

    /// Runs the test.
    pub(super) fn run(&self) -> Result<UcxOutput> {
        let port = free_port()?;
        let command = || {
            let mut command = Command::new("ucx_perftest");
            command.args(["-p", &port.to_string()]);
            match self.transports {
                Some(list) => command.env("UCX_TLS", list),
                None => command.env_remove("UCX_TLS"),
            };
            command
        };
        let mut client = command();
        client.arg("localhost").args(self.words());
        let output =
            pair(&command(), |server| has_port(server, "tcp", port), (&client, 1), self.cores, ServerEnd::Itself)?
                .client;
        parse_ucx(&output).ok_or_else(|| format!("the output of {} has no figure: {output}", self.line()))
    }
}

/// The last line: `Final:`, iterations, then latency (a percentile, average, overall), bandwidth and message rate (both
/// average and overall).
fn parse_ucx(output: &str) -> Option<UcxOutput> {
    let line = output.lines().find_map(|line| line.trim_start().strip_prefix("Final:"))?;
    let columns: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    match columns[..] {
        [_iterations, _percentile, _average, latency, _, bandwidth, _, rate] => {
            Some(UcxOutput { latency, bandwidth: bandwidth * UCX_MEGABYTE / 1e6, rate: rate / 1e6 })
        }
        _ => None,
    }
}

/// `fi_pingpong -p PROVIDER -e rdm -S SIZE -I COUNT`.
#[derive(Clone, Debug)]
pub(super) struct Fabric {
    pub(super) provider: &'static str,
    pub(super) size: u32,
    pub(super) count: u32,
}

impl Fabric {
    /// Command line as a user would type it.
    pub(super) fn line(&self) -> String {
        // The name of a layered provider contains a semicolon.
        let quoted = |word: String| if word.contains(';') { format!("'{word}'") } else { word };
        format!("fi_pingpong {}", self.words().into_iter().map(quoted).collect::<Vec<_>>().join(" "))
    }

    /// Command lines of server and client.
    pub(super) fn ends(&self) -> [String; 2] {
        [self.line(), format!("{} localhost", self.line())]
    }

    fn words(&self) -> Vec<String> {
        let text = format!("-p {} -e rdm -S {} -I {}", self.provider, self.size, self.count);
        text.split(' ').map(str::to_owned).collect()
    }

    /// Runs the test.
    pub(super) fn run(&self) -> Result<FabricOutput> {
        let port = free_port()?;
        let command = |port_option: &str, host: &[&str]| {
            let mut command = Command::new("fi_pingpong");
            command.args(self.words()).args([port_option, &port.to_string()]).args(host);
            command
        };
        let client = command("-P", &["localhost"]);
        let is_ready = |server: &Run| has_port(server, "tcp", port);
        let output = pair(&command("-B", &[]), is_ready, (&client, 1), Cores::Apart, ServerEnd::Itself)?.client;
        parse_fabric(&output).ok_or_else(|| format!("the output of {} has no figure: {output}", self.line()))
    }
}

/// Output of `fi_pingpong`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FabricOutput {
    /// Half a round trip, in microseconds.
    pub(super) latency: f64,
    /// Millions of bytes per second, summed over both alternating directions.
    pub(super) bandwidth: f64,
}

/// Parses a table with one row. `usec/xfer` is "average time for transferring a message outbound (ping or pong)",
/// which is half a round trip.
fn parse_fabric(output: &str) -> Option<FabricOutput> {
    let mut lines = output.lines().skip_while(|line| !line.contains("usec/xfer"));
    let (heads, row) = (lines.next()?, lines.next()?);
    let column = |name| -> Option<f64> {
        let at = heads.split_whitespace().position(|word| word == name)?;
        row.split_whitespace().nth(at)?.parse().ok()
    };
    Some(FabricOutput { latency: column("usec/xfer")?, bandwidth: column("MB/sec")? })
}

/// Address of the sockperf server.
const HOST: &str = "127.0.0.1";

/// `sockperf TEST -m SIZE -t SECONDS`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sockperf {
    /// `ping-pong` or `throughput`.
    pub(super) test: &'static str,
    pub(super) size: u32,
    pub(super) seconds: u32,
    /// Whether both sides poll instead of sleeping.
    pub(super) polls: bool,
    /// Whether the test uses TCP instead of UDP.
    pub(super) tcp: bool,
}

impl Sockperf {
    pub(super) fn line(&self) -> String {
        format!("sockperf {}", self.words().join(" "))
    }

    /// Command lines of both sides.
    pub(super) fn ends(&self) -> [String; 2] {
        [format!("sockperf server -i {HOST}{}", self.flags()), format!("{} -i {HOST}", self.line())]
    }

    fn words(&self) -> Vec<String> {
        let text = format!("{} -m {} -t {}{}", self.test, self.size, self.seconds, self.flags());
        text.split(' ').map(str::to_owned).collect()
    }

    /// Options for both sides, each preceded by a space.
    fn flags(&self) -> String {
        [(self.polls, " --nonblocked"), (self.tcp, " --tcp")]
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, flag)| *flag)
            .collect()
    }

    /// Runs the test. Returns half a round trip in microseconds, or messages per second.
    pub(super) fn run(&self) -> Result<f64> {
        let port = free_port()?;
        let place = ["-i", HOST, "-p", &port.to_string()].map(str::to_owned);
        let mut server = Command::new("sockperf");
        server.arg("server").args(&place).args(self.flags().split_whitespace());
        let mut client = Command::new("sockperf");
        client.args(self.words()).args(&place);
        let is_ready = |server: &Run| has_port(server, if self.tcp { "tcp" } else { "udp" }, port);
        let output = pair(&server, is_ready, (&client, 1), Cores::Apart, ServerEnd::Killed)?.client;
        parse_sockperf(&output).ok_or_else(|| format!("the output of {} has no figure: {output}", self.line()))
    }
}

/// Parses `Summary: Latency is 2.753 usec` or `Summary: Message Rate is 368464 [msg/sec]`.
fn parse_sockperf(output: &str) -> Option<f64> {
    let figure = output.lines().find_map(|line| {
        let summary = line.strip_prefix("sockperf: Summary: ")?;
        let latency = || summary.strip_prefix("Latency is ")?.strip_suffix(" usec");
        let rate = || summary.strip_prefix("Message Rate is ")?.strip_suffix(" [msg/sec]");
        latency().or_else(rate)
    });
    figure?.trim().parse().ok()
}

/// Runs iperf3 in this network.
pub(super) fn run_iperf(flow: Flow, seconds: u32, network: &BenchNetwork) -> Result<iperf::IperfResult> {
    let port = free_port()?;
    let server = network.server(iperf::server(port));
    let client = network.client(iperf::client(flow, seconds, network.host(), port));
    let is_ready = |server: &Run| has_port(server, "tcp", port);
    iperf::parse(&pair(&server, is_ready, (&client, 1), Cores::Apart, ServerEnd::Itself)?.client)
}

fn free_port() -> Result<u16> {
    let socket = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    socket.map(|address| address.port()).map_err(|error| format!("no free TCP port: {error}"))
}

/// Whether a socket listens on a port in the server's network. A trial connection is not possible, because the server
/// would take it for its client.
fn has_port(server: &Run, protocol: &str, port: u16) -> bool {
    /// States in /proc/net: TCP_LISTEN, and an open UDP socket.
    const LISTEN_STATES: [&str; 2] = ["0A", "07"];
    let port = format!(":{port:04X}");
    ["", "6"].iter().any(|version| {
        let table = std::fs::read_to_string(format!("/proc/{}/net/{protocol}{version}", server.id()));
        table.unwrap_or_default().lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port))
                && words.nth(1).is_some_and(|state| LISTEN_STATES.contains(&state))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_perftest_reports_latency_bandwidth_and_rate() {
        let output = "[thread 0]  1  2  3  4  5  6  7  8\nFinal:   200000   0.415   0.438   0.465   17.40  16.00  2281306  2150000\n";
        let expected = UcxOutput { latency: 0.465, bandwidth: 16.777_216, rate: 2.15 };
        assert_eq!(parse_ucx(output), Some(expected));
        assert_eq!(parse_ucx("Final: 200000 0.4 0.5 0.6\n"), None);
        assert_eq!(parse_ucx("Final: 1 2 3 4 5 fast 7 8\n"), None);
    }

    #[test]
    fn fi_pingpong_reports_half_a_round_trip() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      100k    =100k    12m         0.16s     77.10       0.83       1.20\n";
        assert_eq!(parse_fabric(output), Some(FabricOutput { latency: 0.83, bandwidth: 77.1 }));
        assert_eq!(parse_fabric("fi_getinfo: -61\n"), None);
    }

    #[test]
    fn sockperf_reports_latency_or_rate() {
        let output = "sockperf: ---> <MAX> observation = 2500.143\nsockperf: Summary: Latency is 3.386 usec\n";
        assert_eq!(parse_sockperf(output), Some(3.386));
        assert_eq!(parse_sockperf("sockperf: Summary: Message Rate is 368464 [msg/sec]\n"), Some(368_464.0));
        assert_eq!(parse_sockperf("sockperf: Summary: Latency is 2.753 msec\n"), None, "another unit");
        assert_eq!(parse_sockperf("sockperf: ERROR: the server is down\n"), None);
    }

    #[test]
    fn command_lines_are_printed_with_variables_and_arguments() {
        let ucx = Ucx { transports: None, sleeps: true, ..Ucx::new("tag_lat", 8, 200) };
        assert_eq!(ucx.line(), "ucx_perftest -t tag_lat -s 8 -n 200 -w 20 -E sleep");
        assert_eq!(
            Ucx::new("tag_bw", 8, 5_000_000).line(),
            "UCX_TLS=posix,cma,self ucx_perftest -t tag_bw -s 8 -n 5000000 -w 10000"
        );
        let fabric = Fabric { provider: "shm", size: 64, count: 100 };
        assert_eq!(fabric.line(), "fi_pingpong -p shm -e rdm -S 64 -I 100");
        let sockperf = Sockperf { test: "ping-pong", size: 64, seconds: 2, polls: true, tcp: false };
        assert_eq!(sockperf.line(), "sockperf ping-pong -m 64 -t 2 --nonblocked");
    }

    #[test]
    fn command_lines_of_server_and_client_are_printed_with_shell_quotes() {
        let fabric = Fabric { provider: "udp;ofi_rxd", size: 64, count: 100 };
        assert_eq!(fabric.ends()[1], "fi_pingpong -p 'udp;ofi_rxd' -e rdm -S 64 -I 100 localhost");
        let sockperf = Sockperf { test: "throughput", size: 64, seconds: 2, polls: true, tcp: false };
        assert_eq!(sockperf.ends()[0], "sockperf server -i 127.0.0.1 --nonblocked");
        assert_eq!(sockperf.ends()[1], "sockperf throughput -m 64 -t 2 --nonblocked -i 127.0.0.1");
        let [server, client] = Ucx::new("tag_bw", 8, 50).ends();
        assert_eq!(server, "env UCX_TLS=posix,cma,self ucx_perftest");
        assert_eq!(client, "env UCX_TLS=posix,cma,self ucx_perftest localhost -t tag_bw -s 8 -n 50 -w 5");
    }
}
