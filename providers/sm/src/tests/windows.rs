//! Tests of memory windows: access rights, lifetime, the order of binds, the release of registrations, and sends with
//! invalidate.

use std::sync::atomic::{AtomicU32, Ordering};

use dapl_software::memory::rights::AccessRight;

use super::connection_ends::{pattern, without_cma};
use super::*;
use crate::Mw;

const READ: Access =
    Access { local_write: false, remote_read: true, remote_write: false, remote_atomic: false, zero_based: false };
const WRITE: Access =
    Access { local_write: false, remote_read: false, remote_write: true, remote_atomic: false, zero_based: false };
const LOCAL: Access =
    Access { local_write: true, remote_read: false, remote_write: false, remote_atomic: false, zero_based: false };

/// Registered memory without remote rights, and the reference that each bind holds.
struct WindowMemory {
    bytes: Vec<u8>,
    mr: Mr,
    kept: Arc<()>,
}

impl WindowMemory {
    fn of(side: &Side, pd: &crate::Pd) -> Self {
        let bytes = vec![0u8; 4096];
        let mr = side.ia.register(pd, Region { address: bytes.as_ptr() as u64, length: 4096 }, LOCAL).unwrap();
        WindowMemory { bytes, mr, kept: Arc::new(()) }
    }

    fn bind(&self, offset: u64, length: u64, access: Access) -> Option<Bind<'_, Mr>> {
        let region = Region { address: self.at(offset), length };
        Some(Bind { mr: &self.mr, region, access, kept: self.kept.clone() })
    }

    fn at(&self, offset: u64) -> u64 {
        self.bytes.as_ptr() as u64 + offset
    }

    fn keeps(&self) -> usize {
        Arc::strong_count(&self.kept) - 1
    }
}

fn bind_wr(cookie: u64) -> BindWr {
    BindWr { token: Token { work: Work::Bind, ..token(cookie) }, suppress: false, fence: false }
}

/// Two connected IAs. The memory and its window are at the passive side.
struct WindowPair {
    active: Qp,
    passive: Qp,
    window: Mw,
    target: WindowMemory,
    a: Side,
    b: Side,
    bounce: bool,
    _base: TestBase,
}

