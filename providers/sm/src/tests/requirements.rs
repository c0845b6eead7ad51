//! Tests of single requirements that the other files do not test, or test only in part.
//! `docs/spec/requirements-sm.md` lists all requirements with their tests.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use dapl::error::{Error, Resource};

use super::connection_ends::{pattern, without_cma};
use super::invalid_data::{TestClient, params};
use super::*;
use crate::cm::socket::open_peer_fifo;
use crate::engine::wake::write_word;
use crate::memory::map::SharedMapping;
use crate::proto::handshake::{Datagram, Geometry, ReplyResult};
use crate::proto::message::{FifoWord, Fragment, Header, LINE, MessageKind, SLOT};
use crate::qp::link::ConnectionMemory;

/// Opens an IA with these settings, in the format of `ia_params`.
pub(super) fn set(base: &TestBase, settings: &str) -> Side {
    let sink = Arc::<Recorder>::default();
    let params = format!("{} {settings}", base.0);
    let ia = Sm::open(&IaSpec { name: "sm0", params: &params, library: "" }, sink.clone()).unwrap();
    let pd = ia.alloc_pd().unwrap();
    let cq = Arc::new(ia.create_cq(Weak::<IgnoreNotifications>::new()).unwrap());
    Side { ia, sink, pd, cq }
}

/// Returns two connected queue pairs with space for `space` requests and receives.
pub(super) fn with_capacity(a: &Side, b: &Side, space: u32) -> (Qp, Qp) {
    let make = |side: &Side| {
        let spec = QpSpec { max_recvs: space, max_requests: space, ..side.spec() };
        side.ia.create_qp(&side.pd, spec).unwrap()
    };
    let listener = b.ia.listen(8, ObjectId::default()).unwrap();
    let (active, passive) = (make(a), make(b));
    active.connect(&ConnectSpec { address: &here(), qual: 8, private_data: &[] }, conn(10)).unwrap();
    b.sink.request().0.accept(&passive, &[], conn(11)).unwrap();
    assert_eq!(a.sink.next(conn(10)), SinkEvent::Established(vec![]));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Established(vec![]));
    drop(listener);
    (active, passive)
}

fn link(qp: &Qp) -> Arc<ConnectionMemory> {
    qp.0.link().unwrap()
}

/// Returns the header word of slot `n` of the ring at offset `ring`; 0 if the slot was never used.
fn slot(area: &SharedMapping, ring: usize, n: usize) -> u64 {
    area.word(ring + n * SLOT).load(Ordering::Acquire)
}

#[test]
fn connection_maps_both_segments_of_the_peer_and_has_a_link_in_conns() {
    let base = TestBase::new("conns");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    let conns = a.ia.device.endpoint.path().join("conns");
    let names = || std::fs::read_dir(&conns).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let [name] = &names()[..] else { panic!("{:?}", names()) };
    assert_eq!(std::fs::read_link(name).unwrap(), b.ia.device.endpoint.path());
    assert_eq!(name.file_name().unwrap().to_str(), Some(link(&active).id.to_string().as_str()));
    for (own, other) in [(&active, &passive), (&passive, &active)] {
        let (own, other) = (link(own), link(other));
        let peer_side = own.peer_side().unwrap();
        assert_eq!((peer_side.area.len(), peer_side.rma.len()), (other.area.len(), other.rma.len()));
        assert!(!peer_side.area.is_writable() && peer_side.rma.is_writable());
        assert_eq!(peer_side.id, other.id);
    }
    active.abort();
    assert_eq!(names().len(), 0);
}

#[test]
fn unanswered_request_is_repeated_and_a_second_reply_is_ignored() {
    let base = TestBase::new("repeats");
    let a = base.open();
    let client = TestClient::new(&base);
    let qp = a.qp();
    let address = PeerAddress::Path(client.path.clone());
    qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: b"again" }, conn(1)).unwrap();
    let first = client.answer();
    let Datagram::Request { id, params, .. } = &first else { panic!("{first:?}") };
    assert_eq!((client.answer(), client.answer()), (first.clone(), first.clone()));
    let reply = |result| Datagram::Reply { client: *id, server: 3, token: params.token, result, accepted: None };
    // The second of two equal replies is ignored.
    for _ in 0..2 {
        let bytes = reply(ReplyResult::Rejected(Vec::new())).encode();
        client.socket.send(a.ia.device.endpoint.path(), &bytes, &[]).unwrap();
    }
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Other("peer rejected"));
    qp.reset().unwrap();
    qp.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, conn(2)).unwrap();
    assert_eq!(a.sink.next(conn(2)), SinkEvent::Other("rejected"));
    assert!(a.sink.is_silent());
}

