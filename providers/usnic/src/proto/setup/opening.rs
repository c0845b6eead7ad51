//! The client's side of one attempt: asks until there is an answer, and gives up only when the server shows no sign of life.
//!
//! How long the consumer waits is not known here: the caller ends an attempt by [`Opening::withdraw`]. Answers are believed
//! if they name the attempt by its number and token and come from the host that was asked; a late one, of a listener that
//! handed the request on, is not. Who says that the request is pending is asked again where it said so: the well-known port is
//! free as soon as its listener is, and the request is not.
//!
//! A port may be shared by several processes of the server's host, of which any can pass the request on and one may be stopped.
//! A request that is repeated because nothing was heard is one byte shorter than before, by which the server's kernel chooses
//! another of these processes (`net::reuseport`). When it stands, [`Confirming`] lives on beside the connection.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dapl_software::listener_retry;
use zerocopy::IntoBytes;

use dapl::provider::ConnectionEvent;

use super::packets::{self, Answer, Asking, Reason, SHORTER, Ticket};
use super::{Agreed, Offer, Random, Setup, Terms};
use crate::proto::Nanos;
use crate::proto::wire::{self, Kind};

/// So often a request may be handed on: two listeners could do it for ever.
const MAX_HOPS: u16 = 8;
/// A server that is silent was asked so often at least: a process that stood still has not listened.
const MIN_ASKED: u32 = 3;
/// So often, between repetitions, the host must say that nobody has the port before it is believed.
const MIN_NOBODY: u32 = 2;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The server's consumer accepted, with this private data. `Conn` confirms: [`Confirming`].
    Established { agreed: Agreed, private_data: Vec<u8> },
    /// Rejected by the server, or unreachable; the reason, if the server gave one.
    Ended(ConnectionEvent, Option<Reason>),
}

/// One attempt.
#[derive(Debug)]
pub(crate) struct Opening {
    setup: Arc<Setup>,
    server: SocketAddr,
    /// Asked next, if nobody is at `server`.
    alternative: Option<SocketAddr>,
    /// Where the request is repeated: the well-known address, or whoever has said that it is pending there.
    at: SocketAddr,
    qual: u64,
    ours: Offer,
    private: Vec<u8>,
    hop: u16,
    /// The last hand-off that had a cookie.
    cookie_of: Option<u16>,
    /// What the last cookie said.
    ticket: Option<Ticket>,
    /// The request, as it was sent last.
    packet: Vec<u8>,
    /// Bytes that the request is shorter: which process of those that share the port is to have it.
    shorter: usize,
    /// When it is sent next; `None`: the attempt is over.
    due: Option<Nanos>,
    wait: Nanos,
    /// Until then an answer that nobody listens is not believed, and how long the next repetition waits.
    seek_until: Nanos,
    seek_wait: Duration,
    /// After the next "pending" it waits so long.
    patience: Nanos,
    sent_at: Nanos,
    /// The last sign of life, or the beginning, and how often the request was sent since.
    heard: Nanos,
    asked: u32,
    /// So often the host said that nobody has the port, once per request at most.
    nobody: u32,
    nobody_counts: bool,
}

impl Opening {
    /// Asks whoever listens on `qual` at the well-known address `server`. `private` is at most
    /// [`MAX_PRIVATE`](super::MAX_PRIVATE) long.
    pub(crate) fn new(
        setup: Arc<Setup>,
        server: SocketAddr,
        qual: u64,
        ours: Offer,
        private: &[u8],
        now: Nanos,
    ) -> Opening {
        let wait = setup.config.first_repeat;
        let mut opening = Opening {
            setup: setup.clone(),
            server,
            alternative: None,
            at: server,
            qual,
            ours,
            private: private.to_vec(),
            hop: 0,
            cookie_of: None,
            ticket: None,
            packet: Vec::new(),
            shorter: 0,
            due: None,
            wait,
            seek_until: now.saturating_add(setup.config.listener_wait),
            seek_wait: listener_retry::FIRST,
            patience: wait,
            sent_at: now,
            heard: now,
            asked: 0,
            nobody: 0,
            nobody_counts: true,
        };
        opening.ask(None, now);
        opening
    }

    /// The same; if nobody is at the server's address, this one is asked.
    pub(crate) fn or_at(self, alternative: Option<SocketAddr>) -> Opening {
        Opening { alternative, ..self }
    }

