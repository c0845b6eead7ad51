//! Tests the end of a connection: completions, their order, and the events at both endpoints. Also tests how a lost or
//! exited peer is detected.

use dapl::provider::{ConnectionEvent, Remote, Status};

use super::host::{BASE, KEY, READ_ONLY};
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::net::errors::QUOTE;
use crate::proto::conn::{ConnConfig, Operation};
use crate::proto::setup::packets::{self, Fin};
use crate::proto::wire::{self, Kind};
use crate::proto::{MILLIS, SECONDS};

use Status::{Flushed, Success};

fn statuses(done: &[super::host::TestCompletion]) -> Vec<Status> {
    done.iter().map(|done| done.status).collect()
}

/// Waits until the connection has ended at both endpoints, and returns their events.
fn ended(pair: &mut ConnPair) -> [ConnectionEvent; 2] {
    pair.until("both have ended", |pair| pair.a.conn.is_closed() && pair.b.conn.is_closed());
    pair.until("it can be freed", |pair| pair.a.conn.can_be_freed() && pair.b.conn.can_be_freed());
    assert_eq!((pair.a.events.len(), pair.b.events.len()), (1, 1), "each endpoint gets one event");
    assert_eq!((pair.a.conn.outstanding(), pair.b.conn.outstanding()), ((0, 0), (0, 0)));
    [pair.a.events[0], pair.b.events[0]]
}

#[test]
fn fin_has_end_and_ack() {
    let mut pair = ConnPair::new(&PairConfig::default());
    (0..3).for_each(|_| _ = pair.write(Endpoint::A, 0, 10, 0));
    pair.write(Endpoint::B, 0, 10, 0);
    pair.until("the writes are done", |pair| pair.a.host.requests.len() == 3 && pair.b.host.requests.len() == 1);
    pair.log = Some(Vec::new());
    pair.a.conn.drain(pair.now);
    pair.pump(Endpoint::A, 10);
    let log = pair.log.take().unwrap_or_default();
    let packets = log.iter().filter_map(|(.., datagram)| wire::head(&datagram.bytes));
    let fins: Vec<_> = packets.filter(|(head, _)| head.kind() == Some(Kind::Fin)).collect();
    let [(head, body)] = fins[..] else { panic!("one Fin is sent, not {}", fins.len()) };
    let (conn, end) = (&pair.a.conn, pair.a.conn.flight.next_psn().0.into());
    assert_eq!((head.conn.get(), head.token.get()), (conn.terms.peer_conn, conn.terms.peer_token));
    assert_eq!(packets::fin(body), Some(Fin { end, received: conn.received.next().0.into() }));
}

const BOTH_BROKEN: [ConnectionEvent; 2] = [ConnectionEvent::Broken, ConnectionEvent::Broken];

#[test]
fn send_longer_than_its_receive_breaks_the_connection_at_both_ends() {
    for (length, seed) in [(200, 1), (5000, 2), (60_000, 3)] {
        let mut pair = ConnPair::new(&PairConfig { seed, ..PairConfig::default() });
        pair.network.drop = 50;
        [100, 100, 99, 100].iter().for_each(|capacity| {
            pair.recv(Endpoint::B, 0, *capacity * length / 100);
        });
        (0..5).for_each(|_| {
            pair.send(Endpoint::A, 0, length);
        });
        pair.recv(Endpoint::A, 0, 10);
        pair.read(Endpoint::B, 40_000, 1, 0);
        assert_eq!(ended(&mut pair), BOTH_BROKEN);
        assert_eq!(statuses(&pair.b.host.recvs), [Success, Success, Status::LocalLength, Flushed]);
        assert_eq!(statuses(&pair.a.host.requests), [Success, Success, Status::RemoteResponder, Flushed, Flushed]);
        assert_eq!(statuses(&pair.a.host.recvs), [Flushed]);
    }
}

