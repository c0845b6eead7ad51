//! Tests encoding and decoding of the packets of the handshake, and decoding of truncated and damaged packets.

use proptest::prelude::*;

use super::super::tests::TestRandom;
use super::*;
use crate::proto::seal::Psk;

fn guards() -> [PacketGuard; 2] {
    [PacketGuard::new(None), PacketGuard::new(Psk::new(&[7; 16]).as_ref())]
}

fn an_offer() -> Offer {
    an_offer_with(0)
}

/// Returns the offer of a packet with private data of this length.
fn an_offer_with(private: usize) -> Offer {
    let private = (private as u16).into();
    Offer {
        private,
        ord: 3.into(),
        ird: 4.into(),
        credits: 5.into(),
        window_kib: 6.into(),
        mtu: 9000.into(),
        ..Offer::new(9, &mut TestRandom::new(1))
    }
}

const TO: ReplyTarget = ReplyTarget { conn: 3, token: 4, hop: 5 };

fn a_request(guard: &PacketGuard, private: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let ticket = Some(CookiePacket::new(8, [9; 16]));
    put_request(guard, &RequestHead::new(77, 2, ticket), &an_offer(), private, 0, &mut TestRandom::new(2), &mut out);
    out
}

/// Returns each kind of packet that a client receives, with its decoded form.
fn answers(guard: &PacketGuard) -> Vec<(Vec<u8>, Option<u16>, SetupReply<'static>)> {
    let private = &[6; MAX_PRIVATE];
    let ticket = CookiePacket { hop: TO.hop.into(), ..CookiePacket::new(8, [9; 16]) };
    let mut all = vec![
        (Some(TO.hop), SetupReply::Again(ticket)),
        (Some(TO.hop), SetupReply::Pending),
        (None, SetupReply::Accept(an_offer_with(MAX_PRIVATE), private)),
        (None, SetupReply::Accept(an_offer(), b"")),
    ];
    use RejectReason::*;
    let reasons = [NoListener, Refused, NoSpace, Version, NotUnderstood, HandedOff(u64::MAX)];
    all.extend(reasons.map(|reason| (Some(TO.hop), SetupReply::Reject(reason, b""))));
    all.push((Some(TO.hop), SetupReply::Reject(Refused, private)));
    all.push((Some(TO.hop), SetupReply::Reject(Refused, b"full")));
    all.into_iter().map(|(hop, answer)| (put(guard, &answer), hop, answer)).collect()
}

fn put(guard: &PacketGuard, answer: &SetupReply<'_>) -> Vec<u8> {
    let (mut dice, mut out) = (TestRandom::new(3), Vec::new());
    match answer {
        SetupReply::Again(ticket) => put_cookie(guard, TO, Some(*ticket), &mut dice, &mut out),
        SetupReply::Pending => put_cookie(guard, TO, None, &mut dice, &mut out),
        SetupReply::Accept(offer, private) => put_accept(guard, TO, offer, private, &mut dice, &mut out),
        SetupReply::Reject(reason, private) => put_reject(guard, TO, *reason, private, &mut dice, &mut out),
    }
    out
}

#[test]
fn wire_records_have_no_padding() {
    assert_eq!((size_of::<RequestHead>(), size_of::<Offer>(), size_of::<CookiePacket>()), (32, 52, 24));
    assert_eq!((size_of::<RejectPacket>(), size_of::<Withdrawal>(), size_of::<Fin>()), (16, 12, 8));
}

