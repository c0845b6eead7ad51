//! Rounds: round trips measured in packets (draft-ietf-ccwg-bbr-06, 5.5.1). Also records whether the congestion window
//! limited sending in the current and the previous round.

use super::RateSample;

/// The current round. It lasts until a packet is acked that was sent after the round started.
#[derive(Debug, Default)]
pub(super) struct Round {
    next_delivered: u64,
    /// Number of completed rounds.
    pub(super) count: u64,
    /// Whether the last ack started a new round.
    pub(super) is_start: bool,
    /// Whether the congestion window limited sending: in this round, and in the previous round.
    limited: [bool; 2],
}

impl Round {
    /// Starts a new round if the acked packet was sent in this one: UpdateRound() (draft, 5.5.1).
    pub(super) fn acked(&mut self, rate: &RateSample, is_cwnd_limited: bool) {
        self.is_start = rate.prior_delivered >= self.next_delivered;
        if self.is_start {
            self.start(rate.total_delivered);
            self.count += 1;
            self.limited = [false, self.limited[0]];
        }
        self.limited[0] |= is_cwnd_limited;
    }

    /// Starts a round, which lasts until the ack of a packet that is sent after this call: StartRound() (draft, 5.5.1).
    pub(super) fn start(&mut self, total_delivered: u64) {
        self.next_delivered = total_delivered;
    }

    /// Whether the window limited sending in the current or the previous round: C.is_cwnd_limited (draft, 2.2).
    pub(super) fn is_cwnd_limited(&self) -> bool {
        self.limited[0] || self.limited[1]
    }
}
