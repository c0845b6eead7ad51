//! Eager writes: each is copied once, by the target or by the initiator, and before later operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::fast_path::{ConnectedPair, LENGTH};
use super::invalid_data::forge_fragment;
use super::long_sends::{PLENTY, allow, copies};
use super::*;
use crate::cq::PolledConnection;
use crate::proto::handshake::Geometry;
use crate::proto::message::{EagerWrite, Header, LINE, MessageKind};

/// Lengths of the writes in bytes: one is in its slot, the other in the RMA buffer.
const LENGTHS: [usize; 2] = [8, 1000];
/// Number of rounds in which the target and the initiator claim the same write.
const RACES: u32 = 4000;

/// Connects two queue pairs whose initiator counts its copies by the kernel.
fn counted(name: &str) -> ConnectedPair {
    let pair = ConnectedPair::new(name, false);
    allow(&pair.qps.0, PLENTY);
    pair
}

/// Makes the next write eager, unless an engine stops the polling meanwhile.
pub(super) fn permit_eager_write(pair: &ConnectedPair) {
    pair.qps.0.0.permit_eager_writes(true);
    pair.sides.iter().for_each(|side| assert_eq!(side.cq.poll(&mut [Completion::default()]), 0));
    pair.qps.0.0.clear_wake_flags();
    pair.qps.1.0.clear_wake_flags();
}

/// Posts a write by the fast path if possible, otherwise by the general path.
fn post_write(pair: &ConnectedPair, length: usize, cookie: u64) {
    let (op, segment) = (Op::Write(pair.remote(0)), pair.local(0, length));
    if !pair.is_posted(op, segment, cookie) {
        pair.qps.0.post_send(&wr(op, &[segment], cookie)).unwrap();
    }
}

/// Reads the first byte of the target memory, which another thread may write.
fn first_byte(pair: &ConnectedPair) -> u8 {
    // SAFETY: the memory is mapped as long as the program runs.
    unsafe { std::ptr::read_volatile(pair.remote_memory.as_ptr()) }
}

fn set_first_byte(pair: &ConnectedPair, value: u8) {
    // SAFETY: as in `first_byte`; the memory is mapped writable, and no reference to it is used meanwhile.
    unsafe { std::ptr::write_volatile(pair.remote_memory.as_ptr().cast_mut(), value) };
}

#[test]
fn polling_target_copies_eager_writes() {
    let pair = counted("eager-target");
    for length in LENGTHS {
        let until = Instant::now() + PATIENCE;
        // An engine that takes over in this moment makes the initiator copy, so the test tries again.
        loop {
            set_first_byte(&pair, 0);
            permit_eager_write(&pair);
            let before = copies(&pair.qps.0);
            post_write(&pair, length, 1);
            assert_eq!(
                pair.sides[1].cq.poll(&mut [Completion::default()]),
                0,
                "a write has no completion at the target"
            );
            let is_visible = pair.remote_memory[..length] == pair.local_memory[..length];
            pair.expect(1, Status::Success, length as u64);
            assert_eq!(&pair.remote_memory[..length], &pair.local_memory[..length]);
            if is_visible && copies(&pair.qps.0) == before {
                break;
            }
            assert!(Instant::now() < until, "the target has copied no write of {length} bytes");
        }
    }
}

#[test]
fn fast_path_posts_eager_writes() {
    let pair = counted("eager-quick");
    pair.poll_until_polled();
    let until = Instant::now() + PATIENCE;
    // Posts by the fast path until the write is eager: the kernel has copied nothing.
    let post = |remote, length, cookie, suppress| loop {
        assert!(Instant::now() < until, "the fast path has posted no eager write");
        permit_eager_write(&pair);
        let (before, op, segment) = (copies(&pair.qps.0), Op::Write(remote), pair.local(0, length));
        let is_posted = match suppress {
            true => pair.is_posted_suppressed(op, segment, cookie),
            false => pair.is_posted(op, segment, cookie),
        };
        if is_posted && copies(&pair.qps.0) == before {
            break;
        }
        if !is_posted {
            pair.qps.0.post_send(&wr(op, &[segment], cookie)).unwrap();
        }
        if !is_posted || !suppress {
            pair.expect(cookie, Status::Success, length as u64);
        }
    };
    for length in [8, 1000, 32 << 10] {
        set_first_byte(&pair, 0);
        post(pair.remote(0), length, 1, false);
        pair.expect(1, Status::Success, length as u64);
        assert_eq!(&pair.remote_memory[..length], &pair.local_memory[..length]);
        set_first_byte(&pair, 0);
        post(pair.remote(0), length, 2, true);
        post(pair.remote(8), 8, 3, false);
        pair.expect(3, Status::Success, 8);
        assert_eq!(first_byte(&pair), pair.local_memory[0], "a suppressed write before a complete one");
    }
    let mr = {
        let region = Region { address: pair.remote_memory.as_ptr() as u64, length: 64 };
        pair.sides[1].ia.register(&pair.sides[1].pd, region, Access { remote_write: false, ..ALL }).unwrap()
    };
    post(Remote { key: mr.remote_key(), ..pair.remote(0) }, 8, 4, false);
    post_write(&pair, 8, 5);
    pair.expect(4, Status::RemoteAccess, 0);
    pair.expect(5, Status::Flushed, 0);
}

