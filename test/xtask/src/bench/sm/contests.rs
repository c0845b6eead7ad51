//! Contests of sm: the targets S1 to S9, patterns of EVD use (`patterns`), and transfers as in MPI libraries (`mpi`).
#![forbid(unsafe_code)]

use crate::bench::contest::Contest;
use crate::bench::mpi;
use crate::bench::network::NetworkKind;
use crate::bench::ours::PerfArguments;
use crate::bench::pair::Cores;
use crate::bench::patterns;
use crate::bench::peers::{Fabric, Ucx};
use crate::bench::side::{Effort, FigureUnit, Side, depth};

/// All contests of sm: S1 to S9, EVD patterns and MPI patterns.
pub(super) fn contests(effort: Effort) -> Vec<Contest> {
    let ucx = Ucx::new("tag_lat", 64, effort.count(200_000));
    let asleep = Ucx { sleeps: true, ..Ucx::new("tag_lat", 64, effort.count(50_000)) };
    let patterns = patterns::contests(effort, &[Side::Ucx(ucx)], &[Side::Ucx(asleep)]);
    [pingpongs(effort), patterns, streams(effort), like_mpi(effort), absolutes(effort)].into_iter().flatten().collect()
}

/// Contests of MPI patterns, alone or with UCX over shared memory. Long messages are also compared with UCX
/// restricted to copies by the kernel, and with this project's sends of the same size.
fn like_mpi(effort: Effort) -> Vec<Contest> {
    /// UCX transports without shared memory, so that the kernel copies. TCP only sets up the connections.
    const KERNEL_ONLY: &str = "cma,self,tcp";
    const MIB: u32 = 1 << 20;
    let (short, long) = (effort.count(200_000), effort.count(4_000));
    let put = |size| vec![Side::Ucx(Ucx::new("ucp_put_lat", size, short))];
    let tags = Ucx::new("tag_bw", MIB, long);
    let alone = Ucx { transports: Some(KERNEL_ONLY), ..tags.clone() };
    let sends = PerfArguments::new("rate", MIB, long).with(&["-d", &depth(MIB).to_string()]);
    vec![
        mpi::eager("8 B eager, beside UCX put", 8, short, Some(2.0), put(8)),
        mpi::eager("8 B eager", 8, short, Some(1.0), Vec::new()),
        mpi::eager("4 KiB eager, beside UCX put", 4096, short, None, put(4096)),
        mpi::eager("4 KiB eager", 4096, short, Some(1.5), Vec::new()),
        mpi::eager("12 KiB eager, beside UCX put", 12_288, short, None, put(12_288)),
        mpi::eager_shared("8 B eager, shared, beside UCX put", 8, short, Some(2.0), put(8)),
        mpi::eager_shared("8 B eager, shared memory", 8, short, Some(1.0), Vec::new()),
        mpi::eager_shared("4 KiB eager, shared memory", 4096, short, Some(1.5), Vec::new()),
        mpi::eager_shared("12 KiB eager, shared memory", 12_288, short, None, Vec::new()),
        mpi::polled("8 B receives polled in memory", 8, effort.count(20_000), None),
        mpi::polled("4 KiB receives polled in memory", 4096, effort.count(20_000), None),
        mpi::polled_one_way("8 B receives polled in memory, sender asleep", 8, effort.count(5_000), Some(15.0)),
        mpi::polled_one_way("4 KiB receives polled in memory, sender asleep", 4096, effort.count(5_000), Some(15.0)),
        mpi::rendezvous("1 MiB rendezvous, beside sends", MIB, long, Some(0.8), vec![Side::Ours(sends)]),
        mpi::rendezvous("1 MiB rendezvous, beside UCX", MIB, long, None, vec![Side::Ucx(tags), Side::Ucx(alone)]),
        mpi::registration(effort, Some(3.0)),
    ]
}

