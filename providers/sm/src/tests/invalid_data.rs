//! Peers that send invalid data in the rings, in the buffers and in the handshake. The process under test ends the
//! connection to such a peer, rejects or ignores invalid handshake datagrams, and serves other peers.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rustix::fs::Mode;

use super::*;
use crate::cm::socket::{SetupDatagram, SetupSocket};
use crate::memory::map::SharedMapping;
use crate::proto::handshake::{ConnectParams, Datagram, Geometry, ReplyResult};
use crate::proto::message::{Data, Header, MessageKind};
use crate::proto::reassembly::Numbering;

/// Checks that a message from the first queue pair to the second arrives.
pub(super) fn exchange_messages(a: &Side, b: &Side, pair: &(Qp, Qp)) {
    let out = [7u8; 100];
    let into = vec![0u8; 100];
    let (out_mr, into_mr) = (a.register(&out), b.register(&into));
    pair.1.post_recv(&[segment(&into_mr, &into)], token(1)).unwrap();
    pair.0.post_send(&wr(Op::Send { solicited: false }, &[segment(&out_mr, &out)], 2)).unwrap();
    assert_eq!((b.completion().status, a.completion().status), (Status::Success, Status::Success));
    assert_eq!(into, out);
}

/// Writes a header word, `aux` and the first word of the body to the first slot of the malicious peer's request ring.
fn forge(malicious: &Qp, header: u32, aux: u32, body: u64) {
    forge_fragment(malicious, header, aux, |data| data[0] = body);
}

/// Does the same as `forge`, but the body is a valid data header that `violation` changes.
pub(super) fn forge_fragment(malicious: &Qp, header: u32, aux: u32, violation: impl FnOnce(&mut [u64; Data::WORDS])) {
    let link = malicious.0.link().unwrap();
    let slot = link.geometry.requests_at();
    link.area.word(slot + 8).store(u64::from(aux) << 32, Ordering::Relaxed);
    let mut words = Numbering::new(link.route_out().unwrap()).next(true, 100).encode();
    violation(&mut words);
    words.iter().enumerate().for_each(|(n, word)| link.area.word(slot + 16 + n * 8).store(*word, Ordering::Relaxed));
    link.area.word(slot).store(u64::from(header) | 1 << 32, Ordering::Release);
    link.wake_if_flagged(crate::qp::link::WAKE_ON_REQUESTS);
}

#[test]
fn invalid_ring_entry_ends_only_that_connection() {
    let fragment =
        Header { kind: MessageKind::Send, first: true, last: true, inline: false, solicited: false, length: 100 };
    let invalid: [(&str, u32, u32, u64); 11] = [
        ("a type that does not exist", 0xF, 0, 0),
        ("type 0", 0, 0, 0),
        ("an answer among requests", Header::plain(MessageKind::RmaAck, 0).encode(), 0, 0),
        ("a message outside its buffer", fragment.encode(), u32::MAX, 100),
        ("a message at the edge of its buffer", fragment.encode(), 80 * 1024 / 64 - 1, 100),
        ("a total that does not add up", fragment.encode(), 0, 50),
        ("a fragment without a beginning", Header { first: false, ..fragment }.encode(), 0, 0),
        ("an inline message longer than a slot", Header { inline: true, length: 113, ..fragment }.encode(), 0, 100),
        ("a fragment outside its buffer", Header::plain(MessageKind::RmaWrite, 0).encode(), u32::MAX, 0),
        ("a question about an offer among requests", Header::plain(MessageKind::RequestStaging, 1).encode(), 0, 0),
        ("a refusal among requests", Header::plain(MessageKind::SendNak, 0).encode(), 0, 0),
    ];
    let base = TestBase::new("ring-invalid");
    let (a, b) = (base.open(), base.open());
    let good = connected(&a, &b, 7, 2);
    for (n, (what, header, aux, body)) in invalid.into_iter().enumerate() {
        let id = 100 + 2 * n;
        let (malicious, victim) = connected(&a, &b, 7, id);
        let into = vec![0u8; 4096];
        let mr = b.register(&into);
        victim.post_recv(&[segment(&mr, &into)], token(9)).unwrap();
        forge(&malicious, header, aux, body);
        assert_eq!(b.sink.next(conn(id + 1)), SinkEvent::Other("broken"), "{what}");
        assert_eq!(b.completion().status, Status::Flushed, "{what}");
        assert_eq!(a.sink.next(conn(id)), SinkEvent::Other("disconnected"), "{what}");
        exchange_messages(&a, &b, &good);
    }
}

