//! What ends a `dat_evd_wait` before its timeout: an event, the free of the EVD, an abrupt close of its adapter,
//! UNWAITABLE, signals, cancellation.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::wait::SOFTWARE;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 2.9": evd_wait_is_ended_by_set_unwaitable,
        "spec/events 2.9": evd_wait_on_a_dto_evd_is_ended_by_set_unwaitable,
        "spec/events 2.9": evd_wait_ended_by_set_unwaitable_keeps_the_events,
        "spec/events 2.9": evd_wait_works_after_clear_unwaitable,
        "spec/events 1.5": evd_wait_is_aborted_by_the_free_of_the_evd,
        "spec/events 1.5": evd_wait_is_aborted_by_an_abrupt_close,
        "spec/registry 6.3": evd_waits_on_five_evds_are_aborted_by_an_abrupt_close,
        "spec/registry 6.3": evd_wait_on_the_async_evd_is_aborted_by_an_abrupt_close,
        "spec/events 2.5": evd_wait_is_interrupted_by_a_signal,
        "spec/events 2.5": evd_wait_with_a_time_limit_is_interrupted_by_a_signal,
        "spec/events 14": evd_wait_that_is_interrupted_counts_and_keeps_queued_events,
        "spec/events 2.5": evd_wait_works_after_an_interruption,
        "spec/consumers 15": evd_wait_that_is_cancelled_leaves_no_waiter_behind,
        "spec/consumers 15": evd_wait_that_is_cancelled_leaves_a_dto_evd_usable,
        "spec/consumers 15": evd_wait_that_is_cancelled_permits_freeing_the_evd,
        "spec/consumers 15": evd_waits_that_are_cancelled_repeatedly_leave_no_waiter_behind,
        "spec/events 2.5": evd_wait_without_a_timeout_is_ended_by_an_event,
        "spec/events 2.5": evd_wait_with_a_long_timeout_is_ended_by_an_event,
        "spec/events 2.5": evd_wait_on_an_evd_with_a_cno_is_ended_by_an_event,
        "spec/events 2.5": evd_wait_returns_concurrently_posted_events_in_order,
        "spec/events 2.5": evd_wait_is_ended_by_a_connection_event => pair(client_connects_later, server_is_woken_by_the_connection),
        "spec/events 2.5": evd_wait_is_ended_by_a_completion => pair(client_sends_later, server_is_woken_by_the_send),
    ];
    for (word, flags) in WOKEN_BY_SOFTWARE {
        let case = local(move |ctx| is_woken_by_software(ctx, flags));
        all.push(case.named(format!("evd_wait_on_{word}_is_ended_by_a_software_event")).proves("spec/events 2.5"));
    }
    all
}

const WOKEN_BY_SOFTWARE: [(&str, DAT_EVD_FLAGS); 5] = [
    ("software_and_dto_streams", SOFTWARE | DAT_EVD_DTO_FLAG),
    ("software_and_bind_streams", SOFTWARE | DAT_EVD_RMR_BIND_FLAG),
    ("software_and_request_streams", SOFTWARE | DAT_EVD_CR_FLAG),
    ("software_and_connection_streams", SOFTWARE | DAT_EVD_CONNECTION_FLAG),
    ("software_and_all_default_streams", SOFTWARE | DAT_EVD_DEFAULT_FLAG),
];

fn set_unwaitable_ends_wait(ia: &Ia, flags: DAT_EVD_FLAGS) {
    let evd = ia.evd(8, flags);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h()).asleep();
    ok(dat_evd_set_unwaitable(evd.h()));
    refused(waiter.join().code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    // After the wait, a dequeue is allowed again.
    expect_nothing(evd.h());
}

fn evd_wait_is_ended_by_set_unwaitable(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG] {
        set_unwaitable_ends_wait(&ia, flags);
    }
}

fn evd_wait_on_a_dto_evd_is_ended_by_set_unwaitable(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, DAT_EVD_DEFAULT_FLAG] {
        set_unwaitable_ends_wait(&ia, flags);
    }
}

