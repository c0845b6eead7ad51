//! The async EVD of an adapter: created by the open, passed by the consumer (also of another adapter), or out of scope
//! (`DAT_EVD_ASYNC_EXISTS`). Invalid values are refused.
#![forbid(unsafe_code)]

use std::ptr::{null_mut, without_provenance_mut};

use crate::kit::*;

/// Returns the value to pass as the async EVD.
type Value = fn(&OneOfEach) -> DAT_HANDLE;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/registry 4.3": ia_open_without_async_evd_pointer_returns_invalid_arg3,
        "spec/registry 4.3": ia_async_evd_created_by_open_is_freed_by_close,
        "spec/registry 4.3": ia_async_length_is_ignored_for_an_existing_evd,
        "spec/registry 4.3": ia_async_evd_of_another_adapter_is_accepted,
        "spec/registry 4.3": ia_close_keeps_an_async_evd_that_belongs_to_another_adapter,
        "spec/registry 4.3": ia_async_evd_created_by_the_consumer_is_accepted,
        "spec/registry 4.3": ia_async_evd_with_other_streams_is_accepted,
        "spec/registry 4.3": ia_close_graceful_is_refused_while_five_others_use_its_async_evd,
        "spec/registry 6.2": ia_close_graceful_is_refused_while_another_adapter_uses_its_async_evd,
        "spec/registry 6.2": ia_with_another_adapters_async_evd_closes_after_its_pz_is_freed,
        "spec/events 2.10": ia_async_evd_used_by_an_adapter_cannot_be_freed,
        "spec/registry 6.3": ia_close_abrupt_leaves_an_ia_that_uses_its_async_evd_usable,
        "spec/registry 4.3": ia_open_with_evd_async_exists_returns_evd_out_of_scope,
        "spec/registry 4.3": ia_query_returns_evd_out_of_scope_after_open_with_evd_async_exists,
        "spec/registry 4.3": ia_with_evd_out_of_scope_closes_after_its_pz_is_freed,
        "spec/registry 4.3": ia_async_stale_evd_handle_is_refused,
    ];
    let refused: [(&str, Value); 9] = [
        ("the_value_evd_out_of_scope", |_| DAT_EVD_OUT_OF_SCOPE),
        ("a_small_number", |_| without_provenance_mut(3)),
        ("an_aligned_number", |_| without_provenance_mut(0x10)),
        ("an_unmapped_address", |_| without_provenance_mut(0x7000_0000_0000)),
        ("an_adapter", |objects| filled(|out| dats_get_ia_handle(objects.ia.h(), out))),
        ("a_pz", |objects| objects.pz.h()),
        ("an_ep", |objects| objects.ep.h()),
        ("an_evd_of_dtos", |objects| objects.recv.h()),
        ("an_evd_of_software_events", |objects| objects.evd.h()),
    ];
    for (word, value) in refused {
        let case = local(move |ctx| is_refused(ctx, value));
        all.push(case.named(format!("ia_open_refuses_{word}_as_async_evd")).proves("spec/registry 4.3"));
    }
    all
}

/// Opens with this value as the async EVD. Returns the code, the adapter, and the value afterwards.
fn open(ctx: &Ctx, length: DAT_COUNT, value: DAT_EVD_HANDLE) -> (DAT_RETURN, DAT_IA_HANDLE, DAT_EVD_HANDLE) {
    let (name, mut errors, mut ia) = (ctx.name(), value, DAT_HANDLE_NULL);
    let code = dat_ia_openv(name.as_ptr().cast_mut(), length, &mut errors, &mut ia, 1, 2, DAT_FALSE);
    (code, ia, errors)
}

/// Same as `open`, for a call that must succeed.
#[track_caller]
fn opened(ctx: &Ctx, length: DAT_COUNT, value: DAT_EVD_HANDLE) -> (DAT_IA_HANDLE, DAT_EVD_HANDLE) {
    let (code, ia, errors) = open(ctx, length, value);
    ok(code);
    (ia, errors)
}

#[track_caller]
fn close(ia: DAT_IA_HANDLE) {
    ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

fn reported(ia: DAT_IA_HANDLE) -> DAT_EVD_HANDLE {
    filled(|evd| dat_ia_query(ia, evd, 0, null_mut(), 0, null_mut()))
}

fn is_refused(ctx: &Ctx, value: Value) {
    let objects = OneOfEach::of(ctx);
    let value = value(&objects);
    let (code, ia, errors) = open(ctx, 8, value);
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_ASYNC);
    assert!(ia.is_null());
    assert_eq!(errors, value, "a failed open changed the async EVD handle");
    objects.expect_alive();
}

fn ia_open_without_async_evd_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let (name, mut ia) = (ctx.name(), DAT_HANDLE_NULL);
    let code = dat_ia_openv(name.as_ptr().cast_mut(), 8, null_mut(), &mut ia, 1, 2, DAT_FALSE);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    assert!(ia.is_null());
}

