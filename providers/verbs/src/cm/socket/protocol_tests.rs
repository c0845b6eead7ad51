//! Tests of the protocol's state machine without sockets: an active and a passive side, in both wire formats.
#![forbid(unsafe_code)]

use super::super::wire::PathLimits;
use super::*;

const FORMATS: [Format; 2] = [Format::Dat12, Format::Dat20];

fn params(number: u32, private_data: &[u8]) -> ConnectParams {
    let address = Some("192.0.2.7".parse().unwrap());
    ConnectParams { lid: 1, port: 1, number, address, gid: [7; 16], limits: None, private_data: private_data.to_vec() }
}

/// Returns [`params`] with the fields that a format has.
fn params_in(format: Format, number: u32, private_data: &[u8]) -> ConnectParams {
    match format {
        Format::Dat12 => params(number, private_data),
        Format::Dat20 => {
            ConnectParams { port: 0, limits: Some(PathLimits { mtu: 3, reads: 4 }), ..params(number, private_data) }
        }
    }
}

/// Returns the active side, which does not repeat its request.
fn active(request: ConnectParams) -> Protocol {
    Protocol::active(request, Format::Dat12, Duration::ZERO)
}

fn bytes(params: &ConnectParams) -> Vec<u8> {
    Message::Request(params.clone()).encode(Format::Dat12)
}

/// Transfers bytes in pieces of at most five, until the receiver reports an event or wants no more bytes, or no bytes
/// are left. Returns the event.
fn carry(from: &mut Protocol, to: &mut Protocol) -> Option<ProtocolEvent> {
    let mut event = None;
    while !from.outbox().is_empty() && event.is_none() && to.wanted() > 0 {
        let length = from.outbox().len().min(to.wanted()).min(5);
        let piece = from.outbox()[..length].to_vec();
        from.sent(length);
        event = to.receive(&piece);
    }
    event
}

fn ended(event: ConnectionEvent) -> Option<ProtocolEvent> {
    Some(ProtocolEvent::Ended(event, Vec::new()))
}

fn asked() -> (Protocol, Protocol) {
    asked_in(Format::Dat12)
}

fn asked_in(format: Format) -> (Protocol, Protocol) {
    let request = params_in(format, 1, b"may I");
    let (mut active, mut passive) = (Protocol::active(request.clone(), format, Duration::ZERO), Protocol::passive());
    active.connected();
    assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Request(request)));
    assert_eq!(passive.format(), format);
    (active, passive)
}

fn standing_in(format: Format) -> (Protocol, Protocol) {
    let (mut active, mut passive) = asked_in(format);
    let reply = params_in(format, 2, b"yes");
    assert!(passive.queue_accept(reply.clone()));
    assert_eq!(carry(&mut passive, &mut active), Some(ProtocolEvent::Reply(reply)));
    assert!(active.queue_confirmation());
    assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Established));
    (active, passive)
}

#[test]
fn either_side_disconnects_after_both_have_connected() {
    let disconnected = || ended(ConnectionEvent::Disconnected);
    for format in FORMATS {
        let (mut active, mut passive) = standing_in(format);
        assert_eq!((active.deadline(), passive.deadline()), (None, None));
        active.end();
        assert_eq!(carry(&mut active, &mut passive), disconnected());
        assert_eq!((passive.is_ended(), passive.wanted(), passive.handle_close(None)), (true, 0, None));
        let (mut active, mut passive) = standing_in(format);
        passive.end();
        assert_eq!(passive.outbox(), DISCONNECT);
        assert_eq!(carry(&mut passive, &mut active), disconnected());
    }
}

#[test]
fn only_a_consumers_rejection_is_reported_as_peer_rejected() {
    for (format, private_data) in [(Format::Dat12, &b""[..]), (Format::Dat20, b"no")] {
        let (mut active, mut passive) = asked_in(format);
        passive.refuse(b"no");
        assert_eq!(
            carry(&mut passive, &mut active),
            Some(ProtocolEvent::Ended(ConnectionEvent::PeerRejected, private_data.to_vec()))
        );
        assert!(active.is_ended());
        let (mut active, mut passive) = asked_in(format);
        passive.end();
        assert_eq!(passive.outbox().is_empty(), format == Format::Dat12, "only the format of 2.0 has a message for it");
        let end = carry(&mut passive, &mut active).or_else(|| active.handle_close(None));
        assert_eq!(end, ended(ConnectionEvent::Rejected));
    }
}

#[test]
fn socket_errors_are_reported_as_rejected_or_unreachable() {
    let fail_connect = |error| active(params(1, b"")).handle_close(Some(error));
    assert_eq!(fail_connect(ErrorKind::ConnectionRefused), ended(ConnectionEvent::Rejected));
    for error in [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable, ErrorKind::Other] {
        assert_eq!(fail_connect(error), ended(ConnectionEvent::Unreachable), "{error}");
    }
    let (mut active, _) = asked();
    assert_eq!(
        active.handle_close(Some(ErrorKind::TimedOut)),
        ended(ConnectionEvent::Unreachable),
        "the host of the peer does not reply"
    );
    let (mut active, _) = asked();
    assert_eq!(active.handle_close(Some(ErrorKind::ConnectionReset)), ended(ConnectionEvent::Rejected));
}

