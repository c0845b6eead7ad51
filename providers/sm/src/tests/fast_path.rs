//! Requests that the post call executes (fast path): copied bytes, completions, and requests that use the general path.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::MapFlags;

use super::exports::{mapping, sealed};
use super::*;
use crate::cq::PolledConnection;
use crate::memory::cma::CHUNK;
use crate::memory::map::SharedMapping;
use crate::proto::message::INLINE;

/// Length of the memory of each side in bytes.
pub(super) const LENGTH: usize = 16 << 12;

/// Two connected queue pairs, and their memory.
pub(super) struct ConnectedPair {
    /// The first member, because it must be dropped before the IAs.
    pub(super) qps: (Qp, Qp),
    pub(super) sides: [Side; 2],
    pub(super) local_memory: Vec<u8>,
    pub(super) remote_memory: &'static [u8],
    mrs: (Mr, Mr),
    _base: TestBase,
}

impl ConnectedPair {
    pub(super) fn new(name: &str, is_shared: bool) -> Self {
        Self::with_memory(name, is_shared, LENGTH)
    }

    /// `length`: length of the memory of each side in bytes; `LENGTH` if it is shared.
    pub(super) fn with_memory(name: &str, is_shared: bool, length: usize) -> Self {
        let base = TestBase::new(name);
        let sides = [base.open(), base.open()];
        let qps = connected(&sides[0], &sides[1], 7, 1);
        let (flags, file) = if is_shared { (MapFlags::SHARED, Some(sealed())) } else { (MapFlags::PRIVATE, None) };
        let remote_memory = mapping(file.as_ref(), length, flags);
        let local_memory: Vec<u8> = (0..length).map(|n| n as u8 | 1).collect();
        let mr = if is_shared { sides[1].share(remote_memory) } else { sides[1].register(remote_memory) };
        let mrs = (sides[0].register(&local_memory), mr);
        qps.0.0.permit_eager_writes(false); // A post on the fast path does not send an eager write.
        ConnectedPair { qps, sides, local_memory, remote_memory, mrs, _base: base }
    }

    pub(super) fn remote(&self, offset: usize) -> Remote {
        Remote { key: self.mrs.1.remote_key(), address: self.remote_memory.as_ptr() as u64 + offset as u64 }
    }

    pub(super) fn local(&self, offset: usize, length: usize) -> Segment {
        segment(&self.mrs.0, &self.local_memory[offset..offset + length])
    }

    fn poll(&self) {
        let is_empty = |side: &Side| side.cq.poll(&mut [Completion::default()]) == 0;
        assert!(self.sides.iter().all(is_empty), "unexpected completion");
    }

    /// Sends messages and polls until the connection counts as polled. The engine then leaves completions to this
    /// thread.
    pub(super) fn poll_until_polled(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.qps.0.0.is_polled() {
            self.qps.0.post_recv(&[], token(98)).unwrap();
            self.qps.1.post_send(&wr(Op::Send { solicited: false }, &[], 97)).unwrap();
            self.expect(98, Status::Success, 0);
            assert_eq!(self.sides[1].completion().token.cookie, 97);
            assert!(Instant::now() < until, "the connection is not polled");
        }
    }

    pub(super) fn is_posted(&self, op: Op, segment: Segment, cookie: u64) -> bool {
        self.qps.0.post_request_quickly::<false>(op, &segment, cookie)
    }

    pub(super) fn is_posted_suppressed(&self, op: Op, segment: Segment, cookie: u64) -> bool {
        self.qps.0.post_request_quickly::<true>(op, &segment, cookie)
    }

    /// Repeats a quick post until it succeeds. If this thread is not scheduled for some milliseconds, the engine takes
    /// over; polls end that.
    fn repeat_until_quick(&self, is_posted: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_posted() {
            assert!(Instant::now() < until, "no quick post has succeeded");
            self.poll();
        }
    }

    /// Writes until a quick post succeeds: the connection then has credits, and exported memory is mapped.
    fn write_until_quick(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.is_posted(Op::Write(self.remote(0)), self.local(0, 8), 99) {
            self.qps.0.post_send(&wr(Op::Write(self.remote(0)), &[self.local(0, 8)], 99)).unwrap();
            self.expect(99, Status::Success, 8);
            assert!(Instant::now() < until, "no quick post has succeeded");
        }
        self.expect(99, Status::Success, 8);
    }

