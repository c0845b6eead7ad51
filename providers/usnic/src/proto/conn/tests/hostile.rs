//! Tests packets of a malicious peer that knows the connection number and the token.

use dapl::provider::{ConnectionEvent, Status};
use zerocopy::IntoBytes;

use super::host::{BASE, KEY};
use super::network::TestRandom;
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::MILLIS;
use crate::proto::conn::ConnConfig;
use crate::proto::wire::{
    AckFields, DataFields, Extent, Kind, Message, Op, PacketHeader, PayloadOffset, SackFields, SackRange,
};

/// A packet to A. Its header has the connection number and the token that A has chosen.
struct InvalidPacket {
    kind: Kind,
    psn: u32,
    ack: AckFields,
    op: Op,
    id: u32,
    length: u32,
    key: u32,
    address: u64,
    offset: Option<u32>,
    /// Only for a piece: the byte range of the message that the whole packet contains.
    extent: Option<(u32, u32)>,
    payload: usize,
}

impl InvalidPacket {
    /// Creates a valid packet with the next PSN, a send of one byte. Tests change its fields.
    fn new(pair: &ConnPair) -> InvalidPacket {
        let next = pair.a.conn.received.next().0;
        let next_ack = pair.a.conn.flight.next_psn().0.into();
        let ack = AckFields { credits: 0.into(), ..pair.a.conn.credits.with_next(next_ack) };
        let (kind, op) = (Kind::Fragment, Op::Send);
        InvalidPacket {
            kind,
            psn: next,
            ack,
            op,
            id: 0,
            length: 1,
            key: KEY,
            address: BASE,
            offset: None,
            extent: None,
            payload: 1,
        }
    }

    fn deliver(&self, pair: &mut ConnPair) {
        let carried = DataFields { psn: self.psn.into(), ack: self.ack };
        let message = Message {
            op: self.op as u8,
            id: self.id.into(),
            length: self.length.into(),
            key: self.key.into(),
            address: self.address.into(),
            ..Message::default()
        };
        let mut body = [carried.as_bytes(), message.as_bytes()].concat();
        body.resize(body.len() + self.op.extension(), 0x11);
        let offset = self.offset.map(PayloadOffset::new);
        body.extend(offset.iter().flat_map(|offset| offset.as_bytes()));
        if let Some((start, end)) = self.extent {
            body.extend_from_slice(Extent { start: start.into(), end: end.into() }.as_bytes());
        }
        body.resize(body.len() + self.payload, 0xEE);
        deliver(pair, self.kind, 0, &body);
    }
}

fn deliver(pair: &mut ConnPair, kind: Kind, flags: u16, body: &[u8]) {
    let head = PacketHeader::new(kind, flags, 0xA0, 0xAAAA_BBBB);
    let bytes = [head.as_bytes(), body].concat();
    pair.deliver(&super::pair::Datagram { to: Endpoint::A, bytes });
}

/// Passes an ack packet to A.
fn ack(pair: &mut ConnPair, next: u32, ranges: &[(u32, u32)], refusal: u8, refused: u32) {
    let ack = AckFields { credits: 0.into(), ..pair.a.conn.credits.with_next(next.into()) };
    let selective =
        SackFields { ranges: ranges.len() as u8, refusal, refused: refused.into(), ..SackFields::default() };
    let ranges: Vec<SackRange> =
        ranges.iter().map(|(first, end)| SackRange { first: (*first).into(), end: (*end).into() }).collect();
    deliver(pair, Kind::Ack, 0, &[ack.as_bytes(), selective.as_bytes(), ranges.as_bytes()].concat());
}

fn pair() -> ConnPair {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.b.drops_all = true;
    pair
}

/// Checks that A has refused a packet as invalid: the connection has ended, and the memory is unchanged.
fn assert_refused(what: &str, mut pair: ConnPair, before: &[u8]) {
    assert_eq!(pair.a.events, [ConnectionEvent::Broken], "{what}: the connection must break");
    assert_eq!(pair.a.conn.counters().refusals_sent, 1, "{what}: one refusal is sent");
    assert!(pair.a.host.memory == before, "{what}: no memory is written");
    assert!(pair.a.host.recvs.iter().all(|done| done.status == Status::Flushed));
    pair.until("it is freed", |pair| pair.a.conn.can_be_freed());
}

