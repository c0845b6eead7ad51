//! Tests of a single completion that a wait on a CNO has left in the buffer of an EVD, and of the completions that the
//! wait queues instead.

use super::*;
use crate::evd::dapl_evd_wait;
use crate::stats::counters::IaSums;
use crate::v2::dapl_evd::dapl2_evd_dequeue;

/// Creates a CNO and an EVD, and lets a wait on the CNO leave the completion with cookie 1 in the EVD's buffer.
fn polled(opened: &Opened) -> (Hand, Hand) {
    let cno = cno(opened, NO_AGENT);
    let evd = evd(opened, cno);
    put(evd, 1);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
    assert!(object(evd).has_buffered());
    (cno, evd)
}

fn object(evd: Hand) -> Arc<Evd<FakeProvider>> {
    from_handle::<Evd<FakeProvider>>(evd.raw(), Handle::Plain).unwrap().to_arc()
}

/// Adds a completion to the CQ, without a notification.
fn put(evd: Hand, cookie: u64) {
    cq(evd).put(Completion { token: Token { cookie, ..Token::default() }, ..Completion::default() });
}

/// Dequeues an event, and returns its cookie; 0 without an event.
fn dequeued(evd: Hand) -> u64 {
    // SAFETY: all-zero bytes are a valid event, the handle is live, and all events that these tests dequeue here are
    // DTO completions.
    unsafe {
        let mut event: DAT_EVENT = std::mem::zeroed();
        match dapl_evd_dequeue::<FakeProvider>(evd.raw(), &mut event) {
            DAT_SUCCESS => event.event_data.dto_completion_event_data.user_cookie.as_64,
            _ => 0,
        }
    }
}

fn modify_cno(evd: Hand, cno: *mut c_void) {
    // SAFETY: the handles are live.
    assert_eq!(unsafe { dapl_evd_modify_cno::<FakeProvider>(evd.raw(), cno) }, DAT_SUCCESS);
}

#[test]
fn single_completion_is_dequeued_from_the_poll_buffer() {
    let opened = fake::open(c"cno-quick");
    let (cno, evd) = polled(&opened);
    assert_eq!([dequeued(evd), dequeued(evd)], [1, 0]);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    let mut sums = IaSums::default();
    object(evd).add_counts(&mut sums);
    assert_eq!((sums.evds.events, sums.evds.highest, sums.evds.cno_triggers), (1, 1, 1));
}

#[test]
fn waits_return_each_evd_whose_completion_is_in_the_poll_buffer() {
    let opened = fake::open(c"cno-quick-trigger");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    put(a, 1);
    put(b, 2);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, a));
    assert!(object(a).has_buffered() && object(b).has_buffered());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b));
    assert!(object(b).has_buffered(), "the check of the trigger leaves it there");
    assert_eq!([dequeued(a), dequeued(b)], [1, 2]);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
}

#[test]
fn evd_with_events_is_returned_again_only_after_a_dequeue_or_new_event() {
    let opened = fake::open(c"cno-quick-second");
    for notified in [false, true] {
        let (cno, evd) = polled(&opened);
        if notified {
            post(evd)
        } else {
            put(evd, 2)
        }
        assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
        assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY, "no event since its last return");
        assert!(!object(evd).has_buffered());
        assert_eq!(dequeued(evd), 1);
        assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd), "one event is left");
        assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
        assert!(take(evd) && !take(evd));
        assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    }
}

#[test]
fn several_completions_of_one_poll_are_queued() {
    let opened = fake::open(c"cno-quick-several");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    put(evd, 1);
    put(evd, 2);
    for cookie in [1, 2] {
        assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
        assert!(!object(evd).has_buffered());
        assert_eq!(dequeued(evd), cookie);
    }
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
}

#[test]
fn unsignalled_and_failed_completions_are_queued() {
    let opened = fake::open(c"cno-quick-others");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    let failed = Completion { status: crate::provider::Status::Flushed, ..Completion::default() };
    let unsignalled = Token { unsignalled: true, ..Token::default() };
    cq(evd).put(Completion { token: unsignalled, ..Completion::default() });
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    assert!(!object(evd).has_buffered() && take(evd));
    cq(evd).put(failed);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
    assert!(!object(evd).has_buffered() && take(evd));
}

#[test]
fn wait_of_1_2_and_dequeue_of_2_0_find_the_buffered_completion() {
    let opened = fake::open(c"cno-quick-entries");
    let (_, waited) = polled(&opened);
    // SAFETY: the handle is live, and the out parameters are writable.
    unsafe {
        let (mut event, mut more) = (std::mem::zeroed(), 9);
        assert_eq!(dapl_evd_wait::<FakeProvider>(waited.raw(), 0, 1, &mut event, &mut more), DAT_SUCCESS);
        assert_eq!((event.event_data.dto_completion_event_data.user_cookie.as_64, more), (1, 0));
    }
    assert_eq!(dequeued(waited), 0);
    let (_, by_2_0) = polled(&opened);
    // SAFETY: the handle is live, and the out parameter is writable.
    unsafe {
        let mut event: dat_abi::v2::DAT_EVENT = std::mem::zeroed();
        assert_eq!(dapl2_evd_dequeue::<FakeProvider>(by_2_0.raw(), &mut event), DAT_SUCCESS);
        assert_eq!(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
    }
    assert_eq!(dequeued(by_2_0), 0);
    let (cno, disabled) = polled(&opened);
    dapls_evd::set_enabled(&object(disabled), false);
    assert_eq!(dequeued(disabled), 1);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
}

#[test]
fn evd_with_a_buffered_completion_can_change_its_cno_or_be_freed() {
    let opened = fake::open(c"cno-quick-moved");
    let (old, evd) = polled(&opened);
    let new = cno(&opened, NO_AGENT);
    modify_cno(evd, new.raw());
    assert_eq!((wait(old, 0).0, wait(new, 0).0), (DAT_QUEUE_EMPTY, DAT_QUEUE_EMPTY), "the event was returned before");
    assert_eq!([dequeued(evd), dequeued(evd)], [1, 0]);
    let (_, detached) = polled(&opened);
    modify_cno(detached, NULL);
    put(detached, 2);
    assert_eq!([dequeued(detached), dequeued(detached)], [1, 2]);
    let (cno, freed) = polled(&opened);
    free_evd(freed);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, Hand(0)), "the last EVD was freed");
    assert_eq!(free(cno), DAT_SUCCESS);
}
