//! Tests of two correct IAs. Transfers: sends of many lengths, RDMA by the kernel and through the bounce buffers, and
//! refused accesses and registrations. Connections: hand-offs, late duplicates of requests, and the ways to end an
//! attempt, a connection or an IA.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use dapl::error::Error;

use super::*;

/// Makes a connection use the bounce buffers instead of cross-memory attach.
pub(super) fn without_cma(qp: &Qp) {
    qp.0.link().unwrap().peer_side().unwrap().peer.cma.store(false, Ordering::Relaxed);
}

pub(super) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn sends_of_each_boundary_length_deliver_all_bytes() {
    let base = TestBase::new("sizes");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    for (round, length) in [0, 1, 8, 64, 111, 112, 113, 4096, 16384, 16385, 100_000, 3 << 20].into_iter().enumerate() {
        let (out, into) = (pattern(length, round as u8), vec![0u8; length + 1]);
        let (out_mr, into_mr) = (a.register(&out), b.register(&into));
        let segments = if length == 0 { vec![] } else { vec![segment(&out_mr, &out)] };
        passive.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
        active.post_send(&wr(Op::Send { solicited: false }, &segments, 2)).unwrap();
        let got = b.completion();
        assert_eq!((got.token.cookie, got.status, got.bytes), (1, Status::Success, length as u64));
        assert!(into[..length] == out[..], "{length} bytes");
        let sent = a.completion();
        assert_eq!((sent.token.cookie, sent.status, sent.bytes), (2, Status::Success, length as u64));
    }
}

#[test]
fn send_waits_for_its_receive() {
    let base = TestBase::new("rnr");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    let memory = pattern(3 * 64, 1);
    let mr = a.register(&memory);
    for n in 0..3 {
        let one = segment(&mr, &memory[n * 64..][..64]);
        active.post_send(&wr(Op::Send { solicited: false }, &[one], n as u64)).unwrap();
    }
    let into = vec![0u8; 3 * 64];
    let into_mr = b.register(&into);
    for n in 0..3 {
        passive.post_recv(&[segment(&into_mr, &into[n * 64..][..64])], token(n as u64)).unwrap();
        assert_eq!(b.completion().token.cookie, n as u64);
    }
    assert_eq!(into, memory);
    for n in 0..3 {
        assert_eq!(a.completion().token.cookie, n as u64);
    }
}

fn rdma(name: &str, bounce: bool) {
    let base = TestBase::new(name);
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    if bounce {
        without_cma(&active);
    }
    for length in [1, 63, 64, 4096, 32 << 10, (32 << 10) + 1, 1 << 20] {
        let (out, target, back) = (pattern(length, 9), vec![0u8; length], vec![0u8; length]);
        let (out_mr, target_mr, back_mr) = (a.register(&out), b.register(&target), a.register(&back));
        let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
        active.post_send(&wr(Op::Write(remote), &[segment(&out_mr, &out)], 1)).unwrap();
        active.post_send(&wr(Op::Read(remote), &[segment(&back_mr, &back)], 2)).unwrap();
        let (write, read) = (a.completion(), a.completion());
        assert_eq!((write.token.cookie, write.status, write.bytes), (1, Status::Success, length as u64));
        assert_eq!((read.token.cookie, read.status, read.bytes), (2, Status::Success, length as u64));
        assert!(target == out && back == out, "{length} bytes");
    }
    let nothing = Remote { key: 0, address: 0 };
    active.post_send(&wr(Op::Write(nothing), &[], 3)).unwrap();
    assert_eq!(a.completion().status, Status::Success, "an empty write needs no valid key");
}

#[test]
fn rdma_by_the_kernel_transfers_each_boundary_length() {
    rdma("cma", false);
}

#[test]
fn rdma_by_the_bounce_buffer_completes_without_calls_at_the_target() {
    rdma("bounce", true);
}