    /// Who is asked.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// The request anew, to leave at once.
    fn ask(&mut self, ticket: Option<Ticket>, now: Nanos) {
        self.ticket = ticket;
        self.due = Some(now);
        self.wait = self.setup.config.first_repeat;
        (self.at, self.patience) = (self.server, self.wait);
    }

    /// Appends the request if it is due, and says where it goes.
    pub(crate) fn transmit(&mut self, now: Nanos, random: &mut dyn Random, out: &mut Vec<u8>) -> Option<SocketAddr> {
        self.due.filter(|due| now >= *due)?;
        // Who had it last says nothing. Whoever answers is asked again without a change.
        if self.asked > 0 {
            self.shorter = (self.shorter + 1) % (SHORTER + 1);
        }
        let asking = Asking::new(self.qual, self.hop, self.ticket);
        let (guard, packet) = (&self.setup.guard, &mut self.packet);
        packet.clear();
        packets::put_request(guard, &asking, &self.ours, &self.private, self.shorter, random, packet);
        out.extend_from_slice(packet);
        self.sent_at = now;
        self.asked = self.asked.saturating_add(1);
        self.nobody_counts = true;
        self.due = Some(now.saturating_add(self.wait));
        self.wait = (self.wait * 2).min(self.setup.config.last_repeat);
        // Who was there and is silent may have moved: from time to time the well-known port is asked, too.
        let is_lost = self.asked > MIN_ASKED && self.asked.is_multiple_of(2);
        Some(if is_lost { self.server } else { self.at })
    }

    /// A packet that names this attempt.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        packet: &[u8],
        from: SocketAddr,
        random: &mut dyn Random,
    ) -> Option<Outcome> {
        let (head, _) = wire::head(packet)?;
        let is_ours = head.conn.get() == self.ours.conn && head.token.get() == self.ours.token;
        // A server that could answer from anywhere could have us send to anybody.
        if self.due.is_none() || !is_ours || from.ip().to_canonical() != self.server.ip().to_canonical() {
            return None;
        }
        let setup = self.setup.clone();
        let mut room = Vec::new();
        let (hop, answer) = packets::answer(&setup.guard, packet, &mut room)?;
        if hop.is_some_and(|hop| hop != self.hop) {
            return None;
        }
        (self.heard, self.asked, self.nobody) = (now, 0, 0);
        match answer {
            Answer::Again(ticket) => self.again(ticket, now),
            Answer::Pending => {
                self.at = from;
                self.wait = setup.config.first_repeat;
                self.due = Some(self.sent_at.saturating_add(self.patience).max(now));
                self.patience = (self.patience * 2).min(setup.config.pending_repeat);
            }
            Answer::Accept(theirs, private) => {
                self.due = None;
                let agreed = setup.agree(&self.ours, &theirs, from, true, random);
                return Some(Outcome::Established { agreed, private_data: private.to_vec() });
            }
            Answer::Reject(Reason::HandedOff(qual)) if self.hop < MAX_HOPS => {
                (self.qual, self.hop) = (qual, self.hop + 1);
                self.ask(None, now);
            }
            Answer::Reject(Reason::NoListener) if self.seeks_on(now) || self.turn_to_alternative(now) => {}
            Answer::Reject(reason) => {
                self.due = None;
                let is_refused = reason == Reason::Refused;
                let event = if is_refused { ConnectionEvent::PeerRejected } else { ConnectionEvent::Rejected };
                return Some(Outcome::Ended(event, (!is_refused).then_some(reason)));
            }
        }
        None
    }

    /// Nobody listens yet: the request is repeated soon. False: the time for that is over.
    fn seeks_on(&mut self, now: Nanos) -> bool {
        let is_time_left = now < self.seek_until;
        if is_time_left {
            // The other address in turn, if there is one.
            if let Some(other) = &mut self.alternative {
                std::mem::swap(other, &mut self.server);
                self.cookie_of = None;
            }
            self.due = Some(now.saturating_add(self.seek_wait.as_nanos() as Nanos).min(self.seek_until));
            self.seek_wait = listener_retry::next(self.seek_wait);
            (self.at, self.wait) = (self.server, self.setup.config.first_repeat);
        }
        is_time_left
    }

    /// A cookie: the request goes out with it, at once the first time; but a server that says nothing else does not make us
    /// send as fast as it can.
    fn again(&mut self, ticket: Ticket, now: Nanos) {
        let (due, wait) = (self.due, self.wait);
        let is_first = self.cookie_of.replace(self.hop) != Some(self.hop);
        self.ask(Some(ticket), now);
        if !is_first {
            (self.due, self.wait) = (due, wait);
        }
    }

    /// The deadline is here; then `transmit` may have something.
    pub(crate) fn on_time(&mut self, now: Nanos) -> Option<Outcome> {
        let is_silent = now.saturating_sub(self.heard) >= self.setup.config.silence && self.asked >= MIN_ASKED;
        if self.due.is_none() || !is_silent {
            return None;
        }
        self.due = None;
        Some(Outcome::Ended(ConnectionEvent::Unreachable, None))
    }

    /// The host says that nobody has the port `to`, and quotes what was sent there. It is asked once more, then that is an
    /// answer: nobody listens, or who has had the request is gone.
    pub(crate) fn nobody_there(&mut self, now: Nanos, to: SocketAddr, quote: &[u8]) -> Option<Outcome> {
        let is_answer = to == self.at && packets::is_quoted(&self.packet, quote);
        self.due.filter(|_| is_answer && mem::take(&mut self.nobody_counts))?;
        self.nobody += 1;
        if self.nobody < MIN_NOBODY {
            self.due = Some(now.saturating_add(self.setup.config.first_repeat / 4));
            return None;
        }
        let is_gone = self.at != self.server;
        if !is_gone && (self.seeks_on(now) || self.turn_to_alternative(now)) {
            return None;
        }
        self.due = None;
        Some(match is_gone {
            true => Outcome::Ended(ConnectionEvent::PeerRejected, None),
            false => Outcome::Ended(ConnectionEvent::Rejected, Some(Reason::NoListener)),
        })
    }

    /// Nobody is at the server's address. False: there is no other.
    fn turn_to_alternative(&mut self, now: Nanos) -> bool {
        let Some(server) = self.alternative.take() else { return false };
        self.server = server;
        self.ask(None, now);
        (self.heard, self.asked, self.nobody, self.shorter, self.cookie_of) = (now, 0, 0, 0, None);
        true
    }

    /// When `on_time` and `transmit` are to be called; `None`: the attempt is over.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let silent = self.heard.saturating_add(self.setup.config.silence);
        self.due.map(|due| if self.asked >= MIN_ASKED { due.min(silent) } else { due })
    }

    /// The consumer has given up: ends the attempt, and appends what tells the server so.
    pub(crate) fn withdraw(&mut self, random: &mut dyn Random, out: &mut Vec<u8>) -> SocketAddr {
        self.due = None;
        let asking = Asking::new(self.qual, self.hop, None);
        packets::put_leaving(&self.setup.guard, &asking, &self.ours, random, out);
        self.at
    }
}

