//! Tests when a request starts (fences, outstanding reads, binds, credits), and the channel and the order of its
//! packets. Also tests changes of the peer's address and of the path MTU.

use dapl::provider::{ConnectionEvent, Remote, Status};

use super::host::{BASE, KEY};
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::conn::ControlPacket;
use crate::proto::conn::{ConnConfig, Operation, OutgoingPacket, Payload};
use crate::proto::wire::{self, Kind};
use crate::proto::{MICROS, MILLIS, SECONDS};

fn read(from: usize) -> Operation {
    Operation::Read(Remote { key: KEY, address: BASE + from as u64 })
}

/// The channel of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PacketChannel {
    Command,
    Data,
}

/// Sends the packets that A may send now, and returns its data packets.
fn leaving(pair: &mut ConnPair) -> Vec<(Kind, PacketChannel, u32)> {
    pair.log = Some(Vec::new());
    pair.pump(Endpoint::A, 1000);
    let log = pair.log.take().unwrap_or_default();
    let kind = |bytes: &[u8]| {
        wire::head(bytes).and_then(|(head, _)| head.kind()).expect("the packet has a complete header and a known kind")
    };
    let channel = |out: &OutgoingPacket| if out.command { PacketChannel::Command } else { PacketChannel::Data };
    let of = |payload| match payload {
        Payload::Request { length, .. } | Payload::Remote { length, .. } => length,
        Payload::None | Payload::Padding(_) => 0,
    };
    let all = log.iter().map(|(_, out, datagram)| (kind(&datagram.bytes), channel(out), of(out.payload)));
    all.filter(|(kind, ..)| matches!(kind, Kind::Fragment | Kind::Chunk)).collect()
}

#[test]
fn fenced_request_waits_for_earlier_reads() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.recv(Endpoint::B, 0, 100);
    pair.until("credits", |pair| {
        let traced = leaving(pair);
        assert!(traced.is_empty());
        pair.now > 100 * MICROS
    });
    pair.read(Endpoint::A, 1000, 5000, 0);
    pair.post(Endpoint::A, Operation::Send { solicited: true }, 0, 10, true);
    assert_eq!(leaving(&mut pair).len(), 1, "only the read is sent, because the fenced send waits for it");
    pair.until("all", |pair| pair.a.host.requests.len() == 2 && pair.b.host.recvs.len() == 1);
    assert!(pair.b.host.recvs[0].value.solicited);
    pair.read(Endpoint::A, 1000, 5000, 0);
    pair.write(Endpoint::A, 0, 10, 0);
    assert_eq!(leaving(&mut pair).len(), 2, "without a fence, both requests are sent");
}

#[test]
fn reads_beyond_the_agreed_number_wait() {
    let mut pair = ConnPair::new(&PairConfig { reads: 2, ..PairConfig::default() });
    pair.pass(MILLIS);
    (0..6).for_each(|at| {
        pair.post(Endpoint::A, read(at * 4000), 30_000 + at * 4000, 4000, false);
    });
    assert_eq!(leaving(&mut pair).len(), 2);
    pair.until("all", |pair| pair.a.host.requests.len() == 6);
    assert!(pair.a.host.memory[30_000..54_000] == pair.b.host.memory[..24_000]);
}

#[test]
fn read_fails_in_order_if_the_peer_accepts_no_reads() {
    let mut pair = ConnPair::new(&PairConfig { reads: 0, ..PairConfig::default() });
    let write = pair.write(Endpoint::A, 0, 3000, 0);
    let read = pair.post(Endpoint::A, read(0), 0, 10, false);
    let late = pair.write(Endpoint::A, 0, 10, 0);
    pair.until("the end", |pair| !pair.a.events.is_empty() && !pair.b.events.is_empty());
    let ends: Vec<_> = pair.a.host.requests.iter().map(|done| (done.id, done.status)).collect();
    let (success, flushed) = (Status::Success, Status::Flushed);
    assert_eq!(ends, [(write, success), (read, Status::RemoteResponder), (late, flushed)]);
    assert_eq!(
        (&pair.a.events[..], &pair.b.events[..]),
        (&[ConnectionEvent::Broken][..], &[ConnectionEvent::Disconnected][..])
    );
}

