//! Long sends: sent as rendezvous offers, then copied by the receiver, copied in part by the sender
//! (`copies_by_the_sender`), or staged if the kernel denies the copy. Other tests: concurrent short sends and RDMA,
//! deregistered memory, and connections that end during a copy.

mod copies_by_the_sender;

use std::sync::atomic::Ordering::Relaxed;

use super::connection_ends::{pattern, without_cma};
use super::fail_points::{Point, call_at};
use super::*;
use crate::proto::offer::STAGING_BYTES;
use crate::qp::link::ConnectionMemory;

const MIB: usize = 1 << 20;
/// Number of allowed copies that no test reaches.
pub(super) const PLENTY: u32 = 1 << 30;

pub(super) fn send(qp: &Qp, segments: &[Segment], cookie: u64) {
    qp.post_send(&wr(Op::Send { solicited: false }, segments, cookie)).unwrap();
}

/// Lets the next `copies` copies of the queue pair by the kernel succeed, and later copies fail.
pub(super) fn allow(qp: &Qp, copies: u32) {
    qp.0.link().unwrap().peer_side().unwrap().peer.allowed.store(copies, Relaxed);
}

/// Number of copies by the kernel that the queue pair has made since `allow(PLENTY)`.
pub(super) fn copies(qp: &Qp) -> u32 {
    PLENTY - qp.0.link().unwrap().peer_side().unwrap().peer.allowed.load(Relaxed)
}

/// Two connected IAs.
struct Both {
    a: Side,
    b: Side,
    active: Qp,
    passive: Qp,
    _base: TestBase,
}

fn both(name: &str) -> Both {
    let base = TestBase::new(name);
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    allow(&active, PLENTY);
    allow(&passive, PLENTY);
    Both { a, b, active, passive, _base: base }
}

/// Returns a segment list that covers the memory, with segments of several lengths.
fn cut(mr: &Mr, memory: &[u8], count: usize) -> Vec<Segment> {
    let (mut list, mut rest) = (Vec::new(), memory);
    for n in (1..=count).rev() {
        let (head, tail) = rest.split_at(if n == 1 { rest.len() } else { rest.len() / n + n });
        list.push(segment(mr, head));
        rest = tail;
    }
    list
}

impl Both {
    /// Sends `length` bytes, which begin `skew` bytes after the start of a buffer, from `from` segments to `into`
    /// segments.
    fn passes(&self, length: usize, skew: usize, from: usize, into: usize) {
        let (out, space) = (pattern(length + skew, length as u8), vec![0xEEu8; length + 2 * skew + 64]);
        let (out_mr, space_mr) = (self.a.register(&out), self.b.register(&space));
        let received = &space[2 * skew..][..length + 1];
        self.passive.post_recv(&cut(&space_mr, received, into), token(1)).unwrap();
        send(&self.active, &cut(&out_mr, &out[skew..], from), 2);
        let got = self.b.completion();
        let what = format!("{length} bytes, {skew} off, {from} segments into {into}");
        assert_eq!((got.token.cookie, got.status, got.bytes), (1, Status::Success, length as u64), "{what}");
        assert!(received[..length] == out[skew..], "{what}");
        assert!(
            space[..2 * skew].iter().chain(&space[2 * skew + length..]).all(|byte| *byte == 0xEE),
            "{what}: beside it"
        );
        let sent = self.a.completion();
        assert_eq!((sent.token.cookie, sent.status, sent.bytes), (2, Status::Success, length as u64), "{what}");
    }

    fn link(&self) -> Arc<ConnectionMemory> {
        self.active.0.link().unwrap()
    }
}

#[test]
fn long_sends_of_many_lengths_and_segment_counts_deliver_all_bytes() {
    let pair = both("long-sizes");
    let kib = |n: usize| [(n << 10) - 1, n << 10, (n << 10) + 1];
    let lengths = [8, 16, 32, 48, 64, 256, 512, 1024].into_iter().flat_map(kib);
    for (n, length) in lengths.chain([(3 << 20) + 5]).enumerate() {
        pair.passes(length, 0, 1, 1);
        pair.passes(length, 1 + n * 7, 1 + n % 6, 1 + n % 4);
    }
    assert!(copies(&pair.passive) > 30, "the receiver has copied long messages by the kernel");
    let before = copies(&pair.passive);
    pair.passes(MIB, 3, 7, 2);
    assert_eq!(copies(&pair.passive), before, "a send of more segments than an offer can name is no offer");
    pair.passes(100, 3, 2, 2);
    assert_eq!(copies(&pair.passive), before, "a short send is no offer");
}

