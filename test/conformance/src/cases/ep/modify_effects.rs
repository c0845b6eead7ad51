//! Effects of `dat_ep_modify` on an EP: on posted receives and later posts, on the EVDs of later events, on the next
//! connection. Also on the EP that a service point creates for a request.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::modify::{Spare, modify};
use super::parts::{Parts, without_pz};
use super::scene::EpState::*;
use super::scene::{ConnectionRequest, Scene, silent_listener};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 5.3": ep_modify_of_the_pz_flushes_receives,
        "spec/endpoints 5.3": ep_modify_of_the_recv_dtos_permits_more_receives,
        "spec/endpoints 5.3": ep_modify_of_the_recv_evd_flushes_receives_and_redirects_completions,
        "spec/endpoints 5.3": ep_modify_of_the_connect_evd_redirects_connection_events,
        "spec/endpoints 5.3": ep_modify_to_a_null_pz_makes_the_ep_refuse_receives,
        "spec/endpoints 14.4": ep_modify_that_sets_a_pz_permits_receives,
        "spec/endpoints 14.4": ep_modify_keeps_the_ep_able_to_connect_and_transfer,
        "spec/endpoints 5.3": ep_modify_releases_replaced_objects,
        "spec/endpoints 14.20": ep_modify_makes_a_tentative_ep_ready => local(makes_a_tentative_ep_ready).needs(Need::ProviderEp),
        "spec/endpoints 4.1": ep_modify_does_not_permit_a_tentative_ep_to_connect =>
            local(does_not_permit_tentative_ep_to_connect).needs(Need::ProviderEp),
        "spec/endpoints 5.3": ep_modify_of_max_rdma_read_out_to_zero_makes_posts_of_reads_fail,
        "spec/endpoints 5.3": ep_modify_of_recv_segments_limits_posted_receives,
    ]
}

fn ep_modify_of_the_pz_flushes_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let pz = conn.ia.pz();
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    modify(&conn.ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = pz.h());
    // The flushed completions are already queued when the call returns.
    let events = drain(conn.recv.h());
    let cookies: Vec<u64> = events.iter().map(|event| context_bits(event.dto().user_cookie)).collect();
    assert_eq!(cookies, [1, 2, 3]);
    assert!(events.iter().all(|event| event.dto().status == DAT_DTO_ERR_FLUSHED));
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(conn.events.h());
    post_empty_recv(&conn, 4);
    conn.ep.free();
}

fn ep_modify_of_the_recv_dtos_permits_more_receives(ctx: &Ctx) {
    let setup = Setup { attr: DAT_EP_ATTR { max_recv_dtos: 2, ..ep_attr() }, ..Setup::default() };
    let conn = Conn::unconnected(&ctx.ia(), &setup);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param| param.ep_attr.max_recv_dtos = 40);
    (1..=40).for_each(|id| post_empty_recv(&conn, id));
}

fn ep_modify_of_the_recv_evd_flushes_receives_and_redirects_completions(ctx: &Ctx) {
    let ia = ctx.ia();
    let other = ia.evd(8, DAT_EVD_DTO_FLAG);
    let conn = Conn::on(&ia);
    post_empty_recv(&conn, 1);
    modify(&conn.ep, DAT_EP_FIELD_RECV_EVD_HANDLE, |param| param.recv_evd_handle = other.h());
    // Receives posted before the change complete on the previous EVD.
    expect_flushed(&conn.recv, [1]);
    post_empty_recv(&conn, 2);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    expect_flushed(&other, [2]);
    expect_nothing(conn.recv.h());
    conn.ep.free();
}

fn ep_modify_of_the_connect_evd_redirects_connection_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let other = ia.evd(8, DAT_EVD_CONNECTION_FLAG);
    let conn = Conn::on(&ia);
    modify(&conn.ep, DAT_EP_FIELD_CONNECT_EVD_HANDLE, |param| param.connect_evd_handle = other.h());
    // No program listens on qualifier 9.
    conn.connect(&ia.address(), ctx.qual(9));
    expect_conn(other.h(), conn.ep.h(), DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    expect_nothing(conn.events.h());
    conn.ep.free();
}

fn ep_modify_to_a_null_pz_makes_the_ep_refuse_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    modify(&conn.ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = DAT_HANDLE_NULL);
    expect_flushed(&conn.recv, [1]);
    let code = dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
    // The EP no longer uses the old PZ, so the PZ can be freed.
    conn.pz.free();
}

fn ep_modify_that_sets_a_pz_permits_receives(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = without_pz(&parts);
    modify(&ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = parts.pz.h());
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
}