#[test]
fn disabled_cross_memory_copy_is_not_used() {
    for (n, settings) in [("", "rma=mmap"), ("rma=mmap", "")].into_iter().enumerate() {
        let base = TestBase::new(&format!("methods-{n}"));
        let (a, b) = (set(&base, settings.0), set(&base, settings.1));
        let (active, passive) = connected(&a, &b, 7, 10);
        for qp in [&active, &passive] {
            assert!(!link(qp).peer_side().unwrap().peer.cma.load(Ordering::Relaxed), "{settings:?}");
        }
    }
}

#[test]
fn kernel_copies_send_no_message_to_the_target() {
    let base = TestBase::new("alone");
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    let link = link(&active);
    if !link.peer_side().unwrap().peer.cma.load(Ordering::Relaxed) {
        println!("skipped: the kernel permits no cross-memory attach");
        return;
    }
    let (out, target) = (pattern(100_000, 3), vec![0u8; 100_000]);
    let (out_mr, target_mr) = (a.register(&out), b.register(&target));
    let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
    let requests = link.geometry.requests_at();
    for op in [Op::Write(remote), Op::Read(remote)] {
        active.post_send(&wr(op, &[segment(&out_mr, &out)], 1)).unwrap();
        assert_eq!(a.completion().status, Status::Success);
        assert_eq!(
            (slot(&link.area, requests, 0), link.consumed_requests()),
            (0, 0),
            "a message was sent to the target"
        );
    }
    assert!(target == out);
    without_cma(&active);
    active.post_send(&wr(Op::Write(remote), &[segment(&out_mr, &out)], 2)).unwrap();
    assert_eq!(a.completion().status, Status::Success);
    assert_ne!(slot(&link.area, requests, 0), 0, "a write by the bounce buffer sends a message");
}

/// A queue pair that is connected to a test client, and the client's area. FIFO words that the client sends contain
/// `id`.
struct ClientQp {
    qp: Qp,
    area: SharedMapping,
    id: u32,
}

impl ClientQp {
    fn of(a: &Side, client: &TestClient, geometry: Geometry) -> Self {
        let qp = a.qp();
        let address = PeerAddress::Path(client.path.clone());
        qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: &[] }, conn(1)).unwrap();
        let Datagram::Request { id, params: asked, .. } = client.answer() else { panic!() };
        let sealed = |len| SharedMapping::create("area", len, false).unwrap();
        let ((area, area_fd), (_, rma_fd), (_, table_fd)) =
            (sealed(geometry.area_len()), sealed(geometry.rma_len()), sealed(16 * 64));
        let accepted = Some((params(asked.token, geometry), vec![]));
        let reply =
            Datagram::Reply { client: id, server: 3, token: asked.token, result: ReplyResult::Accepted, accepted };
        let fds = [area_fd.as_fd(), rma_fd.as_fd(), table_fd.as_fd()];
        client.socket.send(a.ia.device.endpoint.path(), &reply.encode(), &fds).unwrap();
        assert_eq!(a.sink.next(conn(1)), SinkEvent::Established(vec![]));
        ClientQp { qp, area, id }
    }

    /// Number of RDMA fragments in the ring. The test client consumes none.
    fn fragments(&self) -> usize {
        let link = link(&self.qp);
        let kind = |n| Header::decode(slot(&link.area, link.geometry.requests_at(), n) as u32).map(|h| h.kind);
        // ESTABLISHED is reported shortly before data transfer starts, so the request may still be queued.
        let until = Instant::now() + PATIENCE;
        while kind(0).is_none() {
            assert!(Instant::now() < until, "no packet is sent");
            std::thread::yield_now();
        }
        assert_eq!(self.qp.outstanding().requests, 1); // The call waits for the lock of the thread that sends.
        (0..).take_while(|n| kind(*n) == Some(MessageKind::RmaWrite)).count()
    }
}

