//! Counters of a connection, which users read by `dat_ep_query`, `datinfo` and log lines.

use crate::proto::Nanos;

/// Counters since the connection was established, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// Packets with data that were sent for the first time, and their payload in bytes.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Retransmissions: after acks of later packets (`resent_gap`), after the loss delay (`resent_timeout`), and after
    /// a probe timeout (`resent_probe`).
    pub(crate) resent_gap: u64,
    pub(crate) resent_timeout: u64,
    pub(crate) resent_probe: u64,
    /// Packets that were retransmitted in pieces, because the path MTU has decreased.
    pub(crate) refragmented: u64,
    /// Packets that were declared lost, and those among them that had arrived.
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    /// Accepted packets with data, and their payload in bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Received packets: duplicates, packets beyond the window, and packets ahead of a missing packet.
    pub(crate) duplicates: u64,
    pub(crate) beyond_window: u64,
    pub(crate) out_of_order: u64,
    /// Messages that were received by the fast path.
    pub(crate) fast: u64,
    /// Acks that were sent: ack packets, and data packets that carried an ack.
    pub(crate) acks_sent: u64,
    pub(crate) acks_carried: u64,
    pub(crate) acks_received: u64,
    /// Received acks of packets that were never sent.
    pub(crate) acks_of_unsent: u64,
    /// RNR probes that were sent, and packets of the peer that were not accepted yet: mostly sends without a receive.
    pub(crate) credit_probes: u64,
    pub(crate) no_receive: u64,
    /// Packets of sends that were withdrawn because the peer's shared receive queue was empty.
    pub(crate) withdrawn_sends: u64,
    /// MTU probes, keepalive challenges to the peer's address, and challenges to new addresses.
    pub(crate) mtu_probes: u64,
    pub(crate) keepalives: u64,
    pub(crate) challenges: u64,
    /// Requests of the peer that this host has refused, and requests that the peer has refused.
    pub(crate) refusals_sent: u64,
    pub(crate) refusals_received: u64,
    /// Malformed packets that were received.
    pub(crate) malformed: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Current values: window and bytes in flight, pacing rate in bytes per second (0: not paced), round-trip time in
    /// nanoseconds, path MTU in bytes.
    pub(crate) window: u64,
    pub(crate) in_flight: u64,
    pub(crate) rate: u64,
    pub(crate) rtt: Nanos,
    pub(crate) mtu: usize,
}
