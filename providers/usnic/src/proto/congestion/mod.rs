//! How much may be in flight and how fast it leaves: congestion control, pluggable.
//!
//! A connection tells its controller what it sent, what was acknowledged and what was lost, and asks it for a window and a
//! rate. `delay` is the default: it holds the queue near a target and takes loss for congestion only when the loss grows
//! with what we send. `cubic` is for long paths. Counts bytes of datagrams; knows no packet, no timer and no peer's window:
//! those limits are the connection's.

mod base;
mod capacity;
mod cubic;
mod delay;
mod evidence;
#[cfg(test)]
mod model;
mod policed;
mod rounds;
#[cfg(test)]
mod tests;

pub(crate) use cubic::Cubic;
pub(crate) use delay::Delay;

use super::{MICROS, Nanos};

/// Packets that may leave before anything is known of the path (RFC 6928).
const INITIAL_PACKETS: u64 = 10;

/// Queueing delay that `delay` aims at unless told otherwise: room for some trains of 64 KiB and for a busy machine.
pub(crate) const TARGET: Nanos = 500 * MICROS;

/// What one arriving ack says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) now: Nanos,
    /// Newly acknowledged.
    pub(crate) bytes: u64,
    /// Of a packet that was sent once, without the delay of the ack itself.
    pub(crate) rtt: Option<Nanos>,
    pub(crate) min_rtt: Nanos,
    pub(crate) srtt: Nanos,
    /// Still in flight after this ack; what is known to be lost does not count.
    pub(crate) in_flight: u64,
    /// Something else than this controller held the sender back (no work, no credit, the peer's window).
    pub(crate) app_limited: bool,
}

/// Packets found to be lost, by one ack or one timer. A probe of the path's MTU is not among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) now: Nanos,
    pub(crate) bytes: u64,
    /// Still in flight without them.
    pub(crate) in_flight: u64,
    /// When the first of them was sent.
    pub(crate) first_sent: Nanos,
}

/// One way to control congestion.
pub(crate) trait Controller {
    /// So much left, first time or again; `in_flight` counts it.
    fn sent(&mut self, now: Nanos, bytes: u64, in_flight: u64);
    fn acked(&mut self, sample: &Sample);
    fn lost(&mut self, loss: &Loss);
    /// A queue of this host had no room for what we sent: it is sent again when there is.
    fn overflowed(&mut self, now: Nanos);
    /// The probe timeout passed without any ack; called for each in a row.
    fn timed_out(&mut self, now: Nanos);
    /// Bytes that may be in flight: at least one packet, for what is smaller is paced.
    fn window(&self) -> u64;
    /// Bytes a second, if packets are to be spread out; `None`: the window alone is enough.
    fn rate(&self) -> Option<u64>;
    /// The rate decides, and the window is only room for acks that are late. The path has little room at a time, and what
    /// goes as one is lost as one.
    fn goes_by_rate(&self) -> bool;
    /// The path's MTU is now so many bytes of datagram.
    fn resize(&mut self, packet: u64);
}

/// Which controller (a knob).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Algorithm {
    #[default]
    Delay,
    Cubic,
}

/// The controller of a connection.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives in each connection, in place; a box would only be one more miss"
)]
pub(crate) enum Congestion {
    Delay(Delay),
    Cubic(Cubic),
}

impl Congestion {
    /// `packet`: bytes of datagram that the path carries now. `target`: queueing delay to aim at.
    pub(crate) fn new(algorithm: Algorithm, packet: u64, target: Nanos) -> Self {
        match algorithm {
            Algorithm::Delay => Congestion::Delay(Delay::new(packet, target)),
            Algorithm::Cubic => Congestion::Cubic(Cubic::new(packet)),
        }
    }
}

/// The same call to whichever it is.
macro_rules! either {
    ($self:ident, $one:ident => $call:expr) => {
        match $self {
            Congestion::Delay($one) => $call,
            Congestion::Cubic($one) => $call,
        }
    };
}

impl Controller for Congestion {
    fn sent(&mut self, now: Nanos, bytes: u64, in_flight: u64) {
        either!(self, one => one.sent(now, bytes, in_flight))
    }

    fn acked(&mut self, sample: &Sample) {
        either!(self, one => one.acked(sample))
    }

    fn lost(&mut self, loss: &Loss) {
        either!(self, one => one.lost(loss))
    }

    fn overflowed(&mut self, now: Nanos) {
        either!(self, one => one.overflowed(now))
    }

    fn timed_out(&mut self, now: Nanos) {
        either!(self, one => one.timed_out(now))
    }

    fn window(&self) -> u64 {
        either!(self, one => one.window())
    }

    fn rate(&self) -> Option<u64> {
        either!(self, one => one.rate())
    }

    fn goes_by_rate(&self) -> bool {
        either!(self, one => one.goes_by_rate())
    }

    fn resize(&mut self, packet: u64) {
        either!(self, one => one.resize(packet))
    }
}

/// What both pace by: `gain` windows in a round trip. Nothing is paced while round trips are too short for timers to help,
/// unless the window is below a packet.
fn pace(window: f64, packet: f64, srtt: Nanos, gain: f64) -> Option<u64> {
    /// Below this a timer comes too late to spread anything.
    const SHORT: Nanos = 500 * MICROS;
    if srtt == 0 || (srtt < SHORT && window >= packet) {
        return None;
    }
    let gain = if window < packet { 1.0 } else { gain };
    Some(((window * gain * 1e9 / srtt as f64) as u64).max(1))
}
