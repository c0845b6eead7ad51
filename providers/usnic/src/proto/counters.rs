//! Counters of a connection, which DAT queries, `datinfo` and log messages show.

use crate::proto::Nanos;

/// Counters since the connection was established, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// Data packets sent for the first time.
    pub(crate) sent: u64,
    /// Payload bytes sent for the first time.
    pub(crate) sent_bytes: u64,
    /// Retransmissions after acks of later packets.
    pub(crate) resent_gap: u64,
    /// Retransmissions after the loss delay.
    pub(crate) resent_timeout: u64,
    /// Retransmissions after a probe timeout, or because the peer's shared receive queue became empty.
    pub(crate) resent_probe: u64,
    /// Packets that were retransmitted in pieces, because the path MTU has decreased.
    pub(crate) refragmented: u64,
    /// Packets that were declared lost.
    pub(crate) lost: u64,
    /// Packets that were declared lost, or retransmitted after a probe timeout, but had arrived.
    pub(crate) spurious: u64,
    /// Accepted data packets.
    pub(crate) received: u64,
    /// Payload bytes of accepted data packets.
    pub(crate) received_bytes: u64,
    /// Received packets that were duplicates of an already received packet.
    pub(crate) duplicates: u64,
    /// Received packets outside the window.
    pub(crate) beyond_window: u64,
    /// Received packets ahead of a missing packet.
    pub(crate) out_of_order: u64,
    /// Messages received by the fast path.
    pub(crate) fast: u64,
    /// Ack packets sent.
    pub(crate) acks_sent: u64,
    /// Data packets that carried a pending ack, which needed no ack packet.
    pub(crate) acks_carried: u64,
    pub(crate) acks_received: u64,
    /// Received acks that cover packets that were never sent, are more than a window old, or have invalid ranges.
    pub(crate) acks_of_unsent: u64,
    /// RNR probes sent.
    pub(crate) credit_probes: u64,
    /// Packets of the peer that were dropped without an ack, mostly sends without a receive.
    pub(crate) no_receive: u64,
    /// Packets of sends that were withdrawn because the peer's shared receive queue was empty.
    pub(crate) withdrawn_sends: u64,
    /// MTU probes sent.
    pub(crate) mtu_probes: u64,
    /// Challenges sent to the peer's address.
    pub(crate) keepalives: u64,
    /// Challenges sent to new addresses.
    pub(crate) challenges: u64,
    /// Requests of the peer that this side has refused.
    pub(crate) refusals_sent: u64,
    /// Requests that the peer has refused.
    pub(crate) refusals_received: u64,
    /// Malformed packets received.
    pub(crate) malformed: u64,
    /// Probe timeouts, and the timeout of a peer that did not respond to challenges.
    pub(crate) timeouts: u64,
    /// Current send window in bytes: the smaller one of the congestion window and the peer's receive window.
    pub(crate) window: u64,
    /// Bytes currently in flight.
    pub(crate) in_flight: u64,
    /// Current pacing rate in bytes per second, or 0 without pacing.
    pub(crate) rate: u64,
    /// Smoothed round-trip time in nanoseconds.
    pub(crate) rtt: Nanos,
    /// Current path MTU as datagram payload in bytes.
    pub(crate) mtu: usize,
}
