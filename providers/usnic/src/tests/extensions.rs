//! Tests extension operations through the provider interface: immediate data, invalidation of windows, and atomic
//! operations on registered memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn atomic_word(memory: &Memory) -> &AtomicU64 {
    let address = memory.bytes.as_ptr();
    assert!(memory.bytes.len() >= 8 && address.addr().is_multiple_of(8), "the word is within the memory and aligned");
    // SAFETY: the assertion checks bounds and alignment, and only atomic instructions change the word.
    unsafe { AtomicU64::from_ptr(address.cast_mut().cast()) }
}

#[test]
fn receives_get_immediate_data() {
    let (a, qa, b, qb) = two();
    for length in [0, 1, 768, 1_500, 100_000] {
        let from = a.registered(pattern(length, 3), ALL);
        let to = b.registered(vec![0; length + 1], ALL);
        let send = Op::SendImmediate { data: 0xDEAD_BEEF, solicited: true };
        let write = Op::WriteImmediate { remote: to.remote(1), data: 7, solicited: false };
        for (op, arrival, data) in
            [(send, ReceivedOp::SendImmediate, 0xDEAD_BEEF), (write, ReceivedOp::WriteImmediate, 7)]
        {
            let segments = if arrival == ReceivedOp::WriteImmediate { vec![] } else { vec![to.segment(0, length)] };
            qb.post_recv(&segments, token(1)).unwrap();
            qa.post_send(&wr(op, &[from.segment(0, length)], 2)).unwrap();
            let got = b.completion(&a);
            assert_eq!((got.status, got.bytes, got.arrival), (Status::Success, length as u64, arrival));
            assert_eq!((got.immediate(), got.solicited), (Some(data), data != 7));
            let sent = a.completion(&b);
            assert_eq!((sent.status, sent.bytes), (Status::Success, length as u64));
        }
        assert!(to.now()[1..] == from.bytes[..]);
    }
}

#[test]
fn remote_and_local_atomic_operations_lose_no_update() {
    let (a, qa, b, _qb) = two();
    let (target, back) = (b.registered(vec![0; 16], ALL), a.registered(vec![0; 16], ALL));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..1000).fold(0, |_, _| atomic_word(&target).fetch_add(1, Ordering::Relaxed)));
        for n in 0..500 {
            let op = Op::FetchAdd { remote: target.remote(0), add: 1 };
            qa.post_send(&wr(op, &[back.segment(0, 8)], n)).unwrap();
            let done = a.completion(&b);
            assert_eq!((done.token.cookie, done.status, done.bytes), (n, Status::Success, 8));
        }
    });
    assert_eq!(atomic_word(&target).load(Ordering::Relaxed), 1500);
    let swap = Op::CompareSwap { remote: target.remote(0), compare: 1500, swap: 1 << 40 };
    qa.post_send(&wr(swap, &[back.segment(0, 8)], 1)).unwrap();
    assert_eq!(a.completion(&b).status, Status::Success);
    assert_eq!([atomic_word(&target), atomic_word(&back)].map(|event| event.load(Ordering::Relaxed)), [1 << 40, 1500]);
}

#[test]
fn misaligned_or_short_fetch_add_fails_and_changes_nothing() {
    for (offset, length, status) in [(4, 8, Status::RemoteResponder), (0, 4, Status::LocalLength)] {
        let (a, qa, b, _qb) = two();
        let (target, back) = (b.registered(vec![0; 16], ALL), a.registered(vec![0; 16], ALL));
        let op = Op::FetchAdd { remote: target.remote(offset), add: 1 };
        qa.post_send(&wr(op, &[back.segment(0, length)], 1)).unwrap();
        assert_eq!(a.completion(&b).status, status);
        assert_eq!(target.now(), [0; 16]);
    }
}

#[test]
fn send_with_invalidate_unbinds_the_window() {
    let (a, qa, b, qb) = two();
    let theirs = b.registered(vec![0; 100], Access { local_write: true, ..Access::default() });
    let mw = b.ia.alloc_mw(&b.pd).unwrap();
    let kept = Arc::new(());
    let region = Region { address: theirs.segment(0, 100).address, length: 100 };
    let bind = Bind { mr: &theirs.mr, region, access: ALL, kept: kept.clone() };
    let bind_wr = BindWr { token: token(1), suppress: false, fence: false };
    let key = qb.post_bind(&mw, Some(bind), &bind_wr).unwrap();
    assert_eq!((b.completion(&a).status, mw.is_bound()), (Status::Success, true));
    qb.post_recv(&[], token(2)).unwrap();
    qa.post_send(&wr(Op::SendInvalidate { key, solicited: false }, &[], 3)).unwrap();
    let got = b.completion(&a);
    assert_eq!((got.token.cookie, got.status, got.invalidated()), (2, Status::Success, Some(key)));
    assert_eq!((mw.is_bound(), Arc::strong_count(&kept)), (false, 1));
    assert_eq!(a.completion(&b).status, Status::Success);
    qb.post_recv(&[], token(4)).unwrap();
    qa.post_send(&wr(Op::SendInvalidate { key, solicited: false }, &[], 5)).unwrap();
    assert_eq!((a.completion(&b).status, b.completion(&a).status), (Status::RemoteAccess, Status::LocalProtection));
}
