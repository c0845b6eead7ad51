//! Reserved service points: `dat_rsp_create`, `dat_rsp_query`, `dat_rsp_free`, the single request, objects that outlive
//! the RSP, and a full EVD.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::points::{BARE_IN_USE, carries, cr_evd, expect_no_listener, requester};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 6.5": rsp_create_without_an_ep_returns_invalid_handle,
        "spec/endpoints 6.5": rsp_create_without_an_evd_returns_invalid_handle,
        "spec/endpoints 6.5": rsp_create_reports_a_missing_out_pointer_before_a_wrong_state,
        "spec/endpoints 6.5": rsp_create_reports_a_wrong_state_before_a_missing_cr_flag,
        "spec/endpoints 6.5": rsp_create_refuses_an_evd_without_the_cr_flag,
        "spec/endpoints 6.5": rsp_create_with_qualifier_zero_returns_invalid_arg2,
        "spec/endpoints 14.14": rsp_create_at_the_qualifier_of_an_rsp_leaves_the_ep_unconnected,
        "spec/endpoints 14.14": rsp_create_at_the_qualifier_of_a_psp_leaves_the_ep_unconnected,
        "spec/endpoints 6.6": rsp_query_returns_all_fields_for_any_mask,
        "spec/endpoints 6.6": rsp_query_without_out_pointer_returns_invalid_arg3,
        "spec/endpoints 6.6": rsp_request_names_the_rsp_and_its_ep,
        "spec/endpoints 6.6": rsp_accepts_one_request_only,
        "spec/endpoints 6.6": rsp_accepts_no_request_after_a_rejection,
        "spec/endpoints 6.6": rsp_create_reuses_the_ep_after_a_rejection,
        "spec/endpoints 6.6": rsp_free_makes_the_ep_unconnected,
        "spec/endpoints 6.6": rsp_free_twice_returns_invalid_handle,
        "spec/endpoints 6.6": rsp_free_with_a_request_keeps_it_acceptable,
        "spec/endpoints 6.6": rsp_free_with_a_request_keeps_it_rejectable,
        "spec/endpoints 13.8": rsp_free_keeps_the_established_connection,
        "spec/endpoints 6.5": rsp_ep_without_pz_can_be_given_one_after_a_rejection,
        "spec/endpoints 14.15": rsp_with_a_full_evd_keeps_its_ep_reserved_for_a_later_request => local(full_evd_rearms).limit(40),
        "spec/endpoints 13.16": rsp_free_then_ep_free_succeeds,
        "spec/endpoints 3.2": psp_and_rsp_keep_their_evds_in_use,
    ]
}

fn rsp_create(ia: &Ia, qual: DAT_CONN_QUAL, ep: DAT_EP_HANDLE, evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    untouched(|rsp: *mut DAT_RSP_HANDLE| dat_rsp_create(ia.h(), qual, ep, evd, rsp))
}

fn rsp_create_without_an_ep_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for ep in [DAT_HANDLE_NULL, evd.h(), ia.h()] {
        bad_handle(rsp_create(&ia, ctx.qual(0), ep, evd.h()), DAT_INVALID_HANDLE_EP);
        bad_handle(dat_rsp_create(ia.h(), 0, ep, DAT_HANDLE_NULL, null_mut()), DAT_INVALID_HANDLE_EP);
    }
}

