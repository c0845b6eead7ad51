//! Selected cases of failing set-ups, and many random cases.

use super::super::accept::HalfOpenCounts;
use super::super::cookies::TURN;
use super::super::packets::{self, REQUEST};
use super::network::*;
use super::*;
use crate::proto::wire::{self, Head, Kind};

fn is(kind: Kind, head: &Head) -> bool {
    head.kind == kind as u8
}

fn world(seed: u64) -> World {
    World::new(seed, SetupConfig::default(), None)
}

fn sealed(seed: u64) -> World {
    World::new(seed, SetupConfig::default(), Some("a key of sixteen bytes or more"))
}

/// Whether both hosts report that the connection is established.
fn stands(world: &World, client: usize) -> bool {
    world.check();
    let agreed = world.clients[client].agreed.as_ref();
    agreed.and_then(|agreed| world.conns.get(&agreed.terms.peer_conn)).is_some_and(|conn| conn.established)
}

fn count(world: &World, kind: Kind) -> usize {
    world.log.iter().filter(|(_, _, packet)| wire::head(packet).is_some_and(|(head, _)| is(kind, &head))).count()
}

#[test]
fn set_up_takes_four_packets_and_one_ack() {
    let mut world = world(1);
    let client = world.client();
    world.run(30 * SECONDS);
    assert!(stands(&world, client));
    let kinds: Vec<u8> = world.log.iter().map(|(_, _, packet)| packet[1]).collect();
    use Kind::*;
    assert_eq!(kinds, [Request, Cookie, Accept, Confirm, Ack].map(|kind| kind as u8));
}

#[test]
fn set_up_with_a_key_takes_one_more_round_trip() {
    let mut world = sealed(1);
    let client = world.client();
    world.run(30 * SECONDS);
    assert!(stands(&world, client));
    let kinds: Vec<u8> = world.log.iter().map(|(_, _, packet)| packet[1]).collect();
    use Kind::*;
    assert_eq!(kinds, [Request, Cookie, Request, Cookie, Accept, Confirm, Ack].map(|kind| kind as u8));
}

#[test]
fn a_lost_request_accept_or_confirm_is_repeated() {
    for kind in [Kind::Request, Kind::Cookie, Kind::Accept, Kind::Confirm, Kind::Ack] {
        for mut world in [world(2), sealed(2)] {
            world.drops = match kind {
                Kind::Request => |head, nth| is(Kind::Request, head) && nth <= 3,
                Kind::Cookie => |head, nth| is(Kind::Cookie, head) && nth <= 3,
                Kind::Accept => |head, nth| is(Kind::Accept, head) && nth <= 3,
                Kind::Confirm => |head, nth| is(Kind::Confirm, head) && nth <= 3,
                _ => |head, nth| is(Kind::Ack, head) && nth <= 3,
            };
            let client = world.client();
            world.run(60 * SECONDS);
            assert!(stands(&world, client), "{kind:?}");
            assert_eq!((world.asked.len(), world.left.len()), (1, 0), "{kind:?}");
        }
    }
}

#[test]
fn any_packet_of_the_connection_confirms() {
    let mut world = world(3);
    world.drops = |head, _| is(Kind::Confirm, head) || is(Kind::Ack, head);
    let client = world.client();
    world.run(SECONDS);
    assert!(!stands(&world, client));
    let terms = world.clients[client].agreed.as_ref().expect("accepted").terms;
    let mut data = Vec::new();
    crate::proto::challenge::respond(&terms, 5, &mut data);
    world.send(world.clients[client].at, terms.peer, data);
    world.run(2 * SECONDS);
    assert!(stands(&world, client));
}

#[test]
fn accept_without_confirmation_fails() {
    let mut world = world(4);
    world.drops = |head, _| is(Kind::Confirm, head) || is(Kind::Ack, head);
    let client = world.client();
    world.run(60 * SECONDS);
    assert!(!stands(&world, client));
    assert_eq!(world.left, world.asked);
    assert!(count(&world, Kind::Accept) > 3 && count(&world, Kind::Confirm) > 3);
}

