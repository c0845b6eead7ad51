//! Tests of queue pairs on the soft-RoCE device rxe0: replacement of queue pair numbers after unanswered attempts,
//! binds before RTS, immediate data, atomic operations, and overdue sends. Skipped without rxe0, which must have the
//! address 192.0.2.1.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::error::{Error, Resource};
use dapl::provider::{
    Access, BindWr, CmSink, Completion, CompletionQueue, ConnId, ConnRequest, ConnectSpec, Connection, ConnectionEvent,
    CqSink, IaSpec, MemoryProvider, MemoryRegion, Op, PeerAddress, Provider, QpSpec, QueuePair, QueueProvider,
    ReceivedOp, Region, Remote, RequestInfo, Segment, SendWr, SharedReceiveQueue, SharedRecvs, SrqSink, SrqSpec,
    Status, Token, Work,
};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::queue_pair::Qp;
use crate::ibv::PortEvent;
use crate::memory::Mw;
use crate::{ConnectionRequest, Cq, Pd, Verbs, ibv};

/// Time limit of a wait for an event.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The first qualifier. Each IA uses another one, since tests run concurrently.
const QUAL: u64 = 7741;

/// The number of an attempt, and whether the event is ESTABLISHED (else the attempt or connection has ended).
type Event = (u32, bool);

/// Records connection requests and connection events.
struct Sink {
    requests: Sender<ConnectionRequest>,
    events: Sender<Event>,
}

impl CmSink<Verbs> for Sink {
    fn request(&self, _: ObjectId, request: ConnectionRequest, _: RequestInfo) -> Result<(), ConnectionRequest> {
        self.requests.send(request).map_err(|error| error.0)
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, _: &[u8]) {
        let _ = self.events.send((conn.attempt, matches!(event, ConnectionEvent::Established)));
    }

    fn many_recvs(&self, _: ObjectId) {}
}

struct Unused;

impl CqSink for Unused {
    fn notify(&self) {}
}

impl SrqSink for Unused {
    fn low(&self) {}
}

/// An IA with a protection domain and a completion queue, a qualifier for a listener, and the requests and connection
/// events that the IA has delivered.
struct Side {
    ia: Verbs,
    pd: Pd,
    cq: Arc<Cq>,
    qual: u64,
    requests: Mutex<Receiver<ConnectionRequest>>,
    events: Mutex<Receiver<Event>>,
}

impl Side {
    fn open() -> Option<Self> {
        if let Err(error) = ibv::Context::open("rxe0") {
            eprintln!("skipped: no RDMA device ({error})");
            return None;
        }
        let ((to_requests, requests), (to_events, events)) = (channel(), channel());
        let sink = Arc::new(Sink { requests: to_requests, events: to_events });
        let ia = Verbs::open(&IaSpec { name: "rxe0", params: "rxe0 1", library: "" }, sink).unwrap();
        let (pd, cq) = (ia.alloc_pd().unwrap(), Arc::new(ia.create_cq(Weak::<Unused>::new()).unwrap()));
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let qual = QUAL + OPENED.fetch_add(1, Ordering::Relaxed);
        Some(Side { ia, pd, cq, qual, requests: Mutex::new(requests), events: Mutex::new(events) })
    }

    fn qp(&self, shared: Option<SharedRecvs<Verbs>>) -> Qp {
        let spec = QpSpec {
            ep: ObjectId::default(),
            max_recvs: if shared.is_some() { 0 } else { 4 },
            shared,
            recv_cq: Some(self.cq.clone()),
            request_cq: Some(self.cq.clone()),
            max_requests: 4,
            max_recv_iov: 1,
            max_request_iov: 1,
            max_reads_in: 4,
            max_reads_out: 4,
        };
        self.ia.create_qp(&self.pd, spec).unwrap()
    }