    pub(super) fn expect(&self, cookie: u64, status: Status, bytes: u64) {
        let found = self.sides[0].completion();
        assert_eq!((found.token.cookie, found.status, found.bytes), (cookie, status, bytes));
    }
}

#[test]
fn data_of_a_fast_path_post_is_visible_when_the_post_returns() {
    for (is_shared, is_polled) in [(false, false), (false, true), (true, false), (true, true)] {
        let pair = ConnectedPair::new("quick-data", is_shared);
        if is_polled {
            pair.poll_until_polled();
        }
        for length in [1, 8, 4096, 12 << 10, LENGTH] {
            let (there, here) = (&pair.remote_memory[LENGTH - length..], &pair.local_memory[..length]);
            let remote = pair.remote(LENGTH - length);
            for (op, work) in [(Op::Write(remote), Work::Write), (Op::Read(remote), Work::Read)] {
                pair.write_until_quick();
                assert!(pair.is_posted(op, pair.local(0, length), 1));
                assert_eq!(here, there);
                let Completion { token, status, bytes, .. } = pair.sides[0].completion();
                assert_eq!((token.cookie, token.work, status, bytes), (1, work, Status::Success, length as u64));
            }
        }
    }
}

#[test]
fn completions_keep_the_order_of_posts() {
    let pair = ConnectedPair::new("quick-order", false);
    pair.write_until_quick();
    // No receive is posted, so this send stays incomplete.
    pair.qps.0.post_send(&wr(Op::Send { solicited: false }, &[pair.local(0, 8)], 1)).unwrap();
    pair.poll();
    pair.repeat_until_quick(|| pair.is_posted(Op::Write(pair.remote(4096)), pair.local(0, 8), 2));
    assert_eq!(&pair.remote_memory[4096..4104], &pair.local_memory[..8], "the write does not wait");
    pair.poll();
    let segment = segment(&pair.mrs.1, &pair.remote_memory[..8]);
    pair.qps.1.post_recv(&[segment], token(3)).unwrap();
    assert_eq!(pair.sides[1].completion().token.cookie, 3);
    pair.expect(1, Status::Success, 8);
    pair.expect(2, Status::Success, 8);
}

#[test]
fn requests_that_may_fail_use_the_general_path() {
    let pair = ConnectedPair::new("quick-refused", false);
    pair.write_until_quick();
    let Remote { key, address } = pair.remote(0);
    let (segment, local) = (pair.local(0, 8), pair.mrs.0.local_key());
    let refused = [
        ("a key that does not exist", Remote { key: key ^ 1, address }, segment),
        ("memory behind the region", Remote { key, address: address + LENGTH as u64 - 7 }, segment),
        ("an address that wraps", Remote { key, address: u64::MAX - 3 }, segment),
        ("no bytes", Remote { key, address }, Segment { length: 0, ..segment }),
        ("more than one copy moves", Remote { key, address }, Segment { length: CHUNK as u64 + 1, ..segment }),
        ("a local key that does not exist", Remote { key, address }, Segment { key: local ^ 1, ..segment }),
        ("local memory behind the region", Remote { key, address }, Segment { length: LENGTH as u64 + 1, ..segment }),
    ];
    for (what, remote, segment) in refused {
        for op in [Op::Write(remote), Op::Read(remote)] {
            assert!(!pair.is_posted(op, segment, 5), "{what}");
            pair.poll();
        }
    }
    pair.qps.0.post_send(&wr(Op::Write(Remote { key: key ^ 1, address }), &[segment], 6)).unwrap();
    pair.expect(6, Status::RemoteAccess, 0);
}

#[test]
fn fast_path_request_that_was_executed_succeeds_after_an_abort() {
    let pair = ConnectedPair::new("quick-end", false);
    pair.poll_until_polled();
    pair.write_until_quick();
    assert!(pair.is_posted(Op::Write(pair.remote(4096)), pair.local(0, 8), 1));
    pair.qps.0.abort();
    pair.expect(1, Status::Success, 8);
    pair.qps.0.post_send(&wr(Op::Write(pair.remote(0)), &[pair.local(0, 8)], 2)).unwrap();
    pair.expect(2, Status::Flushed, 0);
}