#[test]
fn invalid_data_header_ends_the_connection() {
    type Violation = fn(&mut [u64; Data::WORDS]);
    let invalid: [(&str, Violation); 6] = [
        ("another generation", |data| data[1] ^= 1),
        ("another message", |data| data[1] += 1 << 16),
        ("another sender", |data| data[1] ^= 1 << 32),
        ("another receiver", |data| data[2] ^= 1),
        ("something beside the receiver", |data| data[2] |= 1 << 63),
        ("something in what is reserved", |data| data[3] = 1),
    ];
    let unchanged: Violation = |_| {};
    let base = TestBase::new("invalid-fragments");
    let (a, b) = (base.open(), base.open());
    let good = connected(&a, &b, 7, 2);
    let header =
        Header { kind: MessageKind::Send, first: true, last: true, inline: false, solicited: false, length: 100 };
    for (n, (what, violation)) in invalid.into_iter().chain([("nothing", unchanged)]).enumerate() {
        let id = 100 + 2 * n;
        let (malicious, victim) = connected(&a, &b, 7, id);
        let into = vec![1u8; 100];
        let mr = b.register(&into);
        victim.post_recv(&[segment(&mr, &into)], token(9)).unwrap();
        forge_fragment(&malicious, header.encode(), 0, violation);
        if what == "nothing" {
            // The unchanged fragment is delivered, so the other connections ended because of the changes.
            assert_eq!((b.completion().status, into), (Status::Success, vec![0; 100]));
            break;
        }
        assert_eq!(b.sink.next(conn(id + 1)), SinkEvent::Other("broken"), "{what}");
        assert_eq!(b.completion().status, Status::Flushed, "{what}");
        assert_eq!(a.sink.next(conn(id)), SinkEvent::Other("disconnected"), "{what}");
        assert_eq!(into, [1; 100], "{what}");
        exchange_messages(&a, &b, &good);
    }
}

#[test]
fn consumed_count_beyond_the_published_requests_ends_the_connection() {
    let base = TestBase::new("count-invalid");
    let (a, b) = (base.open(), base.open());
    let (malicious, victim) = connected(&a, &b, 7, 2);
    malicious.0.link().unwrap().publish_consumed(1 << 40);
    victim.post_send(&wr(Op::Send { solicited: false }, &[], 1)).unwrap();
    assert_eq!(b.completion().status, Status::Flushed);
    assert_eq!(b.sink.next(conn(3)), SinkEvent::Other("broken"));
}

#[test]
fn a_peer_that_overwrites_all_shared_memory_does_not_crash_this_process() {
    let base = TestBase::new("scribble");
    let (a, b) = (base.open(), base.open());
    let good = connected(&a, &b, 7, 2);
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..40 {
        let id = 100 + 2 * round;
        let (malicious, victim) = connected(&a, &b, 7, id);
        let memory = vec![1u8; 200_000];
        let mr = b.register(&memory);
        let target = a.register(&memory);
        victim.0.link().unwrap().peer_side().unwrap().peer.cma.store(round % 2 == 0, Ordering::Relaxed);
        for n in 0..8 {
            victim.post_recv(&[segment(&mr, &memory)], token(n)).unwrap();
            let remote = Remote { key: target.remote_key(), address: memory.as_ptr() as u64 };
            let op = if n % 2 == 0 { Op::Send { solicited: false } } else { Op::Write(remote) };
            victim.post_send(&wr(op, &[segment(&mr, &memory)], n)).unwrap();
        }
        let link = malicious.0.link().unwrap();
        for _ in 0..400 {
            let (area, word) = if next() % 4 == 0 { (&link.rma, next()) } else { (&link.area, next()) };
            // Half of the writes are to the first bytes, because the peer interprets the control page and the slots.
            let bound = if next() % 2 == 0 { 4096 + 64 * 16 } else { area.len() };
            let at = (next() as usize % bound.min(area.len())) & !7;
            let word = if next() % 2 == 0 { word & 0xFFFF | 1 << 32 } else { word };
            area.word(at).store(word, Ordering::Release);
            link.wake_if_flagged(crate::qp::link::WAKE_ON_REQUESTS | crate::qp::link::WAKE_ON_PROGRESS);
        }
        drop((malicious, victim));
        while b.cq.poll(&mut [Completion::default(); 16]) + a.cq.poll(&mut [Completion::default(); 16]) > 0 {}
        exchange_messages(&a, &b, &good);
    }
}

