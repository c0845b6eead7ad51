//! The set of received packets: a cumulative PSN (`next`), before which all packets have arrived, and a bit for each
//! packet of the window after it.
//!
//! The set has a fixed size, whatever the peer sends. `classify` compares a packet with the set. After the packet was
//! processed, `accept` records it.

use super::WINDOW;
use super::bits::Bits;
use super::psn::Psn;
use super::wire::SackRange;

/// Position of a packet relative to the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// The next packet in order.
    Next,
    /// A new packet after a missing one.
    Ahead,
    /// The packet has arrived before: its sender has retransmitted it, or the network has duplicated it.
    Duplicate,
    /// The packet is beyond the window, or so far before `next` that its sender cannot be waiting for its ack.
    Outside,
}

/// The set of received packets.
#[derive(Debug)]
pub(crate) struct Received {
    next: Psn,
    /// The received packets after `next`.
    ahead: Bits,
    /// One more than the highest received PSN. It equals `next` if no packet is missing before a received one.
    end: Psn,
    /// PSN at which the ranges of the next ack start, if not all ranges fit into one ack.
    reported: Psn,
}

impl Received {
    /// Creates an empty set. `first` is the PSN of the peer's first packet.
    pub(crate) fn new(first: Psn) -> Self {
        Received { next: first, ahead: Bits::new(), end: first, reported: first }
    }

    /// Returns the first PSN that has not arrived.
    pub(crate) fn next(&self) -> Psn {
        self.next
    }

    /// Whether no packet is missing before a received one.
    pub(crate) fn is_gapless(&self) -> bool {
        self.end == self.next
    }

    /// Classifies the packet with this PSN.
    pub(crate) fn classify(&self, psn: Psn) -> Arrival {
        const LENGTH: i32 = WINDOW as i32;
        const BEHIND: i32 = -LENGTH;
        match psn.since(self.next) {
            0 => Arrival::Next,
            1..LENGTH if self.ahead.has(psn) => Arrival::Duplicate,
            1..LENGTH => Arrival::Ahead,
            // A sender has at most a window of unacked packets, so it does not wait for acks of older packets.
            BEHIND..0 => Arrival::Duplicate,
            _ => Arrival::Outside,
        }
    }

    /// Records a packet. Returns the number of PSNs by which `next` has advanced.
    pub(crate) fn accept(&mut self, psn: Psn) -> u32 {
        match self.classify(psn) {
            Arrival::Next if self.is_gapless() => {
                self.next = psn.next();
                self.end = self.next;
                1
            }
            Arrival::Next => {
                let gap = self.ahead.first_clear(psn.next(), self.span()).unwrap_or(self.end);
                let advance = gap.since(psn).unsigned_abs();
                self.ahead.clear_run(psn, advance);
                self.next = gap;
                advance
            }
            Arrival::Ahead => {
                self.ahead.set(psn);
                if self.end.is_before(psn.next()) {
                    self.end = psn.next();
                }
                0
            }
            Arrival::Duplicate | Arrival::Outside => 0,
        }
    }

    /// Returns the number of PSNs from `next` up to and including the highest received PSN.
    fn span(&self) -> u32 {
        self.end.since(self.next).unsigned_abs()
    }

    /// Writes the ranges of packets received after missing ones, and returns the number of ranges. If not all ranges
    /// fit, one half of the space gets the highest ranges. The ranges in the other half continue those of the previous
    /// call.
    pub(crate) fn ranges(&mut self, out: &mut [SackRange]) -> usize {
        if self.is_gapless() || out.is_empty() {
            return 0;
        }
        let (count, rest) = self.write(self.next, out);
        if rest.is_none() {
            return count;
        }
        let is_inside = self.next.is_before(self.reported) && self.reported.is_before(self.end);
        let from = if is_inside { self.reported } else { self.next };
        let (older, rest) = self.write(from, &mut out[..count.div_ceil(2)]);
        self.reported = rest.unwrap_or(self.next);
        older + self.write_highest(&mut out[older..][..count / 2])
    }

    /// Writes the ranges from `from` on. Returns the number of ranges, and the PSN at which the next call continues if
    /// not all ranges fit.
    fn write(&self, from: Psn, out: &mut [SackRange]) -> (usize, Option<Psn>) {
        let mut at = from;
        for (count, range) in out.iter_mut().enumerate() {
            let Some((first, end)) = self.range(at) else { return (count, None) };
            *range = SackRange { first: first.0.into(), end: end.0.into() };
            at = end;
        }
        (out.len(), self.range(at).map(|_| at))
    }

    /// Returns the first range that starts at or after `from`.
    fn range(&self, from: Psn) -> Option<(Psn, Psn)> {
        let left = self.end.since(from).unsigned_abs();
        let first = self.ahead.first_set(from, left)?;
        let left = self.end.since(first).unsigned_abs();
        Some((first, self.ahead.first_clear(first, left).unwrap_or(self.end)))
    }