#[test]
fn consumer_may_answer_after_minutes() {
    for mut world in [world(5), sealed(5)] {
        world.reply = |_| ConsumerReply::Accept(180 * SECONDS);
        world.faults.loss = 20;
        let client = world.client();
        world.run(170 * SECONDS);
        assert_eq!(world.clients[client].outcome, None, "it waits");
        assert!(count(&world, Kind::Request) < 200, "and is repeated rarely");
        world.run(240 * SECONDS);
        assert!(stands(&world, client));
        assert_eq!(world.asked.len(), 1);
    }
}

#[test]
fn pending_request_outlives_its_listener() {
    for mut world in [world(19), sealed(19)] {
        world.reply = |_| ConsumerReply::Accept(20 * SECONDS);
        let client = world.client();
        world.run(SECONDS);
        (world.is_unreachable, world.faults.loss) = (true, 20);
        world.run(60 * SECONDS);
        assert!(stands(&world, client));
        assert_eq!((world.asked.len(), world.left.len()), (1, 0));
    }
}

#[test]
fn pending_request_has_no_time_limit() {
    let mut world = world(20);
    (world.reply, world.faults.loss) = (|_| ConsumerReply::Never, 10);
    let client = world.client();
    world.run(3600 * SECONDS);
    assert_eq!((world.clients[client].outcome.as_deref(), world.asked.len(), world.left.len()), (None, 1, 0));
    let (mut dice, mut out) = (TestRandom::new(21), Vec::new());
    let to = world.clients[client].connector.withdraw(&mut dice, &mut out);
    (0..5).for_each(|_| world.send(client_at(client), to, out.clone()));
    world.run(3601 * SECONDS);
    assert_eq!(world.left, world.asked);
}

#[test]
fn consumer_may_reject_or_hand_off() {
    let outcome = |reply| {
        let mut world = world(6);
        (world.reply, world.faults.loss) = (reply, 20);
        let client = world.client();
        world.run(60 * SECONDS);
        (world.clients[client].outcome.clone().expect("an outcome"), world.asked.len())
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
        "two listeners that hand it off to each other"
    );
}

#[test]
fn missing_listener_and_missing_host_give_different_events() {
    let mut world = world(7);
    let absent = world.client_with(world.setup.clone(), 5);
    world.run(SECONDS);
    assert_eq!(world.clients[absent].outcome.as_deref(), Some("Rejected(NoListener)"));
    world.drops = |_, _| true;
    let unreachable = world.client();
    world.run(60 * SECONDS);
    assert_eq!(world.clients[unreachable].outcome.as_deref(), Some("Unreachable"));
    assert_eq!(world.asked.len(), 0);
}

#[test]
fn withdrawn_request_ends_at_the_server() {
    for accepted in [false, true] {
        let mut world = world(8);
        world.reply = if accepted { |_| ConsumerReply::Accept(0) } else { |_| ConsumerReply::Accept(5 * SECONDS) };
        world.drops = |head, _| is(Kind::Accept, head);
        let client = world.client();
        world.run(SECONDS);
        assert_eq!((world.asked.len(), world.left.len()), (1, 0));
        let (now, mut out) = (world.now, Vec::new());
        let to = world.clients[client].connector.withdraw(&mut world.dice, &mut out);
        assert!(out.len() < REQUEST && world.clients[client].connector.deadline().is_none());
        world.send(world.clients[client].at, to, out);
        world.run(now + SECONDS);
        assert_eq!(world.left, world.asked);
        world.run(60 * SECONDS);
        assert_eq!(world.left, world.asked, "reported once");
    }
}

#[test]
fn dead_client_is_detected_while_its_request_is_pending() {
    let mut world = world(9);
    world.reply = |_| ConsumerReply::Accept(100 * SECONDS);
    world.client();
    world.run(SECONDS);
    world.clients.clear();
    world.run(20 * SECONDS);
    assert!(world.left.is_empty());
    world.run(99 * SECONDS);
    assert_eq!(world.left, world.asked);
    world.run(200 * SECONDS);
    assert!(world.conns.is_empty(), "a later accept has no effect");
}

