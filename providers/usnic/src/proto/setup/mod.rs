//! How two sides come to a connection: request, cookie, accept or reject, confirm.
//!
//! The client's side of one attempt is an [`opening::Opening`], the server's side of all attempts that have not become
//! connections yet is one [`answering::Answering`]. Packets and times come in, packets come out into a buffer, with a deadline
//! and an outcome. Everything is sent again until it is answered, and everything may come twice.
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
//! How a driver steers what comes. To the well-known port: `packets::asking` says which qualifier is asked; its owner, or who
//! knows that there is none, gives the packet to `Answering::receive`. To the data socket likewise, where a request is repeated
//! of which it said that it is pending; all else by the number in the head, if the token is that of this number:
//!
//! - an attempt of ours: `Opening::receive`. Established: `Conn` with the terms, from the same number and token on.
//! - an accept of ours, from `Answering::accept` on: `Answering::reset`, then, if the seal vouches for it,
//!   `Answering::confirmed`; the packet that confirms is the first for `Conn`.
//! - a connection that stands: its seal, if there is one, and `Conn`, which answers what is left of the set-up.
//! - nobody: an Accept goes to `opening::refuse_stray`; all else is dropped and counted.
//!
//! Sockets are read before `on_time` and `poll` are called: a process that stood still must hear the answers first.
//! Nothing here has a socket or a clock, or knows what a consumer is.

pub(crate) mod answering;
mod census;
pub(crate) mod cookies;
pub(crate) mod opening;
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
    /// Fills it with bytes that nobody can guess.
    fn fill(&mut self, out: &mut [u8]);

    /// A number of them.
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

/// What a side brings into a connection.
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
    /// What its socket has room for.
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

/// What the set-up agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// We asked: until something comes from the peer, the confirmation is repeated ([`opening::Confirming`]).
    pub(crate) active: bool,
    /// How the peer names the connection in what it sends, and we in what we send. Who has the table found it by our number.
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
    /// What the peer's socket has room for.
    pub(crate) peer_window_kib: u16,
    /// Bytes of a datagram that both sides may send at most, with all that is added to it.
    pub(crate) mtu_ceiling: usize,
    /// Bytes that sealing adds to every packet after it was made: [`seal::OVERHEAD`], or none.
    pub(crate) overhead: usize,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// Nobody else knows it: what the peer must not foresee comes of this.
    pub(crate) seed: [u8; 16],
}

/// The terms, and the keys if there is one to begin with.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) terms: Terms,
    /// Every packet of the connection goes through it, both ways.
    pub(crate) seal: Option<Box<Seal>>,
}

/// Parameters of the set-up machines. The defaults are those of the settings or, where there is no setting, the values in use.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The first repetition comes after so long; each wait is twice the one before, up to the last.
    pub(crate) first_repeat: Nanos,
    pub(crate) last_repeat: Nanos,
    /// A client whose request is pending asks again with waits that double up to this, and until it has an answer as if it
    /// were new.
    pub(crate) pending_repeat: Nanos,
    /// Who hears nothing for so long gives up: the client that the server lives, the server that its accept came through.
    pub(crate) silence: Nanos,
    /// A client that is told that nobody listens asks again for so long.
    pub(crate) listener_wait: Nanos,
    /// The server takes a client that asked and does not come again for gone after so long.
    pub(crate) patience: Nanos,
    /// So long it is remembered what became of an attempt, for requests that come late.
    pub(crate) linger: Nanos,
    /// Every source must show that it is there, loaded or not. With a key that is so anyway: it is what refuses replays.
    pub(crate) always_cookies: bool,
    /// So many attempts are kept for sources that did not, in all and of one prefix (/24, /64); above, they get cookies.
    pub(crate) unproven: usize,
    pub(crate) unproven_of_prefix: usize,
    /// So many are kept at most, proven or not; above, all get cookies, and come again.
    pub(crate) half_open: usize,
    pub(crate) half_open_of_prefix: usize,
    /// So many past attempts are remembered at most.
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
            always_cookies: false,
            unproven: 128,
            unproven_of_prefix: 64,
            half_open: 4096,
            half_open_of_prefix: 2048,
            remembered: 4096,
        }
    }
}

/// What all attempts of an IA share.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// Around every set-up packet.
    guard: Guard,
    psk: Option<Psk>,
}

impl Setup {
    /// Nobody is heard who does not have the key.
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
