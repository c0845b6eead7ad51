//! Service points, public and reserved: their checks in order, qualifiers, lives, and what outlives them. Cases only.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ptr::null_mut;

use crate::cases::ep::scene::State::*;
use crate::cases::ep::scene::{Request, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::disconnect::is_over;

/// The listener's clash, as programs that search for a port have always seen it: without the error class.
const BARE_IN_USE: DAT_RETURN = DAT_CONN_QUAL_IN_USE;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "endpoints 6.1": psp_create_without_an_evd_is_invalid_handle,
        "endpoints 6.1": psp_create_without_an_evd_is_told_before_the_missing_pointer,
        "endpoints 6.1": psp_create_without_out_pointer_is_arg5,
        "endpoints 6.1": psp_create_wants_the_cr_flag,
        "endpoints 6.1": psp_create_with_unknown_flags_is_arg4,
        "endpoints 13.32": psp_create_with_qualifier_zero_is_arg2,
        "endpoints 6.1": psp_create_twice_on_an_ia_is_in_use_with_the_class,
        "endpoints 6.1": psp_create_where_an_rsp_is_has_no_class,
        "endpoints 6.1": psp_create_where_another_ia_listens_has_no_class,
        "endpoints 6.1": psp_create_where_another_process_listens_has_no_class => pair(clashes, listens).only_two(),
        "endpoints 6.1": psp_create_takes_an_evd_of_another_ia,
        "endpoints 6.1": psp_create_again_after_the_free,
        "endpoints 13.38": psp_create_next_one_after_a_clash,
        "consumers 6": psp_qualifiers_are_64_bits_wide,
        "consumers 6": psp_greatest_qualifiers => local(greatest_qualifiers),
        "endpoints 6.4": psp_query_tells_all_whatever_the_mask,
        "endpoints 6.4": psp_query_without_room_is_arg3,
        "endpoints 6.2": psp_create_any_is_small_and_not_zero,
        "endpoints 6.2": psp_create_any_can_be_connected_to,
        "endpoints 6.2": psp_create_any_a_hundred_times_gives_a_hundred,
        "endpoints 14.12": psp_create_any_from_many_threads,
        "endpoints 6.2": psp_create_any_without_pointers_is_arg5_then_arg2,
        "endpoints 6.2": psp_create_any_wants_the_cr_flag,
        "endpoints 6.2": psp_create_any_with_unknown_flags_is_arg4,
        "endpoints 6.2": psp_create_any_refused_writes_nothing,
        "endpoints 6.1": psp_provider_flag_is_queried_back,
        "endpoints 6.1": psp_provider_flag_makes_an_ep_per_request => local(makes_eps).needs(Need::ProviderEp),
        "endpoints 7.4": psp_provider_flag_ep_goes_with_the_rejection => local(made_ep_goes).needs(Need::ProviderEp),
        "endpoints 13.2": psp_events_carry_its_handle_and_qualifier,
        "endpoints 6.3": psp_free_twice_is_invalid_handle,
        "endpoints 6.3": psp_free_lets_go_of_the_evd_at_once,
        "endpoints 14.11": psp_free_stops_listening_at_once,
        "endpoints 6.3": psp_free_leaves_requests_acceptable,
        "endpoints 6.3": psp_free_leaves_requests_rejectable,
        "endpoints 13.8": psp_free_leaves_live_connections_alone,
        "endpoints 6.3": psp_free_before_established,
        "endpoints 6.3": psp_free_then_listen_again_beside_a_live_connection,
        "endpoints 13.28": psp_free_then_the_evd_with_requests_on_their_way,
        "endpoints 6.1": psp_full_evd_refuses_and_says_so => local(full_evd_refuses).limit(40),
        "endpoints 14.15": psp_full_evd_works_again_once_it_is_emptied => local(full_evd_works_again).limit(40),
        "endpoints 6.5": rsp_create_without_an_ep_is_invalid_handle,
        "endpoints 6.5": rsp_create_without_an_evd_is_invalid_handle,
        "endpoints 6.5": rsp_create_without_out_pointer_is_told_before_the_state,
        "endpoints 6.5": rsp_create_in_a_wrong_state_is_told_before_the_evd_flag,
        "endpoints 6.5": rsp_create_wants_the_cr_flag,
        "endpoints 6.5": rsp_create_with_qualifier_zero_is_arg2,
        "endpoints 14.14": rsp_create_where_an_rsp_is_leaves_the_ep_unconnected,
        "endpoints 14.14": rsp_create_where_a_psp_is_leaves_the_ep_unconnected,
        "endpoints 6.6": rsp_query_tells_all_whatever_the_mask,
        "endpoints 6.6": rsp_query_without_room_is_arg3,
        "endpoints 6.6": rsp_request_brings_its_ep_and_handle,
        "endpoints 6.6": rsp_takes_one_request_only,
        "endpoints 6.6": rsp_is_spent_after_a_rejection,
        "endpoints 6.6": rsp_create_again_on_the_ep_of_a_rejected_one,
        "endpoints 6.6": rsp_free_makes_the_ep_unconnected,
        "endpoints 6.6": rsp_free_twice_is_invalid_handle,
        "endpoints 6.6": rsp_free_with_a_request_keeps_it_acceptable,
        "endpoints 6.6": rsp_free_with_a_request_keeps_it_rejectable,
        "endpoints 13.8": rsp_free_leaves_the_live_connection_alone,
        "endpoints 6.5": rsp_of_an_ep_without_pz_is_configured_late,
        "endpoints 14.15": rsp_full_evd_goes_back_to_reserved_and_rearms => local(full_evd_rearms).limit(40),
        "endpoints 13.16": rsp_free_then_ep_free,
        "endpoints 3.2": sp_holds_its_evd_until_it_is_freed,
    ]
}