#[test]
fn restarted_client_resets_unknown_accepts() {
    for mut world in [world(10), sealed(10)] {
        world.reply = |_| ConsumerReply::Accept(SECONDS);
        world.client();
        world.run(SECONDS / 2);
        // Another process starts at the same address, with other connection numbers.
        world.clients.clear();
        world.client();
        world.run(30 * SECONDS);
        assert_eq!(world.left, world.asked[..1], "the new process refuses the accept of the old request");
        assert!(stands(&world, 0), "and its own request is served");
        assert_eq!(world.conns.values().filter(|conn| conn.established).count(), 1);
    }
}

#[test]
fn restarted_server_serves_the_repeated_request() {
    for mut world in [world(11), sealed(11)] {
        world.reply = |_| ConsumerReply::Accept(SECONDS);
        let client = world.client();
        world.run(SECONDS / 2);
        assert_eq!(world.asked.len(), 1);
        world.restart_server();
        world.run(60 * SECONDS);
        assert!(stands(&world, client));
        assert_eq!(world.asked.len(), 2);
    }
}

#[test]
fn late_request_of_an_existing_or_ended_connection_is_ignored() {
    for mut world in [world(12), sealed(12)] {
        let client = world.client();
        world.run(SECONDS);
        assert!(stands(&world, client));
        let requests: Vec<_> =
            world.log.iter().filter(|(.., packet)| packet[1] == Kind::Request as u8).cloned().collect();
        let answers = world.log.len();
        for (from, to, packet) in requests {
            world.send(from, to, packet);
        }
        let sent = world.log.len();
        assert!(sent > answers);
        world.run(5 * SECONDS);
        // A repeated request without its cookie cannot be recognized, so it gets at most another cookie.
        assert!(world.log[sent..].iter().all(|(.., packet)| packet[1] == Kind::Cookie as u8));
        assert_eq!(world.asked.len(), 1);
        assert!(stands(&world, client));
    }
}

#[test]
fn replayed_request_does_not_connect() {
    for (mut world, is_sealed) in [(world(13), false), (sealed(13), true)] {
        let client = world.client();
        world.run(SECONDS);
        let requests: Vec<_> =
            world.log.iter().filter(|(.., packet)| packet[1] == Kind::Request as u8).cloned().collect();
        world.run(4 * 3600 * SECONDS);
        let before = world.log.len();
        for (from, to, packet) in requests {
            world.send(from, to, packet);
        }
        world.run(5 * 3600 * SECONDS);
        let kinds: Vec<u8> = world.log[before..].iter().map(|(.., packet)| packet[1]).collect();
        if is_sealed {
            assert_eq!(world.asked.len(), 1, "its cookie is stale");
            assert!(kinds.iter().all(|kind| [Kind::Request as u8, Kind::Cookie as u8].contains(kind)), "{kinds:?}");
        } else {
            assert_eq!(world.asked.len(), 2, "without a key it looks like a new one");
            assert_eq!(world.left, world.asked[1..], "but its client refuses the accept");
        }
        assert_eq!(world.conns.values().filter(|conn| conn.established).count(), 1);
        assert!(stands(&world, client));
    }
}

#[test]
fn replayed_request_with_a_fresh_cookie_is_recognised() {
    let mut world = sealed(14);
    world.reply = |_| ConsumerReply::Reject(0);
    let client = world.client();
    world.run(SECONDS);
    assert_eq!(world.clients[client].outcome.as_deref(), Some("PeerRejected"));
    let (from, to, last) =
        world.log.iter().rfind(|(.., packet)| packet[1] == Kind::Request as u8).cloned().expect("one");
    for _ in 0..5 {
        world.send(from, to, last.clone());
    }
    world.run(5 * SECONDS);
    assert_eq!(world.asked.len(), 1);
    // The cookie of one source is invalid from another source.
    world.send(client_at(99), to, last);
    world.run(6 * SECONDS);
    assert_eq!(world.asked.len(), 1);
    assert!(TURN > 10 * SECONDS && SetupConfig::default().linger >= 10 * SECONDS);
}

