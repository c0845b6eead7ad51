//! Tests extension operations: sends and writes with immediate data, sends with invalidate, and atomic operations. Each
//! must be executed exactly once and in order, although the network drops, duplicates and reorders packets. Also tests
//! operations that the peer refuses or does not support.

use dapl::provider::{ConnectionEvent, ReceivedOp, Remote, Status};

use super::host::{BASE, KEY, READ_ONLY, WINDOW};
use super::network::NetworkConditions;
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::conn::{ConnConfig, Operation, SendValue};
use crate::proto::{MICROS, MILLIS};

/// Offsets of the results at the initiator, and of the operand at the target.
const BACK: usize = 1000 * 8;
const WORD: usize = 64;

fn remote(to: usize) -> Remote {
    Remote { key: KEY, address: BASE + to as u64 }
}

fn add(pair: &mut ConnPair, side: Endpoint, at: usize, to: usize) -> u64 {
    pair.post(side, Operation::FetchAdd { remote: remote(to), add: 1 }, at, 8, false)
}

fn word(memory: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(memory[at..][..8].try_into().unwrap())
}

fn bad(seed: u64) -> (PairConfig, NetworkConditions) {
    let plan = PairConfig { seed, memory: 1 << 20, ..PairConfig::default() };
    let lateness = 3 * MILLIS;
    let parts = NetworkConditions { drop: 100, double: 100, late: 200, lateness, ..NetworkConditions::default() };
    (plan, parts)
}

#[test]
fn atomic_operations_are_executed_once_under_loss_and_duplication() {
    for seed in 0..40 {
        let (plan, network) = bad(seed);
        let mut pair = ConnPair::new(&plan);
        pair.network = network;
        pair.b.host.memory[WORD..][..8].fill(0);
        let count = 200;
        for n in 0..count {
            add(&mut pair, Endpoint::A, BACK + 8 * n, WORD);
        }
        pair.until("all are done", |pair| pair.a.host.requests.len() == count);
        assert!(pair.a.host.requests.iter().all(|done| (done.status, done.bytes) == (Status::Success, 8)));
        assert_eq!(
            (word(&pair.b.host.memory, WORD), pair.b.host.executed),
            (count as u64, count as u32),
            "seed {seed}: each atomic operation is executed once"
        );
        for n in 0..count {
            assert_eq!(
                word(&pair.a.host.memory, BACK + 8 * n),
                n as u64,
                "seed {seed}: operations are executed in the order of the posts"
            );
        }
    }
}

#[test]
fn atomic_operation_sees_earlier_writes_and_returns_the_old_value() {
    for seed in 0..20 {
        let (plan, network) = bad(seed);
        let mut pair = ConnPair::new(&plan);
        pair.network = network;
        for n in 0..50u64 {
            pair.a.host.memory[..8].copy_from_slice(&n.to_ne_bytes());
            let swap = |compare| Operation::CompareSwap { remote: remote(WORD), compare, swap: 7777 };
            pair.write(Endpoint::A, 0, 8, WORD);
            pair.post(Endpoint::A, swap(n), BACK, 8, false);
            pair.post(Endpoint::A, swap(n), BACK + 8, 8, true);
            let done = 3 * (n as usize + 1);
            pair.until("the round is done", |pair| pair.a.host.requests.len() == done);
            let found = [BACK, BACK + 8].map(|at| word(&pair.a.host.memory, at));
            assert_eq!(
                (found, word(&pair.b.host.memory, WORD)),
                ([n, 7777], 7777),
                "seed {seed}: the swap returns the old value and stores the new one"
            );
        }
    }
}

