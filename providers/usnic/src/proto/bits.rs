//! A ring of bits, indexed by PSN: by default one bit for each packet of a window. A replay window uses a longer ring.
//!
//! Two packets whose PSNs are the length of the ring or more apart share a bit, so the caller must clear the bits of
//! packets that leave the window.

use super::WINDOW;
use super::psn::Psn;

const BITS: u32 = u64::BITS;

const _: () = assert!(WINDOW.is_multiple_of(BITS));

/// A ring of `64 * WORDS` bits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Bits<const WORDS: usize = { (WINDOW / BITS) as usize }> {
    words: [u64; WORDS],
}

impl<const WORDS: usize> Bits<WORDS> {
    /// Number of bits. It divides 2^32, so that the PSNs before and after the wrap-around have different bits.
    const LENGTH: u32 = {
        assert!(WORDS.is_power_of_two());
        WORDS as u32 * BITS
    };

    /// Creates a ring with all bits clear.
    pub(crate) fn new() -> Self {
        Bits { words: [0; WORDS] }
    }

    /// Returns the index of the 64-bit word that contains a packet's bit, and the index of the bit in the word.
    fn bit_of(psn: Psn) -> (usize, u32) {
        let at = psn.0 % Self::LENGTH;
        ((at / BITS) as usize, at % BITS)
    }

    /// Selects up to `count` bits of the word that contains `from`, starting at `from`. Returns the index of the word,
    /// the mask, and the number of selected bits.
    fn chunk(from: Psn, count: u32) -> (usize, u64, u32) {
        let (word, bit) = Self::bit_of(from);
        let covered = count.min(BITS - bit);
        (word, (u64::MAX >> (BITS - covered)) << bit, covered)
    }

    pub(crate) fn has(&self, psn: Psn) -> bool {
        let (word, bit) = Self::bit_of(psn);
        self.words[word] >> bit & 1 != 0
    }

    pub(crate) fn set(&mut self, psn: Psn) {
        let (word, bit) = Self::bit_of(psn);
        self.words[word] |= 1 << bit;
    }

    pub(crate) fn clear(&mut self, psn: Psn) {
        let (word, bit) = Self::bit_of(psn);
        self.words[word] &= !(1 << bit);
    }

    /// Clears `count` bits, starting at `from`.
    pub(crate) fn clear_run(&mut self, from: Psn, count: u32) {
        let mut at = 0;
        while at < count.min(Self::LENGTH) {
            let (word, mask, covered) = Self::chunk(from.plus(at), count.min(Self::LENGTH) - at);
            self.words[word] &= !mask;
            at += covered;
        }
    }

    /// Returns the first set bit among `count` bits, starting at `from`.
    pub(crate) fn first_set(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find(from, count, |word| word)
    }

    /// Returns the first clear bit among `count` bits, starting at `from`.
    pub(crate) fn first_clear(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find(from, count, |word| !word)
    }

    /// Returns the last set bit among `count` bits, starting at `from`.
    pub(crate) fn last_set(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find_last(from, count, |word| word)
    }

    /// Returns the last clear bit among `count` bits, starting at `from`.
    pub(crate) fn last_clear(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find_last(from, count, |word| !word)
    }

    fn find_last(&self, from: Psn, count: u32, see: impl Fn(u64) -> u64) -> Option<Psn> {
        let mut left = count.min(Self::LENGTH);
        while left > 0 {
            let (_, bit) = Self::bit_of(from.plus(left - 1));
            // Selects the remaining bits of the range that are in its last word.
            let (word, mask, covered) = Self::chunk(from.plus(left - left.min(bit + 1)), left.min(bit + 1));
            let seen = see(self.words[word]) & mask;
            if seen != 0 {
                return Some(from.plus(left - 1 - (bit - seen.ilog2())));
            }
            left -= covered;
        }
        None
    }

    fn find(&self, from: Psn, count: u32, see: impl Fn(u64) -> u64) -> Option<Psn> {
        let count = count.min(Self::LENGTH);
        let mut at = 0;
        while at < count {
            let (word, mask, covered) = Self::chunk(from.plus(at), count - at);
            let seen = see(self.words[word]) & mask;
            if seen != 0 {
                let (_, bit) = Self::bit_of(from.plus(at));
                return Some(from.plus(at + seen.trailing_zeros() - bit));
            }
            at += covered;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn bit_searches_agree_with_a_linear_search(
            start: u32,
            set in prop::collection::vec(0..WINDOW, 0..40),
            from in 0..WINDOW,
            count in 0..=WINDOW + 1,
        ) {
            let (start, from) = (Psn(start), Psn(start).plus(from));
            let mut bits: Bits = Bits::new();
            set.iter().for_each(|&at| bits.set(start.plus(at)));
            let all = || (0..count.min(WINDOW)).map(|at| from.plus(at));
            prop_assert_eq!(bits.first_set(from, count), all().find(|&psn| bits.has(psn)));
            prop_assert_eq!(bits.first_clear(from, count), all().find(|&psn| !bits.has(psn)));
            prop_assert_eq!(bits.last_set(from, count), all().rev().find(|&psn| bits.has(psn)));
            prop_assert_eq!(bits.last_clear(from, count), all().rev().find(|&psn| !bits.has(psn)));
        }

        #[test]
        fn clear_run_clears_only_its_bits(start: u32, count in 0..=WINDOW) {
            let start = Psn(start);
            let mut bits: Bits = Bits::new();
            (0..WINDOW).for_each(|at| bits.set(start.plus(at)));
            bits.clear_run(start, count);
            prop_assert!((0..WINDOW).all(|at| bits.has(start.plus(at)) == (at >= count)));
        }
    }
}