fn create(ia: &Ia, qual: DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS) -> DAT_RETURN {
    untouched(|psp: *mut DAT_PSP_HANDLE| dat_psp_create(ia.h(), qual, evd, flags, psp))
}

fn cr_evd(ia: &Ia) -> Evd {
    ia.evd(8, DAT_EVD_CR_FLAG)
}

/// Connects a new EP to a qualifier of this IA, and does not wait.
fn requester(ia: &Ia, qual: DAT_CONN_QUAL) -> Conn {
    let conn = Conn::on(ia);
    conn.connect(&ia.address(), qual);
    conn
}

#[track_caller]
fn carries(near: &Conn, far: &Conn) {
    post_empty_recv(far, 31);
    post_empty_send(near, 32);
    expect_dto(far.recv.h(), 31, DAT_DTO_SUCCESS, 0);
    expect_dto(near.request.h(), 32, DAT_DTO_SUCCESS, 0);
}

/// Nobody listens here any more.
#[track_caller]
fn is_deserted(ia: &Ia, qual: DAT_CONN_QUAL) {
    requester(ia, qual).expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
}

fn psp_create_without_an_evd_is_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for evd in [DAT_HANDLE_NULL, pz.h(), ia.h()] {
        bad_handle(create(&ia, ctx.qual(0), evd, DAT_PSP_CONSUMER_FLAG), DAT_INVALID_HANDLE_EVD_CR);
    }
}

fn psp_create_without_an_evd_is_told_before_the_missing_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    bad_handle(dat_psp_create(ia.h(), 0, DAT_HANDLE_NULL, 9, null_mut()), DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_without_out_pointer_is_arg5(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, wrong) = (cr_evd(&ia), ia.evd(8, DAT_EVD_DTO_FLAG));
    bad_arg(dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG, null_mut()), 5);
    // Before the EVD's flag and all else.
    bad_arg(dat_psp_create(ia.h(), 0, wrong.h(), 9, null_mut()), 5);
}

fn psp_create_wants_the_cr_flag(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
    bad_handle(create(&ia, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG), DAT_INVALID_HANDLE_EVD_CR);
    bad_handle(create(&ia, 0, evd.h(), 9), DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_with_unknown_flags_is_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for flags in [2, 3, 0x8000_0000] {
        bad_arg(create(&ia, ctx.qual(0), evd.h(), flags), 4);
    }
    bad_arg(create(&ia, 0, evd.h(), 2), 4);
}

fn psp_create_with_qualifier_zero_is_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    bad_arg(create(&ia, 0, evd.h(), DAT_PSP_CONSUMER_FLAG), 2);
}

