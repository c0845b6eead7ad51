//! `dat_evd_free`: queued events are dropped, queued connection requests are rejected, and an EVD in use is not freed.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 2.10": evd_free_drops_queued_events,
        "spec/events 2.10": evd_free_rejects_a_queued_connection_request,
        "spec/events 2.10": evd_free_of_the_async_evd_created_by_open_is_refused,
        "spec/events 2.10": evd_free_while_a_psp_uses_it_returns_in_use,
        "spec/events 2.10": evd_free_while_an_rsp_uses_it_returns_in_use,
        "spec/events 2.10": evd_free_twice_returns_invalid_handle,
    ];
    for (word, role) in [("recv", 0), ("request", 1), ("connect", 2)] {
        let case = local(move |ctx| is_in_use_by_an_ep(ctx, role));
        all.push(case.named(format!("evd_free_of_the_{word}_evd_of_an_ep_returns_in_use")).proves("spec/events 2.10"));
    }
    all
}

fn evd_free_drops_queued_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    for number in 1..=8 {
        evd.post(number);
    }
    evd.free();
    expect_nothing(ia.errors());
}

fn evd_free_rejects_a_queued_connection_request(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &evd);
    let client = Conn::on(&ia);
    client.connect(&ia.address(), ctx.qual(0));
    // The CNO reports the event of the request without dequeuing it.
    let reported: DAT_EVD_HANDLE = filled(|out| dat_cno_wait(cno.h(), micros(SOON), out));
    assert_eq!(reported, evd.h());
    psp.free();
    evd.free();
    client.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn evd_free_of_the_async_evd_created_by_open_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(dat_evd_free(ia.errors()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_ASYNC);
    expect_nothing(ia.errors());
}

fn is_in_use_by_an_ep(ctx: &Ctx, role: usize) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evds = [ia.evd(8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_CONNECTION_FLAG)];
    let ep = ia.ep(&pz, &evds[0], &evds[1], &evds[2]);
    refused(dat_evd_free(evds[role].h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    expect_nothing(evds[role].h());
    ep.free();
    for evd in evds {
        evd.free();
    }
}

fn evd_free_while_a_psp_uses_it_returns_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &evd);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    psp.free();
    evd.free();
}

fn evd_free_while_an_rsp_uses_it_returns_in_use(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let evd = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let rsp = conn.ia.rsp(ctx.qual(0), &conn.ep, &evd);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    rsp.free();
    evd.free();
}

fn evd_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.evd(8, DAT_EVD_SOFTWARE_FLAG).free();
    refused(dat_evd_free(dead), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
}
