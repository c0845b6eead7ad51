//! Path validation and keepalive, by challenges to which the peer must respond.
//!
//! A packet from a new address may come from a peer whose address has changed, or be a copy that another host has sent.
//! So only challenges are sent to a new address. It becomes the peer's address when a response arrives from there.
//! Challenges to the current address are the keepalive of an idle connection, and follow an ICMP message that the peer
//! is unreachable. The caller has checked the token of each packet, and with a key also its authenticity.

use siphasher::sip128::SipHasher24;

use crate::proto::conn::SourceAddress;
use crate::proto::rtt::Rtt;
use crate::proto::setup::ConnectionTerms;
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Maximum number of challenges to a new address.
const MAX_CHALLENGES: u32 = 3;
/// Minimum interval between challenges to new addresses, in nanoseconds.
const NEW_ADDRESS_INTERVAL: Nanos = 100 * MILLIS;
/// Minimum number of challenges without a response before a peer times out. Also the number of reports of a closed
/// port, each after a challenge of its own, with which the peer times out before the time limit.
const MIN_PROBES: u32 = 3;
/// Minimum time from a challenge to the next one that an ICMP message causes, in nanoseconds.
const MIN_INTERVAL: Nanos = 100 * MILLIS;
/// Maximum number of doublings of the interval between challenges (RFC 9002, 6.2.1).
const MAX_DOUBLINGS: u32 = 6;

/// Parses the nonce in the body of a challenge or response.
pub(crate) fn nonce(body: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(body.try_into().ok()?))
}

/// A new address of the peer that is being validated.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: SourceAddress,
    nonce: u64,
    /// Number of challenges sent to the address.
    challenges: u32,
}

/// Challenges to the current address of a peer that sends nothing.
#[derive(Clone, Copy, Debug)]
struct ChallengeState {
    since: Nanos,
    challenges: u32,
    nonce: u64,
    /// Time of the last challenge.
    last: Nanos,
    /// Time of the next challenge.
    next: Nanos,
    /// Number of challenges that have caused a report of a closed port.
    closed: u32,
    /// Whether the next report of a closed port counts. Only one report per challenge counts.
    is_open: bool,
}

impl ChallengeState {
    fn new(now: Nanos, next: Nanos) -> ChallengeState {
        ChallengeState { since: now, challenges: 0, nonce: 0, last: now, next, closed: 0, is_open: false }
    }
}

/// The peer's address, and the challenges to it and to a new address.
#[derive(Clone, Debug)]
pub(crate) struct PeerPath {
    at: SourceAddress,
    candidate: Option<Candidate>,
    /// Earliest time of a challenge to a new address.
    not_before: Nanos,
    /// Seed of the nonces. A nonce is a hash of the seed and a counter, so it cannot be predicted.
    seed: [u8; 16],
    nonces: u64,
    /// Keepalive interval, or 0 without keepalive.
    interval: Nanos,
    /// The peer has timed out if no packet arrives for this time after the challenges began.
    give_up: Nanos,
    last_packet: Nanos,
    probing: Option<ChallengeState>,
    /// ICMP messages cause no challenge before this time.
    no_hint_before: Nanos,
}

impl PeerPath {
    pub(crate) fn new(terms: &ConnectionTerms, now: Nanos, interval: Nanos, give_up: Nanos) -> PeerPath {
        PeerPath {
            at: terms.peer,
            candidate: None,
            not_before: 0,
            seed: terms.seed,
            nonces: 0,
            interval,
            give_up,
            last_packet: now,
            probing: None,
            no_hint_before: 0,
        }
    }

    pub(crate) fn current_address(&self) -> SourceAddress {
        self.at
    }

    /// Records that a packet of the connection arrived from `from`. It ends the challenges to the current address. If
    /// `from` is a new address, challenges to it begin.
    pub(crate) fn record_packet(&mut self, now: Nanos, from: SourceAddress) {
        self.last_packet = self.last_packet.max(now);
        self.probing = None;
        if from != self.at && self.candidate.is_none_or(|candidate| candidate.at != from && candidate.challenges > 0) {
            // The newest address replaces the candidate, because the peer's address may change again during validation.
            if self.candidate.is_none() || now >= self.not_before {
                self.candidate = Some(Candidate { at: from, nonce: self.new_challenge(), challenges: 0 });
            }
        }
    }

    /// Handles a response to a challenge, after `record_packet` for the same packet. Returns true if the response
    /// validates a new address. `current_address` is then the new address, and measurements of the old path are
    /// invalid.
    pub(crate) fn responded(&mut self, from: SourceAddress, nonce: u64) -> bool {
        let has_moved = self.candidate.is_some_and(|it| it.at == from && it.nonce == nonce && it.challenges > 0);
        if has_moved {
            (self.at, self.candidate) = (from, None);
        }
        has_moved
    }