#[test]
fn requests_wait_for_an_earlier_bind() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.a.host.put_off = 3;
    let first = pair.write(Endpoint::A, 0, 10, 0);
    let bind = pair.post(Endpoint::A, None, 0, 0, false);
    let last = pair.write(Endpoint::A, 0, 10, 0);
    assert_eq!(leaving(&mut pair).len(), 1);
    assert_eq!(pair.a.host.bind_calls, 1);
    pair.until("all", |pair| pair.a.host.requests.len() == 3);
    assert_eq!(pair.a.host.requests.iter().map(|done| done.id).collect::<Vec<_>>(), [first, bind, last]);
    assert_eq!(pair.a.host.bind_calls, 4);
    // A bind with a fence is executed after the reads.
    pair.read(Endpoint::A, 100, 5000, 0);
    pair.post(Endpoint::A, None, 0, 0, true);
    assert_eq!((leaving(&mut pair).len(), pair.a.host.bind_calls), (1, 4));
    pair.until("all", |pair| pair.a.host.requests.len() == 5);
    pair.a.host.bind_status = Some(Status::BindFailed);
    pair.post(Endpoint::A, None, 0, 0, false);
    pair.until("the end", |pair| !pair.a.events.is_empty());
    assert_eq!(pair.a.host.requests.last().map(|done| done.status), Some(Status::BindFailed));
}

#[test]
fn send_waits_for_a_credit_and_sends_rnr_probes() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.send(Endpoint::A, 0, 10);
    pair.write(Endpoint::A, 0, 10, 0);
    assert!(leaving(&mut pair).is_empty(), "a request after a waiting send is not sent");
    pair.pass(1000 * MILLIS);
    let asked = pair.a.conn.counters().credit_probes;
    assert!(
        (10..30).contains(&asked),
        "{asked} RNR probes were sent in a second, instead of 10 to 29 with growing intervals"
    );
    assert!(pair.a.host.requests.is_empty() && pair.a.events.is_empty());
    // The ack that advertises the receive is lost. The next RNR probe of A causes another ack.
    pair.b.drops_all = true;
    pair.recv(Endpoint::B, 500, 10);
    pair.pump(Endpoint::B, 100);
    pair.b.drops_all = false;
    pair.until("both", |pair| pair.a.host.requests.len() == 2);
    assert_eq!(pair.b.host.recvs.len(), 1);
}

/// Another connection has used the receive for which A had a credit. A further receive is posted before or after A gets
/// the ack which reports that its send was not accepted.
#[test]
fn send_without_shared_receive_is_withdrawn_without_timeout() {
    for is_there_again in [true, false] {
        let config = ConnConfig { shared: true, ..PairConfig::default().config };
        let mut pair = ConnPair::new(&PairConfig { config, ..PairConfig::default() });
        pair.share(Endpoint::B, 0, 10);
        pair.write(Endpoint::A, 0, 10, 0);
        pair.until("the round trip is known", |pair| pair.a.host.requests.len() == 1);
        pair.pass(MILLIS);
        pair.b.host.shared.clear();
        pair.send(Endpoint::A, 0, 10);
        pair.until("the send is not accepted", |pair| pair.b.conn.counters().no_receive == 1);
        if !is_there_again {
            pair.until("A gets the refusal", |pair| pair.a.conn.counters().withdrawn_sends == 1);
        }
        let start = pair.now;
        pair.share(Endpoint::B, 0, 10);
        pair.until("it is here", |pair| !pair.b.host.recvs.is_empty());
        let counters = pair.a.conn.counters();
        assert_eq!((counters.timeouts, counters.withdrawn_sends), (0, u64::from(!is_there_again)));
        assert_eq!((counters.resent_probe, pair.b.conn.counters().no_receive), (1, 1));
        assert_eq!(pair.now - start, 2 * pair.network.latency);
    }
}

