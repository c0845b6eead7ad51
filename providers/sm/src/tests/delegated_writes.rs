//! Delegated parts of long RDMA writes: each byte is copied once, the order of writes is kept, and faults are reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::mm::MapFlags;

use super::eager_writes::{StopOnDrop, permit_eager_write, poll_irregularly};
use super::exports::mapping;
use super::fast_path::ConnectedPair;
use super::invalid_data::forge_fragment;
use super::long_sends::{PLENTY, allow, copies};
use super::*;
use crate::proto::message::{Header, MAX_PART_BYTES, MessageKind};

/// Length of the memory of each side in bytes: six parts.
const LENGTH: usize = 6 * MAX_PART_BYTES as usize;
const PART: usize = MAX_PART_BYTES as usize;
/// Number of rounds in which both sides copy.
const ROUNDS: usize = 300;

/// Connects two queue pairs that count their copies by the kernel, with memory that is long enough for several parts.
fn long_pair(name: &str) -> ConnectedPair {
    let pair = ConnectedPair::with_memory(name, false, LENGTH);
    allow(&pair.qps.0, PLENTY);
    allow(&pair.qps.1, PLENTY);
    pair
}

/// Permits delegated parts if the target polls.
fn permit_if_polled(pair: &ConnectedPair) {
    pair.qps.0.0.permit_eager_writes(true);
    assert_eq!(pair.sides[0].cq.poll(&mut [Completion::default()]), 0);
}

fn write(pair: &ConnectedPair, to: usize, from: usize, length: usize, cookie: u64) {
    pair.qps.0.post_send(&wr(Op::Write(pair.remote(to)), &[pair.local(from, length)], cookie)).unwrap();
}

fn clear(pair: &ConnectedPair) {
    (0..LENGTH).for_each(|n| set(pair.remote_memory, n, 0));
}

/// Reads a byte that another thread may write.
fn get(memory: &[u8], at: usize) -> u8 {
    assert!(at < memory.len());
    // SAFETY: the byte is in the slice, by the assertion.
    unsafe { std::ptr::read_volatile(memory.as_ptr().add(at)) }
}

/// Changes a byte of the target's memory.
fn set(memory: &'static [u8], at: usize, value: u8) {
    assert!(at < memory.len());
    // SAFETY: the byte is in the slice, by the assertion. `mapping` has mapped this memory writable, and it stays mapped.
    // No transfer writes it meanwhile.
    unsafe { std::ptr::write_volatile(memory.as_ptr().add(at).cast_mut(), value) };
}

#[test]
fn polling_target_copies_a_delegated_part() {
    let pair = long_pair("delegated-target");
    let until = Instant::now() + PATIENCE;
    // An engine that takes over in this moment makes the initiator copy, so the test tries again.
    loop {
        clear(&pair);
        permit_eager_write(&pair);
        let before = [copies(&pair.qps.0), copies(&pair.qps.1)];
        write(&pair, 0, 0, PART, 1);
        assert_eq!(pair.sides[1].cq.poll(&mut [Completion::default()]), 0, "a write has no completion at the target");
        pair.expect(1, Status::Success, PART as u64);
        assert_eq!(pair.remote_memory[..PART], pair.local_memory[..PART]);
        assert!(pair.remote_memory[PART..].iter().all(|byte| *byte == 0));
        if [copies(&pair.qps.0), copies(&pair.qps.1)] == [before[0], before[1] + 1] {
            break;
        }
        assert!(Instant::now() < until, "the target has copied no part");
    }
}

#[test]
fn both_sides_copy_each_byte_of_a_long_write_once() {
    let pair = long_pair("delegated-both");
    let stop = AtomicBool::new(false);
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        let mut round = 0;
        while round < ROUNDS || copies(&pair.qps.1) == 0 {
            assert!(Instant::now() < until, "round {round}: the target has copied nothing");
            permit_if_polled(&pair);
            // Lengths around the limits of parts, and an unaligned destination.
            let length = [LENGTH - 3, PART + 1, PART + 64, 2 * PART, PART / 2 + 63, 3 * PART + 70_000][round % 6];
            let to = round % 3;
            (0..LENGTH).step_by(4093).for_each(|n| set(pair.remote_memory, n, 0));
            write(&pair, to, 0, length, round as u64);
            pair.expect(round as u64, Status::Success, length as u64);
            assert!(pair.remote_memory[to..to + length] == pair.local_memory[..length], "round {round}: wrong bytes");
            // A second copy of a part would change this byte back.
            set(pair.remote_memory, to, 0);
            let pause = Instant::now() + Duration::from_micros(5);
            while Instant::now() < pause {
                assert_eq!(get(pair.remote_memory, to), 0, "round {round}: a part was copied again");
            }
            round += 1;
        }
    });
}

