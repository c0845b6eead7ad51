//! Tests how the active side reacts to packets, timeouts and reports of a closed port, and the retransmission of the
//! confirmation.

mod listener_wait;

use dapl::provider::ConnectionEvent;

use super::super::SetupConfig;
use super::super::packets::ReplyTarget;
use super::super::tests::TestRandom;
use super::*;
use crate::proto::{MILLIS, SECONDS};

const SERVER: &str = "10.0.0.1:17471";
const ANSWERS_FROM: &str = "10.0.0.1:5000";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("the literal is a valid address")
}

fn offer() -> Offer {
    Offer::new(9, &mut TestRandom::new(1))
}

fn connector() -> Connector {
    let setup = Arc::new(Setup::new(SetupConfig::default(), None));
    Connector::new(setup, at(SERVER), 77, offer(), b"private", 0)
}

/// Returns the packet that is sent now, if there is one.
fn sends(connector: &mut Connector, now: Nanos) -> Option<Vec<u8>> {
    sends_to(connector, now).map(|(_, packet)| packet)
}

/// Returns the packet that is sent now, and its destination.
fn sends_to(connector: &mut Connector, now: Nanos) -> Option<(SocketAddr, Vec<u8>)> {
    let mut out = Vec::new();
    connector.transmit(now, &mut TestRandom::new(6), &mut out).map(|to| (to, out))
}

/// Returns the offer and the private data of a request.
fn requested(packet: &[u8]) -> Option<(Offer, Vec<u8>)> {
    let (setup, mut buffer) = (Setup::new(SetupConfig::default(), None), Vec::new());
    let (offer, private) = packets::offer(packets::request(&setup.guard, packet, &mut buffer)?)?;
    Some((offer, private.to_vec()))
}

fn to(hop: u16) -> ReplyTarget {
    ReplyTarget { conn: 9, token: offer().token.get(), hop }
}

fn receives(connector: &mut Connector, now: Nanos, packet: &[u8], from: &str) -> Option<ConnectOutcome> {
    connector.receive(now, packet, at(from), &mut TestRandom::new(3))
}

fn accept(to: ReplyTarget) -> Vec<u8> {
    let (setup, mut out) = (Setup::new(SetupConfig::default(), None), Vec::new());
    let peer_offer = Offer::new(11, &mut TestRandom::new(4));
    packets::put_accept(&setup.guard, to, &peer_offer, b"yes", &mut TestRandom::new(5), &mut out);
    out
}

fn reject(to: ReplyTarget, reason: RejectReason) -> Vec<u8> {
    reject_with(to, reason, b"")
}

fn reject_with(to: ReplyTarget, reason: RejectReason, private: &[u8]) -> Vec<u8> {
    let (setup, mut out) = (Setup::new(SetupConfig::default(), None), Vec::new());
    packets::put_reject(&setup.guard, to, reason, private, &mut TestRandom::new(5), &mut out);
    out
}

fn cookie(to: ReplyTarget, ticket: Option<CookiePacket>) -> Vec<u8> {
    let (setup, mut out) = (Setup::new(SetupConfig::default(), None), Vec::new());
    packets::put_cookie(&setup.guard, to, ticket, &mut TestRandom::new(5), &mut out);
    out
}

#[test]
fn request_is_retransmitted_at_doubled_intervals_until_the_timeout() {
    let mut connector = connector();
    let first = sends(&mut connector, 0).expect("the request is due immediately");
    let mut times = vec![0];
    let gone = loop {
        let now = connector.deadline().expect("the attempt has not ended");
        if let Some(outcome) = connector.on_time(now) {
            assert!(matches!(outcome, ConnectOutcome::Ended(ConnectionEvent::Unreachable, ..)));
            break now;
        }
        let (to, again) = sends_to(&mut connector, now).expect("a packet is due");
        // Each retransmission is one byte shorter, to select another process that shares the port.
        assert_eq!((to, again.len()), (at(SERVER), first.len() - times.len()));
        assert_eq!(
            (requested(&again), packets::request_head(&again)),
            (requested(&first), packets::request_head(&first))
        );
        assert_eq!(sends(&mut connector, now), None);
        times.push(now / MILLIS);
    };
    assert_eq!(times[..6], [0, 100, 300, 700, 1500, 2500]);
    assert_eq!(gone, SetupConfig::default().give_up);
    assert_eq!((connector.deadline(), sends(&mut connector, gone + SECONDS)), (None, None));
    assert!(connector.on_time(u64::MAX).is_none(), "the timeout is reported only once");
    assert!(
        receives(&mut connector, gone, &accept(to(0)), ANSWERS_FROM).is_none(),
        "a reply after the timeout has no effect"
    );
}