#[test]
fn refused_connect_is_retried_on_a_new_socket_until_listener_wait_ends() {
    let listener_wait = Duration::from_millis(50);
    let mut active = Protocol::active(params(1, b"may I"), Format::Dat12, listener_wait);
    let mut waited = Duration::ZERO;
    let end = loop {
        match active.handle_close(Some(ErrorKind::ConnectionRefused)) {
            None => {}
            end => break end,
        }
        assert!(active.is_refused() && !active.is_connecting());
        let (wait, turn) = active.deadline().unwrap();
        waited += wait;
        assert_eq!(
            (active.handle_deadline(turn - 1), active.handle_deadline(turn)),
            (None, Some(ProtocolEvent::Reconnect))
        );
        assert!(active.is_connecting() && active.outbox().is_empty());
    };
    assert_eq!((end, waited), (ended(ConnectionEvent::Rejected), listener_wait));

    let (mut active, mut passive) =
        (Protocol::active(params(1, b"may I"), Format::Dat12, listener_wait), Protocol::passive());
    active.handle_close(Some(ErrorKind::ConnectionRefused));
    let (_, turn) = active.deadline().unwrap();
    active.handle_deadline(turn);
    active.connected();
    assert_eq!(carry(&mut active, &mut passive), Some(ProtocolEvent::Request(params(1, b"may I"))));
    assert_eq!(
        active.handle_close(Some(ErrorKind::ConnectionRefused)),
        ended(ConnectionEvent::Rejected),
        "a request that was sent is not repeated"
    );

    let mut given_up = Protocol::active(params(1, b""), Format::Dat12, listener_wait);
    given_up.handle_close(Some(ErrorKind::ConnectionRefused));
    let (_, turn) = given_up.deadline().unwrap();
    given_up.end();
    assert_eq!(given_up.handle_deadline(turn), None);
}

#[test]
fn requester_that_gives_up_fails_the_accept() {
    let (_, mut passive) = asked();
    assert_eq!(passive.handle_close(None), ended(ConnectionEvent::AcceptFailed));
    assert!(!passive.queue_accept(params(2, b"")));
    let (_, mut passive) = asked();
    assert_eq!(passive.receive(&DISCONNECT), ended(ConnectionEvent::AcceptFailed));
    let (_, mut passive) = asked();
    passive.queue_accept(params(2, b""));
    assert_eq!(passive.handle_close(Some(ErrorKind::ConnectionReset)), ended(ConnectionEvent::AcceptFailed));
    let mut passive = Protocol::passive();
    assert_eq!(passive.handle_close(None), ended(ConnectionEvent::AcceptFailed));
}

#[test]
fn acceptors_disconnect_before_the_confirmation_is_reported_as_rejected() {
    let (mut active, mut passive) = asked();
    passive.queue_accept(params(2, b""));
    assert!(carry(&mut passive, &mut active).is_some());
    assert_eq!(active.receive(&DISCONNECT), ended(ConnectionEvent::Rejected));
    assert!(!active.queue_confirmation());
    assert!(active.outbox().is_empty());
}

#[test]
fn invalid_confirmation_fails_the_accept() {
    for format in FORMATS {
        let other = FORMATS[usize::from(format == Format::Dat12)];
        for wrong in [&[0x0F_u8][..], &[0x0E, 0x0E], &[0, 0], &[0, 9, 0, 4], &DISCONNECT, other.layout().ready] {
            let (_, mut passive) = asked_in(format);
            passive.queue_accept(params_in(format, 2, b""));
            let wrong = &wrong[..wrong.len().min(passive.wanted())];
            let end = passive.receive(wrong).or_else(|| passive.handle_close(None));
            assert_eq!(end, ended(ConnectionEvent::AcceptFailed), "{format:?} {wrong:?}");
        }
    }
}

#[test]
fn peer_has_a_time_limit_for_each_message_that_it_must_send() {
    let mut active = active(params(1, b""));
    let (time, connecting) = active.deadline().unwrap();
    assert_eq!(time, CONNECT_TIMEOUT);
    active.connected();
    assert_eq!(
        (active.handle_deadline(connecting), active.deadline()),
        (None, None),
        "the consumer's decision has no time limit"
    );
    assert_eq!(active.receive(&bytes(&params(2, b""))[..10]), None);
    let (time, message) = active.deadline().unwrap();
    assert_eq!(time, MESSAGE);
    assert_eq!(active.receive(&bytes(&params(2, b""))[10..20]), None);
    assert_eq!(active.deadline(), Some((MESSAGE, message)), "further bytes do not extend the time limit");
    assert_eq!(active.handle_deadline(message), ended(ConnectionEvent::Rejected));

    let mut passive = Protocol::passive();
    let (_, arriving) = passive.deadline().unwrap();
    passive.receive(&bytes(&params(1, b""))[..63]);
    assert_eq!(passive.handle_deadline(arriving), ended(ConnectionEvent::AcceptFailed));

    let (_, mut passive) = asked();
    assert_eq!(passive.deadline(), None);
    passive.queue_accept(params(2, b""));
    let (_, answered) = passive.deadline().unwrap();
    assert_eq!(passive.handle_deadline(answered - 1), None);
    assert_eq!(passive.handle_deadline(answered), ended(ConnectionEvent::AcceptFailed));
}

#[test]
fn invalid_message_ends_the_connection() {
    let mut passive = Protocol::passive();
    let mut wrong = bytes(&params(1, b""));
    wrong[1] = 1;
    assert_eq!(passive.receive(&wrong), ended(ConnectionEvent::AcceptFailed));
    let (mut active, _) = asked();
    assert_eq!(active.receive(&wrong), ended(ConnectionEvent::Rejected));
    let (mut active, _) = asked();
    let mut long = bytes(&params(1, b""));
    long[14] = 1;
    assert_eq!(active.receive(&long), ended(ConnectionEvent::Rejected));
}
