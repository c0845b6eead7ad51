//! Tests of shared receive queues: several connections on one queue, an empty queue, an abort while a connection uses a
//! receive, protection domains, the capacity, and watermarks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::Srq;

/// A sink that counts the notifications of a completion queue, or the reports of a low watermark.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Counter {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn reaches(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.count() < count {
            assert!(Instant::now() < until, "no notification has arrived");
            std::thread::yield_now();
        }
    }
}

impl SrqSink for Counter {
    fn low(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl CqSink for Counter {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const SRQ: usize = 640;

fn ep(n: usize) -> ObjectId {
    ObjectId { handle: n * 64, generation: 1 }
}

fn srq(side: &Side, sink: &Arc<Counter>) -> Arc<Srq> {
    let sink: Arc<dyn SrqSink> = sink.clone();
    let spec = SrqSpec { max_recvs: 64, max_iov: 4, sink: Arc::downgrade(&sink) };
    Arc::new(side.ia.create_srq(&side.pd, spec).unwrap())
}

fn spec(side: &Side, n: usize, srq: Option<&Arc<Srq>>) -> QpSpec<Sm> {
    let token = Token { ep: n, work: Work::SharedRecv, object: SRQ, ..Token::default() };
    QpSpec { ep: ep(n), shared: srq.map(|srq| SharedRecvs { srq: srq.clone(), token }), ..side.spec() }
}

/// Connects a new queue pair of `a` to `passive`. The connection numbers are `n` and `n + 1`.
fn connect(a: &Side, b: &Side, passive: &Qp, n: usize) -> Qp {
    let qual = n as u64;
    let listener = b.ia.listen(qual, ep(4)).unwrap();
    let active = a.qp();
    active.connect(&ConnectSpec { address: &here(), qual, private_data: &[] }, conn(n)).unwrap();
    b.sink.request().0.accept(passive, &[], conn(n + 1)).unwrap();
    assert_eq!(a.sink.next(conn(n)), SinkEvent::Established(vec![]));
    assert_eq!(b.sink.next(conn(n + 1)), SinkEvent::Established(vec![]));
    drop(listener);
    active
}

fn sharing(a: &Side, b: &Side, srq: &Arc<Srq>, n: usize) -> (Qp, Qp) {
    let passive = b.ia.create_qp(&b.pd, spec(b, n, Some(srq))).unwrap();
    (connect(a, b, &passive, n), passive)
}

fn send(qp: &Qp, segments: &[Segment], cookie: u64) {
    qp.post_send(&SendWr { suppress: true, ..wr(Op::Send { solicited: false }, segments, cookie) }).unwrap();
}

/// Waits until `count` connections wait for a receive.
fn await_waiters(srq: &Srq, count: usize) {
    let until = Instant::now() + PATIENCE;
    while srq.0.waiter_count() != count {
        assert!(Instant::now() < until, "the connection does not wait for a receive");
        std::thread::yield_now();
    }
}

/// Returns the EP, the cookie and the status of the next completion.
fn taken(side: &Side) -> (usize, u64, Status) {
    let done = side.completion();
    assert_eq!((done.token.work, done.token.object), (Work::SharedRecv, SRQ));
    (done.token.ep, done.token.cookie, done.status)
}

const FLUSHED: Status = Status::Flushed;
const OK: Status = Status::Success;

#[test]
fn connections_take_srq_receives_in_order() {
    let base = TestBase::new("srq-order");
    let (a, b) = (base.open(), base.open());
    let srq = srq(&b, &Arc::default());
    let ends: Vec<_> = [10, 20, 30].into_iter().map(|n| sharing(&a, &b, &srq, n)).collect();
    const ROUNDS: u64 = 2000;
    let into = vec![0u8; 5 * 8];
    let mr = b.register(&into);
    let place_of = |n: u64| Segment { length: 8, ..segment(&mr, &into[n as usize * 8..]) };
    std::thread::scope(|scope| {
        for (n, (active, _)) in ends.iter().enumerate() {
            let a = &a;
            scope.spawn(move || {
                let out: Vec<u64> = (0..ROUNDS).map(|round| round << 8 | n as u64).collect();
                let bytes: Vec<u8> = out.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let mr = a.register(&bytes);
                for round in 0..ROUNDS as usize {
                    let one = [segment(&mr, &bytes[round * 8..][..8])];
                    let wr = SendWr { suppress: true, ..wr(Op::Send { solicited: false }, &one, 0) };
                    while active.post_send(&wr).is_err() {
                        std::thread::yield_now();
                    }
                }
                while active.outstanding().requests > 0 {
                    std::thread::yield_now();
                }
            });
        }
        // There are two receives for three connections, so connections often wait.
        (0..2).for_each(|n| srq.post_recv(&[place_of(n)], n).unwrap());
        let mut seen = HashMap::new();
        for _ in 0..3 * ROUNDS {
            let (ep, cookie, status) = taken(&b);
            let word = u64::from_ne_bytes(into[cookie as usize * 8..][..8].try_into().unwrap());
            let next = seen.entry(ep).or_insert(0);
            assert_eq!((status, word >> 8, word as u8 as usize), (OK, *next, ep / 10 - 1));
            *next += 1;
            srq.post_recv(&[place_of(cookie)], cookie).unwrap();
        }
    });
    assert_eq!(srq.available(), 2);
}

#[test]
fn empty_srq_serves_waiting_connections_in_order() {
    let base = TestBase::new("srq-line");
    let (a, b) = (base.open(), base.open());
    let srq = srq(&b, &Arc::default());
    let ends: Vec<_> = [10, 20, 30].into_iter().map(|n| sharing(&a, &b, &srq, n)).collect();
    // No receive is posted, so each connection starts to wait when its first message arrives.
    for (n, (active, passive)) in ends.iter().enumerate() {
        (0..2).for_each(|n| send(active, &[], n));
        await_waiters(&srq, n + 1);
        assert_eq!(passive.outstanding(), Outstanding::default());
    }
    for round in 0..2 {
        for n in [10, 20, 30] {
            srq.post_recv(&[], round).unwrap();
            assert_eq!(taken(&b), (n, round, OK));
        }
    }
    assert_eq!(srq.available(), 0);
    // A connection that has ended does not wait.
    ends.iter().for_each(|(active, _)| send(active, &[], 9));
    await_waiters(&srq, 3);
    ends[0].1.abort();
    ends[1].0.abort();
    assert_eq!(b.sink.next(conn(21)), SinkEvent::Other("disconnected"));
    srq.post_recv(&[], 3).unwrap();
    assert_eq!(taken(&b), (30, 3, OK));
    srq.post_recv(&[], 4).unwrap();
    assert_eq!(srq.available(), 1);
}

#[test]
fn waiter_is_woken_by_a_receive_for_a_waiting_message() {
    let base = TestBase::new("srq-sleep");
    let (a, b) = (base.open(), base.open());
    let (srq, sink) = (srq(&b, &Arc::default()), Arc::<Counter>::default());
    let sink_ref: Arc<dyn CqSink> = sink.clone();
    let cq = Arc::new(b.ia.create_cq(Arc::downgrade(&sink_ref)).unwrap());
    let passive = b.ia.create_qp(&b.pd, QpSpec { recv_cq: Some(cq.clone()), ..spec(&b, 10, Some(&srq)) }).unwrap();
    let active = connect(&a, &b, &passive, 10);
    for round in 0..50 {
        assert!(cq.arm(ArmMode::All).unwrap());
        let before = sink.count();
        (0..2).for_each(|n| send(&active, &[], n));
        if round % 2 == 0 {
            await_waiters(&srq, 1); // In other rounds the receive may be posted before the connection waits.
        }
        srq.post_recv(&[], 1).unwrap();
        sink.reaches(before + 1);
        let mut out = [Completion::default(); 4];
        assert_eq!((cq.ready(&mut out), out[0].token.cookie), (1, 1));
        srq.post_recv(&[], 2).unwrap();
        let until = Instant::now() + PATIENCE;
        while cq.ready(&mut out) == 0 {
            assert!(Instant::now() < until, "the engine has not delivered the second message");
            std::thread::yield_now();
        }
    }
}

#[test]
fn long_message_holds_its_srq_receive_until_it_completes() {
    let base = TestBase::new("srq-long");
    let (a, b) = (base.open(), base.open());
    let srq = srq(&b, &Arc::default());
    let (active, passive) = sharing(&a, &b, &srq, 10);
    let (other, _other_passive) = sharing(&a, &b, &srq, 20);
    let out: Vec<u8> = (0..64 << 20).map(|n: u32| (n >> 4) as u8).collect();
    let (first, second) = (vec![0u8; 64 << 20], vec![0u8; 64 << 20]);
    let (out_mr, first_mr, second_mr) = (a.register(&out), b.register(&first), b.register(&second));
    srq.post_recv(&[segment(&first_mr, &first)], 1).unwrap();
    srq.post_recv(&[segment(&second_mr, &second)], 2).unwrap();
    send(&active, &[segment(&out_mr, &out[..3 << 20])], 1);
    send(&other, &[segment(&out_mr, &out[..3 << 20])], 1);
    let mut both = [taken(&b), taken(&b)];
    both.sort_by_key(|(ep, ..)| *ep);
    assert_eq!(both.map(|(ep, _, status)| (ep, status)), [(10, OK), (20, OK)]);
    assert!(first[..3 << 20] == out[..3 << 20] && second[..3 << 20] == out[..3 << 20]);

    for n in 3..6 {
        srq.post_recv(&[segment(&first_mr, &first)], n).unwrap();
    }
    send(&active, &[segment(&out_mr, &out)], 2);
    active.abort();
    assert_eq!(taken(&b), (10, 3, FLUSHED), "the receives that the EP had taken");
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    assert_eq!(
        (srq.available(), passive.outstanding()),
        (2, Outstanding::default()),
        "the other receives stay in the shared queue"
    );

    passive.reset().unwrap();
    let again = connect(&a, &b, &passive, 30);
    send(&again, &[], 3);
    assert_eq!(taken(&b), (10, 4, OK), "the QP still uses the shared queue after a reset");
}

#[test]
fn srq_receive_must_be_in_the_protection_domain_of_the_srq() {
    let base = TestBase::new("srq-pd");
    let (a, b) = (base.open(), base.open());
    let srq = srq(&b, &Arc::default());
    let pd = b.ia.alloc_pd().unwrap();
    let passive = b.ia.create_qp(&pd, spec(&b, 10, Some(&srq))).unwrap();
    let active = connect(&a, &b, &passive, 10);
    let (out, into) = (vec![7u8; 8], vec![0u8; 8]);
    let (out_mr, into_mr) = (a.register(&out), b.register(&into));
    srq.post_recv(&[segment(&into_mr, &into)], 1).unwrap();
    send(&active, &[segment(&out_mr, &out)], 1);
    assert_eq!((taken(&b), &into), ((10, 1, OK), &out));
    let region = Region { address: into.as_ptr() as u64, length: 8 };
    let peer_side = b.ia.register(&pd, region, Access { local_write: true, ..Access::default() }).unwrap();
    srq.post_recv(&[segment(&peer_side, &into)], 2).unwrap();
    srq.post_recv(&[segment(&into_mr, &into)], 3).unwrap();
    active.post_send(&wr(Op::Send { solicited: false }, &[segment(&out_mr, &out)], 2)).unwrap();
    assert_eq!(taken(&b), (10, 2, Status::LocalProtection));
    assert_eq!(a.completion().status, Status::RemoteResponder);
    assert_eq!((b.sink.next(conn(11)), srq.available()), (SinkEvent::Other("broken"), 1));
}

#[test]
fn low_watermark_is_reported_once() {
    let base = TestBase::new("srq-low");
    let (a, b) = (base.open(), base.open());
    let sink = Arc::<Counter>::default();
    let srq = srq(&b, &sink);
    let (active, _passive) = sharing(&a, &b, &srq, 10);
    (0..4).for_each(|n| srq.post_recv(&[], n).unwrap());
    srq.watch(3).unwrap();
    send(&active, &[], 0);
    assert_eq!((taken(&b).1, sink.count()), (0, 0));
    send(&active, &[], 0);
    assert_eq!(taken(&b).1, 1);
    sink.reaches(1);
    send(&active, &[], 0);
    assert_eq!(taken(&b).1, 2);
    srq.watch(1).unwrap();
    srq.watch(2).unwrap();
    sink.reaches(2);
    send(&active, &[], 0);
    assert_eq!((taken(&b).1, sink.count()), (3, 2));
}

#[test]
fn srq_holds_at_most_its_capacity() {
    let base = TestBase::new("srq-full");
    let b = base.open();
    let srq = srq(&b, &Arc::default());
    (0..64).for_each(|n| srq.post_recv(&[], n).unwrap());
    assert!(srq.post_recv(&[], 64).is_err());
    srq.resize(65).unwrap();
    assert!(srq.post_recv(&[], 64).is_ok());
    assert_eq!(srq.available(), 65);
}

#[test]
fn srq_receive_above_a_hard_watermark_of_zero_breaks_the_connection() {
    let base = TestBase::new("srq-hard");
    let (a, b) = (base.open(), base.open());
    let srq = srq(&b, &Arc::default());
    (0..2).for_each(|n| srq.post_recv(&[], n).unwrap());
    let (active, passive) = sharing(&a, &b, &srq, 10);
    passive.watch_recvs(Some(0), Some(0)).unwrap();
    send(&active, &[], 0);
    assert_eq!(taken(&b), (10, 0, FLUSHED));
    assert_eq!(b.sink.next(ConnId { ep: ep(10), attempt: 0 }), SinkEvent::Other("many receives"));
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"));
    assert_eq!((a.sink.next(conn(10)), srq.available()), (SinkEvent::Other("disconnected"), 1));
}

#[test]
fn qp_soft_watermark_is_reported_and_hard_watermark_breaks_the_connection() {
    let base = TestBase::new("marks");
    let (a, b) = (base.open(), base.open());
    let passive = b.ia.create_qp(&b.pd, spec(&b, 10, None)).unwrap();
    let many = ConnId { ep: ep(10), attempt: 0 };
    passive.watch_recvs(Some(1), Some(2)).unwrap();
    (0..3).for_each(|n| passive.post_recv(&[], token(n)).unwrap());
    assert_eq!(b.sink.next(many), SinkEvent::Other("many receives"));
    let listener = b.ia.listen(7, ep(4)).unwrap();
    let active = a.qp();
    active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, conn(20)).unwrap();
    b.sink.request().0.accept(&passive, &[], conn(21)).unwrap();
    assert_eq!(b.sink.next(conn(21)), SinkEvent::Established(vec![]));
    assert_eq!(b.sink.next(conn(21)), SinkEvent::Other("broken"), "broken immediately after ESTABLISHED");
    for n in 0..3 {
        let done = b.completion();
        assert_eq!((done.token.cookie, done.status), (n, FLUSHED));
    }
    drop(listener);

    passive.reset().unwrap();
    let active = connect(&a, &b, &passive, 30);
    passive.watch_recvs(Some(2), Some(3)).unwrap();
    (0..3).for_each(|n| passive.post_recv(&[], token(n)).unwrap());
    assert_eq!(b.sink.next(many), SinkEvent::Other("many receives"));
    send(&active, &[], 0);
    let (mut out, until) = ([Completion::default(); 4], Instant::now() + PATIENCE);
    while passive.outstanding().recvs == 3 {
        assert!(Instant::now() < until, "the message was not delivered");
    }
    passive.post_recv(&[], token(3)).unwrap();
    assert!(
        b.sink.is_silent(),
        "three receives do not exceed the hard watermark, and the soft one was already reported"
    );
    assert_eq!((b.cq.ready(&mut out), out[0].status), (1, OK));
    passive.post_recv(&[], token(4)).unwrap();
    assert_eq!(b.sink.next(conn(31)), SinkEvent::Other("broken"));
    assert_eq!(a.sink.next(conn(30)), SinkEvent::Other("disconnected"));
    assert_eq!(b.cq.ready(&mut out), 4);
}