#[test]
fn writes_with_immediate_data_keep_their_order_among_sends_under_loss() {
    for seed in 0..40 {
        let (mut plan, network) = bad(seed);
        plan.config = ConnConfig { shared: seed % 4 == 0, ..plan.config };
        let mut pair = ConnPair::new(&plan);
        pair.network = network;
        let lengths = [0, 1, 768, 1139, 1140, 1141, 1144, 1145, 5000, 30_000];
        let (mut at, count) = (300_000, 60);
        let mut expected = Vec::new();
        for n in 0..count {
            let length = lengths[pair.dice.below(lengths.len() as u64) as usize];
            let (value, solicited) = (n as u32 + 0xFFFF_FF00, n % 3 == 0);
            let kind = pair.dice.below(3);
            let (capacity, arrival, work) = match kind {
                0 => (
                    0,
                    ReceivedOp::WriteImmediate,
                    Operation::WriteImmediate { remote: remote(at), data: value, solicited },
                ),
                1 => (length, ReceivedOp::SendImmediate, Operation::SendImmediate { data: value, solicited }),
                _ => (length, ReceivedOp::Send, Operation::Send { solicited }),
            };
            let value = SendValue { arrival, value: if kind == 2 { 0 } else { value }, solicited };
            let into = if kind == 0 { 0 } else { at };
            if plan.config.shared {
                pair.share(Endpoint::B, into, capacity)
            } else {
                pair.recv(Endpoint::B, into, capacity)
            };
            pair.post(Endpoint::A, work, n * 100, length, false);
            expected.push((length, value, n * 100, at));
            at += length;
        }
        pair.until("all arrive", |pair| pair.b.host.recvs.len() == count && pair.a.host.requests.len() == count);
        for (done, (length, value, from, to)) in pair.b.host.recvs.iter().zip(&expected) {
            assert_eq!((done.status, done.bytes), (Status::Success, *length as u64), "seed {seed}");
            assert_eq!(done.value, *value, "seed {seed}");
            assert!(pair.b.host.memory[*to..][..*length] == pair.a.host.memory[*from..][..*length], "seed {seed}");
        }
        assert!(pair.a.host.requests.iter().all(|done| done.status == Status::Success));
    }
}

#[test]
fn large_write_with_immediate_data_arrives_over_a_decreasing_mtu() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, mtu: 9000, ..PairConfig::default() });
    pair.send(Endpoint::A, 0, 300_000);
    pair.recv(Endpoint::B, 500_000, 300_000);
    pair.until("the path is known", |pair| pair.a.host.requests.len() == 1);
    let work = Operation::WriteImmediate { remote: remote(500_000), data: 9, solicited: false };
    pair.recv(Endpoint::B, 0, 0);
    pair.post(Endpoint::A, work, 7, 300_000, false);
    pair.pump(Endpoint::A, 20);
    pair.network.mtu = 1300;
    pair.until("it arrives", |pair| pair.b.host.recvs.len() == 2);
    assert_eq!((pair.b.host.recvs[1].bytes, pair.b.host.recvs[1].value.value), (300_000, 9));
    assert!(pair.b.host.memory[500_000..][..300_000] == pair.a.host.memory[7..][..300_000]);
}

#[test]
fn send_with_invalidate_unbinds_before_its_receive_completes() {
    for seed in 0..20 {
        let (plan, network) = bad(seed);
        let mut pair = ConnPair::new(&plan);
        pair.network = network;
        let value = SendValue { arrival: ReceivedOp::SendInvalidate, value: WINDOW, solicited: true };
        for n in 0..3 {
            pair.recv(Endpoint::B, 500_000, 5000);
            pair.post(Endpoint::A, Operation::SendInvalidate { key: WINDOW, solicited: true }, n, 5000, false);
        }
        pair.until("they arrive", |pair| pair.b.host.recvs.len() == 3);
        assert!(pair.b.host.recvs.iter().all(|done| (done.value, done.bytes) == (value, 5000)));
        assert_eq!(pair.b.host.invalidated, [(WINDOW, 0), (WINDOW, 1), (WINDOW, 2)], "seed {seed}");
    }
}

