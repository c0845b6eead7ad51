//! `dat_evd_wait`: errors and the order of checks, timeouts, thresholds, concurrent waiters. What ends a wait before
//! its timeout is in `wait_ends`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 2.5": evd_wait_zero_timeout_returns_timeout_expired,
        "spec/events 2.5": evd_wait_zero_timeout_returns_queued_events,
        "spec/events 2.5": evd_wait_time_out_is_not_early,
        "spec/events 2.5": evd_wait_time_out_returns_the_number_of_queued_events,
        "spec/events 2.5": evd_wait_time_out_dequeues_nothing,
        "spec/events 2.5": evd_wait_with_huge_finite_timeouts_blocks_until_an_event,
        "spec/events 2.5": evd_wait_without_an_event_pointer_returns_invalid_arg4,
        "spec/events 2.5": evd_wait_without_a_count_pointer_returns_invalid_arg5,
        "spec/events 2.5": evd_wait_threshold_zero_or_less_returns_invalid_arg3,
        "spec/events 2.5": evd_wait_threshold_beyond_the_length_returns_invalid_arg3,
        "spec/events 2.5": evd_wait_threshold_of_the_whole_length_is_reached_by_a_full_queue,
        "spec/events 2.5": evd_wait_threshold_limit_follows_a_resize,
        "spec/events 2.5": evd_wait_checks_arguments_in_order,
        "spec/events 2.5": evd_wait_returns_the_oldest_event_and_counts_the_rest,
        "spec/events 2.5": evd_wait_returns_exactly_at_its_threshold,
        "spec/events 2.5": evd_wait_threshold_counts_earlier_events,
        "spec/events 2.5": evd_wait_of_a_second_waiter_is_refused,
        "spec/events 1.5": evd_dequeue_beside_a_waiter_is_refused,
        "spec/events 1.5": evd_dequeue_beside_a_waiter_below_its_threshold_is_refused,
        "spec/events 1.5": evd_wait_permits_another_waiter_after_it_returns,
        "spec/events 1.5": evd_wait_continues_through_enable_disable_and_modify_cno,
        "spec/events 2.5": evd_wait_on_an_unwaitable_evd_is_refused,
        "spec/events 2.5": evd_wait_on_an_unwaitable_evd_with_events_is_refused,
    ]
}

pub(super) const SOFTWARE: DAT_EVD_FLAGS = DAT_EVD_SOFTWARE_FLAG;

/// Returns the code of a wait that must fail.
fn fails(evd: &Evd, timeout: DAT_TIMEOUT, threshold: DAT_COUNT) -> DAT_RETURN {
    let mut more = 0;
    untouched(|event| dat_evd_wait(evd.h(), timeout, threshold, event, &mut more))
}

fn evd_wait_zero_timeout_returns_timeout_expired(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_DTO_FLAG, SOFTWARE, DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG] {
        refused(fails(&ia.evd(4, flags), 0, 1), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    }
}

fn evd_wait_zero_timeout_returns_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(4, SOFTWARE);
    evd.post(7);
    assert_eq!(wait(evd.h(), Duration::ZERO).map(|event| event.software().addr()), Some(7));
}

fn evd_wait_time_out_is_not_early(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_DTO_FLAG, SOFTWARE] {
        let evd = ia.evd(4, flags);
        for time in [1, 300, 999, 1000, 20_000] {
            let begin = Instant::now();
            refused(fails(&evd, time, 1), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
            let took = begin.elapsed();
            assert!(took >= Duration::from_micros(time.into()), "the wait of {time} us returned after {took:?}");
        }
    }
}

fn evd_wait_time_out_returns_the_number_of_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for queued in 0..4 {
        for time in [0, 1000] {
            let (mut event, mut more) = (zeroed(), -1);
            let code = dat_evd_wait(evd.h(), time, 5, &mut event, &mut more);
            refused(code, DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
            assert_eq!(more, queued);
        }
        evd.post(1);
    }
}

fn evd_wait_time_out_dequeues_nothing(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    evd.post(1);
    evd.post(2);
    refused(fails(&evd, 0, 3), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    refused(fails(&evd, 2000, 3), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    assert_eq!(drain(evd.h()).iter().map(|event| event.software().addr()).collect::<Vec<_>>(), [1, 2]);
}

fn evd_wait_with_huge_finite_timeouts_blocks_until_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for time in [DAT_TIMEOUT_INFINITE - 1, 1 << 31, (1 << 31) - 1] {
        let waiter = evd_waiter(evd.h(), time, 1).inside(evd.h()).asleep();
        assert!(!waiter.is_back(), "the wait returned without an event");
        evd.post(3);
        ok(waiter.join().code);
    }
}

fn evd_wait_without_an_event_pointer_returns_invalid_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let code = untouched(|more| dat_evd_wait(evd.h(), 0, 1, null_mut(), more));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
}

fn evd_wait_without_a_count_pointer_returns_invalid_arg5(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    evd.post(1);
    let code = untouched(|event| dat_evd_wait(evd.h(), 0, 1, event, null_mut()));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
    assert_eq!(drain(evd.h()).len(), 1, "the wait dequeued an event");
}

