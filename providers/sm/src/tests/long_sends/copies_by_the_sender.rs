//! Parts of long sends that the sender copies: copy jobs of the receiver, invalid jobs, and jobs without a result.

use std::sync::atomic::Ordering;

use super::*;
use crate::delegation::{CopyDelegation, CopyJob};
use crate::qp::link::{PeerEndpoint, WAKE_ON_PROGRESS, WAKE_ON_REQUESTS};

/// Publishes a job of the receiver: the sender writes the bytes from `offset` of the first message to `to`.
fn ask(pair: &Both, ticket: u64, offset: usize, to: &[u8], mr: &Mr) {
    let (length, address) = (to.len() as u32, to.as_ptr() as u64);
    let job = CopyJob { slot: 1, offset: offset as u64, length, key: mr.local_key(), pd: pair.b.pd.0, address };
    put(pair, ticket, &job);
}

/// Publishes the job, and wakes the sender's engine, because publishing a job does not wake it.
fn put(pair: &Both, ticket: u64, job: &CopyJob) {
    let link = pair.passive.0.link().unwrap();
    link.copy_delegation().unwrap().publish(ticket, job);
    link.wake_if_flagged(WAKE_ON_PROGRESS);
}

/// Makes the sender poll until it has reported the result of this job.
fn outcome(pair: &Both, ticket: u64) -> bool {
    let link = pair.passive.0.link().unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        assert_eq!(pair.a.cq.poll(&mut [Completion::default()]), 0);
        if let Some(outcome) = link.copy_delegation().unwrap().outcome(ticket) {
            return outcome;
        }
        assert!(Instant::now() < until, "the sender has reported no result");
    }
}

