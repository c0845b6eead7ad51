//! Tests the fast paths of posts, mixed with acks, losses and waiting requests. Each message must arrive exactly once
//! and in order.

use dapl::provider::Status;

use super::network::NetworkConditions;
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::MICROS;
use crate::proto::conn::ConnConfig;

/// Size in bytes of a receive, and offset of the receives in memory.
const SPACE: usize = 64;
const RECEIVES: usize = 1 << 15;

/// Sends and receives that an endpoint has posted.
#[derive(Default)]
struct Load {
    sent: Vec<(u64, usize, usize)>,
    recvs: Vec<u64>,
}

impl Load {
    fn send(&mut self, pair: &mut ConnPair, side: Endpoint) {
        let (length, at) = (pair.dice.below(SPACE as u64 + 1) as usize, pair.dice.below(1000) as usize);
        self.sent.push((pair.send_quickly(side, at, length), at, length));
    }

    fn recv(&mut self, pair: &mut ConnPair, side: Endpoint) {
        self.recvs.push(pair.recv_quickly(side, RECEIVES + self.recvs.len() * SPACE, SPACE));
    }
}

/// Posts at random at both endpoints, and checks the received messages. Returns how often each fast path was used.
fn exchange(seed: u64, network: NetworkConditions) -> [u32; 3] {
    let config = ConnConfig { window_kib: 512, ..ConnConfig::default() };
    let plan = PairConfig { config, seed, psn: [u32::MAX - 40, 7], number: u32::MAX - 20, ..PairConfig::default() };
    let mut pair = ConnPair::new(&plan);
    pair.network = network;
    let mut loads = [Load::default(), Load::default()];
    let sides = [Endpoint::A, Endpoint::B];
    for _ in 0..120 {
        for place in [0, 1] {
            if pair.dice.below(8) < 5 {
                loads[place].recv(&mut pair, sides[place]);
            }
            if pair.dice.below(2) == 0 {
                loads[place].send(&mut pair, sides[place]);
            }
        }
        for _ in 0..pair.dice.below(4) {
            pair.step();
        }
    }
    for place in [0, 1] {
        while loads[place].recvs.len() < loads[1 - place].sent.len() {
            loads[place].recv(&mut pair, sides[place]);
        }
    }
    let sent = [0, 1].map(|place| loads[place].sent.len());
    pair.until("all is done", |pair| {
        let counts = |end: &super::pair::End| (end.host.requests.len(), end.host.recvs.len());
        counts(&pair.a) == (sent[0], sent[1]) && counts(&pair.b) == (sent[1], sent[0])
    });
    for place in [0, 1] {
        let (ours, theirs) = (&loads[place], &loads[1 - place]);
        let peer = pair.end(sides[1 - place]).host.memory.clone();
        let host = &pair.end(sides[place]).host;
        let done: Vec<_> = host.requests.iter().map(|done| (done.id, done.status)).collect();
        assert_eq!(done, ours.sent.iter().map(|(id, ..)| (*id, Status::Success)).collect::<Vec<_>>());
        let got: Vec<_> = host.recvs.iter().map(|done| (done.id, done.bytes as usize)).collect();
        let lengths = theirs.sent.iter().map(|(_, _, length)| *length);
        assert_eq!(got, ours.recvs.iter().copied().zip(lengths).collect::<Vec<_>>());
        for (n, (_, at, length)) in theirs.sent.iter().enumerate() {
            assert!(
                host.memory[RECEIVES + n * SPACE..][..*length] == peer[*at..][..*length],
                "the bytes of message {n} differ"
            );
        }
    }
    pair.quick
}

#[test]
fn fast_path_sends_arrive_in_order_over_good_and_bad_networks() {
    let mut quick = [0; 3];
    for seed in 0..60 {
        let drop = [0, 1, 20, 200][seed as usize % 4];
        let (double, late) = if drop == 0 { (0, 0) } else { (20, 100) };
        let network = NetworkConditions { drop, double, late, lateness: 500 * MICROS, ..NetworkConditions::default() };
        quick.iter_mut().zip(exchange(seed, network)).for_each(|(sum, count)| *sum += count);
    }
    assert!(
        quick.iter().all(|count| *count > 200),
        "each fast path must be used over 200 times: sends, waiting sends, receives: {quick:?}"
    );
}

#[test]
fn fast_path_sends_nothing_without_credit() {
    let mut pair = ConnPair::new(&PairConfig::default());
    pair.until("the connection is confirmed", |pair| pair.now > 1000 * MICROS);
    pair.send_quickly(Endpoint::A, 0, 8);
    assert_eq!(pair.quick, [0, 0, 0], "the fast path does not send without a credit");
    pair.send_quickly(Endpoint::A, 0, 8);
    assert_eq!(pair.quick, [0, 1, 0], "the second send waits in the queue behind the first");
    (0..3).for_each(|n| _ = pair.recv_quickly(Endpoint::B, RECEIVES + n * SPACE, SPACE));
    pair.until("both arrive", |pair| pair.b.host.recvs.len() == 2 && pair.a.host.requests.len() == 2);
    pair.send_quickly(Endpoint::A, 0, 8);
    assert_eq!(pair.quick, [1, 1, 3]);
    pair.until("the third arrives", |pair| pair.b.host.recvs.len() == 3);
}
