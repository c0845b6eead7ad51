//! Tests of the end of a connection: flushed work, the events on both sides, errors that end it, and what remains
//! afterwards: a reset queue pair that connects again, the exit handler's packets, and the counters. A packet with a
//! wrong token must not end a connection.

use zerocopy::IntoBytes;

use super::*;
use crate::proto::wire::{Kind, PacketHeader};

#[test]
fn packet_with_a_wrong_token_is_counted_and_has_no_effect() {
    let (a, b) = (TestIa::open(), TestIa::open());
    let (qa, qb) = (a.qp(), b.qp());
    let device = &a.ia.adapter.device;
    let [na, nb] = [&a, &b].map(|side| side.ia.adapter.device.table.reserve(device::now()).unwrap());
    open((&a, &qa), (&b, &qb), na, nb, 1);
    open((&b, &qb), (&a, &qa), nb, na, 2);
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(PacketHeader::new(Kind::Ack, 0, na, 7).as_bytes(), device.socket.local).unwrap();
    let until = Instant::now() + PATIENCE;
    while device.unmatched() == 0 {
        assert!(Instant::now() < until, "the packet was not counted in time");
        assert!(a.has_no_completion());
    }
    qb.post_recv(&[], token(1)).unwrap();
    qa.post_send(&wr(SEND, &[], 2)).unwrap();
    assert_eq!((b.completion(&a).status, a.completion(&b).status), (Status::Success, Status::Success));
    assert_eq!(device.unmatched(), 1);
}

fn flushed(side: &TestIa, other: &TestIa, count: u64) {
    for n in 0..count {
        let completion = side.completion(other);
        assert_eq!((completion.token.cookie, completion.status), (n, Status::Flushed));
    }
    assert!(side.has_no_completion(), "each request and receive is flushed only once");
}

#[test]
fn abort_flushes_both_sides() {
    let (a, qa, b, qb) = two();
    let memory = a.registered(vec![0; 64], ALL);
    for n in 0..3 {
        qa.post_recv(&[memory.segment(0, 64)], token(n)).unwrap();
        qb.post_recv(&[], token(n)).unwrap();
    }
    qa.abort();
    let mut out = [Completion::default(); 8];
    assert_eq!(a.cq.ready(&mut out), 3, "abort must queue the flushed completions before it returns");
    assert!(out[..3].iter().all(|completion| completion.status == Status::Flushed));
    assert_eq!(b.sink.next(conn(2)), "disconnected");
    flushed(&b, &a, 3);
    qa.post_recv(&[memory.segment(0, 64)], token(0)).unwrap();
    flushed(&a, &b, 1);
    assert!(a.sink.has_no_event(), "the side that ended the connection gets no event");
}

#[test]
fn disconnect_during_the_handshake_informs_the_peer() {
    let (a, b) = (TestIa::open(), TestIa::open());
    let (qa, qb) = (a.qp(), b.qp());
    let [na, nb] = [&a, &b].map(|side| side.ia.adapter.device.table.reserve(device::now()).unwrap());
    open((&b, &qb), (&a, &qa), nb, na, 2);
    qb.post_recv(&[], token(0)).unwrap();
    let opened = agreed((&a, &qa), (&b, &qb), na, nb, 1);
    qa.abort();
    assert!(qa.0.open(device::now(), opened).is_none());
    assert_eq!(b.sink.next(conn(2)), "disconnected");
    flushed(&b, &a, 1);
    assert!(a.sink.has_no_event(), "the side that ended the connection gets no event");
}

#[test]
fn drain_completes_posted_requests() {
    let (a, qa, b, qb) = two();
    let from = a.registered(pattern(100_000, 7), Access::default());
    let to = b.registered(vec![0; 100_000], ALL);
    qb.post_recv(&[to.segment(0, 100_000)], token(7)).unwrap();
    qa.post_recv(&[], token(8)).unwrap();
    qa.post_send(&wr(SEND, &[from.segment(0, 100_000)], 9)).unwrap();
    qa.drain();
    let (came, sent) = (b.completion(&a), a.completion(&b));
    assert_eq!((came.status, sent.status, sent.token.cookie), (Status::Success, Status::Success, 9));
    let recv = a.completion(&b);
    assert_eq!((recv.token.cookie, recv.status), (8, Status::Flushed));
    assert_eq!((a.sink.next(conn(1)), b.sink.next(conn(2))), ("disconnected", "disconnected"));
    assert!(to.now() == from.bytes);
}

