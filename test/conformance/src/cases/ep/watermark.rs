//! `dat_ep_set_watermark` of EPs without an SRQ. EPs with an SRQ are in `srq::marks`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/events 5.6": watermark_of_an_invalid_ep_returns_invalid_handle,
        "spec/events 5.6": watermark_of_an_invalid_value_is_refused,
        "spec/events 5.6": watermark_can_be_set_while_connected_disconnected_or_unconnected,
        "spec/events 5.6": watermark_soft_exceeded_by_posted_receives_is_reported,
        "spec/events 5.6": watermark_soft_already_exceeded_is_reported_immediately,
        "spec/events 5.6": watermark_soft_is_reported_once_until_set_again,
        "spec/events 5.6": watermark_soft_attribute_is_ignored_without_an_srq,
        "spec/events 5.6": watermark_soft_counts_outstanding_receives_only,
        "spec/events 5.6": watermark_hard_exceeded_breaks_the_connection,
        "spec/events 5.6": watermark_hard_already_exceeded_breaks_the_connection_immediately,
        "spec/events 5.6": watermark_hard_set_before_the_connect_breaks_the_connection,
        "spec/events 5.6": watermark_hard_reached_exactly_keeps_the_connection,
        "spec/events 5.6": watermark_hard_alone_reports_no_soft_event,
        "spec/events 5.6": watermark_soft_and_hard_together_report_and_break_the_connection,
    ];
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

pub(crate) const NONE: DAT_COUNT = DAT_WATERMARK_INFINITE;

/// Expects the soft-watermark event of this EP.
#[track_caller]
pub(crate) fn expect_soft(ia: &Ia, ep: &Ep) {
    let number = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
    expect_async(ia.errors(), number, ep.h(), DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
}

#[track_caller]
pub(crate) fn expect_silence(ia: &Ia) {
    expect_quiet(ia.errors(), Duration::from_millis(20));
}

#[track_caller]
fn post_recvs(conn: &Conn, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
}

#[track_caller]
fn watch(conn: &Conn, soft: DAT_COUNT, hard: DAT_COUNT) {
    ok(dat_ep_set_watermark(conn.ep.h(), soft, hard));
}

fn watermark_of_an_invalid_ep_returns_invalid_handle(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let dead = conn.ia.ep(&conn.pz, &conn.recv, &conn.request, &conn.events).free();
    for handle in [null_mut(), conn.recv.h(), dead] {
        refused(dat_ep_set_watermark(handle, 1, 1), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
}

fn watermark_of_an_invalid_value_is_refused(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    for mark in [-2, DAT_VALUE_UNKNOWN, DAT_COUNT::MIN] {
        let refuse = |soft, hard, arg| {
            refused(dat_ep_set_watermark(conn.ep.h(), soft, hard), DAT_INVALID_PARAMETER, arg);
        };
        refuse(mark, 1, DAT_INVALID_ARG2);
        refuse(1, mark, DAT_INVALID_ARG3);
        refuse(mark, mark, DAT_INVALID_ARG2);
    }
    post_recvs(&conn, 0..4);
    expect_silence(&conn.ia);
}

fn watermark_can_be_set_while_connected_disconnected_or_unconnected(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&client, 100, 100);
    server.disconnect();
    client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    for mark in [0, NONE] {
        watch(&client, mark, mark);
    }
    ok(dat_ep_reset(client.ep.h()));
    watch(&client, 1, 1);
    expect_silence(&client.ia);
}

fn watermark_soft_exceeded_by_posted_receives_is_reported(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    watch(&conn, 2, NONE);
    post_recvs(&conn, 0..2);
    expect_silence(&conn.ia);
    post_recvs(&conn, 2..3);
    expect_soft(&conn.ia, &conn.ep);
}

fn watermark_soft_already_exceeded_is_reported_immediately(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_recvs(&conn, 0..4);
    watch(&conn, 4, NONE);
    expect_silence(&conn.ia);
    watch(&conn, 3, NONE);
    expect_soft(&conn.ia, &conn.ep);
}

fn watermark_soft_is_reported_once_until_set_again(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    watch(&conn, 0, NONE);
    post_recvs(&conn, 0..4);
    expect_soft(&conn.ia, &conn.ep);
    expect_silence(&conn.ia);
    for _ in 0..3 {
        watch(&conn, 0, NONE);
        expect_soft(&conn.ia, &conn.ep);
        expect_nothing(conn.ia.errors());
    }
}

fn watermark_soft_attribute_is_ignored_without_an_srq(ctx: &Ctx) {
    // Programs leave this field zero (spec/events 12.8).
    let setup = Setup { attr: DAT_EP_ATTR { srq_soft_hw: 0, ..ep_attr() }, ..Setup::default() };
    let conn = Conn::unconnected(&ctx.ia(), &setup);
    post_recvs(&conn, 0..16);
    expect_silence(&conn.ia);
}

fn watermark_soft_counts_outstanding_receives_only(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&server, 1, NONE);
    for id in 0..10 {
        post_recvs(&server, [id]);
        ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(server.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_silence(&server.ia);
    post_recvs(&server, 10..12);
    expect_soft(&server.ia, &server.ep);
}

/// Checks that the exceeded hard watermark of the server EP has broken its connection, and that the client EP
/// reports the end.
#[track_caller]
fn expect_broken(client: &Conn, server: &Conn, flushed: u64) {
    server.expect(DAT_CONNECTION_EVENT_BROKEN);
    server.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    for id in 0..flushed {
        expect_dto(server.recv.h(), id, DAT_DTO_ERR_FLUSHED, 0);
    }
    expect_nothing(server.recv.h());
    let event = expect_event(client.events.h(), SOON);
    let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
    assert!(is_end, "the event is {}, wanted DISCONNECTED or BROKEN", number_name(event.number()));
    expect_nothing(client.events.h());
    expect_nothing(server.events.h());
}

fn watermark_hard_exceeded_breaks_the_connection(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&server, NONE, 2);
    post_recvs(&server, 0..2);
    server.ep.expect_state(DAT_EP_STATE_CONNECTED);
    post_recvs(&server, 2..3);
    expect_broken(&client, &server, 3);
}

fn watermark_hard_already_exceeded_breaks_the_connection_immediately(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    post_recvs(&server, 0..5);
    watch(&server, NONE, 4);
    expect_broken(&client, &server, 5);
}

fn watermark_hard_set_before_the_connect_breaks_the_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let [client, server] = [0, 1].map(|_| Conn::on(&ia));
    watch(&server, NONE, 2);
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    post_recvs(&server, 0..3);
    expect_broken(&client, &server, 3);
}

fn watermark_hard_reached_exactly_keeps_the_connection(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&server, NONE, 3);
    post_recvs(&server, 0..3);
    for id in 0..3 {
        ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(server.recv.h(), id, DAT_DTO_SUCCESS, 0);
        post_recvs(&server, [id]);
    }
    server.ep.expect_state(DAT_EP_STATE_CONNECTED);
    expect_nothing(server.events.h());
}

fn watermark_hard_alone_reports_no_soft_event(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&server, NONE, 0);
    post_recvs(&server, 0..1);
    expect_broken(&client, &server, 1);
    expect_silence(&server.ia);
}

fn watermark_soft_and_hard_together_report_and_break_the_connection(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    watch(&server, 0, 0);
    post_recvs(&server, 0..1);
    expect_broken(&client, &server, 1);
    expect_soft(&server.ia, &server.ep);
    expect_silence(&server.ia);
}
