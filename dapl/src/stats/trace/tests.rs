//! Tests of the trace: the posts in the ring, the text of a dump, and one report per stall.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::ring::PostEnd;
use super::*;
use crate::provider::{Status, Token};

const SECOND: u64 = 1_000_000_000;

fn post(ring: &TraceRing, work: Work, cookie: u64, now: u64) -> u32 {
    let remote = matches!(work, Work::Read | Work::Write).then_some(Remote { key: 0x12, address: 0x7000 });
    let segments = [Segment { length: 40, ..Segment::default() }, Segment { length: 2, ..Segment::default() }];
    ring.post(&TracedPost { work, cookie, segments: &segments, remote, suppress: false }, now)
}

fn done(work: Work, post: u32, status: Status, bytes: u64) -> Completion {
    Completion { token: Token { work, post, ..Token::default() }, status, bytes, ..Completion::default() }
}

#[test]
fn ring_keeps_newest_posts_and_ignores_late_completions() {
    let ring = TraceRing::new(4);
    let posts: Vec<u32> = (0..6).map(|n| post(&ring, Work::Send, n, n)).collect();
    ring.complete(&done(Work::Send, posts[1], Status::Flushed, 0), 9);
    ring.complete(&done(Work::Send, posts[4], Status::Success, 42), 9);
    let read: Vec<_> = ring.read().into_iter().map(|entry| (entry.number, entry.cookie, entry.end)).collect();
    let end = PostEnd { at: 9, status: Some(Status::Success), bytes: 42 };
    assert_eq!(read, [(3, 2, None), (4, 3, None), (5, 4, Some(end)), (6, 5, None)]);
}

#[test]
fn oldest_of_n_outstanding_requests_is_the_nth_newest_request() {
    let ring = TraceRing::new(8);
    for (n, work) in [Work::Send, Work::Recv, Work::Write, Work::Recv, Work::Read, Work::Send].into_iter().enumerate() {
        post(&ring, work, 0, 10 * (n as u64 + 1));
    }
    ring.refuse(6, 61);
    assert_eq!([0, 1, 2, 3, 9].map(|count| ring.oldest_request(count)), [None, Some(50), Some(30), Some(10), Some(10)]);
}

#[test]
fn trace_dump_has_the_documented_text() {
    let ring = TraceRing::new(8);
    post(&ring, Work::Recv, 1, SECOND);
    let send = post(&ring, Work::Send, 0xAB, 2 * SECOND);
    post(&ring, Work::Write, 3, 2 * SECOND + 500);
    let read = post(&ring, Work::Read, 4, 3 * SECOND);
    let refused = post(&ring, Work::Send, 5, 4 * SECOND);
    ring.post(&TracedPost { work: Work::Send, cookie: 6, segments: &[], remote: None, suppress: true }, 4 * SECOND);
    ring.complete(&done(Work::Send, send, Status::Success, 42), 2 * SECOND + 3_000);
    ring.complete(&done(Work::Read, read, Status::RemoteAccess, 0), 3 * SECOND + 1_500_000);
    ring.refuse(refused, 4 * SECOND);
    ring.complete(&done(Work::SharedRecv, 1, Status::Success, 7), 4 * SECOND);
    let summary = EpSummary {
        ia: "sm0".into(),
        state: "DAT_EP_STATE_CONNECTED".into(),
        outstanding: Outstanding { recvs: 1, requests: 2 },
    };
    let text = text::dump(0x7f40, "is broken", &summary, &ring.read(), 5 * SECOND);
    assert_eq!(
        text,
        "ep 0x7f40 is broken; DAT_EP_STATE_CONNECTED, 2 requests and 1 receives outstanding
  #1 4.000000 s ago: recv cookie 0x1, 42 bytes in 2: outstanding
  #2 3.000000 s ago: send cookie 0xab, 42 bytes in 2: DAT_DTO_SUCCESS after 0.000003 s, 42 bytes
  #3 2.999999 s ago: rdma write cookie 0x3, 42 bytes in 2, to 0x12 at 0x7000: outstanding
  #4 2.000000 s ago: rdma read cookie 0x4, 42 bytes in 2, from 0x12 at 0x7000: DAT_DTO_ERR_REMOTE_ACCESS after 0.001500 s, 0 bytes
  #5 1.000000 s ago: send cookie 0x5, 42 bytes in 2: refused by the provider
  #6 1.000000 s ago: send cookie 0x6, 0 bytes in 0: suppressed
  #7 1.000000 s ago: shared recv cookie 0x0, 0 bytes in 0: DAT_DTO_SUCCESS after 0.000000 s, 7 bytes"
    );
}

#[test]
fn dump_of_a_long_ring_is_bounded_and_shows_oldest_in_flight() {
    let ring = TraceRing::new(1024);
    for n in 0..1000 {
        let number = post(&ring, Work::Send, n, n);
        if n != 500 {
            ring.complete(&done(Work::Send, number, Status::Success, 42), n);
        }
    }
    let text = text::dump(64, "is asked", &EpSummary::default(), &ring.read(), 1000);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 1 + 1 + 1 + 48, "{text}");
    assert_eq!((lines[1], lines[3]), ("  (500 posts not shown)", "  (451 posts not shown)"));
    assert!(lines[2].starts_with("  #501 ") && lines[2].ends_with(": outstanding"), "{text}");
    let nothing = text::dump(64, "is asked", &EpSummary::default(), &[], 0);
    assert_eq!(nothing, "ep 0x40 is asked; , 0 requests and 0 receives outstanding, no posts");
}

/// A fake EP with a number of outstanding requests.
struct Stuck(Mutex<u32>);

impl TracedEp for Stuck {
    fn summary(&self) -> EpSummary {
        EpSummary {
            ia: "sm0".into(),
            state: "DAT_EP_STATE_CONNECTED".into(),
            outstanding: Outstanding { recvs: 7, requests: *self.0.lock() },
        }
    }
}

#[test]
fn stall_is_reported_once_and_receives_are_never_overdue() {
    let (settings, _) = TraceSettings::read("io_trc=4");
    let trace = settings.trace(0xF000).expect("tracing is on");
    let stuck = Arc::new(Stuck(Mutex::new(0)));
    let traced_ep: Arc<dyn TracedEp> = stuck.clone();
    trace.begin(Arc::downgrade(&traced_ep));
    let stall =
        |now| (trace.report_overdue(now).map(|again| again.as_secs()), trace.is_reported.load(Ordering::Relaxed));

    post(&trace.ring, Work::Recv, 0, 0);
    assert_eq!(stall(100 * SECOND), (None, false), "a receive may wait");
    post(&trace.ring, Work::Send, 0, 100 * SECOND);
    *stuck.0.lock() = 1;
    assert_eq!(stall(104 * SECOND), (Some(6), false));
    assert_eq!(stall(110 * SECOND), (Some(10), true));
    assert_eq!(stall(120 * SECOND), (Some(10), true), "reported before");
    post(&trace.ring, Work::Send, 0, 119 * SECOND);
    assert_eq!(stall(121 * SECOND), (Some(8), false), "the first is done, the second is young: the stall is over");
    assert_eq!(stall(130 * SECOND), (Some(10), true), "another stall");
    *stuck.0.lock() = 0;
    assert_eq!(stall(131 * SECOND), (None, false));
    trace.end();
    completed(&Completion { token: Token { ep: 0xF000, post: 1, ..Token::default() }, ..Completion::default() });
    assert_eq!(trace.ring.read()[0].end, None, "a trace that has ended records no completion");
}
