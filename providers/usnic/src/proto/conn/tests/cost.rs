//! What a connection costs: memory at rest, and time per packet (printed by an ignored test, for those who change things).

use std::time::Instant;

use super::pair::{End, Pair, Plan, Side};
use crate::proto::conn::{Config, Conn, Payload};
use crate::proto::wire;
use crate::proto::{MILLIS, Nanos, SECONDS};

#[test]
#[ignore = "a measurement: cargo test --release -p daplusnic cost -- --ignored --nocapture"]
fn a_ping_pong() {
    let config = Config { tiny: 768, ..Plan::default().config };
    for size in [64, 700] {
        let mut pair = Pair::new(&Plan { config: config.clone(), ..Plan::default() });
        for _ in 0..16 {
            pair.recv(Side::A, 0, 1024);
            pair.recv(Side::B, 0, 1024);
        }
        pair.pass(MILLIS);
        let (turns, mut out, start) = (300_000u64, Vec::with_capacity(4096), Instant::now());
        for turn in 0..turns {
            let (one, other) = if turn % 2 == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
            let now = SECONDS + turn * 3_000;
            let buffer = super::pair::Buffer { id: turn, at: 0, length: size };
            let work = crate::proto::conn::Work::Send { solicited: false };
            let post = crate::proto::conn::Post { work, length: size as u32, fence: false, request: buffer };
            one.conn.post(now, post, &mut one.world);
            out.clear();
            while let Some(_packet) = one.conn.transmit(now, &mut out, &mut one.world) {
                let header = out.len();
                out.resize(header + size, 0);
                let (head, body) = wire::head(&out).expect("a packet");
                other.conn.receive(now + 1_500, &head, body, other.conn.peer(), &mut other.world);
                out.clear();
            }
            assert_eq!(other.world.recvs.len(), 1);
            other.world.forget();
            one.world.forget();
            let buffer = super::pair::Buffer { id: 0, at: 2000, length: 1024 };
            other.conn.post_recv(now + 1_600, buffer, 1024, &mut other.world);
        }
        println!("{size} bytes: {} ns a message, both sides", start.elapsed().as_nanos() as u64 / turns);
        println!("{:?}", pair.a.conn.counters());
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -p daplusnic cost -- --ignored --nocapture"]
fn a_stream() {
    for mtu in [1472, 60_000] {
        let config = Config { mtu_start: mtu, ..Plan::default().config };
        let mut pair = Pair::new(&Plan { config, mtu, memory: 2 << 20, ..Plan::default() });
        pair.pass(MILLIS);
        let (mut packets, start) = (0u64, Instant::now());
        for turn in 0..200u64 {
            pair.a.world.forget();
            pair.write(Side::A, 0, 1 << 20, 1 << 20);
            let mut now = SECONDS + turn * MILLIS;
            while pair.a.world.requests.is_empty() {
                now += 2_000;
                packets += burst(now, &mut pair.a, &mut pair.b) + burst(now, &mut pair.b, &mut pair.a);
            }
        }
        println!("{mtu}: {} ns a packet, both sides", start.elapsed().as_nanos() as u64 / packets);
        println!("{:?}", pair.a.conn.counters());
    }
}

/// What one side sends at once goes straight to the other.
fn burst(now: Nanos, one: &mut End, other: &mut End) -> u64 {
    let mut out = Vec::with_capacity(65_536);
    if one.conn.deadline().is_some_and(|at| at <= now) {
        one.conn.on_time(now, &mut one.world);
    }
    for count in 0..64 {
        out.clear();
        let Some(packet) = one.conn.transmit(now, &mut out, &mut one.world) else { return count };
        if let Payload::Request { length, .. } = packet.payload {
            out.resize(out.len() + length as usize, 0);
        }
        let (head, body) = wire::head(&out).expect("a packet");
        other.conn.receive(now + 1_000, &head, body, other.conn.peer(), &mut other.world);
    }
    64
}

#[test]
fn it_is_small() {
    assert!(size_of::<Conn<[u8; 64], [u8; 64]>>() < 6 << 10, "{}", size_of::<Conn<[u8; 64], [u8; 64]>>());
}