#[test]
fn write_outside_granted_memory_breaks_the_connection() {
    for bounce in [false, true] {
        for wrong in 0..4 {
            let base = TestBase::new(&format!("access-{bounce}-{wrong}"));
            let (a, b) = (base.open(), base.open());
            let (active, passive) = connected(&a, &b, 7, 10);
            if bounce {
                without_cma(&active);
            }
            let (out, target) = (pattern(64, 1), vec![0u8; 64]);
            let out_mr = a.register(&out);
            let other_pd = b.ia.alloc_pd().unwrap();
            let region = Region { address: target.as_ptr() as u64, length: 64 };
            let (access, pd) = match wrong {
                1 => (Access { remote_write: false, ..ALL }, &b.pd),
                2 => (ALL, &other_pd),
                _ => (ALL, &b.pd),
            };
            let mr = b.ia.register(pd, region, access).unwrap();
            let key = if wrong == 0 { mr.remote_key() ^ 1 } else { mr.remote_key() };
            let address = target.as_ptr() as u64 + u64::from(wrong == 3);
            passive.post_recv(&[], token(5)).unwrap();
            active.post_send(&wr(Op::Write(Remote { key, address }), &[segment(&out_mr, &out)], 1)).unwrap();
            active.post_send(&wr(Op::Send { solicited: false }, &[], 2)).unwrap();
            assert_eq!(a.completion().status, Status::RemoteAccess, "case {wrong}");
            assert_eq!(a.completion().status, Status::Flushed);
            assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("broken"));
            let end = b.sink.next(conn(11));
            assert!(matches!(end, SinkEvent::Other("broken" | "disconnected")), "{end:?}");
            assert_eq!(b.completion().status, Status::Flushed);
            assert_eq!(target, [0; 64]);
        }
    }
}

#[test]
fn late_duplicate_request_is_not_reported() {
    let base = TestBase::new("late");
    let (a, b) = (base.open(), base.open());
    let listener = b.ia.listen(7, ObjectId::default()).unwrap();
    let (active, passive) = (a.qp(), b.qp());
    active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, conn(10)).unwrap();
    let (bytes, fds) = {
        let connections = a.ia.device.connections.lock();
        let attempt = connections.by_id.values().next().unwrap();
        (
            attempt.machine.outgoing().unwrap().encode(),
            attempt.fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>(),
        )
    };
    b.sink.request().0.accept(&passive, &[], conn(11)).unwrap();
    assert_eq!(a.sink.next(conn(10)), SinkEvent::Established(vec![]));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Established(vec![]));
    active.abort();
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    let mut fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    fds.push(a.ia.device.regions.store.fd.as_fd());
    a.ia.device.socket.send(b.ia.device.endpoint.path(), &bytes, &fds).unwrap();
    // When this later request is reported, the engine has read and dropped the late datagram.
    active.reset().unwrap();
    active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: b"new" }, conn(12)).unwrap();
    let (request, info) = b.sink.request();
    assert_eq!(info.private_data, b"new");
    request.reject(&[]);
    assert_eq!(a.sink.next(conn(12)), SinkEvent::Other("peer rejected"));
    assert!(b.sink.is_silent());
    drop(listener);
}

#[test]
fn read_fails_if_the_peer_accepts_no_reads() {
    let base = TestBase::new("no-reads");
    let (a, b) = (base.open(), base.open());
    let listener = b.ia.listen(7, ObjectId::default()).unwrap();
    let spec = QpSpec { max_reads_in: 0, ..b.spec() };
    let (active, passive) = (a.qp(), b.ia.create_qp(&b.pd, spec).unwrap());
    active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, conn(10)).unwrap();
    b.sink.request().0.accept(&passive, &[], conn(11)).unwrap();
    assert_eq!(a.sink.next(conn(10)), SinkEvent::Established(vec![]));
    drop(listener);
    let (back, target) = (vec![0u8; 64], vec![1u8; 64]);
    let (back_mr, target_mr) = (a.register(&back), b.register(&target));
    let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
    active.post_send(&wr(Op::Read(remote), &[segment(&back_mr, &back)], 1)).unwrap();
    assert_eq!((a.completion().status, back[0]), (Status::RemoteResponder, 0));
}

