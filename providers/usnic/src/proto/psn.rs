//! Packet sequence numbers (PSNs): 32-bit numbers that wrap around.
//!
//! A comparison is valid if the numbers are less than 2^31 apart. The window of 4096 packets ensures this.

/// Packet sequence number of one direction of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Psn(pub(crate) u32);

impl Psn {
    pub(crate) fn next(self) -> Psn {
        self.plus(1)
    }

    /// Returns the number that is `count` after this one.
    pub(crate) fn plus(self, count: u32) -> Psn {
        Psn(self.0.wrapping_add(count))
    }

    /// Returns the distance from `from` to this number, which is negative if this number is before `from`.
    pub(crate) fn since(self, from: Psn) -> i32 {
        self.0.wrapping_sub(from.0) as i32
    }

    pub(crate) fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_order_and_distance_hold_across_the_wrap() {
        for start in [0, 1, u32::MAX - 1, u32::MAX, 1 << 31, (1 << 31) - 1] {
            let first = Psn(start);
            assert_eq!(first.next().since(first), 1);
            assert_eq!(first.plus(4096).since(first), 4096);
            assert!(first.is_before(first.next()) && !first.is_before(first) && !first.next().is_before(first));
        }
    }
}
