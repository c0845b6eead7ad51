//! The connection machine: one attempt or connection, from the lookup of its listener to its end (CM-3, CM-4).
//!
//! An input and the time go in, actions come out, and the caller carries out exactly these, in that order. The table of CM-4
//! has three states; here DISCONNECTED is `Seeking`, `Offered` and those after the end, CONNECTING is `Requested` and
//! `Replied`, CONNECTED is `Open`. The three-way handshake of SM-5 is the object: a request is sent again until it is
//! answered, a reply until it is acknowledged. Once `Open`, the end is a mark on the control line.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dapl::provider::ConnectionEvent;
use dapl_software::listener_retry;

use super::handshake::{Answer, Datagram};
use super::liveness::Liveness;

/// First wait before a datagram that found the peer's queue full is sent again; it doubles each time. The queue has few
/// places, and a live peer empties it at once.
const FIRST_TRY: Duration = Duration::from_millis(1);
/// First and longest wait before a request or reply that was sent is repeated; it doubles each time.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
const LAST_REPEAT: Duration = Duration::from_millis(500);
/// Wait between requests once the peer has answered that its consumer has not decided yet.
const PATIENT_REPEAT: Duration = Duration::from_secs(2);
/// Limit of hand-offs of a request, since two listeners could repeat them without end.
const MAX_HAND_OFFS: usize = 8;
/// Time for which a rejection is remembered, for a client that repeats its request.
const LINGER: Duration = Duration::from_secs(10);

/// The state of an attempt or connection.
#[derive(Debug)]
enum State {
    /// Active: no listener was found; it is looked up again.
    Seeking(Asking),
    /// Active: the request is out.
    Requested(Asking),
    /// Passive: the consumer has the request.
    Offered,
    /// Passive: accepted; the reply waits for its acknowledgement.
    Replied(Outgoing),
    /// The rings are in use.
    Open,
    /// Passive: refused with this answer, which is remembered for a while.
    Refused(Answer),
    /// Passive: the requester has left before the consumer answered.
    Left,
    /// Over: the caller forgets the attempt.
    Closed,
}

/// A datagram that is repeated, and the wait before it is.
#[derive(Debug)]
struct Outgoing {
    datagram: Datagram,
    wait: Duration,
}

impl Outgoing {
    fn new(datagram: Datagram) -> Self {
        Outgoing { datagram, wait: FIRST_TRY }
    }

    /// Returns the wait until it is repeated, and doubles the next one.
    fn next_wait(&mut self, delivery: Delivery) -> Duration {
        let wait = if delivery == Delivery::Queued { self.wait.max(FIRST_REPEAT) } else { self.wait };
        self.wait = if wait >= PATIENT_REPEAT { wait } else { (wait * 2).min(LAST_REPEAT) };
        wait
    }
}

/// An active attempt that has no answer yet.
#[derive(Debug)]
struct Asking {
    request: Outgoing,
    /// A socket took the request at this listener, or was full.
    was_sent: bool,
    /// Until when a missing listener is looked up again; `None` once the request was handed on.
    seek_until: Option<Instant>,
    seek_wait: Duration,
    /// Times it was handed on.
    hand_offs: usize,
}

/// Input of the state machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Input {
    /// The listener was found; the request goes there under this token. A new one: a listener that had the request before
    /// repeats its answer to the old one.
    Found { qual: u64, token: u64 },
    /// The lookup found no listener.
    NotFound,
    /// Result of `Action::Transmit`.
    Sent(Delivery),
    /// The peer answered the request; `server` is its id for the connection, 0 if no listener had it.
    Reply { server: u32, answer: Answer },
    /// The peer's areas are mapped; the private data that came with its reply.
    Joined(Vec<u8>),
    /// They could not be.
    JoinFailed,
    /// The request arrived again.
    Repeated,
    /// The consumer accepts: send this reply.
    Accept(Datagram),
    /// The consumer, or this side for it, refuses.
    Refuse(Answer),
    /// The peer acknowledged the reply, or did what implies that.
    Ack,
    /// A heartbeat or data of this connection (CM-5).
    Alive,
    /// The deadline has passed.
    Deadline,
    /// The peer has reset the attempt or is dead.
    Gone,
    /// This side ends it.
    Close,
}

