//! The state word of a handle table entry: its live bit, kind, exclusion bit, generation and reference count. This
//! module only computes values; `HandleEntry` does the atomic accesses.
#![forbid(unsafe_code)]

use super::Kind;

pub(super) struct StateWord;

impl StateWord {
    pub(super) const LIVE: u64 = 1;
    pub(super) const KIND_SHIFT: u32 = 1;
    pub(super) const KINDS: u64 = 0x7F << Self::KIND_SHIFT;
    /// Set while posts and dequeues must count a reference instead of using a hazard slot; see
    /// [`exclude`](super::exclude).
    pub(super) const EXCLUSIVE: u64 = 1 << 8;
    pub(super) const GENERATION_SHIFT: u32 = 9;
    /// Generations have 23 bits.
    pub(super) const GENERATIONS: u32 = (1 << 23) - 1;
    /// One reference. The count is in the upper half, so that checks of the lower half are 32-bit instructions.
    pub(super) const REFERENCE: u64 = 1 << 32;
    pub(super) const REFERENCES: u64 = 0xFFFF_FFFF << 32;

    pub(super) fn kind(word: u64) -> u8 {
        ((word & Self::KINDS) >> Self::KIND_SHIFT) as u8
    }

    pub(super) fn generation(word: u64) -> u32 {
        (word >> Self::GENERATION_SHIFT) as u32 & Self::GENERATIONS
    }

    /// The word of the next generation: no kind, not live, no references.
    pub(super) fn next_generation(word: u64) -> u64 {
        u64::from(Self::generation(word).wrapping_add(1) & Self::GENERATIONS) << Self::GENERATION_SHIFT
    }

    #[inline(always)]
    pub(super) fn is(word: u64, kind: Kind) -> bool {
        word & (Self::LIVE | Self::KINDS) == Self::LIVE | (kind as u64) << Self::KIND_SHIFT
    }

    /// Whether the word is live, of this kind, and no thread excludes posts.
    #[inline(always)]
    pub(super) fn is_shared(word: u64, kind: Kind) -> bool {
        let bits = Self::LIVE | Self::KINDS | Self::EXCLUSIVE;
        word & bits == Self::LIVE | (kind as u64) << Self::KIND_SHIFT
    }
}
