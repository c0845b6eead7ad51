//! Where the peer is, and whether it lives.
//!
//! A packet from a new address may be the peer's, moved, or somebody's who copied it on the way: nothing is sent there but a
//! challenge, and only the answer, from there, makes it the peer's address. The same challenge asks a silent peer for a sign
//! of life. Knows nothing of data; which packets are the connection's own, `Conn` has seen before.

use siphasher::sip128::SipHasher24;
use zerocopy::IntoBytes;
use zerocopy::network_endian::U64;

use crate::proto::conn::Source;
use crate::proto::setup::Terms;
use crate::proto::setup::packets;
use crate::proto::wire::Kind;
use crate::proto::{MILLIS, Nanos, SECONDS};

/// A new address is asked so often before it is forgotten.
const TRIES: u32 = 3;
/// Between two challenges to new addresses, whichever they are.
const APART: Nanos = 100 * MILLIS;
/// A silent peer is asked so often at least before it is gone.
const ASKED: u32 = 3;
/// So often when the host says that nobody is there any more.
const HURRY: Nanos = 100 * MILLIS;

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

/// What came of a deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Beat {
    Nothing,
    /// It did not answer, and is gone.
    Gone,
}

/// A new address on trial.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: Source,
    nonce: u64,
    /// So often it was asked.
    asked: u32,
}

/// The peer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    at: Source,
    candidate: Option<Candidate>,
    /// No new address is asked before.
    not_before: Nanos,
    /// Nonces come of this and a number, so that the peer cannot foresee them.
    seed: [u8; 16],
    nonces: u64,
    /// Asked for a sign of life after so long; 0: never.
    interval: Nanos,
    /// Gone so long after it was asked.
    give_up: Nanos,
    heard: Nanos,
    /// Since when, how often it was asked, and when it is asked again.
    asking: Option<(Nanos, u32, Nanos)>,
    /// So often the host said that nobody is there, once per question at most.
    refused: u32,
    refusal_counts: bool,
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
            asking: None,
            refused: 0,
            refusal_counts: true,
        }
    }

    /// Where packets go.
    pub(crate) fn at(&self) -> Source {
        self.at
    }

    /// A packet of the connection came, whatever it was.
    pub(crate) fn heard(&mut self, now: Nanos, from: Source) {
        self.heard = self.heard.max(now);
        self.asking = None;
        (self.refused, self.refusal_counts) = (0, true);
        if from != self.at && self.candidate.is_none_or(|candidate| candidate.at != from && candidate.asked > 0) {
            // The newest counts: a peer that moves on while it is asked is found in the end.
            if self.candidate.is_none() || now >= self.not_before {
                self.candidate = Some(Candidate { at: from, nonce: self.fresh(), asked: 0 });
            }
        }
    }

    /// A response came, after `heard`. `true`: the peer has moved, and `at` is new; what was learnt of the path is not true
    /// of this one.
    pub(crate) fn responded(&mut self, from: Source, nonce: u64) -> bool {
        let moved = self.candidate.is_some_and(|it| it.at == from && it.nonce == nonce && it.asked > 0);
        if moved {
            (self.at, self.candidate) = (from, None);
        }
        moved
    }

    /// The host says that nobody is there: it is asked at once, and if that is said again and again, it is gone sooner.
    pub(crate) fn refused(&mut self, now: Nanos) {
        if !std::mem::take(&mut self.refusal_counts) {
            return;
        }
        self.refused += 1;
        let (since, asked, next) = self.asking.unwrap_or((now, 0, now));
        self.asking = Some((since, asked, next.min(now.saturating_add(if asked == 0 { 0 } else { HURRY }))));
    }

    /// Appends a challenge, if one is due, and says where it goes.
    pub(crate) fn transmit(&mut self, now: Nanos, terms: &Terms, out: &mut Vec<u8>) -> Option<Source> {
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
        let (since, asked, _) = self.asking.filter(|(.., next)| now >= *next)?;
        let wait = if self.refused > 0 { HURRY } else { (self.give_up / 4).clamp(10 * MILLIS, SECONDS) };
        self.asking = Some((since, asked + 1, now.saturating_add(wait)));
        self.refusal_counts = true;
        let nonce = self.fresh();
        put(Kind::Challenge, terms, nonce, out);
        Some(self.at)
    }

    /// The deadline is here; then `transmit` may have something.
    pub(crate) fn on_time(&mut self, now: Nanos) -> Beat {
        match self.asking {
            None if self.interval != 0 && now >= self.heard.saturating_add(self.interval) => {
                self.asking = Some((now, 0, now));
                Beat::Nothing
            }
            // The questions count as well as the time: a process that stood still must hear the answers first.
            Some((since, asked, next)) if asked >= ASKED && now >= next => {
                let is_gone = now.saturating_sub(since) >= self.give_up || self.refused >= ASKED;
                if is_gone { Beat::Gone } else { Beat::Nothing }
            }
            _ => Beat::Nothing,
        }
    }

    /// When something is to be asked or decided.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let candidate = self.candidate.map(|_| self.not_before);
        let life = match self.asking {
            Some((.., next)) => Some(next),
            None => (self.interval != 0).then(|| self.heard.saturating_add(self.interval)),
        };
        candidate.into_iter().chain(life).min()
    }

    fn fresh(&mut self) -> u64 {
        self.nonces += 1;
        SipHasher24::new_with_key(&self.seed).hash(&self.nonces.to_be_bytes()).h1
    }
}

#[cfg(test)]
mod tests;
