//! Congestion control for a peer on this host.
//!
//! The loopback interface has no bottleneck link. Packets queue mainly in the peer's socket receive buffer, and ack
//! times depend on thread scheduling. So this algorithm has no model of the path, and the window starts with the size
//! of that buffer.
//!
//! Several connections may share the peer's socket and overflow its buffer. The resulting loss is a congestion signal,
//! and so is a full queue of this host (ENOBUFS). After such a signal, the window follows NewReno (RFC 9002, 7.3 and
//! B). Packets are not paced.

use super::recovery::Recovery;
use super::round::Round;
use super::{AckEvent, Controller, LossEvent, MINIMUM_PACKETS, SentPacket};
use crate::proto::Nanos;

/// Divisor of the window after a loss (RFC 9002, B.1, kLossReductionFactor).
const REDUCTION: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct Local {
    packet: u64,
    cwnd: u64,
    ssthresh: u64,
    recovery: Recovery,
    round: Round,
    srtt: Nanos,
}

impl Local {
    /// `packet` is the datagram size in bytes. `credit` is the size of the peer's socket receive buffer in bytes, and
    /// becomes the initial window.
    pub(crate) fn new(packet: u64, credit: u64) -> Self {
        let packet = packet.max(1);
        let cwnd = credit.max(MINIMUM_PACKETS * packet);
        Local { packet, cwnd, ssthresh: u64::MAX, ..Local::default() }
    }

    fn minimum(&self) -> u64 {
        MINIMUM_PACKETS * self.packet
    }

    /// Reduces the window: OnCongestionEvent() (RFC 9002, B.6).
    fn reduce(&mut self) {
        self.ssthresh = (self.cwnd / REDUCTION).max(self.minimum());
        self.cwnd = self.ssthresh;
    }
}

impl Controller for Local {
    #[inline]
    fn sent(&mut self, _sent: &SentPacket) {}

    /// Grows the window: OnPacketAcked() (RFC 9002, B.5).
    fn acked(&mut self, ack: &AckEvent) {
        self.srtt = ack.srtt;
        let Some(rate) = &ack.rate else { return };
        self.recovery.acked(rate.send_time);
        self.round.acked(rate, ack.is_cwnd_limited);
        if self.recovery.is_active() || !self.round.is_cwnd_limited() {
            return;
        }
        let grown = if self.cwnd < self.ssthresh { ack.bytes } else { self.packet * ack.bytes / self.cwnd };
        self.cwnd = self.cwnd.saturating_add(grown);
    }

    fn lost(&mut self, loss: &LossEvent) {
        if self.recovery.lost(loss) {
            self.reduce();
        }
        if loss.is_persistent {
            self.cwnd = self.minimum();
        }
    }

    fn overflowed(&mut self, now: Nanos) {
        if self.recovery.record_congestion(now, self.srtt) {
            self.reduce();
        }
    }

    #[inline]
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    fn resize(&mut self, packet: u64) {
        self.packet = packet.max(1);
        self.cwnd = self.cwnd.max(self.minimum());
    }
}