/// Result of sending a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    Queued,
    /// The peer's queue is full, or there is no memory for the moment.
    Full,
    /// The peer has no socket.
    NoPeer,
}

/// Action for the caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    /// Look the listener up again; the result is the input `Found` or `NotFound`.
    Lookup,
    /// Same as `Lookup`, on another qualifier of this host.
    LookupQual(u64),
    /// The end point has no socket: remove what is left of it.
    CleanUp,
    /// Send `Machine::outgoing` with the descriptors of this side's areas, and say `Sent`.
    Transmit,
    /// Send this, once.
    Send(Datagram),
    /// Map the peer's areas; the result is the input `Joined` or `JoinFailed`.
    Join,
    /// Acknowledge the reply; a word in the FIFO does that too.
    Ack,
    /// Watch the process that answered, for its death.
    Watch,
    /// Mark the end on the control line, and wake the peer.
    Mark,
    /// The peer seems to be gone: take what it had sent before, then say `Gone`.
    Recheck,
    /// The connection is established: report it, then let data flow.
    Established(Vec<u8>),
    /// The attempt or connection ended: take what has arrived, flush the rest, report this.
    Ended(ConnectionEvent),
}

/// An attempt or connection.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    id: u32,
    /// The peer's id for the connection; 0: not known yet.
    peer_id: u32,
    /// Chosen by the active side; proves that a sender knows the attempt.
    token: u64,
    due: Option<Instant>,
    liveness: Liveness,
    silence: Duration,
}

impl Machine {
    /// An active attempt that has not found its listener yet. A peer that is silent for longer than `silence` is given up.
    pub(crate) fn active(id: u32, request: Datagram, seek_until: Instant, silence: Duration, now: Instant) -> Self {
        let request = Outgoing::new(request);
        let seek_until = Some(seek_until);
        let asking = Asking { request, was_sent: false, seek_until, seek_wait: listener_retry::FIRST, hand_offs: 0 };
        let state = State::Seeking(asking);
        Machine { state, id, peer_id: 0, token: 0, due: None, liveness: Liveness::new(now), silence }
    }

