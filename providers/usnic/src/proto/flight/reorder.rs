//! When a packet counts as lost: what has overtaken it, by how much, and how much of that this path does by itself.
//!
//! A packet is lost if later ones have been acked, and there are `packets` of them or it has been on its way for
//! longer than a round trip and `eighths` of one. Both grow when a resend turns out to have been in vain, for then
//! the path reorders (two channels, several queues: that is normal), and shrink again when many resends were needed
//! (after RACK, RFC 8985). "Later" is the order of leaving, not that of numbers: a packet sent again is later than
//! all that left before.

use super::super::rtt::Rtt;
use super::super::{MICROS, Nanos, SECONDS};

/// Later packets that make a loss, at first (RFC 9002, 6.1.1), and at most: about one train.
const PACKETS: u32 = 3;
const PACKETS_MOST: u32 = 48;
/// Eighths of a round trip beyond one, at first and at most.
const EIGHTHS: u64 = 1;
const EIGHTHS_MOST: u64 = 8;
/// What is allowed beyond the round trip at least: on a path of microseconds an eighth is less than any queue's jitter.
const SHORTEST: Nanos = 50 * MICROS;
/// So many resends that were needed, and the path is trusted a little more.
const CALM: u32 = 64;

/// What a connection has learned of its path.
#[derive(Debug)]
pub(super) struct Reorder {
    packets: u32,
    eighths: u64,
    /// When they last grew: once for each round trip.
    grown: Option<Nanos>,
    /// Resends since then that were needed.
    needed: u32,
    /// Leaves counted so far; the last one's number.
    pub(super) left: u64,
    /// The latest leave known to have arrived; 0: none.
    arrived: u64,
    /// Leaves that neither fly nor were acked nor are older than what flies: so many, all up to this one.
    void: u32,
    void_until: u64,
}

impl Reorder {
    pub(super) fn new() -> Self {
        Reorder {
            packets: PACKETS,
            eighths: EIGHTHS,
            grown: None,
            needed: 0,
            left: 0,
            arrived: 0,
            void: 0,
            void_until: 0,
        }
    }

    /// A packet leaves: the how manieth.
    pub(super) fn leave(&mut self) -> u64 {
        self.left += 1;
        self.left
    }

    /// What left as this one is there.
    pub(super) fn arrived(&mut self, order: u64) {
        self.arrived = self.arrived.max(order);
    }

    /// What left as this one no longer flies, and proves nothing.
    pub(super) fn void(&mut self, order: u64) {
        self.void = self.void.saturating_add(1);
        self.void_until = self.void_until.max(order);
    }

    /// Something that left later is there.
    pub(super) fn is_overtaken(&self, order: u64) -> bool {
        self.arrived > order
    }

    /// So many that left later than the oldest one in flight are there that it is lost. `others`: that fly beside it.
    pub(super) fn is_passed(&mut self, order: u64, others: u32) -> bool {
        if order >= self.void_until {
            self.void = 0;
        }
        let gone = (self.left - order).saturating_sub(u64::from(others) + u64::from(self.void));
        self.is_overtaken(order) && gone >= u64::from(self.packets)
    }

    /// How long a packet that was overtaken may be on its way.
    pub(super) fn patience(&self, rtt: &Rtt) -> Nanos {
        let (Some(latest), Some(smoothed)) = (rtt.latest(), rtt.smoothed()) else { return rtt.timing().first };
        let trip = latest.max(smoothed);
        trip.saturating_add((trip / 8).saturating_mul(self.eighths).max(SHORTEST))
    }

    /// Acks that repeat the same gap before it counts as a loss: one, or more where packets overtake each other.
    pub(super) fn repeats(&self) -> u32 {
        self.packets / PACKETS
    }

    /// A resend was in vain.
    pub(super) fn vain(&mut self, now: Nanos, rtt: &Rtt) {
        self.needed = 0;
        let trip = rtt.smoothed().unwrap_or(SECONDS);
        if self.grown.is_some_and(|grown| now.saturating_sub(grown) < trip) {
            return;
        }
        self.grown = Some(now);
        self.packets = (self.packets * 2).min(PACKETS_MOST);
        self.eighths = (self.eighths + 1).min(EIGHTHS_MOST);
    }

    /// A resend was needed.
    pub(super) fn needed(&mut self) {
        self.needed += 1;
        if self.needed >= CALM {
            self.needed = 0;
            self.packets = (self.packets / 2).max(PACKETS);
            self.eighths = (self.eighths - 1).max(EIGHTHS);
        }
    }
}
