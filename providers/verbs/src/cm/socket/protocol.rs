//! The protocol of a socket connection as a state machine: bytes and time in, bytes and events out.
//!
//! ```text
//! active    Dialling -> Requested -> Replied -> Established        passive   Arriving -> Pending -> Answered -> Established
//!           Dialling <-> Refused
//! ```
//!
//! Every state can change to `Over`, which is final. Only a peer that must send a message has a time limit; an answer
//! that the peer's consumer decides has none. `super::connection` has the socket, the clock and the queue pair.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::time::Duration;

use dapl::provider::ConnectionEvent;

use super::wire::{DISCONNECT, Format, Hello, Message, MessageReader, Role};
use dapl_software::listener_retry::Retry;

/// Time limit for a host to answer at all: the time after which rdma_cm gives up.
const DIALLING: Duration = Duration::from_secs(100);
/// Time limit for the rest of a message that has begun, or that is due at once.
const MESSAGE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Time limit for the active side to confirm that its queue pair is up.
const CONFIRMATION: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });

/// State of a connection, with the bytes to send.
#[derive(Debug)]
pub(super) struct Protocol {
    state: State,
    /// The format of all messages: the requester's.
    format: Format,
    /// Number of deadlines returned so far, to recognise an outdated one.
    turn: u64,
    /// Bytes to be sent.
    outbox: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// The socket is being connected; then these bytes are sent.
    Dialling(Box<Hello>, Retry),
    /// The peer's port has no listener: another socket is connected after this time.
    Refused(Box<Hello>, Retry, Duration),
    /// The peer's consumer has not answered yet.
    Requested(MessageReader),
    /// The peer has accepted; the local queue pair is being brought up.
    Replied,
    /// The request has not arrived completely.
    Arriving(MessageReader),
    /// The local consumer has not answered yet.
    Pending,
    /// Accepted; this many bytes of the confirmation have arrived.
    Answered(usize),
    Established,
    Over,
}

/// Event of a connection.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum ProtocolEvent {
    Request(Hello),
    Reply(Hello),
    /// The active side has confirmed.
    Established,
    /// The last socket was refused: another one is to be connected.
    Dial,
    /// The peer's consumer has rejected the request, with private data.
    PeerRejected(Vec<u8>),
    Over(ConnectionEvent),
}

impl Protocol {
    /// Creates the requester's side. Without a listener the request is retried for `listener_wait`.
    pub(super) fn active(request: Hello, format: Format, listener_wait: Duration) -> Self {
        let state = State::Dialling(Box::new(request), Retry::new(listener_wait));
        Protocol { state, format, turn: 0, outbox: Vec::new() }
    }

    /// Creates the listener's side. It answers in the format of the request.
    pub(super) fn passive() -> Self {
        let inbox = MessageReader::new(Role::Request);
        Protocol { state: State::Arriving(inbox), format: Format::Dat12, turn: 0, outbox: Vec::new() }
    }

