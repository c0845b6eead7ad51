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

use super::wire::{self, DISCONNECT, Hello, Message, MessageReader, READY};
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
    Over(ConnectionEvent),
}

impl Protocol {
    /// Creates the requester's side. Without a listener the request is retried for `listener_wait`.
    pub(super) fn active(request: Hello, listener_wait: Duration) -> Self {
        let state = State::Dialling(Box::new(request), Retry::new(listener_wait));
        Protocol { state, turn: 0, outbox: Vec::new() }
    }

    /// Creates the listener's side.
    pub(super) fn passive() -> Self {
        let inbox = MessageReader::new(wire::MOST_IN_REQUEST);
        Protocol { state: State::Arriving(inbox), turn: 0, outbox: Vec::new() }
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
            State::Answered(had) => READY.len() - had,
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
            self.outbox = Message::Hello((**hello).clone()).encode();
            self.turn(State::Requested(MessageReader::new(wire::MOST_IN_REPLY)));
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
                    Ok(Some(Message::Refusal)) => self.over(ConnectionEvent::PeerRejected),
                    Ok(Some(Message::Hello(hello))) => {
                        self.turn(State::Replied);
                        Some(ProtocolEvent::Reply(hello))
                    }
                    Err(wrong) => {
                        log::warn!("invalid reply to a connection request: {wrong}");
                        self.over(ConnectionEvent::Rejected)
                    }
                }
            }
            State::Arriving(inbox) => match inbox.take(bytes) {
                Ok(None) => None,
                Ok(Some(Message::Hello(hello))) => {
                    self.turn(State::Pending);
                    Some(ProtocolEvent::Request(hello))
                }
                Ok(Some(Message::Refusal)) => self.over(ConnectionEvent::AcceptFailed),
                Err(wrong) => {
                    log::info!("invalid connection request: {wrong}");
                    self.over(ConnectionEvent::AcceptFailed)
                }
            },
            State::Answered(had) => {
                let is_right = READY[*had..].starts_with(bytes);
                *had += bytes.len();
                match (is_right, *had == READY.len()) {
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
                let Some(wait) = retry.wait() else { return self.over(ConnectionEvent::Rejected) };
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
            self.outbox = Message::Hello(hello).encode();
            self.turn(State::Answered(0));
        }
        is_asked
    }

    /// Confirms, after the local queue pair is in RTS. Returns false if the peer has left in the meantime.
    pub(super) fn confirm(&mut self) -> bool {
        let is_replied = matches!(self.state, State::Replied);
        if is_replied {
            self.outbox.extend(READY);
            self.turn(State::Established);
        }
        is_replied
    }

    /// Sends the local consumer's rejection.
    pub(super) fn refuse(&mut self) {
        if matches!(self.state, State::Pending) {
            self.outbox = Message::Refusal.encode();
        }
        self.turn(State::Over);
    }

    /// Ends the connection locally. A peer that waits for an answer sees that the socket is closed.
    pub(super) fn end(&mut self) {
        if matches!(self.state, State::Answered(_) | State::Established) {
            self.outbox.extend(DISCONNECT);
        }
        self.turn(State::Over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(number: u32, private_data: &[u8]) -> Hello {
        let address = Some("192.0.2.7".parse().unwrap());
        Hello { lid: 1, port: 1, number, address, gid: [7; 16], private_data: private_data.to_vec() }
    }

    /// A requester without retries.
    fn active(request: Hello) -> Protocol {
        Protocol::active(request, Duration::ZERO)
    }

    fn bytes(hello: &Hello) -> Vec<u8> {
        Message::Hello(hello.clone()).encode()
    }

    /// Transfers all bytes from one side to the other, a few at a time; returns the last event.
    fn carry(from: &mut Protocol, to: &mut Protocol) -> Option<ProtocolEvent> {
        let mut event = None;
        while !from.outbox().is_empty() && event.is_none() && to.wanted() > 0 {
            let length = from.outbox().len().min(to.wanted()).min(5);
            let piece = from.outbox()[..length].to_vec();
            from.sent(length);
            event = to.take(&piece);
        }
        event
    }

    fn asked() -> (Protocol, Protocol) {
        let (mut active, mut passive) = (active(hello(1, b"may I")), Protocol::passive());
        active.connected();
        assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Request(hello(1, b"may I"))));
        (active, passive)
    }

    fn standing() -> (Protocol, Protocol) {
        let (mut active, mut passive) = asked();
        assert!(passive.answer(hello(2, b"yes")));
        assert_eq!(carry(&mut passive, &mut active), Some(ProtocolEvent::Reply(hello(2, b"yes"))));
        assert!(active.confirm());
        assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Established));
        (active, passive)
    }

    #[test]
    fn two_sides_come_together_and_part() {
        let (mut active, mut passive) = standing();
        assert_eq!((active.patience(), passive.patience()), (None, None));
        active.end();
        assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Over(ConnectionEvent::Disconnected)));
        assert_eq!((passive.is_over(), passive.wanted(), passive.closed(None)), (true, 0, None));
        let (mut active, mut passive) = standing();
        passive.end();
        assert_eq!(passive.outbox(), DISCONNECT);
        assert_eq!(carry(&mut passive, &mut active), Some(ProtocolEvent::Over(ConnectionEvent::Disconnected)));
    }

    #[test]
    fn a_refusal_is_the_consumers_and_a_closed_socket_is_not() {
        let (mut active, mut passive) = asked();
        passive.refuse();
        assert_eq!(carry(&mut passive, &mut active), Some(ProtocolEvent::Over(ConnectionEvent::PeerRejected)));
        let (mut active, mut passive) = asked();
        passive.end();
        assert!(passive.outbox().is_empty());
        assert_eq!(active.closed(None), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));
    }

    #[test]
    fn a_socket_that_cannot_be_connected() {
        let dial = |error| active(hello(1, b"")).closed(Some(error));
        assert_eq!(dial(ErrorKind::ConnectionRefused), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));
        for error in [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable, ErrorKind::Other]
        {
            assert_eq!(dial(error), Some(ProtocolEvent::Over(ConnectionEvent::Unreachable)), "{error}");
        }
        let (mut active, _) = asked();
        assert_eq!(
            active.closed(Some(ErrorKind::TimedOut)),
            Some(ProtocolEvent::Over(ConnectionEvent::Unreachable)),
            "its host is gone"
        );
        let (mut active, _) = asked();
        assert_eq!(
            active.closed(Some(ErrorKind::ConnectionReset)),
            Some(ProtocolEvent::Over(ConnectionEvent::Rejected))
        );
    }

    #[test]
    fn a_refused_socket_is_followed_by_another_until_the_time_is_used_up() {
        let listener_wait = Duration::from_millis(50);
        let mut active = Protocol::active(hello(1, b"may I"), listener_wait);
        let mut waited = Duration::ZERO;
        let end = loop {
            match active.closed(Some(ErrorKind::ConnectionRefused)) {
                None => {}
                end => break end,
            }
            assert!(active.is_refused() && !active.is_dialling());
            let (wait, turn) = active.patience().unwrap();
            waited += wait;
            assert_eq!((active.late(turn - 1), active.late(turn)), (None, Some(ProtocolEvent::Dial)));
            assert!(active.is_dialling() && active.outbox().is_empty());
        };
        assert_eq!((end, waited), (Some(ProtocolEvent::Over(ConnectionEvent::Rejected)), listener_wait));

        let (mut active, mut passive) = (Protocol::active(hello(1, b"may I"), listener_wait), Protocol::passive());
        active.closed(Some(ErrorKind::ConnectionRefused));
        let (_, turn) = active.patience().unwrap();
        active.late(turn);
        active.connected();
        assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Request(hello(1, b"may I"))));
        assert_eq!(
            active.closed(Some(ErrorKind::ConnectionRefused)),
            Some(ProtocolEvent::Over(ConnectionEvent::Rejected)),
            "it was asked"
        );

        let mut given_up = Protocol::active(hello(1, b""), listener_wait);
        given_up.closed(Some(ErrorKind::ConnectionRefused));
        let (_, turn) = given_up.patience().unwrap();
        given_up.end();
        assert_eq!(given_up.late(turn), None);
    }

    #[test]
    fn requester_may_leave_at_any_time() {
        let (_, mut passive) = asked();
        assert_eq!(passive.closed(None), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));
        assert!(!passive.answer(hello(2, b"")));
        let (_, mut passive) = asked();
        assert_eq!(passive.take(&DISCONNECT), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));
        let (_, mut passive) = asked();
        passive.answer(hello(2, b""));
        assert_eq!(
            passive.closed(Some(ErrorKind::ConnectionReset)),
            Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed))
        );
        let mut passive = Protocol::passive();
        assert_eq!(passive.closed(None), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));
    }

    #[test]
    fn acceptor_may_leave_before_the_confirmation() {
        let (mut active, mut passive) = asked();
        passive.answer(hello(2, b""));
        assert!(carry(&mut passive, &mut active).is_some());
        assert_eq!(active.take(&DISCONNECT), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));
        assert!(!active.confirm());
        assert!(active.outbox().is_empty());
    }

    #[test]
    fn a_wrong_confirmation_is_none() {
        for wrong in [&[0x0F_u8][..], &[0x0E, 0x0E], &[0, 0]] {
            let (_, mut passive) = asked();
            passive.answer(hello(2, b""));
            assert_eq!(passive.take(wrong), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)), "{wrong:?}");
        }
    }

    #[test]
    fn a_peer_that_owes_bytes_has_a_bounded_time() {
        let mut active = active(hello(1, b""));
        let (time, dialling) = active.patience().unwrap();
        assert_eq!(time, DIALLING);
        active.connected();
        assert_eq!((active.late(dialling), active.patience()), (None, None), "deciding takes as long as it takes");
        assert_eq!(active.take(&bytes(&hello(2, b""))[..10]), None);
        let (time, message) = active.patience().unwrap();
        assert_eq!(time, MESSAGE);
        assert_eq!(active.take(&bytes(&hello(2, b""))[10..20]), None);
        assert_eq!(active.patience(), Some((MESSAGE, message)), "a byte now and then does not prolong it");
        assert_eq!(active.late(message), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));

        let mut passive = Protocol::passive();
        let (_, arriving) = passive.patience().unwrap();
        passive.take(&bytes(&hello(1, b""))[..63]);
        assert_eq!(passive.late(arriving), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));

        let (_, mut passive) = asked();
        assert_eq!(passive.patience(), None);
        passive.answer(hello(2, b""));
        let (_, answered) = passive.patience().unwrap();
        assert_eq!(passive.late(answered - 1), None);
        assert_eq!(passive.late(answered), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));
    }

    #[test]
    fn invalid_message_ends_the_connection() {
        let mut passive = Protocol::passive();
        let mut wrong = bytes(&hello(1, b""));
        wrong[1] = 1;
        assert_eq!(passive.take(&wrong), Some(ProtocolEvent::Over(ConnectionEvent::AcceptFailed)));
        let (mut active, _) = asked();
        assert_eq!(active.take(&wrong), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));
        let (mut active, _) = asked();
        let mut long = bytes(&hello(1, b""));
        long[14] = 1;
        assert_eq!(active.take(&long), Some(ProtocolEvent::Over(ConnectionEvent::Rejected)));
    }
}