#[test]
fn fast_path_request_after_a_failed_or_flushed_one_is_flushed() {
    for is_too_long in [false, true] {
        let pair = ConnectedPair::new("quick-failure", false);
        pair.poll_until_polled();
        pair.write_until_quick();
        // The receive is posted after the write. Otherwise the peer's engine could process the send, and end the
        // connection before the write.
        pair.qps.0.post_send(&wr(Op::Send { solicited: false }, &[pair.local(0, 64)], 1)).unwrap();
        assert!(pair.is_posted(Op::Write(pair.remote(4096)), pair.local(0, 8), 2));
        if is_too_long {
            pair.qps.1.post_recv(&[segment(&pair.mrs.1, &pair.remote_memory[..8])], token(3)).unwrap();
            assert_eq!(pair.sides[1].completion().status, Status::LocalLength);
            pair.expect(1, Status::RemoteResponder, 0);
        } else {
            pair.qps.0.abort();
            pair.expect(1, Status::Flushed, 0);
        }
        pair.expect(2, Status::Flushed, 0);
    }
}

#[test]
fn suppressed_sends_on_the_fast_path_arrive_without_completions() {
    let pair = ConnectedPair::new("quick-suppressed", false);
    pair.poll_until_polled();
    let op = Op::Send { solicited: false };
    let mut quick = 0;
    // The posts exceed the credits of one pass, and every tenth request notifies.
    for n in 1..=500 {
        let (length, is_suppressed) = (if n % 3 == 0 { INLINE + 1 } else { 8 }, n % 10 != 0);
        let from = pair.local(n as usize, length);
        pair.qps.1.post_recv(&[segment(&pair.mrs.1, &pair.remote_memory[..length])], token(n)).unwrap();
        let is_posted =
            if is_suppressed { pair.is_posted_suppressed(op, from, n) } else { pair.is_posted(op, from, n) };
        if is_posted {
            quick += 1;
        } else {
            pair.qps.0.post_send(&SendWr { suppress: is_suppressed, ..wr(op, &[from], n) }).unwrap();
        }
        let Completion { token, status, bytes, .. } = pair.sides[1].completion();
        assert_eq!((token.cookie, status, bytes), (n, Status::Success, length as u64));
        assert_eq!(&pair.remote_memory[..length], &pair.local_memory[n as usize..][..length]);
        if is_suppressed {
            pair.poll();
        } else {
            pair.expect(n, Status::Success, length as u64);
        }
    }
    assert!(quick > 250, "{quick} of 500 were quick posts");
    assert_eq!(pair.qps.0.outstanding().requests, 0);
}

#[test]
fn requests_without_a_request_cq_do_not_stay_outstanding() {
    let base = TestBase::new("quick-no-cq");
    let (a, b) = (base.open(), base.open());
    let qp = a.ia.create_qp(&a.pd, QpSpec { request_cq: None, ..a.spec() }).unwrap();
    let (active, passive) = connect_qps(&a, &b, 7, 1, (qp, b.qp()));
    let (from, to) = (vec![1u8; 4096], vec![0u8; 4096]);
    let (from_mr, to_mr) = (a.register(&from), b.register(&to));
    let op = Op::Write(Remote { key: to_mr.remote_key(), address: to.as_ptr() as u64 });
    let until = Instant::now() + PATIENCE;
    // More than the queue holds.
    for n in 0..1000 {
        active.0.clear_wake_flags();
        let segment = segment(&from_mr, &from[..8]);
        if !active.post_request_quickly::<false>(op, &segment, n) {
            active.post_send(&wr(op, &[segment], n)).unwrap();
        }
        while active.outstanding().requests > 32 {
            assert!(Instant::now() < until, "complete requests stay in the queue");
            assert_eq!(a.cq.poll(&mut [Completion::default()]), 0);
        }
    }
    assert_eq!(b.cq.poll(&mut [Completion::default()]), 0);
    drop((active, passive));
}

#[test]
fn suppressed_write_leaves_no_outstanding_request() {
    let pair = ConnectedPair::new("quick-suppressed-write", false);
    pair.write_until_quick();
    for n in 0..100 {
        assert!(pair.is_posted_suppressed(Op::Write(pair.remote(4096 + n)), pair.local(n, 8), 1), "write {n}");
        assert_eq!(&pair.remote_memory[4096 + n..][..8], &pair.local_memory[n..][..8]);
    }
    pair.poll();
    assert_eq!(pair.qps.0.outstanding().requests, 0);
}

