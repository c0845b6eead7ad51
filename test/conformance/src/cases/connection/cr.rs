//! `dat_cr_query`, `dat_cr_accept` and `dat_cr_reject`. A refused accept leaves the request usable. After an accept or
//! a rejection the CR is invalid. Requests whose requester has left are in `cr_left`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, silent_listener};
use crate::kit::*;

use super::asked::{PendingRequest, accepted, asked, data_of, pattern};
use super::call::Call;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 7.2": cr_query_without_out_pointer_returns_invalid_arg3,
        "spec/endpoints 7.2": cr_query_writes_all_fields_with_any_mask,
        "spec/endpoints 14.22": cr_query_returns_the_requesters_address,
        "spec/endpoints 13.3": cr_accept_may_pass_the_private_data_pointer_of_the_request,
        "spec/endpoints 7.2": cr_is_invalid_after_the_accept,
        "spec/endpoints 7.2": cr_is_invalid_after_the_rejection,
        "spec/endpoints 8.1": cr_reject_is_reported_as_peer_rejected => pair(client_is_rejected, server_rejects),
        "spec/endpoints 4.3": cr_reject_flushes_the_requesters_receives,
        "spec/endpoints 13.13": cr_reject_permits_reset_and_another_connect,
        "spec/endpoints 7.3": cr_accept_failures_leave_the_request_usable,
        "spec/endpoints 7.3": cr_accept_checks_arguments_in_order,
        "spec/endpoints 14.10": cr_accept_with_too_much_data_leaves_the_request_usable,
        "spec/endpoints 7.3": cr_accept_into_an_ep_without_pz_keeps_the_request,
        "spec/endpoints 7.3": cr_accept_into_an_ep_without_connect_evd_keeps_the_request,
        "spec/consumers 10": cr_accept_succeeds_after_the_disconnected_ep_is_reset,
        "spec/endpoints 13.36": cr_accept_of_crossed_connects_succeeds_after_rejection_and_reset => pair(client_wins, server_loses),
        "spec/consumers 11": cr_requests_can_be_accepted_or_rejected_in_any_order,
    ]
}

fn cr_query_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    bad_arg(dat_cr_query(asked.request.h(), DAT_CR_FIELD_ALL, null_mut()), 3);
}

fn cr_query_writes_all_fields_with_any_mask(ctx: &Ctx) {
    let asked = asked(ctx, &pattern(20, 1));
    for mask in [0, DAT_CR_FIELD_ALL, DAT_CR_FIELD_PRIVATE_DATA, 0x4000_0000] {
        let param: DAT_CR_PARAM = filled(|out| dat_cr_query(asked.request.h(), mask, out));
        expect_data(&bytes_at(param.private_data, param.private_data_size as usize), &pattern(20, 1));
        assert!(!param.remote_ia_address_ptr.is_null() && param.local_ep_handle.is_null());
    }
}

fn cr_query_returns_the_requesters_address(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    let theirs = address_at(asked.request.param().remote_ia_address_ptr);
    let own = address_at(asked.ia.attr().ia_address_ptr);
    assert_eq!(
        (&theirs[..2], &theirs[4..8]),
        (&own[..2], &own[4..8]),
        "the CR's remote address has another family or host than the IA"
    );
}

/// The acceptor edits the request's private data in place and passes the same pointer to the accept.
fn cr_accept_may_pass_the_private_data_pointer_of_the_request(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } =
        asked(ctx, &pattern(32, 5));
    let data = request.param().private_data;
    write_at(data, &pattern(32, 77));
    ok(dat_cr_accept(request.leak(), server.ep.h(), 32, data));
    let event = expect_conn(client.events.h(), client.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_data(&event.private_data(), &pattern(32, 77));
    server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    // The memory of the request's private data remains valid as long as the connection.
    assert_eq!(bytes_at(data, 32), pattern(32, 77));
}

#[track_caller]
pub(super) fn is_dead(cr: DAT_CR_HANDLE, ep: DAT_EP_HANDLE) {
    bad_handle(untouched(|out| dat_cr_query(cr, DAT_CR_FIELD_ALL, out)), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_accept(cr, ep, 0, null_mut()), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_reject(cr), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_handoff(cr, 1), DAT_INVALID_HANDLE_CR);
}

fn cr_is_invalid_after_the_accept(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let (cr, spare) = (request.h(), Conn::on(&ia));
    accepted(request, &client, &server);
    is_dead(cr, spare.ep.h());
    spare.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn cr_is_invalid_after_the_rejection(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let cr = request.h();
    request.reject();
    is_dead(cr, server.ep.h());
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn client_is_rejected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_PEER_REJECTED);
    assert_eq!(event.connection().private_data_size, 0);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
    ctx.meet();
}

fn server_rejects(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.send_address(&ia);
    ConnectionRequest::arrives(&requests).reject();
    ctx.meet();
}

fn cr_reject_flushes_the_requesters_receives(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    (1..=3).for_each(|id| post_empty_recv(&asked.client, id));
    asked.request.reject();
    asked.client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    expect_flushed(&asked.client.recv, 1..=3);
}