#[test]
fn last_byte_of_a_shared_write_becomes_visible_last() {
    let pair = long_pair("delegated-last");
    let stop = AtomicBool::new(false);
    for round in 0..ROUNDS {
        let length = if round % 2 == 0 { PART } else { LENGTH };
        // A byte of each page before the last byte.
        let samples = || (0..length - 1).step_by(4096);
        samples().chain([length - 1]).for_each(|n| set(pair.remote_memory, n, 0));
        stop.store(false, Ordering::Release);
        thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
            let watcher = scope.spawn(|| {
                let until = Instant::now() + PATIENCE;
                while get(pair.remote_memory, length - 1) == 0 {
                    assert!(Instant::now() < until, "round {round}: the last byte is not visible");
                    thread::yield_now();
                }
                std::sync::atomic::fence(Ordering::Acquire);
                assert!(
                    samples().all(|n| get(pair.remote_memory, n) != 0),
                    "round {round}: an earlier byte is missing"
                );
            });
            permit_if_polled(&pair);
            // One long write, or several that follow each other.
            if round % 4 < 2 {
                write(&pair, 0, 0, length, 1);
            } else {
                (0..length / PART).for_each(|n| write(&pair, n * PART, n * PART, PART, 1));
            }
            let writes = if round % 4 < 2 { 1 } else { length / PART };
            (0..writes).for_each(|_| pair.expect(1, Status::Success, (length / writes) as u64));
            watcher.join().unwrap();
        });
    }
}

#[test]
fn overlapping_writes_keep_their_order() {
    let pair = long_pair("delegated-overlap");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        for round in 0..ROUNDS {
            permit_if_polled(&pair);
            // The second write covers the whole of the first one, or its last page.
            let to = if round % 2 == 0 { 0 } else { PART - 4096 };
            write(&pair, 0, 1, PART, 1);
            write(&pair, to, 2, PART, 2);
            pair.expect(1, Status::Success, PART as u64);
            pair.expect(2, Status::Success, PART as u64);
            assert!(pair.remote_memory[to..to + PART] == pair.local_memory[2..PART + 2], "round {round}");
            assert!(pair.remote_memory[..to] == pair.local_memory[1..to + 1], "round {round}");
        }
    });
}

#[test]
fn shared_writes_are_visible_before_a_later_send_or_read() {
    let pair = long_pair("delegated-send");
    let stop = AtomicBool::new(false);
    for round in 0..ROUNDS {
        permit_eager_write(&pair);
        let length = if round % 2 == 0 { PART } else { 3 * PART };
        set(pair.remote_memory, 0, 0);
        set(pair.remote_memory, length - 1, 0);
        if round % 3 == 0 {
            thread::scope(|scope| {
                stop.store(false, Ordering::Release);
                let _stop = StopOnDrop(&stop);
                scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
                write(&pair, 0, 0, length, 1);
                let read = [pair.local(4 * PART, PART)];
                pair.qps.0.post_send(&wr(Op::Read(pair.remote(length - PART)), &read, 2)).unwrap();
                pair.expect(1, Status::Success, length as u64);
                pair.expect(2, Status::Success, PART as u64);
            });
            assert!(pair.local_memory[4 * PART..5 * PART] == pair.local_memory[length - PART..length], "round {round}");
            continue;
        }
        pair.qps.1.post_recv(&[], token(3)).unwrap();
        write(&pair, 0, 0, length, 1);
        pair.qps.0.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
        if length > PART {
            pair.expect(1, Status::Success, length as u64); // Only passes of this side copy its parts.
        }
        assert_eq!(pair.sides[1].completion().token.cookie, 3);
        assert!(pair.remote_memory[..length] == pair.local_memory[..length], "round {round}");
        if length == PART {
            pair.expect(1, Status::Success, length as u64);
        }
        pair.expect(2, Status::Success, 0);
    }
}