#[test]
fn several_fragments_are_in_flight_and_the_first_error_ends_the_transfer() {
    let base = TestBase::new("fragments");
    let a = base.open();
    let (client, geometry) = (TestClient::new(&base), Geometry::LOCAL);
    let guest = ClientQp::of(&a, &client, geometry);
    let (qp, link) = (&guest.qp, link(&guest.qp));
    let out = pattern(1 << 20, 5);
    let mr = a.register(&out);
    let remote = Remote { key: 0x1_2345, address: 0x10_0000 };
    qp.post_send(&wr(Op::Write(remote), &[segment(&mr, &out)], 77)).unwrap();
    // Several fragments are in the ring. The remaining fragments wait for space.
    let under_way = guest.fragments();
    assert!((2..32).contains(&under_way), "{under_way}");
    let (mut offset, mut lines) = (0, Vec::new());
    for n in 0..under_way {
        let line = (link.area.word(link.geometry.requests_at() + n * SLOT + 8).load(Ordering::Relaxed) >> 32) as u32;
        let at = line as usize * LINE;
        let said = Fragment::decode(std::array::from_fn(|n| link.rma.word(at + n * 8).load(Ordering::Relaxed)));
        assert_eq!((said.key, said.address, said.origin), (remote.key, remote.address + offset, offset));
        assert_eq!(said.cookie, 77);
        let first = link.rma.word(at + LINE).load(Ordering::Relaxed).to_ne_bytes();
        assert_eq!(first, out[offset as usize..][..8], "the payload begins on the next line");
        offset += u64::from(said.length);
        lines.push(line);
    }
    // The first fragment succeeds, and the second fails. The transfer ends with one completion.
    for (n, status) in [0, 6].into_iter().enumerate() {
        guest.area.word(geometry.responses_at() + n * SLOT + 8).store(u64::from(lines[n]) << 32, Ordering::Relaxed);
        let word = u64::from(Header::plain(MessageKind::RmaAck, status).encode()) | 1 << 32;
        guest.area.word(geometry.responses_at() + n * SLOT).store(word, Ordering::Release);
    }
    let uid = rustix::process::geteuid().as_raw();
    write_word(&open_peer_fifo(a.ia.device.endpoint.path(), uid).unwrap(), FifoWord::Wake(guest.id));
    let failed = a.completion();
    assert_eq!((failed.token.cookie, failed.status), (77, Status::RemoteAccess));
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Other("broken"));
    assert_eq!(a.cq.poll(&mut [Completion::default(); 4]), 0);
}

#[test]
fn fragments_in_flight_are_limited_by_the_targets_response_ring() {
    let base = TestBase::new("answers");
    let a = set(&base, "rma_buffer=1048576");
    let client = TestClient::new(&base);
    let guest = ClientQp::of(&a, &client, Geometry { responses: 8, ..Geometry::LOCAL });
    let out = pattern(1 << 20, 5);
    let mr = a.register(&out);
    let remote = Remote { key: 0x1_2345, address: 0x10_0000 };
    guest.qp.post_send(&wr(Op::Write(remote), &[segment(&mr, &out)], 77)).unwrap();
    assert_eq!(guest.fragments(), 4, "half of the slots of the target's response ring");
}

#[test]
fn processes_with_segments_of_different_sizes_exchange_data() {
    let smallest = "slots=8 message_buffer=32768 rma_buffer=65536";
    let largest = "slots=4096 message_buffer=1048576 rma_buffer=1048576";
    let odd = "slots=16 message_buffer=33280 rma_buffer=69952";
    for (n, (left, right)) in [(smallest, ""), ("", smallest), (largest, odd), (odd, largest)].into_iter().enumerate() {
        let base = TestBase::new(&format!("geometry-{n}"));
        let (a, b) = (set(&base, left), set(&base, right));
        let (active, passive) = with_capacity(&a, &b, 64);
        without_cma(&active);
        without_cma(&passive);
        for length in [8, 113, 16_384, 100_000, 1 << 20] {
            for (from, to, sender, receiver) in [(&a, &b, &active, &passive), (&b, &a, &passive, &active)] {
                let (out, into) = (pattern(length, n as u8), vec![0u8; length]);
                let (out_mr, into_mr) = (from.register(&out), to.register(&into));
                let remote = Remote { key: into_mr.remote_key(), address: into.as_ptr() as u64 };
                for op in [Op::Send { solicited: false }, Op::Write(remote), Op::Read(remote)] {
                    let receives = matches!(op, Op::Send { .. });
                    if receives {
                        receiver.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
                    }
                    sender.post_send(&wr(op, &[segment(&out_mr, &out)], 2)).unwrap();
                    if receives {
                        assert_eq!(to.completion().status, Status::Success);
                    }
                    assert_eq!(from.completion().status, Status::Success, "{length} bytes, {left:?} and {right:?}");
                    assert!(into == out, "{length} bytes");
                }
            }
        }
    }
}

