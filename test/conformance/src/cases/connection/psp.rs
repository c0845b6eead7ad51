//! `dat_psp_create`, `dat_psp_create_any` and `dat_psp_query`: refused arguments and their order, qualifiers and their
//! conflicts, and the fields of the query. Service points in use are in `psp_life`.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::*;
use crate::cases::ep::scene::{ConnectionRequest, Scene, silent_listener};
use crate::kit::*;

use super::points::{BARE_IN_USE, cr_evd, requester};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 6.1": psp_create_without_an_evd_returns_invalid_handle,
        "spec/endpoints 6.1": psp_create_reports_a_missing_evd_before_a_missing_out_pointer,
        "spec/endpoints 6.1": psp_create_without_out_pointer_returns_invalid_arg5,
        "spec/endpoints 6.1": psp_create_refuses_an_evd_without_the_cr_flag,
        "spec/endpoints 6.1": psp_create_with_unknown_flags_returns_invalid_arg4,
        "spec/endpoints 13.32": psp_create_with_qualifier_zero_returns_invalid_arg2,
        "spec/endpoints 6.1": psp_create_twice_on_an_ia_returns_in_use_with_the_error_bit,
        "spec/endpoints 6.1": psp_create_at_the_qualifier_of_an_rsp_returns_in_use_without_error_bit,
        "spec/endpoints 6.1": psp_create_returns_bare_in_use_for_a_qualifier_of_another_ia,
        "spec/endpoints 6.1": psp_create_returns_bare_in_use_for_a_qualifier_of_another_process => pair(client_clashes, listens).only_two(),
        "spec/endpoints 6.1": psp_create_accepts_an_evd_of_another_ia,
        "spec/endpoints 6.1": psp_create_reuses_a_freed_qualifier,
        "spec/endpoints 13.38": psp_create_returns_in_use_at_each_used_qualifier,
        "spec/consumers 6": psp_qualifiers_are_64_bits_wide,
        "spec/consumers 6": psp_at_a_qualifier_with_the_highest_bit_can_be_connected_to => local(greatest_qualifiers),
        "spec/endpoints 6.4": psp_query_returns_all_fields_for_any_mask,
        "spec/endpoints 6.4": psp_query_without_out_pointer_returns_invalid_arg3,
        "spec/endpoints 6.2": psp_create_any_returns_a_qualifier_from_1024_to_65535,
        "spec/endpoints 6.2": psp_create_any_returns_a_psp_that_can_be_connected_to,
        "spec/endpoints 6.2": psp_create_any_a_hundred_times_returns_distinct_qualifiers,
        "spec/endpoints 14.12": psp_create_any_from_many_threads_returns_distinct_qualifiers,
        "spec/endpoints 6.2": psp_create_any_checks_the_psp_pointer_before_the_qualifier_pointer,
        "spec/endpoints 6.2": psp_create_any_refuses_an_evd_without_the_cr_flag,
        "spec/endpoints 6.2": psp_create_any_with_unknown_flags_returns_invalid_arg4,
        "spec/endpoints 6.2": psp_create_any_that_is_refused_writes_nothing,
    ]
}

fn create(ia: &Ia, qual: DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS) -> DAT_RETURN {
    untouched(|psp: *mut DAT_PSP_HANDLE| dat_psp_create(ia.h(), qual, evd, flags, psp))
}

fn psp_create_without_an_evd_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for evd in [DAT_HANDLE_NULL, pz.h(), ia.h()] {
        bad_handle(create(&ia, ctx.qual(0), evd, DAT_PSP_CONSUMER_FLAG), DAT_INVALID_HANDLE_EVD_CR);
    }
}

fn psp_create_reports_a_missing_evd_before_a_missing_out_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    bad_handle(dat_psp_create(ia.h(), 0, DAT_HANDLE_NULL, 9, null_mut()), DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_without_out_pointer_returns_invalid_arg5(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, wrong) = (cr_evd(&ia), ia.evd(8, DAT_EVD_DTO_FLAG));
    bad_arg(dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG, null_mut()), 5);
    // The out pointer is checked before the EVD's flags and the remaining arguments.
    bad_arg(dat_psp_create(ia.h(), 0, wrong.h(), 9, null_mut()), 5);
}

