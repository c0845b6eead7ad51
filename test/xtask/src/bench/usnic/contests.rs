//! Contests of usnic: the targets U1 to U7, patterns of EVD use (`patterns`), transfers as in MPI libraries (`mpi`),
//! processor time, and processors that several processes share. Some have no target.
#![forbid(unsafe_code)]

use crate::bench::contest::Contest;
use crate::bench::network::NetworkKind;
use crate::bench::ours::PerfArguments;
use crate::bench::peers::{Fabric, Sockperf};
use crate::bench::side::{Effort, FigureUnit, Side, depth};
use crate::bench::{mpi, patterns};
use crate::iperf::Flow;

/// Contests that need a link with packet loss.
pub(super) const LOSSY: [&str; 1] = ["U7"];
/// libfabric's provider for reliable datagrams over UDP.
pub(super) const RXD: &str = "udp;ofi_rxd";
/// libfabric's provider for messages over TCP.
pub(super) const RXM: &str = "tcp;ofi_rxm";
const MIB: u32 = 1 << 20;

/// All contests of usnic.
pub(super) fn contests(effort: Effort) -> Vec<Contest> {
    let [polling, asleep] = [true, false].map(|polls| [sockperf(effort, "ping-pong", polls)]);
    let patterns = patterns::contests(effort, &polling, &asleep);
    [pingpongs(effort), patterns, like_mpi(effort), streams(effort), losses(effort), busy(effort)]
        .into_iter()
        .flatten()
        .collect()
}

/// Target and stretch target of a contest; `None` if it has no target.
type Bounds = Option<(f64, f64)>;

fn contest(
    id: &'static str,
    title: &'static str,
    shown: FigureUnit,
    ours: Side,
    peer: Side,
    bounds: Bounds,
) -> Contest {
    let (must, stretch) = bounds.unzip();
    Contest { id, title, shown, must, stretch, ours, peers: vec![peer], network_kind: NetworkKind::Loopback }
}

/// RDMA writes of 1 MiB for `seconds`. The run is limited by time, because with packet loss the rate, and so the number
/// of writes, is not known beforehand.
pub(super) fn writes(seconds: f64) -> Side {
    Side::Ours(PerfArguments::new("write", MIB, 1_000_000).with(&[
        "-d",
        &depth(MIB).to_string(),
        "-e",
        &seconds.to_string(),
    ]))
}

fn sockperf(effort: Effort, test: &'static str, polls: bool) -> Side {
    Side::Sockperf(Sockperf { test, size: 64, seconds: effort.whole_seconds(3), polls, tcp: false })
}

fn pingpongs(effort: Effort) -> Vec<Contest> {
    let us = FigureUnit::Microseconds;
    let ours = |options: &[&str]| {
        let ask = PerfArguments::new("lat", 64, effort.count(2_000)).with(options);
        Side::Timed { ask, seconds: effort.seconds(2.0) }
    };
    let fabric = |provider| Side::Fabric(Fabric { provider, size: 64, count: effort.count(50_000) });
    let (polling, asleep) = (sockperf(effort, "ping-pong", true), sockperf(effort, "ping-pong", false));
    vec![
        contest("U1", "64 B ping-pong, polling", us, ours(&[]), polling, Some((1.25, 1.0))),
        contest("U2", "64 B ping-pong, beside ofi_rxd", us, ours(&[]), fabric(RXD), Some((0.6, 0.4))),
        contest("U2", "64 B ping-pong, beside ofi_rxm", us, ours(&[]), fabric(RXM), None),
        contest("U3", "64 B ping-pong, waiting in dat_evd_wait", us, ours(&["-w"]), asleep, Some((1.25, 1.0))),
    ]
}

/// Contests of MPI patterns, compared with TCP, and registrations, which have no peer. Long messages are also compared
/// with this project's stream of writes from memory that was registered once.
fn like_mpi(effort: Effort) -> Vec<Contest> {
    let (short, long) = (effort.count(50_000), effort.count(2_000));
    let seconds = effort.whole_seconds(2);
    let tcp = |size| vec![Side::Sockperf(Sockperf { test: "ping-pong", size, seconds, polls: true, tcp: true })];
    let iperf = Side::Iperf { flow: Flow::Tcp, seconds: effort.whole_seconds(3) };
    vec![
        mpi::eager("16 B eager, beside TCP", 16, short, None, tcp(16)),
        mpi::eager("4 KiB eager, beside TCP", 4096, short, None, tcp(4096)),
        mpi::eager("12 KiB eager, beside TCP", 12_288, short, None, tcp(12_288)),
        mpi::rendezvous("1 MiB rendezvous, beside TCP", MIB, long, None, vec![iperf]),
        mpi::rendezvous("1 MiB rendezvous, beside writes", MIB, long, None, vec![writes(effort.seconds(3.0))]),
        mpi::registration(effort, None),
    ]
}