#[test]
fn long_and_short_sends_and_rdma_keep_their_order() {
    let pair = both("long-order");
    let Both { a, b, active, passive, .. } = &pair;
    let lengths = [MIB, 8, 100_000, 5_000, 70_000, 0, 300_000, 64, 40_000, MIB];
    let target = vec![0u8; 200_000];
    let target_mr = b.register(&target);
    let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
    for round in 0..6u8 {
        let out: Vec<_> = lengths.iter().enumerate().map(|(n, length)| pattern(*length, round + n as u8)).collect();
        let spaces: Vec<_> = lengths.iter().map(|length| vec![0u8; *length + 8]).collect();
        let out_mrs: Vec<_> = out.iter().map(|out| (!out.is_empty()).then(|| a.register(out))).collect();
        let space_mrs: Vec<_> = spaces.iter().map(|space| b.register(space)).collect();
        let (early, late) = if round % 2 == 0 { (spaces.len(), 0) } else { (3, 3) };
        for (n, space) in spaces.iter().enumerate().take(early) {
            passive.post_recv(&[segment(&space_mrs[n], space)], token(n as u64)).unwrap();
        }
        let put = pattern(target.len(), round);
        let put_mr = a.register(&put);
        for (n, out) in out.iter().enumerate() {
            let list: Vec<_> = out_mrs[n].iter().map(|mr| segment(mr, out)).collect();
            // Every third send has no completion, and every second one is solicited.
            let op = Op::Send { solicited: n % 2 == 1 };
            let posted = SendWr { suppress: n % 3 == 2, ..wr(op, &list, n as u64) };
            active.post_send(&posted).unwrap();
        }
        active.post_send(&wr(Op::Write(remote), &[segment(&put_mr, &put)], 99)).unwrap();
        for (n, space) in spaces.iter().enumerate().skip(late).filter(|_| late > 0) {
            passive.post_recv(&[segment(&space_mrs[n], space)], token(n as u64)).unwrap();
        }
        for (n, space) in spaces.iter().enumerate() {
            let got = b.completion();
            let expected = (n as u64, Status::Success, lengths[n] as u64, n % 2 == 1);
            assert_eq!((got.token.cookie, got.status, got.bytes, got.solicited), expected, "round {round}");
            assert!(space[..lengths[n]] == out[n][..] && space[lengths[n]..] == [0; 8], "round {round}, {n}");
        }
        for n in (0..lengths.len()).filter(|n| n % 3 != 2).chain([99]) {
            let done = a.completion();
            assert_eq!((done.token.cookie, done.status), (n as u64, Status::Success), "round {round}");
        }
        assert!(target == put, "round {round}");
    }
}

#[test]
fn long_sends_in_both_directions_complete() {
    let pair = both("long-both");
    let ends = [(&pair.a, &pair.active), (&pair.b, &pair.passive)];
    std::thread::scope(|scope| {
        for (n, (side, qp)) in ends.into_iter().enumerate() {
            scope.spawn(move || {
                let (out, space) = (pattern(MIB, n as u8), vec![0u8; MIB]);
                let (out_mr, space_mr) = (side.register(&out), side.register(&space));
                for round in 0..40 {
                    qp.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
                    send(qp, &[segment(&out_mr, &out)], 2);
                    let mut cookies = [side.completion(), side.completion()].map(|done| {
                        assert_eq!((done.status, done.bytes), (Status::Success, MIB as u64));
                        done.token.cookie
                    });
                    cookies.sort_unstable();
                    assert_eq!(cookies, [1, 2]);
                    assert!(*std::hint::black_box(&space) == pattern(MIB, 1 - n as u8), "round {round}");
                }
            });
        }
    });
    assert!(copies(&pair.active) >= 40 && copies(&pair.passive) >= 40);
}

#[test]
fn long_send_beyond_its_receive_fails_at_both_processes() {
    let Both { a, b, active, passive, _base } = both("long-short");
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB - 1]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    send(&active, &[segment(&out_mr, &out)], 3);
    assert_eq!((b.completion().status, a.completion().status), (Status::LocalLength, Status::RemoteResponder));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"));
    assert!(space.iter().all(|byte| *byte == 0));
}

#[test]
fn send_of_memory_deregistered_before_the_fetch_fails() {
    for late in [false, true] {
        let Both { a, b, active, passive, _base } = both(&format!("long-gone-{late}"));
        let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
        let (mut out_mr, space_mr) = (Some(a.register(&out)), b.register(&space));
        let segments = [segment(out_mr.as_ref().unwrap(), &out)];
        if !late {
            out_mr = None;
        }
        send(&active, &segments, 3);
        drop(out_mr);
        passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
        assert_eq!(a.completion().status, Status::LocalProtection);
        assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("broken"));
        assert_eq!(b.completion().status, Status::Flushed);
        assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    }
}