/// The peer accepts the second transmission of a withdrawn send, but refuses it because it is longer than the receive.
/// The packets of a later write were sent before and after this transmission.
#[test]
fn refusal_of_a_withdrawn_send_fails_this_send() {
    let config = ConnConfig { shared: true, ..PairConfig::default().config };
    let mut pair = ConnPair::new(&PairConfig { config, memory: 1 << 20, ..PairConfig::default() });
    pair.share(Endpoint::B, 0, 10);
    pair.write(Endpoint::A, 0, 10, 0);
    pair.until("the round trip is known", |pair| pair.a.host.requests.len() == 1);
    pair.pass(MILLIS);
    pair.b.host.shared.clear();
    let send = pair.send(Endpoint::A, 0, 10);
    let write = pair.write(Endpoint::A, 0, 500_000, 0);
    pair.until("the send is withdrawn", |pair| pair.a.conn.counters().withdrawn_sends == 1);
    pair.share(Endpoint::B, 0, 5);
    pair.until("the end", |pair| !pair.a.events.is_empty());
    let ends: Vec<_> = pair.a.host.requests[1..].iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(ends, [(send, Status::RemoteResponder), (write, Status::Flushed)]);
}

/// An ack that arrives late must not decrease the credit limit that a newer ack has advertised.
#[test]
fn credit_limit_of_a_late_old_ack_withdraws_no_send() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.log = Some(Vec::new());
    pair.b.drops_all = true;
    pair.write(Endpoint::B, 0, 10, 0);
    pair.pump(Endpoint::B, 100);
    let (_, _, without_receive) =
        pair.log.take().unwrap_or_default().pop().expect("the packet of the write was logged");
    pair.b.drops_all = false;
    pair.recv(Endpoint::B, 500, 10);
    let send = pair.send(Endpoint::A, 0, 10);
    pair.until("the send arrives", |pair| !pair.b.host.recvs.is_empty());
    pair.b.drops_all = true;
    pair.deliver(&without_receive);
    pair.pass(1000 * MILLIS);
    pair.b.drops_all = false;
    let now = pair.now;
    pair.b.conn.drain(now);
    pair.until("the end", |pair| !pair.a.events.is_empty());
    let sends: Vec<_> = pair.a.host.requests.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!((&sends[..], pair.a.conn.counters().withdrawn_sends), (&[(send, Status::Success)][..], 0));
}

#[test]
fn rnr_probes_are_limited() {
    let config = ConnConfig { rnr_limit: Some(3), ..PairConfig::default().config };
    let mut pair = ConnPair::new(&PairConfig { config, ..PairConfig::default() });
    let send = pair.send(Endpoint::A, 0, 10);
    let next = pair.send(Endpoint::A, 0, 10);
    pair.until("the end", |pair| !pair.a.events.is_empty() && !pair.b.events.is_empty());
    let ends: Vec<_> = pair.a.host.requests.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(ends, [(send, Status::ReceiverNotReady), (next, Status::Flushed)]);
}

#[test]
fn send_without_a_receive_is_reported_after_ten_seconds_once() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.send(Endpoint::A, 0, 10);
    pair.pass(9_000 * MILLIS);
    assert_eq!(pair.a.host.overdue, []);
    pair.pass(20_000 * MILLIS);
    assert_eq!(pair.a.host.overdue.len(), 1);
    assert!(
        (10_000 * MILLIS..11_000 * MILLIS).contains(&pair.a.host.overdue[0]),
        "the send must be overdue after 10 to 11 s: {:?}",
        pair.a.host.overdue
    );
    pair.recv(Endpoint::B, 0, 10);
    pair.until("the send is complete", |pair| pair.a.host.requests.len() == 1);
    assert_eq!(pair.b.host.overdue, []);
}