fn psp_create_twice_on_an_ia_is_in_use_with_the_class(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, _psp) = silent_listener(ctx, &ia, 0);
    let code = create(&ia, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG);
    refused(code, DAT_CONN_QUAL_IN_USE, DAT_NO_SUBTYPE);
}

fn psp_create_where_an_rsp_is_has_no_class(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let evd = scene.requests.h();
    expect(create(&scene.own.ia, ctx.qual(0), evd, DAT_PSP_CONSUMER_FLAG), BARE_IN_USE);
}

fn psp_create_where_another_ia_listens_has_no_class(ctx: &Ctx) {
    let (ia, other) = (Ia::open(&ctx.provider, 8), Ia::open(&ctx.provider, 8));
    let (_evd, _psp) = silent_listener(ctx, &ia, 0);
    let evd = cr_evd(&other);
    expect(create(&other, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG), BARE_IN_USE);
}

fn listens(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    ctx.meet();
    ctx.meet();
    psp.free();
    ctx.meet();
}

fn clashes(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, ep) = (cr_evd(&ia), Conn::on(&ia));
    ctx.meet();
    expect(create(&ia, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG), BARE_IN_USE);
    let code = untouched(|rsp| dat_rsp_create(ia.h(), ctx.qual(0), ep.ep.h(), evd.h(), rsp));
    expect(code, BARE_IN_USE);
    ctx.meet();
    ctx.meet();
    ia.psp(ctx.qual(0), &evd);
}

fn psp_create_takes_an_evd_of_another_ia(ctx: &Ctx) {
    let (ia, other) = (Ia::open(&ctx.provider, 8), Ia::open(&ctx.provider, 8));
    let evd = cr_evd(&other);
    let psp = ia.psp(ctx.qual(0), &evd);
    let near = requester(&ia, ctx.qual(0));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.service_point(), psp.h());
    ok(dat_cr_reject(event.arrival().cr_handle));
    near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_create_again_after_the_free(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for _ in 0..100 {
        ia.psp(ctx.qual(0), &evd).free();
    }
}

/// As programs look for a free port: the next after each clash.
fn psp_create_next_one_after_a_clash(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let all: Vec<Psp> = (0..8).map(|n| ia.psp(ctx.qual(n), &evd)).collect();
    let mut qual = ctx.qual(0);
    while kind_of(create(&ia, qual, evd.h(), DAT_PSP_CONSUMER_FLAG)) & !DAT_CLASS_ERROR == DAT_CONN_QUAL_IN_USE {
        qual += 1;
        if qual == ctx.qual(8) {
            break;
        }
    }
    assert_eq!(qual, ctx.qual(8), "all before it are taken");
    drop(all);
}

/// Qualifiers that differ in high bits only are different ones.
fn psp_qualifiers_are_64_bits_wide(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let quals = [0, 1 << 16, 1 << 32, 1 << 35, 1 << 62].map(|high| ctx.qual(0) + high);
    let points = quals.map(|qual| ia.psp(qual, &evd));
    for (qual, psp) in quals.iter().zip(&points) {
        let near = requester(&ia, *qual);
        let event = expect_event(evd.h(), SOON);
        assert_eq!((event.arrival().conn_qual, event.service_point()), (*qual, psp.h()));
        ok(dat_cr_reject(event.arrival().cr_handle));
        near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    }
}

fn greatest_qualifiers(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let qual = !ctx.qual(0); // the highest bit set, and nobody else's
    let psp = ia.psp(qual, &evd);
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.conn_qual, qual);
    let near = requester(&ia, qual);
    let event = expect_cr(evd.h());
    assert_eq!(event.conn_qual, qual);
    ok(dat_cr_reject(event.cr_handle));
    near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_query_tells_all_whatever_the_mask(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    for mask in [DAT_PSP_FIELD_ALL, DAT_PSP_FIELD_IA_HANDLE, DAT_PSP_FIELD_PSP_FLAGS] {
        let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), mask, out));
        assert_eq!((param.ia_handle, param.evd_handle), (ia.h(), evd.h()));
        assert_eq!((param.conn_qual, param.psp_flags), (ctx.qual(0), DAT_PSP_CONSUMER_FLAG));
    }
}

