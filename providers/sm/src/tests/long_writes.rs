//! Eager writes of several parts: each part is copied once, the order of writes is kept, and faults are reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::mm::MapFlags;

use super::eager_writes::{StopOnDrop, permit_eager_write, poll_irregularly};
use super::exports::mapping;
use super::fast_path::ConnectedPair;
use super::long_sends::{PLENTY, allow, copies};
use super::*;
use crate::proto::handshake::Geometry;

/// Length of a write that fits in the RMA buffer, in several parts.
const LONG: usize = Geometry::LOCAL.rma as usize / 2;
/// Length of the memory of each side in bytes. A write of this length exceeds the RMA buffer.
const LENGTH: usize = 6 * LONG;
/// Number of rounds in which the target may copy, or the initiator reclaims.
const ROUNDS: usize = 300;

/// Connects two queue pairs that count their copies by the kernel.
fn long_pair(name: &str) -> ConnectedPair {
    let pair = ConnectedPair::with_memory(name, false, LENGTH);
    allow(&pair.qps.0, PLENTY);
    allow(&pair.qps.1, PLENTY);
    pair
}

/// Permits eager writes if the target polls.
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
fn polling_target_copies_a_long_write() {
    let pair = long_pair("long-target");
    let until = Instant::now() + PATIENCE;
    // An engine that takes over in this moment makes the initiator copy, so the test tries again.
    loop {
        clear(&pair);
        permit_eager_write(&pair);
        let before = [copies(&pair.qps.0), copies(&pair.qps.1)];
        write(&pair, 0, 0, LONG, 1);
        assert_eq!(pair.sides[1].cq.poll(&mut [Completion::default()]), 0, "a write has no completion at the target");
        pair.expect(1, Status::Success, LONG as u64);
        assert_eq!(pair.remote_memory[..LONG], pair.local_memory[..LONG]);
        assert!(pair.remote_memory[LONG..].iter().all(|byte| *byte == 0));
        if [copies(&pair.qps.0), copies(&pair.qps.1)] == before {
            break;
        }
        assert!(Instant::now() < until, "the kernel has copied each write");
    }
}

#[test]
fn each_byte_of_a_long_write_is_copied_once() {
    let pair = long_pair("long-once");
    let stop = AtomicBool::new(false);
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        let (mut round, mut reclaimed, mut copied_by_target) = (0, 0, 0);
        while round < ROUNDS || reclaimed == 0 || copied_by_target == 0 {
            assert!(Instant::now() < until, "round {round}: {reclaimed} reclaimed, {copied_by_target} by the target");
            permit_if_polled(&pair);
            // Lengths around the limits of parts and of the buffer, and an unaligned destination.
            let length = [LENGTH - 3, LONG + 1, LONG + 64, 2 * LONG, LONG / 2 + 63, 3 * LONG + 70_000][round % 6];
            let to = round % 3;
            (0..LENGTH).step_by(4093).for_each(|n| set(pair.remote_memory, n, 0));
            let before = copies(&pair.qps.0);
            write(&pair, to, 0, length, round as u64);
            pair.expect(round as u64, Status::Success, length as u64);
            let by_kernel = copies(&pair.qps.0) - before;
            reclaimed += u32::from(by_kernel > 0);
            copied_by_target += u32::from(by_kernel == 0);
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
fn last_byte_of_a_long_write_becomes_visible_last() {
    let pair = long_pair("long-last");
    let stop = AtomicBool::new(false);
    for round in 0..ROUNDS {
        let length = if round % 2 == 0 { LONG } else { LENGTH };
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
                (0..length / LONG).for_each(|n| write(&pair, n * LONG, n * LONG, LONG, 1));
            }
            let writes = if round % 4 < 2 { 1 } else { length / LONG };
            (0..writes).for_each(|_| pair.expect(1, Status::Success, (length / writes) as u64));
            watcher.join().unwrap();
        });
    }
}

#[test]
fn overlapping_writes_keep_their_order() {
    let pair = long_pair("long-overlap");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        for round in 0..ROUNDS {
            permit_if_polled(&pair);
            // The second write covers the whole of the first one, or its last page.
            let to = if round % 2 == 0 { 0 } else { LONG - 4096 };
            write(&pair, 0, 1, LONG, 1);
            write(&pair, to, 2, LONG, 2);
            pair.expect(1, Status::Success, LONG as u64);
            pair.expect(2, Status::Success, LONG as u64);
            assert!(pair.remote_memory[to..to + LONG] == pair.local_memory[2..LONG + 2], "round {round}");
            assert!(pair.remote_memory[..to] == pair.local_memory[1..to + 1], "round {round}");
        }
    });
}