fn rsp_create_without_an_evd_returns_invalid_handle(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    for evd in [DAT_HANDLE_NULL, conn.pz.h()] {
        bad_handle(rsp_create(&conn.ia, ctx.qual(0), conn.ep.h(), evd), DAT_INVALID_HANDLE_EVD_CR);
    }
    let code = dat_rsp_create(conn.ia.h(), 0, conn.ep.h(), DAT_HANDLE_NULL, null_mut());
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_reports_a_missing_out_pointer_before_a_wrong_state(ctx: &Ctx) {
    let scene = Scene::new(ctx, Connected);
    let Conn { ia, ep, .. } = &scene.own;
    bad_arg(dat_rsp_create(ia.h(), ctx.qual(1), ep.h(), scene.requests.h(), null_mut()), 5);
}

fn rsp_create_reports_a_wrong_state_before_a_missing_cr_flag(ctx: &Ctx) {
    let scene = Scene::new(ctx, Connected);
    let Conn { ia, ep, recv, .. } = &scene.own;
    let code = rsp_create(ia, ctx.qual(1), ep.h(), recv.h());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
}

fn rsp_create_refuses_an_evd_without_the_cr_flag(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let code = rsp_create(&conn.ia, ctx.qual(0), conn.ep.h(), conn.recv.h());
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_with_qualifier_zero_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, conn) = (cr_evd(&ia), Conn::on(&ia));
    bad_arg(rsp_create(&ia, 0, conn.ep.h(), evd.h()), 2);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_at_the_qualifier_of_an_rsp_leaves_the_ep_unconnected(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let second = Conn::on(&scene.own.ia);
    expect(rsp_create(&scene.own.ia, ctx.qual(0), second.ep.h(), scene.requests.h()), BARE_IN_USE);
    second.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    scene.is_still(Reserved);
}

fn rsp_create_at_the_qualifier_of_a_psp_leaves_the_ep_unconnected(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    expect(rsp_create(&ia, ctx.qual(0), conn.ep.h(), evd.h()), BARE_IN_USE);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_query_returns_all_fields_for_any_mask(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let rsp = scene.rsp.as_ref().expect("a reserved scene has an RSP").h();
    for mask in [DAT_RSP_FIELD_ALL, DAT_RSP_FIELD_IA_HANDLE, DAT_RSP_FIELD_EP_HANDLE] {
        let param: DAT_RSP_PARAM = filled(|out| dat_rsp_query(rsp, mask, out));
        assert_eq!((param.ia_handle, param.evd_handle), (scene.own.ia.h(), scene.requests.h()));
        assert_eq!((param.conn_qual, param.ep_handle), (ctx.qual(0), scene.ep()));
    }
}

fn rsp_query_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    bad_arg(
        dat_rsp_query(scene.rsp.as_ref().expect("a reserved scene has an RSP").h(), DAT_RSP_FIELD_ALL, null_mut()),
        3,
    );
}

fn rsp_request_names_the_rsp_and_its_ep(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let _client = requester(&scene.own.ia, ctx.qual(0));
    let event = expect_event(scene.requests.h(), SOON);
    let request = ConnectionRequest::own(event.arrival().cr_handle);
    assert_eq!(event.service_point(), scene.rsp.as_ref().expect("a reserved scene has an RSP").h());
    assert_eq!(event.arrival().conn_qual, ctx.qual(0));
    assert_eq!(request.param().local_ep_handle, scene.ep());
    scene.is_still(Passive);
}

fn rsp_accepts_one_request_only(ctx: &Ctx) {
    let scene = Scene::new(ctx, Passive);
    expect_no_listener(&scene.own.ia, ctx.qual(0));
    expect_nothing(scene.requests.h());
    scene.is_still(Passive);
}

fn rsp_accepts_no_request_after_a_rejection(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.request.take().expect("the request is pending").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    scene.is_still(Unconnected);
    expect_no_listener(&scene.own.ia, ctx.qual(0));
    scene.is_still(Unconnected);
    // The RSP still exists: its query succeeds.
    let rsp = scene.rsp.as_ref().expect("a reserved scene has an RSP").h();
    filled(|out: *mut DAT_RSP_PARAM| dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, out));
}

