//! Tests handshakes over a simulated network, with selected failures and with random faults.

use zerocopy::IntoBytes;

use super::super::accept::HalfOpenCounts;
use super::super::cookies::KEY_LIFETIME;
use super::super::packets::{self, REQUEST};
use super::network::*;
use super::*;
use crate::proto::wire::{self, Kind, PacketHeader};

fn is(kind: Kind, head: &PacketHeader) -> bool {
    head.kind == kind as u8
}

fn sim(seed: u64) -> SetupSim {
    SetupSim::new(seed, SetupConfig::default(), None)
}

fn sealed(seed: u64) -> SetupSim {
    SetupSim::new(seed, SetupConfig::default(), Some("a key of sixteen bytes or more"))
}

/// Whether both hosts report that the connection is established.
fn is_established_at_both(sim: &SetupSim, client: usize) -> bool {
    sim.check();
    let agreed = sim.clients[client].agreed.as_ref();
    agreed.and_then(|agreed| sim.conns.get(&agreed.terms.peer_conn)).is_some_and(|conn| conn.established)
}

fn count(sim: &SetupSim, kind: Kind) -> usize {
    sim.log.iter().filter(|(_, _, packet)| wire::head(packet).is_some_and(|(head, _)| is(kind, &head))).count()
}

#[test]
fn set_up_takes_four_packets_and_one_ack() {
    let mut sim = sim(1);
    let client = sim.client();
    sim.run(30 * SECONDS);
    assert!(is_established_at_both(&sim, client));
    let kinds: Vec<u8> = sim.log.iter().map(|(_, _, packet)| packet[1]).collect();
    use Kind::*;
    assert_eq!(kinds, [Request, Cookie, Accept, Confirm, Ack].map(|kind| kind as u8));
}

#[test]
fn set_up_with_a_key_takes_one_more_round_trip() {
    let mut sim = sealed(1);
    let client = sim.client();
    sim.run(30 * SECONDS);
    assert!(is_established_at_both(&sim, client));
    let kinds: Vec<u8> = sim.log.iter().map(|(_, _, packet)| packet[1]).collect();
    use Kind::*;
    assert_eq!(kinds, [Request, Cookie, Request, Cookie, Accept, Confirm, Ack].map(|kind| kind as u8));
}

#[test]
fn set_up_succeeds_after_the_loss_of_three_packets_of_each_kind() {
    for kind in [Kind::Request, Kind::Cookie, Kind::Accept, Kind::Confirm, Kind::Ack] {
        for mut sim in [sim(2), sealed(2)] {
            sim.drops = match kind {
                Kind::Request => |head, nth| is(Kind::Request, head) && nth <= 3,
                Kind::Cookie => |head, nth| is(Kind::Cookie, head) && nth <= 3,
                Kind::Accept => |head, nth| is(Kind::Accept, head) && nth <= 3,
                Kind::Confirm => |head, nth| is(Kind::Confirm, head) && nth <= 3,
                _ => |head, nth| is(Kind::Ack, head) && nth <= 3,
            };
            let client = sim.client();
            sim.run(60 * SECONDS);
            assert!(
                is_established_at_both(&sim, client),
                "with a lost {kind:?}, the request connects and is reported once"
            );
            assert_eq!(
                (sim.asked.len(), sim.left.len()),
                (1, 0),
                "with a lost {kind:?}, the request connects and is reported once"
            );
        }
    }
}

#[test]
fn packet_other_than_confirm_and_ack_confirms_the_connection() {
    let mut sim = sim(3);
    sim.drops = |head, _| is(Kind::Confirm, head) || is(Kind::Ack, head);
    let client = sim.client();
    sim.run(SECONDS);
    assert!(!is_established_at_both(&sim, client));
    let terms = sim.clients[client].agreed.as_ref().expect("the server has accepted").terms;
    let mut data = Vec::new();
    data.extend_from_slice(packets::head(Kind::Response, &terms).as_bytes());
    data.extend_from_slice(&5u64.to_be_bytes());
    sim.send(sim.clients[client].at, terms.peer, data);
    sim.run(2 * SECONDS);
    assert!(is_established_at_both(&sim, client));
}

#[test]
fn accept_without_confirmation_fails() {
    let mut sim = sim(4);
    sim.drops = |head, _| is(Kind::Confirm, head) || is(Kind::Ack, head);
    let client = sim.client();
    sim.run(60 * SECONDS);
    assert!(!is_established_at_both(&sim, client));
    assert_eq!(sim.left, sim.asked);
    assert!(count(&sim, Kind::Accept) > 3 && count(&sim, Kind::Confirm) > 3);
}

