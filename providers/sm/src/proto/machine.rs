//! The state machine of a connection, from the lookup of the listener to the end of the connection (CM-3, CM-4).
//!
//! The machine takes an input and the time, and returns actions that the caller carries out in order. docs/sm.md has a
//! table of the states. In the three-way handshake, a request is retransmitted until a final reply arrives, and an
//! accepting reply until it is acknowledged (SM-7). A process ends an `Open` connection by a mark on its control page.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dapl::provider::ConnectionEvent;
use dapl_software::listener_retry;

use super::handshake::{Datagram, ReplyResult};
use super::liveness::Liveness;

/// First interval after which a datagram is sent again because the peer's socket queue was full. The interval doubles
/// each time, up to `MAX_RETRANSMIT`. It is short because a live peer empties its queue immediately.
const FIRST_FULL_RETRY: Duration = Duration::from_millis(1);
// Intervals after which a request or reply is retransmitted: the interval doubles from the first to the maximum.
const FIRST_RETRANSMIT: Duration = Duration::from_millis(20);
const MAX_RETRANSMIT: Duration = Duration::from_millis(500);
/// Interval between requests after the peer has replied that its consumer has not decided yet.
const PENDING_RETRANSMIT: Duration = Duration::from_secs(2);
/// Maximum number of hand-offs of a request. Without a limit, two listeners could hand a request off to each other
/// forever.
const MAX_HAND_OFFS: usize = 8;
/// Time for which a rejection is stored, to answer a client that repeats its request.
const REJECT_LINGER: Duration = Duration::from_secs(10);

/// The state of a connection attempt or connection.
#[derive(Debug)]
enum MachineState {
    /// Active side: the listener is being looked up. If none is found, the lookup is repeated until
    /// `ActiveAttempt::lookup_until`.
    LookingUp(ActiveAttempt),
    /// Active side: the request is sent to the listener until a final reply arrives.
    Requested(ActiveAttempt),
    /// Passive side: the consumer has the request.
    Offered,
    /// Passive side: the consumer has accepted, and the reply waits for its acknowledgement.
    Replied(RetransmittedDatagram),
    /// The connection is established.
    Open,
    /// Passive side: the request was rejected. The result is stored for a limited time, for repeated requests.
    Refused(ReplyResult),
    /// Passive side: the client has ended the attempt before the consumer has decided.
    Abandoned,
    /// The attempt or connection has ended, and the caller removes it.
    Closed,
}

/// A datagram that is retransmitted, and the next interval.
#[derive(Debug)]
struct RetransmittedDatagram {
    datagram: Datagram,
    wait: Duration,
}

impl RetransmittedDatagram {
    fn new(datagram: Datagram) -> Self {
        RetransmittedDatagram { datagram, wait: FIRST_FULL_RETRY }
    }

    /// Returns the interval until the next transmission. The interval after it is twice as long, up to
    /// `MAX_RETRANSMIT`; `PENDING_RETRANSMIT` stays as it is.
    fn next_wait(&mut self, delivery: DatagramDelivery) -> Duration {
        let wait = if delivery == DatagramDelivery::Queued { self.wait.max(FIRST_RETRANSMIT) } else { self.wait };
        self.wait = if wait >= PENDING_RETRANSMIT { wait } else { (wait * 2).min(MAX_RETRANSMIT) };
        wait
    }
}

/// An attempt of the active side to which no final reply has arrived.
#[derive(Debug)]
struct ActiveAttempt {
    request: RetransmittedDatagram,
    /// Whether a request to this listener was sent, or could not be sent only because its socket was full.
    was_sent: bool,
    /// Time until which the lookup of a missing listener is repeated; `None` after a hand-off.
    lookup_until: Option<Instant>,
    lookup_wait: Duration,
    /// Number of hand-offs so far.
    hand_offs: usize,
}

/// Input of the state machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum MachineInput {
    /// The lookup has found a listener, to which the request must be sent with this token. After a hand-off the token
    /// must be a new one, because the previous listener may repeat its reply to the old token.
    Found { qual: u64, token: u64 },
    /// The lookup found no listener.
    NotFound,
    /// Result of the action `Transmit`.
    Sent(DatagramDelivery),
    /// A reply to the request arrived. `server` is the connection's id at the peer, or 0 if no listener has the
    /// request.
    Reply { server: u32, result: ReplyResult },
    /// The peer's segments are mapped. The bytes are the private data of the reply.
    Joined(Vec<u8>),
    /// The peer's segments could not be mapped.
    JoinFailed,
    /// A duplicate of the request arrived.
    Repeated,
    /// The consumer accepts the request, with this reply.
    Accept(Datagram),
    /// The consumer or the provider rejects the request, with this result.
    Refuse(ReplyResult),
    /// The client has acknowledged the reply, or has sent a message that implies the acknowledgement.
    Ack,
    /// A FIFO word of this connection arrived: a wake-up, a heartbeat or a reset (CM-5).
    Alive,
    /// The time that `ConnectionMachine::due` returns has passed.
    Deadline,
    /// The peer has ended the attempt or connection, has exited, or was inactive for too long.
    Gone,
    /// The consumer or the provider ends the attempt or connection locally.
    Close,
}