#[test]
fn new_receive_is_advertised_at_once_and_ping_pong_needs_no_ack_packets() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.send(Endpoint::A, 0, 10);
    pair.pump(Endpoint::A, 10);
    pair.recv(Endpoint::B, 0, 10);
    let start = pair.now;
    pair.until("it is here", |pair| !pair.b.host.recvs.is_empty());
    assert_eq!(pair.now - start, 2 * pair.network.latency);
    // A request and its response need only two packets.
    for _ in 0..20 {
        pair.recv(Endpoint::A, 0, 10);
        pair.recv(Endpoint::B, 0, 10);
    }
    pair.pass(MILLIS);
    let before = pair.b.conn.counters().acks_sent;
    for turn in 2..12 {
        pair.send(Endpoint::A, 0, 10);
        pair.until("the ping", |pair| pair.b.host.recvs.len() == turn);
        pair.recv(Endpoint::B, 0, 10);
        pair.send(Endpoint::B, 0, 10);
        pair.until("the pong", |pair| pair.a.host.recvs.len() == turn - 1);
        pair.recv(Endpoint::A, 0, 10);
    }
    assert_eq!(pair.b.conn.counters().acks_sent, before);
    assert!(pair.a.conn.counters().fast > 5 && pair.b.conn.counters().fast > 5);
}

#[test]
fn small_requests_use_the_command_channel_up_to_its_depth() {
    let config = ConnConfig { command_depth: 3, ..PairConfig::default().config };
    let mut pair = ConnPair::new(&PairConfig { config, memory: 1 << 20, ..PairConfig::default() });
    pair.pass(MILLIS);
    for length in [768, 769, 0, 1, 2, 3] {
        pair.write(Endpoint::A, 0, length, 0);
    }
    use PacketChannel::{Command, Data};
    let all = [(768, Command), (769, Data), (0, Command), (1, Command), (2, Data), (3, Data)];
    let expected: Vec<_> = all.iter().map(|(length, channel)| (Kind::Fragment, *channel, *length)).collect();
    assert_eq!(leaving(&mut pair), expected, "requests beyond the depth of the command channel use the data channel");
    pair.pass(MILLIS);
    // All requests complete while the peer reads much data.
    pair.post(Endpoint::B, read(0), 0, 200_000, false);
    pair.pump(Endpoint::B, 1);
    pair.until("answers leave", |pair| pair.a.conn.counters().in_flight > 3000);
    pair.write(Endpoint::A, 0, 100_000, 0);
    pair.write(Endpoint::A, 0, 7, 0);
    pair.until("all", |pair| pair.a.host.requests.len() == 8 && pair.b.host.requests.len() == 1);
}

#[test]
fn large_message_is_segmented_and_numbered_when_sent() {
    let mut pair = ConnPair::new(&PairConfig { mtu: 9000, memory: 1 << 20, ..PairConfig::default() });
    let large = 400_000;
    pair.write(Endpoint::A, 0, large, 500_000);
    pair.write(Endpoint::A, 0, 10, 0);
    assert_eq!(pair.a.conn.requests.numbers.writes, 0);
    let first = leaving(&mut pair);
    assert!(
        first.iter().all(|(kind, ..)| *kind == Kind::Chunk) && !first.is_empty(),
        "a large message is sent in chunks: {first:?}"
    );
    assert!(first.iter().map(|(.., length)| *length as usize).sum::<usize>() < large);
    assert_eq!(pair.a.conn.requests.numbers.writes, 1, "a write that was not sent has no number");
    let mut longest = 0;
    pair.until("all", |pair| {
        let length = leaving(pair).iter().map(|(.., length)| *length).max();
        longest = longest.max(length.unwrap_or(0));
        pair.a.host.requests.len() == 2
    });
    assert!(longest > first[0].2, "later packets must use the larger MTU, but the longest has {longest} bytes");
    assert_eq!(pair.a.conn.requests.numbers.writes, 2);
}