#[test]
fn eager_write_is_reclaimed_if_the_target_does_not_poll() {
    let pair = counted("eager-reclaim");
    for length in LENGTHS {
        let until = Instant::now() + PATIENCE;
        loop {
            permit_eager_write(&pair);
            let before = copies(&pair.qps.0);
            post_write(&pair, length, 1);
            let is_eager = copies(&pair.qps.0) == before;
            pair.expect(1, Status::Success, length as u64);
            assert_eq!(&pair.remote_memory[..length], &pair.local_memory[..length]);
            if is_eager && copies(&pair.qps.0) > before {
                break;
            }
            assert!(Instant::now() < until, "no write of {length} bytes was reclaimed");
        }
        // After a reclaim, the next writes are not eager.
        pair.sides.iter().for_each(|side| assert_eq!(side.cq.poll(&mut [Completion::default()]), 0));
        let before = copies(&pair.qps.0);
        post_write(&pair, length, 2);
        assert_eq!(copies(&pair.qps.0), before + 1, "a write after a reclaim is eager");
        pair.expect(2, Status::Success, length as u64);
    }
}

#[test]
fn suppressed_eager_write_is_copied_although_neither_program_polls() {
    let pair = counted("eager-asleep");
    for value in 1..50 {
        set_first_byte(&pair, 0);
        permit_eager_write(&pair);
        let segments = [pair.local(value, 8)];
        let write = SendWr { suppress: true, ..wr(Op::Write(pair.remote(0)), &segments, 1) };
        pair.qps.0.post_send(&write).unwrap();
        let until = Instant::now() + PATIENCE;
        while first_byte(&pair) != pair.local_memory[value] {
            assert!(Instant::now() < until, "the write is not copied");
            thread::yield_now();
        }
    }
}

/// Ends `poll_irregularly` when it is dropped, also by a failed assertion.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls the target with random pauses, so that about half of the writes are reclaimed.
pub(super) fn poll_irregularly(side: &Side, stop: &AtomicBool) {
    let mut random = 1u32;
    while !stop.load(Ordering::Acquire) {
        side.cq.poll(&mut [Completion::default()]);
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let pause = Instant::now() + Duration::from_micros(u64::from(random >> 24) % 24);
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn completed_eager_write_is_not_copied_again() {
    let pair = counted("eager-once");
    let stop = AtomicBool::new(false);
    let (mut round, mut reclaimed, mut copied_by_target) = (0, 0, 0);
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        while round < RACES || reclaimed == 0 || copied_by_target == 0 {
            assert!(Instant::now() < until, "round {round}: {reclaimed} reclaimed, {copied_by_target} by the target");
            let length = LENGTHS[round as usize % 2];
            pair.qps.0.0.permit_eager_writes(true);
            assert_eq!(pair.sides[0].cq.poll(&mut [Completion::default()]), 0);
            let before = copies(&pair.qps.0);
            post_write(&pair, length, round.into());
            let is_eager = copies(&pair.qps.0) == before;
            pair.expect(round.into(), Status::Success, length as u64);
            assert_eq!(first_byte(&pair), pair.local_memory[0], "round {round}: the write is not visible");
            let is_reclaimed = copies(&pair.qps.0) > before;
            reclaimed += u32::from(is_eager && is_reclaimed);
            copied_by_target += u32::from(is_eager && !is_reclaimed);
            // A second copy of this write would change the byte back.
            set_first_byte(&pair, 0);
            let pause = Instant::now() + Duration::from_micros(5);
            while Instant::now() < pause {
                assert_eq!(first_byte(&pair), 0, "round {round}: the write was copied again");
            }
            round += 1;
        }
    });
}

