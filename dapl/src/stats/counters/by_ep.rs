//! Counts the completions of an EVD by EP, under the EVD's lock.
//!
//! Consecutive completions usually belong to one or two EPs. The counts of two recent EPs are kept outside the map, so
//! only a completion of another EP costs a lookup. An EP is added when it starts to use the EVD, so counting allocates
//! no memory.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::EpCounts;
use crate::provider::{Completion, Status, Work};
use crate::runtime::handle::HandleHasher;

/// Counts of the completions of one EP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Completed {
    ok: u64,
    failed: u64,
    flushed: u64,
    /// Bytes of successful work, by [`Work`]. A bind transfers no bytes; bytes of atomic operations are not added to
    /// [`EpCounts`].
    bytes: [u64; Work::ALL.len()],
}

impl Completed {
    #[inline(always)]
    fn count_success(&mut self, done: &Completion) {
        self.ok += 1;
        self.bytes[done.token.work as usize] += done.bytes;
    }

    #[inline]
    fn count(&mut self, done: &Completion) {
        if done.status == Status::Success {
            self.count_success(done);
        } else {
            self.count_failure(done.status);
        }
    }

    #[cold]
    fn count_failure(&mut self, status: Status) {
        if status == Status::Flushed {
            self.flushed += 1;
        } else {
            self.failed += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.flushed += other.flushed;
        for (to, from) in self.bytes.iter_mut().zip(other.bytes) {
            *to += from;
        }
    }

    /// Adds these completions to `counts`.
    pub fn add_to(&self, counts: &mut EpCounts) {
        let bytes = |work: Work| self.bytes[work as usize];
        counts.add(&EpCounts {
            ok: self.ok,
            failed: self.failed,
            flushed: self.flushed,
            bytes_sent: bytes(Work::Send),
            bytes_received: bytes(Work::Recv) + bytes(Work::SharedRecv),
            bytes_read: bytes(Work::Read),
            bytes_written: bytes(Work::Write) + bytes(Work::WriteImmediate),
            ..EpCounts::default()
        });
    }
}

#[derive(Debug, Default)]
pub struct CompletionsByEp {
    /// Two EPs that have completed work recently. Their counts in `recent_counts` are not in `totals` yet.
    recent_eps: [usize; 2],
    recent_counts: [Completed; 2],
    /// Index in both arrays of the recent EP that was added last.
    last: usize,
    /// Counts by EP, without `recent_counts`.
    totals: HashMap<usize, Completed, BuildHasherDefault<HandleHasher>>,
}

impl CompletionsByEp {
    #[inline]
    pub fn count(&mut self, done: &Completion) {
        self.recent(done.token.ep).count(done);
    }

    /// Counts a successful completion, with fewer instructions than [`Self::count`].
    #[inline(always)]
    pub fn count_success(&mut self, done: &Completion) {
        self.recent(done.token.ep).count_success(done);
    }

    #[inline(always)]
    fn recent(&mut self, ep: usize) -> &mut Completed {
        if self.recent_eps[0] == ep {
            return &mut self.recent_counts[0];
        }
        if self.recent_eps[1] == ep {
            return &mut self.recent_counts[1];
        }
        self.add_recent(ep)
    }

    /// Starts counting for an EP. A second call has no effect.
    pub fn open(&mut self, ep: usize) {
        self.totals.entry(ep).or_default();
    }

    /// Removes an EP and returns its counts. Later completions of the EP are not counted.
    pub fn close(&mut self, ep: usize) -> Completed {
        self.flush();
        self.totals.remove(&ep).unwrap_or_default()
    }

    /// Counts of an EP so far.
    pub fn counts_of(&mut self, ep: usize) -> Completed {
        self.flush();
        self.totals.get(&ep).copied().unwrap_or_default()
    }

    /// Replaces the recent EP that was added first, and returns the counts of the new one.
    #[inline(never)]
    fn add_recent(&mut self, ep: usize) -> &mut Completed {
        self.last = (self.last & 1) ^ 1;
        self.replace(self.last, ep);
        &mut self.recent_counts[self.last]
    }

    /// Adds the counts of a recent EP to `totals`, and replaces the EP by another.
    fn replace(&mut self, at: usize, ep: usize) {
        let counts = std::mem::take(&mut self.recent_counts[at]);
        let before = std::mem::replace(&mut self.recent_eps[at], ep);
        if let Some(total) = self.totals.get_mut(&before) {
            total.add(&counts);
        }
    }

    /// Adds the counts of both recent EPs to `totals`.
    fn flush(&mut self) {
        self.replace(0, 0);
        self.replace(1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Token;

    fn done(ep: usize, work: Work, status: Status, bytes: u64) -> Completion {
        Completion { token: Token { ep, work, ..Token::default() }, status, bytes, ..Completion::default() }
    }

    #[test]
    fn each_ep_has_its_own_counts_and_none_is_lost() {
        let mut completions = CompletionsByEp::default();
        completions.open(64);
        completions.open(128);
        completions.count(&done(64, Work::Send, Status::Success, 10));
        completions.count(&done(128, Work::Recv, Status::Success, 7));
        completions.count(&done(64, Work::Write, Status::Success, 5));
        completions.open(64);
        completions.count(&done(64, Work::Read, Status::RemoteAccess, 0));
        completions.count(&done(64, Work::Read, Status::Flushed, 0));
        let counts = |completed: Completed| {
            let mut counts = EpCounts::default();
            completed.add_to(&mut counts);
            counts
        };
        let first = EpCounts { ok: 2, failed: 1, flushed: 1, bytes_sent: 10, bytes_written: 5, ..EpCounts::default() };
        assert_eq!(counts(completions.counts_of(64)), first);
        completions.count(&done(128, Work::SharedRecv, Status::Success, 3));
        assert_eq!(counts(completions.counts_of(128)), EpCounts { ok: 2, bytes_received: 10, ..EpCounts::default() });
        assert_eq!(counts(completions.close(64)), first);
    }

    #[test]
    fn three_eps_in_turn_are_all_counted() {
        let mut completions = CompletionsByEp::default();
        let eps = [64, 128, 192];
        eps.iter().for_each(|ep| completions.open(*ep));
        for n in 0..30 {
            completions.count_success(&done(eps[n % 3], Work::Send, Status::Success, 1));
            completions.count(&done(eps[n % 2], Work::Recv, Status::Success, 1));
        }
        let mut counts = |ep| {
            let mut counts = EpCounts::default();
            completions.counts_of(ep).add_to(&mut counts);
            [counts.ok, counts.bytes_sent, counts.bytes_received]
        };
        assert_eq!(eps.map(&mut counts), [[25, 10, 15], [25, 10, 15], [10, 10, 0]]);
    }

    #[test]
    fn completions_of_unknown_eps_are_not_kept() {
        let mut completions = CompletionsByEp::default();
        completions.count(&done(64, Work::Send, Status::Success, 10));
        assert_eq!(completions.counts_of(64), Completed::default());
        completions.open(64);
        completions.count(&done(64, Work::Send, Status::Success, 10));
        completions.close(64);
        completions.count(&done(64, Work::Send, Status::Success, 10));
        assert_eq!(completions.counts_of(64), Completed::default());
        assert!(completions.totals.is_empty());
    }
}