fn psp_query_without_room_is_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    bad_arg(dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, null_mut()), 3);
}

#[track_caller]
fn any(ia: &Ia, evd: &Evd) -> (DAT_CONN_QUAL, Psp) {
    let mut qual = 0;
    let psp = filled(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), DAT_PSP_CONSUMER_FLAG, out));
    (qual, Psp::own(psp))
}

fn psp_create_any_is_small_and_not_zero(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let (qual, psp) = any(&ia, &evd);
    assert!((1024..=0xffff).contains(&qual), "{qual}: programs cut it to 16 bits");
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.conn_qual, qual);
}

fn psp_create_any_can_be_connected_to(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let (qual, psp) = any(&ia, &evd);
    let (near, far) = (requester(&ia, qual), Conn::on(&ia));
    let event = expect_event(evd.h(), SOON);
    assert_eq!((event.arrival().conn_qual, event.service_point()), (qual, psp.h()));
    Request::own(event.arrival().cr_handle).accept(&far.ep);
    established(&near, &far);
}

fn psp_create_any_a_hundred_times_gives_a_hundred(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let all: Vec<(DAT_CONN_QUAL, Psp)> = (0..100).map(|_| any(&ia, &evd)).collect();
    assert_eq!(all.iter().map(|(qual, _)| *qual).collect::<BTreeSet<_>>().len(), 100);
}

fn psp_create_any_from_many_threads(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let all: Vec<(DAT_CONN_QUAL, Psp)> = std::thread::scope(|scope| {
        let one = || (0..20).map(|_| any(&ia, &evd)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    assert_eq!(all.iter().map(|(qual, _)| *qual).collect::<BTreeSet<_>>().len(), 80);
}

fn psp_create_any_without_pointers_is_arg5_then_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let mut psp = DAT_HANDLE_NULL;
    bad_arg(dat_psp_create_any(ia.h(), null_mut(), evd.h(), DAT_PSP_CONSUMER_FLAG, null_mut()), 5);
    bad_arg(dat_psp_create_any(ia.h(), null_mut(), evd.h(), DAT_PSP_CONSUMER_FLAG, &mut psp), 2);
    assert!(psp.is_null());
}

fn psp_create_any_wants_the_cr_flag(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut qual) = (ia.evd(8, DAT_EVD_DTO_FLAG), 5);
    let flags = DAT_PSP_CONSUMER_FLAG;
    let code = untouched(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), flags, out));
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_any_with_unknown_flags_is_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut qual) = (cr_evd(&ia), 5);
    bad_arg(untouched(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), 4, out)), 4);
}

fn psp_create_any_refused_writes_nothing(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut psp) = (cr_evd(&ia), DAT_HANDLE_NULL);
    bad_arg(untouched(|qual| dat_psp_create_any(ia.h(), qual, evd.h(), 4, &mut psp)), 4);
    assert!(psp.is_null());
}

fn makes(ctx: &Ctx, ia: &Ia, evd: &Evd) -> Psp {
    Psp::own(filled(|out| dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_PROVIDER_FLAG, out)))
}

fn psp_provider_flag_is_queried_back(ctx: &Ctx) {
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
    let _near = [(); 3].map(|()| requester(&ia, ctx.qual(0)));
    let requests = [(); 3].map(|()| Request::arrives(&evd));
    let eps = requests.each_ref().map(|request| request.param().local_ep_handle);
    assert_eq!(eps.iter().collect::<BTreeSet<_>>().len(), 3);
    for ep in eps {
        let param: DAT_EP_PARAM = filled(|out| dat_ep_query(ep, DAT_EP_FIELD_ALL, out));
        assert_eq!((param.ep_state, param.ia_handle), (Tentative.number(), ia.h()));
        let objects = [param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle];
        assert!(objects.iter().all(|handle| handle.is_null()), "born with nothing");
    }
}

fn made_ep_goes(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    scene.request.take().expect("it waits").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    bad_handle(dat_ep_free(scene.ep()), DAT_INVALID_HANDLE_EP);
}