#[test]
fn paused_process_retransmits_before_it_gives_up() {
    let mut connector = connector();
    sends(&mut connector, 0);
    assert!(connector.on_time(3600 * SECONDS).is_none());
    assert!(sends(&mut connector, 3600 * SECONDS).is_some());
    assert!(receives(&mut connector, 3600 * SECONDS, &accept(to(0)), ANSWERS_FROM).is_some());
}

#[test]
fn requests_before_the_last_reply_do_not_count_towards_giving_up() {
    let mut connector = connector();
    for now in [0, SECONDS, 2 * SECONDS, 3 * SECONDS] {
        assert!(sends(&mut connector, now).is_some());
    }
    receives(&mut connector, 3 * SECONDS, &cookie(to(0), None), ANSWERS_FROM);
    assert!(
        connector.on_time(3600 * SECONDS).is_none(),
        "the connector first sends another request after a long pause"
    );
    for now in [3600 * SECONDS, 3601 * SECONDS, 3602 * SECONDS] {
        assert!(connector.on_time(now).is_none() && sends(&mut connector, now).is_some());
    }
    assert!(matches!(connector.on_time(3602 * SECONDS), Some(ConnectOutcome::Ended(ConnectionEvent::Unreachable, ..))));
}

#[test]
fn reply_is_valid_only_from_the_server_with_number_and_token() {
    let others = ["10.0.0.2:17471", "[::1]:5000"];
    let wrong = [
        ReplyTarget { conn: 8, ..to(0) },
        ReplyTarget { token: 1, ..to(0) },
        ReplyTarget { conn: 0, token: 0, hop: 0 },
    ];
    let mut connector = connector();
    for from in others {
        assert!(receives(&mut connector, 0, &accept(to(0)), from).is_none(), "a reply from {from} must be ignored");
    }
    for to in wrong {
        assert!(receives(&mut connector, 0, &accept(to), ANSWERS_FROM).is_none());
        assert!(receives(&mut connector, 0, &reject(to, RejectReason::Refused), ANSWERS_FROM).is_none());
    }
    assert!(receives(&mut connector, 0, &accept(to(0))[..40], ANSWERS_FROM).is_none());
    let mapped = "[::ffff:10.0.0.1]:5000";
    let Some(ConnectOutcome::Established { agreed, private_data }) =
        receives(&mut connector, 0, &accept(to(0)), mapped)
    else {
        panic!("an accept from the mapped IPv4 address of the server must be accepted");
    };
    assert_eq!((agreed.terms.peer, private_data), (at(mapped), b"yes".to_vec()));
    assert!(
        receives(&mut connector, 0, &accept(to(0)), ANSWERS_FROM).is_none(),
        "a duplicate accept is handled by the connection"
    );
}

#[test]
fn packets_of_other_hosts_do_not_prolong_the_attempt() {
    let mut connector = connector();
    for now in (0..11).map(|second| second * SECONDS) {
        sends(&mut connector, now);
        receives(&mut connector, now, &cookie(to(0), None), "10.0.0.2:5000");
        receives(&mut connector, now, &cookie(to(1), None), ANSWERS_FROM);
    }
    assert!(matches!(connector.on_time(11 * SECONDS), Some(ConnectOutcome::Ended(ConnectionEvent::Unreachable, ..))));
}

#[test]
fn first_cookie_is_used_immediately_and_later_ones_keep_the_interval() {
    let mut connector = connector();
    sends(&mut connector, 0);
    let mut sent = 0;
    for now in 1..1000 {
        let ticket = CookiePacket::new(now as u32, [now as u8; 16]);
        assert!(receives(&mut connector, now, &cookie(to(0), Some(ticket)), ANSWERS_FROM).is_none());
        if let Some(packet) = sends(&mut connector, now) {
            let request_head = packets::request_head(&packet).expect("the packet starts with a request head");
            assert_eq!((request_head.epoch.get(), request_head.cookie), (now as u32, [now as u8; 16]));
            sent += 1;
        }
    }
    assert_eq!(sent, 1);
    let due = connector.deadline().expect("the attempt has not ended");
    let packet = sends(&mut connector, due).expect("a packet is due");
    assert_eq!(
        packets::request_head(&packet).map(|request_head| request_head.epoch.get()),
        Some(999),
        "the request carries the newest cookie"
    );
}

