//! Connection set-up: request, cookie, accept or reject, confirmation.
//!
//! A [`connect::Connector`] is the active side of one attempt. One [`accept::Acceptor`] is the passive side of all
//! attempts at an IA. Both get packets and the current time, and return packets, a deadline and an outcome. Request,
//! Accept and Confirm are retransmitted until the peer replies. Each packet may arrive more than once.
//!
//! ```text
//! client                                   server
//! Request  (to the well-known address)  ->
//!                                      <-  Cookie      (1)
//!                                      <-  Cookie      (2) "pending"
//!                                      <-  Accept      or Reject
//! Confirm                               ->             any other packet of the connection also confirms
//! ```
//!
//! 1. Sent only under load, or with a key. The client repeats its request with the cookie.
//! 2. The request has arrived and waits for the consumer. The client repeats it to the source of this packet.
//!
//! The caller routes packets as follows. For a request at the well-known port, `packets::request_head` returns the
//! qualifier. The process that listens on this qualifier, or any process if there is no listener, calls
//! `Acceptor::receive`. So does the process at whose data socket a request arrives, because pending requests are
//! repeated there. Other packets are routed by the connection number and token in the header:
//!
//! - to a local connection attempt: `Connector::receive`. When it returns `Established`, the caller creates a `Conn`
//!   with the agreed terms.
//! - to an accepted attempt: `Acceptor::reset`, then, if the packet is authentic, `Acceptor::confirmed`. The packet
//!   that confirms the accept is the first packet for `Conn`.
//! - to an established connection: the caller decrypts the packet, if there is a key, and passes it to `Conn`, which
//!   also replies to a late Accept or Confirm.
//! - without a match: an Accept goes to `connect::refuse_unmatched`. The caller drops any other packet, and counts it
//!   unless it is a Cookie or Reject.
//!
//! The caller reads the sockets before it calls `on_time` and `poll`, because after a pause of the process, replies may
//! be queued.

pub(crate) mod accept;
pub(crate) mod connect;
pub(crate) mod cookies;
mod half_open;
pub(crate) mod packets;

use std::net::SocketAddr;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::proto::psn::Psn;
use crate::proto::seal::{self, PacketGuard, Psk, Seal};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Maximum length in bytes of private data in a request, accept or reject.
pub(crate) const MAX_PRIVATE: usize = 512;

/// Datagram size in bytes that every path must carry, and the minimum of `mtu` in an offer.
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

    /// Returns a random token. It is never 0, which means "no token".
    fn token(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_ne_bytes(bytes).max(1)
    }
}

/// Parameters that a host proposes for a connection at set-up, as they are on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct Offer {
    /// Connection number and token that the peer must put in packets of the connection. Neither is 0.
    pub(crate) conn: U32,
    pub(crate) token: U64,
    /// PSN of the first packet that this host sends.
    pub(crate) first_psn: U32,
    /// Maximum number of outstanding RDMA reads of this host.
    pub(crate) ord: U32,
    /// Maximum number of outstanding RDMA reads of the peer.
    pub(crate) ird: U32,
    /// Number of receives that this host has posted before the handshake.
    pub(crate) credits: U32,
    /// Receive window: size of this host's socket receive buffer, in KiB.
    pub(crate) window_kib: U16,
    /// Size in bytes of the largest datagram that this host can receive or send.
    pub(crate) mtu: U16,
    /// Feature bits: [`EXTENSIONS`], and bits that are unknown to this version. Earlier versions send 0.
    pub(crate) features: U16,
    /// Length in bytes of the private data that follow in a packet.
    pub(crate) private: U16,
    /// Random bytes, new for each connection, so that no two connections have the same keys.
    pub(crate) random: [u8; 16],
}

/// Feature bit of an offer: the host supports extension operations, which are immediate data, invalidation and atomic
/// operations.
pub(crate) const EXTENSIONS: u16 = 1;

impl Offer {
    /// Creates an offer with new random numbers. The caller sets the other fields.
    pub(crate) fn new(conn: u32, random: &mut dyn Random) -> Offer {
        let mut fresh = [0; 16];
        random.fill(&mut fresh);
        Offer {
            conn: conn.into(),
            token: random.token().into(),
            first_psn: random.u32().into(),
            window_kib: 64.into(),
            mtu: MIN_MTU.into(),
            features: EXTENSIONS.into(),
            random: fresh,
            ..Offer::new_zeroed()
        }
    }
}