    /// Writes the highest ranges in descending order.
    fn write_highest(&self, out: &mut [SackRange]) -> usize {
        let mut end = self.end;
        for (count, range) in out.iter_mut().enumerate() {
            let Some(last) = self.ahead.last_set(self.next, end.since(self.next).unsigned_abs()) else { return count };
            // If no bit is clear, the range starts after `next`, which has not arrived.
            let before = self.ahead.last_clear(self.next, last.since(self.next).unsigned_abs()).unwrap_or(self.next);
            *range = SackRange { first: before.next().0.into(), end: last.next().0.into() };
            end = before;
        }
        out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::RANGES;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const STARTS: [u32; 7] = [0, 1, 4095, (1 << 31) - 2, 1 << 31, u32::MAX - 70, u32::MAX];

    fn reported(received: &mut Received, space: usize) -> Vec<(u32, u32)> {
        let mut out = vec![SackRange::default(); space];
        let count = received.ranges(&mut out);
        out[..count].iter().map(|range| (range.first.get(), range.end.get())).collect()
    }

    #[test]
    fn packets_before_and_after_the_window_are_outside() {
        for start in STARTS.map(Psn) {
            let mut received = Received::new(start);
            let at = |distance: i32| Psn(start.0.wrapping_add_signed(distance));
            assert_eq!(received.classify(at(-1)), Arrival::Duplicate);
            assert_eq!(received.classify(at(-4096)), Arrival::Duplicate);
            assert_eq!(received.classify(at(-4097)), Arrival::Outside);
            assert_eq!(received.classify(at(i32::MIN)), Arrival::Outside);
            assert_eq!(received.classify(at(i32::MAX)), Arrival::Outside);
            assert_eq!(received.classify(at(0)), Arrival::Next);
            assert_eq!(received.classify(at(4095)), Arrival::Ahead);
            assert_eq!(received.classify(at(4096)), Arrival::Outside);
            assert_eq!((received.accept(at(4096)), received.accept(at(-1)), received.is_gapless()), (0, 0, true));
            assert_eq!((received.accept(at(4095)), received.is_gapless()), (0, false));
            assert_eq!(received.classify(at(4095)), Arrival::Duplicate);
            let advance: u32 = (0..4095).map(|distance| received.accept(at(distance))).sum();
            assert_eq!((advance, received.next(), received.is_gapless()), (4096, at(4096), true));
            assert_eq!(received.classify(at(4096 + 4095)), Arrival::Ahead, "no bit of the previous window remains set");
        }
    }

    #[test]
    fn limited_sack_report_has_the_newest_ranges_and_rotates_the_others() {
        for start in STARTS.map(Psn) {
            let mut received = Received::new(start);
            (1..2048).for_each(|pair| _ = received.accept(start.plus(pair * 2)));
            let mut all = BTreeSet::new();
            for _ in 0..2048 / (RANGES / 2) {
                let ranges = reported(&mut received, RANGES);
                assert!(ranges.len() > RANGES / 2);
                assert!(ranges.contains(&(start.plus(4094).0, start.plus(4095).0)), "each report has the newest range");
                all.extend(ranges);
            }
            assert_eq!(all.len(), 2047, "the reports together have all ranges");
            received.accept(start);
            received.accept(start.plus(1));
            assert_eq!(reported(&mut received, 1).len(), 1, "a report with space for one range has one");
            assert_eq!(reported(&mut received, 0).len(), 0, "a report without space has no range");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn received_psns_match_a_model_set(
            start in prop_oneof![prop::sample::select(STARTS.to_vec()), any::<u32>()],
            steps in prop::collection::vec((-5000i32..5000, 1u32..40, any::<bool>()), 1..120),
            space in 0..70usize,
        ) {
            let first = Psn(start);
            let mut received = Received::new(first);
            // The model: for each packet received after a missing one, its distance from the first PSN.
            let mut model = BTreeSet::new();
            let mut next = 0i64;
            for (distance, run, from_next) in steps {
                let base = if from_next { 0 } else { i64::from(distance) };
                for at in (next + base..).take(run as usize) {
                    let psn = first.plus(at as u32);
                    let expected = match at - next {
                        0 => Arrival::Next,
                        -4096..0 => Arrival::Duplicate,
                        1..4096 if model.contains(&at) => Arrival::Duplicate,
                        1..4096 => Arrival::Ahead,
                        _ => Arrival::Outside,
                    };
                    prop_assert_eq!(received.classify(psn), expected);
                    let mut advance = 0;
                    if matches!(expected, Arrival::Next | Arrival::Ahead) {
                        model.insert(at);
                        while model.remove(&next) {
                            (next, advance) = (next + 1, advance + 1);
                        }
                    }
                    prop_assert_eq!(received.accept(psn), advance);
                    prop_assert_eq!(received.next(), first.plus(next as u32));
                    prop_assert_eq!(received.is_gapless(), model.is_empty());
                }
                let ranges = reported(&mut received, space);
                let here = |psn: u32| i64::from(Psn(psn).since(first.plus(next as u32))) + next;
                for &(from, end) in &ranges {
                    prop_assert!(here(from) < here(end) && (here(from)..here(end)).all(|at| model.contains(&at)));
                }
                let covered: i64 = ranges.iter().map(|&(from, end)| here(end) - here(from)).sum();
                let all = model.iter().filter(|&at| !model.contains(&(at - 1))).count();
                if all <= space {
                    prop_assert!(covered == model.len() as i64 && ranges.len() == all, "a report with enough space must have all ranges, complete");
                } else {
                    prop_assert!(ranges.len() >= space / 2 && ranges.len() <= space);
                }
            }
        }
    }
}
