//! Processes an ack: marks packets as acked, measures RTT and delivery rate, and detects losses.
//!
//! The whole ack is validated before any part of it takes effect.

use super::super::psn::Psn;
use super::super::wire::SackRange;
use super::super::{Nanos, WINDOW};
use super::delivery::PacketState;
use super::{AckResult, OutOfWindow, PsnState, RetransmitCause, UnackedPackets};

/// Number of round trips without an RTT sample after which first transmissions of retransmitted packets give samples.
const UNSAMPLED_ROUND_TRIPS: Nanos = 4;

/// Totals of the packets that one ack newly acks.
#[derive(Default)]
struct AckTotals {
    acked: AckResult,
    /// The latest transmission that is known to be acked: its order, its time, and how often its packet was sent.
    newest: Option<(u64, Nanos, u8)>,
    /// Totals of delivered and lost bytes at the latest acked transmission.
    state: PacketState,
    /// The latest time of a first transmission, among the acked packets for which `record_spurious` was called.
    first: Option<Nanos>,
}

impl<T: Copy> UnackedPackets<T> {
    /// Processes an ack of all packets before `next`, and of `ranges` after it. `delay` is the peer's ack delay. Calls
    /// `done` once for each newly acked packet, in PSN order for packets before `next`.
    pub(crate) fn acked(
        &mut self,
        now: Nanos,
        next: Psn,
        ranges: &[SackRange],
        delay: Nanos,
        done: &mut impl FnMut(Psn, T),
    ) -> Result<AckResult, OutOfWindow> {
        if !self.is_inside(next, ranges) {
            self.counters.beyond_sent += 1;
            return Err(OutOfWindow);
        }
        if next.is_before(self.first) {
            self.counters.old += 1;
            return Ok(AckResult { old: true, ..AckResult::default() });
        }
        let mut totals = AckTotals::default();
        totals.acked.advanced = next != self.first;
        self.remove_acked(now, self.first, next, &mut totals, done);
        self.first = next;
        for range in ranges {
            self.remove_acked(now, Psn(range.first.get()), Psn(range.end.get()), &mut totals, done);
        }
        self.advance_first();
        self.update_rtt(now, delay, &mut totals);
        self.note_duplicate_ack(now, !ranges.is_empty(), &mut totals.acked);
        self.detect_losses(now, &mut totals.acked.lost);
        if let Some((_, sent, _)) = totals.newest {
            let min_rtt = self.rtt.min_rtt().unwrap_or(0);
            totals.acked.rate = Some(self.delivery.sample(&totals.state, sent, min_rtt));
        }
        Ok(totals.acked)
    }

    /// Whether an ack is valid. Each range must be non-empty and lie between `next` and the next new packet. `next`
    /// must be at most a window before the next new packet or before the first unacked packet.
    fn is_inside(&self, next: Psn, ranges: &[SackRange]) -> bool {
        const LENGTH: i32 = WINDOW as i32;
        let sent = self.next.since(next);
        let is_near = (0..=LENGTH).contains(&sent) || (0..=LENGTH).contains(&self.first.since(next));
        let fits = |range: &SackRange| {
            let (first, end) = (Psn(range.first.get()).since(next), Psn(range.end.get()).since(next));
            0 <= first && first < end && end <= sent
        };
        is_near && ranges.iter().all(fits)
    }

    /// Advances `first` to the first unacked packet.
    fn advance_first(&mut self) {
        if !self.unacked.has(self.first) {
            self.first = self.unacked.first_set(self.first, self.psn_count()).unwrap_or(self.next);
        }
        if self.lost_from.is_before(self.first) {
            self.lost_from = self.first;
        }
    }

    /// Marks the unacked packets of a range as acked, and passes each to `done`.
    fn remove_acked(&mut self, now: Nanos, from: Psn, end: Psn, totals: &mut AckTotals, done: &mut impl FnMut(Psn, T)) {
        let mut at = from;
        while at.is_before(end) {
            let Some(psn) = self.unacked.first_set(at, end.since(at).unsigned_abs()) else { return };
            self.mark_acked(now, psn, totals);
            done(psn, self.ring.slot(psn).what);
            at = psn.next();
        }
    }

