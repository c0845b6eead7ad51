//! The other side of a bench: programs of other projects, from Debian's packages, and what their output means.
//!
//! A change of their format is an error here, never a wrong figure: columns are found by name or checked by count.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::process::Command;

use super::pair::{Cores, pair};
use crate::Result;

/// Bytes in what `ucx_perftest` calls a megabyte.
const UCX_MEGABYTE: f64 = 1_048_576.0;
/// What UCX is told to use on one host.
pub(super) const SHARED_MEMORY: &str = "posix,cma,self";

/// What `ucx_perftest` ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UcxSaid {
    /// Overall average in microseconds; for a ping-pong test, of one way.
    pub(super) latency: f64,
    /// Overall, in millions of bytes per second.
    pub(super) bandwidth: f64,
    /// Overall, in millions of messages per second.
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
    /// Sleeps where it would poll.
    pub(super) sleeps: bool,
    pub(super) cores: Cores,
}

impl Ucx {
    /// Over shared memory, polling, each side on its own processor.
    pub(super) fn new(test: &'static str, size: u32, count: u32) -> Self {
        Ucx { test, size, count, transports: Some(SHARED_MEMORY), sleeps: false, cores: Cores::Apart }
    }

    /// What one would type.
    pub(super) fn line(&self) -> String {
        let transports = self.transports.map_or(String::new(), |list| format!("UCX_TLS={list} "));
        format!("{transports}ucx_perftest {}", self.words().join(" "))
    }

    fn words(&self) -> Vec<String> {
        // Its own default, where that is not more than what is measured.
        let warm_up = (self.count / 10).clamp(1, 10_000);
        let text = format!("-t {} -s {} -n {} -w {warm_up}", self.test, self.size, self.count);
        let sleep = if self.sleeps { " -E sleep" } else { "" };
        (text + sleep).split(' ').map(str::to_owned).collect()
    }

    /// Runs it.
    pub(super) fn run(&self) -> Result<UcxSaid> {
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
        let said = pair(&command(), || is_listening(port), (&client, 1), self.cores, false)?.client;
        parse_ucx(&said).ok_or_else(|| format!("the output of {} is not understood: {said}", self.line()))
    }
}

/// The last line: `Final:`, iterations, then latency (a percentile, average, overall), bandwidth and message rate (both
/// average and overall).
fn parse_ucx(said: &str) -> Option<UcxSaid> {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix("Final:"))?;
    let columns: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    match columns[..] {
        [_iterations, _percentile, _average, latency, _, bandwidth, _, rate] => {
            Some(UcxSaid { latency, bandwidth: bandwidth * UCX_MEGABYTE / 1e6, rate: rate / 1e6 })
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
    /// What one would type.
    pub(super) fn line(&self) -> String {
        format!("fi_pingpong {}", self.words().join(" "))
    }

    fn words(&self) -> Vec<String> {
        let text = format!("-p {} -e rdm -S {} -I {}", self.provider, self.size, self.count);
        text.split(' ').map(str::to_owned).collect()
    }

    /// Half a round trip, in microseconds.
    pub(super) fn run(&self) -> Result<f64> {
        let port = free_port()?;
        let command = |port_option: &str, host: &[&str]| {
            let mut command = Command::new("fi_pingpong");
            command.args(self.words()).args([port_option, &port.to_string()]).args(host);
            command
        };
        let client = command("-P", &["localhost"]);
        let said = pair(&command("-B", &[]), || is_listening(port), (&client, 1), Cores::Apart, false)?.client;
        parse_fabric(&said).ok_or_else(|| format!("the output of {} is not understood: {said}", self.line()))
    }
}

/// One table of one row. `usec/xfer` is "average time for transferring a message outbound (ping or pong)", so half a round
/// trip.
fn parse_fabric(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.contains("usec/xfer"));
    let column = lines.next()?.split_whitespace().position(|word| word == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

fn free_port() -> Result<u16> {
    let socket = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    socket.map(|address| address.port()).map_err(|error| format!("no free TCP port: {error}"))
}

/// Without connecting, which a server would take for its client.
fn is_listening(port: u16) -> bool {
    /// TCP_LISTEN of the kernel.
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let table = std::fs::read_to_string(file).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(LISTEN)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_says_latency_bandwidth_and_rate() {
        let said = "[thread 0]  1  2  3  4  5  6  7  8\nFinal:   200000   0.415   0.438   0.465   17.40  16.00  2281306  2150000\n";
        let expected = UcxSaid { latency: 0.465, bandwidth: 16.777_216, rate: 2.15 };
        assert_eq!(parse_ucx(said), Some(expected));
        assert_eq!(parse_ucx("Final: 200000 0.4 0.5 0.6\n"), None);
        assert_eq!(parse_ucx("Final: 1 2 3 4 5 fast 7 8\n"), None);
    }

    #[test]
    fn fabric_says_half_a_round_trip() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      100k    =100k    12m         0.16s     77.10       0.83       1.20\n";
        assert_eq!(parse_fabric(said), Some(0.83));
        assert_eq!(parse_fabric("fi_getinfo: -61\n"), None);
    }

    #[test]
    fn command_lines_are_what_one_would_type() {
        let ucx = Ucx { transports: None, sleeps: true, ..Ucx::new("tag_lat", 8, 200) };
        assert_eq!(ucx.line(), "ucx_perftest -t tag_lat -s 8 -n 200 -w 20 -E sleep");
        assert_eq!(
            Ucx::new("tag_bw", 8, 5_000_000).line(),
            "UCX_TLS=posix,cma,self ucx_perftest -t tag_bw -s 8 -n 5000000 -w 10000"
        );
        let fabric = Fabric { provider: "shm", size: 64, count: 100 };
        assert_eq!(fabric.line(), "fi_pingpong -p shm -e rdm -S 64 -I 100");
    }
}
