//! `dat_cno_wait`: timeouts, several waiters, and what ends a wait. The triggers of a CNO are in `trigger`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::kit::*;

use super::object::next;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 3.5": cno_wait_zero_timeout_returns_queue_empty_without_subtype,
        "spec/events 3.5": cno_wait_time_out_is_not_early_and_returns_queue_empty_without_subtype,
        "spec/events 3.5": cno_wait_time_out_writes_a_null_evd,
        "spec/events 3.5": cno_wait_without_out_pointer_returns_invalid_arg3,
        "spec/events 3.5": cno_wait_without_any_evd_blocks,
        "spec/events 3.5": cno_wait_with_huge_finite_timeouts_blocks_until_an_event,
        "spec/events 3.5": cno_wait_returns_if_triggered_before_the_call,
        "spec/events 3.5": cno_wait_is_ended_by_an_event,
        "spec/events 3.5": cno_wait_consumes_no_event,
        "spec/events 3.5": cno_wait_is_interrupted_by_a_signal,
        "spec/events 3.5": cno_wait_works_after_an_interruption,
        "spec/consumers 15": cno_wait_that_is_cancelled_leaves_no_waiter_behind,
        "spec/consumers 15": cno_wait_that_is_cancelled_does_not_consume_a_later_trigger,
        "spec/events 1.5": cno_trigger_releases_one_of_several_waiters,
        "spec/events 1.5": cno_triggers_by_four_evds_release_four_waiters,
        "spec/events 2.10": cno_waiters_are_all_released_by_the_free_of_the_last_evd,
        "spec/events 2.10": cno_waiter_is_not_released_by_the_free_of_one_of_two_evds,
        "spec/registry 6.3": cno_waiters_are_all_released_with_a_null_evd_by_an_abrupt_close,
        "spec/registry 6.3": cno_waiter_of_a_cno_without_evds_is_released_by_an_abrupt_close,
        "spec/events 2.10": cno_waiter_is_not_released_when_the_last_evd_is_detached,
    ]
}

fn cno_wait_zero_timeout_returns_queue_empty_without_subtype(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let _evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    let mut evd = null_mut();
    expect(dat_cno_wait(cno.h(), 0, &mut evd), DAT_QUEUE_EMPTY);
}

fn cno_wait_time_out_is_not_early_and_returns_queue_empty_without_subtype(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let _evd = ia.evd_on(&cno, 8, DAT_EVD_DTO_FLAG);
    for time in [1, 300, 999, 1000, 20_000] {
        let (begin, mut evd) = (Instant::now(), null_mut());
        expect(dat_cno_wait(cno.h(), time, &mut evd), DAT_QUEUE_EMPTY);
        let took = begin.elapsed();
        assert!(took >= Duration::from_micros(time.into()), "the wait of {time} us returned after {took:?}");
    }
}

fn cno_wait_time_out_writes_a_null_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    for time in [0, 1000] {
        let mut evd = ia.errors();
        expect(dat_cno_wait(cno.h(), time, &mut evd), DAT_QUEUE_EMPTY);
        assert!(evd.is_null());
    }
}

fn cno_wait_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    evd.post(1);
    for time in [0, DAT_TIMEOUT_INFINITE] {
        refused(dat_cno_wait(cno.h(), time, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
    // The refused waits did not consume the trigger.
    assert_eq!(next(&cno), evd.h());
}

fn cno_wait_without_any_evd_blocks(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    assert!(!waiter.is_back());
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_modify_cno(evd.h(), cno.h()));
    assert!(!waiter.is_back());
    evd.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
}

fn cno_wait_with_huge_finite_timeouts_blocks_until_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for time in [DAT_TIMEOUT_INFINITE - 1, 1 << 31, (1 << 31) - 1] {
        let waiter = cno_waiter(cno.h(), time).asleep();
        assert!(!waiter.is_back());
        evd.post(1);
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
        drain(evd.h());
    }
}

fn cno_wait_returns_if_triggered_before_the_call(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for time in [0, 1000, DAT_TIMEOUT_INFINITE] {
        evd.post(1);
        assert_eq!(filled::<DAT_EVD_HANDLE>(|out| dat_cno_wait(cno.h(), time, out)), evd.h());
        drain(evd.h());
    }
}

