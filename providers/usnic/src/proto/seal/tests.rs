//! Tests of encryption and authentication with equal keys, with different keys and without a key: for example which
//! packets are accepted. Also compares ChaCha20-Poly1305 and the checksum with published test vectors.

use super::*;
use crate::proto::setup::tests::TestRandom;
use crate::proto::wire::{FLAG_ACK_NOW, Kind};

fn psk(secret: &str) -> Psk {
    Psk::new(secret.as_bytes()).expect("the secret has the minimum length")
}

fn offers() -> (Offer, Offer) {
    let mut dice = TestRandom::new(1);
    (Offer::new(1, &mut dice), Offer::new(2, &mut dice))
}

/// Returns the keys of both hosts of a connection.
fn pair() -> (Seal, Seal) {
    let (client, server) = offers();
    let psk = psk("a secret of sixteen bytes and more");
    (Seal::new(&psk, &client, &server, true), Seal::new(&psk, &client, &server, false))
}

fn packet(body: &[u8]) -> Vec<u8> {
    [PacketHeader::new(Kind::Ack, FLAG_ACK_NOW, 7, 8).as_bytes(), body].concat()
}

fn sealed(seal: &mut Seal, body: &[u8]) -> Vec<u8> {
    let mut out = packet(body);
    assert!(seal.seal(&mut out, 0));
    out
}

#[test]
fn sealed_packets_open_at_the_peer_and_are_encrypted() {
    let (mut client, mut server) = pair();
    for body in [&b""[..], b"text to be encrypted"] {
        let mut there = sealed(&mut client, body);
        assert_eq!(there.len(), packet(body).len() + OVERHEAD);
        assert!(body.is_empty() || !there.windows(body.len()).any(|part| part == body));
        let (head, came) = server.open(&mut there).expect("the packet is sealed with the same key");
        assert_eq!((head.kind(), head.has(FLAG_ACK_NOW), head.has(FLAG_SEALED)), (Some(Kind::Ack), true, true));
        assert_eq!(came, body);
        assert_eq!(client.open(&mut sealed(&mut server, body)).map(|(_, body)| body.to_vec()), Some(body.to_vec()));
    }
}

#[test]
fn equal_payloads_give_different_packets() {
    let (mut client, _) = pair();
    let (first, second) = (sealed(&mut client, b"word"), sealed(&mut client, b"word"));
    assert_ne!(first[16..20], second[16..20]);
}

#[test]
fn only_the_last_packet_of_a_buffer_is_sealed() {
    let (mut client, mut server) = pair();
    let mut out = b"before".to_vec();
    out.extend(packet(b"body"));
    assert!(client.seal(&mut out, 6));
    assert_eq!(&out[..6], b"before");
    assert!(server.open(&mut out[6..]).is_some());
    assert!(!client.seal(&mut out.clone(), out.len() - 15), "a packet without a complete head is not sealed");
    assert!(!client.seal(&mut out.clone(), out.len() + 1));
}

#[test]
fn replays_and_old_counters_are_rejected() {
    let (mut client, mut server) = pair();
    let all: Vec<Vec<u8>> = (0..replay::WIDTH + 2).map(|_| sealed(&mut client, b"x")).collect();
    let mut open = |packet: &Vec<u8>| server.open(&mut packet.clone()).is_some();
    assert!(open(&all[5]) && !open(&all[5]));
    assert!(open(&all[4]), "packets open in any order");
    let last = all.len() - 1;
    assert!(open(&all[last]));
    assert!(!open(&all[0]) && !open(&all[1]), "counters before the window are rejected, even if they are new");
    assert!(open(&all[2]));
    assert!(!open(&all[last]) && !open(&all[4]));
}

#[test]
fn authenticated_packet_opens_once() {
    let (mut client, mut server) = pair();
    let packet = sealed(&mut client, b"x");
    assert!(server.authenticates(&packet) && server.authenticates(&packet));
    assert!(server.open(&mut packet.clone()).is_some());
    assert!(!server.authenticates(&packet), "a packet that was opened is not authenticated again");
    let own = sealed(&mut server, b"x");
    assert!(!server.authenticates(&packet[1..]) && !server.authenticates(&own));
}

#[test]
fn forged_counter_does_not_advance_the_window() {
    let (mut client, mut server) = pair();
    let mut forged = sealed(&mut client, b"x");
    let at = forged.len() - OVERHEAD;
    forged[at..at + COUNTER].copy_from_slice(&(1u64 << 40).to_be_bytes());
    assert!(server.open(&mut forged).is_none());
    assert!(server.open(&mut sealed(&mut client, b"y")).is_some());
}

#[test]
fn flipped_bits_and_truncations_are_rejected() {
    let (mut client, mut server) = pair();
    let good = sealed(&mut client, b"some body");
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(server.open(&mut bad).is_none(), "a packet with bit {bit} flipped must be rejected");
    }
    for end in 0..good.len() {
        assert!(server.open(&mut good[..end].to_vec()).is_none(), "a packet cut to {end} bytes must be rejected");
    }
    assert!(server.open(&mut good.clone()).is_some(), "the genuine packet still opens");
}

#[test]
fn packet_does_not_open_with_another_key_connection_or_direction() {
    let (client, server) = offers();
    let ours = psk("a secret of sixteen bytes and more");
    let mut from = Seal::new(&ours, &client, &server, true);
    let mut others = vec![
        Seal::new(&psk("a secret of sixteen bytes and morf"), &client, &server, false),
        Seal::new(&ours, &Offer { random: [9; 16], ..client }, &server, false),
        Seal::new(&ours, &client, &Offer { random: [9; 16], ..server }, false),
        Seal::new(&ours, &Offer { token: 9.into(), ..client }, &server, false),
        Seal::new(&ours, &client, &Offer { token: 9.into(), ..server }, false),
        Seal::new(&ours, &client, &server, true),
    ];
    for other in &mut others {
        assert!(other.open(&mut sealed(&mut from, b"x")).is_none());
    }
    assert!(Seal::new(&ours, &client, &server, false).open(&mut sealed(&mut from, b"x")).is_some());
}

