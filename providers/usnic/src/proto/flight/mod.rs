//! Loss recovery according to RFC 9002 and RACK (RFC 8985) for unacked packets (US-8, US-9, US-11).
//!
//! A packet is in one of four states: unsent (no PSN yet), in flight, lost, acked. The connection reports the packets
//! that it sends and the acks that it receives, and asks which packets to retransmit, and when.
//!
//! An ack may be stale, duplicate or forged. An ack outside the sent range is counted and ignored. The work per
//! received packet is bounded, and the window limits the memory.

mod acked;
mod delivery;
mod reorder;
mod ring;
mod timeout;

use super::bits::Bits;
use super::psn::Psn;
use super::rtt::{Rtt, Timing};
use super::{Nanos, WINDOW};
#[cfg(test)]
pub(crate) use delivery::PacketState;
pub(crate) use delivery::{Delivery, LostPacket, RateSample, is_loss_too_high};
use reorder::Reorder;
use ring::{NewPacket, PacketRing};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RetransmitCause {
    /// The packet was declared lost, because later packets were acked.
    Loss,
    /// A probe timeout has expired, and the packet is sent again to get an ack. Also used for withdrawn sends.
    Pto,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PsnState {
    Acked,
    Unsent,
    InFlight,
    Lost,
}

/// Error for an ack whose PSN is after the next new packet or more than a window in the past, or that contains an
/// invalid range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OutOfWindow;

/// Packets that were declared lost at the same time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LostPackets {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    /// Send time of the lost packet that was sent first.
    pub(crate) first_sent: Nanos,
    /// Send time of the lost packet that was sent last.
    pub(crate) last_sent: Nanos,
    /// Number of discontiguous ranges of lost PSNs.
    pub(crate) ranges: u32,
    /// PSN of the last lost packet.
    pub(crate) last: Option<Psn>,
    /// The first lost packet at which the loss rate since its transmission was too high.
    pub(crate) excess: Option<LostPacket>,
}

impl LostPackets {
    fn add(&mut self, psn: Psn, sent: Nanos, packet: LostPacket) {
        self.first_sent = if self.packets == 0 { sent } else { self.first_sent.min(sent) };
        self.last_sent = self.last_sent.max(sent);
        self.packets += 1;
        self.bytes += packet.bytes;
        self.ranges += u32::from(self.last.is_none_or(|last| last.next() != psn));
        self.last = Some(psn);
        if self.excess.is_none() && is_loss_too_high(packet.lost, packet.tx_in_flight) {
            self.excess = Some(packet);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct AckResult {
    /// Number of newly acked packets.
    pub(crate) packets: u32,
    /// Bytes of the newly acked packets.
    pub(crate) bytes: u64,
    /// New RTT sample, without the peer's ack delay. It was already added to `rtt()`.
    pub(crate) rtt: Option<Nanos>,
    /// Packets that were declared lost. They are queued for retransmission.
    pub(crate) lost: LostPackets,
    /// Delivery rate sample. `None` if no packet was newly acked, or if for each of them it is unknown which of its
    /// transmissions arrived.
    pub(crate) rate: Option<RateSample>,
    /// Whether the cumulative PSN advanced.
    pub(crate) advanced: bool,
    /// Number of newly acked packets that were wrongly declared lost.
    pub(crate) spurious: u32,
    /// Whether the ack is older than a processed one, and therefore had no effect.
    pub(crate) old: bool,
}

/// Result of `on_time`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExpiredTimer {
    /// No timer has expired.
    Nothing,
    /// The probe timeout has expired. This number of packets is queued for retransmission, and may be sent regardless
    /// of the congestion window (`probes`). The retransmissions should request an ack, because the packets may have
    /// arrived.
    Probe(u32),
    /// These packets were declared lost, and are queued for retransmission.
    Lost(LostPackets),
    /// The peer has timed out: no packet was newly acked within the time limit.
    GiveUp,
}

/// Counters of loss recovery.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RecoveryCounters {
    /// Acks that are older than a processed ack.
    pub(crate) old: u64,
    /// Acks that repeat a gap.
    pub(crate) repeated: u64,
    /// Acks outside the sent range.
    pub(crate) beyond_sent: u64,
    /// Packets that were declared lost.
    pub(crate) losses: u64,
    /// Packets that were queued for retransmission after a probe timeout, or by `retransmit_where`.
    pub(crate) probes: u64,
    /// Packets that were declared lost but had arrived.
    pub(crate) spurious_losses: u64,
    /// Packets counted in `probes` that had arrived.
    pub(crate) spurious_probes: u64,
}

/// The unacked packets. `T` is the data from which a packet is retransmitted.
#[derive(Debug)]
pub(crate) struct UnackedPackets<T> {
    /// Every packet before this PSN is acked.
    first: Psn,
    /// PSN of the next new packet.
    next: Psn,
    /// For each packet from `first` on, whether it was sent and is not acked.
    unacked: Bits,
    /// For each unacked packet, whether it waits for retransmission. The other unacked packets are in flight.
    lost: Bits,
    lost_count: u32,
    /// No packet before this PSN waits for retransmission.
    lost_from: Psn,
    ring: PacketRing<T>,
    reorder: Reorder,
    pub(crate) delivery: Delivery,
    pub(crate) rtt: Rtt,
    /// Used by `learn_from_first`: time of the first ack of a spuriously retransmitted packet since the last normal
    /// RTT sample, and time of the first transmission of that packet. `None` if there was no such ack.
    unsure: Option<(Nanos, Nanos)>,
    /// Time at which a packet was last newly acked, or was sent while no other packet was unacked.
    progress: Nanos,
    /// Time of the last probe timeout.
    last_pto: Nanos,
    /// Number of probe timeouts since a packet was last newly acked.
    pto_count: u32,
    /// Number of packets that may be retransmitted after a probe timeout even if the congestion window is full.
    pub(crate) probes: u32,
    /// Number of acks that reported a gap since the cumulative PSN last advanced.
    duplicate_acks: u32,
    pub(crate) counters: RecoveryCounters,
}

impl<T: Copy> UnackedPackets<T> {
    /// Creates an empty set. The first packet will have the PSN `first`.
    pub(crate) fn new(first: Psn, timing: Timing) -> Self {
        UnackedPackets {
            first,
            next: first,
            unacked: Bits::new(),
            lost: Bits::new(),
            lost_count: 0,
            lost_from: first,
            ring: PacketRing::new(),
            reorder: Reorder::new(),
            delivery: Delivery::default(),
            unsure: None,
            rtt: Rtt::new(timing),
            progress: 0,
            last_pto: 0,
            pto_count: 0,
            probes: 0,
            duplicate_acks: 0,
            counters: RecoveryCounters::default(),
        }
    }

