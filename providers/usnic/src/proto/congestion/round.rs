//! Packet-timed round trips (draft-ietf-ccwg-bbr-06, 5.5.1), and whether the window limited sending in the last of
//! them.

use super::RateSample;

/// A round: from the transmission of a packet to the ack of a packet sent after that.
#[derive(Debug, Default)]
pub(super) struct Round {
    next_delivered: u64,
    /// Number of completed rounds.
    pub(super) count: u64,
    /// The last ack completed a round.
    pub(super) is_start: bool,
    /// The window limited sending: in this round, and in the previous one.
    limited: [bool; 2],
}

impl Round {
    /// UpdateRound() of the draft.
    pub(super) fn acked(&mut self, rate: &RateSample, is_cwnd_limited: bool) {
        self.is_start = rate.prior_delivered >= self.next_delivered;
        if self.is_start {
            self.start(rate.total_delivered);
            self.count += 1;
            self.limited = [false, self.limited[0]];
        }
        self.limited[0] |= is_cwnd_limited;
    }

    /// StartRound() of the draft.
    pub(super) fn start(&mut self, total_delivered: u64) {
        self.next_delivered = total_delivered;
    }

    /// C.is_cwnd_limited of the draft (2.2).
    pub(super) fn is_cwnd_limited(&self) -> bool {
        self.limited[0] || self.limited[1]
    }
}
