//! Queries of a shared queue and of an EP on it: parameters, status, attributes, and which of them can be changed.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/registry 12": srq_provider_attributes_report_srq_support,
        "spec/events 6.4": srq_query_of_a_new_srq_returns_its_attributes_and_zero_counts,
        "spec/events 6.4": srq_query_refuses_a_handle_that_is_no_srq,
        "spec/events 6.4": srq_query_refuses_a_null_record,
        "spec/events 6.4": srq_query_refuses_unknown_mask_bits,
        "spec/events 6.4": srq_query_of_one_field_writes_it,
        "spec/events 6": srq_query_counts_posted_receives,
        "spec/events 6.4": srq_query_returns_the_low_watermark,
        "spec/endpoints 5.2": srq_ep_query_returns_the_srq,
        "spec/endpoints 5.2": srq_ep_query_of_an_ep_without_srq_returns_null,
        "spec/events 5.7": srq_ep_query_returns_the_requested_attributes,
        "spec/events 5.6": srq_ep_query_returns_changed_watermarks,
        "spec/events 4.8": srq_ep_post_recv_is_refused,
        "spec/events 4.8": srq_ep_post_recv_without_segments_is_refused,
        "spec/endpoints 5.9": srq_ep_status_is_idle_with_queued_receives,
        "spec/endpoints 5.3": srq_ep_modify_refuses_receive_attributes,
        "spec/endpoints 5.3": srq_ep_modify_refuses_the_soft_watermark,
        "spec/endpoints 5.3": srq_ep_modify_refuses_the_srq_handle,
        "spec/endpoints 5.3": srq_ep_modify_changes_the_request_count,
        "spec/endpoints 5.3": srq_ep_modify_changes_the_pz,
        "spec/endpoints 5.7": srq_ep_reset_of_an_unconnected_ep_keeps_the_srq,
        "spec/events 5.5": ep_recv_query_refuses_a_handle_that_is_no_ep,
        "spec/events 5.5": ep_recv_query_accepts_null_out_pointers,
        "spec/events 5.5": ep_recv_query_of_an_idle_ep_on_an_srq_returns_zeros,
        "spec/events 5.5": ep_recv_query_of_an_ep_without_srq_counts_posted_receives,
        "spec/events 5.5": ep_recv_query_of_an_ep_without_a_pz_returns_zeros,
        "spec/endpoints 5.6": srq_ep_disconnect_of_an_unconnected_ep_is_refused,
    ];
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

fn srq_provider_attributes_report_srq_support(ctx: &Ctx) {
    let ia = ctx.ia();
    let (attr, limits) = (ia.provider_attr(), ia.attr());
    assert_eq!(attr.srq_supported, DAT_TRUE);
    assert_eq!(attr.srq_watermarks_supported, 0x111, "not the bits of the low, soft high and hard high watermark");
    assert_eq!(attr.srq_ep_pz_difference_supported, DAT_TRUE);
    assert_eq!(attr.srq_info_supported, 0x11, "not the bits of the available and outstanding counts");
    assert_eq!(attr.ep_recv_info_supported, 0x11, "not the bits of the receive count and the span");
    assert!(limits.max_srqs > 0 && limits.max_ep_per_srq > 0 && limits.max_recv_per_srq > 0);
}

fn srq_query_of_a_new_srq_returns_its_attributes_and_zero_counts(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    let param = pool.param();
    assert!(param.ia_handle == pool.ia.h(), "the query returned another IA");
    assert!(param.pz_handle == pool.pz.h(), "the query returned another PZ");
    assert_eq!(param.srq_state, DAT_SRQ_STATE_OPERATIONAL);
    assert!(
        param.max_recv_dtos >= 8 && param.max_recv_iov >= 4,
        "max_recv_dtos is {}, wanted at least 8; max_recv_iov is {}, wanted at least 4",
        param.max_recv_dtos,
        param.max_recv_iov
    );
    assert_eq!(param.low_watermark, 0);
    pool.expect_counts(0, 0);
}

