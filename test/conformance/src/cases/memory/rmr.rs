//! RMRs as objects (spec/events 9.1): created, queried, freed, and which LMRs a bound RMR keeps in use.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::make::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/events 9.1": rmr_create_refuses_bad_pz_handles_and_a_null_pointer,
        "spec/events 9.1": rmr_query_of_an_unbound_rmr_returns_zeros,
        "spec/events 9.1": rmr_query_returns_the_bound_range,
        "spec/events 9.1": rmr_query_after_an_unbind_returns_zeros,
        "spec/events 9.1": rmr_query_returns_a_posted_bind_before_it_completes => pair(client_binds_behind_a_send, server_receives_one),
        "spec/events 9.1": rmr_query_refuses_a_bad_mask_and_a_null_record,
        "spec/events 9.1": rmr_query_and_free_refuse_handles_null_freed_or_of_another_kind,
        "spec/events 12.35": rmr_free_while_bound_releases_the_lmr,
        "spec/events 9.1": rmr_free_while_bound_invalidates_the_context => pair(client_is_cut_off, server_frees_its_window),
        "spec/events 9.1": rmr_free_with_a_queued_bind_succeeds => pair(client_frees_behind_a_send, server_receives_one),
        "spec/events 9.1": rmr_free_releases_its_pz,
        "spec/events 9.1": rmr_bind_of_ten_rmrs_to_one_lmr_succeeds,
        "spec/events 8.2": rmr_that_is_bound_keeps_its_lmr_in_use,
        "spec/events 8.2": rmr_bound_to_another_lmr_releases_the_first_lmr,
        "spec/events 9.2": rmr_unbind_releases_the_lmr,
        "spec/events 13.3": rmr_repeated_unbind_releases_the_lmr_once,
    ];
    all.into_iter().map(|case| case.needs(Need::Rmr)).collect()
}

