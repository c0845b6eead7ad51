//! Round trips as units of time: what was sent in each, what of that was lost, and the least round trip seen.
//!
//! A round ends with the first ack of something sent after it began. It is told by counting bytes, for the age of a packet
//! cannot be told from round trips that leave out the delay of acks. Losses go to the round in which the packet was sent.

use crate::proto::Nanos;

/// At which load a round's packets were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Load {
    /// As much as the window allowed.
    Full,
    /// Just after a decrease.
    Low,
    /// Neither: it says nothing about how loss depends on load.
    #[default]
    Other,
}

/// One of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) began: Nanos,
    pub(super) load: Load,
    pub(super) sent: f64,
    pub(super) lost: f64,
    /// Reports of loss: packets of one train are lost together.
    pub(super) events: f64,
    /// Least round trip of an ack in it; the largest number: none.
    pub(super) least: Nanos,
}

/// Rounds that are kept after they ended: losses of the last are settled by then.
const KEPT: usize = 3;

/// What is left in `recent` of a round after each later one.
const FADES: f64 = 0.85;

#[derive(Debug)]
pub(super) struct Rounds {
    now: Round,
    past: [Round; KEPT],
    /// Bytes in flight when this round began, less what of them is accounted for.
    due: u64,
    recent: (f64, f64, f64),
}

impl Rounds {
    pub(super) fn new() -> Self {
        let none = Round { least: Nanos::MAX, ..Round::default() };
        Rounds { now: none, past: [none; KEPT], due: 0, recent: (0.0, 0.0, 0.0) }
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        self.now.sent += bytes as f64;
    }

    /// Says whether this ack ends the round.
    pub(super) fn acked(&mut self, bytes: u64, rtt: Option<Nanos>) -> bool {
        self.now.least = self.now.least.min(rtt.unwrap_or(Nanos::MAX));
        let ends = self.due == 0;
        self.due = self.due.saturating_sub(bytes);
        ends
    }

    pub(super) fn lost(&mut self, bytes: u64, first_sent: Nanos) {
        self.due = self.due.saturating_sub(bytes);
        self.recent.1 += bytes as f64;
        self.recent.2 += 1.0;
        let [newer @ .., oldest] = &mut self.past;
        let all = std::iter::once(&mut self.now).chain(newer.iter_mut());
        let mut held = all.filter(|round| round.began <= first_sent);
        let round = held.next().unwrap_or(oldest);
        round.lost += bytes as f64;
        round.events += 1.0;
    }

    /// This round says nothing about load.
    pub(super) fn spoil(&mut self) {
        self.now.load = Load::Other;
    }

    /// Begins another round, and gives the one that is too old to keep: what it lost is known.
    pub(super) fn begin(&mut self, now: Nanos, in_flight: u64, load: Load) -> Round {
        let settled = self.past[KEPT - 1];
        let (sent, lost, events) = self.recent;
        self.recent = (sent * FADES + self.now.sent, lost * FADES, events * FADES);
        self.past.rotate_right(1);
        self.past[0] = self.now;
        self.now = Round { began: now, load, least: Nanos::MAX, ..Round::default() };
        self.due = in_flight;
        settled
    }

    /// The present one.
    pub(super) fn now(&self) -> &Round {
        &self.now
    }

    /// Sent, lost and reports of loss of late: the last rounds count most.
    pub(super) fn recent(&self) -> (f64, f64, f64) {
        self.recent
    }
}