/// A sink that records which threads report requests and connection events.
#[derive(Default)]
struct EventRecorder {
    recorded: Recorder,
    threads: Mutex<Vec<ThreadId>>,
}

impl CmSink<Sm> for EventRecorder {
    fn request(
        &self,
        listener: ObjectId,
        request: ConnectionRequest,
        info: RequestInfo,
    ) -> Result<(), ConnectionRequest> {
        self.threads.lock().push(std::thread::current().id());
        CmSink::<Sm>::request(&self.recorded, listener, request, info)
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        self.threads.lock().push(std::thread::current().id());
        self.recorded.event(conn, event, private_data);
    }

    fn many_recvs(&self, ep: ObjectId) {
        self.recorded.many_recvs(ep);
    }
}

#[test]
fn one_thread_reports_all_requests_and_connection_events() {
    let base = TestBase::new("one-thread");
    let sink = Arc::<EventRecorder>::default();
    let ia = Sm::open(&IaSpec { name: "sm0", params: &base.0, library: "" }, sink.clone()).unwrap();
    let pd = ia.alloc_pd().unwrap();
    let spec = || QpSpec {
        ep: ObjectId::default(),
        shared: None,
        recv_cq: None,
        request_cq: None,
        max_recvs: 1,
        max_requests: 1,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_reads_in: 0,
        max_reads_out: 0,
    };
    let _listener = ia.listen(7, ObjectId::default()).unwrap();
    let asks = |n, qual| {
        let qp = ia.create_qp(&pd, spec()).unwrap();
        qp.connect(&ConnectSpec { address: &here(), qual, private_data: &[] }, conn(n)).unwrap();
        qp
    };
    let _unanswered = asks(1, 9);
    assert_eq!(sink.recorded.next(conn(1)), SinkEvent::Other("rejected"));
    let (active, passive) = (asks(2, 7), ia.create_qp(&pd, spec()).unwrap());
    sink.recorded.request().0.accept(&passive, &[], conn(3)).unwrap();
    assert_eq!(sink.recorded.next(conn(2)), SinkEvent::Established(vec![]));
    assert_eq!(sink.recorded.next(conn(3)), SinkEvent::Established(vec![]));
    active.abort();
    assert_eq!(sink.recorded.next(conn(3)), SinkEvent::Other("disconnected"));
    ia.close();
    let threads = sink.threads.lock();
    assert_eq!(threads.len(), 5);
    assert!(threads.iter().all(|thread| *thread == threads[0] && *thread != std::thread::current().id()));
}