    /// A request that the consumer is to answer.
    pub(crate) fn passive(id: u32, peer_id: u32, token: u64, silence: Duration, now: Instant) -> Self {
        Machine { state: State::Offered, id, peer_id, token, due: None, liveness: Liveness::new(now), silence }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn peer_id(&self) -> u32 {
        self.peer_id
    }

    /// Time of the next `Deadline` input.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Is the request with the consumer, and the requester there?
    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.state, State::Offered)
    }

    /// Whether the peer's areas are mapped.
    pub(crate) fn is_joined(&self) -> bool {
        matches!(self.state, State::Replied(_) | State::Open)
    }

    /// The request or reply that is repeated.
    pub(crate) fn outgoing(&self) -> Option<&Datagram> {
        match &self.state {
            State::Seeking(asking) | State::Requested(asking) => Some(&asking.request.datagram),
            State::Replied(reply) => Some(&reply.datagram),
            _ => None,
        }
    }

    /// Whether the peer of an open connection is silent for too long. `progress` counts what it has done so far (CM-5).
    pub(crate) fn is_silent(&mut self, progress: u64, now: Instant) -> bool {
        self.liveness.is_gone(progress, now, self.silence)
    }

    /// The whole machine. An input that the table of a state does not list is ignored.
    pub(crate) fn handle(&mut self, input: Input, now: Instant) -> Vec<Action> {
        if input == Input::Deadline {
            self.due = None;
        }
        let (state, actions) = match std::mem::replace(&mut self.state, State::Closed) {
            State::Seeking(asking) => self.seeking(asking, input, now),
            State::Requested(asking) => self.requested(asking, input, now),
            State::Offered => self.offered(input, now),
            State::Replied(reply) => self.replied(reply, input, now),
            State::Open => self.open(input, now),
            State::Refused(answer) => self.refused(answer, input),
            State::Left => match input {
                Input::Accept(_) => (State::Closed, vec![Action::Ended(ConnectionEvent::AcceptFailed)]),
                Input::Refuse(_) | Input::Close => (State::Closed, vec![]),
                _ => (State::Left, vec![]),
            },
            State::Closed => (State::Closed, vec![]),
        };
        self.state = state;
        if matches!(self.state, State::Open | State::Closed) {
            self.due = None;
        }
        actions
    }

    fn seeking(&mut self, asking: Asking, input: Input, now: Instant) -> (State, Vec<Action>) {
        match input {
            Input::Found { qual, token } => self.found(asking, qual, token),
            Input::NotFound => self.seek_later(asking, now),
            Input::Deadline => (State::Seeking(asking), vec![Action::Lookup]),
            Input::Gone => (State::Closed, vec![Action::Ended(ConnectionEvent::PeerRejected)]),
            Input::Close => (State::Closed, vec![]),
            _ => (State::Seeking(asking), vec![]),
        }
    }

    fn requested(&mut self, mut asking: Asking, input: Input, now: Instant) -> (State, Vec<Action>) {
        match input {
            Input::Sent(Delivery::NoPeer) if asking.was_sent => (State::Requested(asking), vec![Action::Recheck]),
            Input::Sent(Delivery::NoPeer) => {
                let (state, mut actions) = self.seek_later(asking, now);
                actions.insert(0, Action::CleanUp);
                (state, actions)
            }
            Input::Sent(delivery) => {
                asking.was_sent = true;
                self.due = Some(now + asking.request.next_wait(delivery));
                (State::Requested(asking), vec![])
            }
            Input::Deadline => (State::Requested(asking), vec![Action::Transmit]),
            Input::Reply { server, answer } => self.answered(asking, server, answer, now),
            Input::Joined(private_data) => {
                self.liveness.record(now);
                (State::Open, vec![Action::Ack, Action::Established(private_data)])
            }
            Input::JoinFailed => (State::Closed, vec![self.reset(), Action::Ended(ConnectionEvent::Rejected)]),
            Input::Gone => (State::Closed, vec![Action::Ended(ConnectionEvent::PeerRejected)]),
            Input::Close => (State::Closed, vec![self.reset()]),
            _ => (State::Requested(asking), vec![]),
        }
    }

    fn answered(&mut self, mut asking: Asking, server: u32, answer: Answer, now: Instant) -> (State, Vec<Action>) {
        match answer {
            Answer::Accepted => {
                self.peer_id = server;
                (State::Requested(asking), vec![Action::Join])
            }
            Answer::Pending => {
                self.peer_id = server;
                asking.request.wait = PATIENT_REPEAT;
                self.due = Some(now + PATIENT_REPEAT);
                (State::Requested(asking), vec![Action::Watch])
            }
            Answer::HandedOff(qual) if asking.hand_offs < MAX_HAND_OFFS => {
                asking.seek_until = None;
                asking.hand_offs += 1;
                self.due = None;
                (State::Seeking(asking), vec![Action::LookupQual(qual)])
            }
            // Without an id no listener had the request. A listener that has no place for it is not asked again.
            Answer::NoListener if server == 0 => self.seek_later(asking, now),
            Answer::Rejected => (State::Closed, vec![Action::Ended(ConnectionEvent::PeerRejected)]),
            Answer::NoListener | Answer::NotUnderstood | Answer::HandedOff(_) => {
                (State::Closed, vec![Action::Ended(ConnectionEvent::Rejected)])
            }
        }
    }

    fn offered(&mut self, input: Input, now: Instant) -> (State, Vec<Action>) {
        match input {
            Input::Repeated => (State::Offered, vec![self.reply(Answer::Pending)]),
            Input::Accept(reply) => {
                self.liveness.record(now);
                (State::Replied(Outgoing::new(reply)), vec![Action::Transmit])
            }
            Input::Refuse(answer) => {
                self.due = Some(now + LINGER);
                (State::Refused(answer), vec![self.reply(answer)])
            }
            Input::Gone => (State::Left, vec![]),
            Input::Close => (State::Closed, vec![]),
            _ => (State::Offered, vec![]),
        }
    }

    fn replied(&mut self, mut reply: Outgoing, input: Input, now: Instant) -> (State, Vec<Action>) {
        let action = match input {
            Input::Repeated => {
                self.liveness.record(now);
                Action::Transmit
            }
            // A missing acknowledgement is silence like any other. How long an answer may take, the requester decides.
            Input::Deadline if self.is_silent(0, now) => Action::Recheck,
            Input::Deadline => Action::Transmit,
            Input::Sent(Delivery::NoPeer) => Action::Recheck,
            Input::Sent(delivery) => {
                self.due = Some(now + reply.next_wait(delivery));
                return (State::Replied(reply), vec![]);
            }
            Input::Ack | Input::Alive => {
                self.liveness.record(now);
                return (State::Open, vec![Action::Established(Vec::new())]);
            }
            Input::Gone => return (State::Closed, vec![Action::Mark, Action::Ended(ConnectionEvent::AcceptFailed)]),
            Input::Close => return (State::Closed, vec![self.reset()]),
            _ => return (State::Replied(reply), vec![]),
        };
        (State::Replied(reply), vec![action])
    }

    fn open(&mut self, input: Input, now: Instant) -> (State, Vec<Action>) {
        match input {
            Input::Alive | Input::Repeated => {
                self.liveness.record(now);
                (State::Open, vec![])
            }
            // The acknowledgement was lost.
            Input::Reply { answer: Answer::Accepted, .. } => (State::Open, vec![Action::Ack]),
            Input::Gone => (State::Closed, vec![Action::Mark, Action::Ended(ConnectionEvent::Disconnected)]),
            Input::Close => (State::Closed, vec![Action::Mark]),
            _ => (State::Open, vec![]),
        }
    }

    fn refused(&mut self, answer: Answer, input: Input) -> (State, Vec<Action>) {
        match input {
            Input::Repeated => (State::Refused(answer), vec![self.reply(answer)]),
            Input::Deadline | Input::Gone | Input::Close => (State::Closed, vec![]),
            _ => (State::Refused(answer), vec![]),
        }
    }

    fn found(&mut self, mut asking: Asking, to: u64, fresh: u64) -> (State, Vec<Action>) {
        if let Datagram::Request { terms, .. } = &mut asking.request.datagram {
            (terms.qual, terms.token) = (to, fresh);
        }
        (self.peer_id, self.token) = (0, fresh);
        (asking.request.wait, asking.was_sent) = (FIRST_TRY, false);
        (State::Requested(asking), vec![Action::Transmit])
    }

    fn seek_later(&mut self, mut asking: Asking, now: Instant) -> (State, Vec<Action>) {
        let Some(until) = asking.seek_until.filter(|until| now < *until) else {
            return (State::Closed, vec![Action::Ended(ConnectionEvent::Rejected)]);
        };
        self.due = Some((now + asking.seek_wait).min(until));
        asking.seek_wait = listener_retry::next(asking.seek_wait);
        (State::Seeking(asking), vec![])
    }

    /// An answer without a connection.
    fn reply(&self, answer: Answer) -> Action {
        let (client, server) = (self.peer_id, self.id);
        Action::Send(Datagram::Reply { client, server, token: self.token, answer, accepted: None })
    }

    fn reset(&self) -> Action {
        Action::Send(Datagram::Reset { from: self.id, to: self.peer_id, token: self.token })
    }
}

#[cfg(test)]
mod tests;