#[test]
fn consumer_can_accept_after_minutes() {
    for mut sim in [sim(5), sealed(5)] {
        sim.reply = |_| ConsumerReply::Accept(180 * SECONDS);
        sim.faults.loss = 20;
        let client = sim.client();
        sim.run(170 * SECONDS);
        assert_eq!(sim.clients[client].outcome, None, "the connect is still pending");
        assert!(count(&sim, Kind::Request) < 200, "the request is repeated fewer than 200 times");
        sim.run(240 * SECONDS);
        assert!(is_established_at_both(&sim, client));
        assert_eq!(sim.asked.len(), 1);
    }
}

#[test]
fn pending_request_outlives_its_listener() {
    for mut sim in [sim(19), sealed(19)] {
        sim.reply = |_| ConsumerReply::Accept(20 * SECONDS);
        let client = sim.client();
        sim.run(SECONDS);
        (sim.is_unreachable, sim.faults.loss) = (true, 20);
        sim.run(60 * SECONDS);
        assert!(is_established_at_both(&sim, client));
        assert_eq!((sim.asked.len(), sim.left.len()), (1, 0));
    }
}

#[test]
fn pending_request_has_no_time_limit() {
    let mut sim = sim(20);
    (sim.reply, sim.faults.loss) = (|_| ConsumerReply::Never, 10);
    let client = sim.client();
    sim.run(3600 * SECONDS);
    assert_eq!((sim.clients[client].outcome.as_deref(), sim.asked.len(), sim.left.len()), (None, 1, 0));
    let (mut dice, mut out) = (TestRandom::new(21), Vec::new());
    let to = sim.clients[client].connector.withdraw(&mut dice, &mut out);
    (0..5).for_each(|_| sim.send(client_at(client), to, out.clone()));
    sim.run(3601 * SECONDS);
    assert_eq!(sim.left, sim.asked);
}

#[test]
fn reject_and_hand_off_reach_the_client() {
    let outcome = |reply| {
        let mut sim = sim(6);
        (sim.reply, sim.faults.loss) = (reply, 20);
        let client = sim.client();
        sim.run(60 * SECONDS);
        (sim.clients[client].outcome.clone().expect("the attempt has ended"), sim.asked.len())
    };
    assert_eq!(outcome(|_| ConsumerReply::Reject(0)), ("PeerRejected".to_string(), 1));
    assert_eq!(outcome(|_| ConsumerReply::Reject(20 * SECONDS)), ("PeerRejected".to_string(), 1));
    let on = outcome(|qual| if qual == QUAL { ConsumerReply::HandOff(QUAL + 3) } else { ConsumerReply::Accept(0) });
    assert_eq!(on, (format!("Established {:?}", b"welcome"), 2));
    let absent = outcome(|_| ConsumerReply::HandOff(1));
    assert_eq!(absent, ("Rejected(NoListener)".to_string(), 1));
    let (for_ever, asked) = outcome(|qual| ConsumerReply::HandOff(if qual == QUAL { QUAL + 1 } else { QUAL }));
    assert_eq!(
        (for_ever.split('(').next(), asked),
        (Some("Rejected"), 9),
        "a request that two listeners hand off to each other is rejected"
    );
}

#[test]
fn missing_listener_and_missing_host_give_different_events() {
    let mut sim = sim(7);
    let absent = sim.client_with(sim.setup.clone(), 5);
    sim.run(SECONDS);
    assert_eq!(sim.clients[absent].outcome.as_deref(), Some("Rejected(NoListener)"));
    sim.drops = |_, _| true;
    let unreachable = sim.client();
    sim.run(60 * SECONDS);
    assert_eq!(sim.clients[unreachable].outcome.as_deref(), Some("Unreachable"));
    assert_eq!(sim.asked.len(), 0);
}

#[test]
fn withdrawal_ends_the_request_at_the_server() {
    for accepted in [false, true] {
        let mut sim = sim(8);
        sim.reply = if accepted { |_| ConsumerReply::Accept(0) } else { |_| ConsumerReply::Accept(5 * SECONDS) };
        sim.drops = |head, _| is(Kind::Accept, head);
        let client = sim.client();
        sim.run(SECONDS);
        assert_eq!((sim.asked.len(), sim.left.len()), (1, 0));
        let (now, mut out) = (sim.now, Vec::new());
        let to = sim.clients[client].connector.withdraw(&mut sim.dice, &mut out);
        assert!(out.len() < REQUEST && sim.clients[client].connector.deadline().is_none());
        sim.send(sim.clients[client].at, to, out);
        sim.run(now + SECONDS);
        assert_eq!(sim.left, sim.asked);
        sim.run(60 * SECONDS);
        assert_eq!(sim.left, sim.asked, "the end of the request is reported once");
    }
}