#[test]
fn packet_that_contradicts_its_message_ends_the_connection() {
    for (length, op) in [(3000, Op::Send), (2000, Op::SendSolicited)] {
        let mut pair = pair();
        pair.recv(Endpoint::A, 0, 4000);
        let before = pair.a.host.memory.clone();
        let chunk = |pair: &ConnPair, offset| InvalidPacket {
            kind: Kind::Chunk,
            length: 2000,
            offset: Some(offset),
            payload: 0,
            ..InvalidPacket::new(pair)
        };
        InvalidPacket { payload: 0, ..chunk(&pair, 0) }.deliver(&mut pair);
        assert_eq!(pair.a.conn.counters().malformed, 1, "a chunk of an empty message is malformed");
        InvalidPacket { payload: 1000, ..chunk(&pair, 0) }.deliver(&mut pair);
        let half = pair.a.host.memory.clone();
        assert!(half != before);
        InvalidPacket { payload: 1000, length, op, ..chunk(&pair, 1000) }.deliver(&mut pair);
        assert_refused("another length or kind", pair, &half);
    }
}

/// Creates a piece of a packet of 1000 bytes, in a message of 2000 bytes.
fn piece(pair: &ConnPair, offset: u32) -> InvalidPacket {
    let (offset, extent) = (Some(offset), Some((500, 1500)));
    InvalidPacket { kind: Kind::Piece, length: 2000, offset, extent, payload: 100, ..InvalidPacket::new(pair) }
}

#[test]
fn inconsistent_pieces_end_the_connection() {
    for invalid in [
        |pair: &ConnPair| InvalidPacket { extent: Some((500, 1501)), ..piece(pair, 900) },
        |pair: &ConnPair| InvalidPacket { id: 1, ..piece(pair, 900) },
        |pair: &ConnPair| InvalidPacket { op: Op::Write, ..piece(pair, 900) },
    ] {
        let mut pair = pair();
        (0..2).for_each(|at| _ = pair.recv(Endpoint::A, at * 4000, 4000));
        piece(&pair, 500).deliver(&mut pair);
        let before = pair.a.host.memory.clone();
        invalid(&pair).deliver(&mut pair);
        assert_refused("another packet or message", pair, &before);
    }
}

#[test]
fn incomplete_packet_is_not_acked() {
    let mut pair = pair();
    pair.recv(Endpoint::A, 0, 4000);
    let next = pair.a.conn.received.next();
    for offset in [500, 600, 700, 700, 800, 1400, 1300, 1200, 1100, 1000] {
        piece(&pair, offset).deliver(&mut pair);
        assert_eq!(
            pair.a.conn.received.next(),
            next,
            "the packet is not accepted while its bytes 900 to 1000 are missing"
        );
    }
    piece(&pair, 900).deliver(&mut pair);
    assert_eq!(pair.a.conn.received.next(), next.next());
    assert_eq!((pair.a.conn.counters().received, pair.a.conn.counters().received_bytes), (1, 1000));
}

#[test]
fn number_of_incomplete_packets_is_limited() {
    const MOST: u32 = 64;
    let mut pair = pair();
    pair.recv(Endpoint::A, 0, 4000);
    let untouched = pair.a.host.memory[..500].to_vec();
    let next = pair.a.conn.received.next();
    let invalid = |pair: &ConnPair, at: u32| InvalidPacket { psn: next.plus(1 + at).0, ..piece(pair, 500) };
    (0..MOST).for_each(|at| invalid(&pair, at).deliver(&mut pair));
    let full = InvalidPacket { offset: Some(0), extent: Some((0, 500)), ..invalid(&pair, MOST) };
    full.deliver(&mut pair);
    assert!(pair.a.host.memory[..500] == untouched, "a piece that cannot be recorded is not placed");
    assert_eq!((pair.a.conn.counters().no_receive, pair.a.events.len()), (1, 0));
}

#[test]
fn packet_with_bytes_beyond_its_message_is_dropped() {
    let mut pair = pair();
    pair.recv(Endpoint::A, 0, 4000);
    let before = pair.a.host.memory.clone();
    let invalid = |pair: &ConnPair| InvalidPacket {
        kind: Kind::Chunk,
        length: 2000,
        offset: Some(1500),
        payload: 501,
        ..InvalidPacket::new(pair)
    };
    invalid(&pair).deliver(&mut pair);
    InvalidPacket { offset: Some(u32::MAX), ..invalid(&pair) }.deliver(&mut pair);
    InvalidPacket { kind: Kind::Fragment, offset: None, payload: 2001, ..invalid(&pair) }.deliver(&mut pair);
    assert_eq!(pair.a.conn.counters().malformed, 3);
    assert!(pair.a.host.memory == before && pair.a.events.is_empty());
    // The message is longer than its receive of 4000 bytes.
    InvalidPacket { length: 4001, payload: 500, ..invalid(&pair) }.deliver(&mut pair);
    assert_eq!(pair.a.host.recvs[0].status, Status::LocalLength);
    assert!(pair.a.host.memory == before);
}

