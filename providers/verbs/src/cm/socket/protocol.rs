//! The protocol of a socket connection as a state machine. Inputs are received bytes, state changes of the socket,
//! expired deadlines and local decisions. Outputs are bytes to send and events.
//!
//! ```text
//! active   Connecting -> Requested -> Replied -> Established
//!          Connecting <-> Refused
//! passive  Arriving -> Pending -> Answered -> Established
//! ```
//!
//! Every state can change to `Ended`, which is final. A peer has a time limit for its request, for its confirmation,
//! and for the rest of a reply after its first byte. There is no limit while its consumer decides on a request.
//! `super::connection` has the socket, the clock and the queue pair.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::time::Duration;

use dapl::provider::ConnectionEvent;

use super::wire::{ConnectParams, DISCONNECT, Format, Message, MessageReader, Role};
use dapl_software::listener_retry::Retry;

/// Time limit of a TCP connect, for a host that does not reply. rdma_cm gives up after a similar time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(100);
/// Time limit for receiving a request, and for receiving a reply after its first byte.
const MESSAGE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Time limit for the active side to confirm that its queue pair is in RTS.
const CONFIRMATION: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });

/// State of the protocol, with the bytes to send.
#[derive(Debug)]
pub(super) struct Protocol {
    state: ProtocolState,
    /// The format of all messages: the format of the request.
    format: Format,
    /// Number of the current deadline. It changes with each new deadline, so that an outdated one is recognised.
    turn: u64,
    outbox: Vec<u8>,
    /// Description of the invalid message that has ended the protocol.
    fault: Option<String>,
}

#[derive(Debug)]
enum ProtocolState {
    /// Active: the socket is being connected. This request is sent when it is connected.
    Connecting(Box<ConnectParams>, Retry),
    /// Active: the peer's port has no listener. Another socket will be connected after this time.
    Refused(Box<ConnectParams>, Retry, Duration),
    /// Active: the request was sent, and the reply has not arrived completely.
    Requested(MessageReader),
    /// Active: the peer has accepted, and the local queue pair is being brought up.
    Replied,
    /// Passive: the request has not arrived completely.
    Arriving(MessageReader),
    /// Passive: the consumer has not decided on the request.
    Pending,
    /// Passive: the accept was sent, and this number of bytes of the confirmation have arrived.
    Answered(usize),
    Established,
    Ended,
}

/// An event that the caller must handle after received bytes, a closed socket or an expired deadline.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum ProtocolEvent {
    Request(ConnectParams),
    Reply(ConnectParams),
    /// The active side has confirmed the connection.
    Established,
    /// The last socket found no listener, and another socket must be connected.
    Reconnect,
    /// The private data are those of a rejection by the peer's consumer. They are empty for all other events.
    Ended(ConnectionEvent, Vec<u8>),
}

impl Protocol {
    /// Creates the active side. If the peer has no listener, the request is repeated for `listener_wait`.
    pub(super) fn active(request: ConnectParams, format: Format, listener_wait: Duration) -> Self {
        let state = ProtocolState::Connecting(Box::new(request), Retry::new(listener_wait));
        Protocol { state, format, turn: 0, outbox: Vec::new(), fault: None }
    }

    /// Creates the passive side. It replies in the format of the request.
    pub(super) fn passive() -> Self {
        let inbox = MessageReader::new(Role::Request);
        let state = ProtocolState::Arriving(inbox);
        Protocol { state, format: Format::Dat12, turn: 0, outbox: Vec::new(), fault: None }
    }

