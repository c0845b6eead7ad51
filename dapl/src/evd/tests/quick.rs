//! Tests of dequeues and waits after a poll that has found several completions. The poll leaves them in the EVD's
//! buffer, or queues them, for example if one has failed or is that of an SRQ receive.

use super::*;
use crate::provider::{Status, Work};

/// Creates an EVD whose CQ has completions 1 to `count`, and dequeues the first one. The others are then in the buffer.
fn polled(opened: &Opened, count: u64) -> Evh {
    let evd = Evh::new(opened, 8, ALL);
    (1..=count).for_each(|cookie| evd.cq().put(done(cookie)));
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    evd
}

#[test]
fn dequeue_wait_and_resize_find_completions_in_the_poll_buffer() {
    let opened = fake::open(c"evd-quick");
    let evd = polled(&opened, 4);
    assert_eq!(evd.post(9), DAT_SUCCESS);
    assert_eq!([evd.dequeue().1, evd.dequeue().1, evd.dequeue().1, evd.dequeue().1], [2, 3, 4, 9]);
    let evd = polled(&opened, 4);
    assert_eq!(evd.wait(0, 2), (DAT_SUCCESS, 2, 2), "a wait");
    assert_eq!([evd.dequeue().1, evd.dequeue().1], [3, 4]);
    assert_eq!(evd.dequeue().0, DAT_QUEUE_EMPTY);
    let evd = polled(&opened, 4);
    assert_eq!(dapls_evd::resize(&evd.object(), 2), Err(crate::error::Error::InvalidState(crate::error::State::Plain)));
    assert_eq!(dapls_evd::resize(&evd.object(), 3), Ok(()));
}

#[test]
fn empty_check_of_an_evd_finds_completions_that_a_poll_is_taking() {
    let opened = fake::open(c"evd-quick with empty checks");
    let evd = Evh::new(&opened, 8, ALL);
    let unsignalled = |cookie| Completion { token: Token { unsignalled: true, ..done(cookie).token }, ..done(cookie) };
    let empty = || assert_eq!(evd.dequeue().0, DAT_QUEUE_EMPTY);
    empty();
    (1..=3).for_each(|cookie| evd.cq().put(done(cookie)));
    assert_eq!([evd.dequeue().1, evd.dequeue().1, evd.dequeue().1], [1, 2, 3], "all stay in the buffer");
    empty();
    evd.cq().put(done(4));
    evd.cq().put(unsignalled(5));
    assert_eq!([evd.dequeue().1, evd.dequeue().1], [4, 5], "the second is queued");
    empty();
    (6..=7).for_each(|cookie| evd.cq().put(done(cookie)));
    assert_eq!(evd.wait(0, 1), (DAT_SUCCESS, 6, 1));
    assert_eq!(evd.dequeue().1, 7);
    empty();
    assert!(!evd.cq().lost_completions.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn events_in_queue_and_poll_buffer_are_counted_once() {
    let opened = fake::open(c"evd-quick-counts");
    let evd = polled(&opened, 4);
    let counts = || evd.object().lock().queue.counts;
    assert_eq!((counts().events, counts().highest), (4, 3));
    evd.cq().put(done(5));
    (0..4).for_each(|_| assert_eq!(evd.dequeue().0, DAT_SUCCESS));
    assert_eq!((counts().events, counts().highest), (5, 3));
}

#[test]
fn failed_and_srq_completions_keep_their_order() {
    let opened = fake::open(c"evd-quick-others");
    let evd = Evh::new(&opened, 8, ALL);
    let of = |cookie, work, status| Completion { token: Token { work, ..done(cookie).token }, status, ..done(cookie) };
    evd.cq().put(done(1));
    evd.cq().put(of(2, Work::Send, Status::Transport));
    evd.cq().put(of(3, Work::SharedRecv, Status::Success));
    evd.cq().put(of(4, Work::Send, Status::Flushed));
    for (cookie, status) in
        [(1, DAT_DTO_SUCCESS), (2, DAT_DTO_ERR_TRANSPORT), (3, DAT_DTO_SUCCESS), (4, DAT_DTO_ERR_FLUSHED)]
    {
        let mut event = blank();
        // SAFETY: the handle is live, and the event is writable.
        assert_eq!(unsafe { dapl_evd_dequeue::<FakeProvider>(evd.handle(), &mut event) }, DAT_SUCCESS);
        // SAFETY: all events of this test are DTO completions.
        let dto = unsafe { event.event_data.dto_completion_event_data };
        // SAFETY: all union members are eight bytes wide, and any bits are a valid number.
        assert_eq!((unsafe { dto.user_cookie.as_64 }, dto.status), (cookie, status));
    }
}

#[test]
fn several_threads_dequeue_each_completion_once() {
    const COUNT: u64 = 2000;
    let opened = fake::open(c"evd-quick-threads");
    let evd = Evh::new(&opened, 8, ALL);
    let take_all = |_| {
        let mut taken = Vec::new();
        while taken.last() != Some(&0) {
            taken.push(if let (DAT_SUCCESS, cookie) = evd.dequeue() { cookie } else { 0 });
        }
        taken
    };
    (1..=COUNT).for_each(|cookie| evd.cq().put(done(cookie)));
    let mut taken: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || take_all(n))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    taken.retain(|cookie| *cookie != 0);
    taken.sort_unstable();
    assert!(taken.into_iter().eq(1..=COUNT));
}