fn pingpongs(effort: Effort) -> Vec<Contest> {
    let many = effort.count(1_000_000);
    let ucx = |size, count| Ucx::new("tag_lat", size, count);
    let pingpong = |id, title, size, count, peer, (must, stretch)| Contest {
        id,
        title,
        shown: FigureUnit::Microseconds,
        must: Some(must),
        stretch: Some(stretch),
        ours: Side::Ours(PerfArguments::new("lat", size, count)),
        peers: vec![peer],
        network_kind: NetworkKind::Loopback,
    };
    let fabric = Fabric { provider: "shm", size: 64, count: effort.count(200_000) };
    let (long, asleep, shared) = (effort.count(300_000), effort.count(50_000), effort.count(200));
    let sleeping = Ucx { sleeps: true, ..ucx(8, asleep) };
    let together = Ucx { cores: Cores::Together, ..ucx(8, shared) };
    let eight = pingpong("S1", "8 B ping-pong, polling", 8, many, Side::Ucx(ucx(8, many)), (0.9, 0.7));
    let sixty_four = pingpong("S2", "64 B ping-pong, polling", 64, many, Side::Fabric(fabric), (0.5, 0.3));
    let page = pingpong("S4", "4 KiB ping-pong, polling", 4096, long, Side::Ucx(ucx(4096, long)), (1.0, 0.8));
    let mut one = pingpong("S7", "8 B ping-pong, one processor", 8, shared, Side::Ucx(together), (0.01, 0.001));
    // The peer takes about a hundred times as long for a round trip. So this project's side runs for a fixed time, not
    // for the peer's number of round trips.
    let shared = PerfArguments { cores: Cores::Together, ..PerfArguments::new("lat", 8, 100) };
    one.ours = Side::Timed { ask: shared, seconds: effort.seconds(0.5) };
    let mut wait = pingpong("S8", "8 B ping-pong, asleep between", 8, asleep, Side::Ucx(sleeping), (1.5, 1.0));
    wait.ours = Side::Ours(PerfArguments::new("lat", 8, asleep).with(&["-w"]));
    vec![eight, sixty_four, page, one, wait]
}

fn streams(effort: Effort) -> Vec<Contest> {
    let stream = |id, title, shown, ours, peers, (must, stretch)| {
        let (must, stretch, ours, network_kind) = (Some(must), Some(stretch), Side::Ours(ours), NetworkKind::Loopback);
        Contest { id, title, shown, must, stretch, ours, peers, network_kind }
    };
    let many = effort.count(5_000_000);
    let bytes = |id, title, mode, size: u32, options: &[&str], peers, targets| {
        let ask = PerfArguments::new(mode, size, bytes_count(effort, size))
            .with(&["-d", &depth(size).to_string()])
            .with(options);
        stream(id, title, FigureUnit::Bandwidth, ask, peers, targets)
    };
    // UCX over shared memory only, and with its default transports.
    let both = |size| {
        let peer = Ucx::new("tag_bw", size, bytes_count(effort, size));
        vec![Side::Ucx(peer.clone()), Side::Ucx(Ucx { transports: None, ..peer })]
    };
    const MIB: u32 = 1 << 20;
    let put = Side::Ucx(Ucx::new("ucp_put_bw", MIB, bytes_count(effort, MIB)));
    let eight = vec![Side::Ucx(Ucx::new("tag_bw", 8, many))];
    vec![
        stream("S3", "8 B message rate", FigureUnit::Rate, PerfArguments::new("rate", 8, many), eight, (1.2, 2.0)),
        bytes("S5", "64 KiB messages, heap", "rate", 65_536, &[], both(65_536), (1.2, 1.8)),
        bytes("S5", "1 MiB messages, heap", "rate", MIB, &[], both(MIB), (1.2, 1.8)),
        bytes("S6", "1 MiB RDMA writes, shared", "write", MIB, &["-m"], vec![put], (1.0, 1.2)),
    ]
}

/// Number of messages that add up to 8 GiB, reduced to the effort.
fn bytes_count(effort: Effort, size: u32) -> u32 {
    effort.count((8u64 << 30).div_euclid(u64::from(size)) as u32)
}

fn absolutes(effort: Effort) -> Vec<Contest> {
    let absolute = |title, shown, must, stretch, ours| Contest {
        id: "S9",
        title,
        shown,
        must: Some(must),
        stretch,
        ours: Side::Ours(ours),
        peers: Vec::new(),
        network_kind: NetworkKind::Loopback,
    };
    let seconds = if effort.rounds > 1 { 5 } else { 1 };
    vec![
        absolute(
            "processor time of an idle waiter",
            FigureUnit::Percent,
            1.0,
            None,
            PerfArguments::new("idle", 8, seconds),
        ),
        absolute(
            "SIGKILL to disconnect event",
            FigureUnit::Milliseconds,
            100.0,
            Some(10.0),
            PerfArguments::new("death", 8, 300),
        ),
    ]
}
