//! Decides when to send an ack (US-10): one ack per batch of packets, not per packet.
//!
//! The caller reports each received data packet, checks after each batch whether an ack is due, and reports each sent
//! ack. The ack of a small message is delayed, so that a data packet in the other direction can carry it. A gap or a
//! duplicate causes an immediate ack.

use super::received::Arrival;
use super::{MICROS, Nanos};

/// Maximum delay of the ack in nanoseconds after a long packet of an RDMA write (`PROMPT_ACK_BYTES` in
/// `conn/receive.rs`). If the consumer posts a request within this time, the request carries the ack.
const RDMA_WRITE_DELAY: Nanos = 4 * MICROS;

/// The pending ack of a connection, and its timing.
#[derive(Debug, Default)]
pub(crate) struct AckClock {
    /// Maximum delay of an ack in nanoseconds.
    delay: Nanos,
    /// Whether `shorten_delay` was called since the last ack, because a long packet of an RDMA write has arrived.
    is_prompt: bool,
    /// Number of new packets after which an ack is due.
    every: u32,
    /// Number of new packets that were not acked yet.
    pending: u32,
    /// Arrival time of the first unacked packet.
    since: Nanos,
    /// Arrival time of the newest packet.
    newest: Nanos,
    urgency: Urgency,
}

/// How soon the pending ack must be sent, and whether a data packet may carry it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum Urgency {
    /// The ack may wait for its deadline.
    #[default]
    Waits,
    /// An ack is due immediately, carried by a data packet or in an ack packet.
    Now,
    /// An ack packet is due immediately, because only ack packets contain ranges and refusals.
    AckPacket,
}

impl AckClock {
    /// An ack is due after `delay` nanoseconds, or after `every` new packets. Callers pass as `every` the number of
    /// packets in a quarter of the receive window, at most 1024.
    pub(crate) fn new(delay: Nanos, every: u32) -> Self {
        AckClock { delay, every: every.max(1), ..AckClock::default() }
    }

    /// Records a data packet. A packet outside the window has no effect.
    ///
    /// `last_of_chunks` means that the packet is the last one of a message of several packets. `ack_now` means that the
    /// packet requests an ack, or fills a gap.
    pub(crate) fn record_arrival(&mut self, now: Nanos, arrival: Arrival, last_of_chunks: bool, ack_now: bool) {
        let urgency = match arrival {
            Arrival::Outside => return,
            Arrival::Duplicate | Arrival::Ahead => Urgency::AckPacket,
            Arrival::Next if last_of_chunks || ack_now => Urgency::Now,
            Arrival::Next => Urgency::Waits,
        };
        self.urgency = self.urgency.max(urgency);
        if arrival == Arrival::Duplicate {
            return;
        }
        if self.pending == 0 {
            self.since = now;
        }
        self.pending = self.pending.saturating_add(1);
        self.newest = now;
        if self.pending >= self.every {
            self.urgency = self.urgency.max(Urgency::Now);
        }
    }

    /// Shortens the delay of the pending ack after an RDMA write. The write completes at the initiator only with the
    /// ack. The target's consumer is not notified of the write, and usually posts no request that could carry the ack.
    pub(crate) fn shorten_delay(&mut self) {
        self.is_prompt = true;
    }

    /// Makes an ack due immediately, for example to advertise credits. A data packet may carry it.
    pub(crate) fn request_ack(&mut self) {
        self.urgency = self.urgency.max(Urgency::Now);
    }

    /// Makes an ack packet due immediately.
    pub(crate) fn send_ack_packet(&mut self) {
        self.urgency = Urgency::AckPacket;
    }

