//! Tests of the event queue, for example which events wake a waiter or trigger the CNO, when a wait is refused,
//! cancelled or ended, and the limits of a resize.
#![forbid(unsafe_code)]

use super::*;
use crate::provider::{Status, Token};

fn notifying() -> Event {
    Event::Software { pointer: 0 }
}

fn non_notifying() -> Event {
    Event::Dto(Completion { token: Token { unsignalled: true, ..Token::default() }, ..Completion::default() })
}

/// Returns a queue with a waiter that sleeps until `threshold` events are queued.
fn slept_on(threshold: i32) -> EventQueue {
    let mut queue = EventQueue::new(8);
    queue.begin_wait(1, threshold).unwrap();
    assert_eq!(queue.check_wait(1, false), WaitStatus::TooFew);
    queue.end_first_check();
    queue.set_sleeping();
    queue
}

#[test]
fn waiter_is_notified_at_exactly_its_threshold() {
    let mut queue = slept_on(3);
    assert_eq!((queue.push(notifying()), queue.push(notifying())), (EventSignal::None, EventSignal::None));
    assert_eq!(queue.push(notifying()), EventSignal::Waiter);
    assert_eq!(queue.push(notifying()), EventSignal::None, "the waiter is notified once");
    assert_eq!(queue.check_wait(1, false), WaitStatus::Enough);
}

#[test]
fn non_notifying_event_wakes_no_thread_and_stays_queued() {
    let mut queue = slept_on(1);
    assert_eq!(queue.push(non_notifying()), EventSignal::None);
    assert_eq!(queue.check_wait(1, false), WaitStatus::TooFew, "the wait continues");
    queue.set_sleeping();
    assert_eq!(queue.push(notifying()), EventSignal::Waiter);
    assert_eq!(queue.check_wait(1, false), WaitStatus::Enough);
    assert!(matches!(queue.pop(), Some(Event::Dto(_))), "the oldest event, notifying or not");
    assert!(queue.has_notifying());
}

#[test]
fn wait_succeeds_with_non_notifying_events_at_its_timeout() {
    let mut queue = slept_on(1);
    queue.push(non_notifying());
    assert_eq!(queue.check_wait(1, true), WaitStatus::Enough);
}

#[test]
fn queued_non_notifying_events_end_a_wait_at_once() {
    let mut queue = EventQueue::new(8);
    queue.push(non_notifying());
    queue.begin_wait(1, 1).unwrap();
    assert_eq!(queue.check_wait(1, false), WaitStatus::Enough);
}

#[test]
fn second_evd_waiter_is_refused() {
    let mut queue = slept_on(2);
    queue.push(notifying());
    assert_eq!(queue.require_no_waiter().err(), Some(Error::InvalidState(State::EvdWaiter)));
    assert_eq!(queue.begin_wait(2, 1), Err(Error::InvalidState(State::EvdWaiter)));
    assert_eq!(queue.resize(5), Err(Error::InvalidState(State::EvdWaiter)));
    queue.end_wait(7);
    assert!(queue.has_waiter(), "another waiter's token");
    queue.end_wait(1);
    assert!(queue.require_no_waiter().is_ok() && queue.pop().is_some());
}

#[test]
fn wait_is_cancelled_and_the_next_refused_if_the_evd_becomes_unwaitable() {
    let mut queue = slept_on(1);
    queue.waitable = false;
    assert!(queue.cancel_wait());
    assert!(queue.pop().is_none());
    assert_eq!(queue.check_wait(1, false), WaitStatus::Cancelled);
    assert_eq!(queue.begin_wait(2, 1), Err(Error::InvalidState(State::EvdUnwaitable)));
}

#[test]
fn wait_on_a_closed_evd_queue_is_refused() {
    let mut queue = EventQueue::new(8);
    queue.close();
    assert_eq!(queue.begin_wait(1, 1), Err(Error::InvalidHandle(Handle::Plain)));
    assert!(!queue.has_waiter());
}

#[test]
fn wait_checks_its_threshold_before_the_state_of_the_evd() {
    let mut queue = slept_on(1);
    queue.waitable = false;
    assert_eq!(queue.begin_wait(2, 0), Err(Error::InvalidParameter(3)));
    assert_eq!(queue.begin_wait(2, -1), Err(Error::InvalidParameter(3)));
    assert_eq!(queue.begin_wait(2, 9), Err(Error::InvalidParameter(3)));
    assert_eq!(queue.begin_wait(2, 8), Err(Error::InvalidState(State::EvdWaiter)));
    queue.end_wait(1);
    queue.add_stream(NotifyMode::Notify);
    assert_eq!(queue.begin_wait(2, 2), Err(Error::InvalidState(State::EvdConfigNotify)));
}

#[test]
fn only_notifying_events_of_enabled_queues_trigger_the_cno() {
    let mut queue = EventQueue::new(8);
    assert_eq!(queue.push(non_notifying()), EventSignal::None);
    assert_eq!(queue.push(notifying()), EventSignal::Cno);
    queue.enabled = false;
    assert_eq!(queue.push(notifying()), EventSignal::None);
    assert_eq!(queue.len(), 3, "all are queued");
}

#[test]
fn another_stream_changes_the_arm_mode_from_solicited_to_mixed() {
    let mut queue = EventQueue::new(8);
    assert_eq!(queue.arm_mode(), ArmMode::All);
    queue.add_stream(NotifyMode::Solicited);
    assert_eq!(queue.arm_mode(), ArmMode::Solicited);
    for mode in [NotifyMode::Threshold, NotifyMode::Notify] {
        queue.add_stream(mode);
        assert_eq!((queue.arm_mode(), queue.config()), (ArmMode::Mixed, NotifyMode::Solicited));
        queue.remove_stream(mode);
        assert_eq!(queue.arm_mode(), ArmMode::Solicited);
    }
}

#[test]
fn evd_resize_below_the_number_of_events_is_refused() {
    let mut queue = EventQueue::new(8);
    for _ in 0..5 {
        queue.push(notifying());
    }
    assert_eq!(queue.resize(4), Err(Error::InvalidState(State::Plain)));
    assert_eq!(queue.resize(5), Ok(()));
    assert!(queue.is_full() && !queue.is_overflown());
}

#[test]
fn failure_at_the_front_is_unreported_until_its_ep_is_marked_as_reported() {
    let of = |ep, status| Completion { token: Token { ep, ..Token::default() }, status, ..Completion::default() };
    let mut queue = EventQueue::new(8);
    for done in [of(1, Status::Success), of(2, Status::Transport), of(3, Status::Transport), of(2, Status::Flushed)] {
        queue.complete(&done);
    }
    assert_eq!(queue.unreported_failure(), None, "the oldest is a success");
    queue.pop();
    assert_eq!(queue.unreported_failure(), Some(2));
    assert_eq!((queue.mark_reported(7), queue.mark_reported(2), queue.mark_reported(2)), (false, true, false));
    assert_eq!(queue.unreported_failure(), None);
    queue.pop();
    assert_eq!(queue.unreported_failure(), Some(3));
    assert!(matches!(queue.front(), Some(Event::Failed(_))));
    assert_eq!((queue.mark_reported(3), queue.failures, queue.len() - queue.non_notifying), (true, 0, 2));
    assert!(matches!(queue.front(), Some(Event::Dto(_))));
    queue.drop_front(true);
    assert_eq!((queue.len(), queue.non_notifying), (1, 0));
}