#[test]
fn unsolicited_responses_end_the_connection() {
    let answer = |pair: &ConnPair| InvalidPacket { op: Op::ReadResponse, ..InvalidPacket::new(pair) };
    // A response without an outstanding read.
    let mut none = pair();
    answer(&none).deliver(&mut none);
    assert_eq!(none.a.events, [ConnectionEvent::Disconnected]);
    // A response with a wrong number, or with a wrong length.
    for (id, length) in [(1, 100), (0, 101), (0, 99)] {
        let mut pair = pair();
        let before = pair.a.host.memory.clone();
        pair.read(Endpoint::A, 0, 100, 0);
        pair.send(Endpoint::A, 0, 100);
        pair.pump(Endpoint::A, 10);
        InvalidPacket { id, length, payload: length as usize, ..answer(&pair) }.deliver(&mut pair);
        assert_eq!(pair.a.events, [ConnectionEvent::Broken]);
        let ends: Vec<_> = pair.a.host.requests.iter().map(|done| done.status).collect();
        assert_eq!(ends, [Status::BadResponse, Status::Flushed]);
        assert!(pair.a.host.memory == before);
    }
    // A valid response completes the read, so a second response matches no read.
    let mut pair = pair();
    pair.read(Endpoint::A, 0, 100, 0);
    pair.pump(Endpoint::A, 10);
    let right = InvalidPacket { length: 100, payload: 100, ..answer(&pair) };
    right.deliver(&mut pair);
    right.deliver(&mut pair);
    assert_eq!((pair.a.host.requests.len(), pair.a.conn.counters().duplicates), (1, 1));
    pair.a.host.memory[..100].fill(7);
    InvalidPacket { psn: right.psn.wrapping_add(1), ..right }.deliver(&mut pair);
    assert!(pair.a.host.memory[..100] == [7; 100] && pair.a.events == [ConnectionEvent::Disconnected]);
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut pair = pair();
    let read = |pair: &ConnPair, id| InvalidPacket {
        op: Op::ReadRequest,
        id,
        length: 10,
        payload: 0,
        ..InvalidPacket::new(pair)
    };
    for id in 0..4 {
        read(&pair, id).deliver(&mut pair);
    }
    assert!(pair.a.events.is_empty());
    read(&pair, 4).deliver(&mut pair);
    assert!(pair.a.events.is_empty(), "the earlier reads are answered before the excess read ends the connection");
    let before = pair.a.host.memory.clone();
    pair.pump(Endpoint::A, 100);
    read(&pair, 9).deliver(&mut pair);
    let next = pair.a.conn.flight.next_psn().0;
    ack(&mut pair, next, &[], 0, 0);
    read(&pair, 9).deliver(&mut pair);
    assert_refused("a number far ahead", pair, &before);
}

#[test]
fn reused_read_number_is_refused() {
    let mut pair = pair();
    let read =
        |pair: &ConnPair| InvalidPacket { op: Op::ReadRequest, length: 10, payload: 0, ..InvalidPacket::new(pair) };
    read(&pair).deliver(&mut pair);
    pair.pump(Endpoint::A, 100);
    let next = pair.a.conn.flight.next_psn().0;
    ack(&mut pair, next, &[], 0, 0);
    let before = pair.a.host.memory.clone();
    read(&pair).deliver(&mut pair);
    assert_refused("a number that was used", pair, &before);
}

#[test]
fn sends_beyond_the_posted_receives_are_dropped() {
    for shared in [false, true] {
        let config = ConnConfig { shared, ..PairConfig::default().config };
        let mut pair = ConnPair::new(&PairConfig { config, ..PairConfig::default() });
        for _ in 0..100 {
            if shared {
                pair.share(Endpoint::A, 0, 100)
            } else {
                pair.recv(Endpoint::A, 0, 100)
            };
        }
        let before = pair.a.host.memory.clone();
        for id in [100, 5000, 1 << 31, (1 << 31) - 1, 200] {
            InvalidPacket { id, ..InvalidPacket::new(&pair) }.deliver(&mut pair);
        }
        assert_eq!(pair.a.conn.counters().received, 1, "only an old number is accepted");
        assert!(pair.a.host.memory == before && pair.a.host.recvs.is_empty());
        assert!(!shared || pair.a.host.shared.len() == 100, "a dropped send takes no receive from the shared queue");
    }
}

