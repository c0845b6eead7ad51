//! Connection set-up: request, cookie, accept or reject, confirmation.
//!
//! The active side of one attempt is a [`connect::Connector`]; the passive side of all attempts that are not
//! connections yet is one [`accept::Acceptor`]. Both take packets and times, and return packets in a buffer, a deadline
//! and an outcome. Every packet is retransmitted until it is answered, and every packet may arrive twice.
//!
//! ```text
//! client                                   server
//! Request  (to the well-known address)  ->
//!                                      <-  Cookie      only under load, or with a key: the request comes again, with it
//!                                      <-  Cookie      "pending": it is here, and from now on is repeated here
//!                                      <-  Accept      or Reject
//! Confirm                               ->             anything else on the connection does as well
//! ```
//!
//! A driver routes packets as follows. At the well-known port, `packets::request_head` returns the qualifier of a
//! request. The process that listens on it, or any process if none does, passes the packet to `Acceptor::receive`. A
//! request at the data socket is handled in the same way, because a pending request is repeated there. Other packets
//! are routed by the connection number in the header, if the token matches:
//!
//! - to a local connection attempt: `Connector::receive`. When it is established, `Conn` starts with the terms, number
//!   and token.
//! - to a local accept, after `Acceptor::accept`: `Acceptor::reset`, then, if the seal is valid, `Acceptor::confirmed`.
//!   The packet that confirms the accept is the first packet for `Conn`.
//! - to an established connection: its seal, if there is one, and `Conn`, which also answers late set-up packets.
//! - without a match: an Accept goes to `connect::refuse_unmatched`; any other packet is dropped and counted.
//!
//! The driver reads the sockets before it calls `on_time` and `poll`: after a pause of the process, answers may be
//! queued. This module uses no sockets, no clock and no consumer objects.

pub(crate) mod accept;
pub(crate) mod connect;
pub(crate) mod cookies;
mod half_open;
pub(crate) mod packets;

use std::net::SocketAddr;

use crate::proto::psn::Psn;
use crate::proto::seal::{self, PacketGuard, Psk, Seal};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Maximum length of private data in a request or accept.
pub(crate) const MAX_PRIVATE: usize = 512;

/// Datagram size in bytes that every path carries. Neither host may offer less.
pub(crate) const MIN_MTU: u16 = 1200;

/// A source of random numbers: the operating system, or a test.
pub(crate) trait Random {
    /// Fills `out` with unpredictable bytes.
    fn fill(&mut self, out: &mut [u8]);

    /// Returns a random number of 32 bits.
    fn u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// Returns a token: any number but 0, which means no token.
    fn token(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_ne_bytes(bytes).max(1)
    }
}

/// Parameters that a host proposes for a connection at set-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Offer {
    /// Number and token that the peer must use in packets of the connection; neither is 0.
    pub(crate) conn: u32,
    pub(crate) token: u64,
    /// PSN of the first packet that this host sends.
    pub(crate) first_psn: Psn,
    /// Maximum number of outstanding RDMA reads: `ord` of this host, `ird` of the peer.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Number of sends of the peer for which receives are already posted.
    pub(crate) credits: u32,
    /// Receive window: free space in this host's socket buffer, in KiB.
    pub(crate) window_kib: u16,
    /// Size in bytes of the largest datagram that this host can receive or send.
    pub(crate) mtu: u16,
    /// Whether this host supports extension operations: immediate data, invalidation, atomic operations.
    pub(crate) extensions: bool,
    /// Random bytes, new for each connection, so that no two connections have the same keys.
    pub(crate) random: [u8; 16],
}

impl Offer {
    /// Creates an offer with new random numbers; the caller sets the other fields.
    pub(crate) fn new(conn: u32, random: &mut dyn Random) -> Offer {
        let mut fresh = [0; 16];
        random.fill(&mut fresh);
        Offer {
            conn,
            token: random.token(),
            first_psn: Psn(random.u32()),
            ord: 0,
            ird: 0,
            credits: 0,
            window_kib: 64,
            mtu: MIN_MTU,
            extensions: true,
            random: fresh,
        }
    }
}

/// Agreed parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Whether this host is the active side. The active side repeats the confirmation until a packet arrives from the
    /// peer ([`connect::Confirming`]).
    pub(crate) active: bool,
    /// Connection number and token in packets from the peer (`our_*`), and in packets to the peer (`peer_*`). The
    /// connection table found the connection by its number.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the counterpart of `peer_conn`, on which both hosts must agree")
    )]
    pub(crate) our_conn: u32,
    pub(crate) our_token: u64,
    pub(crate) peer_conn: u32,
    pub(crate) peer_token: u64,
    /// PSN of the first local packet, and of the peer's first packet.
    pub(crate) first_psn: Psn,
    pub(crate) peer_first_psn: Psn,
    /// Maximum number of outstanding RDMA reads: local reads, and reads of the peer.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Number of local sends for which the peer has receives before the first ack.
    pub(crate) credits: u32,
    /// The peer's receive window in KiB.
    pub(crate) peer_window_kib: u16,
    /// Maximum size in bytes of datagrams that both hosts may send, including all overhead.
    pub(crate) mtu_ceiling: usize,
    /// Whether both hosts support extension operations.
    pub(crate) extensions: bool,
    /// Bytes that sealing adds to every packet: [`seal::OVERHEAD`], or 0.
    pub(crate) overhead: usize,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// Secret from which unpredictable values are derived, such as nonces.
    pub(crate) seed: [u8; 16],
}

