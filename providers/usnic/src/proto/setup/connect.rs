//! The active side of a connection attempt: retransmits the request until the server accepts or rejects it. The attempt
//! follows hand-offs to another listener, and repeats a request that finds no listener for the time `listener_wait`. It
//! fails after a time without replies. At the consumer's timeout, the caller calls [`Connector::withdraw`].
//!
//! A reply is valid if it has the attempt's connection number and token and comes from the host to which the request
//! was sent. A late reply of a listener that has handed the request off is invalid. After a Pending reply, the request
//! is retransmitted to the source of that reply, so the attempt continues even if the listener closes the well-known
//! port.
//!
//! Several processes of the server's host may share the well-known port. Each of them can forward the request to the
//! listener, but may be stopped (SIGSTOP). If there is no reply, the next transmission is one byte shorter, so that the
//! server's kernel selects another process (`net::reuseport`). [`Confirming`] retransmits the confirmation after the
//! connection is established.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dapl_software::listener_retry;
use zerocopy::IntoBytes;

use dapl::provider::ConnectionEvent;

use super::packets::{self, CookiePacket, RejectReason, RequestHead, SHORTER, SetupReply};
use super::{ConnectionTerms, HandshakeResult, Offer, Random, Setup};
use crate::proto::Nanos;
use crate::proto::wire::{self, Kind};

/// Maximum number of hand-offs of a request. Without a limit, two listeners could hand a request to each other forever.
const MAX_HOPS: u16 = 8;
/// Minimum number of transmissions before the attempt fails. Time alone is not sufficient, because after a pause of
/// this process, replies may be queued in the socket.
const MIN_SENDS: u32 = 3;
/// The server's port counts as closed after this number of ICMP reports. At most one report counts per transmission.
const MIN_CLOSED: u32 = 2;

#[derive(Debug)]
pub(crate) enum ConnectOutcome {
    /// The server has accepted. `Conn` sends the confirmation by [`Confirming`].
    Established { agreed: HandshakeResult, private_data: Vec<u8> },
    /// The server has rejected the request, or is unreachable. The private data are those of a rejection by the
    /// server's consumer, and are empty for all other events. The reason is for the log. It is `None` if the server's
    /// consumer rejected the request, if there was no reply, or if the process that sent the Pending reply has exited.
    Ended(ConnectionEvent, Vec<u8>, Option<RejectReason>),
}

#[derive(Debug)]
pub(crate) struct Connector {
    setup: Arc<Setup>,
    pub(crate) server: SocketAddr,
    /// The address that is tried next if `server` has no listener.
    alternative: Option<SocketAddr>,
    /// Destination of retransmissions: the well-known address, or the source of the Pending reply.
    at: SocketAddr,
    qual: u64,
    own_offer: Offer,
    private: Vec<u8>,
    hop: u16,
    /// Number of hand-offs of the request to which the last cookie replied. `None` if this server has sent no cookie.
    cookie_of: Option<u16>,
    /// The last cookie that was received.
    ticket: Option<CookiePacket>,
    /// The last transmitted request, for comparison with quotes in ICMP messages.
    packet: Vec<u8>,
    /// Number of bytes by which the next request is shortened, because the server's kernel selects a process by the
    /// request's length.
    shorter: usize,
    /// Time of the next transmission, or `None` after the end of the attempt.
    due: Option<Nanos>,
    wait: Nanos,
    /// Time until which the request is repeated if the server has no listener.
    listener_retry_until: Nanos,
    /// Next interval between repetitions because the server has no listener.
    listener_retry_wait: Duration,
    /// Time from a transmission to the next one after a Pending reply. It doubles with each such reply, up to
    /// `pending_repeat`.
    patience: Nanos,
    sent_at: Nanos,
    /// Time of the last reply, or of the start of the attempt.
    last_answer: Nanos,
    /// Number of requests sent since `last_answer`.
    sends: u32,
    /// Number of ICMP reports of a closed port.
    closed: u32,
    /// Whether the next report of a closed port counts. Only one report per transmission counts.
    closed_counts: bool,
}

impl Connector {
    /// Creates an attempt to connect to the listener on `qual` at the well-known address `server`. `private` has at
    /// most [`MAX_PRIVATE`](super::MAX_PRIVATE) bytes.
    pub(crate) fn new(
        setup: Arc<Setup>,
        server: SocketAddr,
        qual: u64,
        own_offer: Offer,
        private: &[u8],
        now: Nanos,
    ) -> Connector {
        let wait = setup.config.first_repeat;
        let mut connector = Connector {
            setup: setup.clone(),
            server,
            alternative: None,
            at: server,
            qual,
            own_offer,
            private: private.to_vec(),
            hop: 0,
            cookie_of: None,
            ticket: None,
            packet: Vec::new(),
            shorter: 0,
            due: None,
            wait,
            listener_retry_until: now.saturating_add(setup.config.listener_wait),
            listener_retry_wait: listener_retry::FIRST,
            patience: wait,
            sent_at: now,
            last_answer: now,
            sends: 0,
            closed: 0,
            closed_counts: true,
        };
        connector.restart(None, now);
        connector
    }