fn rsp_create_reuses_the_ep_after_a_rejection(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.request.take().expect("the request is pending").reject();
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.rsp = Some(scene.own.ia.rsp(ctx.qual(0), &scene.own.ep, &scene.requests));
    scene.is_still(Reserved);
    let client = requester(&scene.own.ia, ctx.qual(0));
    ok(dat_cr_accept(ConnectionRequest::arrives(&scene.requests).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&client, &scene.own);
}

fn rsp_free_makes_the_ep_unconnected(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.is_still(Unconnected);
    expect_no_listener(&scene.own.ia, ctx.qual(0));
    // After the free, the EP behaves like a new EP.
    let client = Conn::on(&scene.own.ia);
    scene.own.listen(ctx.qual(0), || client.connect(&client.ia.address(), ctx.qual(0)));
    established(&client, &scene.own);
}

fn rsp_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    let dead = scene.rsp.take().expect("a reserved scene has an RSP").free();
    bad_handle(dat_rsp_free(dead), DAT_INVALID_HANDLE_RSP);
    let code = untouched(|out| dat_rsp_query(dead, DAT_RSP_FIELD_ALL, out));
    bad_handle(code, DAT_INVALID_HANDLE_RSP);
}

fn rsp_free_with_a_request_keeps_it_acceptable(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.is_still(Passive);
    expect_no_listener(&scene.own.ia, ctx.qual(0));
    ok(dat_cr_accept(scene.request.take().expect("the request is pending").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(scene.other(), &scene.own);
}

fn rsp_free_with_a_request_keeps_it_rejectable(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.request.take().expect("the request is pending").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    scene.is_still(Unconnected);
}

fn rsp_free_keeps_the_established_connection(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    ok(dat_cr_accept(scene.request.take().expect("the request is pending").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(scene.other(), &scene.own);
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.is_still(Connected);
    carries(&scene.own, scene.other());
    carries(scene.other(), &scene.own);
}

/// A missing PZ is reported by the accept, which leaves the request pending.
fn rsp_ep_without_pz_can_be_given_one_after_a_rejection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, parts) = (cr_evd(&ia), crate::cases::ep::parts::Parts::new(ctx));
    let ep = crate::cases::ep::parts::without_pz(&parts);
    let rsp = ia.rsp(ctx.qual(0), &ep, &evd);
    let client = requester(&ia, ctx.qual(0));
    let request = ConnectionRequest::arrives(&evd);
    bad_handle(dat_cr_accept(request.h(), DAT_HANDLE_NULL, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    ep.expect_state(DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    // An EP in PASSIVE_CONNECTION_PENDING cannot get a PZ (5.3). So the request is rejected, and the EP accepts the
    // next request.
    request.reject();
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    rsp.free();
    let param = DAT_EP_PARAM { pz_handle: parts.pz.h(), ..ep.param() };
    ok(dat_ep_modify(ep.h(), DAT_EP_FIELD_PZ_HANDLE, &param));
    let rsp = ia.rsp(ctx.qual(0), &ep, &evd);
    let client = requester(&ia, ctx.qual(0));
    ok(dat_cr_accept(ConnectionRequest::arrives(&evd).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_conn(parts.connect.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    rsp.free();
}

fn full_evd_rearms(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::on(&ia);
    let (evd, _filler) = full_evd(&ia, &conn.pz, DAT_EVD_CR_FLAG);
    let _rsp = ia.rsp(ctx.qual(0), &conn.ep, &evd);
    expect_no_listener(&ia, ctx.qual(0));
    conn.ep.expect_state(DAT_EP_STATE_RESERVED);
    drain(evd.h());
    let client = requester(&ia, ctx.qual(0));
    ok(dat_cr_accept(ConnectionRequest::arrives(&evd).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&client, &conn);
}

fn rsp_free_then_ep_free_succeeds(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    refused(dat_ep_free(scene.ep()), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_RESERVED);
    scene.rsp.take().expect("a reserved scene has an RSP").free();
    scene.own.ep.free();
}

fn psp_and_rsp_keep_their_evds_in_use(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    refused(dat_evd_free(scene.requests.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    let (evd, _psp) = silent_listener(ctx, &scene.own.ia, 1);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
}
