//! Reset, free and status of EPs, and repeated use of one EP.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::connection::disconnect::{cookies, disconnect, idle, is_over, unconnected};
use crate::kit::*;

use super::scene::EpState::*;
use super::scene::{ConnectionRequest, in_state, silent_listener};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/endpoints 5.7": ep_reset_while_unconnected_keeps_receives,
        "spec/endpoints 5.7": ep_reset_has_flushed_all_posts_when_it_returns,
        "spec/endpoints 14.19": ep_reset_returns_the_queue_slots_of_flushed_receives,
        "spec/endpoints 5.7": ep_reset_keeps_the_attributes_pz_and_evds,
        "spec/endpoints 5.7": ep_reset_without_a_pz_keeps_the_ep_not_ready,
        "spec/endpoints 13.11": ep_reset_permits_a_hundred_accepts_and_disconnects_on_one_ep => pair(cycle_client, cycle_server).limit(60),
        "spec/endpoints 5.7": ep_reset_permits_a_thousand_connects_on_one_ep => pair(thousand_client, thousand_server).limit(60),
        "spec/endpoints 5.8": ep_free_with_posted_receives_succeeds,
        "spec/endpoints 13.9": ep_free_succeeds_after_the_memory_of_posted_receives_is_deregistered,
        "spec/endpoints 13.10": ep_free_leaves_all_or_none_of_the_flushed_completions_queued,
        "spec/endpoints 5.8": ep_free_leaves_queued_events_that_name_the_freed_ep,
        "spec/endpoints 5.8": ep_free_while_connecting_queues_one_disconnected_event,
        "spec/endpoints 13.31": ep_free_while_disconnect_pending_succeeds,
        "spec/endpoints 14.18": ep_free_while_connected_flushes_posts_of_the_peer,
        "spec/endpoints 5.9": ep_get_status_accepts_null_for_any_out_pointer,
        "spec/endpoints 14.3": ep_status_recv_idle_is_false_while_a_receive_is_posted,
        "spec/endpoints 14.3": ep_status_request_idle_is_false_while_a_send_waits_for_a_receive,
        "spec/endpoints 5.9": ep_status_is_idle_when_all_completions_are_queued,
    ];
    all.extend([Unconnected, Active, Connected, Disconnected].map(|at| {
        let name = format!("ep_status_in_state_{}_is_idle_without_work", at.word());
        in_state(at, move |_ctx, scene| assert_eq!(idle(&scene.own), (true, true)))
            .named(name)
            .proves("spec/endpoints 5.9")
    }));
    all
}

fn ep_reset_while_unconnected_keeps_receives(ctx: &Ctx) {
    let (client, server) = (unconnected(ctx), Conn::alone(ctx));
    ok(dat_ep_reset(client.ep.h()));
    expect_nothing(client.recv.h());
    server.listen(ctx.qual(0), || client.connect(&server.ia.address(), ctx.qual(0)));
    established(&client, &server);
    post_empty_send(&server, 7);
    expect_dto(client.recv.h(), 1, DAT_DTO_SUCCESS, 0);
}

fn ep_reset_has_flushed_all_posts_when_it_returns(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    (1..=4).for_each(|id| post_empty_recv(&server, id));
    (5..=8).for_each(|id| post_empty_send(&server, id));
    client.disconnect();
    is_over(&server);
    ok(dat_ep_reset(server.ep.h()));
    assert_eq!(cookies(&drain(server.recv.h())), [1, 2, 3, 4]);
    assert_eq!(cookies(&drain(server.request.h())), [5, 6, 7, 8]);
    assert_eq!(idle(&server), (true, true));
}

/// Eight rounds without dequeuing a receive completion must not use up the 16 slots of the receive queue.
fn ep_reset_returns_the_queue_slots_of_flushed_receives(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let depth = client.ep.param().ep_attr.max_recv_dtos as u64;
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    for _ in 0..8 {
        (1..=depth).for_each(|id| post_empty_recv(&client, id));
        client.connect(&ia.address(), ctx.qual(0));
        ConnectionRequest::arrives(&requests).accept(&server.ep);
        established(&client, &server);
        client.disconnect();
        is_over(&server);
        ok(dat_ep_reset(client.ep.h()));
        ok(dat_ep_reset(server.ep.h()));
    }
    let all = drain(client.recv.h());
    assert_eq!(all.len() as u64, 8 * depth, "the number of completions differs from that of posted receives");
}

fn ep_reset_keeps_the_attributes_pz_and_evds(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let before = client.ep.param();
    client.disconnect();
    is_over(&server);
    ok(dat_ep_reset(client.ep.h()));
    let after = client.ep.param();
    assert_eq!(super::parts::numbers(&after.ep_attr), super::parts::numbers(&before.ep_attr));
    assert_eq!(after.pz_handle, before.pz_handle);
    assert_eq!(after.recv_evd_handle, before.recv_evd_handle);
    assert_eq!(after.request_evd_handle, before.request_evd_handle);
    assert_eq!(after.connect_evd_handle, before.connect_evd_handle);
}

fn ep_reset_without_a_pz_keeps_the_ep_not_ready(ctx: &Ctx) {
    let parts = super::parts::Parts::new(ctx);
    let ep = super::parts::without_pz(&parts);
    ok(dat_ep_reset(ep.h()));
    let code = dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
}

