//! Tests of memory windows: access rights, lifetime, order, and the release of registrations.

use std::sync::atomic::{AtomicU32, Ordering};

use dapl_software::memory::rights::AccessRight;

use super::ends::{pattern, without_cma};
use super::*;
use crate::Mw;

const READ: Access =
    Access { local_write: false, remote_read: true, remote_write: false, remote_atomic: false, zero_based: false };
const WRITE: Access =
    Access { local_write: false, remote_read: false, remote_write: true, remote_atomic: false, zero_based: false };
const LOCAL: Access =
    Access { local_write: true, remote_read: false, remote_write: false, remote_atomic: false, zero_based: false };

/// Registered memory without remote rights, and a reference count.
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
struct World {
    active: Qp,
    passive: Qp,
    window: Mw,
    land: WindowMemory,
    a: Side,
    b: Side,
    bounce: bool,
    _place: Place,
}

impl World {
    fn new(name: &str, bounce: bool) -> Self {
        let place = Place::new(&format!("{name}-{bounce}"));
        let (a, b) = (place.open(), place.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        if bounce {
            without_cma(&active);
        }
        let land = WindowMemory::of(&b, &b.pd);
        let window = b.ia.alloc_mw(&b.pd).unwrap();
        World { active, passive, window, land, a, b, bounce, _place: place }
    }

    /// Posts a bind, and waits for its completion.
    fn bind(&self, bind: Option<Bind<'_, Mr>>) -> u32 {
        let key = self.passive.post_bind(&self.window, bind, &bind_wr(77)).unwrap();
        let done = self.b.completion();
        assert_eq!((done.token, done.status, done.bytes), (bind_wr(77).token, Status::Success, 0));
        key
    }

    /// Transfers from the peer with a key. A failure ends the connection, and a new connection is made.
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

fn by_both_ways(name: &str, case: fn(World)) {
    for bounce in [false, true] {
        case(World::new(name, bounce));
    }
}

#[test]
fn window_grants_exactly_the_bound_range() {
    by_both_ways("window", |mut world| {
        let at = world.land.at(1000);
        let key = world.bind(world.land.bind(1000, 100, WRITE));
        assert!(world.window.is_bound());
        assert_eq!(world.transfer(Op::Write, key, at, 100), Status::Success);
        assert_eq!(world.land.bytes[1000..1100], pattern(100, 3));
        for (address, length) in [(at - 1, 1), (at, 101), (at + 100, 1), (u64::MAX - 4, 8)] {
            assert_eq!(world.transfer(Op::Write, key, address, length), Status::RemoteAccess, "{length}");
        }
        assert_eq!(world.transfer(Op::Read, key, at, 100), Status::RemoteAccess, "not the right to read");
        assert_eq!(world.transfer(Op::Write, key ^ 1, at, 100), Status::RemoteAccess);
        let remote = world.land.mr.local_key();
        assert_eq!(world.transfer(Op::Write, remote, at, 100), Status::RemoteAccess, "the region has no such right");
        assert_eq!(world.transfer(Op::Write, key, at + 50, 50), Status::Success, "from another connection too");
    });
}

#[test]
fn old_key_is_invalid_when_the_new_bind_completes() {
    by_both_ways("rebind", |mut world| {
        let at = world.land.at(0);
        let mut keys = Vec::new();
        for access in [WRITE, READ, WRITE] {
            keys.push(world.bind(world.land.bind(0, 64, access)));
            assert_eq!(world.land.keeps(), 1);
        }
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert_eq!(world.transfer(Op::Write, keys[2], at, 64), Status::Success);
        assert_eq!(world.transfer(Op::Write, keys[0], at, 64), Status::RemoteAccess);
        assert_eq!(world.transfer(Op::Read, keys[1], at, 64), Status::RemoteAccess);
        assert_eq!(world.bind(None), 0);
        assert!(!world.window.is_bound() && world.land.keeps() == 0);
        assert_eq!(world.transfer(Op::Write, keys[2], at, 64), Status::RemoteAccess);
    });
}

#[test]
fn dropped_window_is_unbound_immediately() {
    by_both_ways("window-drop", |mut world| {
        let at = world.land.at(0);
        let key = world.bind(world.land.bind(0, 64, WRITE));
        world.window = world.b.ia.alloc_mw(&world.b.pd).unwrap();
        assert_eq!(world.land.keeps(), 0);
        assert_eq!(world.transfer(Op::Write, key, at, 64), Status::RemoteAccess);
    });
}

#[test]
fn a_connection_of_another_domain_has_no_access() {
    by_both_ways("window-domain", |mut world| {
        let pd = world.b.ia.alloc_pd().unwrap();
        let window = world.b.ia.alloc_mw(&pd).unwrap();
        let land = WindowMemory::of(&world.b, &pd);
        // A queue pair of this domain makes the bind. The other connection's queue pair is in another domain.
        let binder = std::mem::replace(&mut world.b.pd, pd);
        let (_active, passive) = connected(&world.a, &world.b, 8, 20);
        world.b.pd = binder;
        let key = passive.post_bind(&window, land.bind(0, 64, WRITE), &bind_wr(1)).unwrap();
        assert_eq!(world.b.completion().status, Status::Success);
        assert_eq!(world.transfer(Op::Write, key, land.at(0), 64), Status::RemoteAccess);
        assert_eq!(land.bytes, [0; 4096]);
    });
}

#[test]
fn requests_after_a_bind_wait_until_copies_with_its_window_end() {
    for sleeps in [false, true] {
        let world = World::new(&format!("window-fence-{sleeps}"), false);
        let old = world.bind(world.land.bind(0, 64, READ));
        let regions = world.b.ia.device.regions.clone();
        let hold = regions.hold(old, world.b.pd.0, world.land.at(0), 64, AccessRight::RemoteRead).unwrap();
        world.active.post_recv(&[], token(1)).unwrap();
        let new = world.passive.post_bind(&world.window, world.land.bind(64, 64, WRITE), &bind_wr(2)).unwrap();
        world.passive.post_send(&wr(Op::Send { solicited: false }, &[], 3)).unwrap();
        // The old key is already revoked, and the new key is not valid yet.
        let dead = |key, at, right| regions.hold(key, world.b.pd.0, world.land.at(at), 64, right).is_err();
        assert!(dead(old, 0, AccessRight::RemoteRead) && dead(new, 64, AccessRight::RemoteWrite));
        if !sleeps {
            let (a, b) = (&world.a.cq, &world.b.cq);
            for _ in 0..1000 {
                assert_eq!(a.poll(&mut [Completion::default()]) + b.poll(&mut [Completion::default()]), 0);
            }
        }
        assert_eq!((world.passive.outstanding().requests, world.land.keeps()), (2, 2));
        drop(hold);
        if sleeps {
            // No thread polls, so the engine makes progress.
            let until = Instant::now() + PATIENCE;
            while world.active.0.link().is_some() && world.land.keeps() == 2 && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        assert_eq!((world.b.completion().token.cookie, world.b.completion().token.cookie), (2, 3));
        assert_eq!((world.a.completion().token.cookie, world.land.keeps()), (1, 1));
        assert!(!dead(new, 64, AccessRight::RemoteWrite));
    }
}

#[test]
fn binds_complete_in_order_and_suppressed_ones_without_event() {
    let world = World::new("window-order", false);
    world.active.post_recv(&[], token(9)).unwrap();
    let quiet = BindWr { suppress: true, fence: true, ..bind_wr(1) };
    let first = world.passive.post_bind(&world.window, world.land.bind(0, 8, READ), &quiet).unwrap();
    world.passive.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
    let second = world.passive.post_bind(&world.window, world.land.bind(0, 8, READ), &bind_wr(3)).unwrap();
    world.passive.post_bind(&world.window, None, &bind_wr(4)).unwrap();
    assert_ne!(first, second);
    let cookies: Vec<_> = (0..3).map(|_| world.b.completion().token.cookie).collect();
    assert_eq!((cookies, world.land.keeps()), (vec![2, 3, 4], 0));
}

#[test]
fn a_bind_that_fails_breaks_the_connection_and_leaves_nothing_bound() {
    let world = World::new("window-failure", false);
    world.bind(world.land.bind(0, 8, READ));
    let pd = world.b.ia.alloc_pd().unwrap();
    let foreign = WindowMemory::of(&world.b, &pd);
    let quiet = BindWr { suppress: true, ..bind_wr(1) };
    world.passive.post_bind(&world.window, foreign.bind(0, 8, READ), &quiet).unwrap();
    world.passive.post_bind(&world.window, world.land.bind(0, 8, READ), &bind_wr(2)).unwrap();
    let (failed, flushed) = (world.b.completion(), world.b.completion());
    assert_eq!((failed.token.cookie, failed.status), (1, Status::BindFailed));
    assert_eq!((flushed.token.cookie, flushed.status), (2, Status::Flushed));
    assert_eq!(world.b.sink.next(conn(11)), SinkEvent::Other("broken"));
    let end = world.a.sink.next(conn(10));
    assert!(matches!(end, SinkEvent::Other("broken" | "disconnected")), "{end:?}");
    assert!(!world.window.is_bound());
    assert_eq!((foreign.keeps(), world.land.keeps()), (0, 0));
}

#[test]
fn a_bind_that_is_flushed_leaves_nothing_bound() {
    let world = World::new("window-flush", false);
    let idle = world.b.qp();
    idle.post_bind(&world.window, world.land.bind(0, 8, READ), &bind_wr(1)).unwrap();
    assert!(world.window.is_bound() && world.land.keeps() == 1, "held until there is a connection");
    idle.abort();
    assert_eq!(world.b.completion().status, Status::Flushed);
    assert!(!world.window.is_bound() && world.land.keeps() == 0);

    let key = world.bind(world.land.bind(0, 8, READ));
    let again = idle.post_bind(&world.window, world.land.bind(0, 8, READ), &bind_wr(2)).unwrap();
    assert_eq!(world.b.completion().status, Status::Flushed, "at once");
    assert!(again != key && !world.window.is_bound() && world.land.keeps() == 0);

    // The bind would be next, but the peer has not taken an earlier send. The send fails when its connection ends.
    world.passive.post_send(&wr(Op::Send { solicited: false }, &[], 3)).unwrap();
    world.passive.post_bind(&world.window, world.land.bind(0, 8, READ), &bind_wr(4)).unwrap();
    assert_eq!(world.land.keeps(), 1);
    world.active.abort();
    let ends = [world.b.completion(), world.b.completion()].map(|done| (done.token.cookie, done.status));
    assert_eq!(ends, [(3, Status::Flushed), (4, Status::Flushed)]);
    assert!(!world.window.is_bound() && world.land.keeps() == 0);
}

#[test]
fn bind_to_a_full_queue_fails_without_effect() {
    let world = World::new("window-full", false);
    let qp = world.b.qp();
    for n in 0..64 {
        qp.post_bind(&world.window, world.land.bind(n, 8, READ), &bind_wr(n)).unwrap();
    }
    let refused = qp.post_bind(&world.window, None, &bind_wr(64));
    assert!(refused.is_err() && world.window.is_bound() && world.land.keeps() == 64);
    drop(qp);
    assert!(!world.window.is_bound() && world.land.keeps() == 0);
}

#[test]
fn nothing_is_written_after_an_unbind_completes() {
    by_both_ways("window-race", |mut world| {
        for round in 0..20 {
            let key = world.bind(world.land.bind(0, 4096, WRITE));
            let written = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| write_until_refused(&world, key, &written));
                while written.load(Ordering::Relaxed) < 5 {
                    std::thread::yield_now();
                }
                world.bind(None);
                let snapshot = world.land.bytes.clone();
                writer.join().unwrap();
                assert!(snapshot == world.land.bytes, "round {round}");
            });
            assert_eq!(world.a.sink.next(conn(10)), SinkEvent::Other("broken"));
            world.b.sink.next(conn(11));
            (world.active, world.passive) = connected(&world.a, &world.b, 7, 10);
            if world.bounce {
                without_cma(&world.active);
            }
        }
    });
}

