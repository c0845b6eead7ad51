//! Connections that end because a transfer fails or because the ESTABLISHED event does not fit into a full connect EVD,
//! and a connection that ends before its ESTABLISHED event is dequeued. When an event can be dequeued, the EP already
//! has the new state.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::call::Call;
use super::disconnect::{cookies, is_over};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 8.4": broken_is_reported_after_a_write_to_an_invalid_target,
        "spec/endpoints 14.37": broken_is_reported_without_polling_the_request_evd,
        "spec/endpoints 8.4": broken_is_reported_after_a_send_with_an_invalid_lmr_context,
        "spec/endpoints 8.4": broken_is_reported_to_the_receiver_of_a_message_too_long,
        "spec/endpoints 4.3": broken_connection_flushes_sends_and_receives_in_order,
        "spec/endpoints 8.4": broken_connection_reports_no_further_event_at_a_disconnect,
        "spec/endpoints 8.4": broken_ep_connects_again_after_a_reset,
        "spec/endpoints 8.5": full_connect_evd_on_the_active_side_ends_the_connection => local(lost_active).limit(60),
        "spec/endpoints 14.34": full_connect_evd_on_the_passive_side_ends_the_connection => local(lost_passive).limit(60),
        "spec/endpoints 13.33": connection_that_ended_before_the_first_dequeue_reports_its_end,
    ]
}

/// Writes to memory that the peer has not registered.
fn write_nowhere(conn: &Conn, memory: &Memory, id: u64) {
    let nowhere = DAT_RMR_TRIPLET { rmr_context: 0x7777_7777, pad: 0, target_address: 4096, segment_length: 64 };
    conn.post_write(id, memory.segment(0, 64), nowhere);
}

#[track_caller]
fn is_broken(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn broken_is_reported_after_a_write_to_an_invalid_target(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(64);
    write_nowhere(&client, &memory, 1);
    expect_dto(client.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    is_broken(&client);
    is_over(&server);
}

fn broken_is_reported_without_polling_the_request_evd(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(64);
    write_nowhere(&client, &memory, 1);
    is_broken(&client);
    is_over(&server);
}

fn broken_is_reported_after_a_send_with_an_invalid_lmr_context(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(64);
    client.post_send(1, DAT_LMR_TRIPLET { lmr_context: 0x7777_7777, ..memory.segment(0, 64) });
    expect_dto(client.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    is_broken(&client);
}

fn broken_is_reported_to_the_receiver_of_a_message_too_long(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let (from, into) = (client.memory(64), server.memory(64));
    server.post_recv(1, into.segment(0, 8));
    client.post_send(2, from.segment(0, 64));
    expect_dto(server.recv.h(), 1, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    is_broken(&server);
    // The sender sees its own request fail, or sees the peer disconnect first.
    let number = expect_event(client.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED].contains(&number));
    client.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(client.events.h());
}

fn broken_connection_flushes_sends_and_receives_in_order(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(64);
    (1..=3).for_each(|id| post_empty_recv(&client, id));
    write_nowhere(&client, &memory, 4);
    // The peer has no receive, so none of the sends 5 to 8 can succeed.
    (5..=8).for_each(|id| {
        let code = dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_SUPPRESS_FLAG);
        ok(code);
    });
    is_broken(&client);
    expect_dto(client.request.h(), 4, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_flushed(&client.request, 5..=8);
    expect_flushed(&client.recv, 1..=3);
    assert!(cookies(&drain(client.request.h())).is_empty());
}

fn broken_connection_reports_no_further_event_at_a_disconnect(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(64);
    write_nowhere(&client, &memory, 1);
    is_broken(&client);
    is_over(&server);
    for conn in [&client, &server] {
        ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        expect_nothing(conn.events.h());
    }
}

fn broken_ep_connects_again_after_a_reset(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    for _ in 0..10 {
        let memory = client.memory(64);
        write_nowhere(&client, &memory, 1);
        is_broken(&client);
        is_over(&server);
        ok(dat_ep_reset(client.ep.h()));
        ok(dat_ep_reset(server.ep.h()));
        expect_dto(client.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
        server.listen(ctx.qual(0), || client.connect(&client.ia.address(), ctx.qual(0)));
        established(&client, &server);
    }
}

/// An EP whose connect EVD is full. Fields are declared in the order in which they must be dropped.
struct FullConnectEvd {
    ep: Ep,
    _filler: Ep,
    events: Evd,
    other: Conn,
}

fn full(ia: &Ia) -> FullConnectEvd {
    let other = Conn::on(ia);
    let (events, filler) = full_evd(ia, &other.pz, 0);
    let ep = ia.ep(&other.pz, &other.recv, &other.request, &events);
    FullConnectEvd { ep, _filler: filler, events, other }
}

/// Checks that a connection whose event cannot be queued ends. The overflow event names the EP's EVD, and the EVD
/// remains usable.
fn ends_connection(ctx: &Ctx, ia: &Ia, full: &FullConnectEvd, connects: impl Fn(&Ep, &Ep), is_active: bool) {
    let (client, server) = if is_active { (&full.ep, &full.other.ep) } else { (&full.other.ep, &full.ep) };
    connects(client, server);
    let event = expect_event(ia.errors(), SOON);
    event.is(DAT_ASYNC_ERROR_EVD_OVERFLOW);
    assert_eq!(event.asynchronous().dat_handle, full.events.h());
    let mut story = vec![expect_event(full.other.events.h(), SOON).number()];
    if story[0] == DAT_CONNECTION_EVENT_ESTABLISHED {
        story.push(expect_event(full.other.events.h(), SOON).number());
    }
    assert!(
        story.last().is_some_and(|last| *last > DAT_CONNECTION_EVENT_ESTABLISHED),
        "no event ended the connection: {story:x?}"
    );
    full.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    assert!(drain(full.events.h()).iter().all(|event| event.connection().ep_handle != full.ep.h()));
    ctx.step("again, with space");
    ok(dat_ep_reset(full.ep.h()));
    ok(dat_ep_reset(full.other.ep.h()));
    drain(ia.errors());
    connects(client, server);
    expect_conn(full.events.h(), full.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    full.other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

fn lost(ctx: &Ctx, is_active: bool) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let full = full(&ia);
    let connects = |client: &Ep, server: &Ep| {
        ok(Call::to(&ia, ctx.qual(0)).make(client.h()));
        ConnectionRequest::arrives(&requests).accept(server);
    };
    ends_connection(ctx, &ia, &full, connects, is_active);
}

fn lost_active(ctx: &Ctx) {
    lost(ctx, true);
}

fn lost_passive(ctx: &Ctx) {
    lost(ctx, false);
}

fn connection_that_ended_before_the_first_dequeue_reports_its_end(ctx: &Ctx) {
    let (client, server) = {
        let scene = Scene::new(ctx, Active);
        let Scene { own, request, .. } = scene;
        let server = Conn::on(&own.ia);
        request.expect("a connection request has arrived").accept(&server.ep);
        (own, server)
    };
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    client.disconnect();
    while server.ep.state() != DAT_EP_STATE_DISCONNECTED {
        std::thread::yield_now();
    }
    // ESTABLISHED is queued before the disconnect event if the connection was established before it ended.
    let first = expect_event(server.events.h(), SOON);
    if first.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
        server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(server.events.h());
}
