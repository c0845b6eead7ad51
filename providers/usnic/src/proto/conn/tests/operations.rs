//! Tests sends, writes and reads of many lengths over a network without faults, and the size of a connection in memory.

use dapl::provider::Status;

use super::network::NetworkConditions;
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::MICROS;
use crate::proto::conn::{Conn, PostedData};

fn statuses(done: &[super::host::TestCompletion]) -> Vec<Status> {
    done.iter().map(|done| done.status).collect()
}

#[test]
fn sends_of_each_boundary_length_complete_their_receives() {
    let lengths = [0, 1, 63, 768, 769, 1144, 1145, 1200, 5000, 60_000];
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
    let mut at = 0;
    for length in lengths {
        pair.recv(Endpoint::B, 500_000 + at, length);
        pair.send(Endpoint::A, at, length);
        at += length;
    }
    pair.until("all arrive", |pair| {
        pair.b.host.recvs.len() == lengths.len() && pair.a.host.requests.len() == lengths.len()
    });
    let got: Vec<usize> = pair.b.host.recvs.iter().map(|done| done.bytes as usize).collect();
    assert_eq!(got, lengths);
    assert!(statuses(&pair.b.host.recvs).iter().chain(&statuses(&pair.a.host.requests)).all(|s| *s == Status::Success));
    assert!(pair.b.host.memory[500_000..][..at] == pair.a.host.memory[..at]);
    let a = pair.a.conn.counters();
    assert_eq!(
        (a.resent_gap, a.resent_probe, a.spurious),
        (0, 0, 0),
        "a perfect network needs no retransmission: {}",
        pair.state()
    );
}

#[test]
fn writes_and_reads_transfer_all_bytes() {
    let mut pair = ConnPair::new(&PairConfig { memory: 3 << 20, ..PairConfig::default() });
    pair.network = NetworkConditions { latency: 5 * MICROS, ..NetworkConditions::default() };
    for length in [0, 1, 769, 1144, 1145, 1 << 20] {
        let (a, b) = (pair.a.host.requests.len(), pair.b.host.requests.len());
        pair.write(Endpoint::A, 3, length, 1 << 20);
        pair.read(Endpoint::B, 2 << 20, length, 5);
        pair.until("both are done", |pair| pair.a.host.requests.len() > a && pair.b.host.requests.len() > b);
        assert!(pair.b.host.memory[1 << 20..][..length] == pair.a.host.memory[3..][..length]);
        assert!(pair.b.host.memory[2 << 20..][..length] == pair.a.host.memory[5..][..length]);
    }
    assert!(statuses(&pair.a.host.requests).iter().all(|s| *s == Status::Success));
    assert_eq!(pair.a.host.requests.last().map(|done| done.bytes), Some(1 << 20));
}

struct LargeWork;

impl PostedData for LargeWork {
    type Request = [u64; 8];
    type Recv = [u64; 8];
}

#[test]
fn connection_object_is_smaller_than_six_kib() {
    assert!(
        size_of::<Conn<LargeWork>>() < 6 << 10,
        "a connection has {} bytes, instead of less than 6144",
        size_of::<Conn<LargeWork>>()
    );
}