#[test]
fn receive_into_deregistered_memory_fails() {
    let Both { a, b, active, passive, _base } = both("long-no-space");
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    drop(space_mr);
    send(&active, &[segment(&out_mr, &out)], 3);
    assert_eq!((b.completion().status, a.completion().status), (Status::LocalProtection, Status::RemoteResponder));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"));
}

#[test]
fn graceful_disconnect_waits_for_an_offer_and_abort_recalls_it() {
    let Both { a, b, active, passive, _base } = both("long-ends");
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    send(&active, &[segment(&out_mr, &out)], 1);
    active.drain();
    passive.post_recv(&[segment(&space_mr, &space)], token(2)).unwrap();
    assert_eq!((b.completion().status, a.completion().status), (Status::Success, Status::Success));
    assert!(space == out);
    assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("disconnected"));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));

    active.reset().unwrap();
    passive.reset().unwrap();
    let (active, passive) = connected(&a, &b, 7, 20);
    send(&active, &[segment(&out_mr, &out)], 1);
    // After this call a program may reuse the memory, so the offer must not complete the receive.
    active.abort();
    assert_eq!(a.completion().status, Status::Flushed);
    let _ = passive.post_recv(&[segment(&space_mr, &space)], token(2));
    assert_eq!(b.completion().status, Status::Flushed);
    assert_eq!(b.sink.next(conn(21)), SinkEvent::Other("disconnected"));
}

#[test]
fn copy_denied_by_the_kernel_is_staged_in_order() {
    for allowed in [0, 1, 3] {
        let pair = both(&format!("long-refused-{allowed}"));
        let Both { a, b, active, passive, .. } = &pair;
        let (long, short) = (pattern(MIB + 77, 5), pattern(64, 6));
        let (long_mr, short_mr) = (a.register(&long), a.register(&short));
        let spaces = [vec![0u8; MIB + 77], vec![0u8; 64], vec![0u8; MIB + 77]];
        let mrs = spaces.each_ref().map(|space| b.register(space));
        allow(passive, allowed);
        // No thread polls for the sender, and its sends have no completions.
        for list in [segment(&long_mr, &long), segment(&short_mr, &short), segment(&long_mr, &long)].map(|one| [one]) {
            let posted = SendWr { suppress: true, ..wr(Op::Send { solicited: false }, &list, 1) };
            active.post_send(&posted).unwrap();
        }
        for (n, space) in spaces.iter().enumerate() {
            passive.post_recv(&cut(&mrs[n], space, 3), token(n as u64)).unwrap();
        }
        for n in 0..3 {
            let got = b.completion();
            assert_eq!((got.token.cookie, got.status), (n, Status::Success), "{allowed} allowed");
        }
        assert!(spaces[0] == long && spaces[1] == short && spaces[2] == long, "{allowed} allowed");
        assert!(!pair.link().peer_can_copy(), "the receiver has published that it cannot copy");
        pair.passes(MIB, 1, 2, 2);
        assert_eq!(active.outstanding().requests, 0);
    }
}

/// The sender continues its pass only after the receiver has requested the next part. So one pass stages the whole
/// message, and must publish the consumed responses meanwhile, because the response ring has fewer slots.
#[test]
fn a_message_of_more_parts_than_the_response_ring_has_slots_is_staged() {
    let Both { a, b, active, passive, _base } = both("long-many-parts");
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    without_cma(&passive);
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    let (receiver, link) = (passive.0.clone(), passive.0.link().unwrap());
    let wait_for_next_request = move || {
        let staged = link.staged() >> 32;
        let until = Instant::now() + PATIENCE;
        while staged < (MIB / STAGING_BYTES) as u64 && receiver.staging_requests() == staged {
            assert!(Instant::now() < until, "no staging request after {staged} parts");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _call = call_at(Point::PartStaged, wait_for_next_request);
            send(&active, &[segment(&out_mr, &out)], 2);
            assert_eq!(a.completion().status, Status::Success);
        });
        assert_eq!(b.completion().status, Status::Success);
    });
    assert!(space == out);
}

#[test]
fn send_of_memory_deregistered_before_staging_fails() {
    let Both { a, b, active, passive, _base } = both("long-stage-gone");
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    without_cma(&passive);
    send(&active, &[segment(&out_mr, &out)], 3);
    drop(out_mr);
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    assert_eq!((a.completion().status, b.completion().status), (Status::LocalProtection, Status::Flushed));
}
