//! The peer's address and liveness.
//!
//! A packet from a new address may be from the peer, which has moved, or a copy by another host: only a challenge is sent
//! there, and only its answer from there makes it the peer's address. The same challenge is the keepalive for a silent peer.
//! The caller has authenticated packets.

use siphasher::sip128::SipHasher24;
use zerocopy::IntoBytes;
use zerocopy::network_endian::U64;

use crate::proto::conn::Source;
use crate::proto::rtt::Rtt;
use crate::proto::setup::Terms;
use crate::proto::setup::packets;
use crate::proto::wire::Kind;
use crate::proto::{MILLIS, Nanos, SECONDS};

/// A new address is asked so often before it is forgotten.
const TRIES: u32 = 3;
/// Interval between challenges to new addresses.
const APART: Nanos = 100 * MILLIS;
/// Challenges without an answer before a silent peer is given up. For a peer whose port is reported closed, each must
/// have that for an answer.
const MIN_PROBES: u32 = 3;
/// Between two questions at least, however short the round trip: also the most that ICMP messages make a connection ask.
const PAUSE: Nanos = 100 * MILLIS;
/// Questions without an answer after which the wait doubles no more (RFC 9002, 6.2.1).
const DOUBLINGS: u32 = 6;

/// A challenge or a response: what follows the head.
pub(crate) fn nonce(body: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(body.try_into().ok()?))
}

#[cfg(test)]
/// Appends the answer to a challenge; it goes to where that came from, and is not longer.
pub(crate) fn respond(terms: &Terms, nonce: u64, out: &mut Vec<u8>) {
    put(Kind::Response, terms, nonce, out);
}

fn put(kind: Kind, terms: &Terms, nonce: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(packets::head(kind, terms).as_bytes());
    out.extend_from_slice(U64::new(nonce).as_bytes());
}

/// Result of a deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerTimeout {
    Nothing,
    /// The peer did not answer: it is gone.
    Gone,
}

/// A new address on trial.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: Source,
    nonce: u64,
    /// Number of challenges sent.
    asked: u32,
}

/// A peer that is asked for a sign of life.
#[derive(Clone, Copy, Debug)]
struct Probing {
    since: Nanos,
    /// Number of challenges sent.
    asked: u32,
    nonce: u64,
    /// Time of the last challenge; the next is sent at `next`.
    last: Nanos,
    next: Nanos,
    /// Questions to which the peer's host answered that the port is closed.
    closed: u32,
    /// The last question has had no such answer.
    is_open: bool,
}

impl Probing {
    fn new(now: Nanos, next: Nanos) -> Probing {
        Probing { since: now, asked: 0, nonce: 0, last: now, next, closed: 0, is_open: false }
    }
}

/// The peer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    at: Source,
    candidate: Option<Candidate>,
    /// Earliest time of a challenge to a new address.
    not_before: Nanos,
    /// Nonces come of this and a number, so that the peer cannot foresee them.
    seed: [u8; 16],
    nonces: u64,
    /// Keepalive interval; 0: none.
    interval: Nanos,
    /// Time without an answer after which the peer is given up.
    give_up: Nanos,
    heard: Nanos,
    probing: Option<Probing>,
    /// ICMP messages make the peer be asked no earlier than this.
    not_hinted_before: Nanos,
}

impl Peer {
    pub(crate) fn new(terms: &Terms, now: Nanos, interval: Nanos, give_up: Nanos) -> Peer {
        Peer {
            at: terms.peer,
            candidate: None,
            not_before: 0,
            seed: terms.seed,
            nonces: 0,
            interval,
            give_up,
            heard: now,
            probing: None,
            not_hinted_before: 0,
        }
    }

    /// The peer's address.
    pub(crate) fn at(&self) -> Source {
        self.at
    }

    /// A packet of the connection arrived.
    pub(crate) fn heard(&mut self, now: Nanos, from: Source) {
        self.heard = self.heard.max(now);
        self.probing = None;
        if from != self.at && self.candidate.is_none_or(|candidate| candidate.at != from && candidate.asked > 0) {
            // The newest counts: a peer that moves on while it is asked is found in the end.
            if self.candidate.is_none() || now >= self.not_before {
                self.candidate = Some(Candidate { at: from, nonce: self.fresh(), asked: 0 });
            }
        }
    }