#[test]
fn exited_client_is_detected_while_its_request_is_pending() {
    let mut sim = sim(9);
    sim.reply = |_| ConsumerReply::Accept(100 * SECONDS);
    sim.client();
    sim.run(SECONDS);
    sim.clients.clear();
    sim.run(20 * SECONDS);
    assert!(sim.left.is_empty());
    sim.run(99 * SECONDS);
    assert_eq!(sim.left, sim.asked);
    sim.run(200 * SECONDS);
    assert!(sim.conns.is_empty(), "an accept after the client has exited has no effect");
}

#[test]
fn restarted_client_resets_unknown_accepts() {
    for mut sim in [sim(10), sealed(10)] {
        sim.reply = |_| ConsumerReply::Accept(SECONDS);
        sim.client();
        sim.run(SECONDS / 2);
        // Another process starts at the same address, with other connection numbers.
        sim.clients.clear();
        sim.client();
        sim.run(30 * SECONDS);
        assert_eq!(sim.left, sim.asked[..1], "the new process refuses the accept of the old request");
        assert!(is_established_at_both(&sim, 0), "the new process connects");
        assert_eq!(sim.conns.values().filter(|conn| conn.established).count(), 1);
    }
}

#[test]
fn restarted_server_accepts_the_repeated_request() {
    for mut sim in [sim(11), sealed(11)] {
        sim.reply = |_| ConsumerReply::Accept(SECONDS);
        let client = sim.client();
        sim.run(SECONDS / 2);
        assert_eq!(sim.asked.len(), 1);
        sim.restart_server();
        sim.run(60 * SECONDS);
        assert!(is_established_at_both(&sim, client));
        assert_eq!(sim.asked.len(), 2);
    }
}

#[test]
fn late_request_of_an_established_connection_is_not_reported_again() {
    for mut sim in [sim(12), sealed(12)] {
        let client = sim.client();
        sim.run(SECONDS);
        assert!(is_established_at_both(&sim, client));
        let requests: Vec<_> =
            sim.log.iter().filter(|(.., packet)| packet[1] == Kind::Request as u8).cloned().collect();
        let answers = sim.log.len();
        for (from, to, packet) in requests {
            sim.send(from, to, packet);
        }
        let sent = sim.log.len();
        assert!(sent > answers);
        sim.run(5 * SECONDS);
        // The server still has the attempt in its table, and does not reply to duplicates of its request.
        assert_eq!(sim.log[sent..].len(), 0);
        assert_eq!(sim.asked.len(), 1);
        assert!(is_established_at_both(&sim, client));
    }
}

#[test]
fn replayed_request_does_not_connect() {
    for (mut sim, is_sealed) in [(sim(13), false), (sealed(13), true)] {
        let client = sim.client();
        sim.run(SECONDS);
        let requests: Vec<_> =
            sim.log.iter().filter(|(.., packet)| packet[1] == Kind::Request as u8).cloned().collect();
        sim.run(4 * 3600 * SECONDS);
        let before = sim.log.len();
        for (from, to, packet) in requests {
            sim.send(from, to, packet);
        }
        sim.run(5 * 3600 * SECONDS);
        let kinds: Vec<u8> = sim.log[before..].iter().map(|(.., packet)| packet[1]).collect();
        if is_sealed {
            assert_eq!(sim.asked.len(), 1, "a replayed request has an expired cookie, so it is not reported");
            assert!(
                kinds.iter().all(|kind| [Kind::Request as u8, Kind::Cookie as u8].contains(kind)),
                "replayed requests get only cookies as replies: {kinds:?}"
            );
        } else {
            assert_eq!(sim.asked.len(), 2, "without a key, a replayed request is reported as a new one");
            assert_eq!(sim.left, sim.asked[1..], "the client rejects the accept of a replayed request");
        }
        assert_eq!(sim.conns.values().filter(|conn| conn.established).count(), 1);
        assert!(is_established_at_both(&sim, client));
    }
}

#[test]
fn replayed_request_with_a_valid_cookie_reaches_the_consumer_once() {
    let mut sim = sealed(14);
    sim.reply = |_| ConsumerReply::Reject(0);
    let client = sim.client();
    sim.run(SECONDS);
    assert_eq!(sim.clients[client].outcome.as_deref(), Some("PeerRejected"));
    let (from, to, last) =
        sim.log.iter().rfind(|(.., packet)| packet[1] == Kind::Request as u8).cloned().expect("a request was logged");
    for _ in 0..5 {
        sim.send(from, to, last.clone());
    }
    sim.run(5 * SECONDS);
    assert_eq!(sim.asked.len(), 1);
    // The cookie of one source is invalid from another source.
    sim.send(client_at(99), to, last);
    sim.run(6 * SECONDS);
    assert_eq!(sim.asked.len(), 1);
    assert!(KEY_LIFETIME > 10 * SECONDS && SetupConfig::default().linger >= 10 * SECONDS);
}