fn cycle_client(ctx: &Ctx) {
    let address = ctx.receive_address();
    for round in 0..100 {
        let conn = Conn::alone(ctx);
        post_empty_recv(&conn, 1);
        conn.connect(&address, ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        post_empty_send(&conn, 2);
        expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
        ctx.step(format!("round {round}"));
        is_over(&conn);
    }
}

/// Repeats the calls of dapltest's server: accept, graceful disconnect, reset, query, receives, accept again.
fn cycle_server(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    (1..=2).for_each(|id| post_empty_recv(&conn, id));
    ctx.send_address(&conn.ia);
    for _ in 0..100 {
        ConnectionRequest::arrives(&requests).accept(&conn.ep);
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        post_empty_send(&conn, 3);
        expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 0);
        expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
        disconnect(&conn, DAT_CLOSE_GRACEFUL_FLAG);
        is_over(&conn);
        ok(dat_ep_reset(conn.ep.h()));
        assert_eq!(conn.ep.param().ep_state, DAT_EP_STATE_UNCONNECTED);
        assert_eq!(cookies(&drain(conn.recv.h())), [2]);
        (1..=2).for_each(|id| post_empty_recv(&conn, id));
    }
}

const CONNECTS: u32 = 1000;

fn thousand_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    for _ in 0..CONNECTS {
        conn.connect(&address, ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        conn.disconnect();
        ok(dat_ep_reset(conn.ep.h()));
    }
}

fn thousand_server(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    for _ in 0..CONNECTS {
        ConnectionRequest::arrives(&requests).accept(&conn.ep);
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        is_over(&conn);
        ok(dat_ep_reset(conn.ep.h()));
    }
}

fn ep_free_with_posted_receives_succeeds(ctx: &Ctx) {
    let conn = unconnected(ctx);
    conn.ep.free();
    conn.pz.free();
}

fn ep_free_succeeds_after_the_memory_of_posted_receives_is_deregistered(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let mut memory = conn.memory(64);
    conn.post_recv(1, memory.segment(0, 64));
    memory.deregister();
    drop(memory);
    conn.ep.free();
    conn.pz.free();
}

fn ep_free_leaves_all_or_none_of_the_flushed_completions_queued(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    (1..=3).for_each(|id| post_empty_recv(&server, id));
    client.disconnect();
    expect_flushed(&server.recv, [1]);
    is_over(&server);
    let Conn { ep, recv, .. } = server;
    ep.free();
    // The free leaves both remaining completions queued, or neither, and no event follows.
    assert!([vec![], vec![2, 3]].contains(&cookies(&drain(recv.h()))));
    expect_nothing(recv.h());
    recv.free();
}

fn ep_free_leaves_queued_events_that_name_the_freed_ep(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    server.disconnect();
    while client.ep.state() != DAT_EP_STATE_DISCONNECTED {
        std::thread::yield_now();
    }
    let Conn { ep, events, .. } = client;
    let dead = ep.free();
    expect_conn(events.h(), dead, DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_nothing(events.h());
    events.free();
}

fn ep_free_while_connecting_queues_one_disconnected_event(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    conn.connect(&conn.ia.address(), ctx.qual(0));
    let _request = ConnectionRequest::arrives(&requests);
    let dead = conn.ep.free();
    expect_conn(conn.events.h(), dead, DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_nothing(conn.events.h());
    conn.events.free();
}

fn ep_free_while_disconnect_pending_succeeds(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    post_empty_send(&client, 1);
    disconnect(&client, DAT_CLOSE_GRACEFUL_FLAG);
    client.ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    client.ep.free();
    expect_nothing(client.events.h());
    is_over(&server);
    client.events.free();
}

fn ep_free_while_connected_flushes_posts_of_the_peer(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    (1..=2).for_each(|id| post_empty_recv(&server, id));
    post_empty_send(&server, 3);
    client.ep.free();
    is_over(&server);
    expect_flushed(&server.recv, 1..=2);
    expect_flushed(&server.request, [3]);
}

fn ep_get_status_accepts_null_for_any_out_pointer(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    ok(dat_ep_get_status(conn.ep.h(), null_mut(), null_mut(), null_mut()));
    let state: DAT_EP_STATE = filled(|out| dat_ep_get_status(conn.ep.h(), out, null_mut(), null_mut()));
    assert_eq!(state, DAT_EP_STATE_UNCONNECTED);
    let mut request = 77;
    ok(dat_ep_get_status(conn.ep.h(), null_mut(), null_mut(), &mut request));
    assert_eq!(request, DAT_TRUE);
}

fn ep_status_recv_idle_is_false_while_a_receive_is_posted(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    assert_eq!(idle(&conn), (false, true));
}

fn ep_status_request_idle_is_false_while_a_send_waits_for_a_receive(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    post_empty_send(&client, 1);
    assert_eq!(idle(&client), (true, false));
}

/// The EP is idle after the completion, even if the event is still queued.
fn ep_status_is_idle_when_all_completions_are_queued(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    (1..=2).for_each(|id| post_empty_recv(&server, id));
    post_empty_send(&client, 3);
    expect_dto(client.request.h(), 3, DAT_DTO_SUCCESS, 0);
    assert_eq!(idle(&client), (true, true));
    assert_eq!(idle(&server), (false, true));
    disconnect(&server, DAT_CLOSE_ABRUPT_FLAG);
    assert_eq!(idle(&server), (true, true), "the EP is not idle, although all its work has completed");
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    expect_flushed(&server.recv, [2]);
}
