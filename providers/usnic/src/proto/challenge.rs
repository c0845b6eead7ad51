//! Validation of the peer's address, and keepalive.
//!
//! A packet from a new address may come from a peer that has moved, or be a copy that another host sends. So only a
//! challenge is sent to the new address, and only a response from there makes it the peer's address. Challenges are
//! also the keepalive packets to a peer that sends nothing. The caller has authenticated all packets.

use siphasher::sip128::SipHasher24;
use zerocopy::IntoBytes;
use zerocopy::network_endian::U64;

use crate::proto::conn::Source;
use crate::proto::rtt::Rtt;
use crate::proto::setup::Terms;
use crate::proto::setup::packets;
use crate::proto::wire::Kind;
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Number of challenges to a new address before validation of the address ends.
const TRIES: u32 = 3;
/// Interval between challenges to new addresses.
const APART: Nanos = 100 * MILLIS;
/// Minimum number of unanswered challenges before a peer is given up. If the peer's host reports a closed port, this
/// number of challenges must each have caused such a report.
const MIN_PROBES: u32 = 3;
/// Minimum interval between challenges to the peer's address. It also applies at short round trips and to challenges
/// that ICMP messages cause.
const PAUSE: Nanos = 100 * MILLIS;
/// Maximum number of times that the wait for an answer is doubled (RFC 9002, 6.2.1).
const DOUBLINGS: u32 = 6;

/// Parses the nonce in the body of a challenge or response.
pub(crate) fn nonce(body: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(body.try_into().ok()?))
}

#[cfg(test)]
/// Appends the response to a challenge. The response is sent to the source of the challenge, and is not longer than the
/// challenge.
pub(crate) fn respond(terms: &Terms, nonce: u64, out: &mut Vec<u8>) {
    put(Kind::Response, terms, nonce, out);
}

fn put(kind: Kind, terms: &Terms, nonce: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(packets::head(kind, terms).as_bytes());
    out.extend_from_slice(U64::new(nonce).as_bytes());
}

/// Result of an expired deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerTimeout {
    Nothing,
    /// The peer did not answer and is given up.
    Gone,
}

/// A new address that is being validated.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: Source,
    nonce: u64,
    /// Number of challenges that were sent to the address.
    asked: u32,
}

/// State of the challenges to a peer that sends nothing.
#[derive(Clone, Copy, Debug)]
struct ChallengeState {
    since: Nanos,
    /// Number of challenges that were sent.
    asked: u32,
    nonce: u64,
    /// Time of the last challenge; the next challenge is sent at `next`.
    last: Nanos,
    next: Nanos,
    /// Number of challenges that caused a report of a closed port.
    closed: u32,
    /// Whether the last challenge has not caused a report of a closed port yet.
    is_open: bool,
}

impl ChallengeState {
    fn new(now: Nanos, next: Nanos) -> ChallengeState {
        ChallengeState { since: now, asked: 0, nonce: 0, last: now, next, closed: 0, is_open: false }
    }
}

