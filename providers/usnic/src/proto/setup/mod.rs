//! Connection set-up: request, cookie, accept or reject, confirm.
//!
//! The active side of one attempt is a [`connect::Connector`]; the passive side of all attempts that are not
//! connections yet is one [`accept::Acceptor`]. Packets and times come in, packets come out into a buffer, with a
//! deadline and an outcome. Everything is sent again until it is answered, and everything may come twice.
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
//! How a driver routes packets. At the well-known port, `packets::request_head` gives the qualifier of a request; the
//! process that listens on it, or any if none does, passes the packet to `Acceptor::receive`. So it does with a request
//! at the data socket, where a pending request is repeated. Other packets go by the connection number in the header, if
//! the token is right:
//!
//! - an attempt of this side: `Connector::receive`. Once established, `Conn` begins with the terms, number and token.
//! - an accept of this side, from `Acceptor::accept` on: `Acceptor::reset`, then, if the seal is valid,
//!   `Acceptor::confirmed`; the packet that confirms is the first for `Conn`.
//! - an established connection: its seal, if there is one, and `Conn`, which answers late packets of the set-up.
//! - no match: an Accept goes to `connect::refuse_unmatched`; all else is dropped and counted.
//!
//! Read the sockets before calling `on_time` and `poll`: after a pause of the process, answers may wait there.
//! Nothing here has a socket or a clock, or knows what a consumer is.

pub(crate) mod accept;
pub(crate) mod connect;
pub(crate) mod cookies;
mod half_open;
pub(crate) mod packets;

use std::net::SocketAddr;

use crate::proto::psn::Psn;
use crate::proto::seal::{self, Guard, Psk, Seal};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Longest private data of a request or an accept.
pub(crate) const MAX_PRIVATE: usize = 512;

/// Bytes of datagram that every path takes; no side may offer less.
pub(crate) const MIN_MTU: u16 = 1200;

/// The caller's source of random numbers: the operating system's, or a test's.
pub(crate) trait Random {
    /// Fills it with bytes that cannot be guessed.
    fn fill(&mut self, out: &mut [u8]);

    /// A random number of 32 bits.
    fn u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// A token: any number but 0, which means none.
    fn token(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_ne_bytes(bytes).max(1)
    }
}

/// Parameters that a side proposes for a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Offer {
    /// The other side is to name the connection so; neither is 0.
    pub(crate) conn: u32,
    pub(crate) token: u64,
    /// Number of its first packet.
    pub(crate) first_psn: Psn,
    /// Reads outstanding at most: its own, and the other side's.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Sends of the other side's that find a receive already.
    pub(crate) credits: u32,
    /// Receive window: space in its socket, in KiB.
    pub(crate) window_kib: u16,
    /// Bytes of the largest datagram that it can take or send.
    pub(crate) mtu: u16,
    /// Fresh, so that no two connections have the same keys.
    pub(crate) random: [u8; 16],
}

impl Offer {
    /// With random numbers of its own; the rest is the caller's.
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
            random: fresh,
        }
    }
}

/// Agreed parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// This is the active side: it repeats the confirmation until something comes from the peer ([`connect::Confirming`]).
    pub(crate) active: bool,
    /// The number and token in what the peer sends, and in what this side sends. The table found the connection by its
    /// number.
    #[cfg_attr(not(test), expect(dead_code, reason = "the other half of what both sides must agree on"))]
    pub(crate) our_conn: u32,
    pub(crate) our_token: u64,
    pub(crate) peer_conn: u32,
    pub(crate) peer_token: u64,
    /// Number of our first packet, and of the peer's.
    pub(crate) first_psn: Psn,
    pub(crate) peer_first_psn: Psn,
    /// Reads outstanding at most: ours, and the peer's.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Our sends that find a receive before the first ack says more.
    pub(crate) credits: u32,
    /// The peer's receive window in KiB.
    pub(crate) peer_window_kib: u16,
    /// Bytes of a datagram that both sides may send at most, with all that is added to it.
    pub(crate) mtu_ceiling: usize,
    /// Bytes that sealing adds to every packet after it was made: [`seal::OVERHEAD`], or none.
    pub(crate) overhead: usize,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// Secret: what the peer must not foresee is derived from it.
    pub(crate) seed: [u8; 16],
}