impl WindowPair {
    fn new(name: &str, bounce: bool) -> Self {
        let base = TestBase::new(&format!("{name}-{bounce}"));
        let (a, b) = (base.open(), base.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        if bounce {
            without_cma(&active);
        }
        let target = WindowMemory::of(&b, &b.pd);
        let window = b.ia.alloc_mw(&b.pd).unwrap();
        WindowPair { active, passive, window, target, a, b, bounce, _base: base }
    }

    /// Posts a bind, or an unbind for `None`, and waits for its completion. Returns the window's key.
    fn bind(&self, bind: Option<Bind<'_, Mr>>) -> u32 {
        let key = self.passive.post_bind(&self.window, bind, &bind_wr(77)).unwrap();
        let done = self.b.completion();
        assert_eq!((done.token, done.status, done.bytes), (bind_wr(77).token, Status::Success, 0));
        key
    }

    /// Makes the active side write or read with a key. A failure ends the connection, and a new connection is made.
    fn transfer(&mut self, op: fn(Remote) -> Op, key: u32, address: u64, length: usize) -> Status {
        let memory = pattern(length, 3);
        let mr = self.a.register(&memory);
        self.active.post_send(&wr(op(Remote { key, address }), &[segment(&mr, &memory)], 1)).unwrap();
        let status = self.a.completion().status;
        if status != Status::Success {
            assert_eq!(self.a.sink.next(conn(10)), SinkEvent::Other("broken"));
            self.b.sink.next(conn(11));
            (self.active, self.passive) = connected(&self.a, &self.b, 7, 10);
            if self.bounce {
                without_cma(&self.active);
            }
        }
        status
    }
}

fn with_each_method(name: &str, case: fn(WindowPair)) {
    for bounce in [false, true] {
        case(WindowPair::new(name, bounce));
    }
}

#[test]
fn window_grants_exactly_the_bound_range() {
    with_each_method("window", |mut pair| {
        let at = pair.target.at(1000);
        let key = pair.bind(pair.target.bind(1000, 100, WRITE));
        assert!(pair.window.is_bound());
        assert_eq!(pair.transfer(Op::Write, key, at, 100), Status::Success);
        assert_eq!(pair.target.bytes[1000..1100], pattern(100, 3));
        for (address, length) in [(at - 1, 1), (at, 101), (at + 100, 1), (u64::MAX - 4, 8)] {
            assert_eq!(pair.transfer(Op::Write, key, address, length), Status::RemoteAccess, "{length}");
        }
        assert_eq!(pair.transfer(Op::Read, key, at, 100), Status::RemoteAccess, "the window grants no read access");
        assert_eq!(pair.transfer(Op::Write, key ^ 1, at, 100), Status::RemoteAccess);
        let remote = pair.target.mr.local_key();
        assert_eq!(
            pair.transfer(Op::Write, remote, at, 100),
            Status::RemoteAccess,
            "the registration grants no remote access"
        );
        assert_eq!(
            pair.transfer(Op::Write, key, at + 50, 50),
            Status::Success,
            "the key is also valid for a new connection"
        );
    });
}

#[test]
fn old_window_key_is_invalid_when_the_new_bind_completes() {
    with_each_method("rebind", |mut pair| {
        let at = pair.target.at(0);
        let mut keys = Vec::new();
        for access in [WRITE, READ, WRITE] {
            keys.push(pair.bind(pair.target.bind(0, 64, access)));
            assert_eq!(pair.target.keeps(), 1);
        }
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert_eq!(pair.transfer(Op::Write, keys[2], at, 64), Status::Success);
        assert_eq!(pair.transfer(Op::Write, keys[0], at, 64), Status::RemoteAccess);
        assert_eq!(pair.transfer(Op::Read, keys[1], at, 64), Status::RemoteAccess);
        assert_eq!(pair.bind(None), 0);
        assert!(!pair.window.is_bound() && pair.target.keeps() == 0);
        assert_eq!(pair.transfer(Op::Write, keys[2], at, 64), Status::RemoteAccess);
    });
}

#[test]
fn dropped_window_is_unbound_immediately() {
    with_each_method("window-drop", |mut pair| {
        let at = pair.target.at(0);
        let key = pair.bind(pair.target.bind(0, 64, WRITE));
        pair.window = pair.b.ia.alloc_mw(&pair.b.pd).unwrap();
        assert_eq!(pair.target.keeps(), 0);
        assert_eq!(pair.transfer(Op::Write, key, at, 64), Status::RemoteAccess);
    });
}

#[test]
fn window_grants_no_access_to_a_connection_of_another_pd() {
    with_each_method("window-domain", |mut pair| {
        let pd = pair.b.ia.alloc_pd().unwrap();
        let window = pair.b.ia.alloc_mw(&pd).unwrap();
        let target = WindowMemory::of(&pair.b, &pd);
        // The window is bound by `passive`, which is in the window's domain. The write below uses the pair's own
        // connection, whose queue pair is in another domain.
        let binder = std::mem::replace(&mut pair.b.pd, pd);
        let (_active, passive) = connected(&pair.a, &pair.b, 8, 20);
        pair.b.pd = binder;
        let key = passive.post_bind(&window, target.bind(0, 64, WRITE), &bind_wr(1)).unwrap();
        assert_eq!(pair.b.completion().status, Status::Success);
        assert_eq!(pair.transfer(Op::Write, key, target.at(0), 64), Status::RemoteAccess);
        assert_eq!(target.bytes, [0; 4096]);
    });
}

#[test]
fn requests_after_a_bind_wait_for_copies_by_the_old_key() {
    for sleeps in [false, true] {
        let pair = WindowPair::new(&format!("window-fence-{sleeps}"), false);
        let old = pair.bind(pair.target.bind(0, 64, READ));
        let regions = pair.b.ia.device.regions.clone();
        let acquire = |key, at, right| {
            regions.acquire(key, pair.b.pd.0, Region { address: pair.target.at(at), length: 64 }, right)
        };
        let hold = acquire(old, 0, AccessRight::RemoteRead).unwrap();
        pair.active.post_recv(&[], token(1)).unwrap();
        let new = pair.passive.post_bind(&pair.window, pair.target.bind(64, 64, WRITE), &bind_wr(2)).unwrap();
        pair.passive.post_send(&wr(Op::Send { solicited: false }, &[], 3)).unwrap();
        // The old key is already revoked, and the new key is not valid yet.
        let dead = |key, at, right| acquire(key, at, right).is_err();
        assert!(dead(old, 0, AccessRight::RemoteRead) && dead(new, 64, AccessRight::RemoteWrite));
        if !sleeps {
            let (a, b) = (&pair.a.cq, &pair.b.cq);
            for _ in 0..1000 {
                assert_eq!(a.poll(&mut [Completion::default()]) + b.poll(&mut [Completion::default()]), 0);
            }
        }
        assert_eq!((pair.passive.outstanding().requests, pair.target.keeps()), (2, 2));
        drop(hold);
        if sleeps {
            // No thread polls, so the engine makes progress.
            let until = Instant::now() + PATIENCE;
            while pair.active.0.link().is_some() && pair.target.keeps() == 2 && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        assert_eq!((pair.b.completion().token.cookie, pair.b.completion().token.cookie), (2, 3));
        assert_eq!((pair.a.completion().token.cookie, pair.target.keeps()), (1, 1));
        assert!(!dead(new, 64, AccessRight::RemoteWrite));
    }
}

#[test]
fn binds_complete_in_order_and_suppressed_ones_without_event() {
    let pair = WindowPair::new("window-order", false);
    pair.active.post_recv(&[], token(9)).unwrap();
    let quiet = BindWr { suppress: true, fence: true, ..bind_wr(1) };
    let first = pair.passive.post_bind(&pair.window, pair.target.bind(0, 8, READ), &quiet).unwrap();
    pair.passive.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
    let second = pair.passive.post_bind(&pair.window, pair.target.bind(0, 8, READ), &bind_wr(3)).unwrap();
    pair.passive.post_bind(&pair.window, None, &bind_wr(4)).unwrap();
    assert_ne!(first, second);
    let cookies: Vec<_> = (0..3).map(|_| pair.b.completion().token.cookie).collect();
    assert_eq!((cookies, pair.target.keeps()), (vec![2, 3, 4], 0));
}

#[test]
fn a_bind_that_fails_breaks_the_connection_and_leaves_nothing_bound() {
    let pair = WindowPair::new("window-failure", false);
    pair.bind(pair.target.bind(0, 8, READ));
    let pd = pair.b.ia.alloc_pd().unwrap();
    let foreign = WindowMemory::of(&pair.b, &pd);
    let quiet = BindWr { suppress: true, ..bind_wr(1) };
    pair.passive.post_bind(&pair.window, foreign.bind(0, 8, READ), &quiet).unwrap();
    pair.passive.post_bind(&pair.window, pair.target.bind(0, 8, READ), &bind_wr(2)).unwrap();
    let (failed, flushed) = (pair.b.completion(), pair.b.completion());
    assert_eq!((failed.token.cookie, failed.status), (1, Status::BindFailed));
    assert_eq!((flushed.token.cookie, flushed.status), (2, Status::Flushed));
    assert_eq!(pair.b.sink.next(conn(11)), SinkEvent::Other("broken"));
    let end = pair.a.sink.next(conn(10));
    assert!(matches!(end, SinkEvent::Other("broken" | "disconnected")), "{end:?}");
    assert!(!pair.window.is_bound());
    assert_eq!((foreign.keeps(), pair.target.keeps()), (0, 0));
}

#[test]
fn a_bind_that_is_flushed_leaves_nothing_bound() {
    let pair = WindowPair::new("window-flush", false);
    let idle = pair.b.qp();
    idle.post_bind(&pair.window, pair.target.bind(0, 8, READ), &bind_wr(1)).unwrap();
    assert!(pair.window.is_bound() && pair.target.keeps() == 1, "the bind waits for a connection");
    idle.abort();
    assert_eq!(pair.b.completion().status, Status::Flushed);
    assert!(!pair.window.is_bound() && pair.target.keeps() == 0);

    let key = pair.bind(pair.target.bind(0, 8, READ));
    let again = idle.post_bind(&pair.window, pair.target.bind(0, 8, READ), &bind_wr(2)).unwrap();
    assert_eq!(
        pair.b.completion().status,
        Status::Flushed,
        "a bind on a queue pair that was aborted is flushed immediately"
    );
    assert!(again != key && !pair.window.is_bound() && pair.target.keeps() == 0);

    // The bind cannot complete before the send, for which the peer has no receive. The end of the connection flushes
    // both.
    pair.passive.post_send(&wr(Op::Send { solicited: false }, &[], 3)).unwrap();
    pair.passive.post_bind(&pair.window, pair.target.bind(0, 8, READ), &bind_wr(4)).unwrap();
    assert_eq!(pair.target.keeps(), 1);
    pair.active.abort();
    let ends = [pair.b.completion(), pair.b.completion()].map(|done| (done.token.cookie, done.status));
    assert_eq!(ends, [(3, Status::Flushed), (4, Status::Flushed)]);
    assert!(!pair.window.is_bound() && pair.target.keeps() == 0);
}

#[test]
fn bind_to_a_full_queue_fails_without_effect() {
    let pair = WindowPair::new("window-full", false);
    let qp = pair.b.qp();
    for n in 0..64 {
        qp.post_bind(&pair.window, pair.target.bind(n, 8, READ), &bind_wr(n)).unwrap();
    }
    let refused = qp.post_bind(&pair.window, None, &bind_wr(64));
    assert!(refused.is_err() && pair.window.is_bound() && pair.target.keeps() == 64);
    drop(qp);
    assert!(!pair.window.is_bound() && pair.target.keeps() == 0);
}

#[test]
fn nothing_is_written_after_an_unbind_completes() {
    with_each_method("window-race", |mut pair| {
        for round in 0..20 {
            let key = pair.bind(pair.target.bind(0, 4096, WRITE));
            let written = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| write_until_refused(&pair, key, &written));
                while written.load(Ordering::Relaxed) < 5 {
                    std::thread::yield_now();
                }
                pair.bind(None);
                let snapshot = pair.target.bytes.clone();
                writer.join().unwrap();
                assert!(snapshot == pair.target.bytes, "round {round}");
            });
            assert_eq!(pair.a.sink.next(conn(10)), SinkEvent::Other("broken"));
            pair.b.sink.next(conn(11));
            (pair.active, pair.passive) = connected(&pair.a, &pair.b, 7, 10);
            if pair.bounce {
                without_cma(&pair.active);
            }
        }
    });
}

