//! Peers that are killed, exit or close their adapter: the events of the surviving side, its answers to requests of an
//! ended peer, and the qualifiers of an ended listener.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::cases::ep::scene::{ConnectionRequest, silent_listener};
use crate::kit::*;

use super::disconnect::{is_accepted_too_late, is_over};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 4.4": cr_accept_reports_completion_error_after_the_requester_was_killed => pair(client_asks_and_dies, server_accepts_the_dead).only_two(),
        "spec/endpoints 4.4": cr_reject_succeeds_after_the_requester_was_killed => pair(client_asks_and_dies, server_rejects_the_dead).only_two(),
        "spec/endpoints 8.1": killed_listener_ends_pending_connects_with_peer_rejected => pair(client_left_alone, server_dies_undecided).only_two(),
        "spec/endpoints 8.1": killed_passive_peer_is_reported_as_disconnected => pair(each_survives, each_dies).only_two(),
        "spec/endpoints 8.1": killed_active_peer_is_reported_as_disconnected => pair(each_dies, each_survives).only_two(),
        "spec/endpoints 4.2": killed_peer_ends_a_graceful_disconnect => pair(client_drains, each_dies).only_two(),
        "spec/endpoints 6.1": killed_listener_releases_its_qualifier => pair(client_takes_over, server_dies_listening).only_two(),
        "spec/consumers 14": exit_without_close_is_reported_as_disconnected => pair(each_survives, server_exits).only_two(),
        "spec/endpoints 13.30": ia_close_of_the_peer_is_reported_as_disconnected => pair(each_survives, server_closes),
        "spec/endpoints 13.30": ia_close_of_the_listener_rejects_pending_requests => pair(client_is_refused, server_closes_undecided),
    ]
}

fn client_asks_and_dies(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    ctx.meet(); // the request has arrived
    ctx.die();
}

/// Waits until the requester's process has ended. Returns its pending request.
fn request_of_ended_process(ctx: &Ctx, conn: &Conn) -> ConnectionRequest {
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    let request = ConnectionRequest::arrives(&requests);
    ctx.meet();
    is_gone(ctx);
    expect_nothing(conn.events.h());
    request.param();
    request
}

/// Waits until the other process has ended: its end of the channel is closed.
fn is_gone(ctx: &Ctx) {
    use std::io::{Error, ErrorKind, Read};
    let mut channel = ctx.channel.as_ref().expect("a pair has a channel between its roles");
    let _ = channel.set_read_timeout(Some(ctx.left().max(Duration::from_millis(1))));
    let end = channel.read(&mut [0; 1]);
    let is_timeout = |error: &Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    let has_ended = end.as_ref().map_or_else(|error| !is_timeout(error), |count| *count == 0);
    assert!(has_ended, "the other role still runs");
}

fn server_accepts_the_dead(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let request = request_of_ended_process(ctx, &conn);
    is_accepted_too_late(&conn, request);
}

fn server_rejects_the_dead(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    request_of_ended_process(ctx, &conn).reject();
}

fn client_left_alone(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&conn.recv, [1]);
    expect_nothing(conn.events.h());
}

fn server_dies_undecided(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.send_address(&ia);
    let _request = ConnectionRequest::arrives(&requests);
    ctx.die();
}

fn each_dies(ctx: &Ctx) {
    let _conn = ctx.connect();
    ctx.meet();
    ctx.die();
}

/// Checks that posted work is flushed and that one disconnect event arrives.
fn each_survives(ctx: &Ctx) {
    let conn = ctx.connect();
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    (4..=5).for_each(|id| post_empty_send(&conn, id));
    ctx.meet();
    is_over(&conn);
    expect_flushed(&conn.recv, 1..=3);
    expect_flushed(&conn.request, 4..=5);
    expect_nothing(conn.events.h());
    ok(dat_ep_reset(conn.ep.h()));
}

fn client_drains(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_send(&conn, 1);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    ctx.meet();
    is_over(&conn);
    // The request failed or was flushed; a success would be wrong.
    assert_ne!(expect_event(conn.request.h(), SOON).dto().status, DAT_DTO_SUCCESS);
}

fn server_dies_listening(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.meet();
    ctx.die();
}

fn client_takes_over(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_CR_FLAG);
    ctx.meet();
    is_gone(ctx);
    let mut psp = DAT_HANDLE_NULL;
    while dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG, &mut psp) != DAT_SUCCESS {
        assert!(!ctx.left().is_zero(), "the qualifier of the killed process is still in use");
        std::thread::yield_now();
    }
    drop(Psp::own(psp));
}

fn server_exits(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    std::mem::forget(conn);
}

fn server_closes(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    ok(dat_ia_close(conn.ia.h(), DAT_CLOSE_ABRUPT_FLAG));
    // The close has invalidated every handle, so nothing may be freed.
    std::mem::forget(conn);
}

fn client_is_refused(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    let number = expect_event(conn.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_PEER_REJECTED, DAT_CONNECTION_EVENT_NON_PEER_REJECTED].contains(&number));
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn server_closes_undecided(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    ctx.send_address(&ia);
    let request = ConnectionRequest::arrives(&requests);
    ok(dat_ia_close(ia.h(), DAT_CLOSE_ABRUPT_FLAG));
    // The close has invalidated these handles, so none of them may be freed.
    request.leak();
    psp.leak();
    requests.leak();
    std::mem::forget(ia);
}