#[test]
fn writes_are_placed_before_a_later_send_completes() {
    for seed in 0..40 {
        let mut pair = ConnPair::new(&PairConfig { seed, ..PairConfig::default() });
        pair.network = super::network::NetworkConditions { drop: 100, late: 300, ..Default::default() };
        (0..30).for_each(|_| {
            pair.recv(Endpoint::B, 50_000, 4);
        });
        for turn in 0..30u8 {
            pair.a.host.memory[usize::from(turn)] = turn + 1;
            pair.write(Endpoint::A, usize::from(turn), 1, 40_000 + usize::from(turn));
            pair.send(Endpoint::A, 0, 4);
        }
        let mut seen = 0;
        pair.until("all", |pair| {
            let here = pair.b.host.recvs.len();
            for turn in seen..here {
                assert_eq!(pair.b.host.memory[40_000 + turn], turn as u8 + 1);
            }
            seen = here;
            here == 30
        });
    }
}

#[test]
fn new_peer_address_is_challenged_and_then_used() {
    let mut pair = ConnPair::new(&PairConfig::default());
    (0..3).for_each(|_| {
        pair.recv(Endpoint::A, 0, 100);
    });
    pair.pass(MILLIS);
    let (old, new) = (pair.a.address, ([127, 0, 0, 9], 9).into());
    pair.a.address = new;
    pair.write(Endpoint::A, 0, 10, 0);
    pair.until("it is done", |pair| pair.a.host.requests.len() == 1);
    assert_eq!((pair.b.conn.peer(), pair.b.conn.counters().challenges), (new, 1));
    pair.send(Endpoint::B, 0, 10);
    pair.until("it gets there", |pair| pair.a.host.recvs.len() == 1);
    // A copy of a packet arrives from another address, which sends no response. The connection only challenges this
    // address.
    pair.log = Some(Vec::new());
    pair.write(Endpoint::A, 0, 10, 0);
    pair.until("it is done", |pair| pair.a.host.requests.len() == 2);
    let copy = pair
        .log
        .take()
        .and_then(|log| log.into_iter().find(|(side, ..)| *side == Endpoint::A))
        .expect("a matching packet was sent")
        .2;
    pair.a.address = old;
    pair.deliver(&copy);
    pair.a.address = new;
    pair.pass(SECONDS);
    assert_eq!((pair.b.conn.peer(), pair.b.conn.counters().duplicates), (new, 1));
}

#[test]
fn challenge_response_echoes_the_nonce_and_has_the_same_length() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    pair.a.address = ([127, 0, 0, 9], 9).into();
    pair.log = Some(Vec::new());
    pair.write(Endpoint::A, 0, 10, 0);
    pair.until("the new address is used", |pair| pair.b.conn.peer() == pair.a.address);
    let log = pair.log.take().unwrap_or_default();
    let sent = |kind| {
        let mut packets = log.iter().filter_map(|(.., datagram)| wire::head(&datagram.bytes));
        packets.find(|(head, _)| head.kind() == Some(kind)).expect("a packet of this kind was sent")
    };
    let ((challenge, nonce), (_, response)) = (sent(Kind::Challenge), sent(Kind::Response));
    assert_eq!((response, nonce.len()), (nonce, size_of::<u64>()));
    assert_eq!(challenge.token.get(), pair.b.conn.terms.peer_token);
}

#[test]
fn challenge_response_to_another_address_is_sent_before_other_packets() {
    let mut pair = ConnPair::new(&PairConfig::default());
    let other = ([127, 0, 0, 9], 9).into();
    pair.a.conn.queue_control(ControlPacket::ProbeAck(1400));
    pair.a.conn.queue_control(ControlPacket::Response(7, other));
    let mut next = || pair.a.conn.transmit(MILLIS, &mut Vec::new(), &mut pair.a.host).map(|packet| packet.to);
    assert_eq!((next(), next()), (Some(Some(other)), Some(None)));
}

#[test]
fn path_mtu_is_found_and_not_exceeded() {
    let mut pair = ConnPair::new(&PairConfig { mtu: 9000, memory: 1 << 20, ..PairConfig::default() });
    pair.network.mtu = 1500;
    pair.write(Endpoint::A, 0, 300_000, 0);
    pair.until("it is done", |pair| pair.a.host.requests.len() == 1);
    pair.pass(5 * SECONDS);
    let mtu = pair.a.conn.counters().mtu;
    assert!((1472..=1500).contains(&mtu), "the MTU is {mtu} bytes, instead of 1472 to 1500");
    let before = pair.a.conn.counters();
    pair.write(Endpoint::A, 0, 300_000, 0);
    pair.until("it is done", |pair| pair.a.host.requests.len() == 2);
    let after = pair.a.conn.counters();
    assert_eq!(
        (after.resent_gap + after.resent_probe, after.lost),
        (before.resent_gap + before.resent_probe, before.lost)
    );
    assert!(after.sent - before.sent < 300_000 / 1400 + 1);
}