#[test]
fn request_with_wrong_key_gets_no_reply() {
    let key = |secret: Option<&str>| {
        std::sync::Arc::new(Setup::new(SetupConfig::default(), secret.and_then(|secret| Psk::new(secret.as_bytes()))))
    };
    let worlds = [
        (sim(15), Some("a key of sixteen bytes or more")),
        (sealed(15), None),
        (sealed(15), Some("another key of that length")),
    ];
    for (mut sim, secret) in worlds {
        let client = sim.client_with(key(secret), QUAL);
        let other = sim.client_with(key(secret), 5);
        sim.run(60 * SECONDS);
        for client in [client, other] {
            assert_eq!(sim.clients[client].outcome.as_deref(), Some("Unreachable"));
        }
        assert!(sim.log.iter().all(|(from, ..)| from.ip() != server_at(0).ip()), "the server must not reply");
        assert!(sim.asked.is_empty() && sim.acceptor.counts.unreadable > 6);
    }
}

#[test]
fn many_simultaneous_set_ups_succeed() {
    for mut sim in [sim(16), sealed(16)] {
        sim.reply = |_| ConsumerReply::Accept(SECONDS);
        sim.faults = Faults { loss: 10, twice: 10, delay: 30 * MILLIS, damage: 0 };
        for _ in 0..400 {
            sim.client();
        }
        sim.run(60 * SECONDS);
        assert!((0..400).all(|client| is_established_at_both(&sim, client)));
        assert_eq!(sim.asked.len(), 400);
        let HalfOpenCounts { cookies, limit_reached, .. } = sim.acceptor.counts;
        assert!(
            cookies > 200 && limit_reached == 0,
            "{cookies} cookies were sent, instead of more than 200 without reaching the limit"
        );
    }
}

#[test]
fn simultaneous_connects_give_two_connections() {
    // Each host has a listener and an attempt, which are independent of each other.
    let (mut there, mut back) = (sim(17), sim(18));
    let clients = (there.client(), back.client());
    there.run(SECONDS);
    back.run(SECONDS);
    assert!(is_established_at_both(&there, clients.0) && is_established_at_both(&back, clients.1));
    let terms = |sim: &SetupSim| sim.clients[0].agreed.as_ref().expect("the client is established").terms;
    assert_ne!(terms(&there).our_token, terms(&back).our_token);
    // The hosts of `back` ignore packets of `there`.
    for (_, _, packet) in &there.log {
        let before = back.asked.len();
        if packets::request_head(packet).is_none() {
            back.send(server_at(5000), back.clients[0].at, packet.clone());
            back.send(client_at(0), server_at(5000), packet.clone());
        }
        back.run(back.now + SECONDS);
        assert_eq!(back.asked.len(), before);
    }
    assert!(is_established_at_both(&back, clients.1));
}

#[test]
fn both_sides_have_one_outcome_under_random_faults() {
    for seed in 0..600 {
        // With such long limits, an attempt fails only if no timer retransmits its packets.
        let config = SetupConfig { give_up: 60 * SECONDS, patience: 90 * SECONDS, ..SetupConfig::default() };
        let mut sim = SetupSim::new(seed, config, (seed % 3 == 0).then_some("a key of sixteen bytes or more"));
        let mut dice = TestRandom::new(seed);
        sim.faults = Faults {
            loss: dice.below(40),
            twice: dice.below(40),
            delay: 1 + dice.below(300) * MILLIS,
            damage: dice.below(10),
        };
        sim.reply = match dice.below(4) {
            0 => |_| ConsumerReply::Accept(0),
            1 => |_| ConsumerReply::Accept(15 * SECONDS),
            2 => |qual| if qual < QUAL + 2 { ConsumerReply::HandOff(qual + 1) } else { ConsumerReply::Accept(0) },
            _ => |_| ConsumerReply::Reject(MILLIS),
        };
        let clients = 1 + dice.below(6) as usize;
        let _: Vec<usize> = (0..clients).map(|_| sim.client()).collect();
        sim.run(120 * SECONDS);
        sim.check();
        for (index, client) in sim.clients.iter().enumerate() {
            let outcome = client.outcome.as_deref().unwrap_or_else(|| panic!("seed {seed}: a client has no outcome"));
            match outcome.split(' ').next() {
                Some("Established") => {
                    assert!(
                        is_established_at_both(&sim, index),
                        "seed {seed}: only one side of client {index} is connected"
                    )
                }
                Some("PeerRejected") => assert!(client.agreed.is_none()),
                other => panic!("seed {seed}: unexpected outcome {other:?}"),
            }
        }
        assert!(sim.left.is_empty(), "seed {seed}: no request may end at the server alone");
        let hops = sim.asked.len() / clients;
        assert!(
            [1, 3].contains(&hops) && sim.asked.len() == hops * clients,
            "seed {seed}: {} requests were reported, instead of 1 or 3 per client",
            sim.asked.len()
        );
    }
}
