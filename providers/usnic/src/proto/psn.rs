//! Packet sequence numbers (PSNs): modulo 2^32, compared across the wrap.
//!
//! A comparison is valid if the numbers are less than 2^31 apart, which the window of 4096 ensures.

/// Packet sequence number of a connection and direction.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Psn(pub(crate) u32);

impl Psn {
    /// The next number.
    pub(crate) fn next(self) -> Psn {
        self.plus(1)
    }

    /// The number `count` later.
    pub(crate) fn plus(self, count: u32) -> Psn {
        Psn(self.0.wrapping_add(count))
    }

    /// Distance from `from`; negative if before it.
    pub(crate) fn since(self, from: Psn) -> i32 {
        self.0.wrapping_sub(from.0) as i32
    }

    /// Whether it precedes `other`.
    pub(crate) fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_across_the_wrap() {
        for start in [0, 1, u32::MAX - 1, u32::MAX, 1 << 31, (1 << 31) - 1] {
            let first = Psn(start);
            assert_eq!(first.next().since(first), 1);
            assert_eq!(first.plus(4096).since(first), 4096);
            assert!(first.is_before(first.next()) && !first.is_before(first) && !first.next().is_before(first));
        }
    }
}