#[test]
fn polling_sender_writes_exactly_the_requested_part() {
    let pair = both("long-help");
    let Both { a, b, active, passive, .. } = &pair;
    let (out, space) = (pattern(MIB, 1), vec![0u8; MIB]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    send(active, &cut(&out_mr, &out, 3), 3);
    ask(&pair, 1, 300_000, &space[300_000..500_000], &space_mr);
    assert!(outcome(&pair, 1));
    assert!(space[300_000..500_000] == out[300_000..500_000]);
    assert!(space[..300_000].iter().chain(&space[500_000..]).all(|byte| *byte == 0));
    let before = copies(active);
    for (n, violation) in
        ["behind the end", "a wrapped offset", "too much", "no such key", "another domain", "no such offer"]
            .iter()
            .enumerate()
    {
        let mr = space_mr.local_key();
        let fine = CopyJob { slot: 1, offset: 0, length: 8, key: mr, pd: b.pd.0, address: space.as_ptr() as u64 };
        let job = match n {
            0 => CopyJob { offset: MIB as u64 - 7, ..fine },
            1 => CopyJob { offset: u64::MAX, ..fine },
            2 => CopyJob { length: u32::MAX, ..fine },
            3 => CopyJob { key: mr ^ 1, ..fine },
            4 => CopyJob { pd: b.pd.0 + 1, ..fine },
            _ => CopyJob { slot: 2, ..fine },
        };
        put(&pair, 10 + n as u64, &job);
        assert!(!outcome(&pair, 10 + n as u64), "{violation}");
    }
    assert_eq!((copies(active), &space[..8]), (before, &[0; 8][..]));
    // The whole message still arrives.
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    assert_eq!((b.completion().status, a.completion().status), (Status::Success, Status::Success));
    assert!(space == out);
}

/// Creates a pair whose sender ignores copy jobs. The test acts as the sender (`helper`).
fn both_lazy(name: &str) -> Both {
    let pair = both(name);
    allow(&pair.active, PeerEndpoint::LAZY);
    pair
}

/// Calls `then` with the sender's control words for copy jobs, then wakes the receiver.
fn helper(pair: &Both, then: impl FnOnce(&CopyDelegation<'_>)) {
    let link = pair.link();
    then(&link.copy_delegation().unwrap());
    link.wake_if_flagged(WAKE_ON_REQUESTS);
}

/// Length of the messages of the following tests, of the part that the sender may write, and of the last bytes, which
/// the receiver keeps in a buffer until all bytes before them are complete.
const LENGTH: usize = 140_000;
const SENDERS_PART: usize = 68 << 10;
const TAIL: usize = 64;

/// Polls until the receiver has copied the first bytes of its own part. `black_box` makes the compiler read the buffer
/// at each attempt.
fn fetches_its_part(b: &Side, out: &[u8], space: &[u8]) {
    let until = Instant::now() + PATIENCE;
    let part = SENDERS_PART..SENDERS_PART + 4096;
    while std::hint::black_box(space)[part.clone()] != out[part.clone()] {
        assert_eq!(b.cq.poll(&mut [Completion::default()]), 0);
        assert!(Instant::now() < until, "no data is fetched");
    }
}

#[test]
fn part_claimed_by_the_sender_is_awaited_and_copied_locally_on_failure() {
    for done in [true, false] {
        let pair = both_lazy(&format!("long-claimed-{done}"));
        let Both { a, b, active, passive, .. } = &pair;
        let (out, space) = (pattern(LENGTH, 1), vec![0u8; LENGTH]);
        let (out_mr, space_mr) = (a.register(&out), b.register(&space));
        helper(&pair, |help| assert!(!help.claim(1), "no job is published yet"));
        send(active, &[segment(&out_mr, &out)], 2);
        passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
        fetches_its_part(b, &out, &space);
        for _ in 0..1000 {
            assert_eq!(b.cq.poll(&mut [Completion::default()]), 0, "the receiver waits for the result of the job");
        }
        assert!(space[SENDERS_PART..LENGTH - TAIL] == out[SENDERS_PART..LENGTH - TAIL]);
        assert!(space[..SENDERS_PART].iter().chain(&space[LENGTH - TAIL..]).all(|byte| *byte == 0));
        helper(&pair, |help| help.report(1, done));
        let got = b.completion();
        assert_eq!((got.status, got.bytes), (Status::Success, LENGTH as u64));
        assert!(space[SENDERS_PART..] == out[SENDERS_PART..]);
        let is_copied = space[..SENDERS_PART] == out[..SENDERS_PART];
        assert_eq!(is_copied, !done, "the receiver copies the sender's part only if the job has failed");
    }
}

#[test]
fn receiver_copies_an_unclaimed_part_and_last_bytes_in_several_segments() {
    // The last segment of the message begins inside, at the start of, or before the last 64 bytes.
    for end in [1, TAIL - 1, TAIL, TAIL + 1, TAIL + 2] {
        let pair = both_lazy(&format!("long-tail-{end}"));
        let Both { a, b, active, passive, .. } = &pair;
        let (out, space) = (pattern(LENGTH, end as u8), vec![0u8; LENGTH]);
        let (out_mr, space_mr) = (a.register(&out), b.register(&space));
        passive.post_recv(&cut(&space_mr, &space, 3), token(1)).unwrap();
        let (body, last) = out.split_at(LENGTH - end);
        send(active, &[segment(&out_mr, body), segment(&out_mr, last)], 2);
        let got = b.completion();
        assert_eq!((got.status, got.bytes), (Status::Success, LENGTH as u64), "{end}");
        assert!(space == out, "{end}");
        assert!(copies(&pair.passive) >= 2, "the receiver has copied both parts");
    }
}

/// Creates a pair and sends a message of which the sender has claimed its part, and the receiver has copied its own.
/// Returns the pair, and the memory of the message and of the receive.
fn both_claimed(name: &str) -> (Both, [Vec<u8>; 2], [Mr; 2]) {
    let pair = both_lazy(name);
    let Both { a, b, active, passive, .. } = &pair;
    let (out, space) = (pattern(LENGTH, 1), vec![0u8; LENGTH]);
    let (out_mr, space_mr) = (a.register(&out), b.register(&space));
    helper(&pair, |help| _ = help.claim(1));
    send(active, &[segment(&out_mr, &out)], 2);
    passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
    fetches_its_part(b, &out, &space);
    (pair, [out, space], [out_mr, space_mr])
}

#[test]
fn receive_that_is_deregistered_before_its_last_bytes_fails() {
    let (pair, [_out, space], [_out_mr, space_mr]) = both_claimed("long-tail-gone");
    let Both { a, b, .. } = &pair;
    drop(space_mr);
    helper(&pair, |help| help.report(1, true));
    assert_eq!((b.completion().status, a.completion().status), (Status::LocalProtection, Status::RemoteResponder));
    assert!(space[LENGTH - TAIL..] == [0; TAIL]);
}

#[test]
fn abort_ends_although_the_sender_never_reports_a_claimed_part() {
    let (pair, _buffers, _mrs) = both_claimed("long-called-off");
    let Both { a, b, passive, .. } = &pair;
    let began = Instant::now();
    passive.abort();
    assert!(began.elapsed() < PATIENCE);
    assert_eq!((b.completion().status, a.completion().status), (Status::Flushed, Status::Flushed));
}

#[test]
fn sender_copies_parts_while_both_processes_poll() {
    let pair = both("long-helped");
    let Both { a, b, active, passive, .. } = &pair;
    let until = Instant::now() + PATIENCE;
    let over = &std::sync::atomic::AtomicBool::new(false);
    let space = vec![0u8; MIB];
    let space_mr = b.register(&space);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let out = pattern(MIB, 1);
            let out_mr = a.register(&out);
            while !over.load(Ordering::SeqCst) {
                send(active, &[segment(&out_mr, &out)], 2);
                assert_eq!(a.completion().status, Status::Success);
            }
        });
        let expected = pattern(MIB, 1);
        let mut rounds = 0;
        passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
        while !over.load(Ordering::SeqCst) || rounds < 20 {
            assert_eq!(b.completion().status, Status::Success);
            assert!(*std::hint::black_box(&space) == expected, "round {rounds}");
            assert!(Instant::now() < until, "the sender has copied no part");
            rounds += 1;
            let helped = copies(active) > 0 && rounds > 20;
            over.store(helped, Ordering::SeqCst);
            passive.post_recv(&[segment(&space_mr, &space)], token(1)).unwrap();
        }
    });
    assert!(copies(active) > 0);
}
