//! Counters of a connection, for users who diagnose problems.

use crate::proto::Nanos;

/// Counts since the connection was established, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// With data, for the first time; and their payload in bytes.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Sent again: by acks of later ones, by the time since then, or as probes when no ack came at all.
    pub(crate) resent_gap: u64,
    pub(crate) resent_timeout: u64,
    pub(crate) resent_probe: u64,
    /// Left in pieces, since the path takes less now than when they were cut.
    pub(crate) refragmented: u64,
    /// Lost, as it seems; and those that were not.
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    /// With data that was taken; and their payload in bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Came once more; beyond the window; behind a gap.
    pub(crate) duplicates: u64,
    pub(crate) outside: u64,
    pub(crate) gaps: u64,
    /// Delivered at once, with the oracle-keeping left for later.
    pub(crate) fast: u64,
    /// Of their own, and with data.
    pub(crate) acks_sent: u64,
    pub(crate) acks_carried: u64,
    pub(crate) acks_received: u64,
    /// That speak of packets which were never sent.
    pub(crate) acks_false: u64,
    /// Asked whether a receive is there; sends that found none.
    pub(crate) credit_probes: u64,
    pub(crate) no_receive: u64,
    /// Sends that were taken back since the peer's shared queue was empty.
    pub(crate) taken_back: u64,
    /// Of the search for the MTU, of idle times, and to addresses that the peer may have moved to.
    pub(crate) mtu_probes: u64,
    pub(crate) keepalives: u64,
    pub(crate) challenges: u64,
    /// Messages that we refused, and that the peer did.
    pub(crate) refusals_sent: u64,
    pub(crate) refusals_received: u64,
    /// Not understood.
    pub(crate) malformed: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Present state: window and in flight in bytes, rate in bytes per second (0: not paced), round trip, datagram size.
    pub(crate) window: u64,
    pub(crate) in_flight: u64,
    pub(crate) rate: u64,
    pub(crate) rtt: Nanos,
    pub(crate) mtu: usize,
}
