//! What has come: a cumulative number, and a bit for each packet of the window from it on.
//!
//! Everything before `next` is here; of the 4096 numbers from it on, some are. Nothing else is remembered, and nothing that
//! a peer says makes it grow. Asked first, told after: `look` changes nothing, `accept` is for a packet that was taken.

use super::WINDOW;
use super::bits::Bits;
use super::psn::Psn;
use super::wire::Range;

/// Where a packet lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// The one that was due.
    Next,
    /// New, and some before it are missing.
    Ahead,
    /// It has been here already: its ack was lost, or the network doubled it.
    Duplicate,
    /// Beyond the window, or so far below that its sender cannot still wait for it.
    Outside,
}

/// Numbers of the packets that are here.
#[derive(Debug)]
pub(crate) struct Received {
    next: Psn,
    /// Of the numbers from `next` on.
    ahead: Bits,
    /// One more than the highest number here; `next` if there is no gap.
    end: Psn,
    /// Where the next report goes on that has no room for all ranges.
    told: Psn,
}

impl Received {
    /// Nothing is here; `first` is due.
    pub(crate) fn new(first: Psn) -> Self {
        Received { next: first, ahead: Bits::new(), end: first, told: first }
    }

    /// Everything before this is here.
    pub(crate) fn next(&self) -> Psn {
        self.next
    }

    /// Nothing waits behind a gap.
    pub(crate) fn is_gapless(&self) -> bool {
        self.end == self.next
    }

    /// Where a packet of this number lies.
    pub(crate) fn look(&self, psn: Psn) -> Arrival {
        const LENGTH: i32 = WINDOW as i32;
        match psn.since(self.next) {
            0 => Arrival::Next,
            1..LENGTH if self.ahead.has(psn) => Arrival::Duplicate,
            1..LENGTH => Arrival::Ahead,
            // A sender keeps no more than a window of them, so it asks for nothing older.
            ..0 if self.next.since(psn) <= LENGTH && psn.is_before(self.next) => Arrival::Duplicate,
            _ => Arrival::Outside,
        }
    }

    /// The packet of this number has been taken. Says how far `next` moved; 0 for what is not new.
    pub(crate) fn accept(&mut self, psn: Psn) -> u32 {
        match self.look(psn) {
            Arrival::Next if self.is_gapless() => {
                self.next = psn.next();
                self.end = self.next;
                1
            }
            Arrival::Next => {
                let gap = self.ahead.first_clear(psn.next(), self.reach()).unwrap_or(self.end);
                let moved = gap.since(psn).unsigned_abs();
                self.ahead.clear_run(psn, moved);
                self.next = gap;
                moved
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

    /// Numbers from `next` to the highest.
    fn reach(&self) -> u32 {
        self.end.since(self.next).unsigned_abs()
    }

    /// Writes what is here behind gaps, and says how many ranges that is.
    ///
    /// If there are more than there is room for, the highest ones have half of the room, for they are news, and the other
    /// half goes round, so that after some reports everything has been told.
    pub(crate) fn ranges(&mut self, out: &mut [Range]) -> usize {
        if self.is_gapless() || out.is_empty() {
            return 0;
        }
        let (count, rest) = self.write(self.next, out);
        if rest.is_none() {
            return count;
        }
        let is_inside = self.next.is_before(self.told) && self.told.is_before(self.end);
        let from = if is_inside { self.told } else { self.next };
        let (older, rest) = self.write(from, &mut out[..count.div_ceil(2)]);
        self.told = rest.unwrap_or(self.next);
        older + self.write_highest(&mut out[older..][..count / 2])
    }

    /// Writes the ranges from `from` on; where it stopped if there was no room.
    fn write(&self, from: Psn, out: &mut [Range]) -> (usize, Option<Psn>) {
        let mut at = from;
        for (count, range) in out.iter_mut().enumerate() {
            let Some((first, end)) = self.range(at) else { return (count, None) };
            *range = Range { first: first.0.into(), end: end.0.into() };
            at = end;
        }
        (out.len(), self.range(at).map(|_| at))
    }

    /// The first range from `from` on.
    fn range(&self, from: Psn) -> Option<(Psn, Psn)> {
        let left = self.end.since(from).unsigned_abs();
        let first = self.ahead.first_set(from, left)?;
        let left = self.end.since(first).unsigned_abs();
        Some((first, self.ahead.first_clear(first, left).unwrap_or(self.end)))
    }

    /// Writes the highest ranges, the highest first.
    fn write_highest(&self, out: &mut [Range]) -> usize {
        let mut end = self.end;
        for (count, range) in out.iter_mut().enumerate() {
            let Some(last) = self.ahead.last_set(self.next, end.since(self.next).unsigned_abs()) else { return count };
            // The number that is due is never set.
            let before = self.ahead.last_clear(self.next, last.since(self.next).unsigned_abs()).unwrap_or(self.next);
            *range = Range { first: before.next().0.into(), end: last.next().0.into() };
            end = before;
        }
        out.len()
    }
}