fn rmr_create_refuses_bad_pz_handles_and_a_null_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for bad in [DAT_HANDLE_NULL, ia.h(), ia.pz().free()] {
        refused(untouched(|out| dat_rmr_create(bad, out)), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    }
    refused(dat_rmr_create(pz.h(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn rmr_query_of_an_unbound_rmr_returns_zeros(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let rmr = pz.rmr();
    let param = rmr_param(&rmr);
    assert!(param.ia_handle == ia.h() && param.pz_handle == pz.h(), "the query returns another IA or PZ");
    expect_unbound(&rmr);
    // Queries all fields except the triplet, as a test of the reference implementation does.
    let _: DAT_RMR_PARAM = filled(|out| dat_rmr_query(rmr.h(), DAT_RMR_FIELD_ALL & !DAT_RMR_FIELD_LMR_TRIPLET, out));
}

fn rmr_query_returns_the_bound_range(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(1000);
    let rmr = client.pz.rmr();
    let target = bind(&client, &rmr, memory.segment(100, 200), REMOTE);
    let param = rmr_param(&rmr);
    let DAT_LMR_TRIPLET { lmr_context, virtual_address, segment_length, .. } = param.lmr_triplet;
    assert_eq!((lmr_context, virtual_address, segment_length), (memory.lmr_context, memory.address(100), 200));
    assert_eq!((param.mem_priv & REMOTE, param.rmr_context), (REMOTE, target.rmr_context));
    unbind(&client, &rmr);
}

fn rmr_query_after_an_unbind_returns_zeros(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(1000);
    let rmr = client.pz.rmr();
    for _ in 0..3 {
        bind(&client, &rmr, memory.segment(0, 200), REMOTE);
        unbind(&client, &rmr);
        expect_unbound(&rmr);
    }
}

/// Posts a bind behind a send. A query returns the last posted bind, even if the bind has not started.
fn client_binds_behind_a_send(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    let rmr = conn.pz.rmr();
    conn.post_send(1, memory.segment(0, 100));
    let context = post_bind(&conn, &rmr, 2, memory.segment(0, 100), REMOTE);
    assert_eq!(rmr_param(&rmr).rmr_context, context);
    refused(dat_lmr_free(memory.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    expect_rmr(conn.request.h(), rmr.h(), 2, DAT_RMR_BIND_SUCCESS);
    unbind(&conn, &rmr);
    ctx.meet();
}

/// Posts one receive when the client asks for it, and stays connected until the client has finished.
fn server_receives_one(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.meet();
    conn.post_recv(1, memory.segment(0, 100));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn rmr_query_refuses_a_bad_mask_and_a_null_record(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let rmr = pz.rmr();
    for mask in [0x20, DAT_RMR_FIELD_ALL | 0x40, 1 << 31] {
        let code = untouched::<DAT_RMR_PARAM>(|out| dat_rmr_query(rmr.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    refused(dat_rmr_query(rmr.h(), DAT_RMR_FIELD_ALL, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn rmr_query_and_free_refuse_handles_null_freed_or_of_another_kind(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let dead = pz.rmr().free();
    for bad in [DAT_HANDLE_NULL, pz.h(), dead] {
        let code = untouched::<DAT_RMR_PARAM>(|out| dat_rmr_query(bad, DAT_RMR_FIELD_ALL, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RMR);
        refused(dat_rmr_free(bad), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RMR);
    }
}

fn rmr_free_while_bound_releases_the_lmr(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let mut memory = client.memory(1000);
    let rmr = client.pz.rmr();
    bind(&client, &rmr, memory.segment(0, 1000), REMOTE);
    rmr.free();
    memory.deregister();
}

fn client_is_cut_off(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let target = ctx.receive_target();
    conn.post_write(1, memory.segment(0, 100), target);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    ctx.meet();
    ctx.meet();
    conn.post_write(2, memory.segment(0, 100), target);
    expect_dto(conn.request.h(), 2, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_frees_its_window(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    let rmr = conn.pz.rmr();
    ctx.send_target(bind(&conn, &rmr, memory.segment(0, 1000), REMOTE));
    ctx.meet();
    rmr.free();
    ctx.meet();
    expect_lost(&conn);
    ctx.meet();
}

/// Frees an RMR whose bind waits behind a send. The bind completes, with success or a failure, and its event names the
/// freed RMR.
fn client_frees_behind_a_send(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(1000);
    let rmr = conn.pz.rmr();
    conn.post_send(1, memory.segment(0, 100));
    post_bind(&conn, &rmr, 2, memory.segment(0, 100), REMOTE);
    let dead = rmr.free();
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    let data = expect_event(conn.request.h(), SOON).rmr();
    assert_eq!((data.rmr_handle == dead, context_bits(data.user_cookie)), (true, 2));
    memory.deregister();
    ctx.meet();
}

fn rmr_free_releases_its_pz(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let rmr = pz.rmr();
    refused(dat_pz_free(pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    rmr.free();
    pz.free();
}

fn rmr_bind_of_ten_rmrs_to_one_lmr_succeeds(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let mut memory = client.memory(1000);
    let rmrs: Vec<Rmr> = (0..10).map(|_| client.pz.rmr()).collect();
    for (n, rmr) in rmrs.iter().enumerate() {
        bind(&client, rmr, memory.segment(n * 100, 100), REMOTE);
    }
    for rmr in rmrs {
        refused(dat_lmr_free(memory.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
        rmr.free();
    }
    memory.deregister();
}

fn rmr_that_is_bound_keeps_its_lmr_in_use(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(1000);
    let rmr = client.pz.rmr();
    bind(&client, &rmr, memory.segment(0, 1000), REMOTE);
    for _ in 0..2 {
        refused(dat_lmr_free(memory.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    }
    // The refused free left the LMR usable.
    let _: DAT_LMR_PARAM = filled(|out| dat_lmr_query(memory.h(), DAT_LMR_FIELD_ALL, out));
    unbind(&client, &rmr);
}

fn rmr_bound_to_another_lmr_releases_the_first_lmr(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let (mut first, mut second) = (client.memory(1000), client.memory(1000));
    let rmr = client.pz.rmr();
    bind(&client, &rmr, first.segment(0, 1000), REMOTE);
    bind(&client, &rmr, second.segment(0, 1000), REMOTE);
    first.deregister();
    refused(dat_lmr_free(second.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    unbind(&client, &rmr);
    second.deregister();
}

fn rmr_unbind_releases_the_lmr(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let mut memory = client.memory(1000);
    let rmr = client.pz.rmr();
    bind(&client, &rmr, memory.segment(0, 1000), REMOTE);
    unbind(&client, &rmr);
    memory.deregister();
    // Unbinding an unbound RMR is not an error.
    unbind(&client, &rmr);
}

fn rmr_repeated_unbind_releases_the_lmr_once(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let mut memory = client.memory(1000);
    let (one, other) = (client.pz.rmr(), client.pz.rmr());
    bind(&client, &one, memory.segment(0, 1), REMOTE);
    bind(&client, &other, memory.segment(0, 1), REMOTE);
    // Unbinding the first RMR three times does not unbind the second.
    (0..3).for_each(|_| unbind(&client, &one));
    refused(dat_lmr_free(memory.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    unbind(&client, &other);
    memory.deregister();
}