/// The terms, and the keys if the adapter has a key.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) terms: Terms,
    /// Seals and opens every packet of the connection.
    pub(crate) seal: Option<Box<Seal>>,
}

/// Parameters of connection set-up. The defaults of parameters with a setting are those of the setting. Parameters
/// without a setting always have their default.
#[derive(Clone, Debug)]
pub(crate) struct SetupConfig {
    /// Interval before the first retransmission; each interval is twice the previous one, up to the maximum.
    pub(crate) first_repeat: Nanos,
    pub(crate) last_repeat: Nanos,
    /// Maximum interval at which a pending request is repeated.
    pub(crate) pending_repeat: Nanos,
    /// Time without an answer after which the client gives up its request, and the server gives up its accept.
    pub(crate) give_up: Nanos,
    /// Time for which a client repeats a request that finds no listener.
    pub(crate) listener_wait: Nanos,
    /// Time after the last retransmission of a request after which the server gives up the client.
    pub(crate) patience: Nanos,
    /// Time for which the outcome of an attempt is kept, to answer late requests.
    pub(crate) linger: Nanos,
    /// Maximum number of attempts of unverified sources, in total and per prefix (/24, /64). Beyond it, unverified
    /// sources get cookies. With a key all sources get cookies, to prevent replays.
    pub(crate) unverified: usize,
    pub(crate) unverified_of_prefix: usize,
    /// Maximum number of attempts of all sources, in total and per prefix. Beyond it, all sources get cookies, and must
    /// repeat their requests.
    pub(crate) half_open: usize,
    pub(crate) half_open_of_prefix: usize,
    /// Maximum number of ended attempts that stay in the table.
    pub(crate) remembered: usize,
}

impl Default for SetupConfig {
    fn default() -> Self {
        SetupConfig {
            first_repeat: 100 * MILLIS,
            last_repeat: SECONDS,
            pending_repeat: 2 * SECONDS,
            give_up: 10 * SECONDS,
            listener_wait: 0,
            patience: 30 * SECONDS,
            linger: 10 * SECONDS,
            unverified: 128,
            unverified_of_prefix: 64,
            half_open: 4096,
            half_open_of_prefix: 2048,
            remembered: 4096,
        }
    }
}

/// State shared by all attempts of an IA.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: SetupConfig,
    /// Protects every set-up packet.
    guard: PacketGuard,
    psk: Option<Psk>,
}

impl Setup {
    /// Whether there is a key, so that only peers with the same key are answered.
    pub(crate) fn has_key(&self) -> bool {
        self.psk.is_some()
    }

    pub(crate) fn new(config: SetupConfig, psk: Option<Psk>) -> Setup {
        Setup { config, guard: PacketGuard::new(psk.as_ref()), psk }
    }

    /// Computes the agreed parameters from both offers. Both hosts get the same result.
    fn agree(
        &self,
        own_offer: &Offer,
        peer_offer: &Offer,
        peer: SocketAddr,
        active: bool,
        random: &mut dyn Random,
    ) -> Agreed {
        let mut seed = [0; 16];
        random.fill(&mut seed);
        let seal = self.psk.as_ref().map(|psk| {
            let (client, server) = if active { (own_offer, peer_offer) } else { (peer_offer, own_offer) };
            Box::new(Seal::new(psk, client, server, active))
        });
        let terms = Terms {
            active,
            our_conn: own_offer.conn,
            our_token: own_offer.token,
            peer_conn: peer_offer.conn,
            peer_token: peer_offer.token,
            first_psn: own_offer.first_psn,
            peer_first_psn: peer_offer.first_psn,
            ord: own_offer.ord.min(peer_offer.ird),
            ird: own_offer.ird.min(peer_offer.ord),
            credits: peer_offer.credits,
            peer_window_kib: peer_offer.window_kib,
            mtu_ceiling: usize::from(own_offer.mtu.min(peer_offer.mtu)),
            extensions: own_offer.extensions && peer_offer.extensions,
            overhead: if seal.is_some() { seal::OVERHEAD } else { 0 },
            peer,
            seed,
        };
        Agreed { terms, seal }
    }
}

#[cfg(test)]
pub(crate) mod tests;