#[test]
fn initiator_copies_a_part_that_the_kernel_denies_to_the_target() {
    let pair = long_pair("delegated-denied");
    let until = Instant::now() + PATIENCE;
    let mut was_denied = false;
    while !was_denied {
        assert!(Instant::now() < until, "no copy of the target was denied");
        clear(&pair);
        permit_eager_write(&pair);
        allow(&pair.qps.1, 0);
        write(&pair, 0, 0, PART, 1);
        write(&pair, PART, PART, 2 * PART, 2);
        pair.qps.0.post_send(&wr(Op::Write(pair.remote(3 * PART)), &[pair.local(3 * PART, 8)], 3)).unwrap();
        pair.sides[1].cq.poll(&mut [Completion::default()]);
        was_denied = !pair.qps.1.0.link().unwrap().peer_side().unwrap().peer.cma.load(Ordering::Relaxed);
        pair.expect(1, Status::Success, PART as u64);
        pair.expect(2, Status::Success, 2 * PART as u64);
        pair.expect(3, Status::Success, 8);
        assert!(pair.remote_memory[..3 * PART + 8] == pair.local_memory[..3 * PART + 8]);
    }
    for cookie in 4..40 {
        permit_eager_write(&pair);
        set(pair.remote_memory, 0, 0);
        write(&pair, 0, 0, if cookie % 2 == 0 { PART } else { 8 }, cookie);
        let bytes = if cookie % 2 == 0 { PART as u64 } else { 8 };
        pair.expect(cookie, Status::Success, bytes);
        assert_eq!(get(pair.remote_memory, 0), pair.local_memory[0], "write {cookie}");
    }
}

#[test]
fn target_that_does_not_poll_gets_long_writes() {
    let pair = long_pair("delegated-reclaim");
    for round in 0..20 {
        clear(&pair);
        permit_eager_write(&pair);
        let length = [PART, LENGTH][round % 2];
        write(&pair, 0, 0, length, 1);
        pair.expect(1, Status::Success, length as u64);
        assert!(pair.remote_memory[..length] == pair.local_memory[..length], "round {round}");
    }
}

#[test]
fn missing_source_memory_fails_a_shared_write() {
    let pair = long_pair("delegated-source");
    let missing = mapping(None, PART, MapFlags::PRIVATE);
    let mr = pair.sides[0].register(missing);
    let part = segment(&mr, missing);
    // SAFETY: nothing refers to this memory any more.
    unsafe { rustix::mm::munmap(missing.as_ptr().cast_mut().cast(), PART) }.unwrap();
    permit_eager_write(&pair);
    pair.qps.0.post_send(&wr(Op::Write(pair.remote(0)), &[part], 1)).unwrap();
    write(&pair, 0, 0, 8, 2);
    pair.sides[1].cq.poll(&mut [Completion::default()]);
    pair.expect(1, Status::LocalProtection, 0);
    pair.expect(2, Status::Flushed, 0);
    assert_eq!(get(pair.remote_memory, 0), 0, "no operation starts after a failed one");
}

#[test]
fn missing_target_memory_fails_a_shared_write() {
    let pair = long_pair("delegated-access");
    let read_only = Access { remote_write: false, ..ALL };
    let region = Region { address: pair.remote_memory.as_ptr() as u64, length: LENGTH as u64 };
    let mr = pair.sides[1].ia.register(&pair.sides[1].pd, region, read_only).unwrap();
    permit_eager_write(&pair);
    let refused = Remote { key: mr.remote_key(), ..pair.remote(0) };
    pair.qps.0.post_send(&wr(Op::Write(refused), &[pair.local(0, PART)], 1)).unwrap();
    write(&pair, 0, 0, 8, 2);
    pair.expect(1, Status::RemoteAccess, 0);
    pair.expect(2, Status::Flushed, 0);
    assert_eq!(get(pair.remote_memory, 0), 0);
}

#[test]
fn invalid_delegated_part_ends_the_connection() {
    let base = TestBase::new("delegated-invalid");
    let (a, b) = (base.open(), base.open());
    let memory = vec![1u8; 4096];
    let (source, mr) = (a.register(&memory), b.register(&memory));
    let (key, address) = (mr.remote_key(), memory.as_ptr() as u64);
    let source = u64::from(source.local_key()) << 32;
    let invalid = [
        ("no bytes", 0, address, u64::from(key) | source),
        ("more bytes than a part has", MAX_PART_BYTES as u32 + 1, address, u64::from(key) | source),
        ("a destination outside of the registration", 8, address + 4090, u64::from(key) | source),
        ("a key of no registration", 8, address, u64::from(key ^ 1) | source),
    ];
    for (n, (what, length, address, keys)) in invalid.into_iter().enumerate() {
        let id = 100 + 2 * n;
        let (malicious, _victim) = connected(&a, &b, 7, id);
        let header = Header::plain(MessageKind::DelegatedWrite, length).encode();
        let from = memory.as_ptr() as u64;
        forge_fragment(&malicious, header, 0, |body| body[..3].copy_from_slice(&[address, keys, from]));
        assert_eq!(b.sink.next(conn(id + 1)), SinkEvent::Other("broken"), "{what}");
        // A response to an operation that the sender has not posted breaks its connection too.
        let sender = if what.starts_with("a ") { "broken" } else { "disconnected" };
        assert_eq!(a.sink.next(conn(id)), SinkEvent::Other(sender), "{what}");
    }
    assert!(memory.iter().all(|byte| *byte == 1));
}