#[test]
fn later_operations_do_not_overtake_eager_writes() {
    let pair = counted("eager-order");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| poll_irregularly(&pair.sides[1], &stop));
        for round in 0..RACES / 2 {
            pair.qps.0.0.permit_eager_writes(true);
            assert_eq!(pair.sides[0].cq.poll(&mut [Completion::default()]), 0);
            post_write(&pair, LENGTHS[round as usize % 2], 1);
            // The second operation is a longer write, a short write, or reads what the first one has written.
            let (op, second) = match round / 2 % 3 {
                0 => (Op::Write(pair.remote(0)), pair.local(100, 8192)),
                1 => (Op::Write(pair.remote(0)), pair.local(100, 8)),
                _ => (Op::Read(pair.remote(0)), pair.local(16384, 8)),
            };
            pair.qps.0.post_send(&wr(op, &[second], 2)).unwrap();
            pair.expect(1, Status::Success, LENGTHS[round as usize % 2] as u64);
            pair.expect(2, Status::Success, second.length);
            if let Op::Read(_) = op {
                assert_eq!(pair.local_memory[16384..16392], pair.local_memory[..8], "round {round}");
            } else {
                assert_eq!(first_byte(&pair), pair.local_memory[100], "round {round}: the order has changed");
            }
        }
    });
}

#[test]
fn eager_writes_are_visible_before_a_later_send_completes_its_receive() {
    let pair = counted("eager-send");
    for round in 0..RACES / 2 {
        permit_eager_write(&pair);
        pair.qps.1.post_recv(&[], token(3)).unwrap();
        set_first_byte(&pair, 0);
        post_write(&pair, LENGTHS[round as usize % 2], 1);
        pair.qps.0.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
        if round % 2 == 1 {
            pair.qps.0.0.reclaim_eager_writes(); // The receiver must skip the write that it finds in the ring.
        }
        assert_eq!(pair.sides[1].completion().token.cookie, 3);
        assert_eq!(first_byte(&pair), pair.local_memory[0], "round {round}");
        pair.expect(1, Status::Success, LENGTHS[round as usize % 2] as u64);
        pair.expect(2, Status::Success, 0);
    }
}

#[test]
fn target_copies_reclaimed_writes_if_the_kernel_denies_the_copy() {
    for length in LENGTHS {
        let pair = counted(&format!("eager-denied-{length}"));
        let until = Instant::now() + PATIENCE;
        loop {
            permit_eager_write(&pair);
            let before = copies(&pair.qps.0);
            (0..3).for_each(|cookie| post_write(&pair, length, cookie));
            if copies(&pair.qps.0) == before {
                break;
            }
            (0..3).for_each(|cookie| pair.expect(cookie, Status::Success, length as u64));
            assert!(Instant::now() < until, "no write is eager");
        }
        allow(&pair.qps.0, 1);
        let is_usable =
            |pair: &ConnectedPair| pair.qps.0.0.link().unwrap().peer_side().unwrap().peer.cma.load(Ordering::Relaxed);
        pair.qps.0.0.reclaim_eager_writes();
        // Unless the target's engine was faster, the first write was copied, and the second copy was denied.
        for cookie in 0..3 {
            pair.expect(cookie, Status::Success, length as u64);
        }
        assert_eq!(&pair.remote_memory[..length], &pair.local_memory[..length]);
        if !is_usable(&pair) {
            post_write(&pair, length, 4); // As fragments.
            pair.expect(4, Status::Success, length as u64);
        }
    }
}

#[test]
fn eager_write_behind_an_offer_without_a_receive_is_reclaimed() {
    let pair = counted("eager-offer");
    let send = Op::Send { solicited: false };
    pair.qps.0.post_send(&wr(send, &[pair.local(0, LENGTH)], 1)).unwrap();
    for value in 1..20 {
        set_first_byte(&pair, 0);
        permit_eager_write(&pair);
        pair.qps.0.post_send(&wr(Op::Write(pair.remote(0)), &[pair.local(value, 8)], 2)).unwrap();
        let until = Instant::now() + PATIENCE;
        while first_byte(&pair) != pair.local_memory[value] {
            assert_eq!(pair.sides[0].cq.poll(&mut [Completion::default()]), 0, "the send is not complete");
            assert!(Instant::now() < until, "write {value} is not copied");
        }
    }
}