/// A consumer may disconnect between the end of the handshake and the opening of the queue pair.
#[test]
fn disconnect_before_the_queue_pair_opens_ends_both_sides() {
    for is_graceful in [true, false] {
        let (a, b) = (TestIa::open(), TestIa::open());
        let (qa, qb) = (a.qp(), b.qp());
        let number = |side: &TestIa| side.ia.adapter.device.table.reserve(device::now()).unwrap();
        let (na, nb) = (number(&a), number(&b));
        qb.post_recv(&[], token(0)).unwrap();
        open((&b, &qb), (&a, &qa), nb, na, 2);
        let end = |qp: &Qp| if is_graceful { qp.drain() } else { qp.abort() };
        let is_open = open_after((&a, &qa), (&b, &qb), na, nb, 1, end);
        assert_eq!(is_open, is_graceful);
        assert_eq!(b.sink.next(conn(2)), "disconnected");
        flushed(&b, &a, 1);
        if is_graceful {
            assert_eq!(a.sink.next(conn(1)), "disconnected");
        }
        assert!(a.sink.has_no_event());
    }
}

#[test]
fn write_outside_granted_memory_breaks_the_connection() {
    for case in 0..4 {
        let (a, qa, b, qb) = two();
        let mine = a.registered(vec![1; 64], ALL);
        let access = Access { remote_write: case != 2, ..ALL };
        let theirs = b.registered(vec![0; 64], access);
        let remote = match case {
            0 => theirs.remote(1),
            1 => Remote { key: theirs.remote(0).key ^ 1, ..theirs.remote(0) },
            2 => theirs.remote(0),
            _ => Remote { address: u64::MAX - 8, ..theirs.remote(0) },
        };
        qb.post_recv(&[], token(0)).unwrap();
        qa.post_send(&wr(Op::Write(remote), &[mine.segment(0, 64)], 1)).unwrap();
        qa.post_send(&wr(SEND, &[], 2)).unwrap();
        let (first, second) = (a.completion(&b), a.completion(&b));
        assert_eq!(
            (first.token.cookie, first.status),
            (1, Status::RemoteAccess),
            "case {case}: wrong completion or event"
        );
        assert_eq!(
            (second.token.cookie, second.status),
            (2, Status::Flushed),
            "case {case}: wrong completion or event"
        );
        assert_eq!(
            (a.sink.next(conn(1)), b.sink.next(conn(2))),
            ("broken", "disconnected"),
            "case {case}: wrong completion or event"
        );
        assert_eq!((b.completion(&a).status, theirs.now()), (Status::Flushed, vec![0; 64]));
    }
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    let (a, qa, b, qb) = two();
    let from = a.registered(vec![1; 64], ALL);
    let to = b.registered(vec![0; 63], ALL);
    qb.post_recv(&[to.segment(0, 63)], token(1)).unwrap();
    qb.post_recv(&[to.segment(0, 63)], token(2)).unwrap();
    qa.post_send(&wr(SEND, &[from.segment(0, 64)], 3)).unwrap();
    assert_eq!((b.completion(&a).status, b.completion(&a).status), (Status::LocalLength, Status::Flushed));
    assert_eq!(a.completion(&b).status, Status::RemoteResponder);
    assert_eq!((a.sink.next(conn(1)), b.sink.next(conn(2))), ("broken", "broken"));
    assert_eq!(to.now(), [0; 63]);
}

#[test]
fn send_from_deregistered_memory_breaks_the_connection() {
    for length in [64, 4_000] {
        let (a, qa, b, qb) = two();
        let gone = a.registered(vec![1; length], ALL);
        let segment = gone.segment(0, length);
        drop(gone);
        qb.post_recv(&[], token(0)).unwrap();
        qa.post_send(&wr(SEND, &[segment], 1)).unwrap();
        let failed = a.completion(&b);
        assert_eq!((failed.token.cookie, failed.status), (1, Status::LocalProtection));
        assert_eq!((a.sink.next(conn(1)), b.sink.next(conn(2))), ("broken", "disconnected"));
    }
}

