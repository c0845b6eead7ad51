//! Decides when to send an ack (US-10). There is one ack per batch of packets, not per packet.
//!
//! The receiver reports every data packet, asks after each batch whether an ack is due, and reports when it sent an
//! ack. A single small message is acked after a short delay, so that a packet in the other direction can carry the ack.
//! Gaps and duplicates are acked at once.

use super::received::Arrival;
use super::{MICROS, Nanos};

/// Maximum delay of the ack of an RDMA write. If the consumer posts a request within this time, the request carries the
/// ack.
const PROMPT: Nanos = 4 * MICROS;

/// State of the pending ack of a connection.
#[derive(Debug)]
pub(crate) struct AckClock {
    delay: Nanos,
    /// Whether an RDMA write has arrived since the last ack, so that the delay is short.
    is_prompt: bool,
    every: u32,
    /// Number of new packets that were not acked yet.
    pending: u32,
    /// Arrival time of the first unacked packet.
    since: Nanos,
    /// Arrival time of the newest packet.
    newest: Nanos,
    urgency: Urgency,
}

/// Urgency and form of the ack.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Urgency {
    /// The ack may wait for its deadline.
    Waits,
    /// An ack is due now, in an ack packet or carried by a data packet.
    Now,
    /// An ack packet is due now, because only an ack packet has space for selective ranges.
    Whole,
}

impl AckClock {
    /// Creates the state. An ack is due after `delay`, or after `every` packets (at most 1024), a quarter of the peer's
    /// window.
    pub(crate) fn new(delay: Nanos, every: u32) -> Self {
        AckClock {
            delay,
            is_prompt: false,
            every: every.max(1),
            pending: 0,
            since: 0,
            newest: 0,
            urgency: Urgency::Waits,
        }
    }

    /// Records an arrived data packet. `last_of_chunks`: the packet ends a message of several packets. `ack_now`: the
    /// packet requests an ack, or closed a gap. Packets outside the window are ignored.
    pub(crate) fn arrived(&mut self, now: Nanos, arrival: Arrival, last_of_chunks: bool, ack_now: bool) {
        let urgency = match arrival {
            Arrival::Outside => return,
            Arrival::Duplicate | Arrival::Ahead => Urgency::Whole,
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

    /// Records that the packet that has just arrived is an RDMA write, which is acked after a short delay. The
    /// initiator's completion needs the ack, and the target's consumer is not notified, so it may post no message that
    /// carries the ack.
    pub(crate) fn prompt(&mut self) {
        self.is_prompt = true;
    }

    /// Requests an ack for a reason other than a packet, such as new credits or a window change. Data packets may carry
    /// the ack.
    pub(crate) fn at_once(&mut self) {
        self.urgency = self.urgency.max(Urgency::Now);
    }

    /// Requests an ack packet that reports a refusal.
    pub(crate) fn send_ack_packet(&mut self) {
        self.urgency = Urgency::Whole;
    }

    /// Whether an ack is pending.
    #[inline(always)]
    pub(crate) fn owed(&self) -> bool {
        self.pending > 0 || self.urgency > Urgency::Waits
    }

    /// Whether the ack must be sent now.
    pub(crate) fn due(&self, now: Nanos) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns the deadline of the ack; 0 if the ack is due at once.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        match self.urgency {
            Urgency::Waits => {
                let delay = if self.is_prompt { PROMPT.min(self.delay) } else { self.delay };
                (self.pending > 0).then(|| self.since.saturating_add(delay))
            }
            Urgency::Now | Urgency::Whole => Some(0),
        }
    }

    /// Records that a data packet carries the short form of an ack, and returns the delay field. Afterwards only
    /// packets behind a gap are unacked.
    pub(crate) fn carried(&mut self, now: Nanos) -> u16 {
        if self.owed() {
            (self.pending, self.is_prompt) = (0, false);
            if self.urgency != Urgency::Whole {
                self.urgency = Urgency::Waits;
            }
        }
        self.waited(now)
    }

    /// Records that an ack packet is sent, and returns the delay field. Afterwards no ack is pending.
    pub(crate) fn left(&mut self, now: Nanos) -> u16 {
        self.urgency = Urgency::Waits;
        self.carried(now)
    }

    /// Time since the arrival of the newest packet, in microseconds.
    fn waited(&self, now: Nanos) -> u16 {
        (now.saturating_sub(self.newest) / MICROS).try_into().unwrap_or(u16::MAX)
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

    /// Returns the state after one packet.
    fn after(arrival: Arrival, last_of_chunks: bool, ack_now: bool) -> AckClock {
        let mut clock = clock();
        clock.arrived(START, arrival, last_of_chunks, ack_now);
        clock
    }

    #[test]
    fn rdma_write_is_acked_after_its_batch_or_by_a_response() {
        let mut clock = after(Arrival::Next, false, false);
        clock.prompt();
        assert!(!clock.due(START) && clock.due(START + PROMPT));
        clock.carried(START);
        assert_eq!(clock.deadline(), None);
        clock.arrived(START, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + DELAY), "the next batch is a new one");
    }

    #[test]
    fn ack_of_a_single_small_message_is_delayed() {
        let mut clock = after(Arrival::Next, false, false);
        assert!(clock.owed() && !clock.due(START + DELAY - 1) && clock.due(START + DELAY));
        clock.arrived(START + 20 * MICROS, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + DELAY), "the delay starts with the first packet");
        assert_eq!(clock.carried(START + 30 * MICROS), 10, "the delay field counts from the newest packet");
        assert!(!clock.owed() && clock.deadline().is_none() && !clock.due(Nanos::MAX));
        clock.arrived(START + 90 * MICROS, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(START + 140 * MICROS), "the next delay starts anew");
    }

