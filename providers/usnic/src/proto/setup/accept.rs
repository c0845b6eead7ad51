//! The passive side of the handshake: the table of all connection attempts of clients at an IA.
//!
//! The number of half-open attempts is limited, in total and by source prefix. Requests of unverified sources may use a
//! smaller number of table entries, and none if there is a key. For a request beyond a limit, the server replies with a
//! cookie and keeps no state. An unverified source gets at most three times the bytes that it has sent.
//!
//! The key of an attempt is the source address, the client's connection number and token, and the number of times that
//! a listener has handed the request off to another listener. An ended attempt stays in the table for some time, so
//! that a duplicate request gets the same reply.
//!
//! ```text
//! Pending --accept--> Accepted --confirmed--> Ended
//!   |                   \--timeout, cancelled by the consumer, or one of (1)--> Ended
//!   \--reject, timeout, client withdraws--> Ended
//!
//! (1) The client withdraws its request, does not know the attempt, or has closed its port.
//! ```
//!
//! The caller manages consumers, listeners and connections. It refers to an attempt by its `RequestId`.

mod attempt;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use self::attempt::{AcceptPhase, AttemptKey, PassiveAttempt};
use super::cookies::{CookieKey, Cookies};
use super::half_open::HalfOpen;
pub(crate) use super::half_open::HalfOpenCounts;
use super::packets::{self, RejectReason, ReplyTarget};
use super::{HandshakeResult, Offer, Random, Setup};
use crate::proto::Nanos;
use crate::proto::wire::{self, Kind, VERSION};

/// The attempt ends after this number of ICMP reports that the client's port is closed. At most one report counts per
/// transmission of the accept.
const MIN_CLOSED: u32 = 2;

/// Identifies a request. Ids are never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct RequestId(u64);

/// Result of processing a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PacketResult {
    Nothing,
    /// The request is damaged, or comes from a host whose setting `key` differs. The server sends no reply.
    Unreadable,
    /// A reply was appended, which the caller sends to the source of the packet.
    Reply,
    /// A new request for the consumer, whose content [`Acceptor::request`] returns. The Pending reply was appended,
    /// which the caller sends to the source of the packet.
    Requested(RequestId),
    /// The attempt has ended, because the client has withdrawn its request, does not know the attempt, or has closed
    /// its port.
    Withdrawn(RequestId),
}

/// Result of an expired deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExpiredAttempt {
    /// A packet was appended, which the caller sends to this address.
    Send(SocketAddr),
    /// The attempt has ended, because the client stopped retransmitting its request or did not confirm the accept.
    Failed(RequestId),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RequestContent<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) qual: u64,
    pub(crate) private_data: &'a [u8],
}

/// All attempts of clients at one IA.
pub(crate) struct Acceptor {
    setup: Arc<Setup>,
    cookies: Cookies,
    attempts: BTreeMap<RequestId, PassiveAttempt>,
    by_key: BTreeMap<AttemptKey, RequestId>,
    by_conn: BTreeMap<u32, RequestId>,
    due: BTreeSet<(Nanos, RequestId)>,
    /// Ended attempts in the order in which they ended. The oldest are removed if there are too many.
    ended: VecDeque<RequestId>,
    /// Numbers of attempts that have not ended.
    half_open: HalfOpen,
    next: u64,
    pub(crate) counts: HalfOpenCounts,
}

impl Acceptor {
    pub(crate) fn new(setup: Arc<Setup>, now: Nanos, random: &mut dyn Random) -> Acceptor {
        Acceptor {
            cookies: Cookies::new(now, random),
            half_open: HalfOpen::default(),
            setup,
            attempts: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            due: BTreeSet::new(),
            ended: VecDeque::new(),
            next: 0,
            counts: HalfOpenCounts::default(),
        }
    }