    #[inline(always)]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0 || self.urgency > Urgency::Waits
    }

    /// Whether the ack must be sent now.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns the deadline of the pending ack: 0 if the ack is due immediately, or `None` if no ack is pending.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        match self.urgency {
            Urgency::Waits => {
                let delay = if self.is_prompt { RDMA_WRITE_DELAY.min(self.delay) } else { self.delay };
                (self.pending > 0).then(|| self.since.saturating_add(delay))
            }
            Urgency::Now | Urgency::AckPacket => Some(0),
        }
    }

    /// Records that a data packet carries an ack, and returns the delay field of the ack: the time since the
    /// arrival of the newest packet, in microseconds. Such an ack has no ranges of
    /// packets received after a missing one, so an ack packet that is due for these ranges stays due.
    pub(crate) fn take_piggybacked(&mut self, now: Nanos) -> u16 {
        if self.is_pending() {
            (self.pending, self.is_prompt) = (0, false);
            if self.urgency != Urgency::AckPacket {
                self.urgency = Urgency::Waits;
            }
        }
        (now.saturating_sub(self.newest) / MICROS).try_into().unwrap_or(u16::MAX)
    }

    /// Records that an ack packet is sent, and returns its delay field.
    pub(crate) fn ack_packet_sent(&mut self, now: Nanos) -> u16 {
        self.urgency = Urgency::Waits;
        self.take_piggybacked(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Nanos = 50 * MICROS;
    const START: Nanos = 7_000_000;

    fn clock() -> AckClock {
        AckClock::new(DELAY, 4)
    }

    /// Returns the pending ack after one packet.
    fn after(arrival: Arrival, last_of_chunks: bool, ack_now: bool) -> AckClock {
        let mut clock = clock();
        clock.record_arrival(START, arrival, last_of_chunks, ack_now);
        clock
    }

    #[test]
    fn rdma_write_shortens_the_delay_of_only_the_next_ack() {
        let mut clock = after(Arrival::Next, false, false);
        clock.shorten_delay();
        assert!(!clock.is_due(START) && clock.is_due(START + RDMA_WRITE_DELAY));
        clock.take_piggybacked(START);
        assert_eq!(clock.deadline(), None);
        clock.record_arrival(START, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + DELAY), "the delay of the next batch starts with its first packet");
    }

    #[test]
    fn ack_of_a_single_small_message_is_delayed() {
        let mut clock = after(Arrival::Next, false, false);
        assert!(clock.is_pending() && !clock.is_due(START + DELAY - 1) && clock.is_due(START + DELAY));
        clock.record_arrival(START + 20 * MICROS, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + DELAY), "the delay starts with the first packet");
        assert_eq!(clock.take_piggybacked(START + 30 * MICROS), 10, "the delay field counts from the newest packet");
        assert!(!clock.is_pending() && clock.deadline().is_none() && !clock.is_due(Nanos::MAX));
        clock.record_arrival(START + 90 * MICROS, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + 140 * MICROS), "the packet after an ack starts a new delay");
    }

    #[test]
    fn gaps_message_ends_and_ack_requests_are_acked_immediately() {
        assert!(!clock().is_pending() && !clock().is_due(Nanos::MAX));
        assert!(after(Arrival::Next, true, false).is_due(START) && after(Arrival::Next, false, true).is_due(START));
        assert!(
            after(Arrival::Ahead, false, false).is_due(START) && after(Arrival::Duplicate, false, false).is_due(START)
        );
        assert!(
            !after(Arrival::Outside, true, true).is_pending(),
            "a packet outside of the window is not acked, even if it requests an ack"
        );
        let mut clock = clock();
        clock.request_ack();
        assert!(clock.is_pending() && clock.is_due(0));
        assert!(
            !{
                _ = clock.take_piggybacked(START);
                clock.is_pending()
            },
            "any packet carries the pending ack"
        );
    }

    #[test]
    fn quarter_of_the_window_is_acked_immediately() {
        let mut clock = clock();
        (0..3).for_each(|_| clock.record_arrival(START, Arrival::Next, false, false));
        assert!(!clock.is_due(START));
        clock.record_arrival(START, Arrival::Next, false, false);
        assert!(clock.is_due(START));
        clock.ack_packet_sent(START);
        let mut clock = AckClock::new(MICROS, 0);
        clock.record_arrival(START, Arrival::Next, false, false);
        assert!(clock.is_due(START), "a quarter of a small window is at least one packet");
    }

    #[test]
    fn gap_needs_an_ack_packet_and_not_a_piggybacked_ack() {
        for arrival in [Arrival::Ahead, Arrival::Duplicate] {
            let mut clock = after(arrival, false, false);
            clock.take_piggybacked(START);
            assert!(clock.is_due(START), "the ack in a data packet has no space for the gap, so an ack packet is due");
            clock.ack_packet_sent(START);
            assert!(!clock.is_pending());
        }
        let mut clock = clock();
        clock.send_ack_packet();
        clock.request_ack();
        clock.take_piggybacked(START);
        assert!(clock.is_due(START));
    }

    #[test]
    fn ack_delay_field_saturates() {
        let mut clock = after(Arrival::Next, false, false);
        assert_eq!(clock.ack_packet_sent(START + 65_534 * MICROS), 65_534);
        assert_eq!(
            (clock.ack_packet_sent(START + 65_536 * MICROS), clock.ack_packet_sent(Nanos::MAX)),
            (u16::MAX, u16::MAX)
        );
        assert_eq!(clock.ack_packet_sent(0), 0, "the delay is 0 if the clock goes back");
        let mut clock = AckClock::new(Nanos::MAX, u32::MAX);
        clock.record_arrival(START, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(Nanos::MAX));
    }

    #[test]
    fn duplicates_do_not_change_the_ack_delay_field() {
        let mut clock = after(Arrival::Next, false, false);
        clock.record_arrival(START + 40 * MICROS, Arrival::Duplicate, false, false);
        assert_eq!(clock.ack_packet_sent(START + 45 * MICROS), 45);
    }
}
