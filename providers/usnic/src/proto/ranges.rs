//! The byte ranges of a message that have arrived, as a sorted array (UR-3). Adjacent ranges are merged.
//!
//! The first range needs no allocation. The number of ranges is limited. A range beyond the limit is not recorded, so
//! the peer retransmits its packet.

use crate::proto::WINDOW;

/// Maximum number of ranges besides the first. A full window in which every second packet is missing has this number of
/// ranges.
const MAX_RANGES: usize = WINDOW as usize / 2;

/// The bytes from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    /// The lowest range. It is empty if no byte has arrived.
    first: Span,
    /// All other ranges in ascending order. No two ranges are adjacent.
    more: Vec<Span>,
}

impl Ranges {
    /// Removes all ranges.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.first = Span::default();
        if self.more.capacity() > 0 {
            self.more = Vec::new();
        }
    }

    /// Records the bytes from `start` up to, but not including, `end`. Returns false, without effect, if there are too
    /// many ranges.
    pub(crate) fn add(&mut self, start: u32, end: u32) -> bool {
        let span = Span { start, end };
        if self.first == Span::default() || (self.more.is_empty() && end < self.first.start) {
            if self.first != Span::default() {
                self.more.push(self.first);
            }
            self.first = span;
            return true;
        }
        if self.more.is_empty() && start <= self.first.end {
            self.first = self.first.with(span);
            return true;
        }
        self.add_among(span)
    }

    /// Whether all bytes of a message of this length have arrived.
    pub(crate) fn is_whole(&self, length: u32) -> bool {
        self.first.start == 0 && self.first.end == length && self.more.is_empty()
    }

    fn add_among(&mut self, mut span: Span) -> bool {
        if span.end < self.first.start {
            let fits = self.insert(0, self.first);
            self.first = if fits { span } else { self.first };
            return fits;
        }
        let begin = self.more.partition_point(|other| other.end < span.start);
        let end = self.more.partition_point(|other| other.start <= span.end);
        if span.start <= self.first.end {
            // The new range overlaps the first range or is adjacent to it, so it also merges with each other range
            // before `end`.
            span = self.more[..end].iter().fold(self.first.with(span), |span, other| span.with(*other));
            self.first = span;
            self.more.drain(..end);
            return true;
        }
        if begin == end {
            return self.insert(begin, span);
        }
        self.more[begin] = self.more[begin..end].iter().fold(span, |span, other| span.with(*other));
        self.more.drain(begin + 1..end);
        true
    }

    fn insert(&mut self, at: usize, span: Span) -> bool {
        let fits = self.more.len() < MAX_RANGES;
        if fits {
            self.more.insert(at, span);
        }
        fits
    }
}

impl Span {
    fn with(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_added_in_order_allocate_no_memory() {
        let mut ranges = Ranges::default();
        for at in 0..1000 {
            assert!(ranges.add(at * 1500, (at + 1) * 1500));
        }
        assert_eq!((ranges.more.capacity(), ranges.is_whole(1_500_000)), (0, true));
    }

    #[test]
    fn every_second_packet_of_a_window_can_be_recorded() {
        let mut ranges = Ranges::default();
        let noted = (0..2 * MAX_RANGES as u32).filter(|i| ranges.add(i * 20 + 10, i * 20 + 20)).count();
        assert_eq!(noted, MAX_RANGES + 1);
        assert!(!ranges.is_whole(10));
        assert!(ranges.add(0, u32::MAX), "a range that merges with others needs no space");
        assert!(ranges.is_whole(u32::MAX) && ranges.more.is_empty());
    }

    #[test]
    fn range_beyond_the_limit_is_rejected_without_effect() {
        let mut ranges = Ranges::default();
        (0..=MAX_RANGES as u32).for_each(|i| assert!(ranges.add(i * 20 + 10, i * 20 + 20)));
        assert!(!ranges.add(0, 5));
        assert_eq!(ranges.first, Span { start: 10, end: 20 }, "a rejected range replaces no other");
    }

    proptest! {
        #[test]
        fn recorded_ranges_match_a_model_set_of_bytes(parts in prop::collection::vec((0..60u32, 1..12u32), 0..60)) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 80]);
            for (start, length) in parts {
                prop_assert!(ranges.add(start, start + length));
                bytes[start as usize..(start + length) as usize].fill(true);
                let all: Vec<Span> = std::iter::once(ranges.first).chain(ranges.more.iter().copied()).collect();
                let is_in = |at: usize| all.iter().any(|s| (s.start..s.end).contains(&(at as u32)));
                prop_assert!((0..80).all(|at| is_in(at) == bytes[at]));
                prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "adjacent ranges must be merged");
                let whole = bytes.iter().take_while(|there| **there).count();
                let rest = bytes[whole..].iter().any(|there| *there);
                prop_assert_eq!(ranges.is_whole(whole as u32), whole > 0 && !rest);
            }
        }
    }
}