#[test]
fn unmapped_or_protected_memory_is_not_registered() {
    let base = TestBase::new("rights");
    let a = base.open();
    let length = 3 * rustix::param::page_size();
    // SAFETY: creates a new mapping, which belongs to this test.
    let address = unsafe {
        let (flags, write) =
            (rustix::mm::MapFlags::PRIVATE, rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE);
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, write, flags).unwrap()
    };
    let protect = |rights| {
        let middle = address.wrapping_byte_add(length / 3);
        // SAFETY: applies to the middle page of this mapping, which is not used yet.
        unsafe { rustix::mm::mprotect(middle, length / 3, rights).unwrap() };
    };
    let region = Region { address: address as u64, length: length as u64 };
    let (read, write) = (Access::default(), Access { local_write: true, ..Access::default() });
    let register = |access| a.ia.register(&a.pd, region, access).map(drop);
    assert_eq!((register(read), register(write)), (Ok(()), Ok(())));
    protect(rustix::mm::MprotectFlags::READ);
    assert_eq!((register(read), register(write)), (Ok(()), Err(Error::InvalidParameter(3))));
    protect(rustix::mm::MprotectFlags::empty());
    assert_eq!((register(read), register(write)), (Err(Error::InvalidParameter(3)), Err(Error::InvalidParameter(3))));
    // SAFETY: removes the mapping made above, which is not used any more.
    unsafe { rustix::mm::munmap(address, length).unwrap() };
    assert_eq!(register(read), Err(Error::InvalidParameter(3)));
}

#[test]
fn message_longer_than_its_receive_fails_at_both_processes() {
    let base = TestBase::new("long");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    let (out, into) = (pattern(1000, 1), vec![0u8; 999]);
    let (out_mr, into_mr) = (a.register(&out), b.register(&into));
    passive.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
    passive.post_recv(&[segment(&into_mr, &into)], token(2)).unwrap();
    active.post_send(&wr(Op::Send { solicited: false }, &[segment(&out_mr, &out)], 3)).unwrap();
    assert_eq!(b.completion().status, Status::LocalLength);
    assert_eq!(b.completion().status, Status::Flushed);
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"));
    assert_eq!(a.completion().status, Status::RemoteResponder);
    let end = a.sink.next(conn(10));
    assert!(matches!(end, SinkEvent::Other("broken" | "disconnected")), "{end:?}");
}

#[test]
fn graceful_disconnect_delivers_and_abrupt_disconnect_flushes() {
    let base = TestBase::new("ends");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    active.post_send(&wr(Op::Send { solicited: false }, &[], 1)).unwrap();
    active.drain();
    passive.post_recv(&[], token(2)).unwrap();
    passive.post_recv(&[], token(3)).unwrap();
    assert_eq!((a.completion().status, a.sink.next(conn(10))), (Status::Success, SinkEvent::Other("disconnected")));
    assert_eq!((b.completion().status, b.completion().status), (Status::Success, Status::Flushed));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    active.post_send(&wr(Op::Send { solicited: false }, &[], 4)).unwrap();
    assert_eq!(a.completion().status, Status::Flushed, "posts after the end of the connection are flushed");

    active.reset().unwrap();
    passive.reset().unwrap();
    let (active, passive) = connected(&a, &b, 7, 20);
    active.post_recv(&[], token(1)).unwrap();
    passive.abort();
    assert_eq!(a.completion().status, Status::Flushed);
    assert_eq!(a.sink.next(conn(20)), SinkEvent::Other("disconnected"));
    assert!(a.sink.is_silent() && b.sink.is_silent());
}

