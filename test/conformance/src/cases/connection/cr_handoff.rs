//! `dat_cr_handoff` to a PSP, to an RSP and to the process of the requester, also of a request that was handed off
//! before. A refused handoff leaves the request usable.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, silent_listener};
use crate::kit::*;

use super::asked::{PendingRequest, accepted, asked, data_of, pattern};
use super::call::Call;
use super::cr::is_dead;
use super::disconnect::is_over;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 7.5": cr_handoff_to_another_psp_succeeds,
        "spec/endpoints 7.5": cr_handoff_to_an_rsp_succeeds,
        "spec/endpoints 7.5": cr_handoff_to_the_process_of_the_requester_succeeds => pair(client_receives_its_own_request, server_hands_the_request_back),
        "spec/endpoints 7.5": cr_handoff_without_a_listener_leaves_the_request_usable,
        "spec/endpoints 7.5": cr_handoff_to_qualifier_zero_leaves_the_request_usable,
        "spec/endpoints 7.5": cr_handoff_of_a_handle_that_is_no_cr_returns_invalid_handle,
        "spec/endpoints 7.5": cr_handoff_returns_the_rsp_ep_to_unconnected,
        "spec/endpoints 7.5": cr_handoff_twice_succeeds,
    ]
}

fn cr_handoff_to_another_psp_succeeds(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &pattern(33, 6));
    let (others, other) = silent_listener(ctx, &ia, 1);
    let cr = request.leak();
    ok(dat_cr_handoff(cr, ctx.qual(1)));
    is_dead(cr, server.ep.h());
    let event = expect_event(others.h(), SOON);
    assert_eq!((event.service_point(), event.arrival().conn_qual), (other.h(), ctx.qual(1)));
    let request = ConnectionRequest::own(event.arrival().cr_handle);
    expect_data(&data_of(&request), &pattern(33, 6));
    expect_nothing(client.events.h());
    accepted(request, &client, &server);
}

fn cr_handoff_to_an_rsp_succeeds(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let others = ia.evd(8, DAT_EVD_CR_FLAG);
    let _rsp = ia.rsp(ctx.qual(1), &server.ep, &others);
    ok(dat_cr_handoff(request.leak(), ctx.qual(1)));
    let request = ConnectionRequest::arrives(&others);
    assert_eq!(request.param().local_ep_handle, server.ep.h());
    ok(dat_cr_accept(request.leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&client, &server);
}

/// The requester's own process listens at the handoff's destination, so the process receives its own request.
fn client_receives_its_own_request(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 1);
    ok(Call { address: Some(ctx.receive_address()), ..Call::to(&ia, ctx.qual(0)).carrying(b"home") }
        .make(client.ep.h()));
    let request = ConnectionRequest::arrives(&requests);
    expect_data(&data_of(&request), b"home");
    accepted(request, &client, &server);
    ctx.meet();
    client.disconnect();
    is_over(&server);
}

fn server_hands_the_request_back(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.send_address(&ia);
    ok(dat_cr_handoff(ConnectionRequest::arrives(&requests).leak(), ctx.qual(1)));
    ctx.meet();
}

fn cr_handoff_without_a_listener_leaves_the_request_usable(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } =
        asked(ctx, &pattern(7, 7));
    bad_arg(dat_cr_handoff(request.h(), ctx.qual(9)), 2);
    expect_data(&data_of(&request), &pattern(7, 7));
    expect_nothing(client.events.h());
    accepted(request, &client, &server);
}

fn cr_handoff_to_qualifier_zero_leaves_the_request_usable(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    bad_arg(dat_cr_handoff(request.h(), 0), 2);
    accepted(request, &client, &server);
}

fn cr_handoff_of_a_handle_that_is_no_cr_returns_invalid_handle(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    for handle in [DAT_HANDLE_NULL, asked.psp.h(), asked.client.ep.h()] {
        bad_handle(dat_cr_handoff(handle, ctx.qual(0)), DAT_INVALID_HANDLE_CR);
    }
}

fn cr_handoff_returns_the_rsp_ep_to_unconnected(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    let (requests, _psp) = silent_listener(ctx, &scene.own.ia, 1);
    ok(dat_cr_handoff(scene.request.take().expect("the request is pending").leak(), ctx.qual(1)));
    scene.is_still(Unconnected);
    let request = ConnectionRequest::arrives(&requests);
    // The handed-off request can be accepted immediately.
    accepted(request, scene.other(), &scene.own);
}

fn cr_handoff_twice_succeeds(ctx: &Ctx) {
    let PendingRequest { ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &pattern(3, 3));
    let (first, _one) = silent_listener(ctx, &ia, 1);
    let (second, _two) = silent_listener(ctx, &ia, 2);
    ok(dat_cr_handoff(request.leak(), ctx.qual(1)));
    ok(dat_cr_handoff(ConnectionRequest::arrives(&first).leak(), ctx.qual(2)));
    let request = ConnectionRequest::arrives(&second);
    expect_data(&data_of(&request), &pattern(3, 3));
    accepted(request, &client, &server);
}
