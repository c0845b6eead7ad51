//! What time changes: every packet in flight has a deadline (US-9), and the one that left first has the first.
//!
//! A packet that was overtaken is lost after a little more than a round trip; one that nothing overtook is no more than
//! late, so that after the timeout one or two are sent again to get an answer, and not the whole window.

use super::super::Nanos;
use super::{Flight, Lost, Timeout, Why};

/// Timeouts in a row before a peer can be given up: a process that slept has to ask again first.
const TIMEOUTS: u32 = 3;

impl<T: Copy> Flight<T> {
    /// Finds what is lost, oldest first.
    pub(super) fn detect(&mut self, now: Nanos, lost: &mut Lost) {
        let patience = self.reorder.patience(&self.rtt);
        while let Some(psn) = self.ring.oldest() {
            let slot = self.ring.slot(psn);
            let is_late = self.reorder.is_overtaken(slot.order) && now.saturating_sub(slot.sent) >= patience;
            if !is_late && !self.reorder.is_passed(slot.order, self.ring.flying() - 1) {
                return;
            }
            self.lose_to_gap(psn, lost);
        }
    }

    /// When `on_time` has something to do; `None` if nothing is in flight (what is to be resent waits for its sender).
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let slot = self.ring.slot(self.ring.oldest()?);
        let timeout = self.timeout();
        if !self.reorder.is_overtaken(slot.order) {
            return Some(timeout);
        }
        Some(timeout.min(slot.sent.saturating_add(self.reorder.patience(&self.rtt))))
    }

    /// When to probe or to give up.
    fn timeout(&self) -> Nanos {
        let oldest = self.ring.oldest().map_or(0, |psn| self.ring.slot(psn).sent);
        let from = oldest.max(self.progress).max(self.timed_out);
        let timeout = from.saturating_add(self.rtt.pto(self.timeouts));
        match self.timeouts {
            ..TIMEOUTS => timeout,
            _ => timeout.min(self.give_up()),
        }
    }

    /// When the peer is gone, if it was asked often enough.
    fn give_up(&self) -> Nanos {
        self.progress.saturating_add(self.rtt.timing().give_up)
    }

    /// The time has come, perhaps. May have to be called again: ask `deadline`. Whatever has arrived is to be handed in
    /// before, or it is taken for late.
    pub(crate) fn on_time(&mut self, now: Nanos) -> Timeout {
        let mut lost = Lost::default();
        self.detect(now, &mut lost);
        if lost.packets > 0 {
            return Timeout::Lost(lost);
        }
        if self.ring.flying() == 0 || now < self.timeout() {
            return Timeout::Nothing;
        }
        if self.timeouts >= TIMEOUTS && now >= self.give_up() {
            return Timeout::GiveUp;
        }
        // One is enough if only an ack was late; if packets are lost, two have a better chance.
        self.probes = if self.timeouts == 0 { 1 } else { 2 };
        self.probes = self.probes.min(self.ring.flying());
        self.timeouts += 1;
        self.timed_out = now;
        for _ in 0..self.probes {
            if let Some(psn) = self.ring.oldest() {
                self.lose(psn, Why::Probe);
            }
        }
        Timeout::Probe(self.probes)
    }
}
