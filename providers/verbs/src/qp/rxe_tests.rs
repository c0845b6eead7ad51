//! Which number a queue pair has for its next attempt, against soft-RoCE. Skipped where there is no device rxe0.
#![forbid(unsafe_code)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::{
    CmSink, Completion, CompletionQueue, ConnId, ConnRequest, ConnectSpec, Connection, ConnectionEvent, CqSink, IaSpec,
    MemoryProvider, Op, PeerAddress, Provider, QpSpec, QueuePair, QueueProvider, RequestInfo, SendWr,
    SharedReceiveQueue, SharedRecvs, SrqSink, SrqSpec, Status, Token,
};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::queue_pair::Qp;
use crate::{ConnectionRequest, Cq, Pd, Verbs, ibv};

/// Longer than any event takes to arrive.
const PATIENCE: Duration = Duration::from_secs(60);
const QUAL: u64 = 7741;

/// An attempt, and whether it or its connection is established.
type Event = (u32, bool);

/// Records the requests and the events of connections.
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

/// An IA with a listener.
struct Side {
    ia: Verbs,
    pd: Pd,
    cq: Arc<Cq>,
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
        Some(Side { ia, pd, cq, requests: Mutex::new(requests), events: Mutex::new(events) })
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
            max_reads_in: 0,
            max_reads_out: 0,
        };
        self.ia.create_qp(&self.pd, spec).unwrap()
    }

    fn connect(&self, qp: &Qp, attempt: u32) -> ConnectionRequest {
        let address = PeerAddress::Ip("192.0.2.1".parse().unwrap());
        qp.connect(&ConnectSpec { address: &address, qual: QUAL, private_data: &[] }, conn(attempt)).unwrap();
        self.requests.lock().recv_timeout(PATIENCE).expect("a request")
    }

    /// The next events are these, in any order.
    fn expect<const N: usize>(&self, events: [Event; N]) {
        let mut came = events.map(|_| self.events.lock().recv_timeout(PATIENCE).expect("an event"));
        came.sort_unstable();
        assert_eq!(came, events);
    }

    fn completion(&self) -> Completion {
        let (until, mut completions) = (Instant::now() + PATIENCE, [Completion::default(); 1]);
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

/// Sends from one to the other, which has a receive with cookie 5.
fn message_arrives(side: &Side, from: &Qp) {
    let op = Op::Send { solicited: false };
    from.post_send(&SendWr { op, segments: &[], token: token(6), suppress: false, fence: false, announced: false })
        .unwrap();
    let mut both = [side.completion(), side.completion()].map(|done| (done.token.cookie, done.status));
    both.sort_unstable_by_key(|(cookie, _)| *cookie);
    assert_eq!(both, [(5, Status::Success), (6, Status::Success)]);
}

#[test]
fn rxe_number_is_replaced_after_an_unanswered_request() {
    let Some(side) = Side::open() else { return };
    let _listener = side.ia.listen(QUAL, ObjectId::default()).unwrap();
    let srq = SrqSpec { max_recvs: 4, max_iov: 1, sink: Weak::<Unused>::new() };
    let srq = Arc::new(side.ia.create_srq(&side.pd, srq).unwrap());
    for (round, shared) in [None, Some(SharedRecvs { srq: srq.clone(), token: token(0) })].into_iter().enumerate() {
        let (is_shared, round) = (shared.is_some(), 10 * round as u32);
        let (near, far) = (side.qp(shared), side.qp(None));
        let first = near.core().number();
        near.reset().unwrap();
        assert_eq!(near.core().number(), first, "no peer knows it");
        let unanswered = side.connect(&near, round + 1);
        near.reset().unwrap();
        assert_ne!(near.core().number(), first, "the peer may know it still");
        unanswered.accept(&far, &[], conn(round + 5)).unwrap();
        side.expect([(round + 5, false)]);
        far.reset().unwrap();
        match is_shared {
            true => srq.post_recv(&[], 5).unwrap(),
            false => near.post_recv(&[], token(5)).unwrap(),
        }
        side.connect(&near, round + 2).accept(&far, &[], conn(round + 3)).unwrap();
        side.expect([(round + 2, true), (round + 3, true)]);
        message_arrives(&side, &far);
        let second = near.core().number();
        near.reset().unwrap();
        assert_eq!(near.core().number(), second, "the peer has accepted");
        side.connect(&near, round + 4).reject(&[]);
        side.expect([(round + 3, false), (round + 4, false)]);
        near.reset().unwrap();
        assert_eq!(near.core().number(), second, "the peer has rejected");
    }
}