    fn connect(&self, qp: &Qp, attempt: u32) -> ConnectionRequest {
        let address = PeerAddress::Ip("192.0.2.1".parse().unwrap());
        qp.connect(&ConnectSpec { address: &address, qual: self.qual, private_data: &[] }, conn(attempt)).unwrap();
        self.requests.lock().recv_timeout(TIMEOUT).expect("a connection request arrives in time")
    }

    /// Checks that the next events are these, in any order. `events` is sorted.
    fn expect<const N: usize>(&self, events: [Event; N]) {
        let mut came =
            events.map(|_| self.events.lock().recv_timeout(TIMEOUT).expect("a connection event arrives in time"));
        came.sort_unstable();
        assert_eq!(came, events);
    }

    fn completion(&self) -> Completion {
        let (until, mut completions) = (Instant::now() + TIMEOUT, [Completion::default(); 1]);
        while self.cq.poll(&mut completions) == 0 {
            assert!(Instant::now() < until, "no completion");
            std::thread::yield_now();
        }
        completions[0]
    }
}

fn conn(attempt: u32) -> ConnId {
    ConnId { ep: ObjectId::default(), attempt }
}

fn token(cookie: u64) -> Token {
    Token { cookie, ..Token::default() }
}

/// Sends a message from `from` to its peer, which has posted a receive with cookie 5. Checks both completions.
fn message_arrives(side: &Side, from: &Qp) {
    let op = Op::Send { solicited: false };
    from.post_send(&SendWr { op, segments: &[], token: token(6), suppress: false, fence: false, announced: false })
        .unwrap();
    let mut both = [side.completion(), side.completion()].map(|done| (done.token.cookie, done.status));
    both.sort_unstable_by_key(|(cookie, _)| *cookie);
    assert_eq!(both, [(5, Status::Success), (6, Status::Success)]);
}

#[test]
fn rxe_queue_pair_number_is_replaced_after_an_unanswered_request() {
    let Some(side) = Side::open() else { return };
    let _listener = side.ia.listen(side.qual, ObjectId::default()).unwrap();
    let srq = SrqSpec { max_recvs: 4, max_iov: 1, sink: Weak::<Unused>::new() };
    let srq = Arc::new(side.ia.create_srq(&side.pd, srq).unwrap());
    for (round, shared) in [None, Some(SharedRecvs { srq: srq.clone(), token: token(0) })].into_iter().enumerate() {
        let (is_shared, round) = (shared.is_some(), 10 * round as u32);
        let (local, peer) = (side.qp(shared), side.qp(None));
        let first = local.core().number();
        local.reset().unwrap();
        assert_eq!(local.core().number(), first, "no peer has the number");
        let unanswered = side.connect(&local, round + 1);
        local.reset().unwrap();
        assert_ne!(local.core().number(), first, "the peer may still use the number");
        unanswered.accept(&peer, &[], conn(round + 5)).unwrap();
        side.expect([(round + 5, false)]);
        peer.reset().unwrap();
        match is_shared {
            true => srq.post_recv(&[], 5).unwrap(),
            false => local.post_recv(&[], token(5)).unwrap(),
        }
        side.connect(&local, round + 2).accept(&peer, &[], conn(round + 3)).unwrap();
        side.expect([(round + 2, true), (round + 3, true)]);
        message_arrives(&side, &peer);
        let second = local.core().number();
        local.reset().unwrap();
        assert_eq!(local.core().number(), second, "the peer has accepted");
        side.connect(&local, round + 4).reject(&[]);
        side.expect([(round + 3, false), (round + 4, false)]);
        local.reset().unwrap();
        assert_eq!(local.core().number(), second, "the peer has rejected");
    }
}

/// Two connected queue pairs, and eight registered 64-bit words.
struct Words {
    side: Side,
    local: Qp,
    peer: Qp,
    words: Vec<AtomicU64>,
    mr: crate::Mr,
}