#[test]
fn refused_operations_end_the_connection_and_change_nothing() {
    let swap = |key, address| Operation::CompareSwap { remote: Remote { key, address }, compare: 0, swap: 1 };
    let invalidate = Operation::SendInvalidate { key: WINDOW + 1, solicited: false };
    let cases = [
        ("no right", swap(READ_ONLY, BASE), Status::RemoteAccess, Status::Flushed),
        ("outside", swap(KEY, BASE + (1 << 20)), Status::RemoteAccess, Status::Flushed),
        ("misaligned", swap(KEY, BASE + 4), Status::RemoteResponder, Status::Flushed),
        ("no window", invalidate, Status::RemoteAccess, Status::LocalProtection),
        (
            "no right to write",
            Operation::WriteImmediate { remote: Remote { key: READ_ONLY, address: BASE }, data: 1, solicited: false },
            Status::RemoteAccess,
            Status::Flushed,
        ),
    ];
    for (what, work, status, receive) in cases {
        let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
        let before = pair.b.host.memory.clone();
        pair.recv(Endpoint::B, 500_000, 8);
        pair.post(Endpoint::A, work, 0, 8, false);
        pair.until(what, |pair| pair.a.host.requests.len() == 1 && pair.b.host.recvs.len() == 1);
        assert_eq!(pair.a.host.requests[0].status, status, "{what}: status of the request");
        assert_eq!(
            (pair.b.host.recvs[0].status, pair.b.host.executed),
            (receive, 0),
            "{what}: the receive fails, and no operation is executed"
        );
        assert!(
            pair.b.host.memory == before && pair.b.host.invalidated.is_empty(),
            "{what}: nothing changes at the peer"
        );
        pair.until(what, |pair| pair.a.events == [ConnectionEvent::Broken] && pair.b.events.len() == 1);
    }
}

#[test]
fn atomic_operation_on_unmapped_memory_fails_after_earlier_ones() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
    pair.b.host.memory[WORD..][..8].fill(0);
    add(&mut pair, Endpoint::A, BACK, WORD);
    pair.until("one is done", |pair| pair.a.host.requests.len() == 1);
    pair.b.host.unreadable = true;
    add(&mut pair, Endpoint::A, BACK, WORD);
    add(&mut pair, Endpoint::A, BACK, WORD);
    pair.until("all end", |pair| pair.a.host.requests.len() == 3);
    let statuses: Vec<_> = pair.a.host.requests.iter().map(|done| done.status).collect();
    assert_eq!(statuses, [Status::Success, Status::RemoteAccess, Status::Flushed]);
    assert_eq!(word(&pair.b.host.memory, WORD), 1);
}

#[test]
fn atomic_results_are_stored_until_acked() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, ..PairConfig::default() });
    pair.b.host.memory[WORD..][..8].fill(0);
    add(&mut pair, Endpoint::A, BACK, WORD);
    pair.pump(Endpoint::A, 10);
    pair.b.drops_all = true;
    pair.pass(5 * MILLIS);
    assert_eq!(
        (pair.b.host.executed, pair.a.host.requests.len()),
        (1, 0),
        "the operation is executed, and its response is lost"
    );
    // The word changes after the operation was executed. The retransmitted response must contain the stored result.
    pair.b.host.memory[WORD..][..8].fill(0xFF);
    pair.b.drops_all = false;
    pair.until("the answer comes", |pair| pair.a.host.requests.len() == 1);
    assert_eq!((word(&pair.a.host.memory, BACK), pair.b.host.executed), (0, 1));
}

#[test]
fn limit_of_outstanding_reads_also_limits_atomic_operations() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, reads: 2, ..PairConfig::default() });
    pair.b.drops_all = true;
    for n in 0..5 {
        add(&mut pair, Endpoint::A, BACK + 8 * n, WORD);
    }
    pair.pass(100 * MICROS);
    assert_eq!(pair.b.host.executed, 2);
    pair.b.drops_all = false;
    pair.until("all are done", |pair| pair.a.host.requests.len() == 5);
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, reads: 0, ..PairConfig::default() });
    add(&mut pair, Endpoint::A, BACK, WORD);
    pair.until("it fails", |pair| pair.a.host.requests.len() == 1);
    assert_eq!(pair.a.host.requests[0].status, Status::RemoteResponder);
}

#[test]
fn extension_operation_fails_without_support_of_the_peer() {
    let mut pair = ConnPair::new(&PairConfig { memory: 1 << 20, extensions: false, ..PairConfig::default() });
    pair.log = Some(Vec::new());
    assert!(!pair.a.conn.has_extensions());
    add(&mut pair, Endpoint::A, BACK, WORD);
    pair.until("it fails", |pair| pair.a.host.requests.len() == 1);
    assert_eq!((pair.a.host.requests[0].status, pair.b.host.executed), (Status::RemoteResponder, 0));
}