fn srq_query_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for handle in [null_mut(), pool.ia.h(), pool.recv.h(), pool.ia.srq(&pool.pz, 1, 1).free()] {
        let code = untouched(|out| dat_srq_query(handle, DAT_SRQ_FIELD_ALL, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_query_refuses_a_null_record(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    refused(dat_srq_query(pool.srq.h(), DAT_SRQ_FIELD_ALL, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn srq_query_refuses_unknown_mask_bits(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for mask in [0x100, 0x8000_0000, DAT_SRQ_FIELD_ALL | 0x200] {
        let code = untouched(|out| dat_srq_query(pool.srq.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn srq_query_of_one_field_writes_it(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    pool.post_all(0..3);
    let ask = |mask| -> DAT_SRQ_PARAM { filled(|out| dat_srq_query(pool.srq.h(), mask, out)) };
    assert!(ask(DAT_SRQ_FIELD_IA_HANDLE).ia_handle == pool.ia.h());
    assert_eq!(ask(DAT_SRQ_FIELD_SRQ_STATE).srq_state, DAT_SRQ_STATE_OPERATIONAL);
    assert!(ask(DAT_SRQ_FIELD_PZ_HANDLE).pz_handle == pool.pz.h());
    assert!(ask(DAT_SRQ_FIELD_MAX_RECV_DTO).max_recv_dtos >= 8);
    assert!(ask(DAT_SRQ_FIELD_MAX_RECV_IOV).max_recv_iov >= 4);
    assert_eq!(ask(DAT_SRQ_FIELD_LOW_WATERMARK).low_watermark, 0);
    assert_eq!(ask(DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT).available_dto_count, 3);
    assert_eq!(ask(DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT).outstanding_dto_count, 3);
    ok(dat_srq_query(pool.srq.h(), 0, &mut zeroed()));
}

fn srq_query_counts_posted_receives(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    for posted in 0..8 {
        pool.expect_counts(posted, posted);
        pool.post(posted as u64);
    }
    pool.expect_counts(8, 8);
}

fn srq_query_returns_the_low_watermark(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    pool.post_all(0..8);
    for low in [3, 8, 0] {
        ok(dat_srq_set_lw(pool.srq.h(), low));
        assert_eq!(pool.param().low_watermark, low);
    }
}

fn srq_ep_query_returns_the_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    assert!(ep.param().srq_handle == pool.srq.h());
    let asked: DAT_EP_PARAM = filled(|out| dat_ep_query(ep.h(), DAT_EP_FIELD_SRQ_HANDLE, out));
    assert!(asked.srq_handle == pool.srq.h(), "the query of the SRQ field returns another SRQ");
    assert!(asked.recv_evd_handle == pool.recv.h(), "the query of the SRQ field leaves out the receive EVD");
}

fn srq_ep_query_of_an_ep_without_srq_returns_null(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ia.ep(&pool.pz, &pool.recv, &pool.request, &pool.events);
    assert!(ep.param().srq_handle.is_null());
}

fn srq_ep_query_returns_the_requested_attributes(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for (soft, hard) in [(-1, -1), (3, 7), (0, 1000), (5, 2)] {
        let asked = marked(soft, hard);
        let shown = pool.ep_with(&asked).param().ep_attr;
        assert_eq!((shown.srq_soft_hw, shown.max_recv_dtos), (soft, hard), "the query returns other watermarks");
        assert!(shown.max_request_dtos >= asked.max_request_dtos && shown.max_request_iov >= asked.max_request_iov);
        let others = |attr: &DAT_EP_ATTR| {
            (
                attr.service_type,
                attr.max_message_size,
                attr.max_rdma_size,
                attr.max_rdma_read_in,
                attr.max_rdma_read_out,
            )
        };
        assert_eq!(others(&shown), others(&asked), "the query does not return the requested attributes");
    }
}

fn srq_ep_query_returns_changed_watermarks(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    ok(dat_ep_set_watermark(ep.h(), 9, 11));
    let shown = ep.param().ep_attr;
    assert_eq!((shown.srq_soft_hw, shown.max_recv_dtos), (9, 11));
}

fn srq_ep_post_recv_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let code = dat_ep_post_recv(ep.h(), 1, &mut pool.slot(0), cookie(0), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
    pool.expect_counts(0, 0);
}

fn srq_ep_post_recv_without_segments_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let code = dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(0), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
}

fn srq_ep_status_is_idle_with_queued_receives(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    pool.post_all(0..4);
    let (mut state, mut recv, mut request) = (u32::MAX, 7, 7);
    ok(dat_ep_get_status(ep.h(), &mut state, &mut recv, &mut request));
    assert_eq!((state, recv, request), (DAT_EP_STATE_UNCONNECTED, DAT_TRUE, DAT_TRUE));
}

/// Changes EP attributes through `dat_ep_modify`.
fn modify(ep: &Ep, mask: DAT_EP_PARAM_MASK, edit: impl FnOnce(&mut DAT_EP_PARAM)) -> DAT_RETURN {
    let mut param = ep.param();
    edit(&mut param);
    dat_ep_modify(ep.h(), mask, &param)
}

fn srq_ep_modify_refuses_receive_attributes(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let count = modify(&ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param| param.ep_attr.max_recv_dtos = 4);
    refused(count, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    let segments = modify(&ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param| param.ep_attr.max_recv_iov = 2);
    refused(segments, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    assert_eq!(ep.param().ep_attr.max_recv_dtos, DAT_WATERMARK_INFINITE);
}

fn srq_ep_modify_refuses_the_soft_watermark(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let code = modify(&ep, DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, |param| param.ep_attr.srq_soft_hw = 3);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    assert_eq!(ep.param().ep_attr.srq_soft_hw, DAT_WATERMARK_INFINITE);
}

fn srq_ep_modify_refuses_the_srq_handle(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let code = modify(&ep, DAT_EP_FIELD_SRQ_HANDLE, |param| param.srq_handle = null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    assert!(ep.param().srq_handle == pool.srq.h());
}

fn srq_ep_modify_changes_the_request_count(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    ok(modify(&ep, DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, |param| param.ep_attr.max_request_dtos = 7));
    assert_eq!(ep.param().ep_attr.max_request_dtos, 7);
    assert!(ep.param().srq_handle == pool.srq.h(), "the EP lost its SRQ");
    refused(dat_srq_free(pool.srq.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
}

fn srq_ep_modify_changes_the_pz(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let other = pool.ia.pz();
    let ep = pool.ep();
    ok(modify(&ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = other.h()));
    assert!(ep.param().pz_handle == other.h() && ep.param().srq_handle == pool.srq.h());
}

fn srq_ep_reset_of_an_unconnected_ep_keeps_the_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    pool.post_all(0..2);
    ok(dat_ep_reset(ep.h()));
    assert!(ep.param().srq_handle == pool.srq.h());
    pool.expect_counts(2, 2);
}

fn ep_recv_query_refuses_a_handle_that_is_no_ep(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for handle in [null_mut(), pool.srq.h(), pool.ep().free()] {
        let code = untouched(|count| untouched(|span| dat_ep_recv_query(handle, count, span)));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
}

fn ep_recv_query_accepts_null_out_pointers(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let plain = pool.ia.ep(&pool.pz, &pool.recv, &pool.request, &pool.events);
    let on_srq = pool.ep();
    ok(dat_ep_post_recv(plain.h(), 1, &mut pool.slot(0), cookie(0), DAT_COMPLETION_DEFAULT_FLAG));
    for (ep, wanted) in [(&plain, 1), (&on_srq, 0)] {
        let (mut count, mut span) = (-7, -7);
        ok(dat_ep_recv_query(ep.h(), &mut count, null_mut()));
        ok(dat_ep_recv_query(ep.h(), null_mut(), &mut span));
        ok(dat_ep_recv_query(ep.h(), null_mut(), null_mut()));
        assert_eq!((count, span), (wanted, wanted));
    }
}

/// Calls `dat_ep_recv_query`. Returns the buffer count and the span.
#[track_caller]
fn recv_query(ep: &Ep) -> (DAT_COUNT, DAT_COUNT) {
    let (mut count, mut span) = (-7, -7);
    ok(dat_ep_recv_query(ep.h(), &mut count, &mut span));
    (count, span)
}

fn ep_recv_query_of_an_idle_ep_on_an_srq_returns_zeros(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    pool.post_all(0..4);
    assert_eq!(recv_query(&ep), (0, 0), "a receive of the SRQ is counted for an EP that has not used it");
}

fn ep_recv_query_of_an_ep_without_srq_counts_posted_receives(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = server.memory(64);
    for posted in 0..4 {
        assert_eq!(recv_query(&server.ep), (posted, posted));
        server.post_recv(posted as u64, memory.segment(0, 8));
    }
    for left in (0..4).rev() {
        ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(server.recv.h(), 3 - left as u64, DAT_DTO_SUCCESS, 0);
        assert_eq!(recv_query(&server.ep), (left, left), "a completed receive is still counted");
    }
    server.post_recv(9, memory.segment(0, 8));
    server.disconnect();
    expect_dto(server.recv.h(), 9, DAT_DTO_ERR_FLUSHED, 0);
    assert_eq!(recv_query(&server.ep), (0, 0), "a flushed receive is still counted");
}

fn ep_recv_query_of_an_ep_without_a_pz_returns_zeros(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DEFAULT_FLAG);
    let (null, attr) = (DAT_HANDLE_NULL, ep_attr());
    let ep = Ep::own(filled(|out| dat_ep_create(ia.h(), null, evd.h(), evd.h(), evd.h(), &attr, out)));
    assert_eq!(recv_query(&ep), (0, 0));
    ok(dat_ep_set_watermark(ep.h(), 1, 2));
}

fn srq_ep_disconnect_of_an_unconnected_ep_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    pool.post_all(0..4);
    let code = dat_ep_disconnect(ep.h(), DAT_CLOSE_ABRUPT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    pool.expect_counts(4, 4);
}
