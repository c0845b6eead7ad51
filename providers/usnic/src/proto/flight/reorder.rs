//! Thresholds of loss detection, and their adaptation to reordering.
//!
//! A packet is lost if a packet sent later was acked, and one of two conditions is true (RFC 9002, 6.1). Either enough
//! packets sent later were acked (the packet threshold), or the loss delay has passed since the packet was sent. The
//! loss delay is a round trip plus the reordering window.
//!
//! As in RACK (RFC 8985, 6.2), packets are ordered by transmission, not by PSN, and the thresholds grow after a
//! spurious loss. They shrink again after many real losses.

use super::super::rtt::Rtt;
use super::super::{MICROS, Nanos, SECONDS};

/// Initial packet threshold: kPacketThreshold (RFC 9002, 6.1.1).
const PACKET_THRESHOLD: u32 = 3;
/// Maximum packet threshold, about one GSO batch.
const PACKET_THRESHOLD_MAX: u32 = 48;
/// Initial reordering window in eighths of a round trip (kTimeThreshold = 9/8, RFC 9002, 6.1.2).
const TIME_THRESHOLD_EIGHTHS: u64 = 1;
/// Maximum reordering window in eighths of a round trip: one round trip (RFC 8985, 6.2, step 4).
const TIME_THRESHOLD_EIGHTHS_MAX: u64 = 8;
/// Minimum reordering window, in place of kGranularity (RFC 9002, 6.1.2). An eighth of a round trip of some
/// microseconds is less than the jitter of any queue.
const MIN_REORDERING_WINDOW: Nanos = 50 * MICROS;
/// Number of real (not spurious) losses after which the thresholds shrink. RACK counts 16 loss recoveries instead (RFC
/// 8985, 6.2); this loss detection has no recovery phases.
const SHRINK_AFTER_LOSSES: u32 = 64;

/// Loss detection thresholds of a connection, and the order of its transmissions.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    packet_threshold: u32,
    time_threshold: u64,
    /// Time of the last increase of a threshold. There is at most one increase per round trip (RFC 8985, 6.2).
    grown: Option<Nanos>,
    /// Number of real losses since the last spurious loss, or since the thresholds last shrank.
    needed: u32,
    /// Number of transmissions so far. The order of a transmission is its number, starting at 1.
    pub(super) transmissions: u64,
    /// Order of the latest transmission that was acked, or 0 if none was acked.
    newest_acked: u64,
    /// Number of transmissions up to the order `void_until` that are no longer in flight although they were not acked.
    /// Does not include transmissions older than all packets in flight.
    void: u32,
    void_until: u64,
}

impl Reorder {
    pub(super) fn new() -> Self {
        Reorder { packet_threshold: PACKET_THRESHOLD, time_threshold: TIME_THRESHOLD_EIGHTHS, ..Reorder::default() }
    }

    /// Counts a transmission, and returns its order.
    pub(super) fn transmit(&mut self) -> u64 {
        self.transmissions += 1;
        self.transmissions
    }

    /// Records that the transmission with this order was acked.
    pub(super) fn acked(&mut self, order: u64) {
        self.newest_acked = self.newest_acked.max(order);
    }

    /// Records that this transmission is no longer in flight, and that its delivery is unknown.
    pub(super) fn mark_unknown(&mut self, order: u64) {
        self.void = self.void.saturating_add(1);
        self.void_until = self.void_until.max(order);
    }

    /// Whether a transmission later than this one was acked.
    pub(super) fn left_before_newest_acked(&self, order: u64) -> bool {
        self.newest_acked > order
    }

    /// Whether the packet threshold is reached for the oldest packet in flight, whose transmission has this `order`.
    /// `others` is the number of other packets in flight.
    pub(super) fn exceeds_packet_threshold(&mut self, order: u64, others: u32) -> bool {
        if order >= self.void_until {
            self.void = 0;
        }
        let gone = (self.transmissions - order).saturating_sub(u64::from(others) + u64::from(self.void));
        self.left_before_newest_acked(order) && gone >= u64::from(self.packet_threshold)
    }

    /// Returns the loss delay: a packet is declared lost this time after its transmission, if a later transmission was
    /// acked (RFC 9002, 6.1.2).
    pub(super) fn loss_delay(&self, rtt: &Rtt) -> Nanos {
        let (Some(latest), Some(smoothed)) = (rtt.latest_rtt(), rtt.srtt()) else { return rtt.timing.first };
        let trip = latest.max(smoothed);
        trip.saturating_add((trip / 8).saturating_mul(self.time_threshold).max(MIN_REORDERING_WINDOW))
    }

    /// Returns the number of duplicate acks that indicate a loss: 1, or more if the path reorders packets.
    pub(super) fn duplicate_threshold(&self) -> u32 {
        self.packet_threshold / PACKET_THRESHOLD
    }

    /// Records a spurious loss, which raises the thresholds at most once per round trip.
    pub(super) fn record_spurious(&mut self, now: Nanos, rtt: &Rtt) {
        self.needed = 0;
        let trip = rtt.srtt().unwrap_or(SECONDS);
        if self.grown.is_some_and(|grown| now.saturating_sub(grown) < trip) {
            return;
        }
        self.grown = Some(now);
        self.packet_threshold = (self.packet_threshold * 2).min(PACKET_THRESHOLD_MAX);
        self.time_threshold = (self.time_threshold + 1).min(TIME_THRESHOLD_EIGHTHS_MAX);
    }

    /// Counts a real loss. The thresholds shrink after [`SHRINK_AFTER_LOSSES`] real losses.
    pub(super) fn record_real_loss(&mut self) {
        self.needed += 1;
        if self.needed >= SHRINK_AFTER_LOSSES {
            self.needed = 0;
            self.packet_threshold = (self.packet_threshold / 2).max(PACKET_THRESHOLD);
            self.time_threshold = (self.time_threshold - 1).max(TIME_THRESHOLD_EIGHTHS);
        }
    }
}