/// Agreed parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTerms {
    /// Whether this host is the active side, which repeats the confirmation until a packet arrives from the peer
    /// ([`connect::Confirming`]).
    pub(crate) active: bool,
    /// Connection number and token in packets from the peer (`our_*`), and in packets to the peer (`peer_*`).
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
    /// Maximum number of outstanding RDMA reads: of this host (`ord`), and of the peer (`ird`).
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Number of receives that the peer has posted before the handshake.
    pub(crate) credits: u32,
    /// The peer's receive window in KiB.
    pub(crate) peer_window_kib: u16,
    /// Maximum size in bytes of datagrams between the hosts, including the overhead of encryption.
    pub(crate) mtu_ceiling: usize,
    /// Whether both hosts support extension operations.
    pub(crate) extensions: bool,
    /// Number of bytes that encryption adds to every packet: [`seal::OVERHEAD`], or 0.
    pub(crate) overhead: usize,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// Random bytes from which unpredictable values are derived, such as nonces.
    pub(crate) seed: [u8; 16],
}

/// What both sides have agreed in the handshake: the connection terms, and the encryption.
#[derive(Debug)]
pub(crate) struct HandshakeResult {
    pub(crate) terms: ConnectionTerms,
    /// Encryption of the connection's packets, if the adapter has a key.
    pub(crate) seal: Option<Box<Seal>>,
}

/// Parameters of connection set-up. Users can change those that have a setting.
#[derive(Clone, Debug)]
pub(crate) struct SetupConfig {
    /// Interval before the first retransmission. Each interval is twice the previous one, up to `last_repeat`.
    pub(crate) first_repeat: Nanos,
    /// Maximum interval between retransmissions.
    pub(crate) last_repeat: Nanos,
    /// Maximum interval at which a pending request is repeated.
    pub(crate) pending_repeat: Nanos,
    /// A client's request fails after this time without a reply. A server's accept fails after this time without a
    /// confirmation.
    pub(crate) give_up: Nanos,
    /// Time for which a client repeats a request after the reply that there is no listener.
    pub(crate) listener_wait: Nanos,
    /// The server ends a pending attempt if no copy of its request arrives for this time.
    pub(crate) patience: Nanos,
    /// Time for which an ended attempt stays in the table, to reply to late duplicates.
    pub(crate) linger: Nanos,
    /// Maximum number of attempts of unverified sources. Beyond it, unverified sources get cookies. With a key, all
    /// unverified sources get cookies, to prevent replays of recorded requests.
    pub(crate) unverified: usize,
    /// Maximum number of attempts of unverified sources per prefix (/24 or /64).
    pub(crate) unverified_of_prefix: usize,
    /// Maximum number of attempts of all sources. Beyond it, all sources get cookies, and must repeat their requests.
    pub(crate) half_open: usize,
    /// Maximum number of attempts of all sources per prefix.
    pub(crate) half_open_of_prefix: usize,
    /// Maximum number of ended attempts in the table.
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
    /// Protection of set-up packets: a checksum, or encryption with the key.
    pub(crate) guard: PacketGuard,
    psk: Option<Psk>,
}

impl Setup {
    pub(crate) fn new(config: SetupConfig, psk: Option<Psk>) -> Setup {
        Setup { config, guard: PacketGuard::new(psk.as_ref()), psk }
    }

    /// Computes the agreed parameters from both offers. Both hosts compute the same limits.
    fn compute_terms(
        &self,
        own_offer: &Offer,
        peer_offer: &Offer,
        peer: SocketAddr,
        active: bool,
        random: &mut dyn Random,
    ) -> HandshakeResult {
        let mut seed = [0; 16];
        random.fill(&mut seed);
        let seal = self.psk.as_ref().map(|psk| {
            let (client, server) = if active { (own_offer, peer_offer) } else { (peer_offer, own_offer) };
            Box::new(Seal::new(psk, client, server, active))
        });
        let terms = ConnectionTerms {
            active,
            our_conn: own_offer.conn.get(),
            our_token: own_offer.token.get(),
            peer_conn: peer_offer.conn.get(),
            peer_token: peer_offer.token.get(),
            first_psn: Psn(own_offer.first_psn.get()),
            peer_first_psn: Psn(peer_offer.first_psn.get()),
            ord: own_offer.ord.get().min(peer_offer.ird.get()),
            ird: own_offer.ird.get().min(peer_offer.ord.get()),
            credits: peer_offer.credits.get(),
            peer_window_kib: peer_offer.window_kib.get(),
            mtu_ceiling: usize::from(own_offer.mtu.get().min(peer_offer.mtu.get())),
            extensions: own_offer.features.get() & peer_offer.features.get() & EXTENSIONS != 0,
            overhead: if seal.is_some() { seal::OVERHEAD } else { 0 },
            peer,
            seed,
        };
        HandshakeResult { terms, seal }
    }
}

#[cfg(test)]
pub(crate) mod tests;
