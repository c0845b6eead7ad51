//! Requests whose requester has disconnected, freed its EP or timed out: the CR can still be queried and rejected, and
//! an accept reports ACCEPT_COMPLETION_ERROR.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, silent_listener};
use crate::kit::*;

use super::asked::{PendingRequest, accepted, asked, data_of, pattern};
use super::call::Call;
use super::cr::is_dead;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 4.4": cr_query_succeeds_after_the_requester_disconnected,
        "spec/endpoints 4.4": cr_reject_succeeds_after_the_requester_disconnected,
        "spec/endpoints 4.4": cr_reject_after_the_requester_disconnected_leaves_rsp_ep_unconnected,
        "spec/endpoints 4.4": cr_accept_reports_completion_error_after_the_requester_disconnected,
        "spec/endpoints 4.4": cr_accept_for_an_rsp_after_the_requester_disconnected_reports_an_error,
        "spec/endpoints 4.4": cr_accept_reports_completion_error_after_the_requester_freed_its_ep,
        "spec/endpoints 4.4": cr_accept_reports_completion_error_after_the_requester_timed_out,
        "spec/endpoints 4.4": cr_accept_completion_error_permits_reset_and_another_connect,
    ]
}

/// A request whose requester has disconnected.
#[track_caller]
fn left(ctx: &Ctx) -> PendingRequest {
    let asked = asked(ctx, &pattern(12, 4));
    asked.client.disconnect();
    asked
}

fn cr_query_succeeds_after_the_requester_disconnected(ctx: &Ctx) {
    expect_data(&data_of(&left(ctx).request), &pattern(12, 4));
}

fn cr_reject_succeeds_after_the_requester_disconnected(ctx: &Ctx) {
    let left = left(ctx);
    let cr = left.request.h();
    left.request.reject();
    is_dead(cr, left.server.ep.h());
    expect_nothing(left.client.events.h());
}

fn cr_reject_after_the_requester_disconnected_leaves_rsp_ep_unconnected(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.other().disconnect();
    scene.is_still(Passive);
    scene.request.take().expect("the request is pending").reject();
    scene.is_still(Unconnected);
}

fn cr_accept_reports_completion_error_after_the_requester_disconnected(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = left(ctx);
    (1..=2).for_each(|id| post_empty_recv(&server, id));
    request.accept(&server.ep);
    server.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    server.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&server.recv, 1..=2);
    expect_nothing(server.events.h());
    expect_nothing(client.events.h());
}

fn cr_accept_for_an_rsp_after_the_requester_disconnected_reports_an_error(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.other().disconnect();
    ok(dat_cr_accept(scene.request.take().expect("the request is pending").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    scene.own.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    scene.is_still(Disconnected);
}

fn cr_accept_reports_completion_error_after_the_requester_freed_its_ep(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    client.ep.free();
    request.accept(&server.ep);
    server.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    server.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn cr_accept_reports_completion_error_after_the_requester_timed_out(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    // The timeout leaves time to send the request again: over usnic the first datagram may reach another process that
    // shares the port, and is lost if that process exits.
    ok(Call { timeout: 1_000_000, ..Call::to(&ia, ctx.qual(0)) }.make(client.ep.h()));
    let request = ConnectionRequest::arrives(&requests);
    client.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    request.accept(&server.ep);
    server.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    expect_nothing(client.events.h());
    client.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn cr_accept_completion_error_permits_reset_and_another_connect(ctx: &Ctx) {
    let PendingRequest { ia, requests, psp: _psp, server, client, request } = left(ctx);
    request.accept(&server.ep);
    server.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    ok(dat_ep_reset(server.ep.h()));
    ok(dat_ep_reset(client.ep.h()));
    client.connect(&ia.address(), ctx.qual(0));
    accepted(ConnectionRequest::arrives(&requests), &client, &server);
}