fn evd_wait_ended_by_set_unwaitable_keeps_the_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 3).inside(evd.h());
    evd.post(1);
    evd.post(2);
    ok(dat_evd_set_unwaitable(evd.h()));
    refused(waiter.join().code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    evd.post(3);
    assert_eq!(drain(evd.h()).iter().map(|event| event.software().addr()).collect::<Vec<_>>(), [1, 2, 3]);
}

fn evd_wait_works_after_clear_unwaitable(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for number in 1..5 {
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        ok(dat_evd_set_unwaitable(evd.h()));
        refused(waiter.join().code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
        ok(dat_evd_clear_unwaitable(evd.h()));
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        evd.post(number);
        assert_eq!(waiter.join().pointer, number);
    }
}

fn evd_wait_is_aborted_by_the_free_of_the_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, DAT_EVD_DTO_FLAG] {
        let evd = ia.evd(8, flags);
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h()).asleep();
        let dead = evd.free();
        refused(waiter.join().code, DAT_ABORT, DAT_NO_SUBTYPE);
        refused(dat_evd_free(dead), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
    }
}

fn evd_wait_is_aborted_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = Handle::of(ia.evd(8, SOFTWARE).leak());
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 2).inside(evd.h()).asleep();
    ok(dat_evd_post_se(evd.h(), &software_event(1)));
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    refused(waiter.join().code, DAT_ABORT, DAT_NO_SUBTYPE);
}

fn evd_waits_on_five_evds_are_aborted_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let flags = [SOFTWARE, DAT_EVD_DTO_FLAG, DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG, DAT_EVD_DEFAULT_FLAG];
    let evds = flags.map(|flags| ia.evd(8, flags).leak());
    let waiters = evds.map(|evd| evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd));
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    for waiter in waiters {
        refused(waiter.join().code, DAT_ABORT, DAT_NO_SUBTYPE);
    }
}

fn evd_wait_on_the_async_evd_is_aborted_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let waiter = evd_waiter(ia.errors(), DAT_TIMEOUT_INFINITE, 1).inside(ia.errors()).asleep();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    refused(waiter.join().code, DAT_ABORT, DAT_NO_SUBTYPE);
}

fn is_interrupted(ia: &Ia, flags: DAT_EVD_FLAGS, time: DAT_TIMEOUT) {
    let evd = ia.evd(8, flags);
    let waiter = evd_waiter(evd.h(), time, 1).inside(evd.h()).asleep();
    waiter.interrupt();
    assert_eq!(kind_of(waiter.join().code), error(DAT_INTERRUPTED_CALL, 0));
    expect_nothing(evd.h());
}

fn evd_wait_is_interrupted_by_a_signal(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, DAT_EVD_DTO_FLAG, DAT_EVD_CONNECTION_FLAG] {
        is_interrupted(&ia, flags, DAT_TIMEOUT_INFINITE);
    }
}

fn evd_wait_with_a_time_limit_is_interrupted_by_a_signal(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, DAT_EVD_DTO_FLAG] {
        is_interrupted(&ia, flags, 3_000_000_000);
    }
}

fn evd_wait_that_is_interrupted_counts_and_keeps_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 5).inside(evd.h());
    evd.post(1);
    evd.post(2);
    let waiter = waiter.asleep();
    waiter.interrupt();
    let waited = waiter.join();
    assert_eq!((kind_of(waited.code), waited.more), (error(DAT_INTERRUPTED_CALL, 0), 2));
    assert_eq!(drain(evd.h()).len(), 2);
}

fn evd_wait_works_after_an_interruption(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for number in 1..5 {
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        waiter.interrupt();
        assert_eq!(kind_of(waiter.join().code), error(DAT_INTERRUPTED_CALL, 0));
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        evd.post(number);
        assert_eq!(waiter.join().pointer, number);
    }
}

