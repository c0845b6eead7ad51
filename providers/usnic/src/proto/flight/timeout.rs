//! Timers of loss detection (RFC 9002, 6.1.2 and 6.2; US-9): the loss delay, and the probe timeout (PTO).
//!
//! A packet is declared lost after the loss delay if a packet sent later was acked. Otherwise the probe timeout queues
//! the oldest one or two packets for retransmission, to get an ack. Congestion control does not count these as lost.

use super::super::Nanos;
use super::{ExpiredTimer, LostPackets, RetransmitCause, UnackedPackets};

/// Number of consecutive probe timeouts before a peer can time out. So a process that was stopped sends probes before
/// it ends its connections.
const PTOS_BEFORE_GIVING_UP: u32 = 3;

impl<T: Copy> UnackedPackets<T> {
    /// Detects lost packets, oldest transmission first: DetectAndRemoveLostPackets (RFC 9002, A.10).
    pub(super) fn detect_losses(&mut self, now: Nanos, lost: &mut LostPackets) {
        let loss_delay = self.reorder.loss_delay(&self.rtt);
        while let Some(psn) = self.ring.oldest() {
            let slot = self.ring.slot(psn);
            let is_late =
                self.reorder.left_before_newest_acked(slot.order) && now.saturating_sub(slot.sent) >= loss_delay;
            if !is_late && !self.reorder.exceeds_packet_threshold(slot.order, self.ring.in_flight_count - 1) {
                return;
            }
            self.lose_to_gap(psn, lost);
        }
    }

    /// Returns the time at which `on_time` must be called, or `None` if no packet is in flight. Packets queued for
    /// retransmission need no timer, because the send path decides when to send them.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let slot = self.ring.slot(self.ring.oldest()?);
        let timeout = self.pto_deadline();
        if !self.reorder.left_before_newest_acked(slot.order) {
            return Some(timeout);
        }
        Some(timeout.min(slot.sent.saturating_add(self.reorder.loss_delay(&self.rtt))))
    }

    /// Returns the time of the next probe timeout. After [`PTOS_BEFORE_GIVING_UP`] probe timeouts, returns the time of
    /// the peer's timeout if that is earlier.
    fn pto_deadline(&self) -> Nanos {
        let oldest = self.ring.oldest().map_or(0, |psn| self.ring.slot(psn).sent);
        let from = oldest.max(self.progress).max(self.last_pto);
        let timeout = from.saturating_add(self.rtt.pto(self.pto_count));
        match self.pto_count {
            ..PTOS_BEFORE_GIVING_UP => timeout,
            _ => timeout.min(self.peer_timeout_at()),
        }
    }

    /// Returns the time at which the peer times out, provided that enough probes were sent.
    fn peer_timeout_at(&self) -> Nanos {
        self.progress.saturating_add(self.rtt.timing.give_up)
    }

    /// Handles expired timers. The caller must first process all received acks, because otherwise acked packets may be
    /// declared lost.
    pub(crate) fn on_time(&mut self, now: Nanos) -> ExpiredTimer {
        let mut lost = LostPackets::default();
        self.detect_losses(now, &mut lost);
        if lost.packets > 0 {
            return ExpiredTimer::Lost(lost);
        }
        if self.ring.in_flight_count == 0 || now < self.pto_deadline() {
            return ExpiredTimer::Nothing;
        }
        if self.pto_count >= PTOS_BEFORE_GIVING_UP && now >= self.peer_timeout_at() {
            return ExpiredTimer::GiveUp;
        }
        // The first probe timeout sends one probe, which is sufficient if only an ack was late. Later timeouts send
        // two, because packets are probably being lost (RFC 9002, 6.2.4).
        self.probes = if self.pto_count == 0 { 1 } else { 2 };
        self.probes = self.probes.min(self.ring.in_flight_count);
        self.pto_count += 1;
        self.last_pto = now;
        for _ in 0..self.probes {
            if let Some(psn) = self.ring.oldest() {
                self.queue_retransmit(psn, RetransmitCause::Pto);
            }
        }
        ExpiredTimer::Probe(self.probes)
    }
}