    /// Returns the format of the messages. On the passive side, it is known when the request has arrived.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Whether the socket is being connected.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, ProtocolState::Connecting(..))
    }

    /// Whether the last socket found no listener and must be closed. Another one is connected after
    /// [`Protocol::deadline`].
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.state, ProtocolState::Refused(..))
    }

    /// Removes and returns the description of an invalid message. The caller logs it with the peer's address, which the
    /// protocol does not know.
    pub(super) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Whether the request was sent and the reply has not arrived.
    pub(super) fn awaits_reply(&self) -> bool {
        matches!(self.state, ProtocolState::Requested(_))
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.state, ProtocolState::Ended)
    }

    /// Returns the maximum number of bytes to read next.
    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            ProtocolState::Requested(inbox) | ProtocolState::Arriving(inbox) => inbox.wanted_bytes(),
            ProtocolState::Answered(had) => self.format.layout().ready.len() - had,
            ProtocolState::Replied | ProtocolState::Pending | ProtocolState::Established => DISCONNECT.len(),
            ProtocolState::Connecting(..) | ProtocolState::Refused(..) | ProtocolState::Ended => 0,
        }
    }

    /// Returns the bytes to send.
    pub(super) fn outbox(&self) -> &[u8] {
        &self.outbox
    }

    /// Removes bytes that were sent from the outbox.
    pub(super) fn sent(&mut self, length: usize) {
        self.outbox.drain(..length);
    }

    /// Returns the time limit of the current state, and its number, to be passed to [`Protocol::handle_deadline`].
    /// `None`: the state has no time limit. The number changes with the state, and with the first byte of a reply.
    pub(super) fn deadline(&self) -> Option<(Duration, u64)> {
        let time = match &self.state {
            ProtocolState::Connecting(..) => CONNECT_TIMEOUT,
            ProtocolState::Refused(_, _, wait) => *wait,
            ProtocolState::Arriving(_) => MESSAGE,
            ProtocolState::Requested(inbox) if !inbox.is_empty() => MESSAGE,
            ProtocolState::Answered(_) => CONFIRMATION,
            _ => return None,
        };
        Some((time, self.turn))
    }

    fn set_state(&mut self, state: ProtocolState) {
        self.state = state;
        self.turn += 1;
    }

    fn finish(&mut self, event: ConnectionEvent) -> Option<ProtocolEvent> {
        self.set_state(ProtocolState::Ended);
        Some(ProtocolEvent::Ended(event, Vec::new()))
    }

    /// Called when the socket is connected. Queues the request.
    pub(super) fn connected(&mut self) {
        if let ProtocolState::Connecting(params, _) = &self.state {
            self.outbox = Message::Request((**params).clone()).encode(self.format);
            self.set_state(ProtocolState::Requested(MessageReader::new(Role::Reply(self.format))));
        }
    }

    /// Handles received bytes: at least one, and at most [`Protocol::wanted`].
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Option<ProtocolEvent> {
        match &mut self.state {
            ProtocolState::Requested(inbox) => {
                let begins = inbox.is_empty();
                let taken = inbox.add_bytes(bytes);
                self.turn += u64::from(begins);
                match taken {
                    Ok(None) => None,
                    Ok(Some(message)) => self.receive_reply(message),
                    Err(wrong) => {
                        self.fault = Some(format!("invalid reply to the connection request: {wrong}"));
                        self.finish(ConnectionEvent::Rejected)
                    }
                }
            }
            ProtocolState::Arriving(inbox) => {
                let taken = inbox.add_bytes(bytes);
                self.format = inbox.format().unwrap_or(self.format);
                match taken {
                    Ok(None) => None,
                    Ok(Some(Message::Request(params))) => {
                        self.set_state(ProtocolState::Pending);
                        Some(ProtocolEvent::Request(params))
                    }
                    Ok(Some(_)) => self.finish(ConnectionEvent::AcceptFailed),
                    Err(wrong) => {
                        self.fault = Some(format!("invalid connection request: {wrong}"));
                        self.finish(ConnectionEvent::AcceptFailed)
                    }
                }
            }
            ProtocolState::Answered(had) => {
                let ready = self.format.layout().ready;
                let is_right = ready[*had..].starts_with(bytes);
                *had += bytes.len();
                match (is_right, *had == ready.len()) {
                    (true, false) => None,
                    (true, true) => {
                        self.set_state(ProtocolState::Established);
                        Some(ProtocolEvent::Established)
                    }
                    (false, _) => self.finish(ConnectionEvent::AcceptFailed),
                }
            }
            // In the other states, any bytes end the connection.
            _ => self.handle_close(None),
        }
    }

    /// Handles the peer's reply to the request.
    fn receive_reply(&mut self, message: Message) -> Option<ProtocolEvent> {
        match message {
            Message::Accept(params) => {
                self.set_state(ProtocolState::Replied);
                Some(ProtocolEvent::Reply(params))
            }
            Message::Rejection(private_data) => {
                self.set_state(ProtocolState::Ended);
                Some(ProtocolEvent::Ended(ConnectionEvent::PeerRejected, private_data))
            }
            Message::NotServed | Message::Request(_) => self.finish(ConnectionEvent::Rejected),
        }
    }

    /// Handles a close by the peer, or a failure of the socket.
    pub(super) fn handle_close(&mut self, error: Option<ErrorKind>) -> Option<ProtocolEvent> {
        let is_unreachable = matches!(
            error,
            Some(
                ErrorKind::TimedOut
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::NetworkDown
            )
        );
        match &self.state {
            ProtocolState::Connecting(params, retry) if error == Some(ErrorKind::ConnectionRefused) => {
                let (params, mut retry) = (params.clone(), *retry);
                let Some(wait) = retry.next_delay() else { return self.finish(ConnectionEvent::Rejected) };
                self.set_state(ProtocolState::Refused(params, retry, wait));
                None
            }
            ProtocolState::Connecting(..) => self.finish(ConnectionEvent::Unreachable),
            ProtocolState::Refused(..) => None,
            ProtocolState::Requested(_) if is_unreachable => self.finish(ConnectionEvent::Unreachable),
            ProtocolState::Requested(_) | ProtocolState::Replied => self.finish(ConnectionEvent::Rejected),
            ProtocolState::Arriving(_) | ProtocolState::Pending | ProtocolState::Answered(_) => {
                self.finish(ConnectionEvent::AcceptFailed)
            }
            ProtocolState::Established => self.finish(ConnectionEvent::Disconnected),
            ProtocolState::Ended => None,
        }
    }

    /// Handles the expiry of the time limit with this number. An outdated number has no effect.
    pub(super) fn handle_deadline(&mut self, turn: u64) -> Option<ProtocolEvent> {
        if turn != self.turn || self.deadline().is_none() {
            return None;
        }
        match &self.state {
            ProtocolState::Refused(params, retry, _) => {
                let connecting = ProtocolState::Connecting(params.clone(), *retry);
                self.set_state(connecting);
                Some(ProtocolEvent::Reconnect)
            }
            ProtocolState::Connecting(..) => self.finish(ConnectionEvent::Unreachable),
            ProtocolState::Requested(_) => self.finish(ConnectionEvent::Rejected),
            _ => self.finish(ConnectionEvent::AcceptFailed),
        }
    }

    /// Queues the accept, after the local queue pair was brought to RTS. Returns false if the protocol has ended, for
    /// example because the requester has given up.
    pub(super) fn queue_accept(&mut self, params: ConnectParams) -> bool {
        let is_asked = matches!(self.state, ProtocolState::Pending);
        if is_asked {
            self.outbox = Message::Accept(params).encode(self.format);
            self.set_state(ProtocolState::Answered(0));
        }
        is_asked
    }

    /// Queues the confirmation, after the local queue pair was brought to RTS. Returns false if the protocol has ended,
    /// for example because the peer has disconnected.
    pub(super) fn queue_confirmation(&mut self) -> bool {
        let is_replied = matches!(self.state, ProtocolState::Replied);
        if is_replied {
            self.outbox.extend(self.format.layout().ready);
            self.set_state(ProtocolState::Established);
        }
        is_replied
    }

    /// Queues the consumer's rejection, and ends the connection.
    pub(super) fn refuse(&mut self, private_data: &[u8]) {
        if matches!(self.state, ProtocolState::Pending) {
            self.outbox = Message::Rejection(private_data.to_vec()).encode(self.format);
        }
        self.set_state(ProtocolState::Ended);
    }

    /// Ends the connection locally. Queues a disconnect if the accept was sent or the connection is established. If the
    /// peer waits for a reply, queues a rejection in the format of 2.0, because the C implementation would repeat its
    /// request if the socket were closed without a reply; the format of 1.2 has no such message.
    pub(super) fn end(&mut self) {
        match self.state {
            ProtocolState::Pending => self.outbox = Message::NotServed.encode(self.format),
            ProtocolState::Answered(_) | ProtocolState::Established => self.outbox.extend(DISCONNECT),
            _ => {}
        }
        self.set_state(ProtocolState::Ended);
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