    /// Adds an address that is tried if `server` has no listener.
    pub(crate) fn with_alternative(self, alternative: Option<SocketAddr>) -> Connector {
        Connector { alternative, ..self }
    }

    /// Makes the request to `server` due immediately, with this cookie and the first retransmission interval.
    fn restart(&mut self, ticket: Option<CookiePacket>, now: Nanos) {
        self.ticket = ticket;
        self.due = Some(now);
        self.wait = self.setup.config.first_repeat;
        (self.at, self.patience) = (self.server, self.wait);
    }

    /// Appends the request if it is due, and returns its destination.
    pub(crate) fn transmit(&mut self, now: Nanos, random: &mut dyn Random, out: &mut Vec<u8>) -> Option<SocketAddr> {
        self.due.filter(|due| now >= *due)?;
        // There was no reply to the last transmission, so another length selects another process. After a reply the
        // length stays the same.
        if self.sends > 0 {
            self.shorter = (self.shorter + 1) % (SHORTER + 1);
        }
        let request_head = RequestHead::new(self.qual, self.hop, self.ticket);
        let (guard, packet) = (&self.setup.guard, &mut self.packet);
        packet.clear();
        packets::put_request(guard, &request_head, &self.own_offer, &self.private, self.shorter, random, packet);
        out.extend_from_slice(packet);
        self.sent_at = now;
        self.sends = self.sends.saturating_add(1);
        self.closed_counts = true;
        self.due = Some(now.saturating_add(self.wait));
        self.wait = (self.wait * 2).min(self.setup.config.last_repeat);
        // The process that sent the Pending reply may have exited. So after `MIN_SENDS` requests without a reply, every
        // second one goes to the well-known port.
        let is_lost = self.sends > MIN_SENDS && self.sends.is_multiple_of(2);
        Some(if is_lost { self.server } else { self.at })
    }

    /// Handles a packet with the connection number of this attempt.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        packet: &[u8],
        from: SocketAddr,
        random: &mut dyn Random,
    ) -> Option<ConnectOutcome> {
        let (head, _) = wire::head(packet)?;
        let is_ours = head.conn == self.own_offer.conn && head.token == self.own_offer.token;
        // Replies from other hosts are ignored. Otherwise a host could redirect requests to any other host.
        if self.due.is_none() || !is_ours || from.ip().to_canonical() != self.server.ip().to_canonical() {
            return None;
        }
        let setup = self.setup.clone();
        let mut buffer = Vec::new();
        let (hop, answer) = packets::decode_reply(&setup.guard, packet, &mut buffer)?;
        if hop.is_some_and(|hop| hop != self.hop) {
            return None;
        }
        (self.last_answer, self.sends, self.closed) = (now, 0, 0);
        match answer {
            SetupReply::Again(ticket) => self.receive_cookie(ticket, now),
            SetupReply::Pending => {
                self.at = from;
                self.wait = setup.config.first_repeat;
                self.due = Some(self.sent_at.saturating_add(self.patience).max(now));
                self.patience = (self.patience * 2).min(setup.config.pending_repeat);
            }
            SetupReply::Accept(peer_offer, private) => {
                self.due = None;
                let agreed = setup.compute_terms(&self.own_offer, &peer_offer, from, true, random);
                return Some(ConnectOutcome::Established { agreed, private_data: private.to_vec() });
            }
            SetupReply::Reject(RejectReason::HandedOff(qual), _) if self.hop < MAX_HOPS => {
                (self.qual, self.hop) = (qual, self.hop + 1);
                self.restart(None, now);
            }
            SetupReply::Reject(RejectReason::NoListener, _)
                if self.retries_no_listener(now) || self.use_alternative(now) => {}
            SetupReply::Reject(reason, private) => {
                self.due = None;
                return Some(match reason {
                    RejectReason::Refused => {
                        ConnectOutcome::Ended(ConnectionEvent::PeerRejected, private.to_vec(), None)
                    }
                    _ => ConnectOutcome::Ended(ConnectionEvent::Rejected, Vec::new(), Some(reason)),
                });
            }
        }
        None
    }

    /// Schedules the next request after the reply that there is no listener. Returns false if the time limit for such
    /// repetitions has passed.
    fn retries_no_listener(&mut self, now: Nanos) -> bool {
        let is_time_left = now < self.listener_retry_until;
        if is_time_left {
            // Alternates between both addresses, if there are two.
            if let Some(other) = &mut self.alternative {
                std::mem::swap(other, &mut self.server);
                self.cookie_of = None;
            }
            self.due =
                Some(now.saturating_add(self.listener_retry_wait.as_nanos() as Nanos).min(self.listener_retry_until));
            self.listener_retry_wait = listener_retry::next(self.listener_retry_wait);
            (self.at, self.wait) = (self.server, self.setup.config.first_repeat);
        }
        is_time_left
    }

    /// Handles a cookie. The first cookie causes an immediate request. Further cookies do not change the time of the
    /// next request.
    fn receive_cookie(&mut self, ticket: CookiePacket, now: Nanos) {
        let (due, wait) = (self.due, self.wait);
        let is_first = self.cookie_of.replace(self.hop) != Some(self.hop);
        self.restart(Some(ticket), now);
        if !is_first {
            (self.due, self.wait) = (due, wait);
        }
    }

    /// Handles an expired deadline. Afterwards `transmit` may have a packet to send.
    pub(crate) fn on_time(&mut self, now: Nanos) -> Option<ConnectOutcome> {
        let is_silent = now.saturating_sub(self.last_answer) >= self.setup.config.give_up && self.sends >= MIN_SENDS;
        if self.due.is_none() || !is_silent {
            return None;
        }
        self.due = None;
        Some(ConnectOutcome::Ended(ConnectionEvent::Unreachable, Vec::new(), None))
    }

    /// Handles an ICMP "port unreachable" message for `to`, if it quotes the last request. The second report counts as
    /// a reply: there is no listener, or the process that sent the Pending reply has exited.
    pub(crate) fn port_closed(&mut self, now: Nanos, to: SocketAddr, quote: &[u8]) -> Option<ConnectOutcome> {
        let is_answer = to == self.at && packets::is_quoted(&self.packet, quote);
        self.due.filter(|_| is_answer && mem::take(&mut self.closed_counts))?;
        self.closed += 1;
        if self.closed < MIN_CLOSED {
            self.due = Some(now.saturating_add(self.setup.config.first_repeat / 4));
            return None;
        }
        let is_gone = self.at != self.server;
        if !is_gone && (self.retries_no_listener(now) || self.use_alternative(now)) {
            return None;
        }
        self.due = None;
        Some(match is_gone {
            true => ConnectOutcome::Ended(ConnectionEvent::PeerRejected, Vec::new(), None),
            false => ConnectOutcome::Ended(ConnectionEvent::Rejected, Vec::new(), Some(RejectReason::NoListener)),
        })
    }

    /// Switches to the alternative address. Returns false if there is no such address.
    fn use_alternative(&mut self, now: Nanos) -> bool {
        let Some(server) = self.alternative.take() else { return false };
        self.server = server;
        self.restart(None, now);
        (self.last_answer, self.sends, self.closed, self.shorter, self.cookie_of) = (now, 0, 0, 0, None);
        true
    }

    /// Returns the time at which `on_time` and `transmit` must be called, or `None` after the end of the attempt.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let silent = self.last_answer.saturating_add(self.setup.config.give_up);
        self.due.map(|due| if self.sends >= MIN_SENDS { due.min(silent) } else { due })
    }

    /// Ends the attempt after the consumer has cancelled it or the consumer's timeout has expired. Appends the
    /// withdrawal, and returns its destination.
    pub(crate) fn withdraw(&mut self, random: &mut dyn Random, out: &mut Vec<u8>) -> SocketAddr {
        self.due = None;
        let request_head = RequestHead::new(self.qual, self.hop, None);
        packets::put_withdrawal(&self.setup.guard, &request_head, &self.own_offer, random, out);
        self.at
    }
}

