//! CNOs as objects: creation, queries, changes of the agent, freeing. A case blocks in `dat_cno_wait` only to
//! show that a CNO with a waiter is not freed. Other cases call it with timeout 0.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 3.1": cno_create_without_an_agent_leaves_the_cno_disarmed,
        "spec/events 3.1": cno_create_without_out_pointer_returns_invalid_arg3,
        "spec/events 3.1": cno_create_returns_an_untriggered_cno,
        "spec/events 3.3": cno_query_returns_the_ia_and_the_agent,
        "spec/events 3.3": cno_query_of_one_bit_writes_its_field,
        "spec/events 3.3": cno_query_with_an_empty_mask_succeeds,
        "spec/events 3.3": cno_query_without_a_record_returns_invalid_arg3,
        "spec/events 3.3": cno_query_unknown_mask_bits_return_invalid_arg2,
        "spec/events 3.3": cno_query_returns_no_agent_after_the_agent_was_called,
        "spec/events 3.2": cno_modify_agent_shows_in_the_query,
        "spec/events 3.2": cno_modify_agent_to_none_disarms_the_cno,
        "spec/events 3.4": cno_free_while_an_evd_uses_it_returns_in_use,
        "spec/events 3.4": cno_free_while_a_disabled_evd_uses_it_returns_in_use,
        "spec/events 3.4": cno_free_while_a_thread_waits_on_it_returns_in_use,
        "spec/events 3.4": cno_free_succeeds_after_its_evds_are_freed,
        "spec/events 3.4": cno_free_succeeds_while_triggered,
        "spec/events 3.4": cno_free_twice_returns_invalid_handle,
    ]
}

fn param(cno: &Cno) -> DAT_CNO_PARAM {
    filled(|out| dat_cno_query(cno.h(), DAT_CNO_FIELD_ALL, out))
}

/// Returns the instance data of the CNO's agent, and whether an agent function is set.
pub(super) fn armed(cno: &Cno) -> (usize, bool) {
    let agent = param(cno).agent;
    (agent.instance_data.addr(), agent.proxy_agent_func.is_some())
}

/// Checks that the CNO has no pending trigger.
#[track_caller]
pub(super) fn expect_untriggered(cno: &Cno) {
    let mut evd = null_mut();
    expect(dat_cno_wait(cno.h(), 0, &mut evd), DAT_QUEUE_EMPTY);
}

/// Returns the EVD that the CNO yields without a wait.
#[track_caller]
pub(super) fn next(cno: &Cno) -> DAT_EVD_HANDLE {
    filled(|evd| dat_cno_wait(cno.h(), 0, evd))
}

fn cno_create_without_an_agent_leaves_the_cno_disarmed(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    assert_eq!(armed(&cno), (0, false));
    cno.free();
}

fn cno_create_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(dat_cno_create(ia.h(), NO_AGENT, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    refused(dat_cno_create(ia.h(), Agent::default().arm(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn cno_create_returns_an_untriggered_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    expect_untriggered(&cno);
    assert_eq!(agent.count(), 0);
}

fn cno_query_returns_the_ia_and_the_agent(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default().arm();
    let cno = ia.cno_with(agent);
    assert_eq!(param(&cno).ia_handle, ia.h());
    assert_eq!(armed(&cno), (agent.instance_data.addr(), true));
}

fn cno_query_of_one_bit_writes_its_field(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default().arm();
    let cno = ia.cno_with(agent);
    let one = |mask| filled::<DAT_CNO_PARAM>(|out| dat_cno_query(cno.h(), mask, out));
    assert_eq!(one(DAT_CNO_FIELD_IA_HANDLE).ia_handle, ia.h());
    assert_eq!(one(DAT_CNO_FIELD_AGENT).agent.instance_data.addr(), agent.instance_data.addr());
}

fn cno_query_with_an_empty_mask_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let _: DAT_CNO_PARAM = filled(|out| dat_cno_query(cno.h(), 0, out));
}

fn cno_query_without_a_record_returns_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let code = dat_cno_query(cno.h(), DAT_CNO_FIELD_ALL, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn cno_query_unknown_mask_bits_return_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    for mask in [4, 7, 0x8000_0000] {
        let code = untouched(|out| dat_cno_query(cno.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn cno_query_returns_no_agent_after_the_agent_was_called(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    evd.post(1);
    agent.wait_for(1);
    assert_eq!(armed(&cno), (0, false));
}

fn cno_modify_agent_shows_in_the_query(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    for _ in 0..3 {
        let agent = Agent::default().arm();
        ok(dat_cno_modify_agent(cno.h(), agent));
        assert_eq!(armed(&cno), (agent.instance_data.addr(), true));
    }
}

fn cno_modify_agent_to_none_disarms_the_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_cno_modify_agent(cno.h(), NO_AGENT));
    assert_eq!(armed(&cno), (0, false));
    evd.post(1);
    assert_eq!(next(&cno), evd.h());
    assert_eq!(agent.count(), 0);
}

fn cno_free_while_an_evd_uses_it_returns_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let one = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    let other = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_modify_cno(other.h(), cno.h()));
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    one.free();
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    // The refused calls changed nothing: the CNO still triggers.
    other.post(1);
    assert_eq!(next(&cno), other.h());
}

fn cno_free_while_a_disabled_evd_uses_it_returns_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    ok(dat_evd_disable(evd.h()));
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
}

/// Checks that the CNO cannot be freed while the waiter waits on it.
fn assert_waiter_prevents_free(cno: &Cno, waiter: &Blocked<(DAT_RETURN, Handle)>) {
    assert!(!waiter.is_back());
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
}

fn cno_free_while_a_thread_waits_on_it_returns_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    assert_waiter_prevents_free(&cno, &waiter);
    // Posts an event that ends the waiter's wait.
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    evd.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
    evd.free();
    cno.free();
}

fn cno_free_succeeds_after_its_evds_are_freed(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..5).map(|_| ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG)).collect();
    for evd in evds {
        refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
        evd.post(1);
        evd.free();
    }
    cno.free();
}

fn cno_free_succeeds_while_triggered(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    evd.post(1);
    ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
    cno.free();
    assert_eq!(drain(evd.h()).len(), 1);
}

fn cno_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.cno().free();
    refused(dat_cno_free(dead), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
}
