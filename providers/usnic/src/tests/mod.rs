//! Tests of the provider, with IAs of one process over the loopback interface. No test uses libdat or the object layer:
//! a fake sink records events.
//!
//! The tests of transfers, extensions, single requirements and the end of connections use real queue pairs, which they
//! connect without the handshake. The tests of an adapter (`adapter`, `backlog`, `engine_sleep`, `unmatched_packets`)
//! use `fakes`: fake queue pairs that connect by the handshake. `sim` tests the protocol alone, over a simulated
//! network, and `fuzz` replays packets and scripts of a corpus.

mod connection_ends;
mod extensions;
mod requirements;
mod sim;
mod transfers;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use parking_lot::{Condvar, Mutex};

use crate::device;
use crate::proto::psn::Psn;
use crate::proto::setup::{ConnectionTerms, HandshakeResult};
use crate::qp::handler::{ConnectionHandler, ConnectionParams, PathProperties};
use crate::{ConnectionRequest, Cq, Mr, Qp, Usnic};

/// Time limit for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A sink that records all events.
#[derive(Default)]
struct Recorder {
    events: Mutex<VecDeque<(ConnId, &'static str)>>,
    changed: Condvar,
}

impl CmSink<Usnic> for Recorder {
    fn request(&self, _: ObjectId, request: ConnectionRequest, _: RequestInfo) -> Result<(), ConnectionRequest> {
        Err(request)
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, _: &[u8]) {
        let recorded = match event {
            ConnectionEvent::Disconnected => "disconnected",
            ConnectionEvent::Broken => "broken",
            _ => "set-up event",
        };
        self.events.lock().push_back((conn, recorded));
        self.changed.notify_all();
    }

    fn many_recvs(&self, ep: ObjectId) {
        self.events.lock().push_back((ConnId { ep, attempt: 0 }, "many receives"));
        self.changed.notify_all();
    }
}

impl Recorder {
    /// Waits for the next event of a connection, and removes it.
    fn next(&self, conn: ConnId) -> &'static str {
        let until = Instant::now() + PATIENCE;
        let mut events = self.events.lock();
        loop {
            if let Some(place) = events.iter().position(|(of, _)| *of == conn) {
                return events.remove(place).unwrap().1;
            }
            assert!(!self.changed.wait_until(&mut events, until).timed_out(), "no event arrived for {conn:?} in time");
        }
    }

    fn has_no_event(&self) -> bool {
        self.events.lock().is_empty()
    }
}

struct TestIa {
    ia: Usnic,
    sink: Arc<Recorder>,
    pd: crate::Pd,
    cq: Arc<Cq>,
}

/// A sink that ignores notifications, because these tests poll.
struct NoSink;

impl CqSink for NoSink {
    fn notify(&self) {}
}

impl TestIa {
    fn open() -> TestIa {
        TestIa::with("")
    }

    fn with(params: &str) -> TestIa {
        let sink = Arc::new(Recorder::default());
        let params = format!("127.0.0.1 {params}");
        let ia = Usnic::open(&IaSpec { name: "usnic-test", params: &params, library: "" }, sink.clone()).unwrap();
        let (pd, cq) = (ia.alloc_pd().unwrap(), ia.create_cq(Weak::<NoSink>::new()).unwrap());
        TestIa { ia, sink, pd, cq: Arc::new(cq) }
    }

    fn spec(&self) -> QpSpec<Usnic> {
        QpSpec {
            ep: ObjectId::default(),
            shared: None,
            recv_cq: Some(self.cq.clone()),
            request_cq: Some(self.cq.clone()),
            max_recvs: 64,
            max_requests: 64,
            max_recv_iov: 8,
            max_request_iov: 8,
            max_reads_in: 4,
            max_reads_out: 4,
        }
    }

    fn qp(&self) -> Qp {
        self.ia.create_qp(&self.pd, self.spec()).unwrap()
    }

    /// Polls until a completion arrives. Also runs passes of the other IA, which may have to send acks.
    fn completion(&self, other: &TestIa) -> Completion {
        let until = Instant::now() + PATIENCE;
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out) == 0 {
            assert!(Instant::now() < until, "no completion arrived in time");
            other.ia.adapter.progress.run_pass_if_free();
        }
        out[0]
    }

    /// Whether 50 polls find no completion.
    fn has_no_completion(&self) -> bool {
        let mut out = [Completion::default()];
        (0..50).all(|_| self.cq.poll(&mut out) == 0)
    }

    fn registered(&self, bytes: Vec<u8>, access: Access) -> Memory {
        let region = Region { address: bytes.as_ptr() as u64, length: bytes.len() as u64 };
        let mr = self.ia.register(&self.pd, region, access).unwrap();
        Memory { bytes, mr }
    }
}