#[test]
fn message_above_the_limit_fails_after_the_earlier_send_completes() {
    let (mut a, b) = (TestIa::open(), TestIa::open());
    a.ia.limits.max_message = 65_536;
    let (qa, qb) = (a.qp(), b.qp());
    connect((&a, &qa), (&b, &qb));
    let from = a.registered(pattern(65_537, 1), ALL);
    let to = b.registered(vec![0; 65_536], ALL);
    qb.post_recv(&[to.segment(0, 65_536)], token(1)).unwrap();
    qa.post_send(&wr(SEND, &[from.segment(0, 65_536)], 2)).unwrap();
    qa.post_send(&wr(SEND, &[from.segment(0, 65_537)], 3)).unwrap();
    assert_eq!((b.completion(&a).status, a.completion(&b).status), (Status::Success, Status::Success));
    let failed = a.completion(&b);
    assert_eq!((failed.token.cookie, failed.status), (3, Status::LocalLength));
    assert_eq!(a.sink.next(conn(1)), "broken");
}

#[test]
fn a_queue_pair_connects_again_after_a_reset() {
    let (a, b) = (TestIa::open(), TestIa::open());
    let (qa, qb) = (a.qp(), b.qp());
    for _ in 0..3 {
        connect((&a, &qa), (&b, &qb));
        qb.post_recv(&[], token(1)).unwrap();
        qa.post_send(&wr(SEND, &[], 2)).unwrap();
        assert_eq!((b.completion(&a).status, a.completion(&b).status), (Status::Success, Status::Success));
        qa.reset().unwrap();
        assert_eq!(b.sink.next(conn(2)), "disconnected");
        qb.reset().unwrap();
    }
    assert!(a.sink.has_no_event());
}

#[test]
fn soft_watermark_reports_an_event_and_hard_one_breaks_the_connection() {
    let (a, qa, b, qb) = two();
    qb.watch_recvs(Some(2), Some(3)).unwrap();
    (0..3).for_each(|n| qb.post_recv(&[], token(n)).unwrap());
    assert_eq!(b.sink.next(conn(0)), "many receives");
    assert!(b.has_no_completion());
    qb.post_recv(&[], token(3)).unwrap();
    assert_eq!((b.sink.next(conn(2)), a.sink.next(conn(1))), ("broken", "disconnected"));
    flushed(&b, &a, 4);
    drop(qa);
}

#[test]
fn dropped_queue_pair_leaves_no_state() {
    let (a, qa, b, qb) = two();
    let held = Arc::downgrade(&qa.0);
    drop(qa);
    assert_eq!(b.sink.next(conn(2)), "disconnected");
    // A running pass may still hold a reference to the queue pair.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while held.strong_count() > 0 {
        assert!(std::time::Instant::now() < until, "the queue pair must be freed within 20 s");
        std::thread::yield_now();
    }
    drop(qb);
    assert!(a.sink.has_no_event());
}

/// The exit handler acks received data, so the peer's requests succeed. Local requests and receives do not complete.
#[test]
fn exit_handler_acks_delivered_data_and_resets_the_connection() {
    let (a, qa, b, qb) = two();
    qb.post_recv(&[], token(1)).unwrap();
    qb.post_recv(&[], token(2)).unwrap();
    qa.post_recv(&[], token(3)).unwrap();
    qa.post_send(&wr(SEND, &[], 4)).unwrap();
    assert_eq!(b.completion(&a).token.cookie, 1);
    b.ia.counters.try_queue_pairs().iter().for_each(|qp| qp.exit());
    let (sent, recv) = (a.completion(&b), a.completion(&b));
    assert_eq!((sent.token.cookie, sent.status), (4, Status::Success));
    assert_eq!((recv.token.cookie, recv.status), (3, Status::Flushed));
    assert_eq!(a.sink.next(conn(1)), "disconnected");
    assert!(b.has_no_completion());
}

#[test]
fn counters_are_visible_during_and_after_a_connection() {
    let (a, qa, b, qb) = two();
    qb.post_recv(&[], token(1)).unwrap();
    qa.post_send(&wr(SEND, &[], 2)).unwrap();
    b.completion(&a);
    a.completion(&b);
    let value =
        |counts: Vec<NamedCount>, name: &str| counts.iter().find(|count| count.name == name).map(|count| count.value);
    assert_eq!((value(qa.counts(), "sent"), value(a.ia.counts(), "sent")), (Some(1), Some(1)));
    assert!(value(qa.counts(), "round trip") > Some(0) && value(qa.counts(), "path mtu") >= Some(1200));
    assert_eq!(value(a.ia.counts(), "unmatched packets"), Some(0));
    qa.abort();
    assert_eq!((value(qa.counts(), "sent"), value(a.ia.counts(), "sent")), (Some(1), Some(1)));
    assert!(a.qp().counts().is_empty(), "without a connection there are no counters");
}