/// Retransmits the confirmation until a packet of the server arrives. The confirmation notifies the server that its
/// accept has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirming {
    /// Time of the next transmission, or `None` if no further transmission is needed.
    due: Option<Nanos>,
    wait: Nanos,
    longest: Nanos,
    until: Nanos,
}

impl Confirming {
    /// Creates a confirmation that is sent at `due` and again after `wait`, then at doubled intervals up to `longest`,
    /// but not after `until`.
    pub(crate) fn new(due: Nanos, wait: Nanos, longest: Nanos, until: Nanos) -> Confirming {
        Confirming { due: Some(due), wait, longest, until }
    }

    /// Handles a packet of the connection.
    #[cfg(test)]
    pub(crate) fn record_packet(&mut self) {
        self.due = None;
    }

    /// Whether a retransmission is due.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    /// Appends the confirmation and returns true, if it is due.
    pub(crate) fn transmit(&mut self, now: Nanos, terms: &ConnectionTerms, out: &mut Vec<u8>) -> bool {
        let is_due = self.is_due(now);
        if is_due {
            out.extend_from_slice(packets::head(Kind::Confirm, terms).as_bytes());
            let next = now.saturating_add(self.wait);
            self.due = (next < self.until).then_some(next);
            self.wait = (self.wait * 2).min(self.longest);
        }
        is_due
    }

    /// Returns the time of the next transmission.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.due
    }
}

/// Replies with a Reset to an accept that matches no attempt, because its request was withdrawn, or an earlier process
/// with this address sent the request. Returns false if the packet is no valid accept.
///
/// The Reset is shorter than the accept, so a forged source address causes no amplification.
pub(crate) fn refuse_unmatched(setup: &Setup, packet: &[u8], random: &mut dyn Random, out: &mut Vec<u8>) -> bool {
    let mut buffer = Vec::new();
    let Some((_, SetupReply::Accept(peer_offer, _))) = packets::decode_reply(&setup.guard, packet, &mut buffer) else {
        return false;
    };
    packets::put_unknown(&setup.guard, &peer_offer, random, out);
    true
}

#[cfg(test)]
mod tests;