#[test]
fn long_writes_are_visible_before_a_later_send_or_read() {
    let pair = long_pair("long-send");
    let stop = AtomicBool::new(false);
    for round in 0..ROUNDS {
        permit_eager_write(&pair);
        let length = if round % 2 == 0 { LONG } else { 3 * LONG };
        set(pair.remote_memory, 0, 0);
        set(pair.remote_memory, length - 1, 0);
        if round % 3 == 0 {
            thread::scope(|scope| {
                stop.store(false, Ordering::Release);
                let _stop = StopOnDrop(&stop);
                scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
                write(&pair, 0, 0, length, 1);
                let read = [pair.local(4 * LONG, LONG)];
                pair.qps.0.post_send(&wr(Op::Read(pair.remote(length - LONG)), &read, 2)).unwrap();
                pair.expect(1, Status::Success, length as u64);
                pair.expect(2, Status::Success, LONG as u64);
            });
            assert!(pair.local_memory[4 * LONG..5 * LONG] == pair.local_memory[length - LONG..length], "round {round}");
            continue;
        }
        pair.qps.1.post_recv(&[], token(3)).unwrap();
        write(&pair, 0, 0, length, 1);
        pair.qps.0.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
        if length > LONG {
            pair.expect(1, Status::Success, length as u64); // Only passes of this side publish the parts.
        }
        assert_eq!(pair.sides[1].completion().token.cookie, 3);
        assert!(pair.remote_memory[..length] == pair.local_memory[..length], "round {round}");
        if length == LONG {
            pair.expect(1, Status::Success, length as u64);
        }
        pair.expect(2, Status::Success, 0);
    }
}

#[test]
fn long_write_is_completed_by_the_target_if_the_kernel_denies_a_reclaimed_part() {
    for permitted in [0, 1] {
        let pair = long_pair(&format!("long-denied-{permitted}"));
        permit_eager_write(&pair);
        write(&pair, 0, 0, LENGTH, 1);
        write(&pair, 0, 8, 8, 2);
        allow(&pair.qps.0, permitted);
        pair.qps.0.0.reclaim_eager_writes();
        pair.expect(1, Status::Success, LENGTH as u64);
        pair.expect(2, Status::Success, 8);
        assert!(
            pair.remote_memory[8..] == pair.local_memory[8..] && pair.remote_memory[..8] == pair.local_memory[8..16]
        );
    }
}

#[test]
fn target_that_does_not_poll_gets_long_writes() {
    let pair = long_pair("long-reclaim");
    for round in 0..20 {
        clear(&pair);
        permit_eager_write(&pair);
        let length = [LONG, LENGTH][round % 2];
        write(&pair, 0, 0, length, 1);
        pair.expect(1, Status::Success, length as u64);
        assert!(pair.remote_memory[..length] == pair.local_memory[..length], "round {round}");
    }
}

#[test]
fn missing_source_memory_fails_a_long_write() {
    let pair = long_pair("long-source");
    let missing = mapping(None, LONG, MapFlags::PRIVATE);
    let mr = pair.sides[0].register(missing);
    let part = segment(&mr, missing);
    // SAFETY: nothing refers to this memory any more.
    unsafe { rustix::mm::munmap(missing.as_ptr().cast_mut().cast(), LONG) }.unwrap();
    permit_eager_write(&pair);
    pair.qps.0.post_send(&wr(Op::Write(pair.remote(0)), &[part], 1)).unwrap();
    write(&pair, 0, 0, 8, 2);
    pair.sides[1].cq.poll(&mut [Completion::default()]);
    pair.expect(1, Status::LocalProtection, 0);
    pair.expect(2, Status::Flushed, 0);
    assert_eq!(get(pair.remote_memory, 0), 0, "no operation starts after a failed one");
}

#[test]
fn missing_target_memory_fails_a_long_write() {
    let pair = long_pair("long-access");
    let read_only = Access { remote_write: false, ..ALL };
    let region = Region { address: pair.remote_memory.as_ptr() as u64, length: LENGTH as u64 };
    let mr = pair.sides[1].ia.register(&pair.sides[1].pd, region, read_only).unwrap();
    permit_eager_write(&pair);
    let refused = Remote { key: mr.remote_key(), ..pair.remote(0) };
    pair.qps.0.post_send(&wr(Op::Write(refused), &[pair.local(0, LONG)], 1)).unwrap();
    write(&pair, 0, 0, 8, 2);
    pair.expect(1, Status::RemoteAccess, 0);
    pair.expect(2, Status::Flushed, 0);
    assert_eq!(get(pair.remote_memory, 0), 0);
}
