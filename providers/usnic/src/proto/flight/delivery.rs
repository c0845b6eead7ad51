//! Samples of the delivery rate and of the losses since a packet was sent (draft-ietf-ccwg-bbr-06, 4.1).
//!
//! Each transmission stores the current totals of delivered and lost bytes. An ack gives a sample for the latest
//! transmission that it acks. Names and section numbers are those of the draft. Data volumes are bytes of datagrams.

use crate::proto::{Nanos, SECONDS};

/// Loss rate in percent above which probing for bandwidth stops: BBR.LossThresh (draft, 2.8).
const LOSS_THRESH_PERCENT: u64 = 2;

/// Totals of the connection when a packet was sent (draft, 4.1.2.1.2).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PacketState {
    delivered: u64,
    lost: u64,
    delivered_time: Nanos,
    first_send_time: Nanos,
    tx_in_flight: u64,
    is_app_limited: bool,
}

/// Rate sample of an ack (draft, 4.1.2.1.3 and 2.3). "The acked packet" is the one that was sent last among the newly
/// acked packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RateSample {
    /// Delivery rate in bytes per second, or 0 if the interval was too short for a reliable value.
    pub(crate) delivery_rate: u64,
    /// Bytes delivered since the transmission of the acked packet.
    pub(crate) delivered: u64,
    /// Bytes lost since the transmission of the acked packet.
    pub(crate) lost: u64,
    /// C.delivered, the total of delivered bytes, at the transmission of the acked packet.
    pub(crate) prior_delivered: u64,
    /// C.delivered at the ack.
    pub(crate) total_delivered: u64,
    /// Bytes in flight at the transmission of the acked packet.
    pub(crate) tx_in_flight: u64,
    /// Time of the transmission of the acked packet.
    pub(crate) send_time: Nanos,
    pub(crate) is_app_limited: bool,
}

/// Properties of a lost packet that congestion control needs (draft, 5.5.10.2).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LostPacket {
    pub(crate) bytes: u64,
    /// Bytes in flight at the packet's transmission, including the packet.
    pub(crate) tx_in_flight: u64,
    /// Bytes lost since the packet's transmission, including the packet.
    pub(crate) lost: u64,
    pub(crate) is_app_limited: bool,
}

/// Whether the loss rate over a round trip is too high: part of IsInflightTooHigh() (draft, 5.5.10.2).
pub(crate) fn is_loss_too_high(lost: u64, tx_in_flight: u64) -> bool {
    lost.saturating_mul(100) > tx_in_flight.saturating_mul(LOSS_THRESH_PERCENT)
}

/// Totals of a connection (draft, 4.1.2.1.1).
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    delivered: u64,
    lost: u64,
    delivered_time: Nanos,
    first_send_time: Nanos,
    /// Samples are app-limited until `delivered` exceeds this value. It is 0 if samples are not app-limited.
    app_limited: u64,
}

impl Delivery {
    /// Records a transmission: OnPacketSent() (draft, 4.1.2.2). `in_flight` includes the packet.
    pub(crate) fn sent(&mut self, now: Nanos, bytes: u64, in_flight: u64) -> PacketState {
        if in_flight <= bytes {
            (self.first_send_time, self.delivered_time) = (now, now);
        }
        PacketState {
            delivered: self.delivered,
            lost: self.lost,
            delivered_time: self.delivered_time,
            first_send_time: self.first_send_time,
            tx_in_flight: in_flight,
            is_app_limited: self.is_app_limited(),
        }
    }

    /// Records a delivered packet: first part of UpdateRateSample() (draft, 4.1.2.3).
    pub(crate) fn acked(&mut self, now: Nanos, bytes: u64) {
        self.delivered = self.delivered.saturating_add(bytes);
        self.delivered_time = now;
    }

    /// Records a packet that was declared lost.
    pub(crate) fn lost(&mut self, bytes: u64, packet: &PacketState) -> LostPacket {
        self.lost = self.lost.saturating_add(bytes);
        LostPacket {
            bytes,
            tx_in_flight: packet.tx_in_flight,
            lost: self.lost.saturating_sub(packet.lost),
            is_app_limited: packet.is_app_limited,
        }
    }