    /// Returns the PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Returns the PSN before which every packet is acked.
    pub(crate) fn cumulative(&self) -> Psn {
        self.first
    }

    /// Returns the number of PSNs from the first unacked packet to the last sent packet.
    fn psn_count(&self) -> u32 {
        self.next.0.wrapping_sub(self.first.0)
    }

    /// Returns the number of new packets for which the window has space (US-8).
    pub(crate) fn free_slots(&self) -> u32 {
        WINDOW - self.psn_count()
    }

    /// Whether every sent packet is acked.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// Returns the number of bytes in flight, without packets that wait for retransmission.
    pub(crate) fn bytes(&self) -> u64 {
        self.ring.bytes
    }

    /// Returns the number of packets in flight, without packets that wait for retransmission.
    #[cfg(test)]
    pub(crate) fn packets(&self) -> u32 {
        self.ring.in_flight_count
    }

    /// Returns the number of packets that wait for retransmission.
    #[cfg(test)]
    pub(crate) fn lost_packets(&self) -> u32 {
        self.lost_count
    }

    /// Returns the number of probe timeouts since a packet was last newly acked.
    #[cfg(test)]
    pub(crate) fn pto_count(&self) -> u32 {
        self.pto_count
    }

    /// Marks the connection as app-limited: congestion control allows more data than the connection has to send.
    pub(crate) fn mark_app_limited(&mut self) {
        self.delivery.mark_app_limited(self.ring.bytes);
    }

    /// Returns the state of the packet with this PSN.
    pub(crate) fn state(&self, psn: Psn) -> PsnState {
        match psn.since(self.first) {
            ..0 => PsnState::Acked,
            at if at.unsigned_abs() >= self.psn_count() => PsnState::Unsent,
            _ if !self.unacked.has(psn) => PsnState::Acked,
            _ if self.lost.has(psn) => PsnState::Lost,
            _ => PsnState::InFlight,
        }
    }

    /// Whether no packet waits for retransmission, and no probe may be sent.
    #[inline]
    pub(crate) fn has_no_loss(&self) -> bool {
        self.lost_count == 0 && self.probes == 0
    }

    /// Records a new packet, and returns its PSN. The window must have space.
    #[inline(always)]
    pub(crate) fn sent(&mut self, now: Nanos, bytes: u64, what: T) -> Psn {
        let span = self.psn_count(); // The ring has a slot for each packet in this span, and grows on demand.
        if span == 0 {
            self.progress = now;
        }
        let psn = self.next;
        let order = self.reorder.transmit();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let state = self.delivery.sent(now, bytes.into(), self.ring.bytes + u64::from(bytes));
        self.ring.insert(psn, span, NewPacket { what, bytes, now, order, state });
        self.unacked.set(psn);
        self.next = psn.next();
        self.probes = self.probes.saturating_sub(1);
        psn
    }