fn evd_wait_threshold_zero_or_less_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    evd.post(1);
    for threshold in [0, -1, DAT_COUNT::MIN] {
        refused(fails(&evd, 0, threshold), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
    assert_eq!(drain(evd.h()).len(), 1, "the wait dequeued an event");
}

fn evd_wait_threshold_beyond_the_length_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let length = evd.param().evd_qlen;
    for threshold in [length + 1, DAT_COUNT::MAX] {
        refused(fails(&evd, 0, threshold), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
    refused(fails(&evd, 0, length), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
}

fn evd_wait_threshold_of_the_whole_length_is_reached_by_a_full_queue(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(3, SOFTWARE);
    let length = evd.param().evd_qlen;
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, length).inside(evd.h());
    for number in 1..=length {
        evd.post(number as usize);
    }
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.pointer, waited.more), (1, length - 1));
}

fn evd_wait_threshold_limit_follows_a_resize(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(1, SOFTWARE);
    ok(dat_evd_resize(evd.h(), 20));
    refused(fails(&evd, 0, 20), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    let length = evd.param().evd_qlen;
    refused(fails(&evd, 0, length + 1), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

/// Expected order of the checks: handle, event pointer, count pointer, threshold, then the EVD's state.
fn evd_wait_checks_arguments_in_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let mut more = 0;
    let (event, count): (*mut DAT_EVENT, *mut DAT_COUNT) = (null_mut(), null_mut());
    let code = dat_evd_wait(ia.pz().h(), 0, 0, event, count);
    refused(code, DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
    refused(dat_evd_wait(evd.h(), 0, 0, event, count), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    let mut place = zeroed();
    refused(dat_evd_wait(evd.h(), 0, 0, &mut place, count), DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
    ok(dat_evd_set_unwaitable(evd.h()));
    refused(dat_evd_wait(evd.h(), 0, 0, &mut place, &mut more), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    ok(dat_evd_clear_unwaitable(evd.h()));
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    refused(fails(&evd, 0, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    refused(fails(&evd, 0, 1), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(1);
    ok(waiter.join().code);
}

fn evd_wait_returns_the_oldest_event_and_counts_the_rest(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for number in 1..=5 {
        evd.post(number);
    }
    for number in 1..=5 {
        let (mut event, mut more) = (zeroed(), -1);
        ok(dat_evd_wait(evd.h(), 0, 1, &mut event, &mut more));
        assert_eq!((Event(event).software().addr(), more), (number, 5 - number as DAT_COUNT));
    }
}

fn evd_wait_returns_exactly_at_its_threshold(ctx: &Ctx) {
    let ia = ctx.ia();
    for threshold in [2, 3, 7] {
        let evd = ia.evd(8, SOFTWARE);
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, threshold).inside(evd.h());
        for number in 1..threshold as usize {
            evd.post(number);
        }
        let waiter = waiter.asleep();
        // The waiter is still blocked, so a dequeue is refused.
        let code = untouched(|event| dat_evd_dequeue(evd.h(), event));
        refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
        assert!(!waiter.is_back());
        evd.post(threshold as usize);
        let waited = waiter.join();
        ok(waited.code);
        assert_eq!((waited.pointer, waited.more), (1, threshold - 1));
    }
}

fn evd_wait_threshold_counts_earlier_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    evd.post(1);
    evd.post(2);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 3).asleep();
    assert!(!waiter.is_back());
    evd.post(3);
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.pointer, waited.more), (1, 2));
}

fn evd_wait_of_a_second_waiter_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, SOFTWARE | DAT_EVD_DTO_FLAG] {
        let evd = ia.evd(8, flags);
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        for time in [0, 1000, DAT_TIMEOUT_INFINITE] {
            refused(fails(&evd, time, 1), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
        }
        evd.post(1);
        ok(waiter.join().code);
    }
}

fn evd_dequeue_beside_a_waiter_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    let code = untouched(|event| dat_evd_dequeue(evd.h(), event));
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(1);
    ok(waiter.join().code);
    expect_nothing(evd.h());
}

fn evd_dequeue_beside_a_waiter_below_its_threshold_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 2).inside(evd.h());
    evd.post(1);
    let code = untouched(|event| dat_evd_dequeue(evd.h(), event));
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(2);
    let waited = waiter.join();
    assert_eq!((waited.code, waited.pointer, waited.more), (DAT_SUCCESS, 1, 1));
}

fn evd_wait_permits_another_waiter_after_it_returns(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for number in 1..20 {
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        evd.post(number);
        assert_eq!(waiter.join().pointer, number);
        expect_nothing(evd.h());
    }
}

fn evd_wait_continues_through_enable_disable_and_modify_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h()).asleep();
    ok(dat_evd_disable(evd.h()));
    ok(dat_evd_enable(evd.h()));
    ok(dat_evd_modify_cno(evd.h(), cno.h()));
    ok(dat_evd_disable(evd.h()));
    ok(dat_evd_clear_unwaitable(evd.h()));
    let code = untouched(|event| dat_evd_dequeue(evd.h(), event));
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(4);
    assert_eq!(waiter.join().pointer, 4);
    ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
}

fn evd_wait_on_an_unwaitable_evd_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    ok(dat_evd_set_unwaitable(evd.h()));
    for time in [0, 1000, DAT_TIMEOUT_INFINITE] {
        refused(fails(&evd, time, 1), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    }
}

fn evd_wait_on_an_unwaitable_evd_with_events_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    evd.post(1);
    ok(dat_evd_set_unwaitable(evd.h()));
    refused(fails(&evd, 0, 1), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    assert_eq!(drain(evd.h()).len(), 1);
}