#[test]
fn nothing_is_delivered_or_sent_after_disconnect() {
    let base = TestBase::new("gates");
    let (a, b) = (base.open(), base.open());
    for round in 0..20 {
        let (active, passive) = connected(&a, &b, 7, 100 + 2 * round);
        let (out, into) = (pattern(64, 1), vec![0u8; 64]);
        let (out_mr, into_mr) = (a.register(&out), b.register(&into));
        for n in 0..64 {
            passive.post_recv(&[segment(&into_mr, &into)], token(n)).unwrap();
        }
        let (ours, peer_side) = (link(&active), link(&passive));
        let send = |n| active.post_send(&wr(Op::Send { solicited: false }, &[segment(&out_mr, &out)], n)).unwrap();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| (0..60).for_each(send));
            let settled = (round % 2 == 0).then(|| b.completion());
            passive.abort();
            // From here on, the test detects a late write by the library.
            //
            // SAFETY: `into` still exists, and no other code uses it.
            unsafe { std::ptr::write_bytes(into.as_ptr().cast_mut(), 0, into.len()) };
            sender.join().unwrap();
            assert!(settled.is_none_or(|done| done.status == Status::Success));
        });
        assert_eq!(a.sink.next(conn(100 + 2 * round)), SinkEvent::Other("disconnected"));
        let slots = ours.geometry.requests as usize;
        let ring = || (0..slots).map(|n| slot(&ours.area, ours.geometry.requests_at(), n)).collect::<Vec<_>>();
        let before = ring();
        active.post_send(&wr(Op::Send { solicited: false }, &[segment(&out_mr, &out)], 99)).unwrap();
        passive.post_send(&wr(Op::Send { solicited: false }, &[], 98)).unwrap();
        assert_eq!(
            (ring(), slot(&peer_side.area, peer_side.geometry.requests_at(), 0)),
            (before, 0),
            "sent after the end"
        );
        // All work is complete: 64 receives and a send of the passive QP, 61 sends of the active QP. No transfer
        // succeeds after the end of the connection.
        let drain = |side: &Side, count: usize| (0..count).map(|_| side.completion().status).collect::<Vec<_>>();
        let received = drain(&b, if round % 2 == 0 { 64 } else { 65 });
        let end = received.iter().position(|status| *status != Status::Success).unwrap_or(received.len());
        assert!(received[end..].iter().all(|status| *status == Status::Flushed), "{received:?}");
        assert_eq!(drain(&a, 61).last(), Some(&Status::Flushed));
        // SAFETY: `into` has at least 64 bytes. The connection has ended, so no other thread writes them.
        let now = unsafe { std::ptr::read_volatile(into.as_ptr().cast::<[u8; 64]>()) };
        assert_eq!(now, [0; 64], "delivered after the end");
    }
}

#[test]
fn maximum_spin_time_is_the_configured_time() {
    for (settings, nanoseconds) in [("", 150_000), ("spin_us=0", 0), ("spin_us=1000000", 1_000_000_000)] {
        let base = TestBase::new("spin");
        assert_eq!(set(&base, settings).cq.max_spin(), nanoseconds);
    }
}

#[test]
fn dropped_queue_pair_is_freed() {
    let base = TestBase::new("counts");
    let (a, b) = (base.open(), base.open());
    let (active, passive) = connected(&a, &b, 7, 10);
    let (core, link) = (Arc::downgrade(&active.0), Arc::downgrade(&link(&active)));
    passive.post_send(&wr(Op::Send { solicited: false }, &[], 1)).unwrap();
    drop(active);
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    // The engine may still have a reference.
    let until = Instant::now() + PATIENCE;
    while core.strong_count() + link.strong_count() > 0 {
        assert!(Instant::now() < until, "the queue pair or its memory is still referenced");
        std::thread::yield_now();
    }
}

#[test]
fn sends_beyond_the_ring_are_queued_up_to_the_queue_capacity() {
    let base = TestBase::new("deferred");
    let (a, b) = (base.open(), base.open());
    let space = 3 * Geometry::LOCAL.requests;
    let (active, passive) = with_capacity(&a, &b, space);
    let out: Vec<u64> = (0..u64::from(space)).collect();
    // SAFETY: the slice covers exactly the bytes of the numbers in `out`.
    let bytes = unsafe { std::slice::from_raw_parts(out.as_ptr().cast::<u8>(), out.len() * 8) };
    let mr = a.register(bytes);
    let send = |n: usize| {
        let one = segment(&mr, &bytes[n * 8..][..8]);
        active.post_send(&wr(Op::Send { solicited: false }, &[one], n as u64))
    };
    for n in 0..out.len() {
        send(n).unwrap();
    }
    assert_eq!(send(0), Err(Error::Exhausted(Resource::Memory)), "the queue is at its capacity");
    assert!(a.sink.is_silent() && b.sink.is_silent(), "a full ring ends no connection");
    let into = vec![0u8; 8];
    let into_mr = b.register(&into);
    for n in &out {
        passive.post_recv(&[segment(&into_mr, &into)], token(*n)).unwrap();
        assert_eq!((b.completion().status, &into[..]), (Status::Success, &n.to_ne_bytes()[..]));
    }
    for n in &out {
        assert_eq!(a.completion().token.cookie, *n);
    }
}