    /// Handles a request or a withdrawal that arrived at the well-known port or at the data port. `listens` says
    /// whether the request's qualifier has a listener.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        packet: &[u8],
        from: SocketAddr,
        listens: bool,
        random: &mut dyn Random,
        out: &mut Vec<u8>,
    ) -> PacketResult {
        let Some(request_head) = packets::request_head(packet) else { return PacketResult::Nothing };
        let setup = self.setup.clone();
        if wire::head(packet).is_some_and(|(head, _)| head.kind == Kind::Reset as u8) {
            return self.receive_withdrawal(now, packet, from);
        }
        let mut buffer = Vec::new();
        let Some(rest) = packets::request(&setup.guard, packet, &mut buffer) else {
            self.counts.unreadable += 1;
            return PacketResult::Unreadable;
        };
        let Some((conn, token)) = packets::requester(rest) else { return PacketResult::Nothing };
        let key = CookieKey { head: request_head, conn, token };
        let to = ReplyTarget { conn, token, hop: request_head.hop.get() };
        let is_verified = self.cookies.is_valid(now, from, &key, random);
        if let Some(id) = self.by_key.get(&AttemptKey { from, to }) {
            return self.receive_repeated(now, *id, packet.len(), is_verified, random, out);
        }
        let offered = match packets::offer(rest) {
            _ if !(request_head.min..=request_head.max).contains(&VERSION) => Err(RejectReason::Version),
            None => Err(RejectReason::NotUnderstood),
            Some(_) if !listens => Err(RejectReason::NoListener),
            Some(offered) => Ok(offered),
        };
        // At a limit, or if there is a key and the source is not verified, the server replies with a cookie and keeps
        // no state. The client repeats its request with the cookie, at a limit until an entry is free.
        if offered.is_ok() && (!self.has_free_entry(from) || !is_verified && self.needs_cookie(from)) {
            self.counts.cookies += 1;
            let ticket = self.cookies.create(now, from, &key, random);
            packets::put_cookie(&setup.guard, to, Some(ticket), random, out);
            return PacketResult::Reply;
        }
        match offered {
            Ok((offer, private)) => {
                let attempt = PassiveAttempt {
                    key: AttemptKey { from, to },
                    qual: request_head.qual(),
                    offer,
                    private: private.to_vec(),
                    phase: AcceptPhase::Pending,
                    is_verified,
                    received: packet.len() as u64,
                    sent: 0,
                    due: now.saturating_add(setup.config.patience),
                };
                self.begin(attempt, random, out)
            }
            Err(reason) => {
                packets::put_reject(&setup.guard, to, reason, &[], random, out);
                PacketResult::Reply
            }
        }
    }

    fn has_free_entry(&mut self, from: SocketAddr) -> bool {
        let config = &self.setup.config;
        let has_free_entry = self.half_open.total.all < config.half_open
            && self.half_open.of_prefix(from).all < config.half_open_of_prefix;
        self.counts.limit_reached += u64::from(!has_free_entry);
        has_free_entry
    }

    /// Whether an unverified source must return a cookie before an entry is created for it.
    fn needs_cookie(&self, from: SocketAddr) -> bool {
        let config = &self.setup.config;
        self.setup.guard.is_sealed()
            || self.half_open.total.unverified >= config.unverified
            || self.half_open.of_prefix(from).unverified >= config.unverified_of_prefix
    }

    /// Creates an entry, and appends the Pending reply. The client then repeats its request to the source of this
    /// reply, so the attempt continues even if the listener closes the well-known port.
    fn begin(&mut self, mut attempt: PassiveAttempt, random: &mut dyn Random, out: &mut Vec<u8>) -> PacketResult {
        self.next += 1;
        let id = RequestId(self.next);
        attempt.append_pending(&self.setup, random, out);
        self.half_open.add(attempt.key.from, attempt.is_verified);
        self.by_key.insert(attempt.key, id);
        self.due.insert((attempt.due, id));
        self.attempts.insert(id, attempt);
        self.counts.requests += 1;
        PacketResult::Requested(id)
    }

    /// Handles a duplicate request: repeats the accept or reject, or the Pending reply if the consumer has not decided.
    /// A request whose attempt has ended without a reject gets no reply.
    fn receive_repeated(
        &mut self,
        now: Nanos,
        id: RequestId,
        length: usize,
        is_verified: bool,
        random: &mut dyn Random,
        out: &mut Vec<u8>,
    ) -> PacketResult {
        let Some(attempt) = self.attempts.get_mut(&id) else { return PacketResult::Nothing };
        attempt.received = attempt.received.saturating_add(length as u64);
        if is_verified && !attempt.is_verified {
            attempt.is_verified = true;
            if !attempt.has_ended() {
                self.half_open.verified(attempt.key.from);
            }
        }
        if !matches!(attempt.phase, AcceptPhase::Pending) {
            let was_sent = attempt.append_reply(out);
            // Further duplicates may arrive, so the entry stays for another `linger`.
            if let AcceptPhase::Ended { until, .. } = &mut attempt.phase {
                *until = now.saturating_add(self.setup.config.linger);
                let until = *until;
                self.set_due(id, until);
            }
            return if was_sent { PacketResult::Reply } else { PacketResult::Nothing };
        }
        attempt.append_pending(&self.setup, random, out);
        self.set_due(id, now.saturating_add(self.setup.config.patience));
        PacketResult::Reply
    }

    /// Handles a withdrawal: ends the client's attempt, whatever its number of hand-offs.
    fn receive_withdrawal(&mut self, now: Nanos, packet: &[u8], from: SocketAddr) -> PacketResult {
        let Some((conn, token)) = packets::withdrawal(&self.setup.guard, packet) else {
            self.counts.unreadable += 1;
            return PacketResult::Nothing;
        };
        let key = |hop| AttemptKey { from, to: ReplyTarget { conn, token, hop } };
        let open = |id: &&RequestId| self.attempts.get(*id).is_some_and(|attempt| !attempt.has_ended());
        let found = self.by_key.range(key(0)..=key(u16::MAX)).map(|(_, id)| id).find(open).copied();
        self.end(now, found)
    }

    /// Handles a packet with the connection number of an unconfirmed accept. Ends the attempt if the packet is a Reset
    /// with the "unknown" flag, which means that the client does not know the attempt.
    ///
    /// A Reset without the flag belongs to an established connection, and therefore confirms the accept.
    pub(crate) fn reset(&mut self, now: Nanos, packet: &[u8]) -> PacketResult {
        let Some((head, _)) = wire::head(packet) else { return PacketResult::Nothing };
        let found = self.accepted(head.conn.get()).filter(|id| self.has_assigned(*id, head.token.get()));
        self.end(now, found.filter(|_| packets::is_unknown(&self.setup.guard, packet)))
    }

    /// Handles an ICMP "port unreachable" message for the client address `from`, if it quotes an accept. After
    /// [`MIN_CLOSED`] reports the attempt ends.
    pub(crate) fn port_closed(&mut self, now: Nanos, from: SocketAddr, quote: &[u8]) -> PacketResult {
        let key = |conn, token, hop| AttemptKey { from, to: ReplyTarget { conn, token, hop } };
        let of_peer = self.by_key.range(key(0, 0, 0)..=key(u32::MAX, u64::MAX, u16::MAX));
        let found =
            of_peer.map(|(_, id)| *id).find(|id| match self.attempts.get_mut(id).map(|attempt| &mut attempt.phase) {
                Some(AcceptPhase::Accepted { packet, closed, closed_counts, .. })
                    if packets::is_quoted(packet, quote) =>
                {
                    *closed += u32::from(std::mem::take(closed_counts));
                    *closed >= MIN_CLOSED
                }
                _ => false,
            });
        self.end(now, found)
    }

    fn end(&mut self, now: Nanos, id: Option<RequestId>) -> PacketResult {
        let Some(id) = id else { return PacketResult::Nothing };
        self.end_attempt(now, id, Vec::new());
        PacketResult::Withdrawn(id)
    }

    /// Returns the request with an unconfirmed accept that has this connection number.
    pub(crate) fn accepted(&self, conn: u32) -> Option<RequestId> {
        self.by_conn.get(&conn).copied()
    }

    /// Returns the content of a request, or `None` if the attempt has ended or the consumer has accepted.
    pub(crate) fn request(&self, id: RequestId) -> Option<RequestContent<'_>> {
        let attempt = self.attempts.get(&id).filter(|attempt| matches!(attempt.phase, AcceptPhase::Pending))?;
        Some(RequestContent { from: attempt.key.from, qual: attempt.qual, private_data: &attempt.private })
    }

    /// Accepts a request, and returns the agreed parameters, or `None` if the attempt has ended. The caller must
    /// register the connection number before it receives further packets, because the next packet may be the
    /// confirmation.
    pub(crate) fn accept(
        &mut self,
        now: Nanos,
        id: RequestId,
        own_offer: &Offer,
        private: &[u8],
        random: &mut dyn Random,
    ) -> Option<HandshakeResult> {
        let setup = self.setup.clone();
        let attempt = self.attempts.get_mut(&id).filter(|attempt| matches!(attempt.phase, AcceptPhase::Pending))?;
        let mut packet = Vec::new();
        packets::put_accept(&setup.guard, attempt.key.to, own_offer, private, random, &mut packet);
        let (wait, until) = (setup.config.first_repeat, now.saturating_add(setup.config.give_up));
        let (conn, token) = (own_offer.conn.get(), own_offer.token.get());
        attempt.phase = AcceptPhase::Accepted { packet, conn, token, wait, until, closed: 0, closed_counts: false };
        attempt.private = Vec::new();
        let agreed = setup.compute_terms(own_offer, &attempt.offer, attempt.key.from, false, random);
        self.by_conn.insert(conn, id);
        self.set_due(id, now);
        Some(agreed)
    }

    /// Rejects a request, hands it off, or withdraws an unconfirmed accept. Has no effect if the attempt has ended.
    pub(crate) fn reject(
        &mut self,
        now: Nanos,
        id: RequestId,
        reason: RejectReason,
        private: &[u8],
        random: &mut dyn Random,
    ) {
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| !attempt.has_ended()) else { return };
        let mut packet = Vec::new();
        packets::put_reject(&self.setup.guard, attempt.key.to, reason, private, random, &mut packet);
        self.end_attempt(now, id, packet);
        self.set_due(id, now);
    }

    /// Handles a packet with the connection number and token of an accept, which the caller has authenticated if there
    /// is a key. The packet proves that the client has received the accept. For the first such packet, returns the
    /// request, whose connection is now established.
    pub(crate) fn confirmed(&mut self, now: Nanos, conn: u32, token: u64) -> Option<RequestId> {
        let id = self.accepted(conn).filter(|id| self.has_assigned(*id, token))?;
        self.end_attempt(now, id, Vec::new());
        Some(id)
    }

    /// Whether this request has an unconfirmed accept with the token `given`.
    fn has_assigned(&self, id: RequestId, given: u64) -> bool {
        let phase = self.attempts.get(&id).map(|attempt| &attempt.phase);
        matches!(phase, Some(AcceptPhase::Accepted { token, .. }) if *token == given)
    }

    /// Handles the next expired deadline. The caller repeats the call until it returns `None`.
    pub(crate) fn poll(&mut self, now: Nanos, out: &mut Vec<u8>) -> Option<ExpiredAttempt> {
        while let Some((_, id)) = self.due.first().copied().filter(|(due, _)| now >= *due) {
            let attempt = self.attempts.get_mut(&id).expect("each entry of `due` belongs to an attempt");
            let from = attempt.key.from;
            match &mut attempt.phase {
                AcceptPhase::Accepted { wait, until, .. } if now < *until => {
                    let next = now.saturating_add(*wait).min(*until);
                    *wait = (*wait * 2).min(self.setup.config.last_repeat);
                    let was_sent = attempt.append_reply(out);
                    self.set_due(id, next);
                    if was_sent {
                        return Some(ExpiredAttempt::Send(from));
                    }
                }
                AcceptPhase::Pending | AcceptPhase::Accepted { .. } => {
                    self.end_attempt(now, id, Vec::new());
                    return Some(ExpiredAttempt::Failed(id));
                }
                AcceptPhase::Ended { was_sent: false, .. } => {
                    if let Some(to) = self.take_reject(id, out) {
                        return Some(ExpiredAttempt::Send(to));
                    }
                }
                AcceptPhase::Ended { .. } => self.remove(id),
            }
        }
        None
    }

    /// Appends the reject of a request that was just rejected, so that it can be sent before the next `poll`. Returns
    /// its destination, or `None` if there is nothing to send.
    pub(crate) fn take_reject(&mut self, id: RequestId, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let attempt = self.attempts.get_mut(&id)?;
        let AcceptPhase::Ended { was_sent: false, until, .. } = attempt.phase else { return None };
        let to = attempt.key.from;
        let was_sent = attempt.append_reply(out);
        self.set_due(id, until);
        was_sent.then_some(to)
    }

    /// Returns the time at which `poll` must be called.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.due.first().map(|(due, _)| *due)
    }

    fn set_due(&mut self, id: RequestId, due: Nanos) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            self.due.remove(&(attempt.due, id));
            attempt.due = due;
            self.due.insert((due, id));
        }
    }

    /// Ends an attempt. The entry stays in the table for the time `linger`, and duplicate requests get the reply
    /// `packet`. An empty `packet` means that they get no reply.
    fn end_attempt(&mut self, now: Nanos, id: RequestId, packet: Vec<u8>) {
        let Some(attempt) = self.attempts.get_mut(&id).filter(|attempt| !attempt.has_ended()) else { return };
        let until = now.saturating_add(self.setup.config.linger);
        let was_sent = packet.is_empty();
        let before = std::mem::replace(&mut attempt.phase, AcceptPhase::Ended { packet, was_sent, until });
        attempt.private = Vec::new();
        if let AcceptPhase::Accepted { conn, .. } = before {
            self.by_conn.remove(&conn);
        }
        self.half_open.remove(attempt.key.from, attempt.is_verified);
        self.set_due(id, until);
        self.ended.push_back(id);
        if self.ended.len() > self.setup.config.remembered
            && let Some(oldest) = self.ended.front().copied()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: RequestId) {
        if let Some(attempt) = self.attempts.remove(&id) {
            self.by_key.remove(&attempt.key);
            self.due.remove(&(attempt.due, id));
        }
        // Ended attempts expire approximately in the order of `ended`, so the search usually ends at the front.
        if let Some(place) = self.ended.iter().position(|other| *other == id) {
            self.ended.remove(place);
        }
    }
}

#[cfg(test)]
mod tests;
