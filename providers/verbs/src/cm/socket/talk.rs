//! One conversation, as a state machine: bytes and the passing of time in, bytes and news out.
//!
//! ```text
//! active    Dialling -> Asked -> Replied -> Standing        passive   Arriving -> Pending -> Answered -> Standing
//!           Dialling <-> Refused
//! ```
//! Each leads to `Over`, and nothing leads out of that. Only a peer that owes us bytes is given a time: an answer that its
//! consumer has to decide on has none. No socket, no clock, no queue pair here; [`super::line`] has all three.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::time::Duration;

use dapl::provider::ConnectionEvent;

use super::wire::{self, GOODBYE, Hello, Inbox, Message, READY};
use dapl_software::listener_retry::Retry;

/// Until a host answers at all; as long as rdma_cm takes to give one up.
const DIALLING: Duration = Duration::from_secs(100);
/// Until a message that has begun, or is due at once, is whole.
const MESSAGE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Until the active side has brought its queue pair up and says so.
const CONFIRMATION: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });

/// A conversation.
#[derive(Debug)]
pub(super) struct Talk {
    state: State,
    /// Counts the times that were given, so that an old one is known.
    turn: u64,
    /// What is to be sent.
    outbox: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// The socket is being connected; then this is sent.
    Dialling(Box<Hello>, Retry),
    /// The peer's port has no listener: another socket is to be connected after this time.
    Refused(Box<Hello>, Retry, Duration),
    /// The peer decides.
    Asked(Inbox),
    /// It has accepted; the queue pair is being brought up.
    Replied,
    /// The request is due.
    Arriving(Inbox),
    /// Our consumer decides.
    Pending,
    /// It has accepted; so much of the confirmation has come.
    Answered(usize),
    Standing,
    Over,
}

/// What has happened.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum TalkEvent {
    Request(Hello),
    Reply(Hello),
    /// The active side has confirmed.
    Established,
    /// The last socket was refused: another one is to be connected.
    Dial,
    Over(ConnectionEvent),
}

impl Talk {
    /// Of who connects. Without a listener the request is retried for `listener_wait`.
    pub(super) fn active(request: Hello, listener_wait: Duration) -> Self {
        let state = State::Dialling(Box::new(request), Retry::new(listener_wait));
        Talk { state, turn: 0, outbox: Vec::new() }
    }

    /// Of who listens.
    pub(super) fn passive() -> Self {
        let inbox = Inbox::new(wire::MOST_IN_REQUEST);
        Talk { state: State::Arriving(inbox), turn: 0, outbox: Vec::new() }
    }