fn ia_async_evd_created_by_open_is_freed_by_close(ctx: &Ctx) {
    let (ia, errors) = opened(ctx, 8, null_mut());
    assert!(!errors.is_null());
    assert_eq!(reported(ia), errors);
    expect_nothing(errors);
    close(ia);
    let code = untouched(|event| dat_evd_dequeue(errors, event));
    refused(code, DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
}

fn ia_async_length_is_ignored_for_an_existing_evd(ctx: &Ctx) {
    let owner = ctx.ia();
    for length in [0, -1, DAT_COUNT::MAX] {
        let (ia, errors) = opened(ctx, length, owner.errors());
        assert_eq!(errors, owner.errors());
        close(ia);
        let (ia, _) = opened(ctx, length, DAT_EVD_ASYNC_EXISTS);
        close(ia);
    }
}

fn ia_async_evd_of_another_adapter_is_accepted(ctx: &Ctx) {
    let owner = ctx.ia();
    let (ia, errors) = opened(ctx, 8, owner.errors());
    assert_eq!((errors, reported(ia)), (owner.errors(), owner.errors()));
    assert_ne!(ia, owner.h());
    close(ia);
}

fn ia_close_keeps_an_async_evd_that_belongs_to_another_adapter(ctx: &Ctx) {
    let owner = ctx.ia();
    for flag in [DAT_CLOSE_GRACEFUL_FLAG, DAT_CLOSE_ABRUPT_FLAG] {
        let (ia, errors) = opened(ctx, 8, owner.errors());
        ok(dat_ia_close(ia, flag));
        expect_nothing(errors);
        assert_eq!(reported(owner.h()), errors);
    }
}

fn ia_async_evd_created_by_the_consumer_is_accepted(ctx: &Ctx) {
    let owner = ctx.ia();
    let evd = owner.evd(16, DAT_EVD_ASYNC_FLAG);
    let (ia, errors) = opened(ctx, 8, evd.h());
    assert_eq!((errors, reported(ia)), (evd.h(), evd.h()));
    close(ia);
    evd.free();
}

fn ia_async_evd_with_other_streams_is_accepted(ctx: &Ctx) {
    let owner = ctx.ia();
    let evd = owner.evd(16, DAT_EVD_ASYNC_FLAG | DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DTO_FLAG);
    let (ia, _) = opened(ctx, 8, evd.h());
    evd.post(1);
    close(ia);
    assert_eq!(drain(evd.h()).len(), 1);
}

fn ia_close_graceful_is_refused_while_five_others_use_its_async_evd(ctx: &Ctx) {
    let owner = ctx.ia();
    let borrowers: Vec<Handle> = (0..5).map(|_| Handle::of(opened(ctx, 8, owner.errors()).0)).collect();
    for ia in &borrowers {
        let code = dat_ia_close(owner.h(), DAT_CLOSE_GRACEFUL_FLAG);
        refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
        close(ia.h());
    }
}

fn ia_close_graceful_is_refused_while_another_adapter_uses_its_async_evd(ctx: &Ctx) {
    let owner = ctx.ia();
    let (ia, _) = opened(ctx, 8, owner.errors());
    let code = dat_ia_close(owner.h(), DAT_CLOSE_GRACEFUL_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    expect_nothing(owner.errors());
    close(ia);
    owner.close();
}

fn ia_with_another_adapters_async_evd_closes_after_its_pz_is_freed(ctx: &Ctx) {
    let owner = ctx.ia();
    let (ia, _) = opened(ctx, 8, owner.errors());
    let pz: DAT_PZ_HANDLE = filled(|out| dat_pz_create(ia, out));
    let code = dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    ok(dat_pz_free(pz));
    close(ia);
}

fn ia_async_evd_used_by_an_adapter_cannot_be_freed(ctx: &Ctx) {
    let owner = ctx.ia();
    let evd = owner.evd(16, DAT_EVD_ASYNC_FLAG);
    let (ia, _) = opened(ctx, 8, evd.h());
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    close(ia);
    evd.free();
}

fn ia_close_abrupt_leaves_an_ia_that_uses_its_async_evd_usable(ctx: &Ctx) {
    let owner = ctx.ia();
    let (ia, errors) = opened(ctx, 8, owner.errors());
    ok(dat_ia_close(owner.leak(), DAT_CLOSE_ABRUPT_FLAG));
    let code = untouched(|event| dat_evd_dequeue(errors, event));
    refused(code, DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
    let pz: DAT_PZ_HANDLE = filled(|out| dat_pz_create(ia, out));
    ok(dat_pz_free(pz));
    close(ia);
}

fn ia_open_with_evd_async_exists_returns_evd_out_of_scope(ctx: &Ctx) {
    let (ia, errors) = opened(ctx, 8, DAT_EVD_ASYNC_EXISTS);
    assert_eq!(errors, DAT_EVD_OUT_OF_SCOPE);
    close(ia);
}

fn ia_query_returns_evd_out_of_scope_after_open_with_evd_async_exists(ctx: &Ctx) {
    let (ia, _) = opened(ctx, 8, DAT_EVD_ASYNC_EXISTS);
    assert_eq!(reported(ia), DAT_EVD_OUT_OF_SCOPE);
    close(ia);
}

fn ia_with_evd_out_of_scope_closes_after_its_pz_is_freed(ctx: &Ctx) {
    let (ia, _) = opened(ctx, 8, DAT_EVD_ASYNC_EXISTS);
    let pz: DAT_PZ_HANDLE = filled(|out| dat_pz_create(ia, out));
    let code = dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    ok(dat_pz_free(pz));
    close(ia);
}

/// Imitates a program that keeps the EVD handle in a static variable and passes it to the next open.
fn ia_async_stale_evd_handle_is_refused(ctx: &Ctx) {
    let (ia, stale) = opened(ctx, 8, null_mut());
    close(ia);
    let (code, ia, errors) = open(ctx, 8, stale);
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_ASYNC);
    assert!(ia.is_null());
    assert_eq!(errors, stale);
}