/// After changes of PZ, EVDs and depths, the EP behaves like any other.
fn ep_modify_keeps_the_ep_able_to_connect_and_transfer(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (pz, recv) = (ia.pz(), ia.evd(32, DAT_EVD_DTO_FLAG));
    let mask = DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
    modify(&client.ep, mask, |param| {
        (param.pz_handle, param.recv_evd_handle, param.ep_attr.max_recv_dtos) = (pz.h(), recv.h(), 32)
    });
    let (into, from) = (ia.memory(&pz, 100), server.memory(100));
    from.write_pattern(0, 100, 3);
    client.post_recv(1, into.segment(0, 100));
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    server.post_send(2, from.segment(0, 100));
    expect_dto(recv.h(), 1, DAT_DTO_SUCCESS, 100);
    into.expect_pattern(0, 100, 3);
    drop(into);
    client.ep.free();
}

fn ep_modify_releases_replaced_objects(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::on(&ia);
    let mask = DAT_EP_FIELD_PZ_HANDLE
        | DAT_EP_FIELD_RECV_EVD_HANDLE
        | DAT_EP_FIELD_REQUEST_EVD_HANDLE
        | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    let spare = Spare::new(&conn.ia);
    modify(&conn.ep, mask, |param| {
        param.pz_handle = spare.pz.h();
        (param.recv_evd_handle, param.request_evd_handle) = (spare.dto.h(), spare.dto.h());
        param.connect_evd_handle = spare.connection.h();
    });
    let Conn { ep, recv, request, events, pz, .. } = conn;
    recv.free();
    request.free();
    events.free();
    pz.free();
    refused(dat_pz_free(spare.pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    refused(dat_evd_free(spare.dto.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    refused(dat_evd_free(spare.connection.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    ep.free();
}

/// A PSP with the PROVIDER flag creates EPs without PZ and EVDs. Once both are set, the request can be accepted into
/// its EP.
fn makes_a_tentative_ep_ready(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    let made = with_pz_and_evds(&scene);
    ok(dat_ep_post_recv(made.h(), 0, null_mut(), cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
    let cr = scene.request.take().expect("the request is pending").leak();
    ok(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, null_mut()));
    expect_conn(scene.own.events.h(), made.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    scene.expect(Connected);
    let other = scene.other();
    other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    post_empty_send(other, 5);
    expect_dto(other.request.h(), 5, DAT_DTO_SUCCESS, 0);
    expect_dto(scene.own.recv.h(), 4, DAT_DTO_SUCCESS, 0);
}

/// The EP has all required objects, so only its state makes the call fail.
fn does_not_permit_tentative_ep_to_connect(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    let made = with_pz_and_evds(&scene);
    let (address, time) = (scene.own.ia.address(), DAT_TIMEOUT_INFINITE);
    let code = dat_ep_connect(made.h(), address.pointer(), 1, time, 0, null_mut(), DAT_QOS_BEST_EFFORT, 0);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_TENTCONNPENDING);
    scene.expect(Tentative);
    made.leak(); // the request owns the EP
    ok(dat_cr_reject(scene.request.take().expect("the request is pending").leak()));
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

/// Sets PZ and EVDs of a pending request's EP, and returns the EP.
fn with_pz_and_evds(scene: &Scene) -> Ep {
    let made = Ep::own(scene.ep());
    let Conn { recv, request, events, pz, .. } = &scene.own;
    let mask = DAT_EP_FIELD_PZ_HANDLE
        | DAT_EP_FIELD_RECV_EVD_HANDLE
        | DAT_EP_FIELD_REQUEST_EVD_HANDLE
        | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    modify(&made, mask, |param| {
        param.pz_handle = pz.h();
        (param.recv_evd_handle, param.request_evd_handle) = (recv.h(), request.h());
        param.connect_evd_handle = events.h();
    });
    made
}

fn ep_modify_of_max_rdma_read_out_to_zero_makes_posts_of_reads_fail(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    modify(&client.ep, DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT, |param| param.ep_attr.max_rdma_read_out = 0);
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    client.connect(&ia.address(), ctx.qual(0));
    ConnectionRequest::arrives(&requests).accept(&server.ep);
    established(&client, &server);
    let (into, from) = (client.memory(8), server.memory(8));
    let (mut segment, target) = (into.segment(0, 8), from.target(0, 8));
    let code = dat_ep_post_rdma_read(client.ep.h(), 1, &mut segment, cookie(1), &target, DAT_COMPLETION_DEFAULT_FLAG);
    assert_ne!(code, DAT_SUCCESS, "a read that can never complete was accepted (spec/endpoints 10.3)");
    expect_nothing(client.request.h());
}

fn ep_modify_of_recv_segments_limits_posted_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(64);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param| param.ep_attr.max_recv_iov = 1);
    let mut segments = [memory.segment(0, 8), memory.segment(8, 8)];
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    bad_arg(dat_ep_post_recv(conn.ep.h(), 2, segments.as_mut_ptr(), cookie(1), flags), 2);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param| param.ep_attr.max_recv_iov = 2);
    ok(dat_ep_post_recv(conn.ep.h(), 2, segments.as_mut_ptr(), cookie(1), flags));
}
