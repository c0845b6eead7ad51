//! Figures of usnic over sizes and over packet loss: at each point all programs run in alternation.
#![forbid(unsafe_code)]

use super::contests::{RXD, RXM, writes};
use crate::bench::chart::HorizontalAxis;
use crate::bench::curve::{CurveSide, Plan, curve_side, powers_of_four};
use crate::bench::network::NetworkKind;
use crate::bench::ours::PerfArguments;
use crate::bench::peers::{Fabric, Sockperf};
use crate::bench::side::{Effort, FigureUnit, Side, depth};
use crate::iperf::Flow;

/// Curves that need a link with packet loss.
pub(super) const LOSSY: [&str; 1] = ["loss"];

/// All families of lines of usnic.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    vec![latency(effort), bandwidth(effort), loss(effort)]
}

fn latency(effort: Effort) -> Plan {
    let ours = move |size| {
        let ask = PerfArguments::new("lat", size, effort.count(1_000));
        Side::Timed { ask, seconds: effort.seconds(0.5) }
    };
    let sockperf = |size| Side::Sockperf(Sockperf { test: "ping-pong", size, seconds: 1, polls: true, tcp: false });
    Plan {
        section: "latency",
        title: "Latency: half a round trip, both sides polling",
        up: "microseconds",
        shown: FigureUnit::Microseconds,
        across: HorizontalAxis::Bytes,
        // A sockperf message must be at least as long as sockperf's header.
        sizes: powers_of_four(1 << 20).into_iter().filter(|size| *size >= 16).collect(),
        network_kind: |_| NetworkKind::Loopback,
        all: vec![
            curve_side("dapl-rs", ours),
            CurveSide { name: "sockperf UDP", side: Box::new(sockperf), may_fail: true },
            CurveSide { name: "ofi_rxd", side: fabric(effort, RXD), may_fail: true },
            CurveSide { name: "ofi_rxm", side: fabric(effort, RXM), may_fail: true },
        ],
    }
}

/// libfabric ping-pong that takes about the same time for all sizes.
fn fabric(effort: Effort, provider: &'static str) -> Box<dyn Fn(u32) -> Side> {
    Box::new(move |size| {
        let count = effort.count((64 << 20) / size.max(4_096)).min(10_000);
        Side::Fabric(Fabric { provider, size, count })
    })
}

fn bandwidth(effort: Effort) -> Plan {
    let ours = move |mode, size: u32| {
        let few = effort.count(((32 << 20) / size).clamp(16, 20_000));
        let ask = PerfArguments::new(mode, size, few).with(&["-d", &depth(size).to_string()]);
        Side::Timed { ask, seconds: effort.seconds(1.0) }
    };
    Plan {
        section: "bandwidth",
        title: "Bandwidth: messages and RDMA writes in a stream; ofi: there and back",
        up: "MB/s (millions of bytes)",
        shown: FigureUnit::Bandwidth,
        across: HorizontalAxis::Bytes,
        sizes: powers_of_four(16 << 20).into_iter().filter(|size| *size >= 64).collect(),
        network_kind: |_| NetworkKind::Loopback,
        all: vec![
            curve_side("dapl-rs send", move |size| ours("rate", size)),
            curve_side("dapl-rs write", move |size| ours("write", size)),
            CurveSide { name: "ofi_rxd", side: fabric(effort, RXD), may_fail: true },
            CurveSide { name: "ofi_rxm", side: fabric(effort, RXM), may_fail: true },
        ],
    }
}

fn loss(effort: Effort) -> Plan {
    let seconds = effort.whole_seconds(3);
    let iperf = move |flow| move |_| Side::Iperf { flow, seconds };
    Plan {
        section: "loss",
        title: "Goodput where packets are lost: 1 MiB RDMA writes, and TCP",
        up: "MB/s (millions of bytes)",
        shown: FigureUnit::Bandwidth,
        across: HorizontalAxis::Loss,
        sizes: vec![1, 10, 50, 100, 200],
        network_kind: |per_mille| NetworkKind::Wire { per_mille },
        all: vec![
            curve_side("dapl-rs write", move |_| writes(effort.seconds(3.0))),
            curve_side("TCP", iperf(Flow::Tcp)),
            curve_side("TCP with cubic", iperf(Flow::TcpWith("cubic"))),
        ],
    }
}
