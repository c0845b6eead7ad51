//! Suppressed and unsignalled completions, empty messages, and the first field of the event data (spec/consumers 18,
//! 19, 23).
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::transfer::ends::is_request_idle;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/consumers 18": consumers_18_fifty_thousand_suppressed_writes_queue_no_event => pair(client_suppresses, server_sinks_writes).limit(60),
        "spec/consumers 18": consumers_18_suppressed_sends_between_signalled_ones_queue_no_event => pair(client_suppresses_sends, server_receives_all).limit(60),
        "spec/consumers 18": consumers_18_suppressed_failure_is_reported => pair(client_fails_suppressed, server_sinks_writes),
        "spec/consumers 18": consumers_18_waits_return_unsignalled_events_before_a_signalled_one => pair(client_unsignalled, server_receives_three),
        "spec/consumers 19": consumers_19_empty_messages_keep_the_order => pair(client_interleaves_empty, server_takes_interleaved),
        "spec/consumers 23": consumers_23_ep_handle_is_the_first_field_of_the_event_data => pair(each_looks_first, each_looks_first),
    ]
}

/// Posts a request, retrying while the queue is full.
fn post_when_room(post: impl Fn() -> DAT_RETURN) {
    until(|| {
        let code = post();
        one_of(code, &[DAT_SUCCESS, error(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY)]);
        code == DAT_SUCCESS
    });
}

fn client_suppresses(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8);
    let target = ctx.receive_target();
    let write = |flags| dat_ep_post_rdma_write(conn.ep.h(), 1, &mut memory.segment(0, 8), cookie(1), &target, flags);
    for _ in 0..50_000 {
        post_when_room(|| write(DAT_COMPLETION_SUPPRESS_FLAG));
    }
    post_when_room(|| write(DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_sinks_writes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8);
    ctx.send_target(memory.target(0, 8));
    ctx.meet();
}

fn client_suppresses_sends(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..5000 {
        let flags = if id % 1000 == 0 { DAT_COMPLETION_DEFAULT_FLAG } else { DAT_COMPLETION_SUPPRESS_FLAG };
        post_when_room(|| dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), flags));
    }
    for id in [0, 1000, 2000, 3000, 4000] {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    // The last send must be acknowledged before the peer, which has received it, ends: otherwise the send would be
    // flushed.
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_receives_all(ctx: &Ctx) {
    let conn = ctx.connect();
    let post = |id| ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    (0..16).for_each(post);
    for id in 0..5000 {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
        post(id + 16);
    }
    ctx.meet();
}

fn client_fails_suppressed(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8);
    let target = ctx.receive_target();
    let beyond = DAT_RMR_TRIPLET { target_address: target.target_address + 4, ..target };
    let flags = DAT_COMPLETION_SUPPRESS_FLAG;
    ok(dat_ep_post_rdma_write(conn.ep.h(), 1, &mut memory.segment(0, 8), cookie(5), &beyond, flags));
    expect_dto(conn.request.h(), 5, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(6), flags));
    expect_dto(conn.request.h(), 6, DAT_DTO_ERR_FLUSHED, 0);
    ctx.meet();
}

fn client_unsignalled(ctx: &Ctx) {
    let attr = DAT_EP_ATTR { request_completion_flags: DAT_COMPLETION_UNSIGNALLED_FLAG, ..ep_attr() };
    let conn = ctx.connect_with(&Setup { attr, ..Setup::default() });
    let post = |id, flags| ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), flags));
    post(1, DAT_COMPLETION_UNSIGNALLED_FLAG);
    post(2, DAT_COMPLETION_UNSIGNALLED_FLAG);
    post(3, DAT_COMPLETION_DEFAULT_FLAG);
    // The last completion wakes the waiter, which then gets the oldest event.
    for id in 1..=3 {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn server_receives_three(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..3 {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn client_interleaves_empty(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    for id in 0..20 {
        if id % 2 == 0 {
            ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        } else {
            conn.post_send(id, memory.segment(0, 100));
        }
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, id % 2 * 100);
    }
    ctx.meet();
}

fn server_takes_interleaved(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    for id in 0..20 {
        conn.post_recv(id, memory.segment(0, 100));
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, id % 2 * 100);
    }
    ctx.meet();
}

/// Programs read the EP handle of completion events and of connection events at the same offset.
fn each_looks_first(ctx: &Ctx) {
    assert_eq!(std::mem::offset_of!(DAT_DTO_COMPLETION_EVENT_DATA, ep_handle), 0);
    assert_eq!(std::mem::offset_of!(DAT_CONNECTION_EVENT_DATA, ep_handle), 0);
    let ia = ctx.ia();
    let conn = Conn::unconnected(&ia, &Setup::default());
    let first = |event: Event| bytes_at(std::ptr::from_ref(&event.0.event_data).cast(), 8);
    let own = (conn.ep.h().expose_provenance() as u64).to_ne_bytes().to_vec();
    ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    if ctx.is_client() {
        conn.connect(&ctx.receive_address(), ctx.qual(0));
    } else {
        conn.listen(ctx.qual(0), || ctx.send_address(&ia));
    }
    assert_eq!(first(expect_event(conn.events.h(), SOON)), own, "a connection event names another EP");
    ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    assert_eq!(first(expect_event(conn.recv.h(), SOON)), own, "a receive completion names another EP");
    assert_eq!(first(expect_event(conn.request.h(), SOON)), own, "a send completion names another EP");
    ctx.meet();
}