impl Words {
    fn new(side: Side, access: Access) -> Self {
        let _listener = side.ia.listen(side.qual, ObjectId::default()).unwrap();
        let (local, peer) = (side.qp(None), side.qp(None));
        side.connect(&local, 1).accept(&peer, &[], conn(2)).unwrap();
        side.expect([(1, true), (2, true)]);
        let words: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
        let region = Region { address: words.as_ptr() as u64, length: 64 };
        let mr = side.ia.register(&side.pd, region, access).unwrap();
        Words { side, local, peer, words, mr }
    }

    fn segment(&self, n: usize, length: u64) -> Segment {
        Segment { key: self.mr.local_key(), pad: 0, address: self.words[n].as_ptr() as u64, length }
    }

    fn remote(&self, n: usize) -> Remote {
        Remote { key: self.mr.remote_key(), address: self.words[n].as_ptr() as u64 }
    }

    fn post(&self, op: Op, segments: &[Segment]) -> Result<(), Error> {
        let token = Token { work: op.work(), ..token(6) };
        self.local.post_send(&SendWr { op, segments, token, suppress: false, fence: false, announced: false })
    }

    /// Returns the next two completions, of a receive (cookie 5) and of a request (cookie 6).
    fn both(&self) -> [Completion; 2] {
        let mut both = [self.side.completion(), self.side.completion()];
        both.sort_unstable_by_key(|done| done.token.cookie);
        both
    }