    /// The socket is not connected yet.
    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.state, State::Dialling(..))
    }

    /// The last socket was refused and is to be closed; another one follows after [`Talk::patience`].
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused(..))
    }

    /// The request is sent and the peer has not answered.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// How many bytes are to be read at most; 0: none.
    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            State::Asked(inbox) | State::Arriving(inbox) => inbox.wanted(),
            State::Answered(had) => READY.len() - had,
            State::Replied | State::Pending | State::Standing => GOODBYE.len(),
            State::Dialling(..) | State::Refused(..) | State::Over => 0,
        }
    }

    /// What is to be sent.
    pub(super) fn outbox(&self) -> &[u8] {
        &self.outbox
    }

    /// So much of it was sent.
    pub(super) fn sent(&mut self, length: usize) {
        self.outbox.drain(..length);
    }

    /// Until when something must have happened, and what to call [`Talk::late`] with then. It changes with the state, and
    /// when a message begins.
    pub(super) fn patience(&self) -> Option<(Duration, u64)> {
        let time = match &self.state {
            State::Dialling(..) => DIALLING,
            State::Refused(_, _, wait) => *wait,
            State::Arriving(_) => MESSAGE,
            State::Asked(inbox) if !inbox.is_empty() => MESSAGE,
            State::Answered(_) => CONFIRMATION,
            _ => return None,
        };
        Some((time, self.turn))
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.turn += 1;
    }

    fn over(&mut self, event: ConnectionEvent) -> Option<TalkEvent> {
        self.turn(State::Over);
        Some(TalkEvent::Over(event))
    }

    /// The socket is connected.
    pub(super) fn connected(&mut self) {
        if let State::Dialling(hello, _) = &self.state {
            self.outbox = Message::Hello((**hello).clone()).encode();
            self.turn(State::Asked(Inbox::new(wire::MOST_IN_REPLY)));
        }
    }

    /// Bytes have come, at least one and at most as many as were wanted.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<TalkEvent> {
        match &mut self.state {
            State::Asked(inbox) => {
                let begins = inbox.is_empty();
                let taken = inbox.take(bytes);
                self.turn += u64::from(begins);
                match taken {
                    Ok(None) => None,
                    Ok(Some(Message::Refusal)) => self.over(ConnectionEvent::PeerRejected),
                    Ok(Some(Message::Hello(hello))) => {
                        self.turn(State::Replied);
                        Some(TalkEvent::Reply(hello))
                    }
                    Err(wrong) => {
                        log::warn!("a reply is not understood: {wrong}");
                        self.over(ConnectionEvent::Rejected)
                    }
                }
            }
            State::Arriving(inbox) => match inbox.take(bytes) {
                Ok(None) => None,
                Ok(Some(Message::Hello(hello))) => {
                    self.turn(State::Pending);
                    Some(TalkEvent::Request(hello))
                }
                Ok(Some(Message::Refusal)) => self.over(ConnectionEvent::AcceptFailed),
                Err(wrong) => {
                    log::info!("a request is not understood: {wrong}");
                    self.over(ConnectionEvent::AcceptFailed)
                }
            },
            State::Answered(had) => {
                let is_right = READY[*had..].starts_with(bytes);
                *had += bytes.len();
                match (is_right, *had == READY.len()) {
                    (true, false) => None,
                    (true, true) => {
                        self.turn(State::Standing);
                        Some(TalkEvent::Established)
                    }
                    (false, _) => self.over(ConnectionEvent::AcceptFailed),
                }
            }
            // Whatever it says now, it means the end.
            _ => self.hung_up(None),
        }
    }

    /// The peer has closed, or the socket has failed.
    pub(super) fn hung_up(&mut self, error: Option<ErrorKind>) -> Option<TalkEvent> {
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
            State::Asked(_) if silence => self.over(ConnectionEvent::Unreachable),
            State::Asked(_) | State::Replied => self.over(ConnectionEvent::Rejected),
            State::Arriving(_) | State::Pending | State::Answered(_) => self.over(ConnectionEvent::AcceptFailed),
            State::Standing => self.over(ConnectionEvent::Disconnected),
            State::Over => None,
        }
    }

    /// The time is over that [`Talk::patience`] gave with this number.
    pub(super) fn late(&mut self, turn: u64) -> Option<TalkEvent> {
        if turn != self.turn || self.patience().is_none() {
            return None;
        }
        match &self.state {
            State::Refused(hello, retry, _) => {
                let dialling = State::Dialling(hello.clone(), *retry);
                self.turn(dialling);
                Some(TalkEvent::Dial)
            }
            State::Dialling(..) => self.over(ConnectionEvent::Unreachable),
            State::Asked(_) => self.over(ConnectionEvent::Rejected),
            _ => self.over(ConnectionEvent::AcceptFailed),
        }
    }

    /// Our consumer accepts and our queue pair is up. `false`: who asked has left.
    pub(super) fn answer(&mut self, hello: Hello) -> bool {
        let is_asked = matches!(self.state, State::Pending);
        if is_asked {
            self.outbox = Message::Hello(hello).encode();
            self.turn(State::Answered(0));
        }
        is_asked
    }

    /// Our queue pair is up. `false`: the peer has left meanwhile.
    pub(super) fn confirm(&mut self) -> bool {
        let is_replied = matches!(self.state, State::Replied);
        if is_replied {
            self.outbox.extend(READY);
            self.turn(State::Standing);
        }
        is_replied
    }

    /// Our consumer says no.
    pub(super) fn refuse(&mut self) {
        if matches!(self.state, State::Pending) {
            self.outbox = Message::Refusal.encode();
        }
        self.turn(State::Over);
    }

    /// We end it. A peer that waits for an answer sees that we hang up.
    pub(super) fn end(&mut self) {
        if matches!(self.state, State::Answered(_) | State::Standing) {
            self.outbox.extend(GOODBYE);
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

    /// One whose request is not retried.
    fn active(request: Hello) -> Talk {
        Talk::active(request, Duration::ZERO)
    }

    fn bytes(hello: &Hello) -> Vec<u8> {
        Message::Hello(hello.clone()).encode()
    }

    /// Moves all that one says to the other, a few bytes at a time; gives the last news of it.
    fn carry(from: &mut Talk, to: &mut Talk) -> Option<TalkEvent> {
        let mut news = None;
        while !from.outbox().is_empty() && news.is_none() && to.wanted() > 0 {
            let length = from.outbox().len().min(to.wanted()).min(5);
            let piece = from.outbox()[..length].to_vec();
            from.sent(length);
            news = to.take(&piece);
        }
        news
    }

    fn asked() -> (Talk, Talk) {
        let (mut active, mut passive) = (active(hello(1, b"may I")), Talk::passive());
        active.connected();
        assert_eq!(carry(&mut active, &mut passive), Some(TalkEvent::Request(hello(1, b"may I"))));
        (active, passive)
    }

    fn standing() -> (Talk, Talk) {
        let (mut active, mut passive) = asked();
        assert!(passive.answer(hello(2, b"yes")));
        assert_eq!(carry(&mut passive, &mut active), Some(TalkEvent::Reply(hello(2, b"yes"))));
        assert!(active.confirm());
        assert_eq!(carry(&mut active, &mut passive), Some(TalkEvent::Established));
        (active, passive)
    }

    #[test]
    fn two_sides_come_together_and_part() {
        let (mut active, mut passive) = standing();
        assert_eq!((active.patience(), passive.patience()), (None, None));
        active.end();
        assert_eq!(carry(&mut active, &mut passive), Some(TalkEvent::Over(ConnectionEvent::Disconnected)));
        assert_eq!((passive.is_over(), passive.wanted(), passive.hung_up(None)), (true, 0, None));
        let (mut active, mut passive) = standing();
        passive.end();
        assert_eq!(passive.outbox(), GOODBYE);
        assert_eq!(carry(&mut passive, &mut active), Some(TalkEvent::Over(ConnectionEvent::Disconnected)));
    }

    #[test]
    fn a_refusal_is_the_consumers_and_a_closed_socket_is_not() {
        let (mut active, mut passive) = asked();
        passive.refuse();
        assert_eq!(carry(&mut passive, &mut active), Some(TalkEvent::Over(ConnectionEvent::PeerRejected)));
        let (mut active, mut passive) = asked();
        passive.end();
        assert!(passive.outbox().is_empty());
        assert_eq!(active.hung_up(None), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
    }

    #[test]
    fn a_socket_that_cannot_be_connected() {
        let dial = |error| active(hello(1, b"")).hung_up(Some(error));
        assert_eq!(dial(ErrorKind::ConnectionRefused), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
        for error in [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable, ErrorKind::Other]
        {
            assert_eq!(dial(error), Some(TalkEvent::Over(ConnectionEvent::Unreachable)), "{error}");
        }
        let (mut active, _) = asked();
        assert_eq!(
            active.hung_up(Some(ErrorKind::TimedOut)),
            Some(TalkEvent::Over(ConnectionEvent::Unreachable)),
            "its host is gone"
        );
        let (mut active, _) = asked();
        assert_eq!(active.hung_up(Some(ErrorKind::ConnectionReset)), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
    }

    #[test]
    fn a_refused_socket_is_followed_by_another_until_the_time_is_used_up() {
        let listener_wait = Duration::from_millis(50);
        let mut active = Talk::active(hello(1, b"may I"), listener_wait);
        let mut waited = Duration::ZERO;
        let end = loop {
            match active.hung_up(Some(ErrorKind::ConnectionRefused)) {
                None => {}
                end => break end,
            }
            assert!(active.is_refused() && !active.is_dialling());
            let (wait, turn) = active.patience().unwrap();
            waited += wait;
            assert_eq!((active.late(turn - 1), active.late(turn)), (None, Some(TalkEvent::Dial)));
            assert!(active.is_dialling() && active.outbox().is_empty());
        };
        assert_eq!((end, waited), (Some(TalkEvent::Over(ConnectionEvent::Rejected)), listener_wait));

        let (mut active, mut passive) = (Talk::active(hello(1, b"may I"), listener_wait), Talk::passive());
        active.hung_up(Some(ErrorKind::ConnectionRefused));
        let (_, turn) = active.patience().unwrap();
        active.late(turn);
        active.connected();
        assert_eq!(carry(&mut active, &mut passive), Some(TalkEvent::Request(hello(1, b"may I"))));
        assert_eq!(
            active.hung_up(Some(ErrorKind::ConnectionRefused)),
            Some(TalkEvent::Over(ConnectionEvent::Rejected)),
            "it was asked"
        );

        let mut given_up = Talk::active(hello(1, b""), listener_wait);
        given_up.hung_up(Some(ErrorKind::ConnectionRefused));
        let (_, turn) = given_up.patience().unwrap();
        given_up.end();
        assert_eq!(given_up.late(turn), None);
    }

    #[test]
    fn who_asked_may_leave_at_any_time() {
        let (_, mut passive) = asked();
        assert_eq!(passive.hung_up(None), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));
        assert!(!passive.answer(hello(2, b"")));
        let (_, mut passive) = asked();
        assert_eq!(passive.take(&GOODBYE), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));
        let (_, mut passive) = asked();
        passive.answer(hello(2, b""));
        assert_eq!(
            passive.hung_up(Some(ErrorKind::ConnectionReset)),
            Some(TalkEvent::Over(ConnectionEvent::AcceptFailed))
        );
        let mut passive = Talk::passive();
        assert_eq!(passive.hung_up(None), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));
    }

    #[test]
    fn who_accepted_may_leave_before_we_confirm() {
        let (mut active, mut passive) = asked();
        passive.answer(hello(2, b""));
        assert!(carry(&mut passive, &mut active).is_some());
        assert_eq!(active.take(&GOODBYE), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
        assert!(!active.confirm());
        assert!(active.outbox().is_empty());
    }

    #[test]
    fn a_wrong_confirmation_is_none() {
        for wrong in [&[0x0F_u8][..], &[0x0E, 0x0E], &[0, 0]] {
            let (_, mut passive) = asked();
            passive.answer(hello(2, b""));
            assert_eq!(passive.take(wrong), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)), "{wrong:?}");
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
        assert_eq!(active.late(message), Some(TalkEvent::Over(ConnectionEvent::Rejected)));

        let mut passive = Talk::passive();
        let (_, arriving) = passive.patience().unwrap();
        passive.take(&bytes(&hello(1, b""))[..63]);
        assert_eq!(passive.late(arriving), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));

        let (_, mut passive) = asked();
        assert_eq!(passive.patience(), None);
        passive.answer(hello(2, b""));
        let (_, answered) = passive.patience().unwrap();
        assert_eq!(passive.late(answered - 1), None);
        assert_eq!(passive.late(answered), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));
    }

    #[test]
    fn what_is_not_understood_ends_it() {
        let mut passive = Talk::passive();
        let mut wrong = bytes(&hello(1, b""));
        wrong[1] = 1;
        assert_eq!(passive.take(&wrong), Some(TalkEvent::Over(ConnectionEvent::AcceptFailed)));
        let (mut active, _) = asked();
        assert_eq!(active.take(&wrong), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
        let (mut active, _) = asked();
        let mut long = bytes(&hello(1, b""));
        long[14] = 1;
        assert_eq!(active.take(&long), Some(TalkEvent::Over(ConnectionEvent::Rejected)));
    }
}