#[test]
fn pending_replies_double_the_interval() {
    let mut connector = connector();
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..1000 {
        assert!(connector.on_time(now).is_none() && sends(&mut connector, now).is_some());
        receives(&mut connector, now + 1, &cookie(to(0), None), ANSWERS_FROM);
        let due = connector.deadline().expect("the attempt has not ended");
        waits.push((due - now) / MILLIS);
        now = due;
    }
    assert_eq!(waits[..7], [100, 200, 400, 800, 1600, 2000, 2000]);
    assert!(waits[7..].iter().all(|wait| *wait == SetupConfig::default().pending_repeat / MILLIS));
}

#[test]
fn pending_request_is_repeated_to_the_process_that_holds_it() {
    let mut connector = connector();
    assert_eq!(sends_to(&mut connector, 0).map(|(to, _)| to), Some(at(SERVER)));
    receives(&mut connector, 1, &cookie(to(0), None), "10.0.0.2:5000");
    receives(&mut connector, 1, &cookie(to(1), None), ANSWERS_FROM);
    let due = connector.deadline().expect("the attempt has not ended");
    assert_eq!(
        sends_to(&mut connector, due).map(|(to, _)| to),
        Some(at(SERVER)),
        "invalid cookies must not change the destination"
    );
    receives(&mut connector, due, &cookie(to(0), None), ANSWERS_FROM);
    let mut asked = Vec::new();
    for now in (1..=8).map(|second| second * SECONDS) {
        asked.push(sends_to(&mut connector, now).map(|(to, _)| to));
    }
    let (here, there) = (Some(at(ANSWERS_FROM)), Some(at(SERVER)));
    assert_eq!(
        asked,
        [here, here, here, there, here, there, here, there],
        "without a reply, requests alternate between both addresses"
    );
    let mut out = Vec::new();
    assert_eq!(connector.withdraw(&mut TestRandom::new(4), &mut out), at(ANSWERS_FROM));
}

#[test]
fn hand_off_or_cookie_sends_the_request_to_the_well_known_port_again() {
    let ticket = CookiePacket::new(7, [7; 16]);
    for answer in [reject(to(0), RejectReason::HandedOff(88)), cookie(to(0), Some(ticket))] {
        let mut connector = connector();
        sends(&mut connector, 0);
        receives(&mut connector, 1, &cookie(to(0), None), ANSWERS_FROM);
        receives(&mut connector, 2, &answer, ANSWERS_FROM);
        assert_eq!(sends_to(&mut connector, 2).map(|(to, _)| to), Some(at(SERVER)));
    }
}

#[test]
fn exit_of_the_server_with_a_pending_request_gives_peer_rejected() {
    let mut connector = connector();
    sends(&mut connector, 0);
    receives(&mut connector, 1, &cookie(to(0), None), ANSWERS_FROM);
    let mut now = connector.deadline().expect("the attempt has not ended");
    let quote = sends(&mut connector, now).expect("the request is due again");
    let closed = |connector: &mut Connector, now, to| connector.port_closed(now, at(to), &quote[..64]);
    assert!(
        (0..10).all(|_| closed(&mut connector, now, SERVER).is_none()),
        "reports for the first address have no effect"
    );
    assert!(closed(&mut connector, now, ANSWERS_FROM).is_none(), "one report of a closed port is only a hint");
    now = connector.deadline().expect("the attempt has not ended");
    sends(&mut connector, now);
    assert!(matches!(
        closed(&mut connector, now, ANSWERS_FROM),
        Some(ConnectOutcome::Ended(ConnectionEvent::PeerRejected, ..))
    ));
    assert_eq!((connector.deadline(), sends(&mut connector, now + SECONDS)), (None, None));
}

#[test]
fn late_replies_of_a_former_listener_are_ignored() {
    let mut connector = connector();
    sends(&mut connector, 0);
    assert!(receives(&mut connector, 1, &reject(to(0), RejectReason::HandedOff(88)), ANSWERS_FROM).is_none());
    let packet = sends(&mut connector, 1).expect("the request is due immediately");
    let request_head = packets::request_head(&packet).expect("the packet starts with a request head");
    assert_eq!((request_head.qual(), request_head.hop.get(), request_head.epoch.get()), (88, 1, 0));
    for late in
        [reject(to(0), RejectReason::HandedOff(88)), reject(to(0), RejectReason::NoListener), cookie(to(0), None)]
    {
        assert!(receives(&mut connector, 2, &late, ANSWERS_FROM).is_none());
        assert_eq!(sends(&mut connector, 2), None);
    }
    assert!(matches!(
        receives(&mut connector, 3, &reject(to(1), RejectReason::Refused), ANSWERS_FROM),
        Some(ConnectOutcome::Ended(ConnectionEvent::PeerRejected, ..))
    ));
}

