//! Content of a transaction's data: a byte depends on the writing side, thread, endpoint, operation, iteration and
//! offset.
#![forbid(unsafe_code)]

use crate::operation::Side;

/// Fill byte for memory that a transfer will overwrite.
pub(super) const UNWRITTEN: u8 = 0xee;

/// Identifies a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) by: Side,
    pub(super) thread: usize,
    pub(super) endpoint: usize,
    pub(super) operation: usize,
    pub(super) iteration: u32,
}

impl Origin {
    /// Returns the expected byte for each offset.
    pub(super) fn pattern(self) -> impl Fn(usize) -> u8 {
        let mut seed = u64::from(self.by == Side::Server);
        for part in [self.thread, self.endpoint, self.operation, self.iteration as usize] {
            seed = (seed ^ part as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        let seed = (seed >> 17) as usize;
        move |at| seed.wrapping_add(at).wrapping_add((at >> 8).wrapping_mul(31)).wrapping_add((at >> 16) * 17) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_transfers_have_the_same_pattern() {
        let origin = Origin { by: Side::Client, thread: 0, endpoint: 0, operation: 0, iteration: 0 };
        let others = [
            Origin { by: Side::Server, ..origin },
            Origin { thread: 1, ..origin },
            Origin { endpoint: 1, ..origin },
            Origin { operation: 1, ..origin },
            Origin { iteration: 1, ..origin },
        ];
        for other in others {
            let (ours, theirs) = (origin.pattern(), other.pattern());
            assert!((0..64).any(|at| ours(at) != theirs(at)), "{other:?}");
        }
        let bytes = origin.pattern();
        assert!((0..256).any(|at| bytes(at) != bytes(at + 256)), "two pages have the same pattern");
        assert_eq!(origin.pattern()(77), bytes(77));
    }
}
