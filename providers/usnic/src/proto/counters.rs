//! Counters of a connection, for users who diagnose problems.

use crate::proto::Nanos;

/// Counters since the connection was established, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// Packets with data, first transmissions only, and their payload in bytes.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Retransmissions: after acks of later packets, after the loss delay, or as probes when no ack arrived.
    pub(crate) resent_gap: u64,
    pub(crate) resent_timeout: u64,
    pub(crate) resent_probe: u64,
    /// Packets sent in pieces, because the path no longer carries packets of their size.
    pub(crate) refragmented: u64,
    /// Packets declared lost, and packets among them that had arrived.
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    /// Accepted packets with data, and their payload in bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Packets received twice; beyond the window; behind a gap.
    pub(crate) duplicates: u64,
    pub(crate) outside: u64,
    pub(crate) gaps: u64,
    /// Messages delivered by the fast path, with deferred bookkeeping.
    pub(crate) fast: u64,
    /// Ack packets; and packets with data that carried an ack.
    pub(crate) acks_sent: u64,
    pub(crate) acks_carried: u64,
    pub(crate) acks_received: u64,
    /// Acks of packets that were never sent.
    pub(crate) acks_false: u64,
    /// RNR probes; and sends for which the peer had no receive.
    pub(crate) credit_probes: u64,
    pub(crate) no_receive: u64,
    /// Sends that were withdrawn because the peer's shared queue was empty.
    pub(crate) taken_back: u64,
    /// Probes of the path MTU, of idle peers, and of addresses to which the peer may have moved.
    pub(crate) mtu_probes: u64,
    pub(crate) keepalives: u64,
    pub(crate) challenges: u64,
    /// Messages refused by this side, and by the peer.
    pub(crate) refusals_sent: u64,
    pub(crate) refusals_received: u64,
    /// Malformed packets.
    pub(crate) malformed: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Current values: window and bytes in flight, rate in bytes per second (0: not paced), round trip, datagram size.
    pub(crate) window: u64,
    pub(crate) in_flight: u64,
    pub(crate) rate: u64,
    pub(crate) rtt: Nanos,
    pub(crate) mtu: usize,
}
