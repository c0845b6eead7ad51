//! Counters of a connection, which DAT queries, `datinfo` and log messages show.

use crate::proto::Nanos;

/// Defines [`Counters`] by a list of its counters, in the order in which they are displayed, with their names.
macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident = $name:literal,)*) => {
        /// Counters since the connection was established, in packets unless stated otherwise.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $counter: u64,)*
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

        impl Counters {
            /// The names under which the counters are displayed.
            pub(crate) const NAMES: &[&str] = &[$($name),*];

            /// Returns the counters in the order of [`Self::NAMES`].
            pub(crate) fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$counter),*]
            }
        }
    };
}

counters! {
    /// Data packets sent for the first time.
    sent = "sent",
    /// Payload bytes sent for the first time.
    sent_bytes = "sent bytes",
    /// Retransmissions after acks of later packets.
    resent_gap = "retransmitted after a gap",
    /// Retransmissions after the loss delay.
    resent_timeout = "retransmitted after a timeout",
    /// Retransmissions after a probe timeout, or because the peer's shared receive queue became empty.
    resent_probe = "retransmitted as a probe",
    /// Packets that were retransmitted in pieces, because the path MTU has decreased.
    refragmented = "refragmented",
    /// Packets that were declared lost.
    lost = "lost",
    /// Packets that were declared lost, or retransmitted after a probe timeout, but had arrived.
    spurious = "spurious losses",
    /// Accepted data packets.
    received = "received",
    /// Payload bytes of accepted data packets.
    received_bytes = "received bytes",
    /// Received packets that were duplicates of an already received packet.
    duplicates = "duplicates",
    /// Received packets outside the window.
    beyond_window = "out of window",
    /// Received packets ahead of a missing packet.
    out_of_order = "out of order",
    /// Messages received by the fast path.
    fast = "fast deliveries",
    /// Malformed packets received.
    malformed = "malformed",
    /// Ack packets sent.
    acks_sent = "acks sent",
    /// Data packets that carried a pending ack, which needed no ack packet.
    acks_carried = "acks carried",
    acks_received = "acks received",
    /// Received acks that cover packets that were never sent, are more than a window old, or have invalid ranges.
    acks_of_unsent = "invalid acks",
    /// RNR probes sent.
    credit_probes = "rnr probes",
    /// Packets of the peer that were dropped without an ack, mostly sends without a receive.
    no_receive = "receiver not ready",
    /// Packets of sends that were withdrawn because the peer's shared receive queue was empty.
    withdrawn_sends = "withdrawn sends",
    /// MTU probes sent.
    mtu_probes = "mtu probes",
    /// Challenges sent to the peer's address.
    keepalives = "keepalives",
    /// Challenges sent to new addresses.
    challenges = "challenges",
    /// Requests of the peer that this side has refused.
    refusals_sent = "refusals sent",
    /// Requests that the peer has refused.
    refusals_received = "refusals received",
    /// Probe timeouts, and the timeout of a peer that did not respond to challenges.
    timeouts = "timeouts",
}
