//! Public service points in use: their events, EPs that the provider creates for requests, effects of `dat_psp_free`,
//! objects that outlive the service point, and full EVDs.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::disconnect::is_over;
use super::points::{carries, cr_evd, expect_no_listener, requester};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 6.1": psp_provider_flag_is_returned_by_the_query,
        "spec/endpoints 6.1": psp_provider_flag_creates_an_ep_per_request => local(makes_eps).needs(Need::ProviderEp),
        "spec/endpoints 7.4": psp_provider_flag_makes_a_rejection_free_the_ep_of_the_request => local(made_ep_goes).needs(Need::ProviderEp),
        "spec/endpoints 13.2": psp_request_events_carry_its_handle_and_qualifier,
        "spec/endpoints 6.3": psp_free_twice_returns_invalid_handle,
        "spec/endpoints 6.3": psp_free_releases_the_evd_immediately,
        "spec/endpoints 14.11": psp_free_stops_listening_immediately,
        "spec/endpoints 6.3": psp_free_leaves_requests_acceptable,
        "spec/endpoints 6.3": psp_free_leaves_requests_rejectable,
        "spec/endpoints 13.8": psp_free_keeps_established_connections,
        "spec/endpoints 6.3": psp_free_before_established_keeps_the_connection,
        "spec/endpoints 6.3": psp_free_permits_a_new_psp_beside_a_connection,
        "spec/endpoints 13.28": psp_free_with_requests_in_transit_leaves_one_end_event_per_connect,
        "spec/endpoints 6.1": psp_with_a_full_evd_rejects_requests_and_reports_the_overflow => local(full_evd_refuses).limit(40),
        "spec/endpoints 14.15": psp_with_a_full_evd_receives_requests_again_after_a_drain => local(full_evd_works_again).limit(40),
    ]
}

fn makes(ctx: &Ctx, ia: &Ia, evd: &Evd) -> Psp {
    Psp::own(filled(|out| dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_PROVIDER_FLAG, out)))
}

fn psp_provider_flag_is_returned_by_the_query(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let psp = makes(ctx, &ia, &evd);
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.psp_flags, DAT_PSP_PROVIDER_FLAG);
}

fn makes_eps(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let _psp = makes(ctx, &ia, &evd);
    let _client = [(); 3].map(|()| requester(&ia, ctx.qual(0)));
    let requests = [(); 3].map(|()| ConnectionRequest::arrives(&evd));
    let eps = requests.each_ref().map(|request| request.param().local_ep_handle);
    assert_eq!(eps.iter().collect::<BTreeSet<_>>().len(), 3);
    for ep in eps {
        let param: DAT_EP_PARAM = filled(|out| dat_ep_query(ep, DAT_EP_FIELD_ALL, out));
        assert_eq!((param.ep_state, param.ia_handle), (Tentative.number(), ia.h()));
        let objects = [param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle];
        assert!(objects.iter().all(|handle| handle.is_null()), "the EP was created with a PZ or EVD");
    }
}

fn made_ep_goes(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    scene.request.take().expect("the request is pending").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    bad_handle(dat_ep_free(scene.ep()), DAT_INVALID_HANDLE_EP);
}

fn psp_request_events_carry_its_handle_and_qualifier(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 3);
    let _client = requester(&ia, ctx.qual(3));
    let event = expect_event(evd.h(), SOON);
    let _request = ConnectionRequest::own(event.arrival().cr_handle);
    assert_eq!((event.service_point(), event.evd()), (psp.h(), evd.h()));
    assert_eq!(event.arrival().conn_qual, ctx.qual(3));
    assert_eq!(event.arrival().local_ia_address_ptr.addr(), ia.attr().ia_address_ptr.addr());
}

fn psp_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    let dead = psp.free();
    bad_handle(dat_psp_free(dead), DAT_INVALID_HANDLE_PSP);
    let code = untouched(|out| dat_psp_query(dead, DAT_PSP_FIELD_ALL, out));
    bad_handle(code, DAT_INVALID_HANDLE_PSP);
}

fn psp_free_releases_the_evd_immediately(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    ConnectionRequest::arrives(&evd).accept(&server.ep);
    psp.free();
    evd.free();
    established(&client, &server);
}

/// Connects to qualifier 0, whose requests arrive on this EVD. Returns both endpoints.
#[track_caller]
fn connected(ctx: &Ctx, ia: &Ia, requests: &Evd) -> (Conn, Conn) {
    let (client, server) = (requester(ia, ctx.qual(0)), Conn::on(ia));
    ConnectionRequest::arrives(requests).accept(&server.ep);
    established(&client, &server);
    (client, server)
}

fn psp_free_stops_listening_immediately(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let _ends = connected(ctx, &ia, &evd);
    psp.free();
    expect_no_listener(&ia, ctx.qual(0));
    expect_nothing(evd.h());
}

fn psp_free_leaves_requests_acceptable(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    let request = ConnectionRequest::arrives(&evd);
    psp.free();
    evd.free();
    assert!(request.param().local_ep_handle.is_null());
    request.accept(&server.ep);
    established(&client, &server);
    carries(&client, &server);
}

fn psp_free_leaves_requests_rejectable(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let client = requester(&ia, ctx.qual(0));
    let request = ConnectionRequest::arrives(&evd);
    psp.free();
    request.reject();
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_free_keeps_established_connections(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = connected(ctx, &ia, &evd);
    psp.free();
    carries(&client, &server);
    carries(&server, &client);
    server.disconnect();
    is_over(&client);
}

fn psp_free_before_established_keeps_the_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    let request = ConnectionRequest::arrives(&evd);
    request.accept(&server.ep);
    psp.free();
    established(&client, &server);
}

fn psp_free_permits_a_new_psp_beside_a_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = connected(ctx, &ia, &evd);
    psp.free();
    let again = ia.psp(ctx.qual(0), &evd);
    let other = requester(&ia, ctx.qual(0));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.service_point(), again.h());
    ok(dat_cr_reject(event.arrival().cr_handle));
    other.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    carries(&client, &server);
}

/// Requests may arrive before or after the free. Each connect gets exactly one event that ends it, at the latest by the
/// client's own disconnect.
fn psp_free_with_requests_in_transit_leaves_one_end_event_per_connect(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..20 {
        let (evd, psp) = silent_listener(ctx, &ia, 0);
        let client = [(); 4].map(|()| requester(&ia, ctx.qual(0)));
        psp.free();
        let came: Vec<ConnectionRequest> =
            drain(evd.h()).iter().map(|event| ConnectionRequest::own(event.arrival().cr_handle)).collect();
        evd.free();
        came.into_iter().for_each(ConnectionRequest::reject);
        for conn in &client {
            ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
            let number = expect_event(conn.events.h(), SOON).number();
            assert!(number > DAT_CONNECTION_EVENT_ESTABLISHED, "the event does not end a connection");
            expect_nothing(conn.events.h());
        }
    }
}

fn full_evd_refuses(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (evd, _filler) = full_evd(&ia, &pz, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &evd);
    expect_no_listener(&ia, ctx.qual(0));
    let event = expect_event(ia.errors(), SOON);
    event.is(DAT_ASYNC_ERROR_EVD_OVERFLOW);
    assert_eq!(event.asynchronous().dat_handle, evd.h());
    assert!(drain(evd.h()).iter().all(|event| event.number() == DAT_CONNECTION_EVENT_DISCONNECTED));
}

fn full_evd_works_again(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (evd, _filler) = full_evd(&ia, &pz, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &evd);
    expect_no_listener(&ia, ctx.qual(0));
    drain(evd.h());
    let _ends = connected(ctx, &ia, &evd);
}