/// A test client that has its own end point directory and sends arbitrary datagrams.
pub(super) struct TestClient {
    pub(super) path: PathBuf,
    pub(super) socket: SetupSocket,
    _fifo: OwnedFd,
}

impl TestClient {
    pub(super) fn new(base: &TestBase) -> Self {
        let path = PathBuf::from(&base.0).join("client");
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        let fifo = crate::cm::socket::open_own_fifo(&path).unwrap();
        let socket = SetupSocket::bind(&path).unwrap();
        TestClient { path, socket, _fifo: fifo }
    }

    pub(super) fn answer(&self) -> Datagram {
        Datagram::decode(&self.received().bytes).unwrap()
    }

    pub(super) fn received(&self) -> SetupDatagram {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(received) = self.socket.receive() {
                return received;
            }
            assert!(Instant::now() < until, "no answer");
            std::thread::yield_now();
        }
    }
}

pub(super) fn params(token: u64, geometry: Geometry) -> ConnectParams {
    ConnectParams {
        generation: 1,
        token,
        endpoint: 2,
        qual: 7,
        geometry,
        pd: 1,
        reads: 4,
        table_slots: 16,
        probe_address: 1,
        probe_value: 1,
        barrier: false,
        ip: [0; 16],
    }
}

#[test]
fn invalid_handshake_datagrams_are_rejected_or_ignored() {
    let base = TestBase::new("hand-invalid");
    let (a, b) = (base.open(), base.open());
    let good = connected(&a, &b, 7, 2);
    let victim = b.ia.device.endpoint.path().to_path_buf();
    let client = TestClient::new(&base);
    let request = |token| Datagram::Request { id: 5, params: params(token, Geometry::LOCAL), private_data: vec![] };
    let mut other_version = request(1).encode();
    other_version[1] = 9;
    client.socket.send(&victim, &other_version, &[]).unwrap();
    let refused = |result| Datagram::Reply { client: 5, server: 0, token: 0, result, accepted: None };
    assert_eq!(client.answer(), refused(ReplyResult::NotUnderstood));
    for garbage in [&b""[..], b"x", &[0xFF; 8], &[2; 300]] {
        client.socket.send(&victim, garbage, &[]).unwrap();
    }
    let absent = request(2).encode();
    client.socket.send(&victim, &absent, &[]).unwrap();
    assert!(matches!(client.answer(), Datagram::Reply { result: ReplyResult::NoListener, .. }));
    // The request is sent twice. The engine reads the second copy after the listener was created.
    let _listener = b.ia.listen(7, ObjectId { handle: 4096, generation: 1 }).unwrap();
    client.socket.send(&victim, &absent, &[]).unwrap();
    assert!(matches!(client.answer(), Datagram::Reply { result: ReplyResult::NoListener, .. }));
    for forged in [
        Datagram::Ack { client: 1, server: 1, token: 0 },
        Datagram::Reset { from: 1, to: 1, token: 0 },
        Datagram::Reply { client: 1, server: 1, token: 0, result: ReplyResult::Rejected(Vec::new()), accepted: None },
    ] {
        client.socket.send(&victim, &forged.encode(), &[]).unwrap();
        client.socket.send(a.ia.device.endpoint.path(), &forged.encode(), &[]).unwrap();
    }
    exchange_messages(&a, &b, &good);
}