#[test]
fn exhausted_counter_seals_nothing() {
    let (mut client, mut server) = pair();
    client.next = u64::MAX - 1;
    assert!(server.open(&mut sealed(&mut client, b"the last")).is_some());
    let mut one_more = packet(b"one more");
    assert!(!client.seal(&mut one_more, 0));
    assert_eq!(one_more, packet(b"one more"));
}

#[test]
fn body_of_a_guarded_packet_is_plain_text_only_without_a_key() {
    let mut dice = TestRandom::new(2);
    for guard in [PacketGuard::new(None), PacketGuard::new(Some(&psk("0123456789abcdef")))] {
        let mut out = Vec::new();
        let head = PacketHeader::new(Kind::Request, 0, 0, 0);
        guard.seal(head, b"clear", b"the rest", &mut dice, &mut out);
        assert_eq!(out.len(), HEAD + 5 + 8 + guard.overhead());
        assert_eq!(&out[HEAD..HEAD + 5], b"clear");
        assert_eq!(&out[HEAD + 5..HEAD + 13] == b"the rest", !guard.is_sealed());
        assert_eq!(guard.open(&out, 5, &mut Vec::new()), Some(&b"the rest"[..]));
        assert_eq!(
            guard.open(&out, out.len(), &mut Vec::new()),
            None,
            "a clear part as long as the packet is rejected"
        );
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(guard.open(&bad, 5, &mut Vec::new()), None, "a packet with bit {bit} flipped must be rejected");
        }
        for end in 0..out.len() {
            assert_eq!(
                guard.open(&out[..end], 5, &mut Vec::new()),
                None,
                "a packet cut to {end} bytes must be rejected"
            );
        }
    }
}

#[test]
fn handshake_packet_opens_only_with_the_same_key() {
    let guards = [
        PacketGuard::new(None),
        PacketGuard::new(Some(&psk("0123456789abcdef"))),
        PacketGuard::new(Some(&psk("0123456789abcdeg"))),
    ];
    for (from, sender) in guards.iter().enumerate() {
        let mut out = Vec::new();
        sender.seal(PacketHeader::new(Kind::Accept, 0, 1, 2), b"", b"rest", &mut TestRandom::new(3), &mut out);
        for (to, receiver) in guards.iter().enumerate() {
            assert_eq!(
                receiver.open(&out, 0, &mut Vec::new()).is_some(),
                from == to,
                "host {from} connects to host {to} only with the same key"
            );
        }
    }
}

#[test]
fn short_secrets_are_rejected_and_debug_prints_no_key() {
    assert!(Psk::new(&[7; MIN_SECRET - 1]).is_none());
    let key = Psk::new(&[7; MIN_SECRET]).expect("the secret has the minimum length");
    assert_eq!(format!("{key:?} {:?}", PacketGuard::new(Some(&key))), "Psk(..) PacketGuard(sealed)");
    assert_eq!(format!("{:?}", pair().0), "Seal { next: 0, .. }");
}

#[test]
fn chacha20_poly1305_matches_its_test_vector() {
    // Test vector of RFC 8439, 2.8.2. Its nonce begins with 7, which `nonce` cannot produce, so the test calls the
    // cipher directly.
    let key: Vec<u8> = (0x80..0xA0).collect();
    let cipher = ChaCha20Poly1305::new_from_slice(&key).expect("the key has 32 bytes");
    let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                      sunscreen would be it.";
    let nonce: [u8; 12] = [7, 0, 0, 0, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47];
    let aad = [0x50, 0x51, 0x52, 0x53, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7];
    let tag = cipher
        .encrypt_inout_detached(&nonce.into(), &aad, (&mut text[..]).into())
        .expect("the packet is below the length limit of the cipher");
    let expected = [0x1A, 0xE1, 0x0B, 0x59, 0x4F, 0x09, 0xE2, 0x6A, 0x7E, 0x90, 0x2E, 0xCB, 0xD0, 0x60, 0x06, 0x91];
    assert_eq!(tag[..], expected);
    assert_eq!(text[..8], [0xD3, 0x1A, 0x8D, 0x34, 0x64, 0x8E, 0x60, 0xDB]);
}

#[test]
fn crc32c_matches_the_standard() {
    assert_eq!(
        checksum(b"123456789"),
        0xE306_9283u32.to_be_bytes(),
        "the CRC-32C of 123456789 is the published check value"
    );
}

#[test]
fn checksum_detects_flipped_bits_and_truncations() {
    let guard = PacketGuard::new(None);
    let opens = |packet: &[u8]| guard.open(packet, 0, &mut Vec::new()).map(<[u8]>::to_vec);
    for payload in [&b""[..], b"some payload"] {
        let mut good = Vec::new();
        guard.seal(PacketHeader::new(Kind::Accept, 0, 3, 4), &[], payload, &mut TestRandom::new(1), &mut good);
        assert_eq!(opens(&good).as_deref(), Some(payload));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opens(&bad), None, "a packet with bit {bit} flipped must be rejected");
        }
        for end in 0..good.len() {
            assert_eq!(opens(&good[..end]), None, "a packet cut to {end} bytes must be rejected");
        }
    }
}
