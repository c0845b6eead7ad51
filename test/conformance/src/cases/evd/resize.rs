//! `dat_evd_resize`: growing, shrinking and errors. No event is lost.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 2.8": evd_resize_to_the_same_length_succeeds,
        "spec/events 2.8": evd_resize_grows_and_the_query_shows_it,
        "spec/events 2.8": evd_resize_to_zero_or_less_returns_invalid_arg2,
        "spec/events 2.8": evd_resize_beyond_the_adapters_limit_returns_invalid_arg2,
        "spec/events 2.8": evd_resize_below_the_queued_events_is_refused,
        "spec/events 2.8": evd_resize_keeps_the_queued_events,
        "spec/events 2.8": evd_resize_down_to_the_number_of_queued_events_succeeds,
        "spec/events 2.8": evd_resize_of_the_async_evd_succeeds,
        "spec/events 2.8": evd_resize_is_refused_while_a_thread_waits,
        "spec/events 2.8": evd_resize_succeeds_while_an_ep_uses_the_evd,
    ]
}

fn evd_resize_to_the_same_length_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    ok(dat_evd_resize(evd.h(), length));
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_grows_and_the_query_shows_it(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_SOFTWARE_FLAG] {
        let evd = ia.evd(1, flags);
        for length in [2, 3, 64, 1000, ia.attr().max_evd_qlen] {
            ok(dat_evd_resize(evd.h(), length));
            assert!(evd.param().evd_qlen >= length);
        }
    }
}

fn evd_resize_to_zero_or_less_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    for wanted in [0, -1, DAT_COUNT::MIN] {
        refused(dat_evd_resize(evd.h(), wanted), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_beyond_the_adapters_limit_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    let most = ia.attr().max_evd_qlen;
    if most == DAT_COUNT::MAX {
        ctx.unsupported("a limit on the length of EVDs");
    }
    for wanted in [most + 1, DAT_COUNT::MAX] {
        refused(dat_evd_resize(evd.h(), wanted), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_below_the_queued_events_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    for number in 1..=5 {
        evd.post(number);
    }
    refused(dat_evd_resize(evd.h(), 4), DAT_INVALID_STATE, DAT_NO_SUBTYPE);
    assert_eq!(evd.param().evd_qlen, length, "a refused resize changed the length");
    assert_eq!(drain(evd.h()).len(), 5);
    ok(dat_evd_resize(evd.h(), 4));
}

fn evd_resize_keeps_the_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    for (number, length) in (1..).zip([16, 9, 40, 7, 100]) {
        evd.post(number);
        ok(dat_evd_resize(evd.h(), length));
    }
    let pointers: Vec<usize> = drain(evd.h()).iter().map(|event| event.software().addr()).collect();
    assert_eq!(pointers, [1, 2, 3, 4, 5]);
}

fn evd_resize_down_to_the_number_of_queued_events_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(100, DAT_EVD_SOFTWARE_FLAG);
    for number in 1..=3 {
        evd.post(number);
    }
    ok(dat_evd_resize(evd.h(), 3));
    assert!(evd.param().evd_qlen >= 3);
    assert_eq!(drain(evd.h()).len(), 3);
    ok(dat_evd_resize(evd.h(), 1));
}

fn evd_resize_of_the_async_evd_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_evd_resize(ia.errors(), 32));
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_EVD_QLEN, out));
    assert!(param.evd_qlen >= 32);
}

fn evd_resize_is_refused_while_a_thread_waits(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    refused(dat_evd_resize(evd.h(), 20), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    refused(dat_evd_resize(evd.h(), 2), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(3);
    assert_eq!(waiter.join().pointer, 3);
    ok(dat_evd_resize(evd.h(), 20));
}

fn evd_resize_succeeds_while_an_ep_uses_the_evd(ctx: &Ctx) {
    let (client, server) = ctx.loopback_with(&ctx.ia(), &Setup { qlen: 2, ..Setup::default() });
    let (from, into) = (client.memory(64), server.memory(64));
    server.post_recv(1, into.segment(0, 8));
    server.post_recv(2, into.segment(8, 8));
    client.post_send(11, from.segment(0, 8));
    expect_dto(client.request.h(), 11, DAT_DTO_SUCCESS, 8);
    for evd in [&server.recv, &client.request] {
        ok(dat_evd_resize(evd.h(), 200));
    }
    client.post_send(12, from.segment(0, 8));
    expect_dto(client.request.h(), 12, DAT_DTO_SUCCESS, 8);
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(server.recv.h(), 2, DAT_DTO_SUCCESS, 8);
}