/// Like dapltest's client: reset, drain until empty, post again, connect again.
fn cr_reject_permits_reset_and_another_connect(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    for _ in 0..8 {
        (1..=2).for_each(|id| post_empty_recv(&client, id));
        client.connect(&ia.address(), ctx.qual(0));
        ConnectionRequest::arrives(&requests).reject();
        client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
        ok(dat_ep_reset(client.ep.h()));
        assert_eq!(drain(client.recv.h()).len(), 2, "the receives were not flushed completely");
    }
    client.connect(&ia.address(), ctx.qual(0));
    accepted(ConnectionRequest::arrives(&requests), &client, &server);
}

fn cr_accept_failures_leave_the_request_usable(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &pattern(10, 2));
    let (cr, ep, mut byte) = (request.h(), server.ep.h(), [0_u8; 4096]);
    let data = byte.as_mut_ptr().cast();
    bad_handle(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_handle(dat_cr_accept(cr, ia.pz().h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_handle(dat_cr_accept(cr, cr, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_arg(dat_cr_accept(cr, ep, 4, null_mut()), 4);
    bad_arg(dat_cr_accept(cr, ep, -1, data), 3);
    bad_arg(dat_cr_accept(cr, ep, DAT_COUNT::MAX, data), 3);
    let code = dat_cr_accept(cr, client.ep.h(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
    server.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    client.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    expect_nothing(server.events.h());
    expect_data(&data_of(&request), &pattern(10, 2));
    accepted(request, &client, &server);
}

fn cr_accept_checks_arguments_in_order(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    let (cr, client) = (asked.request.h(), asked.client.ep.h());
    bad_handle(dat_cr_accept(cr, DAT_HANDLE_NULL, -1, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_arg(dat_cr_accept(cr, client, DAT_COUNT::MAX, null_mut()), 4);
    // The size of the private data is checked before the state of the EP, which is connecting.
    let mut byte = [0_u8; 16];
    bad_arg(dat_cr_accept(cr, client, DAT_COUNT::MAX, byte.as_mut_ptr().cast()), 3);
}

/// Maximum private data of an accept in bytes, over each provider except `cm=socket2` and `cm=none` of verbs
/// (spec/endpoints 9.1).
pub(super) const ACCEPT_LIMIT: usize = 196;

fn cr_accept_with_too_much_data_leaves_the_request_usable(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let mut data = pattern(4096, 1);
    let size = ACCEPT_LIMIT as DAT_COUNT + 1;
    bad_arg(dat_cr_accept(request.h(), server.ep.h(), size, data.as_mut_ptr().cast()), 3);
    expect_nothing(client.events.h());
    accepted(request, &client, &server);
}

fn cr_accept_into_an_ep_without_pz_keeps_the_request(ctx: &Ctx) {
    let parts = crate::cases::ep::parts::Parts::new(ctx);
    let bare = crate::cases::ep::parts::without_pz(&parts);
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    bad_handle(dat_cr_accept(request.h(), bare.h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bare.expect_state(DAT_EP_STATE_UNCONNECTED);
    accepted(request, &client, &server);
}

fn cr_accept_into_an_ep_without_connect_evd_keeps_the_request(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let (pz, recv, send) = (server.pz.h(), server.recv.h(), server.request.h());
    let without_connect_evd =
        Ep::own(filled(|out| dat_ep_create(ia.h(), pz, recv, send, DAT_HANDLE_NULL, null_mut(), out)));
    bad_handle(dat_cr_accept(request.h(), without_connect_evd.h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    without_connect_evd.expect_state(DAT_EP_STATE_UNCONNECTED);
    accepted(request, &client, &server);
}

fn cr_accept_succeeds_after_the_disconnected_ep_is_reset(ctx: &Ctx) {
    let scene = Scene::new(ctx, Disconnected);
    let ia = &scene.own.ia;
    let (requests, _psp) = silent_listener(ctx, ia, 1);
    let client = Conn::on(ia);
    client.connect(&ia.address(), ctx.qual(1));
    let request = ConnectionRequest::arrives(&requests);
    let code = dat_cr_accept(request.h(), scene.ep(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_DISCONNECTED);
    ok(dat_ep_reset(scene.ep()));
    accepted(request, &client, &scene.own);
}

/// Both roles connect, and both receive a request. This role rejects the partner's request.
fn client_wins(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    conn.connect(&ctx.receive_address(), ctx.qual(1));
    let request = ConnectionRequest::arrives(&requests);
    ctx.meet();
    ctx.meet(); // the partner has tried to accept
    request.reject();
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_loses(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 1);
    ctx.send_address(&conn.ia);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    let request = ConnectionRequest::arrives(&requests);
    ctx.meet();
    let code = dat_cr_accept(request.h(), conn.ep.h(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    ok(dat_ep_reset(conn.ep.h()));
    request.accept(&conn.ep);
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn cr_requests_can_be_accepted_or_rejected_in_any_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let client: Vec<Conn> = (0..6_u8)
        .map(|n| {
            let conn = Conn::on(&ia);
            ok(Call::to(&ia, ctx.qual(0)).carrying(&[n]).make(conn.ep.h()));
            conn
        })
        .collect();
    let mut came: Vec<ConnectionRequest> = (0..6).map(|_| ConnectionRequest::arrives(&requests)).collect();
    came.sort_by_key(|request| [3, 0, 5, 1, 4, 2][usize::from(data_of(request)[0])]);
    for request in came {
        let from = usize::from(data_of(&request)[0]);
        if from % 2 == 0 {
            let server = Conn::on(&ia);
            accepted(request, &client[from], &server);
        } else {
            request.reject();
            client[from].expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
        }
    }
}