const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

/// Registered memory.
struct Memory {
    bytes: Vec<u8>,
    mr: Mr,
}

impl Memory {
    fn segment(&self, offset: usize, length: usize) -> Segment {
        let address = self.bytes.as_ptr() as u64 + offset as u64;
        Segment { key: self.mr.local_key(), pad: 0, address, length: length as u64 }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { key: self.mr.remote_key(), address: self.bytes.as_ptr() as u64 + offset as u64 }
    }

    /// Returns the current content. The reads are volatile because other threads write to the memory.
    fn now(&self) -> Vec<u8> {
        // SAFETY: `byte` is a reference to a byte of `self.bytes`, so the pointer is valid.
        self.bytes.iter().map(|byte| unsafe { std::ptr::read_volatile(byte) }).collect()
    }
}

fn token(cookie: u64) -> Token {
    Token { cookie, ..Token::default() }
}

fn wr<'a>(op: Op, segments: &'a [Segment], cookie: u64) -> SendWr<'a> {
    SendWr { op, segments, token: token(cookie), suppress: false, fence: false, announced: false }
}

const SEND: Op = Op::Send { solicited: false };

/// Returns bytes of which no two neighbours are equal.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

fn conn(attempt: u32) -> ConnId {
    ConnId { ep: ObjectId::default(), attempt }
}

/// Connects two queue pairs without the handshake. The connection is attempt 1 at `a`, and attempt 2 at `b`.
fn connect(a: (&TestIa, &Qp), b: (&TestIa, &Qp)) {
    let number = |side: &TestIa| side.ia.adapter.device.table.reserve(device::now()).unwrap();
    let (na, nb) = (number(a.0), number(b.0));
    open(a, b, na, nb, 1);
    open(b, a, nb, na, 2);
}

fn open(side: (&TestIa, &Qp), other: (&TestIa, &Qp), ours: u32, theirs: u32, attempt: u32) {
    assert!(open_after(side, other, ours, theirs, attempt, |_| {}), "the queue pairs must be able to connect");
}

/// Opens the connection of one queue pair, after calling `before`, which acts as a consumer that uses the queue pair
/// early. Returns whether the queue pair opened the connection.
fn open_after(
    side: (&TestIa, &Qp),
    other: (&TestIa, &Qp),
    ours: u32,
    theirs: u32,
    attempt: u32,
    before: impl FnOnce(&Qp),
) -> bool {
    let opened = agreed(side, other, ours, theirs, attempt);
    let (device, next_service) = (&side.0.ia.adapter.device, opened.next_service.clone());
    before(side.1);
    let pending_work = side.1.0.open(device::now(), opened);
    device.table.lookup(ours).unwrap().set_established();
    pending_work.inspect(|pending_work| device.schedule(ours, &next_service, pending_work)).is_some()
}

/// Returns the parameters on which both sides of a connection agree, as a handshake does.
fn agreed(
    (side, qp): (&TestIa, &Qp),
    (other, other_qp): (&TestIa, &Qp),
    ours: u32,
    theirs: u32,
    attempt: u32,
) -> ConnectionParams {
    let device = &side.ia.adapter.device;
    let token = |number: u32, attempt: u32| u64::from(number) << 32 | u64::from(attempt);
    let first = |attempt: u32| Psn(u32::MAX - 5 * attempt);
    let other_attempt = 3 - attempt;
    let terms = ConnectionTerms {
        active: attempt == 1,
        our_conn: ours,
        our_token: token(ours, attempt),
        peer_conn: theirs,
        peer_token: token(theirs, other_attempt),
        first_psn: first(attempt),
        peer_first_psn: first(other_attempt),
        ord: 4,
        ird: 4,
        credits: other_qp.0.caps().credits,
        peer_window_kib: 4096,
        mtu_ceiling: device.ceiling(),
        extensions: true,
        overhead: 0,
        seed: [7; 16],
        peer: other.ia.adapter.device.socket.local,
    };
    qp.0.connecting(ours);
    let next_service = device.table.insert(ours, qp.0.clone());
    ConnectionParams {
        number: ours,
        conn: conn(attempt),
        agreed: HandshakeResult { terms, seal: None },
        next_service,
        socket: device.socket.clone(),
        path: PathProperties { ceiling: device.ceiling(), is_local: true },
    }
}

/// Returns two IAs and their queue pairs, which are connected to each other.
fn two() -> (TestIa, Qp, TestIa, Qp) {
    let (a, b) = (TestIa::open(), TestIa::open());
    let (qa, qb) = (a.qp(), b.qp());
    connect((&a, &qa), (&b, &qb));
    (a, qa, b, qb)
}