#[test]
fn requests_round_trip_and_replies_are_at_most_twice_as_long() {
    for guard in guards() {
        for length in [0, 1, MAX_PRIVATE, MAX_PRIVATE + 1] {
            let private = vec![1; length];
            let packet = a_request(&guard, &private);
            assert_eq!(packet.len(), REQUEST);
            let request_head = request_head(&packet).expect("the packet starts with a request head");
            assert_eq!(
                (request_head.qual(), request_head.hop.get(), request_head.epoch.get(), request_head.cookie),
                (77, 2, 8, [9; 16])
            );
            let mut buffer = Vec::new();
            let rest = request(&guard, &packet, &mut buffer).expect("the packet is not truncated");
            assert_eq!(requester(rest), Some((9, an_offer().token.get())));
            assert_eq!(
                offer(rest),
                Some((an_offer_with(length.min(MAX_PRIVATE)), &private[..length.min(MAX_PRIVATE)]))
            );
        }
        for shorter in [1, SHORTER, SHORTER + 1] {
            let mut packet = Vec::new();
            let private = &[1; MAX_PRIVATE];
            put_request(
                &guard,
                &RequestHead::new(77, 2, None),
                &an_offer(),
                private,
                shorter,
                &mut TestRandom::new(2),
                &mut packet,
            );
            assert_eq!(packet.len(), REQUEST - shorter.min(SHORTER));
            assert!(request_head(&packet).is_some() && request(&guard, &packet, &mut Vec::new()).is_some());
        }
        for (packet, ..) in answers(&guard) {
            assert!(packet.len() <= MAX_REPLY_BYTES && packet.len() <= 2 * REQUEST);
        }
    }
}

#[test]
fn replies_round_trip_and_damaged_ones_are_rejected() {
    for guard in guards() {
        for (packet, hop, expected) in answers(&guard) {
            assert_eq!(decode_reply(&guard, &packet, &mut Vec::new()), Some((hop, expected)));
            for end in 0..packet.len() {
                assert_eq!(
                    decode_reply(&guard, &packet[..end], &mut Vec::new()),
                    None,
                    "{expected:?} cut to {end} bytes must be rejected"
                );
            }
            for bit in 0..packet.len() * 8 {
                let mut bad = packet.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    decode_reply(&guard, &bad, &mut Vec::new()),
                    None,
                    "{expected:?} with bit {bit} flipped must be rejected"
                );
            }
            let longer = [&packet[..], &[0]].concat();
            assert_eq!(decode_reply(&guard, &longer, &mut Vec::new()), None);
        }
    }
}

#[test]
fn damaged_requests_and_withdrawals_are_rejected() {
    for guard in guards() {
        let mut leaves = Vec::new();
        put_withdrawal(&guard, &RequestHead::new(77, 2, None), &an_offer(), &mut TestRandom::new(4), &mut leaves);
        assert_eq!(request_head(&leaves).map(|request_head| request_head.qual()), Some(77));
        assert_eq!(withdrawal(&guard, &leaves), Some((9, an_offer().token.get())));
        assert!(!is_unknown(&guard, &leaves));
        let asks = a_request(&guard, b"private");
        let is_request =
            |packet: &[u8]| request_head(packet).is_some() && request(&guard, packet, &mut Vec::new()).is_some();
        let is_withdrawal = |packet: &[u8]| request_head(packet).is_some() && withdrawal(&guard, packet).is_some();
        for (packet, is_good) in [(&asks, &is_request as &dyn Fn(&[u8]) -> bool), (&leaves, &is_withdrawal)] {
            assert!(is_good(packet));
            assert!((0..packet.len()).all(|end| !is_good(&packet[..end])));
            for bit in 0..packet.len() * 8 {
                let mut bad = packet.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_good(&bad), "a packet with bit {bit} flipped must be rejected");
            }
        }
    }
}

#[test]
fn unknown_connection_is_reset_with_number_and_token() {
    for guard in guards() {
        let mut packet = Vec::new();
        put_unknown(&guard, &an_offer(), &mut TestRandom::new(5), &mut packet);
        let (head, _) = wire::head(&packet).expect("the packet has a complete header");
        assert_eq!((head.conn.get(), head.token.get()), (9, an_offer().token.get()));
        assert!(is_unknown(&guard, &packet) && request_head(&packet).is_none());
        for bit in 0..packet.len() * 8 {
            let mut bad = packet.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_unknown(&guard, &bad), "a packet with bit {bit} flipped must be rejected");
        }
        // The Reset of an established connection is the same packet without the flag, sealed or not.
        let mut ends = Vec::new();
        let head = PacketHeader::new(Kind::Reset, 0, 9, an_offer().token.get());
        guard.seal(head, &[], &[], &mut TestRandom::new(5), &mut ends);
        assert!(!is_unknown(&guard, &ends) && !is_unknown(&guard, head.as_bytes()));
    }
}

