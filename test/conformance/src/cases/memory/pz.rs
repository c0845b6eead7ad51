//! Protection zones as objects (spec/events 7): created, queried, freed, and not freed while in use.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 7": pz_query_returns_its_ia,
        "spec/events 7": pz_create_refuses_bad_ia_handles_and_a_null_pointer,
        "spec/events 7": pz_query_refuses_a_bad_mask_and_a_null_record,
        "spec/events 7": pz_query_and_free_refuse_handles_null_freed_or_of_another_kind,
        "spec/events 7": pz_free_succeeds_while_an_evd_exists,
        "spec/events 7": pz_free_twice_returns_invalid_handle,
        "spec/events 7": pz_create_200_times_returns_distinct_handles,
    ];
    let kinds = [
        ("an_ep", ObjectKind::Ep),
        ("an_lmr", ObjectKind::Lmr),
        ("an_rmr", ObjectKind::Rmr),
        ("an_srq", ObjectKind::Srq),
    ];
    all.extend(kinds.map(|(words, kind)| {
        let case = local(move |ctx| is_in_use(ctx, kind)).named(format!("pz_free_is_refused_while_{words}_uses_it"));
        let case = case.proves("spec/events 7");
        match kind {
            ObjectKind::Rmr => case.needs(Need::Rmr),
            ObjectKind::Srq => case.needs(Need::Srq),
            _ => case,
        }
    }));
    all
}

fn pz_query_returns_its_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let param: DAT_PZ_PARAM = filled(|out| dat_pz_query(pz.h(), DAT_PZ_FIELD_ALL, out));
    assert!(param.ia_handle == ia.h(), "the query returns another IA");
}

fn pz_create_refuses_bad_ia_handles_and_a_null_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for bad in [DAT_HANDLE_NULL, pz.h(), ctx.ia().close()] {
        refused(untouched(|out| dat_pz_create(bad, out)), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
    refused(dat_pz_create(ia.h(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn pz_query_refuses_a_bad_mask_and_a_null_record(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for mask in [2, 3, 1 << 31] {
        let code = untouched::<DAT_PZ_PARAM>(|out| dat_pz_query(pz.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    refused(dat_pz_query(pz.h(), DAT_PZ_FIELD_ALL, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn pz_query_and_free_refuse_handles_null_freed_or_of_another_kind(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.pz().free();
    for bad in [DAT_HANDLE_NULL, ia.h(), dead] {
        let code = untouched::<DAT_PZ_PARAM>(|out| dat_pz_query(bad, DAT_PZ_FIELD_ALL, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
        refused(dat_pz_free(bad), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    }
}

fn pz_free_succeeds_while_an_evd_exists(ctx: &Ctx) {
    let ia = ctx.ia();
    let _evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    ia.pz().free();
}

fn pz_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.pz().free();
    refused(dat_pz_free(dead), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
}

fn pz_create_200_times_returns_distinct_handles(ctx: &Ctx) {
    let ia = ctx.ia();
    let zones: Vec<Pz> = (0..200).map(|_| ia.pz()).collect();
    let mut handles: Vec<_> = zones.iter().map(|pz| pz.h().addr()).collect();
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), 200);
}

fn is_in_use(ctx: &Ctx, kind: ObjectKind) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evds = [DAT_EVD_DTO_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_CONNECTION_FLAG].map(|flag| ia.evd(8, flag));
    let user: Box<dyn std::any::Any> = match kind {
        ObjectKind::Ep => Box::new(ia.ep(&pz, &evds[0], &evds[1], &evds[2])),
        ObjectKind::Lmr => Box::new(ia.memory(&pz, 100)),
        ObjectKind::Rmr => Box::new(pz.rmr()),
        _ => Box::new(ia.srq(&pz, 4, 1)),
    };
    for _ in 0..2 {
        refused(dat_pz_free(pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    }
    // The refused free left the PZ usable.
    let param: DAT_PZ_PARAM = filled(|out| dat_pz_query(pz.h(), DAT_PZ_FIELD_ALL, out));
    assert!(param.ia_handle == ia.h());
    let one_more = ia.memory(&pz, 100);
    drop(one_more);
    drop(user);
    pz.free();
}