#[test]
fn unmapped_memory_breaks_the_connection() {
    for length in [48, 9_000] {
        // The memory of a receive is inaccessible.
        let mut pair = ConnPair::new(&PairConfig::default());
        let recvs = [0, 1].map(|_| pair.recv(Endpoint::B, 0, length));
        (0..3).for_each(|_| {
            pair.send(Endpoint::A, 0, length);
        });
        pair.b.host.gone = vec![recvs[1]];
        assert_eq!(ended(&mut pair), BOTH_BROKEN);
        assert_eq!(statuses(&pair.b.host.recvs), [Success, Status::LocalProtection]);
        assert_eq!(statuses(&pair.a.host.requests), [Success, Status::RemoteResponder, Flushed]);
        // The local memory of a send, a write or a read is inaccessible.
        for work in [Operation::Send { solicited: false }, Operation::Write(TARGET), Operation::Read(TARGET)] {
            let mut pair = ConnPair::new(&PairConfig::default());
            [0, 1].iter().for_each(|_| {
                pair.recv(Endpoint::B, 0, length);
            });
            pair.write(Endpoint::A, 0, 3000, 0);
            let bad = pair.post(Endpoint::A, work, 0, length, false);
            pair.send(Endpoint::A, 0, length);
            pair.a.host.gone = vec![bad];
            assert_eq!(ended(&mut pair), [ConnectionEvent::Broken, ConnectionEvent::Disconnected]);
            assert_eq!(
                statuses(&pair.a.host.requests)[..2],
                [Success, Status::LocalProtection],
                "statuses or events after {work:?}"
            );
            // A read fails only when its data arrives, so a send after it may already have been received.
            assert!(matches!(work, Operation::Read(_)) || statuses(&pair.b.host.recvs) == [Flushed, Flushed]);
        }
    }
}

const TARGET: Remote = Remote { key: KEY, address: BASE + 100 };

#[test]
fn invalid_access_is_refused() {
    let beyond = BASE + (1 << 16);
    let cases = [
        Operation::Write(Remote { key: READ_ONLY, ..TARGET }),
        Operation::Write(Remote { key: 9, ..TARGET }),
        Operation::Read(Remote { key: 9, ..TARGET }),
        Operation::Write(Remote { address: beyond - 4999, ..TARGET }),
        Operation::Read(Remote { address: beyond - 4999, ..TARGET }),
        Operation::Write(Remote { address: u64::MAX - 3, ..TARGET }),
        Operation::Read(Remote { address: u64::MAX - 3, ..TARGET }),
    ];
    for (seed, work) in cases.into_iter().enumerate() {
        let mut pair = ConnPair::new(&PairConfig { seed: seed as u64, ..PairConfig::default() });
        pair.network.drop = 30;
        let before = pair.b.host.memory.clone();
        let ids = [
            pair.read(Endpoint::A, 0, 20_000, 0),
            pair.post(Endpoint::A, work, 0, 5000, false),
            pair.send(Endpoint::A, 0, 1),
        ];
        pair.recv(Endpoint::B, 50_000, 100);
        assert_eq!(
            ended(&mut pair),
            [ConnectionEvent::Broken, ConnectionEvent::Disconnected],
            "statuses or events after {work:?}"
        );
        let ends: Vec<_> = pair.a.host.requests.iter().map(|done| (done.id, done.status)).collect();
        assert_eq!(
            ends,
            [(ids[0], Success), (ids[1], Status::RemoteAccess), (ids[2], Flushed)],
            "statuses or events after {work:?}"
        );
        assert_eq!(statuses(&pair.b.host.recvs), [Flushed]);
        assert!(pair.b.host.memory[..50_000] == before[..50_000], "no byte before the receive buffer is written");
        assert!(pair.b.host.memory[50_100..] == before[50_100..], "no byte after the receive buffer is written");
    }
}

#[test]
fn read_of_unmapped_memory_is_refused_after_earlier_reads() {
    for when in [0, 5, 15] {
        let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
        pair.network.drop = 30;
        let first = pair.read(Endpoint::A, 0, 10_000, 0);
        pair.until("the first", |pair| pair.a.host.requests.len() == 1);
        let second = pair.read(Endpoint::A, 10_000, 400_000, 0);
        let third = pair.read(Endpoint::A, 500_000, 4_000, 0);
        (0..when).for_each(|_| {
            pair.step();
        });
        pair.b.host.unreadable = true;
        assert_eq!(ended(&mut pair), BOTH_BROKEN);
        let ends: Vec<_> = pair.a.host.requests.iter().map(|done| (done.id, done.status)).collect();
        assert_eq!(ends, [(first, Success), (second, Status::RemoteAccess), (third, Flushed)]);
    }
}