fn streams(effort: Effort) -> Vec<Contest> {
    let bytes = FigureUnit::Bandwidth;
    let ours = || writes(effort.seconds(3.0));
    let iperf = |flow| Side::Iperf { flow, seconds: effort.whole_seconds(3) };
    let fabric = |provider| Side::Fabric(Fabric { provider, size: MIB, count: effort.count(400) });
    let rate = Side::Timed { ask: PerfArguments::new("rate", 64, effort.count(100_000)), seconds: effort.seconds(3.0) };
    let messages = sockperf(effort, "throughput", true);
    // Blocks instead of polling, so that processor time is used only for the data.
    let ask = PerfArguments::new("write", MIB, effort.count(8_192)).with(&["-w", "-d", &depth(MIB).to_string()]);
    let used = || Side::Ours(ask.clone());
    let cpu = FigureUnit::PerKib;
    vec![
        contest("U4", "1 MiB RDMA writes, beside TCP", bytes, ours(), iperf(Flow::Tcp), Some((0.6, 1.2))),
        contest("U5", "1 MiB RDMA writes, beside ofi_rxd", bytes, ours(), fabric(RXD), Some((5.0, 10.0))),
        contest("U5", "1 MiB RDMA writes, beside bare UDP", bytes, ours(), iperf(Flow::Udp), Some((4.0, 8.0))),
        contest("U5", "1 MiB RDMA writes, beside ofi_rxm", bytes, ours(), fabric(RXM), None),
        contest("U6", "64 B message rate", FigureUnit::Rate, rate, messages, Some((5.0, 10.0))),
        contest("cpu", "1 MiB RDMA writes, beside TCP", cpu, used(), iperf(Flow::Tcp), None),
        contest("cpu", "1 MiB RDMA writes, beside bare UDP", cpu, used(), iperf(Flow::Udp), None),
    ]
}

fn losses(effort: Effort) -> Vec<Contest> {
    let goodput = |title, per_mille, flow, bounds| {
        let (ours, iperf) = (writes(effort.seconds(4.0)), Side::Iperf { flow, seconds: effort.whole_seconds(4) });
        let network_kind = NetworkKind::Wire { per_mille };
        Contest { network_kind, ..contest("U7", title, FigureUnit::Bandwidth, ours, iperf, bounds) }
    };
    let [bbr, cubic] = ["bbr", "cubic"].map(Flow::TcpWith);
    vec![
        goodput("1 % lost, beside TCP with bbr", 10, bbr, Some((0.7, 1.0))),
        goodput("5 % lost, beside TCP with bbr", 50, bbr, Some((1.0, 2.0))),
        goodput("1 % lost, beside TCP with cubic", 10, cubic, Some((0.7, 1.0))),
        goodput("5 % lost, beside TCP with cubic", 50, cubic, Some((1.0, 2.0))),
    ]
}

/// Two pairs of processes share two processors, so that threads compete for a processor. The peer is the same number of
/// pairs over TCP.
fn busy(effort: Effort) -> Vec<Contest> {
    let pairs = |side| Side::TwoPairs(Box::new(side));
    let seconds = effort.whole_seconds(3);
    let latency = Side::Ours(PerfArguments::new("lat", 4096, effort.count(20_000)));
    let tcp = Side::Sockperf(Sockperf { test: "ping-pong", size: 4096, seconds, polls: true, tcp: true });
    let time = effort.seconds(3.0).to_string();
    let write = PerfArguments::new("write", 65_536, 10_000_000).with(&["-d", &depth(65_536).to_string(), "-e", &time]);
    let iperf = Side::Iperf { flow: Flow::Tcp, seconds };
    let (us, bytes) = (FigureUnit::Microseconds, FigureUnit::Bandwidth);
    vec![
        contest(
            "busy",
            "4 KiB ping-pong, 4 processes on 2 processors",
            us,
            pairs(latency),
            pairs(tcp),
            Some((2.0, 1.0)),
        ),
        contest(
            "busy",
            "64 KiB RDMA writes, 4 processes on 2 processors",
            bytes,
            pairs(Side::Ours(write)),
            pairs(iperf),
            Some((0.5, 1.0)),
        ),
    ]
}
