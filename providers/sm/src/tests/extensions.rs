//! Tests of sends and RDMA writes with immediate data, and of atomic operations, executed by each method: mapped
//! memory, copies by the kernel, and the target's engine. Other tests: the order and the flush of atomic operations,
//! invalid and forged operations, and a peer that does not support extensions.

use std::sync::atomic::{AtomicU64, Ordering};

use dapl::error::Error;

use super::connection_ends::{pattern, without_cma};
use super::exports::{LENGTH, has_mapped, mapping, sealed, transfer};
use super::*;
use crate::proto::message::{AtomicRequest, Header, MessageKind};

fn solicited(n: u32) -> bool {
    n.is_multiple_of(2)
}

fn immediate(n: u32) -> Op {
    Op::SendImmediate { data: n, solicited: solicited(n) }
}

/// Returns zeroed eight-byte words, which peers and local threads change.
fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn bytes(words: &[AtomicU64]) -> &[u8] {
    // SAFETY: the slice is used only for addresses and lengths. Tests read the words as atomics.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

fn add(mr: &Mr, word: &AtomicU64, add: u64) -> Op {
    Op::FetchAdd { remote: Remote { key: mr.remote_key(), address: word.as_ptr() as u64 }, add }
}

#[test]
fn sends_of_each_boundary_length_deliver_immediate_data() {
    let base = TestBase::new("immediate");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    for (n, length) in [0, 1, 8, 112, 113, 16384, 16385, 100_000, 3 << 20].into_iter().enumerate() {
        let (out, into) = (pattern(length, n as u8), vec![0u8; length + 1]);
        let (out_mr, into_mr) = (a.register(&out), b.register(&into));
        let (segments, n) = (if length == 0 { vec![] } else { vec![segment(&out_mr, &out)] }, n as u32 + 0xFFFF_FF00);
        passive.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
        active.post_send(&wr(immediate(n), &segments, 2)).unwrap();
        let got = b.completion();
        assert_eq!(
            (got.status, got.bytes, got.immediate(), got.solicited),
            (Status::Success, length as u64, Some(n), solicited(n))
        );
        assert_eq!(got.arrival, ReceivedOp::SendImmediate);
        assert!(into[..length] == out[..], "{length} bytes");
        assert_eq!(a.completion().status, Status::Success);
    }
    let into = vec![0u8; 8];
    let into_mr = b.register(&into);
    passive.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
    active.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
    assert_eq!(b.completion().immediate(), None, "a plain send has no immediate data");
}

#[test]
fn write_with_immediate_data_is_written_before_its_receive_completes() {
    for bounce in [false, true] {
        let base = TestBase::new(&format!("write-immediate-{bounce}"));
        let (a, b) = (base.open(), base.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        if bounce {
            without_cma(&active);
        }
        for (n, length) in [0, 1, 64, 40_000, 1 << 20].into_iter().enumerate() {
            let (out, target) = (pattern(length, n as u8), vec![0u8; length + 1]);
            let (out_mr, target_mr) = (a.register(&out), b.register(&target));
            let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
            let op = Op::WriteImmediate { remote, data: n as u32, solicited: n == 1 };
            // A receive without segments can complete a write of any length.
            passive.post_recv(&[], token(1)).unwrap();
            active.post_send(&wr(op, &[segment(&out_mr, &out)], 2)).unwrap();
            let got = b.completion();
            assert!(target[..length] == out[..], "{length} bytes");
            assert_eq!((got.status, got.bytes, got.immediate()), (Status::Success, length as u64, Some(n as u32)));
            assert_eq!((got.arrival, got.solicited), (ReceivedOp::WriteImmediate, n == 1));
            let sent = a.completion();
            assert_eq!((sent.status, sent.bytes), (Status::Success, length as u64));
        }
    }
}

#[test]
fn write_with_immediate_data_waits_for_a_receive_and_keeps_its_order() {
    for bounce in [false, true] {
        let base = TestBase::new(&format!("write-waits-{bounce}"));
        let (a, b) = (base.open(), base.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        if bounce {
            without_cma(&active);
        }
        let (out, target, into) = (pattern(100, 1), vec![0u8; 100], vec![0u8; 100]);
        let (out_mr, target_mr, into_mr) = (a.register(&out), b.register(&target), b.register(&into));
        let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
        let write = Op::WriteImmediate { remote, data: 5, solicited: false };
        active.post_send(&wr(write, &[segment(&out_mr, &out)], 1)).unwrap();
        active.post_send(&wr(immediate(6), &[segment(&out_mr, &out)], 2)).unwrap();
        for (cookie, arrival) in [(1, ReceivedOp::WriteImmediate), (2, ReceivedOp::SendImmediate)] {
            passive.post_recv(&[segment(&into_mr, &into)], token(cookie)).unwrap();
            let got = b.completion();
            assert_eq!((got.token.cookie, got.arrival, got.value), (cookie, arrival, 4 + cookie as u32));
            assert_eq!(a.completion().token.cookie, cookie);
        }
        assert_eq!((target, into), (out.clone(), out));
    }
}

#[test]
fn write_with_immediate_data_without_access_completes_no_receive() {
    for bounce in [false, true] {
        let base = TestBase::new(&format!("write-refused-{bounce}"));
        let (a, b) = (base.open(), base.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        if bounce {
            without_cma(&active);
        }
        let (out, target) = (pattern(64, 1), vec![0u8; 64]);
        let (out_mr, target_mr) = (a.register(&out), b.register(&target));
        let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 + 1 };
        passive.post_recv(&[], token(9)).unwrap();
        let write = Op::WriteImmediate { remote, data: 5, solicited: false };
        active.post_send(&wr(write, &[segment(&out_mr, &out)], 1)).unwrap();
        assert_eq!(a.completion().status, Status::RemoteAccess);
        let left = b.completion();
        assert_eq!((left.token.cookie, left.status, left.immediate()), (9, Status::Flushed, None));
        assert_eq!(target, [0; 64]);
    }
}

fn atomics(name: &str, bounce: bool) {
    let base = TestBase::new(name);
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    if bounce {
        without_cma(&active);
    }
    let (target, back) = (words(4), words(4));
    let (target_mr, back_mr) = (b.register(bytes(&target)), a.register(bytes(&back)));
    let remote = Remote { key: target_mr.remote_key(), address: target[1].as_ptr() as u64 };
    target[1].store(u64::MAX, Ordering::Relaxed);
    let ops = [
        Op::FetchAdd { remote, add: 3 },
        Op::CompareSwap { remote, compare: 2, swap: 77 },
        Op::CompareSwap { remote, compare: 2, swap: 88 },
    ];
    for (n, op) in ops.into_iter().enumerate() {
        active.post_send(&wr(op, &[segment(&back_mr, bytes(&back[n..=n]))], n as u64)).unwrap();
    }
    for n in 0..3 {
        let done = a.completion();
        assert_eq!((done.token.cookie, done.status, done.bytes), (n, Status::Success, 8));
    }
    let found = |words: &[AtomicU64]| words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    assert_eq!((found(&target), found(&back)), (vec![0, 77, 0, 0], vec![u64::MAX, 2, 77, 0]));
    // The target has called no function after the set-up, so its engine executed the requests.
}

#[test]
fn atomic_operations_complete_without_calls_at_the_target() {
    atomics("atomics", false);
    atomics("atomics-bounce", true);
}

/// Adds 1 to a word from both connections and from this thread, and checks the sum.
fn sum_up(sides: [(&Side, &Qp); 2], mr: &Mr, word: &AtomicU64) {
    const EACH: u64 = 2000;
    let before = word.load(Ordering::SeqCst);
    let op = add(mr, word, 1);
    std::thread::scope(|scope| {
        for (side, qp) in sides {
            scope.spawn(move || {
                let back = words(1);
                let back_mr = side.register(bytes(&back));
                let mut last = None;
                for n in 0..EACH {
                    qp.post_send(&wr(op, &[segment(&back_mr, bytes(&back))], n)).unwrap();
                    assert_eq!(side.completion().status, Status::Success);
                    let found = back[0].load(Ordering::Relaxed);
                    assert!(last < Some(found), "every operation returns the previous value");
                    last = Some(found);
                }
            });
        }
        for _ in 0..EACH {
            word.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert_eq!(word.load(Ordering::SeqCst) - before, 3 * EACH);
}

#[test]
fn atomic_operations_are_atomic_with_each_other_and_local_instructions() {
    let base = TestBase::new("atomicity");
    let (a, b, c) = (base.open(), base.open(), base.open());
    let (first, _one) = connected(&a, &b, 7, 10);
    let (second, _two) = connected(&c, &b, 7, 20);
    let target = words(1);
    let mr = b.register(bytes(&target));
    sum_up([(&a, &first), (&c, &second)], &mr, &target[0]);
}

#[test]
fn atomic_operations_on_mapped_memory_and_by_the_target_lose_no_update() {
    let base = TestBase::new("atomicity-mapped");
    let (a, b, c) = (base.open(), base.open(), base.open());
    let (first, _one) = connected(&a, &b, 7, 10);
    let (second, _two) = connected(&c, &b, 7, 20);
    let file = sealed();
    let memory = mapping(Some(&file), LENGTH, rustix::mm::MapFlags::SHARED);
    let shared = b.share(memory);
    // The second registration has the same memory, under a key that peers cannot map.
    let private = b.register(memory);
    // SAFETY: the word is aligned, stays mapped while the tests run, and is changed only by atomic instructions.
    let word = unsafe { AtomicU64::from_ptr(memory.as_ptr().cast_mut().cast()) };
    let out = pattern(8, 0);
    let out_mr = a.register(&out);
    let away = Remote { key: shared.remote_key(), address: memory.as_ptr() as u64 + 64 };
    assert_eq!(transfer(&a, &first, Op::Write(away), &out_mr, &out), Status::Success);
    has_mapped(&first, 1);
    let (op_mapped, op_target) = (add(&shared, word, 1), add(&private, word, 1));
    let served = |qp: &Qp| qp.0.link().unwrap().consumed_requests();
    let before = served(&first);
    std::thread::scope(|scope| {
        for (side, qp, op) in [(&a, &first, op_mapped), (&c, &second, op_target)] {
            scope.spawn(move || {
                let back = words(1);
                let back_mr = side.register(bytes(&back));
                for n in 0..2000 {
                    qp.post_send(&wr(op, &[segment(&back_mr, bytes(&back))], n)).unwrap();
                    assert_eq!(side.completion().status, Status::Success);
                }
            });
        }
    });
    assert_eq!(word.load(Ordering::SeqCst), 4000);
    assert_eq!(served(&first), before, "the initiator executes them on mapped memory");
}

#[test]
fn invalid_atomic_operations_break_the_connection_and_change_nothing() {
    let atomic = Access { remote_atomic: true, ..Access::default() };
    let cases: [(&str, Access, Status); 8] = [
        ("the right alone is enough", atomic, Status::Success),
        ("read and write are enough", ALL, Status::Success),
        ("only read", Access { remote_write: false, ..ALL }, Status::RemoteAccess),
        ("only write", Access { remote_read: false, ..ALL }, Status::RemoteAccess),
        ("unknown key", ALL, Status::RemoteAccess),
        ("another domain", ALL, Status::RemoteAccess),
        ("outside", ALL, Status::RemoteAccess),
        ("misaligned", ALL, Status::RemoteResponder),
    ];
    for (what, access, expected) in cases {
        let base = TestBase::new(&format!("atomic-{}", what.replace(' ', "-")));
        let (a, b) = (base.open(), base.open());
        let (active, _passive) = connected(&a, &b, 7, 10);
        let (target, back) = (words(2), words(1));
        let pd = if what == "another domain" { b.ia.alloc_pd().unwrap() } else { crate::Pd(b.pd.0) };
        let region = Region { address: target[0].as_ptr() as u64, length: 8 };
        let mr = b.ia.register(&pd, region, access).unwrap();
        let mut remote = Remote { key: mr.remote_key(), address: region.address };
        match what {
            "unknown key" => remote.key ^= 1,
            "outside" => remote.address += 8,
            "misaligned" => remote.address += 4,
            _ => {}
        }
        let back_mr = a.register(bytes(&back));
        let own = [segment(&back_mr, bytes(&back))];
        active.post_send(&wr(Op::FetchAdd { remote, add: 1 }, &own, 1)).unwrap();
        assert_eq!(a.completion().status, expected, "{what}");
        let sum: u64 = target.iter().map(|word| word.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, u64::from(expected == Status::Success), "{what}");
        if expected != Status::Success {
            assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("broken"), "{what}");
        }
        if expected == Status::RemoteAccess {
            assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"), "{what}");
            let target = format!("key {:#x}, 8 bytes at {:#x}: ", remote.key, remote.address);
            for line in ["atomic operation with cookie 0x1 refused at the peer", "atomic operation of the peer refused"]
            {
                assert!(was_logged(&format!("{line} (DAT_DTO_ERR_REMOTE_ACCESS): {target}")), "{what}: {line}");
            }
        }
    }
}

#[test]
fn atomic_operation_with_an_invalid_local_segment_is_not_executed() {
    for (wrong, expected) in [(0, Status::LocalProtection), (1, Status::LocalProtection), (2, Status::LocalLength)] {
        let base = TestBase::new(&format!("atomic-local-{wrong}"));
        let (a, b) = (base.open(), base.open());
        let (active, _passive) = connected(&a, &b, 7, 10);
        let (target, back) = (words(1), words(2));
        let mr = b.register(bytes(&target));
        let region = Region { address: back[0].as_ptr() as u64, length: 16 };
        let back_mr = a.ia.register(&a.pd, region, Access { local_write: wrong != 1, ..Access::default() }).unwrap();
        let mut own = segment(&back_mr, bytes(&back[..1]));
        own.key ^= u32::from(wrong == 0);
        own.length += if wrong == 2 { 8 } else { 0 };
        active.post_send(&wr(add(&mr, &target[0], 1), &[own], 1)).unwrap();
        assert_eq!(a.completion().status, expected);
        assert_eq!(target[0].load(Ordering::Relaxed), 0);
    }
}

#[test]
fn fenced_and_suppressed_atomic_operations_keep_their_order() {
    let base = TestBase::new("atomic-flags");
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    let (target, back) = (words(1), words(32));
    let (mr, back_mr) = (b.register(bytes(&target)), a.register(bytes(&back)));
    for n in 0..32 {
        let own = [segment(&back_mr, bytes(&back[n..=n]))];
        let request = wr(add(&mr, &target[0], 1), &own, n as u64);
        active.post_send(&SendWr { suppress: n % 4 != 3, fence: n % 3 == 0, ..request }).unwrap();
    }
    for n in 0..8 {
        assert_eq!(a.completion().token.cookie, 4 * n + 3);
    }
    for (n, found) in back.iter().enumerate() {
        assert_eq!(found.load(Ordering::Relaxed), n as u64, "in the order of the posts");
    }
}

#[test]
fn atomic_operations_are_flushed_when_the_peer_disconnects() {
    let base = TestBase::new("atomic-flush");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    let (target, back) = (words(1), words(1));
    let (mr, back_mr) = (b.register(bytes(&target)), a.register(bytes(&back)));
    // The peer has no receive for this send, so the atomic operation behind the send is not executed.
    active.post_send(&wr(Op::Send { solicited: false }, &[], 0)).unwrap();
    let own = [segment(&back_mr, bytes(&back))];
    active.post_send(&wr(add(&mr, &target[0], 1), &own, 1)).unwrap();
    passive.abort();
    for cookie in 0..2 {
        let done = a.completion();
        assert_eq!((done.token.cookie, done.status), (cookie, Status::Flushed));
    }
    assert_eq!(target[0].load(Ordering::Relaxed), 0);
}

#[test]
fn extension_operations_fail_if_the_peer_does_not_support_them() {
    let base = TestBase::new("old-peer");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    // The engine opens the queue pair after it has reported the connection.
    while !active.0.forget_extensions() {
        std::thread::yield_now();
    }
    let memory = pattern(8, 1);
    let mr = a.register(&memory);
    let remote = Remote { key: 1 << 16, address: 8 };
    let ops = [
        immediate(1),
        Op::SendInvalidate { key: 1, solicited: false },
        Op::WriteImmediate { remote, data: 1, solicited: false },
        Op::FetchAdd { remote, add: 1 },
        Op::CompareSwap { remote, compare: 1, swap: 1 },
    ];
    for op in ops {
        assert_eq!(active.post_send(&wr(op, &[segment(&mr, &memory)], 1)), Err(Error::ModelNotSupported));
    }
    passive.post_recv(&[], token(1)).unwrap();
    active.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
    assert_eq!((b.completion().status, a.completion().status), (Status::Success, Status::Success));
}

/// Writes this header, `aux` and body to the first slot of the malicious peer's request ring.
fn forge(malicious: &Qp, header: Header, aux: u32, body: [u64; AtomicRequest::WORDS]) {
    let link = malicious.0.link().unwrap();
    let slot = link.geometry.requests_at();
    link.area.word(slot + 8).store(u64::from(aux) << 32, Ordering::Relaxed);
    body.iter().enumerate().for_each(|(n, word)| link.area.word(slot + 16 + n * 8).store(*word, Ordering::Relaxed));
    link.area.word(slot).store(u64::from(header.encode()) | 1 << 32, Ordering::Release);
    link.wake_if_flagged(crate::qp::link::WAKE_ON_REQUESTS);
}

#[test]
fn forged_extension_requests_end_the_connection_and_change_nothing() {
    let base = TestBase::new("forged-extensions");
    let (a, b) = (base.open(), base.open());
    let target = words(2);
    let mr = b.register(bytes(&target));
    let good = [u64::from(mr.remote_key()), target[0].as_ptr() as u64, 0, 1, 0];
    let [key, address, ..] = good;
    let (atomic, write) = (Header::plain(MessageKind::Atomic, 0), Header::plain(MessageKind::WriteImmediate, 0));
    let cases = [
        ("an operation that does not exist", atomic, [key, address, 2, 1, 0]),
        ("a key of 64 bits", atomic, [key | 1 << 32, address, 0, 1, 0]),
        ("an unknown key", atomic, [key ^ 1, address, 0, 1, 0]),
        ("a misaligned address", atomic, [key, address + 4, 0, 1, 0]),
        ("an address outside", atomic, [key, address + 16, 0, 1, 0]),
        ("an address that wraps", atomic, [key, u64::MAX - 7, 0, 1, 0]),
        ("an answer among requests", Header::plain(MessageKind::AtomicAck, 0), good),
        ("a write longer than any", write, [u64::MAX, 0, 0, 0, 0]),
        ("nothing", atomic, good),
    ];
    for (n, (what, header, body)) in cases.into_iter().enumerate() {
        let id = 100 + 2 * n;
        let (malicious, victim) = connected(&a, &b, 7, id);
        victim.post_recv(&[], token(9)).unwrap();
        forge(&malicious, header, 7, body);
        if what == "nothing" {
            // This operation succeeds, so the previous ones were dropped because of their content.
            while target[0].load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            break;
        }
        assert_eq!(b.sink.next(conn(id + 1)), SinkEvent::Other("broken"), "{what}");
        assert_eq!(b.completion().status, Status::Flushed, "{what}");
        assert_eq!(target.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 0, "{what}");
    }
}