#[test]
fn suppressed_requests_behind_a_flushed_one_are_flushed() {
    let pair = ConnectedPair::new("quick-suppressed-flush", false);
    pair.poll_until_polled();
    pair.write_until_quick();
    // No receive is posted, so the sends stay incomplete.
    let op = Op::Send { solicited: false };
    pair.qps.0.post_send(&wr(op, &[pair.local(0, 8)], 1)).unwrap();
    pair.repeat_until_quick(|| pair.is_posted_suppressed(op, pair.local(0, 8), 2));
    pair.repeat_until_quick(|| pair.is_posted_suppressed(Op::Write(pair.remote(4096)), pair.local(0, 8), 3));
    pair.qps.0.abort();
    (1..=3).for_each(|n| pair.expect(n, Status::Flushed, 0));
}

#[test]
fn sends_of_one_fragment_on_the_fast_path_deliver_all_bytes() {
    let pair = ConnectedPair::new("quick-fragment", false);
    pair.poll_until_polled();
    let op = Op::Send { solicited: false };
    let (mut quick, mut posted) = (0, 0);
    // All posts together need more space than the message buffer and the ring have, so both are used several times.
    for round in 0..200 {
        for length in [INLINE + 1, 4096, 8192] {
            posted += 1;
            let from = pair.local(round % 100, length);
            let to = segment(&pair.mrs.1, &pair.remote_memory[..length]);
            pair.qps.1.post_recv(&[to], token(posted)).unwrap();
            if pair.is_posted(op, from, posted) {
                quick += 1;
            } else {
                pair.qps.0.post_send(&wr(op, &[from], posted)).unwrap();
            }
            let Completion { token, status, bytes, .. } = pair.sides[1].completion();
            assert_eq!((token.cookie, status, bytes), (posted, Status::Success, length as u64));
            assert_eq!(&pair.remote_memory[..length], &pair.local_memory[round % 100..][..length]);
            pair.expect(posted, Status::Success, length as u64);
        }
    }
    assert!(quick > posted / 2, "{quick} of {posted} were quick posts");
    // The receive is too short. The general path reports this at both ends.
    pair.qps.1.post_recv(&[segment(&pair.mrs.1, &pair.remote_memory[..64])], token(1)).unwrap();
    pair.qps.0.post_send(&wr(op, &[pair.local(0, 4096)], 2)).unwrap();
    assert_eq!(pair.sides[1].completion().status, Status::LocalLength);
    pair.expect(2, Status::RemoteResponder, 0);
}

/// Programs poll the last byte of a write to detect its end. Here one thread polls this byte while another thread
/// writes.
#[test]
fn last_byte_of_a_write_through_a_mapping_is_written_last() {
    const LENGTH: usize = 4096;
    let base = TestBase::new("quick-last");
    let sides = [base.open(), base.open()];
    let qps = connected(&sides[0], &sides[1], 7, 1);
    let (map, _file) = SharedMapping::create("polled", LENGTH, false).unwrap();
    let region = Region { address: map.bytes(0, LENGTH).unwrap() as u64, length: LENGTH as u64 };
    let all = Access { local_write: true, remote_read: true, remote_write: true, ..Access::default() };
    let there = sides[1].ia.register_shared(&sides[1].pd, region, all).unwrap();
    let local_memory: Vec<AtomicU64> = (0..LENGTH / 8).map(|_| AtomicU64::new(0)).collect();
    let local = Region { address: local_memory.as_ptr() as u64, length: LENGTH as u64 };
    let mr = sides[0].ia.register(&sides[0].pd, local, all).unwrap();
    let source = Segment { key: mr.local_key(), pad: 0, address: local.address, length: local.length };
    let op = Op::Write(Remote { key: there.remote_key(), address: region.address });
    let (pattern, seen) = (|n: u64| (n % 250 + 1) * 0x0101_0101_0101_0101, AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=3000 {
                while map.word(LENGTH - 8).load(Ordering::Acquire) >> 56 != pattern(n) >> 56 {
                    std::hint::spin_loop();
                }
                assert_eq!(map.word(0).load(Ordering::Relaxed), pattern(n), "write {n}: the first bytes came later");
                seen.store(n, Ordering::Release);
            }
        });
        for n in 1..=3000 {
            local_memory.iter().for_each(|word| word.store(pattern(n), Ordering::Relaxed));
            if !qps.0.post_request_quickly::<false>(op, &source, n) {
                qps.0.post_send(&wr(op, &[source], n)).unwrap();
            }
            assert_eq!(sides[0].completion().status, Status::Success);
            let until = Instant::now() + PATIENCE;
            while seen.load(Ordering::Acquire) != n {
                assert!(Instant::now() < until, "write {n} was not seen");
            }
        }
    });
}
