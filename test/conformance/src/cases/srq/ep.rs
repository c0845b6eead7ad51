//! EPs created with a shared queue: accepted and refused arguments of `dat_ep_create_with_srq`.
#![forbid(unsafe_code)]

use std::ptr::{null, null_mut};

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/events 5.7": srq_ep_create_refuses_a_bad_ia,
        "spec/events 5.7": srq_ep_create_refuses_a_bad_pz,
        "spec/events 5.7": srq_ep_create_refuses_bad_evds,
        "spec/events 5.7": srq_ep_create_refuses_a_handle_that_is_no_srq,
        "spec/events 5.7": srq_ep_create_refuses_a_freed_srq,
        "spec/events 5.7": srq_ep_create_refuses_null_attributes,
        "spec/events 5.7": srq_ep_create_refuses_bad_watermarks,
        "spec/events 5.7": srq_ep_create_refuses_a_null_handle_pointer,
        "spec/events 5.7": srq_ep_create_accepts_an_evd_shorter_than_the_watermark,
        "spec/events 5.7": srq_ep_create_ignores_receive_segments,
        "spec/events 5.7": srq_ep_create_accepts_a_null_connect_evd,
        "spec/events 5.7": srq_ep_create_accepts_another_pz_than_the_srqs,
    ];
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

/// Handles for a call of `dat_ep_create_with_srq`, valid except for the field that a case changes.
#[derive(Clone, Copy)]
struct SrqEpArgs {
    ia: DAT_HANDLE,
    pz: DAT_HANDLE,
    recv: DAT_HANDLE,
    request: DAT_HANDLE,
    events: DAT_HANDLE,
    srq: DAT_HANDLE,
}

impl SrqEpArgs {
    fn of(pool: &Pool) -> Self {
        SrqEpArgs {
            ia: pool.ia.h(),
            pz: pool.pz.h(),
            recv: pool.recv.h(),
            request: pool.request.h(),
            events: pool.events.h(),
            srq: pool.srq.h(),
        }
    }

    fn create(self, attr: *const DAT_EP_ATTR) -> DAT_RETURN {
        let SrqEpArgs { ia, pz, recv, request, events, srq } = self;
        untouched(|out| dat_ep_create_with_srq(ia, pz, recv, request, events, srq, attr, out))
    }
}

fn srq_ep_create_refuses_a_bad_ia(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for ia in [null_mut(), pool.pz.h()] {
        bad_handle(SrqEpArgs { ia, ..SrqEpArgs::of(&pool) }.create(&unmarked()), DAT_INVALID_HANDLE_IA);
    }
}

fn srq_ep_create_refuses_a_bad_pz(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let dead = pool.ia.pz().free();
    for pz in [pool.srq.h(), dead] {
        bad_handle(SrqEpArgs { pz, ..SrqEpArgs::of(&pool) }.create(&unmarked()), DAT_INVALID_HANDLE_PZ);
    }
}

fn srq_ep_create_refuses_bad_evds(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let given = SrqEpArgs::of(&pool);
    let software = pool.ia.evd(4, DAT_EVD_SOFTWARE_FLAG);
    let dead = pool.ia.evd(4, DAT_EVD_DEFAULT_FLAG).free();
    for evd in [pool.pz.h(), dead, software.h()] {
        bad_handle(SrqEpArgs { recv: evd, ..given }.create(&unmarked()), DAT_INVALID_HANDLE_EVD_RECV);
        bad_handle(SrqEpArgs { request: evd, ..given }.create(&unmarked()), DAT_INVALID_HANDLE_EVD_REQUEST);
        bad_handle(SrqEpArgs { events: evd, ..given }.create(&unmarked()), DAT_INVALID_HANDLE_EVD_CONN);
    }
    bad_handle(SrqEpArgs { recv: pool.events.h(), ..given }.create(&unmarked()), DAT_INVALID_HANDLE_EVD_RECV);
    bad_handle(SrqEpArgs { events: pool.recv.h(), ..given }.create(&unmarked()), DAT_INVALID_HANDLE_EVD_CONN);
}

fn srq_ep_create_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for srq in [null_mut(), pool.pz.h(), pool.ia.h()] {
        bad_handle(SrqEpArgs { srq, ..SrqEpArgs::of(&pool) }.create(&unmarked()), DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_ep_create_refuses_a_freed_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let srq = pool.ia.srq(&pool.pz, 4, 1).free();
    bad_handle(SrqEpArgs { srq, ..SrqEpArgs::of(&pool) }.create(&unmarked()), DAT_INVALID_HANDLE_SRQ);
}

fn srq_ep_create_refuses_null_attributes(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    bad_arg(SrqEpArgs::of(&pool).create(null()), 7);
}

fn srq_ep_create_refuses_bad_watermarks(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for mark in [-2, DAT_COUNT::MIN] {
        bad_arg(SrqEpArgs::of(&pool).create(&marked(mark, -1)), 7);
        bad_arg(SrqEpArgs::of(&pool).create(&marked(-1, mark)), 7);
    }
}

fn srq_ep_create_refuses_a_null_handle_pointer(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let SrqEpArgs { ia, pz, recv, request, events, srq } = SrqEpArgs::of(&pool);
    bad_arg(dat_ep_create_with_srq(ia, pz, recv, request, events, srq, &unmarked(), null_mut()), 8);
}

fn srq_ep_create_accepts_an_evd_shorter_than_the_watermark(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    let recv = pool.ia.evd(1, DAT_EVD_DTO_FLAG);
    let _ep = pool.ep_in(&pool.pz, &recv, &marked(-1, 100));
}

fn srq_ep_create_ignores_receive_segments(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for max_recv_iov in [0, 1, -5, DAT_COUNT::MAX] {
        let _ep = pool.ep_with(&DAT_EP_ATTR { max_recv_iov, ..unmarked() });
    }
}

fn srq_ep_create_accepts_a_null_connect_evd(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let SrqEpArgs { ia, pz, recv, request, srq, .. } = SrqEpArgs::of(&pool);
    let attr = unmarked();
    let create = |out| dat_ep_create_with_srq(ia, pz, recv, request, null_mut(), srq, &attr, out);
    let ep = Ep::own(filled(create));
    assert!(ep.param().connect_evd_handle.is_null(), "the EP has a connect EVD");
}

fn srq_ep_create_accepts_another_pz_than_the_srqs(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let other = pool.ia.pz();
    let ep = pool.ep_in(&other, &pool.recv, &unmarked());
    assert!(
        ep.param().pz_handle == other.h() && pool.param().pz_handle == pool.pz.h(),
        "the EP or the SRQ changed its PZ"
    );
    refused(dat_pz_free(other.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
}