#[test]
fn acks_of_unsent_packets_are_ignored() {
    let mut pair = pair();
    pair.write(Endpoint::A, 0, 5000, 0);
    pair.pump(Endpoint::A, 100);
    let (first, next) = (pair.a.conn.flight.cumulative().0, pair.a.conn.flight.next_psn().0);
    assert!(next.wrapping_sub(first) >= 4);
    ack(&mut pair, next + 1, &[], 0, 0);
    ack(&mut pair, next.wrapping_add(1 << 31), &[], 0, 0);
    ack(&mut pair, first, &[(next, next + 1)], 0, 0);
    ack(&mut pair, first, &[(first + 2, first + 1)], 0, 0);
    ack(&mut pair, first, &[(first + 1, next.wrapping_add(1 << 30))], 0, 0);
    assert_eq!((pair.a.conn.counters().acks_of_unsent, pair.a.conn.flight.cumulative().0), (5, first));
    assert!(pair.a.host.requests.is_empty() && pair.a.events.is_empty());
    ack(&mut pair, next, &[], 0, 0);
    assert_eq!(pair.a.host.requests.len(), 1);
}

#[test]
fn sends_follow_the_credit_limit_of_the_last_ack() {
    let mut pair = pair();
    for credits in [5, 2, 0, u32::MAX, 1 << 31, 3] {
        InvalidPacket {
            ack: AckFields { credits: credits.into(), ..InvalidPacket::new(&pair).ack },
            op: Op::Write,
            ..InvalidPacket::new(&pair)
        }
        .deliver(&mut pair);
    }
    (0..6).for_each(|_| {
        pair.send(Endpoint::A, 0, 10);
    });
    pair.pump(Endpoint::A, 100);
    assert_eq!(pair.a.conn.commands, 3);
    // An ack with a lower credit limit withdraws sends in flight. They are sent again after credits were advertised.
    InvalidPacket {
        ack: AckFields { credits: 1.into(), next: 7.into(), ..InvalidPacket::new(&pair).ack },
        op: Op::Write,
        ..InvalidPacket::new(&pair)
    }
    .deliver(&mut pair);
    pair.b.drops_all = false;
    (0..6).for_each(|_| {
        pair.recv(Endpoint::B, 100, 10);
    });
    pair.until("all arrive", |pair| pair.a.host.requests.len() == 6 && pair.b.host.recvs.len() == 6);
}

#[test]
fn refusal_of_an_unknown_packet_fails_the_oldest_request() {
    for refused in [0, 6, 7, 1 << 31] {
        let mut pair = pair();
        for _ in 0..2 {
            pair.write(Endpoint::A, 0, 50, 0);
        }
        pair.pump(Endpoint::A, 10);
        ack(&mut pair, 7, &[], 1, refused);
        let ends: Vec<_> = pair.a.host.requests.iter().map(|done| done.status).collect();
        assert_eq!((ends, pair.a.events.len()), (vec![Status::RemoteAccess, Status::Flushed], 1));
    }
    let mut pair = pair();
    ack(&mut pair, 7, &[], 200, 0);
    assert!(pair.a.events.is_empty(), "an unknown refusal code is ignored");
}

#[test]
fn psns_outside_the_window_are_dropped() {
    let mut pair = pair();
    let next = InvalidPacket::new(&pair).psn;
    for ahead in [4096, 10_000, 1 << 31, u32::MAX / 2] {
        InvalidPacket { psn: next.wrapping_add(ahead), op: Op::Write, ..InvalidPacket::new(&pair) }.deliver(&mut pair);
    }
    assert_eq!((pair.a.conn.counters().beyond_window, pair.a.conn.received.next().0), (4, next));
    InvalidPacket { psn: next.wrapping_add(4095), op: Op::Write, ..InvalidPacket::new(&pair) }.deliver(&mut pair);
    assert_eq!(pair.a.conn.counters().received, 1);
}