/// Result of sending a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DatagramDelivery {
    Queued,
    /// The peer's socket queue is full.
    Full,
    /// The peer has no socket, or its directory is not private to this user.
    NoPeer,
}

/// An action for the caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum MachineAction {
    /// Look up the listener again; the result is the input `Found` or `NotFound`.
    Lookup,
    /// Look up a listener on this qualifier of this host. The result is the input `Found` or `NotFound`.
    LookupQual(u64),
    /// The request could not be delivered. Remove the files of the peer's end point, if its process has exited.
    CleanUp,
    /// Send `ConnectionMachine::outgoing` with the descriptors of the local segments. The result is the input `Sent`.
    Transmit,
    /// Send this datagram once.
    Send(Datagram),
    /// Map the peer's segments. The result is the input `Joined` or `JoinFailed`.
    Join,
    /// Acknowledge the reply, by a datagram or a FIFO word.
    Ack,
    /// Watch the process that has replied, to detect its exit.
    Watch,
    /// Mark the end on the control page, and wake the peer.
    Mark,
    /// The peer has probably exited, or was inactive for too long. Handle the datagrams that it has already sent, then
    /// pass the input `Gone`.
    Recheck,
    /// The connection is established. Report it, then start data transfer.
    Established(Vec<u8>),
    /// The attempt or connection ended. Deliver the messages that have arrived, flush all other work, and report this
    /// event. The private data are those of a rejection by the peer's consumer, and are empty for all other events.
    Ended(ConnectionEvent, Vec<u8>),
}

/// The next state, and the actions for the caller in order.
type Transition = (MachineState, Vec<MachineAction>);

/// A connection attempt or connection.
#[derive(Debug)]
pub(crate) struct ConnectionMachine {
    state: MachineState,
    id: u32,
    /// The connection's id at the peer; 0 if it is not known yet.
    pub(crate) peer_id: u32,
    /// Random number chosen by the active side, which proves that the sender of a datagram knows the attempt.
    pub(crate) token: u64,
    /// Time of the next `Deadline` input.
    pub(crate) due: Option<Instant>,
    liveness: Liveness,
    silence: Duration,
}

impl ConnectionMachine {
    /// Creates an active attempt, which waits for the result of the first lookup. A peer that is inactive for longer
    /// than `silence` is given up.
    pub(crate) fn active(id: u32, request: Datagram, lookup_until: Instant, silence: Duration, now: Instant) -> Self {
        let request = RetransmittedDatagram::new(request);
        let lookup_until = Some(lookup_until);
        let attempt =
            ActiveAttempt { request, was_sent: false, lookup_until, lookup_wait: listener_retry::FIRST, hand_offs: 0 };
        let state = MachineState::LookingUp(attempt);
        ConnectionMachine { state, id, peer_id: 0, token: 0, due: None, liveness: Liveness::new(now), silence }
    }