fn cno_wait_is_ended_by_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for time in [600_000_000, DAT_TIMEOUT_INFINITE] {
        let waiter = cno_waiter(cno.h(), time).asleep();
        evd.post(1);
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
        drain(evd.h());
    }
}

fn cno_wait_consumes_no_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for number in 1..=3 {
        evd.post(number);
    }
    assert_eq!(next(&cno), evd.h());
    assert_eq!(drain(evd.h()).len(), 3);
}

fn cno_wait_is_interrupted_by_a_signal(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let _evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for time in [DAT_TIMEOUT_INFINITE, 3_000_000_000] {
        let waiter = cno_waiter(cno.h(), time).asleep();
        waiter.interrupt();
        assert_eq!(kind_of(waiter.join().0), error(DAT_INTERRUPTED_CALL, 0));
    }
}

fn cno_wait_works_after_an_interruption(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    for _ in 0..5 {
        let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
        waiter.interrupt();
        waiter.join();
        let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
        evd.post(1);
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
        drain(evd.h());
    }
    evd.free();
    cno.free();
}

fn cno_wait_that_is_cancelled_leaves_no_waiter_behind(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    for _ in 0..20 {
        Cancellable::on_cno(cno.h()).cancel();
    }
    // `dat_cno_free` would be refused if a waiter were left.
    cno.free();
}

fn cno_wait_that_is_cancelled_does_not_consume_a_later_trigger(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    Cancellable::on_cno(cno.h()).cancel();
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    evd.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
}

fn cno_trigger_releases_one_of_several_waiters(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    let mut waiters: Vec<_> = (0..3).map(|_| cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep()).collect();
    for left in (0..3).rev() {
        evd.post(1);
        until(|| waiters.iter().any(Blocked::is_back));
        let at = waiters.iter().position(Blocked::is_back).expect("one waiter has returned");
        assert_eq!(waiters.swap_remove(at).join(), (DAT_SUCCESS, Handle::of(evd.h())));
        assert_eq!(waiters.iter().filter(|waiter| !waiter.is_back()).count(), left);
        // Dequeues all events, so that no queued event triggers the CNO again.
        drain(evd.h());
    }
}

fn cno_triggers_by_four_evds_release_four_waiters(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..4).map(|_| ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG)).collect();
    let waiters: Vec<_> = (0..4).map(|_| cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep()).collect();
    for evd in &evds {
        evd.post(1);
    }
    let mut released: Vec<DAT_EVD_HANDLE> = Vec::new();
    for waiter in waiters {
        let (code, evd) = waiter.join();
        ok(code);
        released.push(evd.h());
    }
    for evd in &evds {
        assert!(released.contains(&evd.h()), "no waiter got one of the triggered EVDs");
    }
}

fn cno_waiters_are_all_released_by_the_free_of_the_last_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    let waiters: Vec<_> = (0..3).map(|_| cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep()).collect();
    evd.free();
    for waiter in waiters {
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(null_mut())));
    }
    cno.free();
}

fn cno_waiter_is_not_released_by_the_free_of_one_of_two_evds(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG), ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG));
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    one.free();
    let waiter = waiter.asleep();
    assert!(!waiter.is_back());
    other.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(other.h())));
}

fn cno_waiters_are_all_released_with_a_null_evd_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG).leak();
    let waiters: Vec<_> = (0..3).map(|_| cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep()).collect();
    let dead = cno.leak();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    for waiter in waiters {
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(null_mut())));
    }
    refused(untouched(|evd| dat_cno_wait(dead, 0, evd)), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
}

fn cno_waiter_of_a_cno_without_evds_is_released_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    cno.leak();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(null_mut())));
}

/// A wait ends when its CNO's last EVD is freed, but not when that EVD is detached: the program may attach another
/// EVD.
fn cno_waiter_is_not_released_when_the_last_evd_is_detached(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
    let waiter = waiter.asleep();
    assert!(!waiter.is_back());
    ok(dat_evd_modify_cno(evd.h(), cno.h()));
    evd.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
}
