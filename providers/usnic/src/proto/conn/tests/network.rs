//! Faults and delay of the network between two test endpoints, and the random numbers that decide about each packet.

use crate::proto::{MICROS, Nanos};

/// Faults of the network in packets per thousand, and its delay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) drop: u64,
    pub(crate) double: u64,
    pub(crate) corrupt: u64,
    /// Packets per thousand with an additional delay, and the maximum of this delay.
    pub(crate) late: u64,
    pub(crate) lateness: Nanos,
    pub(crate) latency: Nanos,
    /// Size in bytes above which datagrams are dropped.
    pub(crate) mtu: usize,
}

impl Default for NetworkConditions {
    fn default() -> Self {
        let lateness = 300 * MICROS;
        NetworkConditions { drop: 0, double: 0, corrupt: 0, late: 0, lateness, latency: 10 * MICROS, mtu: 65_507 }
    }
}

/// Pseudo-random numbers from a seed (splitmix64).
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn hits(&mut self, parts: u64) -> bool {
        parts > 0 && self.below(1000) < parts
    }
}