fn psp_create_refuses_an_evd_without_the_cr_flag(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
    bad_handle(create(&ia, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG), DAT_INVALID_HANDLE_EVD_CR);
    bad_handle(create(&ia, 0, evd.h(), 9), DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_with_unknown_flags_returns_invalid_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for flags in [2, 3, 0x8000_0000] {
        bad_arg(create(&ia, ctx.qual(0), evd.h(), flags), 4);
    }
    bad_arg(create(&ia, 0, evd.h(), 2), 4);
}

fn psp_create_with_qualifier_zero_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    bad_arg(create(&ia, 0, evd.h(), DAT_PSP_CONSUMER_FLAG), 2);
}

fn psp_create_twice_on_an_ia_returns_in_use_with_the_error_bit(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, _psp) = silent_listener(ctx, &ia, 0);
    let code = create(&ia, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG);
    refused(code, DAT_CONN_QUAL_IN_USE, DAT_NO_SUBTYPE);
}

fn psp_create_at_the_qualifier_of_an_rsp_returns_in_use_without_error_bit(ctx: &Ctx) {
    let scene = Scene::new(ctx, Reserved);
    let evd = scene.requests.h();
    expect(create(&scene.own.ia, ctx.qual(0), evd, DAT_PSP_CONSUMER_FLAG), BARE_IN_USE);
}

fn psp_create_returns_bare_in_use_for_a_qualifier_of_another_ia(ctx: &Ctx) {
    let (ia, other) = (Ia::open(&ctx.provider, 8), Ia::open(&ctx.provider, 8));
    let (_evd, _psp) = silent_listener(ctx, &ia, 0);
    let evd = cr_evd(&other);
    expect(create(&other, ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG), BARE_IN_USE);
}

pub(super) fn listens(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    ctx.meet();
    ctx.meet();
    psp.free();
    ctx.meet();
}

fn client_clashes(ctx: &Ctx) {
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

fn psp_create_accepts_an_evd_of_another_ia(ctx: &Ctx) {
    let (ia, other) = (Ia::open(&ctx.provider, 8), Ia::open(&ctx.provider, 8));
    let evd = cr_evd(&other);
    let psp = ia.psp(ctx.qual(0), &evd);
    let client = requester(&ia, ctx.qual(0));
    let event = expect_event(evd.h(), SOON);
    assert_eq!(event.service_point(), psp.h());
    ok(dat_cr_reject(event.arrival().cr_handle));
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_create_reuses_a_freed_qualifier(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    for _ in 0..100 {
        ia.psp(ctx.qual(0), &evd).free();
    }
}

/// Searches for a free qualifier as programs do: after each conflict, the next number.
fn psp_create_returns_in_use_at_each_used_qualifier(ctx: &Ctx) {
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
    assert_eq!(qual, ctx.qual(8), "a lower qualifier was free");
    drop(all);
}

/// Qualifiers that differ only in high bits are distinct.
fn psp_qualifiers_are_64_bits_wide(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let quals = [0, 1 << 16, 1 << 32, 1 << 35, 1 << 62].map(|high| ctx.qual(0) + high);
    let points = quals.map(|qual| ia.psp(qual, &evd));
    for (qual, psp) in quals.iter().zip(&points) {
        let client = requester(&ia, *qual);
        let event = expect_event(evd.h(), SOON);
        assert_eq!((event.arrival().conn_qual, event.service_point()), (*qual, psp.h()));
        ok(dat_cr_reject(event.arrival().cr_handle));
        client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    }
}

fn greatest_qualifiers(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let qual = !ctx.qual(0); // the highest bit set, and unique
    let psp = ia.psp(qual, &evd);
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.conn_qual, qual);
    let client = requester(&ia, qual);
    let event = expect_cr(evd.h());
    assert_eq!(event.conn_qual, qual);
    ok(dat_cr_reject(event.cr_handle));
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn psp_query_returns_all_fields_for_any_mask(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, psp) = silent_listener(ctx, &ia, 0);
    for mask in [DAT_PSP_FIELD_ALL, DAT_PSP_FIELD_IA_HANDLE, DAT_PSP_FIELD_PSP_FLAGS] {
        let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), mask, out));
        assert_eq!((param.ia_handle, param.evd_handle), (ia.h(), evd.h()));
        assert_eq!((param.conn_qual, param.psp_flags), (ctx.qual(0), DAT_PSP_CONSUMER_FLAG));
    }
}