    /// The format of the messages; the requester's, once its request has arrived.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Whether the socket is not connected yet.
    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.state, State::Dialling(..))
    }

    /// Whether the last socket was refused and is to be closed. Another one is connected after [`Protocol::patience`].
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused(..))
    }

    /// Whether the request was sent and the peer has not answered.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Requested(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Maximum number of bytes to read; 0: none.
    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            State::Requested(inbox) | State::Arriving(inbox) => inbox.wanted(),
            State::Answered(had) => self.format.ready().len() - had,
            State::Replied | State::Pending | State::Established => DISCONNECT.len(),
            State::Dialling(..) | State::Refused(..) | State::Over => 0,
        }
    }

    /// Bytes to be sent.
    pub(super) fn outbox(&self) -> &[u8] {
        &self.outbox
    }

    /// Removes sent bytes.
    pub(super) fn sent(&mut self, length: usize) {
        self.outbox.drain(..length);
    }

    /// Returns the current time limit, and the number to pass to [`Protocol::late`] when it has passed. It changes
    /// with the state, and when a message begins.
    pub(super) fn patience(&self) -> Option<(Duration, u64)> {
        let time = match &self.state {
            State::Dialling(..) => DIALLING,
            State::Refused(_, _, wait) => *wait,
            State::Arriving(_) => MESSAGE,
            State::Requested(inbox) if !inbox.is_empty() => MESSAGE,
            State::Answered(_) => CONFIRMATION,
            _ => return None,
        };
        Some((time, self.turn))
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.turn += 1;
    }

    fn over(&mut self, event: ConnectionEvent) -> Option<ProtocolEvent> {
        self.turn(State::Over);
        Some(ProtocolEvent::Over(event))
    }

    /// Handles that the socket is connected.
    pub(super) fn connected(&mut self) {
        if let State::Dialling(hello, _) = &self.state {
            self.outbox = Message::Request((**hello).clone()).encode(self.format);
            self.turn(State::Requested(MessageReader::new(Role::Reply(self.format))));
        }
    }

    /// Handles received bytes, at least one and at most as many as requested.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<ProtocolEvent> {
        match &mut self.state {
            State::Requested(inbox) => {
                let begins = inbox.is_empty();
                let taken = inbox.take(bytes);
                self.turn += u64::from(begins);
                match taken {
                    Ok(None) => None,
                    Ok(Some(message)) => self.answered(message),
                    Err(wrong) => {
                        log::warn!("invalid reply to a connection request: {wrong}");
                        self.over(ConnectionEvent::Rejected)
                    }
                }
            }
            State::Arriving(inbox) => {
                let taken = inbox.take(bytes);
                self.format = inbox.format().unwrap_or(self.format);
                match taken {
                    Ok(None) => None,
                    Ok(Some(Message::Request(hello))) => {
                        self.turn(State::Pending);
                        Some(ProtocolEvent::Request(hello))
                    }
                    Ok(Some(_)) => self.over(ConnectionEvent::AcceptFailed),
                    Err(wrong) => {
                        log::info!("invalid connection request: {wrong}");
                        self.over(ConnectionEvent::AcceptFailed)
                    }
                }
            }
            State::Answered(had) => {
                let ready = self.format.ready();
                let is_right = ready[*had..].starts_with(bytes);
                *had += bytes.len();
                match (is_right, *had == ready.len()) {
                    (true, false) => None,
                    (true, true) => {
                        self.turn(State::Established);
                        Some(ProtocolEvent::Established)
                    }
                    (false, _) => self.over(ConnectionEvent::AcceptFailed),
                }
            }
            // Any other message ends the connection.
            _ => self.closed(None),
        }
    }

    /// Handles the peer's answer to the request.
    fn answered(&mut self, message: Message) -> Option<ProtocolEvent> {
        match message {
            Message::Accept(hello) => {
                self.turn(State::Replied);
                Some(ProtocolEvent::Reply(hello))
            }
            Message::Rejection(private_data) => {
                self.turn(State::Over);
                Some(ProtocolEvent::PeerRejected(private_data))
            }
            Message::NotServed | Message::Request(_) => self.over(ConnectionEvent::Rejected),
        }
    }

    /// Handles a close by the peer, or a failure of the socket.
    pub(super) fn closed(&mut self, error: Option<ErrorKind>) -> Option<ProtocolEvent> {
        let silence = matches!(
            error,
            Some(
                ErrorKind::TimedOut
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::NetworkDown
            )
        );
        match &self.state {
            State::Dialling(hello, retry) if error == Some(ErrorKind::ConnectionRefused) => {
                let (hello, mut retry) = (hello.clone(), *retry);
                let Some(wait) = retry.next_delay() else { return self.over(ConnectionEvent::Rejected) };
                self.turn(State::Refused(hello, retry, wait));
                None
            }
            State::Dialling(..) => self.over(ConnectionEvent::Unreachable),
            State::Refused(..) => None,
            State::Requested(_) if silence => self.over(ConnectionEvent::Unreachable),
            State::Requested(_) | State::Replied => self.over(ConnectionEvent::Rejected),
            State::Arriving(_) | State::Pending | State::Answered(_) => self.over(ConnectionEvent::AcceptFailed),
            State::Established => self.over(ConnectionEvent::Disconnected),
            State::Over => None,
        }
    }

    /// Handles the expiry of the time limit with this number.
    pub(super) fn late(&mut self, turn: u64) -> Option<ProtocolEvent> {
        if turn != self.turn || self.patience().is_none() {
            return None;
        }
        match &self.state {
            State::Refused(hello, retry, _) => {
                let dialling = State::Dialling(hello.clone(), *retry);
                self.turn(dialling);
                Some(ProtocolEvent::Dial)
            }
            State::Dialling(..) => self.over(ConnectionEvent::Unreachable),
            State::Requested(_) => self.over(ConnectionEvent::Rejected),
            _ => self.over(ConnectionEvent::AcceptFailed),
        }
    }

    /// Accepts, after the local queue pair is in RTS. Returns false if the requester has left.
    pub(super) fn answer(&mut self, hello: Hello) -> bool {
        let is_asked = matches!(self.state, State::Pending);
        if is_asked {
            self.outbox = Message::Accept(hello).encode(self.format);
            self.turn(State::Answered(0));
        }
        is_asked
    }

    /// Confirms, after the local queue pair is in RTS. Returns false if the peer has left in the meantime.
    pub(super) fn confirm(&mut self) -> bool {
        let is_replied = matches!(self.state, State::Replied);
        if is_replied {
            self.outbox.extend(self.format.ready());
            self.turn(State::Established);
        }
        is_replied
    }

    /// Sends the local consumer's rejection.
    pub(super) fn refuse(&mut self, private_data: &[u8]) {
        if matches!(self.state, State::Pending) {
            self.outbox = Message::Rejection(private_data.to_vec()).encode(self.format);
        }
        self.turn(State::Over);
    }

    /// Ends the connection locally. A peer that waits for an answer gets the format's message for that, if it has one: the C
    /// implementation for 2.0 sends its request again if the socket is closed without an answer.
    pub(super) fn end(&mut self) {
        match self.state {
            State::Pending => self.outbox = Message::NotServed.encode(self.format),
            State::Answered(_) | State::Established => self.outbox.extend(DISCONNECT),
            _ => {}
        }
        self.turn(State::Over);
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