fn psp_events_carry_its_handle_and_qualifier(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 3);
    let _near = requester(&ia, ctx.qual(3));
    let event = expect_event(evd.h(), SOON);
    let _request = Request::own(event.arrival().cr_handle);
    assert_eq!((event.service_point(), event.evd()), (psp.h(), evd.h()));
    assert_eq!(event.arrival().conn_qual, ctx.qual(3));
    assert_eq!(event.arrival().local_ia_address_ptr.addr(), ia.attr().ia_address_ptr.addr());
}

fn psp_free_twice_is_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    let dead = psp.free();
    bad_handle(dat_psp_free(dead), DAT_INVALID_HANDLE_PSP);
    let code = untouched(|out| dat_psp_query(dead, DAT_PSP_FIELD_ALL, out));
    bad_handle(code, DAT_INVALID_HANDLE_PSP);
}

fn psp_free_lets_go_of_the_evd_at_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    Request::arrives(&evd).accept(&far.ep);
    psp.free();
    evd.free();
    established(&near, &far);
}

fn psp_free_stops_listening_at_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    Request::arrives(&evd).accept(&far.ep);
    established(&near, &far);
    psp.free();
    is_deserted(&ia, ctx.qual(0));
    expect_nothing(evd.h());
}

fn psp_free_leaves_requests_acceptable(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    let request = Request::arrives(&evd);
    psp.free();
    evd.free();
    assert!(request.param().local_ep_handle.is_null());
    request.accept(&far.ep);
    established(&near, &far);
    carries(&near, &far);
}

fn psp_free_leaves_requests_rejectable(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let near = requester(&ia, ctx.qual(0));
    let request = Request::arrives(&evd);
    psp.free();
    request.reject();
    near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_free_leaves_live_connections_alone(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    Request::arrives(&evd).accept(&far.ep);
    established(&near, &far);
    psp.free();
    carries(&near, &far);
    carries(&far, &near);
    far.disconnect();
    is_over(&near);
}

fn psp_free_before_established(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    let request = Request::arrives(&evd);
    request.accept(&far.ep);
    psp.free();
    established(&near, &far);
}

fn psp_free_then_listen_again_beside_a_live_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    Request::arrives(&evd).accept(&far.ep);
    established(&near, &far);
    psp.free();
    let again = ia.psp(ctx.qual(0), &evd);
    let other = requester(&ia, ctx.qual(0));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.service_point(), again.h());
    ok(dat_cr_reject(event.arrival().cr_handle));
    other.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    carries(&near, &far);
}

/// Whatever comes too late meets nobody, and each requester hears how it went.
fn psp_free_then_the_evd_with_requests_on_their_way(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..20 {
        let (evd, psp) = silent_listener(ctx, &ia, 0);
        let near = [(); 4].map(|()| requester(&ia, ctx.qual(0)));
        psp.free();
        let came: Vec<Request> = drain(evd.h()).iter().map(|event| Request::own(event.arrival().cr_handle)).collect();
        evd.free();
        came.into_iter().for_each(Request::reject);
        for conn in &near {
            ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
            let number = expect_event(conn.events.h(), SOON).number();
            assert!(number > DAT_CONNECTION_EVENT_ESTABLISHED, "one end");
            expect_nothing(conn.events.h());
        }
    }
}

fn full_evd_refuses(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (evd, _filler) = full_evd(&ia, &pz, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &evd);
    is_deserted(&ia, ctx.qual(0));
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
    is_deserted(&ia, ctx.qual(0));
    drain(evd.h());
    let (near, far) = (requester(&ia, ctx.qual(0)), Conn::on(&ia));
    Request::arrives(&evd).accept(&far.ep);
    established(&near, &far);
}

fn rsp_create(ia: &Ia, qual: DAT_CONN_QUAL, ep: DAT_EP_HANDLE, evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    untouched(|rsp: *mut DAT_RSP_HANDLE| dat_rsp_create(ia.h(), qual, ep, evd, rsp))
}

fn rsp_create_without_an_ep_is_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for ep in [DAT_HANDLE_NULL, evd.h(), ia.h()] {
        bad_handle(rsp_create(&ia, ctx.qual(0), ep, evd.h()), DAT_INVALID_HANDLE_EP);
        bad_handle(dat_rsp_create(ia.h(), 0, ep, DAT_HANDLE_NULL, null_mut()), DAT_INVALID_HANDLE_EP);
    }
}

