//! Several threads post and dequeue software events concurrently.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::*;

use super::posts::in_order;
use super::{kind_in, run_threads};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 1.1": threads_dequeue_each_software_event_once,
        "spec/events 1.1": threads_waiting_on_one_evd_get_each_event_once,
        "spec/events 1.5": threads_dequeuing_and_waiting_get_each_event_once,
        "spec/events 2.7": threads_posting_events_keep_the_order_of_each_thread,
        "spec/events 2.7": threads_posting_to_one_evd_fill_it_exactly_to_its_length,
    ]
}

const EVENTS: usize = 3000;

/// Posts each of these numbers, retrying while the queue is full.
fn post_numbers(evd: &Evd, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let event = software_event(number);
        until(|| {
            let code = dat_evd_post_se(evd.h(), &event);
            kind_in(code, &[DAT_SUCCESS, DAT_QUEUE_FULL]);
            code == DAT_SUCCESS
        });
    }
}

/// One thread posts and three threads dequeue. Each event must be dequeued exactly once.
fn dequeues_each_event_once(ctx: &Ctx, take: impl Fn(DAT_EVD_HANDLE) -> Option<Event> + Sync) {
    let ia = ctx.ia();
    let evd = ia.evd(32, DAT_EVD_SOFTWARE_FLAG);
    let seen = Mutex::new(HashSet::new());
    run_threads(4, |thread| {
        if thread == 0 {
            return post_numbers(&evd, 0..EVENTS);
        }
        until(|| {
            let event = take(evd.h());
            let mut seen = seen.lock().expect("no thread has panicked");
            if let Some(event) = event {
                assert!(seen.insert(event.software().addr()), "an event was dequeued twice");
            }
            seen.len() == EVENTS
        });
    });
    expect_nothing(evd.h());
}

fn threads_dequeue_each_software_event_once(ctx: &Ctx) {
    dequeues_each_event_once(ctx, dequeue);
}

/// One thread at a time may wait; the others are refused and retry.
fn threads_waiting_on_one_evd_get_each_event_once(ctx: &Ctx) {
    dequeues_each_event_once(ctx, |evd| {
        let mut event = zeroed();
        let code = dat_evd_wait(evd, 2000, 1, &mut event, &mut 0);
        kind_in(code, &[DAT_SUCCESS, DAT_TIMEOUT_EXPIRED, DAT_INVALID_STATE]);
        (code == DAT_SUCCESS).then_some(Event(event))
    });
}

fn threads_dequeuing_and_waiting_get_each_event_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(32, DAT_EVD_SOFTWARE_FLAG);
    let seen = Mutex::new(HashSet::new());
    let is_done = || seen.lock().expect("no thread has panicked").len() == EVENTS;
    let note = |event: Event| {
        let is_new = seen.lock().expect("no thread has panicked").insert(event.software().addr());
        assert!(is_new, "an event was dequeued twice");
    };
    run_threads(3, |thread| match thread {
        0 => post_numbers(&evd, 0..EVENTS),
        1 => until(|| {
            let mut event = zeroed();
            let code = dat_evd_wait(evd.h(), 1000, 1, &mut event, &mut 0);
            kind_in(code, &[DAT_SUCCESS, DAT_TIMEOUT_EXPIRED]);
            if code == DAT_SUCCESS {
                note(Event(event));
            }
            is_done()
        }),
        _ => until(|| {
            let mut event = zeroed();
            let code = dat_evd_dequeue(evd.h(), &mut event);
            if kind_of(code) == error(DAT_INVALID_STATE, DAT_NO_SUBTYPE) {
                refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
            } else if code != DAT_QUEUE_EMPTY {
                ok(code);
                note(Event(event));
            }
            is_done()
        }),
    });
}

fn threads_posting_events_keep_the_order_of_each_thread(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(16, DAT_EVD_SOFTWARE_FLAG);
    run_threads(4, |thread| {
        if thread < 3 {
            let first = thread << 32;
            return post_numbers(&evd, first..first + EVENTS / 3);
        }
        let mut next = [0; 3];
        for _ in 0..3 * (EVENTS / 3) {
            in_order(&mut next, expect_event(evd.h(), SOON).software().addr() as u64);
        }
    });
    expect_nothing(evd.h());
}

fn threads_posting_to_one_evd_fill_it_exactly_to_its_length(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..20 {
        let evd = ia.evd(10, DAT_EVD_SOFTWARE_FLAG);
        let length = evd.param().evd_qlen as usize;
        let accepted = AtomicUsize::new(0);
        run_threads(4, |_| {
            for number in 0..length {
                let code = dat_evd_post_se(evd.h(), &software_event(number));
                kind_in(code, &[DAT_SUCCESS, DAT_QUEUE_FULL]);
                accepted.fetch_add((code == DAT_SUCCESS).into(), Ordering::Relaxed);
            }
        });
        assert_eq!(accepted.into_inner(), length, "the EVD accepted another number of events than its length");
        assert_eq!(drain(evd.h()).len(), length);
    }
    expect_nothing(ia.errors());
}
