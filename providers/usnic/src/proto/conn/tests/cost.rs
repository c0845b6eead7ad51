//! What a connection costs: memory at rest, and time per packet (printed by an ignored test, for those who change things).

use std::time::Instant;

use super::pair::{Pair, Plan, Side};
use crate::proto::conn::Conn;
use crate::proto::wire;
use crate::proto::{MILLIS, SECONDS};

#[test]
#[ignore = "a measurement: cargo test --release -p daplusnic cost -- --ignored --nocapture"]
fn a_ping_pong() {
    let config = crate::proto::conn::Config { tiny: 768, ..Plan::default().config };
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
                other.conn.receive(now + 1_500, &head, body, ([127, 0, 0, 1], 1).into(), &mut other.world);
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
fn it_is_small() {
    assert!(size_of::<Conn<[u8; 64], [u8; 64]>>() < 6 << 10, "{}", size_of::<Conn<[u8; 64], [u8; 64]>>());
}
