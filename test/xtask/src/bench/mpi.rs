//! Data transfer as in MPI libraries: short messages are written into rings that the target polls in memory; long ones
//! are announced, and then written into memory registered for each. For any provider; the caller selects the peers.
#![forbid(unsafe_code)]

use super::contest::Contest;
use super::ground::Terrain;
use super::ours::Ask;
use super::pair::Cores;
use super::side::{Effort, Shown, Side};

/// The name of these contests.
pub(super) const ID: &str = "mpi";

fn contest(title: &'static str, shown: Shown, must: Option<f64>, ask: Ask, peers: Vec<Side>) -> Contest {
    let (ours, terrain) = (Side::Ours(ask), Terrain::Loopback);
    Contest { id: ID, title, shown, must, stretch: None, ours, peers, terrain }
}

/// Half the round trip of a message of this size, `count` times.
pub(super) fn eager(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, Shown::Microseconds, must, Ask::new("eager", size, count), peers)
}

/// Same in shared memory that is registered as such: the source writes into it without a system call.
pub(super) fn eager_shared(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, Shown::Microseconds, must, Ask::new("eager", size, count).with(&["-m"]), peers)
}

/// Half the round trip of sends whose receives are polled in memory; the engine's thread places them.
pub(super) fn polled(title: &'static str, size: u32, count: u32, must: Option<f64>) -> Contest {
    contest(title, Shown::Microseconds, must, Ask::new("polled", size, count), Vec::new())
}

/// Time to a receive that is polled in memory, while the sender sleeps and leaves a processor to the engine's thread.
pub(super) fn polled_one_way(title: &'static str, size: u32, count: u32, must: Option<f64>) -> Contest {
    let ask = Ask { cores: Cores::Any, ..Ask::new("polled", size, count).with(&["-w"]) };
    contest(title, Shown::Microseconds, must, ask, Vec::new())
}

/// Messages of this size, several at a time.
pub(super) fn rendezvous(title: &'static str, size: u32, count: u32, must: Option<f64>, peers: Vec<Side>) -> Contest {
    contest(title, Shown::Bandwidth, must, Ask::new("rendezvous", size, count), peers)
}

/// The registration of one piece of a long message, in memory that is new to the library.
pub(super) fn registration(effort: Effort, must: Option<f64>) -> Contest {
    const PIECE: u32 = 128 << 10;
    let ask = Ask::new("register", PIECE, effort.count(20_000).max(100));
    contest("registration of 128 KiB", Shown::Microseconds, must, ask, Vec::new())
}
