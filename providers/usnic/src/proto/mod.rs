//! The protocol (sans-I/O): no sockets, no clock, no threads, no unsafe code.
//!
//! The caller reads the clock, owns the sockets and accesses memory. It passes received packets as bytes, with the
//! current time. For a packet to send, it gets the bytes of the header and the location of the payload.
#![forbid(unsafe_code)]

pub(crate) mod acks;
pub(crate) mod bits;
pub(crate) mod challenge;
pub(crate) mod closing;
pub(crate) mod congestion;
pub(crate) mod conn;
pub(crate) mod counters;
pub(crate) mod echo;
pub(crate) mod flight;
pub(crate) mod ids;
pub(crate) mod pacer;
pub(crate) mod path;
pub(crate) mod psn;
pub(crate) mod queue;
pub(crate) mod ranges;
pub(crate) mod received;
pub(crate) mod rtt;
pub(crate) mod schedule;
pub(crate) mod seal;
pub(crate) mod setup;
pub(crate) mod wire;

/// Nanoseconds of a monotonic clock with an arbitrary start.
pub(crate) type Nanos = u64;

/// Nanoseconds in a microsecond.
pub(crate) const MICROS: Nanos = 1_000;
/// Nanoseconds in a millisecond.
pub(crate) const MILLIS: Nanos = 1_000_000;
/// Nanoseconds in a second.
pub(crate) const SECONDS: Nanos = 1_000_000_000;

/// Maximum number of unacked packets (US-8), and number of bits in each bitmap of packets. A power of two.
pub(crate) const WINDOW: u32 = 4096;