/// Address and liveness of the peer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    at: Source,
    candidate: Option<Candidate>,
    /// Earliest time of a challenge to a new address.
    not_before: Nanos,
    /// Seed of the nonces. Nonces are derived from this seed and a counter, so that the peer cannot predict them.
    seed: [u8; 16],
    nonces: u64,
    /// Keepalive interval; 0 disables it.
    interval: Nanos,
    /// Time without an answer after which the peer is given up.
    give_up: Nanos,
    last_packet: Nanos,
    probing: Option<ChallengeState>,
    /// ICMP messages cause no challenge before this time.
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
            last_packet: now,
            probing: None,
            not_hinted_before: 0,
        }
    }

    /// The peer's current address.
    pub(crate) fn at(&self) -> Source {
        self.at
    }

    /// Records that a packet of the connection arrived from `from`.
    pub(crate) fn note_packet(&mut self, now: Nanos, from: Source) {
        self.last_packet = self.last_packet.max(now);
        self.probing = None;
        if from != self.at && self.candidate.is_none_or(|candidate| candidate.at != from && candidate.asked > 0) {
            // The newest address replaces the candidate, so a peer that moves again during validation is found.
            if self.candidate.is_none() || now >= self.not_before {
                self.candidate = Some(Candidate { at: from, nonce: self.fresh(), asked: 0 });
            }
        }
    }

    /// Records a response to a challenge, after `note_packet`. Returns true if the peer has moved. In this case `at` is
    /// the new address, and measurements of the old path are invalid.
    pub(crate) fn responded(&mut self, from: Source, nonce: u64) -> bool {
        let has_moved = self.candidate.is_some_and(|it| it.at == from && it.nonce == nonce && it.asked > 0);
        if has_moved {
            (self.at, self.candidate) = (from, None);
        }
        has_moved
    }

    /// Handles a hint that the peer is unreachable, which may be wrong, forged or temporary. The peer is challenged. It
    /// is given up no earlier than without the hint.
    pub(crate) fn hinted(&mut self, now: Nanos) {
        let next = now.max(self.not_hinted_before);
        self.probing.get_or_insert_with(|| ChallengeState::new(now, next));
    }

    /// Handles a report that the peer's port is closed, sent by the peer's host with a quote of a recent packet. The
    /// report answers the last challenge. The next challenge follows after a probe timeout, so that a live peer has
    /// time to answer.
    pub(crate) fn port_closed(&mut self, now: Nanos, rtt: &Rtt) {
        self.hinted(now);
        let Some(probing) = self.probing.as_mut().filter(|probing| probing.is_open) else { return };
        (probing.closed, probing.is_open) = (probing.closed + 1, false);
        probing.next = probing.next.min(probing.last.saturating_add(rtt.pto(0).max(PAUSE)));
    }

    /// Whether `nonce` is the nonce of the last challenge.
    pub(crate) fn has_probed(&self, nonce: u64) -> bool {
        self.probing.is_some_and(|probing| probing.asked > 0 && probing.nonce == nonce)
    }

    /// Appends a challenge if one is due, and returns its destination.
    pub(crate) fn transmit(&mut self, now: Nanos, rtt: &Rtt, terms: &Terms, out: &mut Vec<u8>) -> Option<Source> {
        if let Some(mut candidate) = self.candidate.filter(|_| now >= self.not_before) {
            self.not_before = now.saturating_add(APART);
            candidate.asked += 1;
            // The last challenge may still be answered; `on_time` removes the candidate later.
            self.candidate = Some(candidate).filter(|it| it.asked <= TRIES);
            if candidate.asked <= TRIES {
                put(Kind::Challenge, terms, candidate.nonce, out);
                return Some(candidate.at);
            }
        }
        let probing = self.probing.filter(|probing| now >= probing.next)?;
        let nonce = self.fresh();
        let next = now.saturating_add(self.wait(&probing, rtt));
        self.probing =
            Some(ChallengeState { asked: probing.asked + 1, nonce, last: now, next, is_open: true, ..probing });
        self.not_hinted_before = now.saturating_add(PAUSE);
        put(Kind::Challenge, terms, nonce, out);
        Some(self.at)
    }

    /// Handles an expired deadline. Afterwards `transmit` may have a packet to send.
    pub(crate) fn on_time(&mut self, now: Nanos) -> PeerTimeout {
        match self.probing {
            None if self.interval != 0 && now >= self.last_packet.saturating_add(self.interval) => {
                self.probing = Some(ChallengeState::new(now, now));
                PeerTimeout::Nothing
            }
            // The peer is given up only after enough challenges and enough time. A process that was stopped reads
            // queued responses before the challenges are sent.
            Some(ChallengeState { since, asked, next, closed, .. }) if asked >= MIN_PROBES && now >= next => {
                let is_gone = now.saturating_sub(since) >= self.give_up || closed >= MIN_PROBES;
                if is_gone { PeerTimeout::Gone } else { PeerTimeout::Nothing }
            }
            _ => PeerTimeout::Nothing,
        }
    }

    /// Returns the time of the next challenge or decision.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let candidate = self.candidate.map(|_| self.not_before);
        let life = match self.probing {
            Some(probing) => Some(probing.next),
            None => (self.interval != 0).then(|| self.last_packet.saturating_add(self.interval)),
        };
        candidate.into_iter().chain(life).min()
    }

    /// Returns the time between this challenge and the next one, at least a probe timeout. Hosts limit the rate of
    /// their ICMP messages (Linux: one per second), so the time doubles with each unanswered challenge if the port is
    /// closed.
    fn wait(&self, probing: &ChallengeState, rtt: &Rtt) -> Nanos {
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