    fn values(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

const ATOMIC: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: true, zero_based: false };

#[test]
fn rxe_bind_before_the_queue_pair_is_in_rts_is_refused() {
    let Some(side) = Side::open() else { return };
    let (qp, mw) = (side.qp(None), Mw::new(&side.pd).unwrap());
    let wr = BindWr { token: token(1), suppress: false, fence: false };
    assert_eq!(qp.post_bind(&mw, None, &wr), Err(Error::Exhausted(Resource::Memory)));
    assert_eq!(qp.outstanding().requests, 0);
}

#[test]
fn rxe_receives_get_immediate_data() {
    let Some(side) = Side::open() else { return };
    assert!(side.ia.limits().extensions.immediate && !side.ia.limits().extensions.invalidate);
    let words = Words::new(side, ATOMIC);
    words.peer.post_recv(&[words.segment(4, 8)], token(5)).unwrap();
    words.post(Op::SendImmediate { data: 0xDEAD_BEEF, solicited: true }, &[words.segment(1, 8)]).unwrap();
    let [recv, send] = words.both();
    assert_eq!((recv.status, recv.bytes, recv.arrival), (Status::Success, 8, ReceivedOp::SendImmediate));
    assert_eq!((recv.immediate(), send.status), (Some(0xDEAD_BEEF), Status::Success));
    words.peer.post_recv(&[], token(5)).unwrap();
    let write = Op::WriteImmediate { remote: words.remote(5), data: 7, solicited: false };
    words.post(write, &[words.segment(2, 16)]).unwrap();
    let [recv, send] = words.both();
    assert_eq!((recv.status, recv.bytes, recv.arrival), (Status::Success, 16, ReceivedOp::WriteImmediate));
    assert_eq!((recv.immediate(), send.token.work), (Some(7), Work::WriteImmediate));
    assert_eq!(words.values(), [0, 1, 2, 3, 1, 2, 3, 7]);
    words.peer.post_recv(&[], token(5)).unwrap();
    words.post(Op::Send { solicited: false }, &[]).unwrap();
    let [recv, _] = words.both();
    assert_eq!((recv.arrival, recv.immediate()), (ReceivedOp::Send, None), "a send without immediate data follows");
    let invalidate = Op::SendInvalidate { key: 1, solicited: false };
    assert_eq!(words.post(invalidate, &[]), Err(Error::ModelNotSupported));
}

#[test]
fn rxe_atomic_operations_return_the_former_value() {
    let Some(side) = Side::open() else { return };
    assert!(side.ia.limits().extensions.atomics);
    let words = Words::new(side, ATOMIC);
    let done = |op| {
        words.post(op, &[words.segment(0, 8)]).unwrap();
        let done = words.side.completion();
        (done.status, done.bytes, words.values()[0])
    };
    let remote = words.remote(3);
    assert_eq!(done(Op::FetchAdd { remote, add: u64::MAX }), (Status::Success, 8, 3));
    assert_eq!(done(Op::CompareSwap { remote, compare: 2, swap: 1 << 40 }), (Status::Success, 8, 2));
    assert_eq!(done(Op::CompareSwap { remote, compare: 2, swap: 9 }), (Status::Success, 8, 1 << 40));
    assert_eq!(words.values()[3], 1 << 40);
}

#[test]
fn rxe_invalid_atomic_operations_fail_and_change_nothing() {
    let plain = Access { remote_atomic: false, ..ATOMIC };
    let cases = [
        (plain, 0, 8, Status::RemoteAccess),
        (ATOMIC, 4, 8, Status::RemoteResponder),
        (ATOMIC, 0, 4, Status::LocalLength),
        (ATOMIC, 64, 8, Status::RemoteAccess),
    ];
    for (access, offset, length, status) in cases {
        let Some(side) = Side::open() else { return };
        let words = Words::new(side, access);
        let remote = Remote { address: words.remote(0).address + offset, ..words.remote(0) };
        words.post(Op::FetchAdd { remote, add: 1 }, &[words.segment(7, length)]).unwrap();
        assert_eq!(words.side.completion().status, status, "offset {offset}, {length} bytes");
        assert_eq!(words.values(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn rxe_overdue_send_is_flushed_if_the_port_is_down() {
    let (Some(side), Some(other)) = (Side::open(), Side::open()) else { return };
    let words = Words::new(side, ATOMIC);
    let begin = Instant::now();
    words.post(Op::Send { solicited: false }, &[]).unwrap(); // the peer posts no receive
    // The port stays active. This is only the event that its device would report, read by another IA of the process.
    let of_other = Words::new(other, ATOMIC);
    let reader = &of_other.local.core().device;
    reader.port_changed(words.local.core().device.port, PortEvent::Down);
    for seconds in [0, 11] {
        words.side.cq.0.overdue_sends(begin + Duration::from_secs(seconds));
    }
    reader.port_changed(words.local.core().device.port, PortEvent::Active);
    assert_eq!(words.side.completion().status, Status::Flushed);
}

#[test]
fn rxe_only_a_send_without_receive_is_reported_overdue_and_only_once() {
    let Some(side) = Side::open() else { return };
    let words = Words::new(side, ATOMIC);
    let begin = Instant::now();
    let ages_after = |seconds| {
        let overdue = words.side.cq.0.overdue_sends(begin + Duration::from_secs(seconds));
        overdue.iter().map(|send| send.age.as_secs()).collect::<Vec<_>>()
    };
    let send = Op::Send { solicited: false };
    words.post(send, &[]).unwrap();
    assert_eq!([0, 9, 10, 30].map(ages_after), [vec![], vec![], vec![10], vec![]]);
    words.peer.post_recv(&[], token(5)).unwrap();
    assert_eq!(words.both().map(|done| done.status), [Status::Success; 2]);
    words.peer.post_recv(&[], token(5)).unwrap();
    words.post(send, &[]).unwrap();
    ages_after(40);
    // The device needs some time to complete the send. The completion is fetched, but the consumer does not poll it.
    while words.local.core().oldest_send().is_some() {
        assert!(begin.elapsed() < TIMEOUT, "the send does not complete");
        words.side.cq.0.fetch();
    }
    assert_eq!(ages_after(60), [0; 0]);
    words.post(Op::Write(words.remote(5)), &[words.segment(2, 8)]).unwrap();
    assert_eq!([80, 100].map(ages_after), [vec![], vec![]], "an RDMA write needs no receive");
}