#[test]
fn invalid_offers_are_rejected() {
    let bytes = |change: fn(&mut Offer), private: usize| {
        let mut out = Vec::new();
        put_offer(&an_offer(), &[], &mut out);
        let mut offered = Offer::read_from_bytes(&out).expect("an encoded offer can be decoded");
        change(&mut offered);
        [offered.as_bytes(), &vec![0; private]].concat()
    };
    assert!(offer(&bytes(|_| {}, 0)).is_some());
    type Change = fn(&mut Offer);
    let bad: [(Change, usize); 7] = [
        (|it| it.conn = 0.into(), 0),
        (|it| it.token = 0.into(), 0),
        (|it| it.window_kib = 0.into(), 0),
        (|it| it.mtu = (MIN_MTU - 1).into(), 0),
        (|it| it.private = 10.into(), 9),
        (|it| it.private = (MAX_PRIVATE as u16 + 1).into(), 1000),
        (|it| it.private = u16::MAX.into(), 1000),
    ];
    for (which, (change, private)) in bad.into_iter().enumerate() {
        assert_eq!(offer(&bytes(change, private)), None, "invalid offer {which} must be rejected");
    }
    assert_eq!(requester(&bytes(|it| it.conn = 0.into(), 0)), None);
    assert_eq!(requester(&bytes(|it| it.token = 0.into(), 0)), None);
    assert!(
        requester(&bytes(|it| it.mtu = 0.into(), 0)).is_some(),
        "the requester is known, so that a reject can be sent to it"
    );
}

#[test]
fn version_reject_of_another_version_is_decoded() {
    let guard = &guards()[0];
    let other = |reason| {
        let refused = RejectPacket {
            reason,
            min: VERSION + 1,
            max: VERSION + 2,
            spare: 0,
            hop: 5.into(),
            more: 1.into(),
            qual: 0.into(),
        };
        let mut out = Vec::new();
        let head = PacketHeader { version: VERSION + 1, ..PacketHeader::new(Kind::Reject, 0, 3, 4) };
        let rest = [refused.as_bytes(), b"and more"].concat();
        guard.seal(head, &[], &rest, &mut TestRandom::new(6), &mut out);
        out
    };
    let version = SetupReply::Reject(RejectReason::Version, b"");
    assert_eq!(decode_reply(guard, &other(4), &mut Vec::new()), Some((Some(5), version)));
    assert_eq!(decode_reply(guard, &other(1), &mut Vec::new()), None, "other replies of another version are ignored");
}

proptest! {
    #[test]
    fn decoding_of_random_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1300), kind in 7..16u8) {
        let guards = guards();
        let mut packet = bytes;
        if packet.len() > 4 {
            (packet[0], packet[1], packet[2], packet[3]) = (VERSION, kind, 0, packet[3] & 12);
        }
        for guard in &guards {
            prop_assert!(decode_reply(guard, &packet, &mut Vec::new()).is_none());
            prop_assert!(withdrawal(guard, &packet).is_none() && !is_unknown(guard, &packet));
            prop_assert!(request(guard, &packet, &mut Vec::new()).is_none());
        }
        let _ = (request_head(&packet), offer(&packet), requester(&packet), fin(&packet));
    }

    #[test]
    fn decoding_of_random_content_does_not_panic(
        rest in prop::collection::vec(any::<u8>(), 0..700),
        kind in 7..16u8,
    ) {
        let (guard, mut packet) = (&guards()[0], Vec::new());
        let head = PacketHeader { kind, ..PacketHeader::new(Kind::Accept, 0, 3, 4) };
        guard.seal(head, &[], &rest, &mut TestRandom::new(7), &mut packet);
        if let Some((_, SetupReply::Accept(offer, private))) = decode_reply(guard, &packet, &mut Vec::new()) {
            prop_assert!(private.len() <= MAX_PRIVATE && offer.conn != 0 && offer.token != 0 && offer.mtu.get() >= MIN_MTU);
        }
        let _ = (withdrawal(guard, &packet), is_unknown(guard, &packet), offer(&rest), requester(&rest));
    }
}
