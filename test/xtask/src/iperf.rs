//! iperf3: its options and the parser of its JSON output.
//!
//! A missing or changed field is an error, so that no wrong figure is reported.
#![forbid(unsafe_code)]

use std::process::Command;

use serde_json::Value;

use crate::Result;

/// Transport of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flow {
    /// TCP with the default congestion control of the machine.
    Tcp,
    /// TCP with this congestion control.
    TcpWith(&'static str),
    /// UDP as fast as possible, in datagrams that fill an Ethernet packet.
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IperfResult {
    /// Received data in millions of bytes per second.
    pub(crate) megabytes: f64,
    /// Processor use of both sides, in percent of one processor.
    pub(crate) processor: f64,
}

/// Whether this kernel's TCP supports a congestion control with that name.
pub(crate) fn kernel_has(algorithm: &str) -> bool {
    const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    std::fs::read_to_string(AVAILABLE).is_ok_and(|names| names.split_whitespace().any(|name| name == algorithm))
}

/// Command of a server for one client.
pub(crate) fn server(port: u16) -> Command {
    let mut command = Command::new("iperf3");
    command.args(["-s", "-1", "--forceflush", "-p", &port.to_string()]);
    command
}

/// Command of a client that runs for this many seconds.
pub(crate) fn client(flow: Flow, seconds: u32, host: &str, port: u16) -> Command {
    let mut command = Command::new("iperf3");
    command.args(words(flow, seconds)).args(["-J", "-p", &port.to_string(), "-c", host]);
    command
}

pub(crate) fn line(flow: Flow, seconds: u32) -> String {
    format!("iperf3 {}", words(flow, seconds).join(" "))
}

fn words(flow: Flow, seconds: u32) -> Vec<String> {
    let kind = match flow {
        Flow::Tcp => String::new(),
        Flow::TcpWith(control) => format!(" -C {control}"),
        Flow::Udp => " -u -b 0 -l 1472".to_owned(),
    };
    format!("-t {seconds}{kind}").split(' ').map(str::to_owned).collect()
}

/// Reads a client's JSON.
pub(crate) fn parse(output: &str) -> Result<IperfResult> {
    let end = serde_json::from_str::<Value>(output).map(|mut output| output["end"].take()).unwrap_or_default();
    let numbers = || {
        let processor = |name| end["cpu_utilization_percent"][name].as_f64();
        let bits = end["sum_received"]["bits_per_second"].as_f64()?;
        Some(IperfResult { megabytes: bits / 8e6, processor: processor("host_total")? + processor("remote_total")? })
    };
    numbers().ok_or_else(|| format!("the output of iperf3 has no figure: {output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "{\"intervals\":\t[{\"sum\":\t{\"bits_per_second\":\t1}}],\n\"end\":\t{\n\
        \"sum_sent\":\t{\n\"bits_per_second\":\t9e9,\n\"sender\":\ttrue\n},\n\
        \"sum_received\":\t{\n\"bytes\":\t3,\n\"bits_per_second\":\t8000000.5,\n\"sender\":\tfalse\n},\n\
        \"cpu_utilization_percent\":\t{\n\"host_total\":\t97.5,\n\"remote_total\":\t40.5,\n\"remote_user\":\t1\n}}}";

    #[test]
    fn iperf_throughput_is_computed_from_received_bytes() {
        let output = parse(OUTPUT).unwrap();
        assert!((output.megabytes - 1.0).abs() < 1e-6 && output.processor == 138.0, "{output:?}");
        assert!(parse("{\"error\":\t\"unable to connect\"}").is_err());
    }

    #[test]
    fn command_lines_are_printed_with_arguments_of_the_flow() {
        assert_eq!(line(Flow::Udp, 2), "iperf3 -t 2 -u -b 0 -l 1472");
        assert_eq!(line(Flow::TcpWith("cubic"), 5), "iperf3 -t 5 -C cubic");
    }
}