/// Makes the active side write changing bytes until a write fails, because its key was revoked.
fn write_until_refused(pair: &WindowPair, key: u32, written: &AtomicU32) {
    for n in (0..=u8::MAX).cycle() {
        let memory = pattern(4096, n);
        let mr = pair.a.register(&memory);
        let write = Op::Write(Remote { key, address: pair.target.at(0) });
        pair.active.post_send(&wr(write, &[segment(&mr, &memory)], 1)).unwrap();
        match pair.a.completion().status {
            Status::Success => drop(written.fetch_add(1, Ordering::Relaxed)),
            status => return assert_eq!(status, Status::RemoteAccess),
        }
    }
}

#[test]
fn send_with_invalidate_unbinds_the_window_before_its_receive_completes() {
    for (n, length) in [0, 100, 113, 40_000].into_iter().enumerate() {
        let mut pair = WindowPair::new(&format!("invalidate-{n}"), false);
        let key = pair.bind(pair.target.bind(0, 4096, WRITE));
        let (out, into) = (pattern(length, 1), vec![0u8; length]);
        let (out_mr, into_mr) = (pair.a.register(&out), pair.b.register(&into));
        pair.passive.post_recv(&[segment(&into_mr, &into)], token(5)).unwrap();
        let op = Op::SendInvalidate { key, solicited: n == 0 };
        pair.active.post_send(&wr(op, &[segment(&out_mr, &out)], 6)).unwrap();
        let got = pair.b.completion();
        assert_eq!((got.token.cookie, got.status, got.bytes), (5, Status::Success, length as u64));
        assert_eq!((got.invalidated(), got.solicited, into), (Some(key), n == 0, out));
        assert_eq!((pair.window.is_bound(), pair.target.keeps()), (false, 0));
        assert_eq!(pair.a.completion().status, Status::Success);
        assert_eq!(pair.transfer(Op::Write, key, pair.target.at(0), 8), Status::RemoteAccess);
        let again = pair.bind(pair.target.bind(0, 4096, WRITE));
        assert!(pair.window.is_bound() && again != key);
    }
}

#[test]
fn send_with_invalid_window_key_fails_at_both_processes() {
    for wrong in 0..3 {
        let pair = WindowPair::new(&format!("invalidate-wrong-{wrong}"), false);
        let key = pair.bind(pair.target.bind(0, 4096, WRITE));
        let other = pair.b.ia.alloc_pd().unwrap();
        let outside = WindowMemory::of(&pair.b, &other);
        let key = match wrong {
            0 => key ^ 1,
            1 => pair.target.mr.local_key(),
            _ => outside.mr.local_key(),
        };
        pair.passive.post_recv(&[], token(5)).unwrap();
        pair.active.post_send(&wr(Op::SendInvalidate { key, solicited: false }, &[], 6)).unwrap();
        assert_eq!(pair.a.completion().status, Status::RemoteAccess);
        assert_eq!(pair.b.completion().status, Status::LocalProtection);
        assert!(pair.window.is_bound(), "the failed send leaves the bind of the window unchanged");
    }
}