#[test]
fn memory_of_a_completed_read_may_be_unmapped_before_its_ack_arrives() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.read(Endpoint::A, 0, 1000, 0);
    pair.until("the read", |pair| pair.a.host.requests.len() == 1);
    // The ack of the response is lost, so B must retransmit data whose memory has become unreadable.
    pair.a.drops_all = true;
    pair.b.host.unreadable = true;
    pair.until("a probe", |pair| pair.b.conn.counters().timeouts > 0);
    pair.a.drops_all = false;
    pair.pass(SECONDS);
    assert!(pair.b.conn.counters().resent_probe > 0 && pair.a.events.is_empty() && pair.b.events.is_empty());
    pair.b.host.unreadable = false;
    pair.read(Endpoint::A, 0, 1000, 0);
    pair.until("another read", |pair| pair.a.host.requests.len() == 2);
    assert_eq!(statuses(&pair.a.host.requests), [Success, Success]);
}

#[test]
fn read_is_refused_if_lost_data_cannot_be_retransmitted() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.read(Endpoint::A, 0, 1000, 0);
    pair.b.drops_all = true;
    pair.until("the response", |pair| pair.b.conn.counters().sent > 0);
    (pair.b.drops_all, pair.b.host.unreadable) = (false, true);
    assert_eq!(ended(&mut pair), BOTH_BROKEN);
    assert_eq!(statuses(&pair.a.host.requests), [Status::RemoteAccess]);
}

#[test]
fn drain_completes_posted_requests() {
    for drop_rate in [0, 300] {
        let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
        pair.network.drop = drop_rate;
        pair.recv(Endpoint::A, 0, 10);
        (0..2).for_each(|_| {
            pair.recv(Endpoint::B, 500_000, 300_000);
        });
        pair.send(Endpoint::A, 0, 300_000);
        pair.read(Endpoint::A, 0, 300_000, 0);
        let now = pair.now;
        pair.a.conn.drain(now);
        assert_eq!(ended(&mut pair), [ConnectionEvent::Disconnected, ConnectionEvent::Disconnected]);
        assert_eq!(statuses(&pair.a.host.requests), [Success, Success]);
        assert_eq!(statuses(&pair.b.host.recvs), [Success, Flushed]);
        assert_eq!(statuses(&pair.a.host.recvs), [Flushed]);
    }
}

#[test]
fn simultaneous_drains_complete_all_requests() {
    for seed in 0..20 {
        let mut pair = ConnPair::new(&PairConfig { seed, ..PairConfig::default() });
        pair.network.drop = 300;
        for side in [Endpoint::A, Endpoint::B] {
            pair.recv(side, 0, 100);
            pair.send(side, 0, 100);
        }
        pair.until("sent", |pair| pair.a.host.recvs.len() + pair.b.host.recvs.len() == 2);
        let now = pair.now;
        pair.a.conn.drain(now);
        pair.b.conn.drain(now);
        assert_eq!(ended(&mut pair), [ConnectionEvent::Disconnected, ConnectionEvent::Disconnected]);
        assert_eq!((statuses(&pair.a.host.requests).len(), statuses(&pair.b.host.requests).len()), (1, 1));
    }
}

#[test]
fn connection_that_has_sent_its_fin_accepts_no_more_data() {
    let mut pair = ConnPair::new(&PairConfig::default());
    for _ in 0..2 {
        pair.recv(Endpoint::A, 0, 100);
    }
    pair.pass(MILLIS);
    pair.send(Endpoint::B, 0, 100);
    pair.pump(Endpoint::B, 10);
    // The ack of the first request is lost, and the second request arrives after A has sent its Fin.
    pair.a.drops_all = true;
    pair.until("the first", |pair| pair.a.host.recvs.len() == 1);
    let now = pair.now;
    pair.a.conn.drain(now);
    pair.send(Endpoint::B, 0, 100);
    pair.pass(5 * MILLIS);
    pair.a.drops_all = false;
    assert_eq!(ended(&mut pair), [ConnectionEvent::Disconnected, ConnectionEvent::Disconnected]);
    assert_eq!(statuses(&pair.b.host.requests), [Success, Flushed]);
    assert_eq!(statuses(&pair.a.host.recvs), [Success, Flushed]);
}

