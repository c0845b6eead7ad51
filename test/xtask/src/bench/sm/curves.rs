//! Figures of sm over message sizes: at each size all programs run in alternation.
#![forbid(unsafe_code)]

use crate::bench::chart::HorizontalAxis;
use crate::bench::curve::{CurveSide, Plan, curve_side, powers_of_four};
use crate::bench::network::NetworkKind;
use crate::bench::ours::PerfArguments;
use crate::bench::peers::{Fabric, Ucx};
use crate::bench::side::{Effort, FigureUnit, Side, depth, pingpong_count, stream_count};

/// All families of lines of sm: latency and bandwidth.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    let pingpong = move |size| effort.count(pingpong_count(size));
    let stream = move |size| effort.count(stream_count(size));
    let ours = move |mode, size| {
        Side::Ours(PerfArguments::new(mode, size, stream(size)).with(&["-d", &depth(size).to_string()]))
    };
    let fabric = move |size| Side::Fabric(Fabric { provider: "shm", size, count: pingpong(size).div_ceil(4) });
    vec![
        Plan {
            section: "latency",
            title: "Latency: half a round trip, both sides polling",
            up: "microseconds",
            shown: FigureUnit::Microseconds,
            across: HorizontalAxis::Bytes,
            network_kind: |_| NetworkKind::Loopback,
            sizes: powers_of_four(1 << 20),
            all: vec![
                curve_side("dapl-rs", move |size| Side::Ours(PerfArguments::new("lat", size, pingpong(size)))),
                curve_side("UCX tag", move |size| Side::Ucx(Ucx::new("tag_lat", size, pingpong(size)))),
                CurveSide { name: "libfabric shm", side: Box::new(fabric), may_fail: true },
            ],
        },
        Plan {
            section: "bandwidth",
            title: "Bandwidth: messages and RDMA writes in a stream",
            up: "MB/s (millions of bytes)",
            shown: FigureUnit::Bandwidth,
            across: HorizontalAxis::Bytes,
            network_kind: |_| NetworkKind::Loopback,
            sizes: powers_of_four(16 << 20),
            all: vec![
                curve_side("dapl-rs send", move |size| ours("rate", size)),
                curve_side("UCX tag", move |size| Side::Ucx(Ucx::new("tag_bw", size, stream(size)))),
                curve_side("dapl-rs write", move |size| ours("write", size)),
                curve_side("UCX put", move |size| Side::Ucx(Ucx::new("ucp_put_bw", size, stream(size)))),
            ],
        },
    ]
}
