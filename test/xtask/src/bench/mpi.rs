//! Contests that transfer data as MPI libraries do. Short messages are written into rings that the target polls in
//! memory. Long messages are announced by a send, and then written into memory registered for the message. Also sends
//! whose receives are polled in memory, and registrations. The caller selects provider and peers.
#![forbid(unsafe_code)]

use super::contest::Contest;
use super::network::NetworkKind;
use super::ours::PerfArguments;
use super::pair::Cores;
use super::side::{Effort, FigureUnit, Side};

/// Name of these contests on the command line.
pub(super) const ID: &str = "mpi";

fn contest(title: &'static str, shown: FigureUnit, must: Option<f64>, ask: PerfArguments, peers: Vec<Side>) -> Contest {
    let (ours, network_kind) = (Side::Ours(ask), NetworkKind::Loopback);
    Contest { id: ID, title, shown, must, stretch: None, ours, peers, network_kind }
}

/// Half a round trip of messages of this size, averaged over `count` round trips.
pub(super) fn eager(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, FigureUnit::Microseconds, must, PerfArguments::new("eager", size, count), peers)
}

/// Same as `eager`, in memory registered as shared: the source writes without a system call.
pub(super) fn eager_shared(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, FigureUnit::Microseconds, must, PerfArguments::new("eager", size, count).with(&["-m"]), peers)
}

/// Half the round trip of sends whose receives are polled in memory; the engine's thread places the data.
pub(super) fn polled(title: &'static str, size: u32, count: u32, must: Option<f64>) -> Contest {
    contest(title, FigureUnit::Microseconds, must, PerfArguments::new("polled", size, count), Vec::new())
}

/// One-way time until the data of a receive is visible in memory. The sender blocks, so that a processor is free for
/// the engine's thread.
pub(super) fn polled_one_way(title: &'static str, size: u32, count: u32, must: Option<f64>) -> Contest {
    let ask = PerfArguments { cores: Cores::Any, ..PerfArguments::new("polled", size, count).with(&["-w"]) };
    contest(title, FigureUnit::Microseconds, must, ask, Vec::new())
}

/// Bandwidth of long messages of this size, several in flight.
pub(super) fn rendezvous(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, FigureUnit::Bandwidth, must, PerfArguments::new("rendezvous", size, count), peers)
}

/// Time to register one part of a long message, in memory that the library has not seen before.
pub(super) fn registration(effort: Effort, must: Option<f64>) -> Contest {
    const PIECE: u32 = 128 << 10;
    let ask = PerfArguments::new("register", PIECE, effort.count(20_000).max(100));
    contest("registration of 128 KiB", FigureUnit::Microseconds, must, ask, Vec::new())
}
