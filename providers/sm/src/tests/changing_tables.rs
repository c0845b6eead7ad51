//! Malicious peers that change their table of registrations during copies, or punch holes into the shared buffers of a
//! connection. The process under test gets no signal, and accesses only memory that a request names.

use std::sync::atomic::{AtomicBool, Ordering};

use dapl_software::memory::regions::{BASE, KEY, LEN, RIGHTS, RegionStore};
use rustix::fs::FallocateFlags;

use super::connection_ends::without_cma;
use super::invalid_data::exchange_messages;
use super::*;

/// Number of requests that are sent to one malicious peer. If a connection ends, a new connection is used.
const REQUESTS: u64 = 3_000;

/// Rewrites the entry of a key until `stop` is set: the key and the rights and, if `wild` is set, also the base and the
/// length.
fn violation(malicious: &Side, key: u32, memory: &[u8], wild: bool, stop: &AtomicBool) {
    let words = malicious.ia.device.regions.store.words(key);
    let original = [u64::from(key), memory.as_ptr() as u64, memory.len() as u64, words[RIGHTS].load(Ordering::Relaxed)];
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    while !stop.load(Ordering::Relaxed) {
        let invalid = [0, 1, u64::MAX, u64::MAX - 63, 1 << 63, original[1] + 64, next()];
        let field = match next() % 4 {
            1 if wild => BASE,
            2 if wild => LEN,
            3 => RIGHTS,
            _ => KEY,
        };
        words[field].store(invalid[next() as usize % invalid.len()], Ordering::Release);
        (0..next() % 64).for_each(|_| std::hint::spin_loop());
        words[field].store(original[field], Ordering::Release);
    }
    words.iter().zip(original).for_each(|(word, value)| word.store(value, Ordering::Release));
}

/// The memory of a transfer, between two pages. No transfer may change these pages.
struct Guarded(Vec<u8>, usize);

impl Guarded {
    fn new(length: usize) -> Self {
        Guarded(vec![3u8; length + 2 * 4096], length)
    }

    fn inside(&self) -> &[u8] {
        &self.0[4096..][..self.1]
    }

    fn is_sound(&self) -> bool {
        self.0[..4096].iter().chain(&self.0[4096 + self.1..]).all(|byte| *byte == 3)
    }
}

fn copies_by_a_malicious_table(name: &str, bounce: bool) {
    let base = TestBase::new(name);
    let (a, b, friend) = (base.open(), base.open(), base.open());
    let good = connected(&a, &friend, 9, 300);
    let (mine, peer_side) = (Guarded::new(100_000), Guarded::new(100_000));
    let (mr, target) = (a.register(mine.inside()), b.register(peer_side.inside()));
    let (key, at) = (target.remote_key(), peer_side.inside().as_ptr() as u64);
    let stop = AtomicBool::new(false);
    let mut counts = [0u64; 3];
    std::thread::scope(|scope| {
        let stopper = Stop(&stop);
        scope.spawn(|| violation(&b, key, peer_side.inside(), !bounce, &stop));
        let mut pair: Option<(Qp, Qp)> = None;
        for n in 0..REQUESTS {
            let (active, _) = pair.get_or_insert_with(|| connected(&a, &b, 7, 1000 + 2 * n as usize));
            if bounce {
                without_cma(active);
            }
            let length = [1, 64, 4096, 100_000][n as usize % 4];
            // The address 4096 is not mapped, but the malicious table may grant access to it.
            let address = if !bounce && n % 7 == 6 { 4096 } else { at };
            let remote = Remote { key, address };
            let op = if n % 2 == 0 { Op::Write(remote) } else { Op::Read(remote) };
            active.post_send(&wr(op, &[segment(&mr, &mine.inside()[..length])], n)).unwrap();
            let done = a.completion();
            assert_eq!(done.token.cookie, n);
            match done.status {
                Status::Success => assert!(
                    address == at && {
                        counts[0] += 1;
                        true
                    }
                ),
                Status::RemoteAccess => counts[1] += 1,
                // The target has ended the connection before the request completed.
                Status::Flushed | Status::Transport if bounce => counts[2] += 1,
                other => panic!("{other:?}"),
            }
            if done.status != Status::Success {
                pair = None;
                a.sink.events.lock().retain(|(conn, _)| conn.ep.handle < 1000 * 64);
                b.sink.events.lock().clear();
                while b.cq.poll(&mut [Completion::default(); 8]) > 0 {}
            }
        }
        drop(stopper);
    });
    assert!(counts[0] > 0 && counts[1] > 0, "both kinds of answers: {counts:?}");
    assert!(mine.is_sound() && peer_side.is_sound());
    exchange_messages(&a, &friend, &good);
}

/// Stops the malicious thread when the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn changing_key_table_gives_kernel_copies_no_access_to_other_memory() {
    copies_by_a_malicious_table("table-kernel", false);
}

#[test]
fn changing_key_table_gives_buffer_copies_no_access_to_other_memory() {
    copies_by_a_malicious_table("table-buffers", true);
}

#[test]
fn holes_punched_into_shared_buffers_raise_no_signal() {
    let base = TestBase::new("holes");
    let (a, b, friend) = (base.open(), base.open(), base.open());
    let good = connected(&friend, &b, 9, 300);
    let (mine, target) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let (mr, target_mr) = (a.register(&mine), b.register(&target));
    for round in 0..10 {
        let listener = b.ia.listen(7, ObjectId { handle: 4096, generation: 1 }).unwrap();
        let (active, passive) = (a.qp(), b.qp());
        let of = conn(10 + 2 * round);
        active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, of).unwrap();
        let (request, _) = b.sink.request();
        let fds: Vec<_> = {
            let connections = a.ia.device.connections.lock();
            let attempt = connections.by_id.values().find(|attempt| attempt.machine.outgoing().is_some()).unwrap();
            attempt.fds.iter().map(|fd| fd.try_clone().unwrap()).collect()
        };
        request.accept(&passive, &[], conn(11 + 2 * round)).unwrap();
        assert_eq!(a.sink.next(of), SinkEvent::Established(vec![]));
        without_cma(&active);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopper = Stop(&stop);
            scope.spawn(|| {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                while !stop.load(Ordering::Relaxed) {
                    let punched = fds.iter().filter(|fd| rustix::fs::fallocate(fd, hole, 0, 1 << 20).is_ok()).count();
                    assert_eq!(punched, 1, "the buffer that both write");
                }
            });
            let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
            for n in 0..8 {
                let op = if n % 2 == 0 { Op::Write(remote) } else { Op::Read(remote) };
                active.post_send(&wr(op, &[segment(&mr, &mine)], n)).unwrap();
            }
            let done: Vec<_> = (0..8).map(|_| a.completion()).collect();
            assert!(done.iter().map(|done| done.token.cookie).eq(0..8), "{done:?}");
            drop(stopper);
        });
        drop((active, passive, listener));
        a.sink.events.lock().clear();
        b.sink.events.lock().retain(|(conn, _)| conn.ep.handle >= 300 * 64);
        while a.cq.poll(&mut [Completion::default(); 8]) + b.cq.poll(&mut [Completion::default(); 8]) > 0 {}
        exchange_messages(&friend, &b, &good);
    }
}