#[test]
fn shrinking_path_mtu_loses_no_data() {
    for seed in 0..10 {
        let mut pair = ConnPair::new(&PairConfig { mtu: 9000, memory: 3 << 20, seed, ..PairConfig::default() });
        pair.pass(5 * SECONDS);
        assert_eq!(pair.a.conn.counters().mtu, 9000);
        pair.recv(Endpoint::B, 2 << 20, 1 << 20);
        pair.send(Endpoint::A, 0, 1 << 20);
        pair.read(Endpoint::A, 2 << 20, 1 << 20, 0);
        pair.until("it is in flight", |pair| pair.a.conn.counters().in_flight > 20_000);
        pair.network.mtu = 1500;
        pair.until("all is done", |pair| pair.a.host.requests.len() == 2 && pair.b.host.recvs.len() == 1);
        assert!(pair.a.events.is_empty() && pair.a.conn.counters().mtu <= 1500);
        assert!(pair.b.host.memory[2 << 20..] == pair.a.host.memory[..1 << 20]);
        assert!(pair.a.host.memory[2 << 20..] == pair.b.host.memory[..1 << 20]);
    }
}

#[test]
fn read_returns_earlier_writes() {
    for seed in 0..40 {
        let mut pair = ConnPair::new(&PairConfig { seed, reads: 16, ..PairConfig::default() });
        pair.network = super::network::NetworkConditions { drop: 150, late: 300, ..Default::default() };
        for turn in 0..30u8 {
            pair.a.host.memory[usize::from(turn)] = turn + 1;
            pair.write(Endpoint::A, usize::from(turn), 1, 40_000 + usize::from(turn));
            pair.read(Endpoint::A, 50_000 + usize::from(turn), 1, 40_000 + usize::from(turn));
        }
        pair.until("all", |pair| pair.a.host.requests.len() == 60);
        assert!(
            pair.a.host.memory[50_000..50_030] == pair.a.host.memory[..30],
            "seed {seed}: each read must return the write before it"
        );
    }
}

#[test]
fn waiting_send_is_sent_before_the_ack_of_a_received_packet_is_processed() {
    let mut pair = ConnPair::new(&PairConfig::default());
    for _ in 0..2 {
        pair.recv(Endpoint::A, 0, 10);
        pair.recv(Endpoint::B, 500, 10);
    }
    pair.pass(MILLIS);
    pair.send(Endpoint::A, 0, 10);
    pair.until("the first", |pair| pair.b.host.recvs.len() == 1);
    pair.send(Endpoint::B, 0, 10);
    pair.until("its answer", |pair| pair.a.host.recvs.len() == 1);
    pair.send(Endpoint::A, 0, 10);
    pair.log = Some(Vec::new());
    assert_eq!(pair.pump(Endpoint::A, 1), 1);
    assert!(pair.a.host.requests.is_empty(), "the first completion is not processed yet");
    let log = pair.log.take().unwrap_or_default();
    let (head, body) = wire::head(&log[0].2.bytes).expect("the packet has a complete header and a known kind");
    let data = wire::data(Kind::Fragment, body)
        .filter(|_| head.kind() == Some(Kind::Fragment))
        .expect("the logged packet is a fragment");
    assert_eq!(
        data.carried.ack.next.get(),
        pair.a.conn.received.next().0,
        "the data packet carries the ack of the received packet"
    );
    assert_eq!(
        (pair.pump(Endpoint::A, 1), pair.a.host.requests.len()),
        (0, 1),
        "the ack is processed in the next pass"
    );
    pair.until("all", |pair| pair.a.host.requests.len() == 2);
}