fn psp_query_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_evd, psp) = silent_listener(ctx, &ia, 0);
    bad_arg(dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, null_mut()), 3);
}

#[track_caller]
pub(super) fn any(ia: &Ia, evd: &Evd) -> (DAT_CONN_QUAL, Psp) {
    let mut qual = 0;
    let psp = filled(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), DAT_PSP_CONSUMER_FLAG, out));
    (qual, Psp::own(psp))
}

fn psp_create_any_returns_a_qualifier_from_1024_to_65535(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let (qual, psp) = any(&ia, &evd);
    assert!((1024..=0xffff).contains(&qual), "qualifier {qual} is not between 1024 and 65535");
    let param: DAT_PSP_PARAM = filled(|out| dat_psp_query(psp.h(), DAT_PSP_FIELD_ALL, out));
    assert_eq!(param.conn_qual, qual);
}

fn psp_create_any_returns_a_psp_that_can_be_connected_to(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let (qual, psp) = any(&ia, &evd);
    let (client, server) = (requester(&ia, qual), Conn::on(&ia));
    let event = expect_event(evd.h(), SOON);
    assert_eq!((event.arrival().conn_qual, event.service_point()), (qual, psp.h()));
    ConnectionRequest::own(event.arrival().cr_handle).accept(&server.ep);
    established(&client, &server);
}

fn psp_create_any_a_hundred_times_returns_distinct_qualifiers(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let all: Vec<(DAT_CONN_QUAL, Psp)> = (0..100).map(|_| any(&ia, &evd)).collect();
    assert_eq!(all.iter().map(|(qual, _)| *qual).collect::<BTreeSet<_>>().len(), 100);
}

fn psp_create_any_from_many_threads_returns_distinct_qualifiers(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let all: Vec<(DAT_CONN_QUAL, Psp)> = std::thread::scope(|scope| {
        let one = || (0..20).map(|_| any(&ia, &evd)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    assert_eq!(all.iter().map(|(qual, _)| *qual).collect::<BTreeSet<_>>().len(), 80);
}

fn psp_create_any_checks_the_psp_pointer_before_the_qualifier_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = cr_evd(&ia);
    let mut psp = DAT_HANDLE_NULL;
    bad_arg(dat_psp_create_any(ia.h(), null_mut(), evd.h(), DAT_PSP_CONSUMER_FLAG, null_mut()), 5);
    bad_arg(dat_psp_create_any(ia.h(), null_mut(), evd.h(), DAT_PSP_CONSUMER_FLAG, &mut psp), 2);
    assert!(psp.is_null());
}

fn psp_create_any_refuses_an_evd_without_the_cr_flag(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut qual) = (ia.evd(8, DAT_EVD_DTO_FLAG), 5);
    let flags = DAT_PSP_CONSUMER_FLAG;
    let code = untouched(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), flags, out));
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CR);
}

fn psp_create_any_with_unknown_flags_returns_invalid_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut qual) = (cr_evd(&ia), 5);
    bad_arg(untouched(|out| dat_psp_create_any(ia.h(), &mut qual, evd.h(), 4, out)), 4);
}

fn psp_create_any_that_is_refused_writes_nothing(ctx: &Ctx) {
    let ia = ctx.ia();
    let (evd, mut psp) = (cr_evd(&ia), DAT_HANDLE_NULL);
    bad_arg(untouched(|qual| dat_psp_create_any(ia.h(), qual, evd.h(), 4, &mut psp)), 4);
    assert!(psp.is_null());
}