#[test]
fn missing_rejecting_and_aborting_peers_give_different_events() {
    let base = TestBase::new("refusals");
    let (a, b) = (base.open(), base.open());
    let qp = a.qp();
    let spec = ConnectSpec { address: &here(), qual: 9, private_data: &[] };
    qp.connect(&spec, conn(1)).unwrap();
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Other("rejected"), "no program listens");

    let _listener = b.ia.listen(9, ObjectId { handle: 4096, generation: 1 }).unwrap();
    assert!(a.ia.listen(9, ObjectId::default()).is_err(), "the qualifier is in use");
    qp.reset().unwrap();
    qp.connect(&spec, conn(2)).unwrap();
    b.sink.request().0.reject(&[]);
    assert_eq!(a.sink.next(conn(2)), SinkEvent::Other("peer rejected"));

    qp.reset().unwrap();
    qp.connect(&spec, conn(5)).unwrap();
    b.sink.request().0.reject(b"full");
    assert_eq!(a.sink.next(conn(5)), SinkEvent::Rejected(b"full".to_vec()), "with the private data of a reject");

    qp.reset().unwrap();
    qp.connect(&spec, conn(3)).unwrap();
    let (request, _) = b.sink.request();
    qp.abort();
    let passive = b.qp();
    request.accept(&passive, &[], conn(4)).unwrap();
    assert_eq!(b.sink.next(conn(4)), SinkEvent::Other("accept failed"), "the client has aborted");
    let other_host = PeerAddress::Ip([192, 0, 2, 9].into());
    qp.reset().unwrap();
    assert!(
        qp.connect(&ConnectSpec { address: &other_host, ..spec }, conn(5)).is_err(),
        "an address of another host is unreachable"
    );
}

#[test]
fn hand_off_reaches_another_listener_and_is_bounded() {
    let base = TestBase::new("hand-off");
    let (a, b, c) = (base.open(), base.open(), base.open());
    let id = ObjectId { handle: 4096, generation: 1 };
    let (_first, _same, _other) =
        (b.ia.listen(7, id).unwrap(), b.ia.listen(8, id).unwrap(), c.ia.listen(9, id).unwrap());
    let (active, passive) = (a.qp(), c.qp());
    let spec = ConnectSpec { address: &here(), qual: 7, private_data: b"hello" };
    active.connect(&spec, conn(1)).unwrap();
    let Err((request, error)) = b.sink.request().0.hand_off(77) else { panic!("no program listens on 77") };
    assert_eq!(error, Error::InvalidParameter(2));
    request.hand_off(8).ok().unwrap();
    b.sink.request().0.hand_off(9).ok().unwrap();
    let (request, info) = c.sink.request();
    assert_eq!(info.private_data, b"hello");
    request.accept(&passive, b"welcome", conn(2)).unwrap();
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Established(b"welcome".to_vec()));
    assert_eq!(c.sink.next(conn(2)), SinkEvent::Established(vec![]));

    let lost = a.qp();
    lost.connect(&spec, conn(3)).unwrap();
    for _ in 0..8 {
        b.sink.request().0.hand_off(7).ok().unwrap();
    }
    b.sink.request().0.hand_off(7).ok().unwrap();
    assert_eq!(a.sink.next(conn(3)), SinkEvent::Other("rejected"), "more than eight hand-offs");
}

#[test]
fn closed_adapters_leave_no_files() {
    let base = TestBase::new("left");
    let (a, b) = (base.open(), base.open());
    let pair = connected(&a, &b, 7, 10);
    let by_path = PeerAddress::Path(b.ia.device.endpoint.path().to_path_buf());
    let qp = a.qp();
    qp.connect(&ConnectSpec { address: &by_path, qual: 7, private_data: &[] }, conn(30)).unwrap();
    assert_eq!(
        a.sink.next(conn(30)),
        SinkEvent::Other("rejected"),
        "by the path of the end point, no listener on that qualifier"
    );
    drop((pair, qp));
    drop((a, b));
    let left: Vec<_> = std::fs::read_dir(&base.0).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A peer that has not noticed the end of the connection may still be copying. A deregistration of the memory waits
/// while `announces_copy` reports this copy.
#[test]
fn copy_announced_by_the_peer_is_reported_after_disconnect_until_it_ends() {
    let base = TestBase::new("copy-at-the-end");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 1);
    let memory = [0u8; 64];
    let registration = b.register(&memory);
    let key = registration.remote_key();
    let link = active.0.link().unwrap();
    link.announcement().store(u64::from(key), std::sync::atomic::Ordering::SeqCst);
    drop(passive);
    assert!(b.ia.device.connections.announces_copy(key));
    link.announcement().store(0, std::sync::atomic::Ordering::SeqCst);
    assert!(!b.ia.device.connections.announces_copy(key));
}
