//! Tests the confirmation of a connection, and its retransmission.

use zerocopy::IntoBytes;

use super::pair::{ConnPair, Datagram, Endpoint, PairConfig};
use crate::proto::MILLIS;
use crate::proto::seal::PacketGuard;
use crate::proto::setup::Random;
use crate::proto::wire::{self, Kind, PacketHeader};

/// Returns the kinds of the packets that an endpoint has sent.
fn sent_kinds(pair: &ConnPair, side: Endpoint) -> Vec<Kind> {
    let log = pair.log.as_ref().expect("packets are logged");
    let of_side = log.iter().filter(|(from, ..)| *from == side);
    of_side.filter_map(|(.., datagram)| wire::head(&datagram.bytes)?.0.kind()).collect()
}

fn pair() -> ConnPair {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.log = Some(Vec::new());
    pair
}

fn run(pair: &mut ConnPair, end: u64) {
    pair.until("some time passes", |pair| pair.now >= end);
}

#[test]
fn ack_confirms_the_connection() {
    let mut pair = pair();
    run(&mut pair, 5000 * MILLIS);
    for side in [Endpoint::A, Endpoint::B] {
        let said = sent_kinds(&pair, side);
        assert!(
            said.contains(&Kind::Ack) && !said.contains(&Kind::Confirm),
            "acks must confirm the connection without Confirm: {said:?}"
        );
    }
}

#[test]
fn client_repeats_the_confirmation_until_a_packet_arrives() {
    let mut pair = pair();
    pair.b.drops_all = true;
    run(&mut pair, 2000 * MILLIS);
    let confirms = sent_kinds(&pair, Endpoint::A).iter().filter(|kind| **kind == Kind::Confirm).count();
    assert!(confirms >= 4, "Confirm was sent {confirms} times, instead of at least 4");
    assert!(!sent_kinds(&pair, Endpoint::B).contains(&Kind::Confirm), "the accepting side sends no confirmation");
    pair.b.drops_all = false;
    let before = sent_kinds(&pair, Endpoint::B).len();
    pair.until("the confirmation is answered", |pair| sent_kinds(pair, Endpoint::B).len() > before);
    run(&mut pair, 10_000 * MILLIS);
    let after = sent_kinds(&pair, Endpoint::A).iter().filter(|kind| **kind == Kind::Confirm).count();
    assert!(after <= confirms + 1, "Confirm was sent {after} times, instead of at most once more than {confirms}");
}

#[test]
fn confirmation_causes_an_immediate_ack() {
    let mut pair = pair();
    run(&mut pair, 1000 * MILLIS);
    let confirm = PacketHeader::new(Kind::Confirm, 0, 0xB0, 0xCCCC_DDDD).as_bytes().to_vec();
    let before = sent_kinds(&pair, Endpoint::B).len();
    pair.deliver(&Datagram { to: Endpoint::B, bytes: confirm });
    pair.pump(Endpoint::B, 10);
    assert_eq!(sent_kinds(&pair, Endpoint::B)[before..], [Kind::Ack]);
}

#[test]
fn repeated_accept_causes_an_ack_and_does_not_stop_the_confirmation() {
    struct ZeroRandom;
    impl Random for ZeroRandom {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(0);
        }
    }
    let mut pair = pair();
    pair.b.drops_all = true;
    pair.pump(Endpoint::A, 10);
    let mut accept = Vec::new();
    PacketGuard::new(None).seal(
        PacketHeader::new(Kind::Accept, 0, 0xA0, 0xAAAA_BBBB),
        b"",
        b"terms",
        &mut ZeroRandom,
        &mut accept,
    );
    for _ in 0..3 {
        let before = sent_kinds(&pair, Endpoint::A);
        pair.deliver(&Datagram { to: Endpoint::A, bytes: accept.clone() });
        pair.pump(Endpoint::A, 10);
        assert_eq!(
            sent_kinds(&pair, Endpoint::A)[before.len()..],
            [Kind::Ack],
            "a repeated accept is answered by one ack"
        );
    }
    run(&mut pair, 1000 * MILLIS);
    assert!(sent_kinds(&pair, Endpoint::A).contains(&Kind::Confirm));
}