#[test]
fn request_with_missing_unsealed_or_wrongly_sized_segments_is_rejected() {
    let base = TestBase::new("area-invalid");
    let b = base.open();
    let _listener = b.ia.listen(7, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let victim = b.ia.device.endpoint.path().to_path_buf();
    let client = TestClient::new(&base);
    let sealed = |len| SharedMapping::create("violation", len, false).unwrap().1;
    let loose = || rustix::fs::memfd_create("violation", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let geometry = Geometry::LOCAL;
    let (area, rma) = (geometry.area_len(), geometry.rma_len());
    let cases = [
        vec![],
        vec![sealed(area)],
        vec![sealed(area - 4096), sealed(rma), sealed(16 * 64)],
        vec![sealed(area), sealed(4096), sealed(16 * 64)],
        vec![sealed(area), sealed(rma), sealed(64)],
        vec![loose(), loose(), loose()],
    ];
    for (n, fds) in cases.iter().enumerate() {
        let request = Datagram::Request { id: 5, params: params(50 + n as u64, geometry), private_data: vec![] };
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        client.socket.send(&victim, &request.encode(), &fds).unwrap();
        let result = ReplyResult::NotUnderstood;
        let refused = Datagram::Reply { client: 5, server: 0, token: 0, result, accepted: None };
        assert_eq!(client.answer(), refused, "case {n}");
    }
    assert!(b.sink.is_silent(), "an invalid request is not reported");
    // A valid request is accepted, so the other requests were refused because of their defects.
    let request = Datagram::Request { id: 5, params: params(99, geometry), private_data: vec![] };
    let fds = [sealed(area), sealed(rma), sealed(16 * 64)];
    client.socket.send(&victim, &request.encode(), &fds.each_ref().map(|fd| fd.as_fd())).unwrap();
    let (request, _) = b.sink.request();
    let passive = b.qp();
    request.accept(&passive, &[], conn(1)).unwrap();
    let Datagram::Reply { server, token: 99, result: ReplyResult::Accepted, .. } = client.answer() else { panic!() };
    // An acknowledgement with another token is ignored; with the right token it is accepted.
    for token in [98, 99] {
        assert!(b.sink.is_silent(), "before {token}");
        client.socket.send(&victim, &Datagram::Ack { client: 5, server, token }.encode(), &[]).unwrap();
        client.socket.send(&victim, &request_of_no_process(), &[]).unwrap();
        while !matches!(client.answer(), Datagram::Reply { result: ReplyResult::NoListener, .. }) {}
    }
    assert_eq!(b.sink.next(conn(1)), SinkEvent::Established(vec![]));
}

/// Returns a datagram that the engine answers at once. When the answer arrives, all earlier datagrams were handled.
fn request_of_no_process() -> Vec<u8> {
    let params = ConnectParams { qual: 8, ..params(1000, Geometry::LOCAL) };
    Datagram::Request { id: 6, params, private_data: vec![] }.encode()
}

#[test]
fn reply_for_an_earlier_end_point_is_ignored() {
    let base = TestBase::new("former-epoch");
    let a = base.open();
    let client = TestClient::new(&base);
    let qp = a.qp();
    let address = PeerAddress::Path(client.path.clone());
    qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: &[] }, conn(1)).unwrap();
    let Datagram::Request { id, params: asked, .. } = client.answer() else { panic!() };
    let geometry = Geometry::LOCAL;
    let sealed = |len| SharedMapping::create("area", len, false).unwrap().1;
    let fds = [sealed(geometry.area_len()), sealed(geometry.rma_len()), sealed(16 * 64)];
    let fds = fds.each_ref().map(|fd| fd.as_fd());
    let reply = |token, result| {
        let accepted = (result == ReplyResult::Accepted).then(|| (params(token, geometry), vec![]));
        let fds: &[_] = if accepted.is_some() { &fds } else { &[] };
        let reply = Datagram::Reply { client: id, server: 3, token, result, accepted };
        client.socket.send(a.ia.device.endpoint.path(), &reply.encode(), fds).unwrap();
    };
    let old = asked.token ^ 1;
    for result in
        [ReplyResult::Rejected(Vec::new()), ReplyResult::NoListener, ReplyResult::HandedOff(7), ReplyResult::Accepted]
    {
        reply(old, result);
    }
    // The last of the four replies accepts, so the engine answers it with a reset. When the reset arrives, the engine
    // has handled all four.
    let over = Datagram::Reset { from: id, to: 3, token: old };
    while client.answer() != over {}
    assert!(a.sink.is_silent());
    reply(asked.token, ReplyResult::Accepted);
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Established(vec![]));
}