#[test]
fn reject_reasons_map_to_rejected_or_peer_rejected() {
    use RejectReason::*;
    for reason in [NoListener, NoSpace, Version, NotUnderstood] {
        let outcome = receives(&mut connector(), 0, &reject(to(0), reason), ANSWERS_FROM);
        assert!(
            matches!(outcome, Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(why))) if why == reason),
            "the outcome must have the reason of the reject: {outcome:?}"
        );
    }
    for data in [&b""[..], b"full"] {
        let outcome = receives(&mut connector(), 0, &reject_with(to(0), Refused, data), ANSWERS_FROM);
        assert!(
            matches!(&outcome, Some(ConnectOutcome::Ended(ConnectionEvent::PeerRejected, private, None)) if private == data),
            "the outcome must have the private data of the reject: {outcome:?}"
        );
    }
}

#[test]
fn missing_reply_selects_the_next_process_of_the_port() {
    let mut connector = connector();
    let mut lengths = Vec::new();
    for round in 0..40 {
        let now = round * SECONDS;
        lengths.push(packets::REQUEST - sends(&mut connector, now).expect("a packet is due").len());
        if (3..6).contains(&round) {
            receives(&mut connector, now, &cookie(to(0), None), ANSWERS_FROM);
        }
    }
    assert_eq!(lengths[..9], [0, 1, 2, 3, 3, 3, 3, 4, 5]);
    assert!(
        (0..=SHORTER).all(|shorter| lengths[6..].contains(&shorter)),
        "each process of the port must be tried in turn: {lengths:?}"
    );
}

#[test]
fn unsealed_replies_are_ignored_with_a_key() {
    let psk = crate::proto::seal::Psk::new(b"a secret of both sides");
    let own_offer = Arc::new(Setup::new(SetupConfig::default(), psk));
    let mut connector = Connector::new(own_offer.clone(), at(SERVER), 77, offer(), b"private", 0);
    let request = sends(&mut connector, 0).expect("the request is due immediately");
    // A process without the key may have bound the server's port. It cannot read the number and token of the attempt.
    // Even with the right number and token, its packets are ignored.
    let peer_offer = Setup::new(SetupConfig::default(), None);
    assert!(packets::request(&peer_offer.guard, &request, &mut Vec::new()).is_none());
    for from in [SERVER, ANSWERS_FROM] {
        let answers = [accept(to(0)), reject(to(0), RejectReason::NoListener), cookie(to(0), None)];
        assert!(
            answers.iter().all(|answer| receives(&mut connector, 0, answer, from).is_none()),
            "a reply from {from} must be ignored"
        );
    }
    assert!(connector.deadline().is_some(), "the attempt continues after unsealed replies");
    let mut out = Vec::new();
    packets::put_accept(
        &own_offer.guard,
        to(0),
        &Offer::new(11, &mut TestRandom::new(4)),
        b"",
        &mut TestRandom::new(5),
        &mut out,
    );
    assert!(matches!(receives(&mut connector, 0, &out, ANSWERS_FROM), Some(ConnectOutcome::Established { .. })));
}

#[test]
fn unmatched_accept_is_reset() {
    let setup = Setup::new(SetupConfig::default(), None);
    let refuses = |packet: &[u8]| {
        let mut out = Vec::new();
        let is_said = refuse_unmatched(&setup, packet, &mut TestRandom::new(6), &mut out);
        assert!(out.len() < packet.len() && is_said != out.is_empty());
        is_said
    };
    assert!(refuses(&accept(to(0))));
    assert!(
        !refuses(&accept(to(0))[1..])
            && !refuses(&reject(to(0), RejectReason::NoSpace))
            && !refuses(&cookie(to(0), None))
    );
}

#[test]
fn confirmation_is_repeated_until_a_packet_arrives_or_the_timeout() {
    let config = SetupConfig::default();
    let terms = super::super::tests::terms();
    for is_confirmed in [true, false] {
        let mut confirming = Confirming::new(0, config.first_repeat, config.last_repeat, config.give_up);
        let (mut times, mut out) = (Vec::new(), Vec::new());
        while let Some(now) = confirming.deadline() {
            assert!(confirming.transmit(now, &terms, &mut out) && !confirming.transmit(now, &terms, &mut out));
            times.push(now);
            if is_confirmed && times.len() == 3 {
                confirming.record_packet();
            }
        }
        assert!(if is_confirmed {
            times.len() == 3
        } else {
            times.len() > 8 && times.iter().all(|at| *at < config.give_up)
        });
        assert_eq!(out.len(), times.len() * size_of::<wire::PacketHeader>());
    }
}