#[test]
fn random_packets_cause_no_panic_and_each_post_completes_once() {
    for seed in 0..300 {
        let mut pair = ConnPair::new(&PairConfig { seed, ..PairConfig::default() });
        let mut dice = TestRandom(seed);
        (0..4).for_each(|at| {
            pair.recv(Endpoint::A, at * 3000, 3000);
        });
        pair.read(Endpoint::A, 20_000, 5000, 0);
        pair.write(Endpoint::A, 0, 5000, 0);
        pair.pass(MILLIS);
        for _ in 0..60 {
            let mut small = |end: u64| if dice.below(4) == 0 { dice.next() } else { dice.below(end) };
            let kinds =
                [Kind::Fragment, Kind::Chunk, Kind::Piece, Kind::Ack, Kind::Probe, Kind::ProbeAck, Kind::Challenge];
            let ops = [Op::Send, Op::SendSolicited, Op::Write, Op::ReadRequest, Op::ReadResponse];
            let template = InvalidPacket::new(&pair);
            let (kind, op) = (kinds[small(7) as usize % 7], ops[small(5) as usize % 5]);
            let ack = AckFields {
                next: template.ack.next.get().wrapping_sub(small(5) as u32).into(),
                credits: (small(9) as u32).into(),
                delay: (small(9) as u16).into(),
                serial: template.ack.serial.get().wrapping_add(small(300) as u16).into(),
            };
            let (length, psn) = (small(6000) as u32, template.psn.wrapping_add(small(5) as u32));
            let payload = if small(2) == 0 { length as usize % 6000 } else { small(1200) as usize % 1200 };
            let invalid = InvalidPacket {
                kind,
                psn,
                ack,
                op,
                id: small(4) as u32,
                length,
                key: if small(4) == 0 { 9 } else { KEY },
                address: BASE + small(70_000),
                offset: matches!(kind, Kind::Chunk | Kind::Piece).then(|| small(6000) as u32),
                extent: (kind == Kind::Piece).then(|| (small(3000) as u32, small(6000) as u32)),
                payload,
            };
            invalid.deliver(&mut pair);
            (0..small(3) % 3).for_each(|_| {
                pair.step();
            });
        }
        pair.pass(100 * MILLIS);
        let now = pair.now;
        let end = &mut pair.a;
        end.conn.abort(now, &mut end.host);
        assert_eq!((end.host.requests.len(), end.host.recvs.len()), (2, 4), "each request and receive completes once");
    }
}

#[test]
fn malformed_extension_packets_execute_and_write_nothing() {
    type Forge = fn(&mut InvalidPacket);
    let cases: [(&str, Forge); 7] = [
        ("an operand of four bytes", |packet| packet.length = 4),
        ("a misaligned operand", |packet| packet.address = BASE + 4),
        ("an operand outside", |packet| packet.address = BASE + (1 << 30)),
        ("an unknown key", |packet| packet.key = KEY + 77),
        ("an operation out of its turn", |packet| packet.id = 3),
        ("an answer that was not asked for", |packet| packet.op = Op::AtomicResponse),
        ("an invalidation of no window", |packet| {
            (packet.op, packet.length, packet.payload, packet.key) = (Op::SendInvalidate, 1, 1, 0xBAD);
        }),
    ];
    for (what, change) in cases {
        let mut pair = pair();
        pair.recv(Endpoint::A, 0, 100);
        let before = pair.a.host.memory.clone();
        let mut packet = InvalidPacket { op: Op::FetchAdd, length: 8, payload: 0, ..InvalidPacket::new(&pair) };
        change(&mut packet);
        packet.deliver(&mut pair);
        assert_eq!((pair.a.host.executed, pair.a.host.invalidated.len()), (0, 0), "{what}: no operation is executed");
        assert!(pair.a.host.memory == before, "{what}: no memory is written");
        assert!(pair.a.host.recvs.iter().all(|done| done.status != Status::Success), "{what}: no receive succeeds");
        if pair.a.events.is_empty() {
            // An operation with a higher number waits for the operations before it. The check also permits that a
            // response without a request is dropped.
            assert!(packet.op == Op::AtomicResponse || packet.id == 3, "{what}: the packet must end the connection");
            continue;
        }
        // The event is `Disconnected` after an invalid access of the peer, and `Broken` after a violation of the
        // protocol.
        assert!(
            matches!(pair.a.events[..], [ConnectionEvent::Broken | ConnectionEvent::Disconnected]),
            "{what}: wrong event"
        );
        pair.until("it is freed", |pair| pair.a.conn.can_be_freed());
    }
}

#[test]
fn atomic_request_with_a_used_number_and_another_address_is_not_executed() {
    let mut pair = pair();
    let first = InvalidPacket { op: Op::FetchAdd, length: 8, payload: 0, ..InvalidPacket::new(&pair) };
    first.deliver(&mut pair);
    pair.pass(MILLIS);
    assert_eq!(pair.a.host.executed, 1);
    let after = pair.a.host.memory.clone();
    // A duplicate of the packet, and a new packet with the same operation number and another address.
    first.deliver(&mut pair);
    InvalidPacket { psn: first.psn + 1, address: BASE + 64, ..first }.deliver(&mut pair);
    pair.pass(MILLIS);
    assert_eq!(pair.a.host.executed, 1);
    assert!(pair.a.host.memory == after);
}