    /// Marks a packet as acked, and detects whether its retransmission was spurious.
    fn mark_acked(&mut self, now: Nanos, psn: Psn, totals: &mut AckTotals) {
        let slot = self.ring.slot(psn);
        let (first, sent, order, sends, cause, state) =
            (slot.first, slot.sent, slot.order, slot.sends, slot.cause, slot.state);
        self.delivery.acked(now, slot.bytes.into());
        totals.acked.packets += 1;
        totals.acked.bytes += u64::from(slot.bytes);
        self.unacked.clear(psn);
        let was_lost = self.lost.has(psn);
        if was_lost {
            self.lost.clear(psn);
            self.lost_count -= 1;
        } else {
            self.ring.remove(psn);
        }
        // An ack that arrives less than the minimum RTT after the last transmission belongs to an earlier transmission.
        let is_early = sends > 1 && self.rtt.min_rtt().is_some_and(|minimum| now.saturating_sub(sent) < minimum);
        if was_lost || is_early {
            self.record_spurious(now, cause, totals);
            totals.first = totals.first.max(Some(first));
        } else if sends > 1 && cause == RetransmitCause::Loss {
            self.reorder.record_real_loss();
        }
        if is_early {
            self.reorder.mark_unknown(order);
        } else {
            self.reorder.acked(order);
            if totals.newest.is_none_or(|(newest, ..)| newest < order) {
                (totals.newest, totals.state) = (Some((order, sent, sends)), state);
            }
        }
    }

    /// Records that a packet was retransmitted, or queued for it, although an earlier transmission had arrived.
    fn record_spurious(&mut self, now: Nanos, cause: RetransmitCause, totals: &mut AckTotals) {
        match cause {
            RetransmitCause::Loss => {
                self.counters.spurious_losses += 1;
                totals.acked.spurious += 1;
                self.reorder.record_spurious(now, &self.rtt);
            }
            RetransmitCause::Pto => self.counters.spurious_probes += 1,
        }
    }

    /// If packets were newly acked, restarts the timeouts (probe and peer), and updates the RTT estimates.
    fn update_rtt(&mut self, now: Nanos, delay: Nanos, totals: &mut AckTotals) {
        if totals.acked.packets == 0 {
            return;
        }
        self.progress = now;
        self.pto_count = 0;
        self.probes = 0;
        // Only the newest acked packet gives an RTT sample, and only if it was sent once (RFC 9002, 5.1; Karn's
        // algorithm).
        if let Some((order, sent, 1)) = totals.newest
            && !self.reorder.left_before_newest_acked(order)
        {
            self.rtt.record_sample(now, now.saturating_sub(sent), delay);
            totals.acked.rtt = self.rtt.latest_rtt();
            self.unsure = None;
        } else if let Some(first) = totals.first {
            self.learn_from_first(now, first, delay);
        }
    }

    /// Samples the RTT from the first transmission of a packet that was retransmitted spuriously.
    ///
    /// After a large increase of the path's delay, every packet is retransmitted before its ack can arrive, so no
    /// packet gives a normal sample. Therefore, first transmissions give samples after [`UNSAMPLED_ROUND_TRIPS`] round
    /// trips without a sample. In addition, the send times of the acked packets must have advanced by more than half of
    /// this time. If they advance more slowly, packets were really lost.
    fn learn_from_first(&mut self, now: Nanos, first: Nanos, delay: Nanos) {
        let (since, oldest) = *self.unsure.get_or_insert((now, first));
        let lasts = now.saturating_sub(since);
        let is_long = lasts > self.rtt.srtt().unwrap_or(0).saturating_mul(UNSAMPLED_ROUND_TRIPS);
        if is_long && first.saturating_sub(oldest) > lasts / 2 {
            self.rtt.record_sample(now, now.saturating_sub(first), delay);
        }
    }

    /// Counts duplicate acks that report a gap. At the threshold, declares the first unacked packet lost (US-11),
    /// unless it was retransmitted within the loss delay.
    fn note_duplicate_ack(&mut self, now: Nanos, has_gap: bool, acked: &mut AckResult) {
        if acked.advanced {
            self.duplicate_acks = 0;
        }
        if !has_gap {
            return;
        }
        self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        if self.duplicate_acks == 1 {
            return;
        }
        self.counters.repeated += 1;
        if self.duplicate_acks <= self.reorder.duplicate_threshold() || self.state(self.first) != PsnState::InFlight {
            return;
        }
        let slot = self.ring.slot(self.first);
        if slot.sends == 1 || now.saturating_sub(slot.sent) >= self.reorder.loss_delay(&self.rtt) {
            self.lose_to_gap(self.first, &mut acked.lost);
        }
    }
}
