//! The other side of a bench: programs of other projects, from Debian's packages, and what their output means.
//!
//! A change of their format is an error here, never a wrong figure: columns are found by name or checked by count.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::process::Command;

use super::pair;
use crate::Result;

/// What `ucx_perftest` ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ucx {
    /// Overall average in microseconds; for a ping-pong test, of one way.
    pub(super) latency: f64,
    /// Overall, in millions of messages per second.
    pub(super) rate: f64,
}

/// `ucx_perftest -t TEST -s SIZE -n COUNT` over shared memory, as UCX would choose on one host.
pub(super) fn ucx(test: &str, size: u32, count: u32) -> Result<Ucx> {
    let port = free_port()?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new("ucx_perftest");
        command.args(arguments).args(["-p", &port.to_string()]).env("UCX_TLS", "posix,cma,self");
        command
    };
    let (size, count) = (size.to_string(), count.to_string());
    let client = command(&["localhost", "-t", test, "-s", &size, "-n", &count, "-w", "10000"]);
    let said = pair(&command(&[]), || is_listening(port), &client)?;
    parse_ucx(&said).ok_or_else(|| format!("the output of ucx_perftest is not understood: {said}"))
}

/// The last line: `Final:`, iterations, then latency (a percentile, average, overall), bandwidth and message rate (both
/// average and overall).
fn parse_ucx(said: &str) -> Option<Ucx> {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix("Final:"))?;
    let columns: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    match columns[..] {
        [_iterations, _percentile, _average, latency, _, _, _, rate] => Some(Ucx { latency, rate: rate / 1e6 }),
        _ => None,
    }
}

/// `fi_pingpong -p PROVIDER -e rdm -S SIZE`: half a round trip, in microseconds.
pub(super) fn fabric(provider: &str, size: u32, iterations: u32) -> Result<f64> {
    let port = free_port()?;
    let (size, iterations) = (size.to_string(), iterations.to_string());
    let command = |port_option: &str, host: &[&str]| {
        let mut command = Command::new("fi_pingpong");
        command.args(["-p", provider, "-e", "rdm", "-S", &size, "-I", &iterations]);
        command.args([port_option, &port.to_string()]).args(host);
        command
    };
    let said = pair(&command("-B", &[]), || is_listening(port), &command("-P", &["localhost"]))?;
    parse_fabric(&said).ok_or_else(|| format!("the output of fi_pingpong is not understood: {said}"))
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
    fn ucx_says_latency_and_rate() {
        let said = "[thread 0]  1  2  3  4  5  6  7  8\nFinal:   200000   0.415   0.438   0.465   17.40  0.02  2281306  2150000\n";
        assert_eq!(parse_ucx(said), Some(Ucx { latency: 0.465, rate: 2.15 }));
        assert_eq!(parse_ucx("Final: 200000 0.4 0.5 0.6\n"), None);
    }

    #[test]
    fn fabric_says_half_a_round_trip() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      100k    =100k    12m         0.16s     77.10       0.83       1.20\n";
        assert_eq!(parse_fabric(said), Some(0.83));
        assert_eq!(parse_fabric("fi_getinfo: -61\n"), None);
    }
}