    /// Creates a passive attempt for a request that the consumer must accept or reject.
    pub(crate) fn passive(id: u32, peer_id: u32, token: u64, silence: Duration, now: Instant) -> Self {
        ConnectionMachine {
            state: MachineState::Offered,
            id,
            peer_id,
            token,
            due: None,
            liveness: Liveness::new(now),
            silence,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, MachineState::Open)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, MachineState::Closed)
    }

    /// Whether the consumer has the request, and the client has not ended the attempt.
    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.state, MachineState::Offered)
    }

    /// Whether the peer's segments are attached to the connection.
    pub(crate) fn is_joined(&self) -> bool {
        matches!(self.state, MachineState::Replied(_) | MachineState::Open)
    }

    /// Returns the request or reply to transmit; `None` in states without one.
    pub(crate) fn outgoing(&self) -> Option<&Datagram> {
        match &self.state {
            MachineState::LookingUp(attempt) | MachineState::Requested(attempt) => Some(&attempt.request.datagram),
            MachineState::Replied(reply) => Some(&reply.datagram),
            _ => None,
        }
    }

    /// Whether the peer has been inactive for too long. `progress` counts the progress on an open connection (CM-5);
    /// it is 0 while the acceptor waits for the acknowledgement.
    pub(crate) fn is_silent(&mut self, progress: u64, now: Instant) -> bool {
        self.liveness.has_timed_out(progress, now, self.silence)
    }

    /// Changes the state according to an input, and returns the actions for the caller, in order. Ignores an input that
    /// has no transition in the current state.
    pub(crate) fn handle(&mut self, input: MachineInput, now: Instant) -> Vec<MachineAction> {
        if input == MachineInput::Deadline {
            self.due = None;
        }
        let (state, actions) = match std::mem::replace(&mut self.state, MachineState::Closed) {
            MachineState::LookingUp(attempt) => self.looking_up(attempt, input, now),
            MachineState::Requested(attempt) => self.requested(attempt, input, now),
            MachineState::Offered => self.offered(input, now),
            MachineState::Replied(reply) => self.replied(reply, input, now),
            MachineState::Open => self.open(input, now),
            MachineState::Refused(result) => self.refused(result, input),
            MachineState::Abandoned => match input {
                MachineInput::Accept(_) => closed(ConnectionEvent::AcceptFailed),
                MachineInput::Refuse(_) | MachineInput::Close => (MachineState::Closed, vec![]),
                _ => (MachineState::Abandoned, vec![]),
            },
            MachineState::Closed => (MachineState::Closed, vec![]),
        };
        self.state = state;
        if matches!(self.state, MachineState::Open | MachineState::Closed) {
            self.due = None;
        }
        actions
    }

    fn looking_up(&mut self, attempt: ActiveAttempt, input: MachineInput, now: Instant) -> Transition {
        match input {
            MachineInput::Found { qual, token } => self.found(attempt, qual, token),
            MachineInput::NotFound => self.retry_lookup(attempt, now),
            MachineInput::Deadline => (MachineState::LookingUp(attempt), vec![MachineAction::Lookup]),
            MachineInput::Gone => closed(ConnectionEvent::PeerRejected),
            MachineInput::Close => (MachineState::Closed, vec![]),
            _ => (MachineState::LookingUp(attempt), vec![]),
        }
    }

    fn requested(&mut self, mut attempt: ActiveAttempt, input: MachineInput, now: Instant) -> Transition {
        match input {
            MachineInput::Sent(DatagramDelivery::NoPeer) if attempt.was_sent => {
                (MachineState::Requested(attempt), vec![MachineAction::Recheck])
            }
            MachineInput::Sent(DatagramDelivery::NoPeer) => {
                let (state, mut actions) = self.retry_lookup(attempt, now);
                actions.insert(0, MachineAction::CleanUp);
                (state, actions)
            }
            MachineInput::Sent(delivery) => {
                attempt.was_sent = true;
                self.due = Some(now + attempt.request.next_wait(delivery));
                (MachineState::Requested(attempt), vec![])
            }
            MachineInput::Deadline => (MachineState::Requested(attempt), vec![MachineAction::Transmit]),
            MachineInput::Reply { server, result } => self.on_reply(attempt, server, result, now),
            MachineInput::Joined(private_data) => {
                self.liveness.record(now);
                (MachineState::Open, vec![MachineAction::Ack, MachineAction::Established(private_data)])
            }
            MachineInput::JoinFailed => (MachineState::Closed, vec![self.reset(), ended(ConnectionEvent::Rejected)]),
            MachineInput::Gone => closed(ConnectionEvent::PeerRejected),
            MachineInput::Close => (MachineState::Closed, vec![self.reset()]),
            _ => (MachineState::Requested(attempt), vec![]),
        }
    }

    fn on_reply(&mut self, mut attempt: ActiveAttempt, server: u32, result: ReplyResult, now: Instant) -> Transition {
        match result {
            ReplyResult::Accepted => {
                self.peer_id = server;
                (MachineState::Requested(attempt), vec![MachineAction::Join])
            }
            ReplyResult::Pending => {
                self.peer_id = server;
                attempt.request.wait = PENDING_RETRANSMIT;
                self.due = Some(now + PENDING_RETRANSMIT);
                (MachineState::Requested(attempt), vec![MachineAction::Watch])
            }
            ReplyResult::HandedOff(qual) if attempt.hand_offs < MAX_HAND_OFFS => {
                attempt.lookup_until = None;
                attempt.hand_offs += 1;
                self.due = None;
                (MachineState::LookingUp(attempt), vec![MachineAction::LookupQual(qual)])
            }
            // Server id 0: no listener has the request, so the lookup is repeated. Otherwise the request was passed to
            // a listener that could not take it, for example because its EVD was full, and the attempt ends.
            ReplyResult::NoListener if server == 0 => self.retry_lookup(attempt, now),
            ReplyResult::Rejected(data) => {
                (MachineState::Closed, vec![MachineAction::Ended(ConnectionEvent::PeerRejected, data)])
            }
            ReplyResult::NoListener | ReplyResult::NotUnderstood | ReplyResult::HandedOff(_) => {
                closed(ConnectionEvent::Rejected)
            }
        }
    }

    fn offered(&mut self, input: MachineInput, now: Instant) -> Transition {
        match input {
            MachineInput::Repeated => (MachineState::Offered, vec![self.reply(ReplyResult::Pending)]),
            MachineInput::Accept(reply) => {
                self.liveness.record(now);
                (MachineState::Replied(RetransmittedDatagram::new(reply)), vec![MachineAction::Transmit])
            }
            MachineInput::Refuse(result) => {
                self.due = Some(now + REJECT_LINGER);
                (MachineState::Refused(result.clone()), vec![self.reply(result)])
            }
            MachineInput::Gone => (MachineState::Abandoned, vec![]),
            MachineInput::Close => (MachineState::Closed, vec![]),
            _ => (MachineState::Offered, vec![]),
        }
    }

    fn replied(&mut self, mut reply: RetransmittedDatagram, input: MachineInput, now: Instant) -> Transition {
        let action = match input {
            MachineInput::Repeated => {
                self.liveness.record(now);
                MachineAction::Transmit
            }
            // A missing acknowledgement counts as inactivity of the client.
            MachineInput::Deadline if self.is_silent(0, now) => MachineAction::Recheck,
            MachineInput::Deadline => MachineAction::Transmit,
            MachineInput::Sent(DatagramDelivery::NoPeer) => MachineAction::Recheck,
            MachineInput::Sent(delivery) => {
                self.due = Some(now + reply.next_wait(delivery));
                return (MachineState::Replied(reply), vec![]);
            }
            MachineInput::Ack | MachineInput::Alive => {
                self.liveness.record(now);
                return (MachineState::Open, vec![MachineAction::Established(Vec::new())]);
            }
            MachineInput::Gone => {
                return (MachineState::Closed, vec![MachineAction::Mark, ended(ConnectionEvent::AcceptFailed)]);
            }
            MachineInput::Close => return (MachineState::Closed, vec![self.reset()]),
            _ => return (MachineState::Replied(reply), vec![]),
        };
        (MachineState::Replied(reply), vec![action])
    }

    fn open(&mut self, input: MachineInput, now: Instant) -> Transition {
        match input {
            MachineInput::Alive | MachineInput::Repeated => {
                self.liveness.record(now);
                (MachineState::Open, vec![])
            }
            // The server repeats its reply, because the acknowledgement was lost.
            MachineInput::Reply { result: ReplyResult::Accepted, .. } => (MachineState::Open, vec![MachineAction::Ack]),
            MachineInput::Gone => {
                (MachineState::Closed, vec![MachineAction::Mark, ended(ConnectionEvent::Disconnected)])
            }
            MachineInput::Close => (MachineState::Closed, vec![MachineAction::Mark]),
            _ => (MachineState::Open, vec![]),
        }
    }

    fn refused(&mut self, result: ReplyResult, input: MachineInput) -> Transition {
        match input {
            MachineInput::Repeated => (MachineState::Refused(result.clone()), vec![self.reply(result)]),
            MachineInput::Deadline | MachineInput::Gone | MachineInput::Close => (MachineState::Closed, vec![]),
            _ => (MachineState::Refused(result), vec![]),
        }
    }

    fn found(&mut self, mut attempt: ActiveAttempt, to: u64, fresh: u64) -> Transition {
        if let Datagram::Request { params, .. } = &mut attempt.request.datagram {
            (params.qual, params.token) = (to, fresh);
        }
        (self.peer_id, self.token) = (0, fresh);
        (attempt.request.wait, attempt.was_sent) = (FIRST_FULL_RETRY, false);
        (MachineState::Requested(attempt), vec![MachineAction::Transmit])
    }

    fn retry_lookup(&mut self, mut attempt: ActiveAttempt, now: Instant) -> Transition {
        let Some(until) = attempt.lookup_until.filter(|until| now < *until) else {
            return closed(ConnectionEvent::Rejected);
        };
        self.due = Some((now + attempt.lookup_wait).min(until));
        attempt.lookup_wait = listener_retry::next(attempt.lookup_wait);
        (MachineState::LookingUp(attempt), vec![])
    }

    /// Returns the action that sends a reply without connection parameters.
    fn reply(&self, result: ReplyResult) -> MachineAction {
        let (client, server) = (self.peer_id, self.id);
        MachineAction::Send(Datagram::Reply { client, server, token: self.token, result, accepted: None })
    }

    fn reset(&self) -> MachineAction {
        MachineAction::Send(Datagram::Reset { from: self.id, to: self.peer_id, token: self.token })
    }
}

/// Returns the action that reports `event` without private data.
fn ended(event: ConnectionEvent) -> MachineAction {
    MachineAction::Ended(event, Vec::new())
}

/// Closes the attempt or connection, and reports `event` without private data.
fn closed(event: ConnectionEvent) -> Transition {
    (MachineState::Closed, vec![ended(event)])
}

#[cfg(test)]
mod tests;