fn rsp_create_without_an_evd_is_invalid_handle(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    for evd in [DAT_HANDLE_NULL, conn.pz.h()] {
        bad_handle(rsp_create(&conn.ia, ctx.qual(0), conn.ep.h(), evd), DAT_INVALID_HANDLE_EVD_CR);
    }
    let code = dat_rsp_create(conn.ia.h(), 0, conn.ep.h(), DAT_HANDLE_NULL, null_mut());
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_without_out_pointer_is_told_before_the_state(ctx: &Ctx) {
    let scene = Scene::new(ctx, Connected);
    let Conn { ia, ep, .. } = &scene.own;
    bad_arg(dat_rsp_create(ia.h(), ctx.qual(1), ep.h(), scene.requests.h(), null_mut()), 5);
}

fn rsp_create_in_a_wrong_state_is_told_before_the_evd_flag(ctx: &Ctx) {
    let scene = Scene::new(ctx, Connected);
    let Conn { ia, ep, recv, .. } = &scene.own;
    let code = rsp_create(ia, ctx.qual(1), ep.h(), recv.h());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
}

fn rsp_create_wants_the_cr_flag(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let code = rsp_create(&conn.ia, ctx.qual(0), conn.ep.h(), conn.recv.h());
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_with_qualifier_zero_is_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, conn) = (cr_evd(&ia), Conn::on(&ia));
    bad_arg(rsp_create(&ia, 0, conn.ep.h(), evd.h()), 2);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_create_where_an_rsp_is_leaves_the_ep_unconnected(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let second = Conn::on(&scene.own.ia);
    expect(rsp_create(&scene.own.ia, ctx.qual(0), second.ep.h(), scene.requests.h()), BARE_IN_USE);
    second.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    scene.is_still(Reserved);
}

fn rsp_create_where_a_psp_is_leaves_the_ep_unconnected(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    expect(rsp_create(&ia, ctx.qual(0), conn.ep.h(), evd.h()), BARE_IN_USE);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn rsp_query_tells_all_whatever_the_mask(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let rsp = scene.rsp.as_ref().expect("it is reserved").h();
    for mask in [DAT_RSP_FIELD_ALL, DAT_RSP_FIELD_IA_HANDLE, DAT_RSP_FIELD_EP_HANDLE] {
        let param: DAT_RSP_PARAM = filled(|out| dat_rsp_query(rsp, mask, out));
        assert_eq!((param.ia_handle, param.evd_handle), (scene.own.ia.h(), scene.requests.h()));
        assert_eq!((param.conn_qual, param.ep_handle), (ctx.qual(0), scene.ep()));
    }
}

fn rsp_query_without_room_is_arg3(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    bad_arg(dat_rsp_query(scene.rsp.as_ref().expect("it is reserved").h(), DAT_RSP_FIELD_ALL, null_mut()), 3);
}

fn rsp_request_brings_its_ep_and_handle(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let _near = requester(&scene.own.ia, ctx.qual(0));
    let event = expect_event(scene.requests.h(), SOON);
    let request = Request::own(event.arrival().cr_handle);
    assert_eq!(event.service_point(), scene.rsp.as_ref().expect("it is reserved").h());
    assert_eq!(event.arrival().conn_qual, ctx.qual(0));
    assert_eq!(request.param().local_ep_handle, scene.ep());
    scene.is_still(Passive);
}

fn rsp_takes_one_request_only(ctx: &Ctx) {
    let scene = Scene::new(ctx, Passive);
    is_deserted(&scene.own.ia, ctx.qual(0));
    expect_nothing(scene.requests.h());
    scene.is_still(Passive);
}

fn rsp_is_spent_after_a_rejection(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.request.take().expect("it waits").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    scene.is_still(Unconnected);
    is_deserted(&scene.own.ia, ctx.qual(0));
    scene.is_still(Unconnected);
    // Its handle and its qualifier live on.
    let rsp = scene.rsp.as_ref().expect("it is there").h();
    filled(|out: *mut DAT_RSP_PARAM| dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, out));
}

fn rsp_create_again_on_the_ep_of_a_rejected_one(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.request.take().expect("it waits").reject();
    scene.rsp.take().expect("it is there").free();
    scene.rsp = Some(scene.own.ia.rsp(ctx.qual(0), &scene.own.ep, &scene.requests));
    scene.is_still(Reserved);
    let near = requester(&scene.own.ia, ctx.qual(0));
    ok(dat_cr_accept(Request::arrives(&scene.requests).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&near, &scene.own);
}

fn rsp_free_makes_the_ep_unconnected(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    scene.rsp.take().expect("it is there").free();
    scene.is_still(Unconnected);
    is_deserted(&scene.own.ia, ctx.qual(0));
    // As good as new.
    let near = Conn::on(&scene.own.ia);
    scene.own.listen(ctx.qual(0), || near.connect(&near.ia.address(), ctx.qual(0)));
    established(&near, &scene.own);
}

fn rsp_free_twice_is_invalid_handle(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    let dead = scene.rsp.take().expect("it is there").free();
    bad_handle(dat_rsp_free(dead), DAT_INVALID_HANDLE_RSP);
    let code = untouched(|out| dat_rsp_query(dead, DAT_RSP_FIELD_ALL, out));
    bad_handle(code, DAT_INVALID_HANDLE_RSP);
}

fn rsp_free_with_a_request_keeps_it_acceptable(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.rsp.take().expect("it is there").free();
    scene.is_still(Passive);
    is_deserted(&scene.own.ia, ctx.qual(0));
    ok(dat_cr_accept(scene.request.take().expect("it waits").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(scene.other(), &scene.own);
}

fn rsp_free_with_a_request_keeps_it_rejectable(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.rsp.take().expect("it is there").free();
    scene.request.take().expect("it waits").reject();
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    scene.is_still(Unconnected);
}

fn rsp_free_leaves_the_live_connection_alone(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    ok(dat_cr_accept(scene.request.take().expect("it waits").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(scene.other(), &scene.own);
    scene.rsp.take().expect("it is there").free();
    scene.is_still(Connected);
    carries(&scene.own, scene.other());
    carries(scene.other(), &scene.own);
}

/// What the EP lacks is found at the accept, which leaves the request alone.
fn rsp_of_an_ep_without_pz_is_configured_late(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, parts) = (cr_evd(&ia), crate::cases::ep::create::Parts::new(ctx));
    let ep = crate::cases::ep::create::without_pz(&parts);
    let rsp = ia.rsp(ctx.qual(0), &ep, &evd);
    let near = requester(&ia, ctx.qual(0));
    let request = Request::arrives(&evd);
    bad_handle(dat_cr_accept(request.h(), DAT_HANDLE_NULL, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    ep.expect_state(DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    // Its PZ cannot be given in PCP (5.3), so the request is refused, and the next one finds it ready.
    request.reject();
    near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    rsp.free();
    let param = DAT_EP_PARAM { pz_handle: parts.pz.h(), ..ep.param() };
    ok(dat_ep_modify(ep.h(), DAT_EP_FIELD_PZ_HANDLE, &param));
    let rsp = ia.rsp(ctx.qual(0), &ep, &evd);
    let near = requester(&ia, ctx.qual(0));
    ok(dat_cr_accept(Request::arrives(&evd).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    near.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_conn(parts.connect.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    rsp.free();
}

fn full_evd_rearms(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::on(&ia);
    let (evd, _filler) = full_evd(&ia, &conn.pz, DAT_EVD_CR_FLAG);
    let _rsp = ia.rsp(ctx.qual(0), &conn.ep, &evd);
    is_deserted(&ia, ctx.qual(0));
    conn.ep.expect_state(DAT_EP_STATE_RESERVED);
    drain(evd.h());
    let near = requester(&ia, ctx.qual(0));
    ok(dat_cr_accept(Request::arrives(&evd).leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&near, &conn);
}

fn rsp_free_then_ep_free(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Reserved);
    refused(dat_ep_free(scene.ep()), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_RESERVED);
    scene.rsp.take().expect("it is there").free();
    scene.own.ep.free();
}

fn sp_holds_its_evd_until_it_is_freed(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    refused(dat_evd_free(scene.requests.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    let (evd, _psp) = silent_listener(ctx, &scene.own.ia, 1);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
}