#[test]
fn abort_flushes_immediately_and_notifies_the_peer() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
    pair.network.drop = 200;
    for side in [Endpoint::A, Endpoint::B, Endpoint::A, Endpoint::B] {
        pair.recv(side, 0, 10);
    }
    pair.write(Endpoint::A, 0, 500_000, 0);
    pair.send(Endpoint::A, 0, 5);
    pair.pass(MILLIS);
    let (now, end) = (pair.now, &mut pair.a);
    end.conn.abort(now, &mut end.host);
    assert_eq!((statuses(&end.host.requests), statuses(&end.host.recvs)), (vec![Flushed; 2], vec![Flushed; 2]));
    pair.until("the peer gets an event", |pair| !pair.b.events.is_empty());
    assert_eq!((&pair.a.events[..], &pair.b.events[..]), (&[][..], &[ConnectionEvent::Disconnected][..]));
    assert_eq!(statuses(&pair.b.host.recvs), [Flushed; 2]);
    // Work that is posted after the end is also flushed.
    pair.send(Endpoint::A, 0, 5);
    pair.recv(Endpoint::B, 0, 5);
    assert_eq!((pair.a.host.requests.len(), pair.b.host.recvs.len()), (3, 3));
    pair.until("both forget", |pair| pair.a.conn.can_be_freed() && pair.b.conn.can_be_freed());
}

#[test]
fn connection_to_a_silent_peer_is_disconnected_and_flushed() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.recv(Endpoint::A, 0, 10);
    pair.pass(MILLIS);
    pair.b.drops_all = true;
    (0..2).for_each(|_| {
        pair.write(Endpoint::A, 0, 5000, 0);
    });
    pair.until("it is noticed", |pair| !pair.a.events.is_empty());
    assert_eq!(
        (pair.a.events[0], statuses(&pair.a.host.requests)),
        (ConnectionEvent::Disconnected, vec![Flushed, Flushed])
    );
    assert_eq!(statuses(&pair.a.host.recvs), [Flushed]);
    assert!(pair.now > 9 * SECONDS);
}

#[test]
fn idle_connection_detects_a_lost_peer() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(100 * SECONDS);
    assert!(
        pair.a.events.is_empty() && pair.b.events.is_empty(),
        "an idle connection stays open while the peer answers keepalives"
    );
    pair.b.drops_all = true;
    pair.until("it is noticed", |pair| !pair.a.events.is_empty());
    assert_eq!(pair.a.events[0], ConnectionEvent::Disconnected);
}

/// Simulates the exit of B's process. B sends no more packets, and each packet of A causes an ICMP message "port
/// unreachable".
fn killed(pair: &mut ConnPair) {
    pair.b.drops_all = true;
    pair.log = Some(Vec::new());
    pair.until("it is noticed", |pair| {
        let now = pair.now;
        for (_, _, datagram) in std::mem::take(pair.log.as_mut().expect("packets are logged")) {
            let quote = &datagram.bytes[..datagram.bytes.len().min(QUOTE)];
            if datagram.to == Endpoint::B && pair.a.conn.is_quoted(quote, false) {
                pair.a.conn.port_closed(now);
            }
        }
        !pair.a.events.is_empty()
    });
}

#[test]
fn exited_peer_is_detected_within_two_seconds_of_traffic_or_keepalive() {
    for under_traffic in [false, true] {
        let mut pair = ConnPair::new(&PairConfig::default());
        pair.recv(Endpoint::A, 0, 10);
        pair.pass(SECONDS);
        let since = pair.now;
        if under_traffic {
            (0..2).for_each(|_| _ = pair.write(Endpoint::A, 0, 5000, 0));
        }
        killed(&mut pair);
        let took = pair.now - since;
        assert_eq!(pair.a.events, [ConnectionEvent::Disconnected]);
        assert!(pair.a.host.requests.iter().all(|done| done.status == Flushed));
        assert_eq!(statuses(&pair.a.host.recvs), [Flushed]);
        let keepalive = if under_traffic { 0 } else { ConnConfig::default().keepalive };
        assert!(took < keepalive + 2 * SECONDS, "the exit of the peer was detected only after {took} ns");
    }
}