    #[test]
    fn gaps_message_ends_and_ack_requests_are_acked_at_once() {
        assert!(!clock().owed() && !clock().due(Nanos::MAX));
        assert!(after(Arrival::Next, true, false).due(START) && after(Arrival::Next, false, true).due(START));
        assert!(after(Arrival::Ahead, false, false).due(START) && after(Arrival::Duplicate, false, false).due(START));
        assert!(!after(Arrival::Outside, true, true).owed(), "not even if it asks for an ack");
        let mut clock = clock();
        clock.at_once();
        assert!(clock.owed() && clock.due(0));
        assert!(
            !{
                _ = clock.carried(START);
                clock.owed()
            },
            "any packet carries it"
        );
    }

    #[test]
    fn a_quarter_of_the_window_is_acked_at_once() {
        let mut clock = clock();
        (0..3).for_each(|_| clock.arrived(START, Arrival::Next, false, false));
        assert!(!clock.due(START));
        clock.arrived(START, Arrival::Next, false, false);
        assert!(clock.due(START));
        clock.left(START);
        let mut clock = AckClock::new(MICROS, 0);
        clock.arrived(START, Arrival::Next, false, false);
        assert!(clock.due(START), "a quarter of a small window is at least one packet");
    }

    #[test]
    fn gap_is_reported_by_an_ack_packet() {
        for arrival in [Arrival::Ahead, Arrival::Duplicate] {
            let mut clock = after(arrival, false, false);
            clock.carried(START);
            assert!(clock.due(START), "the short form has no space for it");
            clock.left(START);
            assert!(!clock.owed());
        }
        let mut clock = clock();
        clock.send_ack_packet();
        clock.at_once();
        clock.carried(START);
        assert!(clock.due(START));
    }

    #[test]
    fn delay_field_saturates() {
        let mut clock = after(Arrival::Next, false, false);
        assert_eq!(clock.left(START + 65_534 * MICROS), 65_534);
        assert_eq!((clock.left(START + 65_536 * MICROS), clock.left(Nanos::MAX)), (u16::MAX, u16::MAX));
        assert_eq!(clock.left(0), 0, "a clock that goes back");
        let mut clock = AckClock::new(Nanos::MAX, u32::MAX);
        clock.arrived(START, Arrival::Next, false, false);
        assert_eq!(clock.deadline(), Some(Nanos::MAX));
    }

    #[test]
    fn duplicates_do_not_change_the_delay_field() {
        let mut clock = after(Arrival::Next, false, false);
        clock.arrived(START + 40 * MICROS, Arrival::Duplicate, false, false);
        assert_eq!(clock.left(START + 45 * MICROS), 45);
    }
}