    /// A response arrived, after `heard`. `true`: the peer has moved, and `at` is new; measurements of the old path are
    /// invalid.
    pub(crate) fn responded(&mut self, from: Source, nonce: u64) -> bool {
        let moved = self.candidate.is_some_and(|it| it.at == from && it.nonce == nonce && it.asked > 0);
        if moved {
            (self.at, self.candidate) = (from, None);
        }
        moved
    }

    /// Something on the way says that the peer cannot be reached. It may be wrong, forged, or true for a moment only:
    /// the peer is asked, and given up no earlier than any peer that is asked.
    pub(crate) fn hinted(&mut self, now: Nanos) {
        let next = now.max(self.not_hinted_before);
        self.probing.get_or_insert_with(|| Probing::new(now, next));
    }

    /// The peer's host reports that the peer's port is closed, quoting a recent packet. This answers the last challenge; the
    /// next one follows after a probe timeout, so that a live peer has time to answer.
    pub(crate) fn port_closed(&mut self, now: Nanos, rtt: &Rtt) {
        self.hinted(now);
        let Some(probing) = self.probing.as_mut().filter(|probing| probing.is_open) else { return };
        (probing.closed, probing.is_open) = (probing.closed + 1, false);
        probing.next = probing.next.min(probing.last.saturating_add(rtt.pto(0).max(PAUSE)));
    }

    /// This was the last question.
    pub(crate) fn has_probed(&self, nonce: u64) -> bool {
        self.probing.is_some_and(|probing| probing.asked > 0 && probing.nonce == nonce)
    }

    /// Appends a challenge, if one is due, and says where it goes.
    pub(crate) fn transmit(&mut self, now: Nanos, rtt: &Rtt, terms: &Terms, out: &mut Vec<u8>) -> Option<Source> {
        if let Some(mut candidate) = self.candidate.filter(|_| now >= self.not_before) {
            self.not_before = now.saturating_add(APART);
            candidate.asked += 1;
            // The last question is given its time; `on_time` forgets it then.
            self.candidate = Some(candidate).filter(|it| it.asked <= TRIES);
            if candidate.asked <= TRIES {
                put(Kind::Challenge, terms, candidate.nonce, out);
                return Some(candidate.at);
            }
        }
        let probing = self.probing.filter(|probing| now >= probing.next)?;
        let nonce = self.fresh();
        let next = now.saturating_add(self.wait(&probing, rtt));
        self.probing = Some(Probing { asked: probing.asked + 1, nonce, last: now, next, is_open: true, ..probing });
        self.not_hinted_before = now.saturating_add(PAUSE);
        put(Kind::Challenge, terms, nonce, out);
        Some(self.at)
    }

    /// Called at the deadline; afterwards `transmit` may have a packet.
    pub(crate) fn on_time(&mut self, now: Nanos) -> PeerTimeout {
        match self.probing {
            None if self.interval != 0 && now >= self.heard.saturating_add(self.interval) => {
                self.probing = Some(Probing::new(now, now));
                PeerTimeout::Nothing
            }
            // Both the number of challenges and the time count: a process that was stopped must read the answers first.
            Some(Probing { since, asked, next, closed, .. }) if asked >= MIN_PROBES && now >= next => {
                let is_gone = now.saturating_sub(since) >= self.give_up || closed >= MIN_PROBES;
                if is_gone { PeerTimeout::Gone } else { PeerTimeout::Nothing }
            }
            _ => PeerTimeout::Nothing,
        }
    }

    /// Time of the next challenge or decision.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let candidate = self.candidate.map(|_| self.not_before);
        let life = match self.probing {
            Some(probing) => Some(probing.next),
            None => (self.interval != 0).then(|| self.heard.saturating_add(self.interval)),
        };
        candidate.into_iter().chain(life).min()
    }

    /// From the question that leaves now to the next one: at least a probe timeout. A host limits its ICMP messages
    /// (Linux: one a second), so with a closed port the wait doubles with each question that has no answer.
    fn wait(&self, probing: &Probing, rtt: &Rtt) -> Nanos {
        let timeout = rtt.pto(0);
        let plain = (self.give_up / 4).clamp(10 * MILLIS, SECONDS).max(timeout);
        match probing.closed {
            0 => plain,
            closed => (timeout.max(PAUSE) << (probing.asked - closed).min(DOUBLINGS)).min(plain),
        }
    }

    fn fresh(&mut self) -> u64 {
        self.nonces += 1;
        SipHasher24::new_with_key(&self.seed).hash(&self.nonces.to_be_bytes()).h1
    }
}

#[cfg(test)]
mod tests;
