//! Tests paths whose MTU decreases, with and without a report of the new MTU, and an outage, which is no black hole.
//! Packets that have become too large for the path are retransmitted in pieces.

use dapl::provider::Status;

use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::conn::ConnConfig;
use crate::proto::{MILLIS, SECONDS};

const LARGE: usize = 9000;
/// Path MTU after the decrease.
const LEFT: usize = 1300;

/// Creates a pair on a path with a large MTU.
fn pair(memory: usize) -> ConnPair {
    let config = ConnConfig { window_kib: u16::MAX, ..ConnConfig::default() };
    let mut pair = ConnPair::new(&PairConfig { config, mtu: LARGE, memory, ..PairConfig::default() });
    pair.network.mtu = LARGE;
    pair.pass(SECONDS);
    assert_eq!(pair.a.conn.send_path.path.mtu, LARGE, "the search must find the MTU of the path");
    pair
}

fn is_done(pair: &ConnPair, count: usize) -> bool {
    pair.a.host.requests.len() == count
}

#[test]
fn black_hole_delays_data_by_less_than_five_timeouts() {
    const BYTES: usize = 400_000;
    let mut pair = pair(2 * BYTES);
    // This write gives RTT samples.
    pair.write(Endpoint::A, 0, 20_000, BYTES);
    pair.until("a write is done", |pair| is_done(pair, 1));
    let timeout = pair.a.conn.flight.rtt.pto(0);
    pair.write(Endpoint::A, 0, BYTES, BYTES);
    pair.pump(Endpoint::A, 10);
    pair.network.mtu = LEFT;
    let start = pair.now;
    let before = pair.b.conn.counters().received;
    pair.until("a packet arrives", |pair| pair.b.conn.counters().received > before + 10);
    // A black hole is suspected after two probe timeouts, the second of which is twice as long as the first. Packets
    // then have the initial size.
    let waited = pair.now - start;
    assert!(waited < 5 * timeout, "data was delayed by {waited} ns, more than 5 timeouts of {timeout} ns");
    pair.until("all is done", |pair| is_done(pair, 2));
    assert!(pair.now - start < SECONDS, "the transfer took {} ns, longer than a second", pair.now - start);
    assert!(pair.a.conn.counters().refragmented > 0);
    let (ours, theirs) = (&pair.a.host.memory[..BYTES], &pair.b.host.memory[BYTES..]);
    assert!(ours == theirs && pair.a.host.requests.iter().all(|done| done.status == Status::Success));
}

#[test]
fn detected_black_hole_reduces_the_packet_size() {
    let mut pair = pair(1 << 20);
    pair.network.mtu = LEFT;
    for count in 1..=40 {
        pair.write(Endpoint::A, 0, 50_000, 100_000);
        pair.until("a write is done", |pair| is_done(pair, count));
        pair.pass(20 * MILLIS);
    }
    assert_eq!(pair.a.conn.send_path.path.black_holes(), 1);
    let mtu = pair.a.conn.send_path.path.mtu;
    assert!((LEFT - 100..=LEFT).contains(&mtu), "the MTU is {mtu} bytes, instead of {LEFT} or up to 100 less");
    let refragmented = pair.a.conn.counters().refragmented;
    pair.write(Endpoint::A, 0, 100_000, 100_000);
    pair.until("another one is done", |pair| is_done(pair, 41));
    assert_eq!(pair.a.conn.counters().refragmented, refragmented);
}

#[test]
fn outage_is_no_black_hole() {
    let mut pair = pair(1 << 20);
    pair.write(Endpoint::A, 0, 50_000, 100_000);
    pair.network.mtu = 0;
    pair.pass(SECONDS);
    pair.network.mtu = LARGE;
    pair.until("the write is done", |pair| is_done(pair, 1));
    pair.pass(SECONDS);
    assert_eq!((pair.a.conn.send_path.path.black_holes(), pair.a.conn.send_path.path.size()), (0, LARGE));
}

#[test]
fn packet_above_the_local_mtu_is_refragmented_immediately() {
    let mut pair = pair(1 << 20);
    pair.write(Endpoint::A, 0, 50_000, 100_000);
    pair.network.mtu = LEFT;
    let now = pair.now;
    pair.pump(Endpoint::A, 6);
    pair.a.conn.too_large(now, LEFT);
    assert_eq!(pair.a.conn.send_path.path.size(), LEFT);
    pair.until("the write is done", |pair| is_done(pair, 1));
    assert_eq!(pair.a.conn.send_path.path.black_holes(), 0);
    assert!(pair.a.conn.counters().refragmented > 0, "no packet was re-fragmented: {:?}", pair.a.conn.counters());
}

#[test]
fn all_bytes_arrive_over_changing_black_holes() {
    const PART: usize = 1 << 20;
    let mut refragmented = 0;
    for seed in 0..40 {
        let config = ConnConfig { window_kib: 512, shared: seed % 3 == 2, ..ConnConfig::default() };
        let psn = [u32::MAX - 40, u32::MAX - 500];
        let mut pair =
            ConnPair::new(&PairConfig { config, mtu: LARGE, memory: 3 * PART, seed, psn, ..PairConfig::default() });
        (pair.network.drop, pair.network.double, pair.network.mtu) = ([0, 20, 100][seed as usize % 3], 20, LARGE);
        (pair.network.late, pair.network.lateness) = (100, MILLIS);
        let (mut at, mut recvs, mut jobs) = (0, 0, Vec::new());
        let count: usize = 40;
        for job in 0..count {
            let length = pair.dice.below(20_000) as usize;
            match job % 3 {
                0 => _ = pair.write(Endpoint::A, at, length, PART + at),
                1 => _ = pair.read(Endpoint::A, 2 * PART + at, length, at),
                _ => {
                    match seed % 3 {
                        2 => _ = pair.share(Endpoint::B, 2 * PART + at, length),
                        _ => _ = pair.recv(Endpoint::B, 2 * PART + at, length),
                    }
                    pair.send(Endpoint::A, at, length);
                    recvs += 1;
                }
            }
            jobs.push((job % 3, at, length));
            at += length;
            pair.network.mtu = [LARGE, LEFT, 5000][pair.dice.below(3) as usize];
            let time = pair.dice.below(40 * MILLIS);
            pair.pass(time);
        }
        pair.until("all is done", |pair| is_done(pair, count) && pair.b.host.recvs.len() == recvs);
        pair.pass(SECONDS);
        assert!(
            pair.a.host.requests.iter().all(|done| done.status == Status::Success),
            "seed {seed}: a request has failed"
        );
        let (a, b) = (&pair.a.host.memory, &pair.b.host.memory);
        for (kind, at, length) in jobs {
            let (from, to) = match kind {
                0 => (&a[at..], &b[PART + at..]),
                1 => (&b[at..], &a[2 * PART + at..]),
                _ => (&a[at..], &b[2 * PART + at..]),
            };
            assert!(from[..length] == to[..length], "seed {seed}: {length} bytes at {at} differ");
        }
        pair.a.host.check_untouched();
        pair.b.host.check_untouched();
        refragmented += pair.a.conn.counters().refragmented + pair.b.conn.counters().refragmented;
    }
    assert!(refragmented > 100, "only {refragmented} packets were re-fragmented");
}