/// The peer writes changing bytes until its key is revoked.
fn write_until_refused(world: &World, key: u32, written: &AtomicU32) {
    for n in (0..=u8::MAX).cycle() {
        let memory = pattern(4096, n);
        let mr = world.a.register(&memory);
        let write = Op::Write(Remote { key, address: world.land.at(0) });
        world.active.post_send(&wr(write, &[segment(&mr, &memory)], 1)).unwrap();
        match world.a.completion().status {
            Status::Success => drop(written.fetch_add(1, Ordering::Relaxed)),
            status => return assert_eq!(status, Status::RemoteAccess),
        }
    }
}

#[test]
fn send_with_invalidate_unbinds_the_window_before_its_receive_completes() {
    for (n, length) in [0, 100, 113, 40_000].into_iter().enumerate() {
        let mut world = World::new(&format!("invalidate-{n}"), false);
        let key = world.bind(world.land.bind(0, 4096, WRITE));
        let (out, into) = (pattern(length, 1), vec![0u8; length]);
        let (out_mr, into_mr) = (world.a.register(&out), world.b.register(&into));
        world.passive.post_recv(&[segment(&into_mr, &into)], token(5)).unwrap();
        let op = Op::SendInvalidate { key, solicited: n == 0 };
        world.active.post_send(&wr(op, &[segment(&out_mr, &out)], 6)).unwrap();
        let got = world.b.completion();
        assert_eq!((got.token.cookie, got.status, got.bytes), (5, Status::Success, length as u64));
        assert_eq!((got.invalidated(), got.solicited, into), (Some(key), n == 0, out));
        assert_eq!((world.window.is_bound(), world.land.keeps()), (false, 0));
        assert_eq!(world.a.completion().status, Status::Success);
        assert_eq!(world.transfer(Op::Write, key, world.land.at(0), 8), Status::RemoteAccess);
        let again = world.bind(world.land.bind(0, 4096, WRITE));
        assert!(world.window.is_bound() && again != key);
    }
}

#[test]
fn send_with_invalid_window_key_fails_at_both_processes() {
    for wrong in 0..3 {
        let world = World::new(&format!("invalidate-wrong-{wrong}"), false);
        let key = world.bind(world.land.bind(0, 4096, WRITE));
        let other = world.b.ia.alloc_pd().unwrap();
        let elsewhere = WindowMemory::of(&world.b, &other);
        let key = match wrong {
            0 => key ^ 1,
            1 => world.land.mr.local_key(),
            _ => elsewhere.mr.local_key(),
        };
        world.passive.post_recv(&[], token(5)).unwrap();
        world.active.post_send(&wr(Op::SendInvalidate { key, solicited: false }, &[], 6)).unwrap();
        assert_eq!(world.a.completion().status, Status::RemoteAccess);
        assert_eq!(world.b.completion().status, Status::LocalProtection);
        assert!(world.window.is_bound(), "another bind is not touched");
    }
}