#[test]
fn suppressed_eager_write_is_reclaimed_while_the_initiator_polls() {
    let pair = counted("eager-suppressed");
    let until = Instant::now() + PATIENCE;
    // The target's engine may copy single writes.
    while copies(&pair.qps.0) == 0 {
        assert!(Instant::now() < until, "no write was reclaimed");
        set_first_byte(&pair, 0);
        permit_eager_write(&pair);
        let segments = [pair.local(0, 8)];
        let write = SendWr { suppress: true, ..wr(Op::Write(pair.remote(0)), &segments, 1) };
        pair.qps.0.post_send(&write).unwrap();
        if copies(&pair.qps.0) > 0 {
            allow(&pair.qps.0, PLENTY); // The write was not eager.
        }
        while first_byte(&pair) != pair.local_memory[0] {
            assert_eq!(pair.sides[0].cq.poll(&mut [Completion::default()]), 0);
            assert!(Instant::now() < until, "the write is not copied");
        }
    }
}

#[test]
fn no_operation_starts_after_a_failed_eager_write() {
    let pair = counted("eager-failed");
    let read_only = Box::new([0u8; 64]);
    let region = Region { address: read_only.as_ptr() as u64, length: 64 };
    let mr = pair.sides[1].ia.register(&pair.sides[1].pd, region, Access { remote_write: false, ..ALL }).unwrap();
    permit_eager_write(&pair);
    let refused = Remote { key: mr.remote_key(), address: region.address };
    pair.qps.0.post_send(&wr(Op::Write(refused), &[pair.local(0, 8)], 1)).unwrap();
    pair.qps.0.post_send(&wr(Op::Write(pair.remote(0)), &[pair.local(0, 8192)], 2)).unwrap();
    pair.expect(1, Status::RemoteAccess, 0);
    pair.expect(2, Status::Flushed, 0);
    assert_eq!((first_byte(&pair), *std::hint::black_box(read_only)), (0, [0; 64]));
}

#[test]
fn write_to_zero_based_memory_is_not_eager() {
    let pair = counted("eager-zero-based");
    let memory = Box::new([0u8; 64]);
    let region = Region { address: memory.as_ptr() as u64, length: 64 };
    let mr = pair.sides[1].ia.register(&pair.sides[1].pd, region, Access { zero_based: true, ..ALL }).unwrap();
    for _ in 0..50 {
        permit_eager_write(&pair);
        let remote = Remote { key: mr.remote_key(), address: 0 };
        pair.qps.0.post_send(&wr(Op::Write(remote), &[pair.local(0, 8)], 1)).unwrap();
        pair.expect(1, Status::Success, 8);
        assert_eq!(std::hint::black_box(&memory)[..8], pair.local_memory[..8]);
    }
}

#[test]
fn invalid_eager_write_ends_the_connection() {
    let header = |inline, length| Header { inline, ..Header::plain(MessageKind::EagerWrite, length) }.encode();
    let base = TestBase::new("eager-invalid");
    let (a, b) = (base.open(), base.open());
    let memory = vec![1u8; 4096];
    let mr = b.register(&memory);
    let (key, other) = (u64::from(mr.remote_key()), u64::from(mr.remote_key() ^ 1));
    let invalid = [
        ("more bytes than a slot has", header(true, EagerWrite::INLINE as u32 + 1), 0, key),
        ("no bytes", header(true, 0), 0, key),
        ("a line outside the buffer", header(false, 8), u32::MAX, key),
        ("bytes outside the buffer", header(false, 4096), Geometry::LOCAL.rma_len() as u32 / LINE as u32 - 1, key),
        ("a key of 33 bits", header(true, 8), 0, key | 1 << 32),
    ];
    for (n, (what, header, aux, key)) in invalid.into_iter().enumerate() {
        let id = 100 + 2 * n;
        let (malicious, _victim) = connected(&a, &b, 7, id);
        let address = memory.as_ptr() as u64;
        forge_fragment(&malicious, header, aux, |body| body[..2].copy_from_slice(&[address, key]));
        assert_eq!(b.sink.next(conn(id + 1)), SinkEvent::Other("broken"), "{what}");
        assert_eq!(a.sink.next(conn(id)), SinkEvent::Other("disconnected"), "{what}");
    }
    let (malicious, _victim) = connected(&a, &b, 7, 300);
    forge_fragment(&malicious, header(true, 8), 0, |body| body[..2].copy_from_slice(&[memory.as_ptr() as u64, other]));
    assert_eq!(b.sink.next(conn(301)), SinkEvent::Other("broken"), "a key of no registration");
    assert!(memory.iter().all(|byte| *byte == 1));
}