/// The confirmation of an accept, repeated until anything comes from the server: a server that says nothing of its own would
/// else not know that the connection stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirming {
    /// When it is said next; `None`: enough.
    due: Option<Nanos>,
    wait: Nanos,
    longest: Nanos,
    until: Nanos,
}

impl Confirming {
    /// First said at `due`, then after `wait`, then with doubled waits up to the longest, and not after `until`.
    pub(crate) fn new(due: Nanos, wait: Nanos, longest: Nanos, until: Nanos) -> Confirming {
        Confirming { due: Some(due), wait, longest, until }
    }

    /// A packet of the connection came.
    #[cfg(test)]
    pub(crate) fn heard(&mut self) {
        self.due = None;
    }

    /// It is due.
    pub(crate) fn has_word(&self, now: Nanos) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    /// Appends the confirmation if it is due.
    pub(crate) fn transmit(&mut self, now: Nanos, terms: &Terms, out: &mut Vec<u8>) -> bool {
        let is_due = self.has_word(now);
        if is_due {
            out.extend_from_slice(packets::head(Kind::Confirm, terms).as_bytes());
            let next = now.saturating_add(self.wait);
            self.due = (next < self.until).then_some(next);
            self.wait = (self.wait * 2).min(self.longest);
        }
        is_due
    }

    /// When it is due.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.due
    }
}

/// An accept came for a number and token that nobody has: the answer to a request of a former life, or to one that was taken
/// back. `true`: what says so was appended, complete; it goes to where the accept came from, and is shorter.
pub(crate) fn refuse_stray(setup: &Setup, packet: &[u8], random: &mut dyn Random, out: &mut Vec<u8>) -> bool {
    let mut room = Vec::new();
    let Some((_, Answer::Accept(theirs, _))) = packets::answer(&setup.guard, packet, &mut room) else { return false };
    packets::put_unknown(&setup.guard, &theirs, random, out);
    true
}

#[cfg(test)]
mod tests;
