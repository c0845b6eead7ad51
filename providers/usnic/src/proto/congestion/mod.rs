//! Congestion control: the congestion window and the pacing rate.
//!
//! A connection reports sent, acked and lost packets. `bbr` is BBRv3 (draft-ietf-ccwg-bbr-06), the default. `cubic` is
//! CUBIC (RFC 9438) with HyStart++ (RFC 9406). `local` is for peers on this host, to which there is no network path.
//! Data volumes are bytes of datagrams.

mod bbr;
mod cubic;
mod hystart;
mod local;
mod recovery;
mod round;
#[cfg(test)]
mod tests;

pub(crate) use bbr::Bbr;
pub(crate) use cubic::Cubic;
pub(crate) use local::Local;

use super::Nanos;
use super::flight::{LostPackets, RateSample};

/// Initial window in packets (RFC 6928, 2; RFC 9002, 7.2).
const INITIAL_PACKETS: u64 = 10;
/// Minimum window in packets (RFC 9002, 7.2).
const MINIMUM_PACKETS: u64 = 2;
/// Largest send quantum in bytes (draft-ietf-ccwg-bbr-06, 5.6.3): the size of one GSO batch.
pub(crate) const LARGEST_QUANTUM: u64 = 65_536;

/// Returns the maximum number of bytes that are sent together: SetSendQuantum() (draft-ietf-ccwg-bbr-06, 5.6.3).
pub(crate) fn send_quantum(pacing_rate: u64, packet: u64) -> u64 {
    (pacing_rate / 1000).min(LARGEST_QUANTUM).max(packet.saturating_mul(2))
}

/// A transmission of a packet, new or retransmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub(crate) now: Nanos,
    pub(crate) bytes: u64,
    /// Bytes in flight, including this packet.
    pub(crate) in_flight: u64,
    /// Whether the connection is app-limited (draft-ietf-ccwg-bbr-06, 4.1.1.3): it had no more data to send, and the
    /// data that was in flight at that time is not delivered yet.
    pub(crate) is_app_limited: bool,
}

/// The properties of an ack that congestion control needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckEvent {
    pub(crate) now: Nanos,
    /// Newly acked bytes.
    pub(crate) bytes: u64,
    /// Round-trip time of a packet that was sent once, without the peer's ack delay.
    pub(crate) rtt: Option<Nanos>,
    pub(crate) srtt: Nanos,
    /// Bytes in flight, after the packets that this ack covers or declares lost were removed.
    pub(crate) in_flight: u64,
    /// Delivery rate sample, or `None` if for each newly acked packet it is unknown which of its transmissions arrived.
    pub(crate) rate: Option<RateSample>,
    /// Whether the congestion window limited sending since the previous ack.
    pub(crate) is_cwnd_limited: bool,
    /// Number of acked packets that were wrongly declared lost.
    pub(crate) spurious: u32,
}

/// Packets that one ack or one timer declared lost, without probes of the path MTU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossEvent {
    pub(crate) now: Nanos,
    pub(crate) lost: LostPackets,
    /// Bytes in flight, without the lost packets.
    pub(crate) in_flight: u64,
    /// C.delivered of the BBR draft: total number of bytes delivered.
    pub(crate) total_delivered: u64,
    /// Whether there is persistent congestion (RFC 9002, 7.6).
    pub(crate) is_persistent: bool,
}

/// A congestion control algorithm. If an ack reveals losses, the caller calls `lost` first, then `acked` (RFC 9002,
/// A.7).
pub(crate) trait Controller {
    fn sent(&mut self, sent: &SentPacket);
    fn acked(&mut self, ack: &AckEvent);
    fn lost(&mut self, loss: &LossEvent);
    /// Records that a queue of this host was full (ENOBUFS). The packets that the queue did not accept are sent again
    /// later.
    fn overflowed(&mut self, now: Nanos);
    /// Returns the congestion window: the number of bytes that may be in flight.
    fn cwnd(&self) -> u64;
    /// Returns the pacing rate in bytes per second, or `None` without pacing.
    fn pacing_rate(&self) -> Option<u64>;
    /// Sets the path MTU: the maximum datagram size in bytes.
    fn resize(&mut self, packet: u64);
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Algorithm {
    #[default]
    Bbr,
    Cubic,
    /// For a peer on this host.
    Local,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "stored in each connection; a box would add a cache miss")]
pub(crate) enum Congestion {
    Bbr(Bbr),
    Cubic(Cubic),
    Local(Local),
}

impl Congestion {
    /// Creates a controller. `packet` is the path MTU in bytes, `credit` the size of the peer's socket receive buffer
    /// in bytes. `seed` randomizes the times at which connections probe for bandwidth.
    pub(crate) fn new(algorithm: Algorithm, packet: u64, credit: u64, seed: u64) -> Self {
        match algorithm {
            Algorithm::Bbr => Congestion::Bbr(Bbr::new(packet, seed)),
            Algorithm::Cubic => Congestion::Cubic(Cubic::new(packet)),
            Algorithm::Local => Congestion::Local(Local::new(packet, credit)),
        }
    }
}

/// Evaluates an expression on the controller, whichever algorithm it is.
macro_rules! each {
    ($self:ident, $one:ident => $call:expr) => {
        match $self {
            Congestion::Bbr($one) => $call,
            Congestion::Cubic($one) => $call,
            Congestion::Local($one) => $call,
        }
    };
}

impl Controller for Congestion {
    #[inline]
    fn sent(&mut self, sent: &SentPacket) {
        each!(self, one => one.sent(sent))
    }

    fn acked(&mut self, ack: &AckEvent) {
        each!(self, one => one.acked(ack))
    }

    fn lost(&mut self, loss: &LossEvent) {
        each!(self, one => one.lost(loss))
    }

    fn overflowed(&mut self, now: Nanos) {
        each!(self, one => one.overflowed(now))
    }

    #[inline]
    fn cwnd(&self) -> u64 {
        each!(self, one => one.cwnd())
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        each!(self, one => one.pacing_rate())
    }

    fn resize(&mut self, packet: u64) {
        each!(self, one => one.resize(packet))
    }
}
