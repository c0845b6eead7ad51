//! Tests of transfers through the provider interface: contents, order, completions, and access through a memory window.

use super::*;

#[test]
fn sends_of_each_boundary_length_deliver_all_bytes() {
    let (a, qa, b, qb) = two();
    for (n, length) in [0, 1, 64, 768, 769, 1_500, 65_000, 70_000, 1 << 20].into_iter().enumerate() {
        let from = a.registered(pattern(length, n as u8), Access::default());
        let to = b.registered(vec![0; length + 1], ALL);
        qb.post_recv(&[to.segment(0, length + 1)], token(n as u64)).unwrap();
        let half = length / 2;
        let segments = [from.segment(0, half), from.segment(half, length - half)];
        qa.post_send(&wr(SEND, &segments, 100 + n as u64)).unwrap();
        let came = b.completion(&a);
        assert_eq!((came.token.cookie, came.status, came.bytes), (n as u64, Status::Success, length as u64));
        assert!(to.now()[..length] == from.bytes[..], "a send of {length} bytes arrived with other bytes");
        let sent = a.completion(&b);
        assert_eq!((sent.token.cookie, sent.status, sent.bytes), (100 + n as u64, Status::Success, length as u64));
    }
}

#[test]
fn work_posted_before_the_connection_is_executed() {
    let (a, b) = (TestIa::open(), TestIa::open());
    let (qa, qb) = (a.qp(), b.qp());
    let from = a.registered(pattern(300, 9), Access::default());
    let to = b.registered(vec![0; 300], ALL);
    for n in 0..3 {
        qa.post_send(&wr(SEND, &[from.segment(n * 100, 100)], n as u64)).unwrap();
        qb.post_recv(&[to.segment(n * 100, 100)], token(n as u64)).unwrap();
    }
    assert_eq!((qa.outstanding().requests, qb.outstanding().recvs), (3, 3));
    connect((&a, &qa), (&b, &qb));
    for n in 0..3 {
        assert_eq!(b.completion(&a).token.cookie, n);
    }
    for n in 0..3 {
        assert_eq!(a.completion(&b).token.cookie, n);
    }
    assert_eq!(
        (to.now(), qa.outstanding(), qb.outstanding()),
        (from.bytes, Outstanding::default(), Outstanding::default())
    );
}

#[test]
fn writes_and_reads_of_several_lengths_succeed_in_both_directions() {
    let (a, qa, b, _qb) = two();
    for length in [0, 1, 700, 5_000, 200_000] {
        let mine = a.registered(pattern(length, 3), ALL);
        let theirs = b.registered(vec![0; length], ALL);
        qa.post_send(&wr(Op::Write(theirs.remote(0)), &[mine.segment(0, length)], 1)).unwrap();
        let done = a.completion(&b);
        assert_eq!((done.status, done.bytes), (Status::Success, length as u64));
        assert!(theirs.now() == mine.bytes, "a write of {length} bytes stored other bytes");
        let back = a.registered(vec![0; length], ALL);
        qa.post_send(&wr(Op::Read(theirs.remote(0)), &[back.segment(0, length)], 2)).unwrap();
        let done = a.completion(&b);
        assert_eq!((done.status, done.bytes), (Status::Success, length as u64));
        assert!(back.now() == mine.bytes, "a read of {length} bytes returned other bytes");
    }
    assert!(b.has_no_completion(), "RDMA must cause no completion at the peer");
}

#[test]
fn many_sends_complete_in_order() {
    let (a, qa, b, qb) = two();
    let from = a.registered(pattern(64, 1), Access::default());
    let to = b.registered(vec![0; 64], ALL);
    let (mut sent, mut came, mut done) = (0, 0, 0);
    let mut out = [Completion::default(); 16];
    let until = Instant::now() + PATIENCE;
    (0..64).for_each(|n| qb.post_recv(&[to.segment(0, 64)], token(n)).unwrap());
    while done < 10_000 {
        assert!(Instant::now() < until, "timeout: {sent} posted, {came} received, {done} completed");
        if sent < 10_000 && sent - done < 60 {
            qa.post_send(&wr(SEND, &[from.segment(0, 64)], sent)).unwrap();
            sent += 1;
        }
        let count = b.cq.poll(&mut out);
        for completion in &out[..count] {
            assert_eq!((completion.token.cookie, completion.status), (came, Status::Success));
            came += 1;
            qb.post_recv(&[to.segment(0, 64)], token(came + 63)).unwrap();
        }
        let count = a.cq.poll(&mut out);
        for completion in &out[..count] {
            assert_eq!((completion.token.cookie, completion.status), (done, Status::Success));
            done += 1;
        }
    }
    let sent = a.ia.counts().into_iter().find(|count| count.name == "sent").map(|count| count.value);
    assert_eq!(sent, Some(10_000));
}

#[test]
fn send_waits_for_its_receive() {
    let (a, qa, b, qb) = two();
    let from = a.registered(pattern(5_000, 7), Access::default());
    let to = b.registered(vec![0; 5_000], ALL);
    qa.post_send(&wr(SEND, &[from.segment(0, 5_000)], 1)).unwrap();
    assert!(a.has_no_completion() && b.has_no_completion());
    qb.post_recv(&[to.segment(0, 5_000)], token(2)).unwrap();
    assert_eq!(b.completion(&a).token.cookie, 2);
    assert_eq!(a.completion(&b).token.cookie, 1);
    assert!(to.now() == from.bytes);
}

#[test]
fn memory_window_grants_access_to_its_range_until_unbound() {
    let (a, qa, b, qb) = two();
    let mine = a.registered(pattern(100, 5), ALL);
    let theirs = b.registered(vec![0; 100], Access { local_write: true, ..Access::default() });
    let mw = b.ia.alloc_mw(&b.pd).unwrap();
    let region = Region { address: theirs.segment(20, 50).address, length: 50 };
    let bind = Bind { mr: &theirs.mr, region, access: ALL, kept: Arc::new(()) };
    let bind_wr = BindWr { token: token(1), suppress: false, fence: false };
    let key = qb.post_bind(&mw, Some(bind), &bind_wr).unwrap();
    assert_eq!((b.completion(&a).status, mw.is_bound()), (Status::Success, true));
    let remote = Remote { key, address: region.address };
    qa.post_send(&wr(Op::Write(remote), &[mine.segment(0, 50)], 2)).unwrap();
    assert_eq!(a.completion(&b).status, Status::Success);
    assert_eq!(theirs.now()[20..70], mine.bytes[..50]);
    assert_eq!(qb.post_bind(&mw, None, &bind_wr), Ok(0));
    assert_eq!((b.completion(&a).status, mw.is_bound()), (Status::Success, false));
    qa.post_send(&wr(Op::Write(remote), &[mine.segment(0, 50)], 3)).unwrap();
    assert_eq!(a.completion(&b).status, Status::RemoteAccess);
    assert_eq!((a.sink.next(conn(1)), b.sink.next(conn(2))), ("broken", "disconnected"));
}