    /// Computes the sample of an ack: second part of UpdateRateSample(), and GenerateRateSample() (draft, 4.1.2.3).
    /// `packet` is the state of the acked packet that was sent last, at `send_time`.
    pub(crate) fn sample(&mut self, packet: &PacketState, send_time: Nanos, min_rtt: Nanos) -> RateSample {
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let send_elapsed = send_time.saturating_sub(packet.first_send_time);
        let ack_elapsed = self.delivered_time.saturating_sub(packet.delivered_time);
        self.first_send_time = send_time;
        let interval = send_elapsed.max(ack_elapsed);
        let delivered = self.delivered.saturating_sub(packet.delivered);
        let is_reliable = interval > 0 && interval >= min_rtt;
        let rate = u128::from(delivered) * u128::from(SECONDS) / u128::from(interval.max(1));
        RateSample {
            delivery_rate: if is_reliable { u64::try_from(rate).unwrap_or(u64::MAX) } else { 0 },
            delivered,
            lost: self.lost.saturating_sub(packet.lost),
            prior_delivered: packet.delivered,
            total_delivered: self.delivered,
            tx_in_flight: packet.tx_in_flight,
            send_time,
            is_app_limited: packet.is_app_limited,
        }
    }

    /// Marks the following samples as app-limited: MarkConnectionAppLimited() (draft, 4.1.2.4).
    pub(crate) fn mark_app_limited(&mut self, in_flight: u64) {
        self.app_limited = self.delivered.saturating_add(in_flight).max(1);
    }

    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// Returns the total of delivered bytes: C.delivered.
    pub(crate) fn total_delivered(&self) -> u64 {
        self.delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MILLIS;

    #[test]
    fn rate_is_the_lower_of_send_rate_and_ack_rate() {
        let mut delivery = Delivery::default();
        let first = delivery.sent(0, 1000, 1000);
        let second = delivery.sent(4 * MILLIS, 1000, 2000);
        delivery.acked(10 * MILLIS, 1000);
        assert_eq!(delivery.sample(&first, 0, MILLIS).delivery_rate, 100_000);
        delivery.acked(14 * MILLIS, 1000);
        let sample = delivery.sample(&second, 4 * MILLIS, MILLIS);
        assert_eq!((sample.delivered, sample.delivery_rate), (2000, 2000 * 1000 / 14));
        // Acks that arrive close together do not give a rate above the send rate.
        let mut delivery = Delivery::default();
        delivery.sent(0, 1000, 1000);
        let last = delivery.sent(50 * MILLIS, 1000, 2000);
        delivery.acked(50 * MILLIS, 1000);
        delivery.acked(51 * MILLIS, 1000);
        assert_eq!(delivery.sample(&last, 50 * MILLIS, MILLIS).delivery_rate, 2000 * 1000 / 51);
    }

    #[test]
    fn an_interval_below_the_minimum_rtt_gives_no_rate() {
        let mut delivery = Delivery::default();
        let packet = delivery.sent(0, 1000, 1000);
        delivery.acked(MILLIS, 1000);
        let sample = delivery.sample(&packet, 0, 2 * MILLIS);
        assert_eq!((sample.delivery_rate, sample.delivered), (0, 1000));
    }

    #[test]
    fn rate_samples_are_app_limited_until_the_flight_is_delivered() {
        let mut delivery = Delivery::default();
        delivery.sent(0, 1000, 1000);
        delivery.mark_app_limited(1000);
        let limited = delivery.sent(1, 1000, 2000);
        delivery.acked(MILLIS, 1000);
        let sample = delivery.sample(&limited, 1, 0);
        assert!(sample.is_app_limited && delivery.is_app_limited());
        delivery.acked(MILLIS, 1000);
        delivery.sample(&limited, 1, 0);
        assert!(!delivery.sent(2 * MILLIS, 1000, 1000).is_app_limited);
    }

    #[test]
    fn loss_rate_counts_losses_since_the_transmission() {
        let mut delivery = Delivery::default();
        let early = delivery.sent(0, 1000, 1000);
        delivery.lost(1000, &early);
        let late = delivery.sent(1, 1000, 100_000);
        assert!(!is_loss_too_high(delivery.lost(1000, &late).lost, 100_000));
        let third = delivery.lost(1001, &late);
        assert!(third.lost == 2001 && is_loss_too_high(third.lost, third.tx_in_flight));
    }
}