/// Waits until the empty EVD has a waiter.
fn await_waiter(evd: &Evd) {
    let waiter = error(DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    until(|| untouched(|event| dat_evd_dequeue(evd.h(), event)) == waiter);
}

fn is_cancelled(evd: &Evd) {
    let thread = Cancellable::on_evd(evd.h());
    await_waiter(evd);
    thread.cancel();
}

fn evd_wait_that_is_cancelled_leaves_no_waiter_behind(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    is_cancelled(&evd);
    expect_nothing(evd.h());
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    evd.post(6);
    assert_eq!(waiter.join().pointer, 6);
}

fn evd_wait_that_is_cancelled_leaves_a_dto_evd_usable(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    is_cancelled(&server.recv);
    expect_nothing(server.recv.h());
    let (here, there) = (client.memory(64), server.memory(64));
    server.post_recv(1, there.segment(0, 8));
    client.post_send(2, here.segment(0, 8));
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(client.request.h(), 2, DAT_DTO_SUCCESS, 8);
}

fn evd_wait_that_is_cancelled_permits_freeing_the_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [SOFTWARE, DAT_EVD_DTO_FLAG, DAT_EVD_DEFAULT_FLAG] {
        let evd = ia.evd(8, flags);
        is_cancelled(&evd);
        evd.free();
    }
}

fn evd_waits_that_are_cancelled_repeatedly_leave_no_waiter_behind(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    for round in 0..50 {
        let thread = Cancellable::on_evd(evd.h());
        // Alternates between cancelling the thread while it is about to block and cancelling it while it waits.
        if round % 2 == 0 {
            await_waiter(&evd);
        }
        thread.cancel();
        expect_nothing(evd.h());
    }
    evd.post(1);
    assert_eq!(drain(evd.h()).len(), 1);
}

fn evd_wait_without_a_timeout_is_ended_by_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h()).asleep();
    evd.post(5);
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.number, waited.pointer, waited.more), (DAT_SOFTWARE_EVENT, 5, 0));
}

fn evd_wait_with_a_long_timeout_is_ended_by_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), 600_000_000, 1).inside(evd.h()).asleep();
    evd.post(5);
    ok(waiter.join().code);
}

fn evd_wait_on_an_evd_with_a_cno_is_ended_by_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, SOFTWARE);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    evd.post(5);
    ok(waiter.join().code);
}

fn evd_wait_returns_concurrently_posted_events_in_order(ctx: &Ctx) {
    const COUNT: usize = 2000;
    let ia = ctx.ia();
    let evd = ia.evd(8, SOFTWARE);
    let handle = Handle::of(evd.h());
    let poster = std::thread::spawn(move || {
        for number in 0..COUNT {
            until(|| dat_evd_post_se(handle.h(), &software_event(number)) == DAT_SUCCESS);
        }
    });
    for number in 0..COUNT {
        assert_eq!(expect_event(evd.h(), SOON).software().addr(), number);
    }
    poster.join().expect("the posting thread does not panic");
}

fn is_woken_by_software(ctx: &Ctx, flags: DAT_EVD_FLAGS) {
    let ia = ctx.ia();
    let evd = ia.evd(8, flags);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h()).asleep();
    evd.post(8);
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!(waited.pointer, 8);
}

fn client_connects_later(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    ctx.meet();
    conn.connect(&address, ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_is_woken_by_the_connection(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let waiter = evd_waiter(conn.events.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.events.h()).asleep();
    let requests = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let _psp = conn.ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&conn.ia);
    ctx.meet();
    ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number), (DAT_SUCCESS, DAT_CONNECTION_EVENT_ESTABLISHED));
    ctx.meet();
}

fn client_sends_later(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    ctx.meet();
    conn.post_send(1, memory.segment(0, 8));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 8);
    ctx.meet();
}

fn server_is_woken_by_the_send(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    conn.post_recv(2, memory.segment(0, 8));
    let waiter = evd_waiter(conn.recv.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.recv.h()).asleep();
    ctx.meet();
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT));
    ctx.meet();
}