#[test]
fn off_path_icmp_does_not_end_a_connection() {
    // With a round trip of 500 ms, several ICMP messages arrive in each round trip.
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.network.latency = 250 * MILLIS;
    pair.log = Some(Vec::new());
    for round in 0..400 {
        pair.write(Endpoint::A, 0, 100, 0);
        pair.pass(50 * MILLIS);
        for (_, _, datagram) in pair.log.take().unwrap_or_default().iter().filter(|(side, ..)| *side == Endpoint::A) {
            let mut quote = datagram.bytes.clone();
            // An attacker may guess the connection's number, but not its token.
            quote[8 + round % 8] ^= 1 << (round / 8 % 8);
            assert!(!pair.a.conn.is_quoted(&quote, false) && !pair.a.conn.is_quoted(&quote, true));
            assert!((0..16).all(|length| !pair.a.conn.is_quoted(&datagram.bytes[..length], false)));
        }
        let now = pair.now;
        pair.a.conn.on_icmp_error(now);
        pair.log = Some(Vec::new());
    }
    assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
    pair.until("all is written", |pair| pair.a.conn.outstanding() == (0, 0));
    assert!(pair.a.host.requests.iter().all(|done| done.status == Success));
}

#[test]
fn icmp_quote_of_an_acked_packet_is_ignored() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.log = Some(Vec::new());
    pair.write(Endpoint::A, 0, 100, 0);
    pair.pump(Endpoint::A, 10);
    let log = pair.log.take().expect("packets are logged");
    let data = log
        .iter()
        .map(|(_, _, datagram)| &datagram.bytes)
        .find(|bytes| wire::head(bytes).and_then(|(head, _)| head.kind()) == Some(Kind::Fragment));
    let quote = data.expect("a matching packet was sent")[..32].to_vec();
    assert!(pair.a.conn.is_quoted(&quote, false));
    let mut later = quote.clone();
    later[19] += 1;
    assert!(!pair.a.conn.is_quoted(&later, false), "a quote of a packet that was not sent is ignored");
    pair.until("it is acked", |pair| pair.a.conn.outstanding() == (0, 0));
    assert!(!pair.a.conn.is_quoted(&quote, false));
}

#[test]
fn repeated_fin_gets_another_reply_after_the_end() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.pass(MILLIS);
    let now = pair.now;
    pair.a.conn.drain(now);
    pair.pump(Endpoint::A, 10);
    // The peer's FinAck is lost.
    pair.b.drops_all = true;
    pair.until("the peer gets an event", |pair| !pair.b.events.is_empty());
    pair.pump(Endpoint::B, 10);
    pair.b.drops_all = false;
    assert!(pair.a.events.is_empty());
    assert_eq!(ended(&mut pair), [ConnectionEvent::Disconnected, ConnectionEvent::Disconnected]);
    let now = pair.now;
    let mut out = Vec::new();
    assert!(pair.b.conn.transmit(now, &mut out, &mut pair.b.host).is_none());
    assert!(wire::head(&out).and_then(|(head, _)| head.kind()) != Some(Kind::Fin));
}

#[test]
fn reply_while_closing_goes_to_the_new_peer_address() {
    for drains in [true, false] {
        let mut pair = ConnPair::new(&PairConfig::default());
        pair.pass(MILLIS);
        pair.b.address = ([127, 0, 0, 9], 9).into();
        let now = pair.now;
        match drains {
            true => pair.b.conn.drain(now),
            false => pair.b.conn.abort(now, &mut pair.b.host),
        }
        pair.log = Some(Vec::new());
        pair.until("both sides are closed", |pair| pair.a.conn.is_closed() && pair.b.conn.is_closed());
        pair.pass(5 * SECONDS);
        let words = pair.log.take().unwrap_or_default().into_iter().filter(|(side, ..)| *side == Endpoint::B).count();
        assert_eq!(words, 1, "only one reply is sent");
    }
}
