//! Counters of a connection, for diagnosis by users.

use crate::proto::Nanos;

/// Counters since the connection was established, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// Packets with data that were sent for the first time, and their payload in bytes.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Retransmissions: `resent_gap` after acks of later packets, `resent_timeout` after the loss delay, `resent_probe`
    /// after a probe timeout.
    pub(crate) resent_gap: u64,
    pub(crate) resent_timeout: u64,
    pub(crate) resent_probe: u64,
    /// Packets that were split and sent again, because the path no longer carries packets of their size.
    pub(crate) refragmented: u64,
    /// Packets declared lost, and the number of these packets that had arrived.
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    /// Accepted packets with data, and their payload in bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Received packets: duplicates, packets beyond the window, and packets ahead of a missing packet.
    pub(crate) duplicates: u64,
    pub(crate) beyond_window: u64,
    pub(crate) out_of_order: u64,
    /// Messages that the fast path received.
    pub(crate) fast: u64,
    /// Acks that were sent: ack packets, and data packets that carried an ack.
    pub(crate) acks_sent: u64,
    pub(crate) acks_carried: u64,
    pub(crate) acks_received: u64,
    /// Received acks of packets that were never sent.
    pub(crate) acks_of_unsent: u64,
    /// RNR probes, and sends for which the peer had no posted receive.
    pub(crate) credit_probes: u64,
    pub(crate) no_receive: u64,
    /// Sends that were withdrawn because the peer's shared queue was empty.
    pub(crate) withdrawn_sends: u64,
    /// Probes of the path MTU, keepalive challenges to idle peers, and challenges to new addresses.
    pub(crate) mtu_probes: u64,
    pub(crate) keepalives: u64,
    pub(crate) challenges: u64,
    /// Messages that the local side refused, and messages that the peer refused.
    pub(crate) refusals_sent: u64,
    pub(crate) refusals_received: u64,
    /// Malformed packets that were received.
    pub(crate) malformed: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Current values: congestion window and bytes in flight, pacing rate in bytes per second (0: not paced),
    /// round-trip time, datagram size in bytes.
    pub(crate) window: u64,
    pub(crate) in_flight: u64,
    pub(crate) rate: u64,
    pub(crate) rtt: Nanos,
    pub(crate) mtu: usize,
}