/// The terms, and the keys if there is one to begin with.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) terms: Terms,
    /// Every packet of the connection goes through it, both ways.
    pub(crate) seal: Option<Box<Seal>>,
}

/// Parameters of the set-up machines. The defaults are those of the settings or, where there is no setting, the values
/// in use.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The first repetition comes after so long; each wait is twice the one before, up to the last.
    pub(crate) first_repeat: Nanos,
    pub(crate) last_repeat: Nanos,
    /// A pending request is repeated with waits that double up to this.
    pub(crate) pending_repeat: Nanos,
    /// Silence after which a side gives up: the client on its request, the server on its accept.
    pub(crate) silence: Nanos,
    /// How long a client retries a request that has no listener.
    pub(crate) listener_wait: Nanos,
    /// Time after the last retransmission of a request after which its client counts as gone.
    pub(crate) patience: Nanos,
    /// How long the outcome of an attempt is kept, for late requests.
    pub(crate) linger: Nanos,
    /// Attempts of sources that have not shown that they are there, in all and of one prefix (/24, /64); beyond it,
    /// these get cookies. With a key all do: cookies refuse replays.
    pub(crate) unproven: usize,
    pub(crate) unproven_of_prefix: usize,
    /// Attempts at most, in all and of one prefix; beyond it all get cookies, and repeat their requests.
    pub(crate) half_open: usize,
    pub(crate) half_open_of_prefix: usize,
    /// Past attempts that are remembered, at most.
    pub(crate) remembered: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            first_repeat: 100 * MILLIS,
            last_repeat: SECONDS,
            pending_repeat: 2 * SECONDS,
            silence: 10 * SECONDS,
            listener_wait: 0,
            patience: 30 * SECONDS,
            linger: 10 * SECONDS,
            unproven: 128,
            unproven_of_prefix: 64,
            half_open: 4096,
            half_open_of_prefix: 2048,
            remembered: 4096,
        }
    }
}

/// State shared by all attempts of an IA.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// Around every set-up packet.
    guard: Guard,
    psk: Option<Psk>,
}

impl Setup {
    /// Only peers with the key are answered.
    pub(crate) fn has_key(&self) -> bool {
        self.psk.is_some()
    }

    pub(crate) fn new(config: Config, psk: Option<Psk>) -> Setup {
        Setup { config, guard: Guard::new(psk.as_ref()), psk }
    }

    /// What comes of two offers; both sides come to the same.
    fn agree(&self, ours: &Offer, theirs: &Offer, peer: SocketAddr, active: bool, random: &mut dyn Random) -> Agreed {
        let mut seed = [0; 16];
        random.fill(&mut seed);
        let seal = self.psk.as_ref().map(|psk| {
            let (client, server) = if active { (ours, theirs) } else { (theirs, ours) };
            Box::new(Seal::new(psk, client, server, active))
        });
        let terms = Terms {
            active,
            our_conn: ours.conn,
            our_token: ours.token,
            peer_conn: theirs.conn,
            peer_token: theirs.token,
            first_psn: ours.first_psn,
            peer_first_psn: theirs.first_psn,
            ord: ours.ord.min(theirs.ird),
            ird: ours.ird.min(theirs.ord),
            credits: theirs.credits,
            peer_window_kib: theirs.window_kib,
            mtu_ceiling: usize::from(ours.mtu.min(theirs.mtu)),
            overhead: if seal.is_some() { seal::OVERHEAD } else { 0 },
            peer,
            seed,
        };
        Agreed { terms, seal }
    }
}

#[cfg(test)]
pub(crate) mod tests;