    /// Returns the first packet that waits for retransmission.
    pub(crate) fn lost(&self) -> Option<(Psn, T)> {
        if self.lost_count == 0 {
            return None;
        }
        let psn = self.lost.first_set(self.lost_from, self.next.since(self.lost_from).unsigned_abs())?;
        Some((psn, self.ring.slot(psn).what))
    }

    /// Returns the cause of a packet's pending or last retransmission, or `None` if there was no retransmission or the
    /// packet is acked.
    pub(crate) fn retransmit_cause(&self, psn: Psn) -> Option<RetransmitCause> {
        match self.state(psn) {
            PsnState::Lost => Some(self.ring.slot(psn).cause),
            PsnState::InFlight => Some(self.ring.slot(psn)).filter(|slot| slot.sends > 1).map(|slot| slot.cause),
            PsnState::Acked | PsnState::Unsent => None,
        }
    }

    /// Returns the retransmission data of an unacked packet.
    pub(crate) fn data(&self, psn: Psn) -> Option<&T> {
        let is_unacked = matches!(self.state(psn), PsnState::InFlight | PsnState::Lost);
        is_unacked.then(|| &self.ring.slot(psn).what)
    }

    /// Replaces the retransmission data of a packet. Has no effect if the packet is acked, or was never sent.
    pub(crate) fn replace_data(&mut self, psn: Psn, what: T) {
        if matches!(self.state(psn), PsnState::InFlight | PsnState::Lost) {
            self.ring.slot_mut(psn).what = what;
        }
    }

    /// Records a retransmission. Has no effect if the packet was acked meanwhile.
    pub(crate) fn record_retransmission(&mut self, now: Nanos, psn: Psn) {
        match self.state(psn) {
            PsnState::Acked | PsnState::Unsent => return,
            PsnState::InFlight => self.stop(psn),
            PsnState::Lost => {
                self.lost.clear(psn);
                self.lost_count -= 1;
                if self.lost_from == psn {
                    self.lost_from = psn.next();
                }
            }
        }
        let order = self.reorder.transmit();
        let slot = self.ring.slot_mut(psn);
        (slot.sent, slot.order, slot.sends) = (now, order, slot.sends.saturating_add(1));
        let bytes = slot.bytes;
        self.ring.append(psn);
        self.ring.slot_mut(psn).state = self.delivery.sent(now, bytes.into(), self.ring.bytes);
        self.probes = self.probes.saturating_sub(1);
    }

    /// Removes a packet from the in-flight set. Its delivery is unknown.
    fn stop(&mut self, psn: Psn) {
        if self.ring.oldest() != Some(psn) {
            self.reorder.mark_unknown(self.ring.slot(psn).order);
        }
        self.ring.remove(psn);
    }

    /// Declares a packet lost because later packets were acked, and adds it to `lost`.
    fn lose_to_gap(&mut self, psn: Psn, lost: &mut LostPackets) {
        self.queue_retransmit(psn, RetransmitCause::Loss);
        let slot = self.ring.slot(psn);
        lost.add(psn, slot.sent, self.delivery.lost(slot.bytes.into(), &slot.state));
    }

    /// Removes a packet from the in-flight set, and queues it for retransmission.
    fn queue_retransmit(&mut self, psn: Psn, cause: RetransmitCause) {
        self.stop(psn);
        self.lost_from = match self.lost_count {
            0 => psn,
            _ if psn.is_before(self.lost_from) => psn,
            _ => self.lost_from,
        };
        self.lost.set(psn);
        self.lost_count += 1;
        match cause {
            RetransmitCause::Loss => self.counters.losses += 1,
            RetransmitCause::Pto => self.counters.probes += 1,
        }
        self.ring.slot_mut(psn).cause = cause;
    }

    /// Queues the packets for which `is_void` returns true for retransmission. Skips packets whose last transmission is
    /// so recent that its ack cannot have arrived. Congestion control does not count the queued packets as lost.
    pub(crate) fn retransmit_where(&mut self, now: Nanos, is_void: impl Fn(&T) -> bool) {
        // Minimum time from a transmission to its ack: the minimum RTT, less the ack delay that it may include.
        let trip = self.rtt.min_rtt().unwrap_or(0).saturating_sub(self.rtt.timing.ack_delay);
        let mut at = self.first;
        while let Some(psn) = self.unacked.first_set(at, self.next.since(at).unsigned_abs()) {
            let slot = self.ring.slot(psn);
            if !self.lost.has(psn) && now.saturating_sub(slot.sent) >= trip && is_void(&slot.what) {
                self.queue_retransmit(psn, RetransmitCause::Pto);
            }
            at = psn.next();
        }
    }

    /// Frees the slots if every packet is acked. The memory is allocated again on demand.
    pub(crate) fn free_memory(&mut self) {
        if self.is_empty() {
            self.ring.free_memory();
        }
    }
}

#[cfg(test)]
mod tests;
