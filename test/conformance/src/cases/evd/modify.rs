//! `dat_evd_query`, and the calls that change the CNO, the enabled state and the waitable state of an EVD. Changes of
//! the length are in `resize`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 2.2": evd_query_without_a_record_returns_invalid_arg3,
        "spec/events 2.2": evd_query_unknown_mask_bits_return_invalid_arg2,
        "spec/events 2.2": evd_query_of_one_bit_writes_its_field,
        "spec/events 2.2": evd_query_with_an_empty_mask_succeeds,
        "spec/events 2.2": evd_query_of_the_async_evd_returns_its_initial_parameters,
        "spec/events 1.3": evd_query_returns_the_cno_and_the_ia,
        "spec/events 2.3": evd_modify_cno_replaces_and_detaches_the_cno,
        "spec/events 2.3": evd_modify_cno_moves_the_reference,
        "spec/events 2.3": evd_modify_cno_attaches_a_cno_to_the_async_evd,
        "spec/events 2.3": evd_modify_cno_to_the_same_cno_keeps_one_reference,
        "spec/events 2.4": evd_enable_and_disable_show_in_the_query,
        "spec/events 2.9": evd_set_and_clear_unwaitable_show_in_the_query,
        "spec/events 12": evd_disabled_and_unwaitable_are_independent,
    ]
}

/// The two pairs of mutually exclusive state bits.
pub(super) const PAIRS: DAT_EVD_STATE =
    DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_WAITABLE | DAT_EVD_STATE_UNWAITABLE;

fn evd_query_without_a_record_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let code = dat_evd_query(evd.h(), DAT_EVD_FIELD_ALL, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn evd_query_unknown_mask_bits_return_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    for mask in [0x20, 0x3f, 0x8000_0000] {
        let code = untouched(|out| dat_evd_query(evd.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn evd_query_of_one_bit_writes_its_field(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_CR_FLAG);
    let all = evd.param();
    let one = |mask| filled::<DAT_EVD_PARAM>(|out| dat_evd_query(evd.h(), mask, out));
    assert_eq!(one(DAT_EVD_FIELD_IA_HANDLE).ia_handle, ia.h());
    assert_eq!(one(DAT_EVD_FIELD_EVD_QLEN).evd_qlen, all.evd_qlen);
    assert_eq!(one(DAT_EVD_FIELD_EVD_STATE).evd_state, all.evd_state);
    assert_eq!(one(DAT_EVD_FIELD_CNO).cno_handle, cno.h());
    assert_eq!(one(DAT_EVD_FIELD_EVD_FLAGS).evd_flags, DAT_EVD_CR_FLAG);
}

fn evd_query_with_an_empty_mask_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let _: DAT_EVD_PARAM = filled(|out| dat_evd_query(evd.h(), 0, out));
}

fn evd_query_of_the_async_evd_returns_its_initial_parameters(ctx: &Ctx) {
    let ia = ctx.ia();
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_ALL, out));
    assert_eq!((param.ia_handle, param.cno_handle), (ia.h(), DAT_HANDLE_NULL));
    assert_eq!(param.evd_flags, DAT_EVD_ASYNC_FLAG);
    assert!(param.evd_qlen >= 8, "the EVD has length {}, wanted at least 8", param.evd_qlen);
    assert_eq!(param.evd_state & PAIRS, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
}

fn evd_query_returns_the_cno_and_the_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (on, off) = (ia.evd_on(&cno, 8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_DTO_FLAG));
    assert_eq!((on.param().ia_handle, on.param().cno_handle), (ia.h(), cno.h()));
    assert_eq!((off.param().ia_handle, off.param().cno_handle), (ia.h(), DAT_HANDLE_NULL));
    assert_eq!(on.param().evd_state & DAT_EVD_STATE_CONFIG_THRESHOLD, DAT_EVD_STATE_CONFIG_THRESHOLD);
}

fn evd_modify_cno_replaces_and_detaches_the_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let (one, other) = (ia.cno(), ia.cno());
    let evd = ia.evd_on(&one, 8, DAT_EVD_SOFTWARE_FLAG);
    for cno in [other.h(), one.h(), DAT_HANDLE_NULL, DAT_HANDLE_NULL, other.h()] {
        ok(dat_evd_modify_cno(evd.h(), cno));
        assert_eq!(evd.param().cno_handle, cno);
    }
}

fn evd_modify_cno_moves_the_reference(ctx: &Ctx) {
    let ia = ctx.ia();
    let (one, other) = (ia.cno(), ia.cno());
    let evd = ia.evd_on(&one, 8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_modify_cno(evd.h(), other.h()));
    one.free();
    refused(dat_cno_free(other.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
    other.free();
}

fn evd_modify_cno_attaches_a_cno_to_the_async_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    ok(dat_evd_modify_cno(ia.errors(), cno.h()));
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_ALL, out));
    assert_eq!(param.cno_handle, cno.h());
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    ok(dat_evd_modify_cno(ia.errors(), DAT_HANDLE_NULL));
}

fn evd_modify_cno_to_the_same_cno_keeps_one_reference(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_modify_cno(evd.h(), cno.h()));
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    evd.free();
    cno.free();
}

fn evd_enable_and_disable_show_in_the_query(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let state = || evd.param().evd_state & PAIRS;
    // Repeats each call: setting the same state twice is not an error.
    for _ in 0..2 {
        ok(dat_evd_disable(evd.h()));
        ok(dat_evd_disable(evd.h()));
        assert_eq!(state(), DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_WAITABLE);
        ok(dat_evd_enable(evd.h()));
        ok(dat_evd_enable(evd.h()));
        assert_eq!(state(), DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
    }
}

fn evd_set_and_clear_unwaitable_show_in_the_query(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let state = || evd.param().evd_state & PAIRS;
    for _ in 0..2 {
        ok(dat_evd_set_unwaitable(evd.h()));
        ok(dat_evd_set_unwaitable(evd.h()));
        assert_eq!(state(), DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_UNWAITABLE);
        ok(dat_evd_clear_unwaitable(evd.h()));
        ok(dat_evd_clear_unwaitable(evd.h()));
        assert_eq!(state(), DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
    }
}

fn evd_disabled_and_unwaitable_are_independent(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_disable(evd.h()));
    evd.post(1);
    assert_eq!(expect_event(evd.h(), SOON).software().addr(), 1, "the wait on a disabled EVD returned another event");
    ok(dat_evd_set_unwaitable(evd.h()));
    assert_eq!(evd.param().evd_state & PAIRS, DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_UNWAITABLE);
    evd.post(2);
    assert_eq!(
        dequeue(evd.h()).map(|event| event.software().addr()),
        Some(2),
        "the event is not queued on the unwaitable EVD"
    );
    ok(dat_evd_enable(evd.h()));
    assert_eq!(evd.param().evd_state & PAIRS, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_UNWAITABLE);
}