#[test]
fn request_with_wrong_key_gets_no_answer() {
    let key = |secret: Option<&str>| {
        std::sync::Arc::new(Setup::new(SetupConfig::default(), secret.and_then(|secret| Psk::new(secret.as_bytes()))))
    };
    let worlds = [
        (world(15), Some("a key of sixteen bytes or more")),
        (sealed(15), None),
        (sealed(15), Some("another key of that length")),
    ];
    for (mut world, secret) in worlds {
        let client = world.client_with(key(secret), QUAL);
        let other = world.client_with(key(secret), 5);
        world.run(60 * SECONDS);
        for client in [client, other] {
            assert_eq!(world.clients[client].outcome.as_deref(), Some("Unreachable"));
        }
        assert!(world.log.iter().all(|(from, ..)| from.ip() != server_at(0).ip()), "not a word");
        assert!(world.asked.is_empty() && world.acceptor.counts().unreadable > 6);
    }
}

#[test]
fn many_set_ups_at_once_all_succeed() {
    for mut world in [world(16), sealed(16)] {
        world.reply = |_| ConsumerReply::Accept(SECONDS);
        world.faults = Faults { loss: 10, twice: 10, delay: 30 * MILLIS, damage: 0 };
        for _ in 0..400 {
            world.client();
        }
        world.run(60 * SECONDS);
        assert!((0..400).all(|client| stands(&world, client)));
        assert_eq!(world.asked.len(), 400);
        let HalfOpenCounts { cookies, limit_reached, .. } = world.acceptor.counts();
        assert!(cookies > 200 && limit_reached == 0, "{cookies} cookies");
    }
}

#[test]
fn simultaneous_connects_give_two_connections() {
    // Each host has a listener and an attempt, which are independent of each other.
    let (mut there, mut back) = (world(17), world(18));
    let clients = (there.client(), back.client());
    there.run(SECONDS);
    back.run(SECONDS);
    assert!(stands(&there, clients.0) && stands(&back, clients.1));
    let terms = |world: &World| world.clients[0].agreed.as_ref().expect("stands").terms;
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
    assert!(stands(&back, clients.1));
}

#[test]
fn both_sides_agree_on_any_network() {
    for seed in 0..600 {
        // The times are so long that a set-up without pending timers would fail.
        let config = SetupConfig { give_up: 60 * SECONDS, patience: 90 * SECONDS, ..SetupConfig::default() };
        let mut world = World::new(seed, config, (seed % 3 == 0).then_some("a key of sixteen bytes or more"));
        let mut dice = TestRandom::new(seed);
        world.faults = Faults {
            loss: dice.below(40),
            twice: dice.below(40),
            delay: 1 + dice.below(300) * MILLIS,
            damage: dice.below(10),
        };
        world.reply = match dice.below(4) {
            0 => |_| ConsumerReply::Accept(0),
            1 => |_| ConsumerReply::Accept(15 * SECONDS),
            2 => |qual| if qual < QUAL + 2 { ConsumerReply::HandOff(qual + 1) } else { ConsumerReply::Accept(0) },
            _ => |_| ConsumerReply::Reject(MILLIS),
        };
        let clients = 1 + dice.below(6) as usize;
        let _: Vec<usize> = (0..clients).map(|_| world.client()).collect();
        world.run(120 * SECONDS);
        world.check();
        for (index, client) in world.clients.iter().enumerate() {
            let outcome = client.outcome.as_deref().unwrap_or_else(|| panic!("seed {seed}: no outcome"));
            match outcome.split(' ').next() {
                Some("Established") => assert!(stands(&world, index), "seed {seed}: only one side of {index}"),
                Some("PeerRejected") => assert!(client.agreed.is_none()),
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(world.left.is_empty(), "seed {seed}");
        let hops = world.asked.len() / clients;
        assert!(
            [1, 3].contains(&hops) && world.asked.len() == hops * clients,
            "seed {seed}: {} asked",
            world.asked.len()
        );
    }
}