    /// Challenges the peer because an ICMP message indicates that it is unreachable. The message may be wrong, forged
    /// or temporary, so it does not shorten the timeout.
    pub(crate) fn challenge_soon(&mut self, now: Nanos) {
        let next = now.max(self.no_hint_before);
        self.probing.get_or_insert_with(|| ChallengeState::new(now, next));
    }

    /// Handles an ICMP report that the peer's port is closed, whose quote the caller has checked. Counts the first
    /// report after a challenge, and brings the next challenge forward: to a probe timeout after the last challenge,
    /// at least [`MIN_INTERVAL`], so that an existing peer has time to respond.
    pub(crate) fn port_closed(&mut self, now: Nanos, rtt: &Rtt) {
        self.challenge_soon(now);
        let Some(probing) = self.probing.as_mut().filter(|probing| probing.is_open) else { return };
        (probing.closed, probing.is_open) = (probing.closed + 1, false);
        probing.next = probing.next.min(probing.last.saturating_add(rtt.pto(0).max(MIN_INTERVAL)));
    }

    /// Whether `nonce` is the nonce of the last challenge to the current address.
    pub(crate) fn has_probed(&self, nonce: u64) -> bool {
        self.probing.is_some_and(|probing| probing.challenges > 0 && probing.nonce == nonce)
    }

    /// Returns the destination and the nonce of the challenge that is due, if any. The caller sends it.
    pub(crate) fn transmit(&mut self, now: Nanos, rtt: &Rtt) -> Option<(SourceAddress, u64)> {
        if let Some(mut candidate) = self.candidate.filter(|_| now >= self.not_before) {
            self.not_before = now.saturating_add(NEW_ADDRESS_INTERVAL);
            candidate.challenges += 1;
            // A response to the last challenge may still arrive, so the candidate is removed only after another
            // interval.
            self.candidate = Some(candidate).filter(|it| it.challenges <= MAX_CHALLENGES);
            if candidate.challenges <= MAX_CHALLENGES {
                return Some((candidate.at, candidate.nonce));
            }
        }
        let probing = self.probing.filter(|probing| now >= probing.next)?;
        let nonce = self.new_challenge();
        let next = now.saturating_add(self.wait(&probing, rtt));
        self.probing = Some(ChallengeState {
            challenges: probing.challenges + 1,
            nonce,
            last: now,
            next,
            is_open: true,
            ..probing
        });
        self.no_hint_before = now.saturating_add(MIN_INTERVAL);
        Some((self.at, nonce))
    }

    /// Handles an expired deadline. Afterwards `transmit` may have a packet to send. Returns true if the peer has timed
    /// out: it has not responded for the time limit, or its port is closed.
    pub(crate) fn on_time(&mut self, now: Nanos) -> bool {
        match self.probing {
            None if self.interval != 0 && now >= self.last_packet.saturating_add(self.interval) => {
                self.probing = Some(ChallengeState::new(now, now));
                false
            }
            // Time alone is not sufficient for a timeout, because after a pause of this process, responses may be
            // queued in the socket.
            Some(ChallengeState { since, challenges, next, closed, .. }) if challenges >= MIN_PROBES && now >= next => {
                now.saturating_sub(since) >= self.give_up || closed >= MIN_PROBES
            }
            _ => false,
        }
    }

    /// Returns the time at which `on_time` and `transmit` must be called.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let candidate = self.candidate.map(|_| self.not_before);
        let life = match self.probing {
            Some(probing) => Some(probing.next),
            None => (self.interval != 0).then(|| self.last_packet.saturating_add(self.interval)),
        };
        candidate.into_iter().chain(life).min()
    }

    /// Returns the interval after this challenge, which is at least a probe timeout. If the peer's port is closed, the
    /// interval doubles, up to the usual one, with each challenge that causes no report, because hosts limit the rate
    /// of ICMP messages (Linux: one per second).
    fn wait(&self, probing: &ChallengeState, rtt: &Rtt) -> Nanos {
        let timeout = rtt.pto(0);
        let plain = (self.give_up / 4).clamp(10 * MILLIS, SECONDS).max(timeout);
        match probing.closed {
            0 => plain,
            closed => (timeout.max(MIN_INTERVAL) << (probing.challenges - closed).min(MAX_DOUBLINGS)).min(plain),
        }
    }

    fn new_challenge(&mut self) -> u64 {
        self.nonces += 1;
        SipHasher24::new_with_key(&self.seed).hash(&self.nonces.to_be_bytes()).h1
    }
}

#[cfg(test)]
mod tests;
