//! A connection attempt of a client: its phase, and how many bytes its source has sent and got.

use std::net::SocketAddr;

use crate::proto::Nanos;
use crate::proto::setup::packets::{self, ReplyTarget};
use crate::proto::setup::{Offer, Random, Setup};

/// Amplification limit: maximum number of bytes sent to an unverified source per byte received from there (3 as in RFC
/// 9000, 8.1).
const AMPLIFICATION_FACTOR: u64 = 3;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct AttemptKey {
    pub(super) from: SocketAddr,
    pub(super) to: ReplyTarget,
}

#[derive(Debug)]
pub(super) enum AcceptPhase {
    Pending,
    /// The consumer has accepted, and the client has not confirmed yet. `conn` and `token` are in the accept packet.
    /// `wait` is the next retransmission interval. The attempt fails at `until`.
    Accepted {
        packet: Vec<u8>,
        conn: u32,
        token: u64,
        wait: Nanos,
        until: Nanos,
        /// Number of reports that the client's port is closed.
        closed: u32,
        /// Whether the next report of a closed port counts. Only one report per transmission counts.
        closed_counts: bool,
    },
    /// The attempt has ended. Duplicate requests get the reply `packet`, or none if it is empty. The entry is removed
    /// at `until`.
    Ended {
        packet: Vec<u8>,
        was_sent: bool,
        until: Nanos,
    },
}

#[derive(Debug)]
pub(super) struct PassiveAttempt {
    pub(super) key: AttemptKey,
    pub(super) qual: u64,
    pub(super) offer: Offer,
    pub(super) private: Vec<u8>,
    pub(super) phase: AcceptPhase,
    /// Whether the source address is verified.
    pub(super) is_verified: bool,
    /// Number of bytes received from the source, for the amplification limit.
    pub(super) received: u64,
    /// Number of bytes sent to the source.
    pub(super) sent: u64,
    /// Time of the attempt's entry in `Acceptor::due`.
    pub(super) due: Nanos,
}

impl PassiveAttempt {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, AcceptPhase::Ended { .. })
    }

    /// Appends the Pending reply, which informs the client that the request waits for the consumer.
    pub(super) fn append_pending(&mut self, setup: &Setup, random: &mut dyn Random, out: &mut Vec<u8>) {
        let before = out.len();
        packets::put_cookie(&setup.guard, self.key.to, None, random, out);
        self.sent += (out.len() - before) as u64;
    }

    /// Appends the accept or reject packet. Returns false if there is none, or if the packet would exceed the
    /// amplification limit of an unverified source.
    pub(super) fn append_reply(&mut self, out: &mut Vec<u8>) -> bool {
        let packet = match &mut self.phase {
            AcceptPhase::Accepted { packet, closed_counts, .. } => {
                *closed_counts = true;
                packet
            }
            AcceptPhase::Ended { packet, was_sent, .. } => {
                *was_sent = true;
                packet
            }
            AcceptPhase::Pending => return false,
        };
        let length = packet.len() as u64;
        let may = self.is_verified || self.sent + length <= self.received.saturating_mul(AMPLIFICATION_FACTOR);
        if length == 0 || !may {
            return false;
        }
        self.sent += length;
        out.extend_from_slice(packet);
        true
    }
}
