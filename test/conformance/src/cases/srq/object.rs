//! Shared receive queues as objects: created, posted to, resized, given a low watermark, freed.
#![forbid(unsafe_code)]

use std::ptr::{null_mut, without_provenance_mut};

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/events 6.1": srq_create_refuses_a_bad_ia,
        "spec/events 6.1": srq_create_refuses_a_handle_that_is_no_pz,
        "spec/events 6.1": srq_create_refuses_a_freed_pz,
        "spec/events 6.1": srq_create_refuses_null_attributes,
        "spec/events 6.1": srq_create_refuses_misaligned_attributes,
        "spec/events 6.1": srq_create_refuses_zero_and_negative_lengths,
        "spec/events 6.1": srq_create_refuses_zero_and_negative_segment_counts,
        "spec/events 6.1": srq_create_refuses_attributes_above_the_limits,
        "spec/events 6.1": srq_create_succeeds_at_the_limits,
        "spec/events 6.1": srq_create_refuses_a_nonzero_low_watermark,
        "spec/events 6.1": srq_create_refuses_a_null_handle_pointer,
        "spec/events 6.1": srq_create_checks_arguments_in_order,
        "spec/events 6.1": srq_create_keeps_its_pz_in_use,
        "spec/events 6.2": srq_free_refuses_a_handle_that_is_no_srq,
        "spec/events 6.2": srq_free_twice_returns_invalid_handle,
        "spec/events 6.2": srq_free_is_refused_while_an_ep_uses_it,
        "spec/events 6.2": srq_free_drops_posted_receives,
        "spec/events 6.2": srq_free_keeps_other_queues,
        "spec/events 6.3": srq_post_recv_refuses_a_handle_that_is_no_srq,
        "spec/events 6.3": srq_post_recv_refuses_a_bad_segment_count,
        "spec/events 6.3": srq_post_recv_refuses_a_null_list,
        "spec/events 6.3": srq_post_recv_accepts_zero_segments,
        "spec/events 6.3": srq_post_recv_is_refused_when_the_queue_is_full,
        "spec/events 6.3": srq_post_recv_copies_its_list,
        "spec/events 6.3": srq_post_recv_does_not_check_the_lmr_context,
        "spec/events 6.5": srq_resize_refuses_a_handle_that_is_no_srq,
        "spec/events 6.5": srq_resize_refuses_zero_and_negative_lengths,
        "spec/events 6.5": srq_resize_beyond_the_limit_is_refused,
        "spec/events 6.5": srq_resize_to_the_same_length_succeeds,
        "spec/events 6.5": srq_resize_permits_more_receives,
        "spec/events 6.5": srq_resize_below_the_outstanding_receives_is_refused,
        "spec/events 6.5": srq_resize_below_the_low_watermark_is_refused,
        "spec/events 6.5": srq_resize_to_a_smaller_length_limits_posts,
        "spec/events 6.6": srq_set_lw_refuses_a_handle_that_is_no_srq,
        "spec/events 6.6": srq_set_lw_refuses_negative_values_and_values_above_the_length,
        "spec/events 10": srq_calls_without_a_peer_queue_no_events,
        "spec/registry 6.2": srq_prevents_a_graceful_close_of_its_ia,
        "spec/registry 6.3": srq_handle_is_invalid_after_an_abrupt_close,
        "spec/registry 8": srq_handle_has_a_type_and_a_consumer_context,
    ];
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

fn attr(recvs: DAT_COUNT, segments: DAT_COUNT, low: DAT_COUNT) -> DAT_SRQ_ATTR {
    DAT_SRQ_ATTR { max_recv_dtos: recvs, max_recv_iov: segments, low_watermark: low }
}

/// Returns the code of a creation that must fail.
fn create(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, mut attr: DAT_SRQ_ATTR) -> DAT_RETURN {
    untouched(|out| dat_srq_create(ia, pz, &mut attr, out))
}

fn srq_create_refuses_a_bad_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for handle in [null_mut(), pz.h(), without_provenance_mut(0x10)] {
        bad_handle(create(handle, pz.h(), attr(4, 1, 0)), DAT_INVALID_HANDLE_IA);
    }
}

fn srq_create_refuses_a_handle_that_is_no_pz(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(1, DAT_EVD_DTO_FLAG);
    for handle in [null_mut(), ia.h(), evd.h()] {
        bad_handle(create(ia.h(), handle, attr(4, 1, 0)), DAT_INVALID_HANDLE_PZ);
    }
}

fn srq_create_refuses_a_freed_pz(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.pz().free();
    bad_handle(create(ia.h(), dead, attr(4, 1, 0)), DAT_INVALID_HANDLE_PZ);
}

fn srq_create_refuses_null_attributes(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    bad_arg(untouched(|out| dat_srq_create(ia.h(), pz.h(), null_mut(), out)), 3);
}

fn srq_create_refuses_misaligned_attributes(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let mut two = [attr(4, 1, 0), attr(4, 1, 0)];
    let misaligned = two.as_mut_ptr().wrapping_byte_add(1);
    bad_arg(untouched(|out| dat_srq_create(ia.h(), pz.h(), misaligned, out)), 3);
}

fn srq_create_refuses_zero_and_negative_lengths(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for recvs in [0, -1, DAT_COUNT::MIN] {
        bad_arg(create(ia.h(), pz.h(), attr(recvs, 1, 0)), 3);
    }
}

fn srq_create_refuses_zero_and_negative_segment_counts(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for segments in [0, -1, DAT_COUNT::MIN] {
        bad_arg(create(ia.h(), pz.h(), attr(4, segments, 0)), 3);
    }
}

fn srq_create_refuses_attributes_above_the_limits(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, most) = (ia.pz(), ia.attr());
    bad_arg(create(ia.h(), pz.h(), attr(most.max_recv_per_srq + 1, 1, 0)), 3);
    bad_arg(create(ia.h(), pz.h(), attr(4, most.max_iov_segments_per_dto + 1, 0)), 3);
    bad_arg(create(ia.h(), pz.h(), attr(DAT_COUNT::MAX, 1, 0)), 3);
}

fn srq_create_succeeds_at_the_limits(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, most) = (ia.pz(), ia.attr());
    let srq = ia.srq(&pz, most.max_recv_per_srq, most.max_iov_segments_per_dto);
    let param: DAT_SRQ_PARAM = filled(|out| dat_srq_query(srq.h(), DAT_SRQ_FIELD_ALL, out));
    assert!(param.max_recv_dtos >= most.max_recv_per_srq, "the SRQ holds only {} receives", param.max_recv_dtos);
    assert!(
        param.max_recv_iov >= most.max_iov_segments_per_dto,
        "the SRQ permits only {} segments",
        param.max_recv_iov
    );
}

fn srq_create_refuses_a_nonzero_low_watermark(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for low in [1, 4, 5, -1] {
        bad_arg(create(ia.h(), pz.h(), attr(4, 1, low)), 3);
    }
    expect_nothing(ia.errors());
}

fn srq_create_refuses_a_null_handle_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    bad_arg(dat_srq_create(ia.h(), pz.h(), &mut attr(4, 1, 0), null_mut()), 4);
}

fn srq_create_checks_arguments_in_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    bad_handle(dat_srq_create(null_mut(), null_mut(), null_mut(), null_mut()), DAT_INVALID_HANDLE_IA);
    bad_handle(dat_srq_create(ia.h(), null_mut(), null_mut(), null_mut()), DAT_INVALID_HANDLE_PZ);
    bad_arg(dat_srq_create(ia.h(), pz.h(), null_mut(), null_mut()), 3);
}

fn srq_create_keeps_its_pz_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let srq = ia.srq(&pz, 4, 1);
    refused(dat_pz_free(pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    srq.free();
    pz.free();
}

fn srq_free_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for handle in [null_mut(), ia.h(), pz.h(), without_provenance_mut(0x40)] {
        bad_handle(dat_srq_free(handle), DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_free_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let dead = ia.srq(&pz, 4, 1).free();
    bad_handle(dat_srq_free(dead), DAT_INVALID_HANDLE_SRQ);
    let _next = ia.srq(&pz, 4, 1);
    bad_handle(dat_srq_free(dead), DAT_INVALID_HANDLE_SRQ);
}

fn srq_free_is_refused_while_an_ep_uses_it(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let eps = [pool.ep(), pool.ep()];
    for ep in eps {
        refused(dat_srq_free(pool.srq.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
        pool.post(0);
        ep.free();
    }
}

fn srq_free_drops_posted_receives(ctx: &Ctx) {
    let mut pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    pool.post_all(0..4);
    ep.free();
    let (ia, pz) = (pool.ia.clone(), pool.pz.h());
    std::mem::replace(&mut pool.srq, ia.srq(&pool.pz, 1, 1)).free();
    expect_nothing(pool.recv.h());
    expect_nothing(ia.errors());
    refused(dat_pz_free(pz), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    pool.memory.deregister();
}

fn srq_free_keeps_other_queues(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    pool.post_all(0..3);
    pool.ia.srq(&pool.pz, 4, 4).free();
    pool.expect_counts(3, 3);
}

fn srq_post_recv_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let ep = pool.ep();
    let dead = pool.ia.srq(&pool.pz, 4, 1).free();
    for handle in [null_mut(), ep.h(), dead] {
        let code = dat_srq_post_recv(handle, 1, &mut pool.slot(0), cookie(0));
        bad_handle(code, DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_post_recv_refuses_a_bad_segment_count(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let most = pool.param().max_recv_iov;
    let mut list = vec![pool.slot(0); most as usize + 1];
    for count in [-1, DAT_COUNT::MIN, most + 1] {
        bad_arg(dat_srq_post_recv(pool.srq.h(), count, list.as_mut_ptr(), cookie(0)), 2);
    }
    ok(dat_srq_post_recv(pool.srq.h(), most, list.as_mut_ptr(), cookie(0)));
    pool.expect_counts(1, 1);
}

fn srq_post_recv_refuses_a_null_list(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    bad_arg(dat_srq_post_recv(pool.srq.h(), 1, null_mut(), cookie(0)), 3);
    pool.expect_counts(0, 0);
}

fn srq_post_recv_accepts_zero_segments(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    ok(dat_srq_post_recv(pool.srq.h(), 0, null_mut(), cookie(0)));
    pool.expect_counts(1, 1);
}

fn srq_post_recv_is_refused_when_the_queue_is_full(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let most = pool.param().max_recv_dtos;
    for _ in 0..most {
        pool.post(0);
    }
    let full = pool.post_as(0, &mut [pool.slot(0)]);
    refused(full, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    pool.expect_counts(most, most);
}

fn srq_post_recv_copies_its_list(ctx: &Ctx) {
    let ia = ctx.ia();
    let pool = Pool::new(&ia, 4);
    let mut list = [pool.slot(1)];
    ok(pool.post_as(1, &mut list));
    list[0] = DAT_LMR_TRIPLET { lmr_context: 0, pad: 0, virtual_address: 0, segment_length: 0 };
    std::hint::black_box(&list);
    let (client, ep) = (Conn::on(&ia), pool.ep());
    let psp = ia.psp(ctx.qual(0), &pool.requests);
    client.connect(&ia.address(), ctx.qual(0));
    pool.accept(&ep);
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    let memory = client.memory(SLOT);
    memory.write_pattern(0, SLOT, 5);
    client.post_send(1, memory.segment(0, SLOT));
    pool.expect(&ep, 1, SLOT, 5);
    drop(psp);
}

fn srq_post_recv_does_not_check_the_lmr_context(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let nowhere = DAT_LMR_TRIPLET { lmr_context: 0xffff_ff00, ..pool.slot(0) };
    ok(pool.post_as(0, &mut [nowhere]));
    pool.expect_counts(1, 1);
}

fn srq_resize_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for handle in [null_mut(), pool.pz.h(), pool.ia.srq(&pool.pz, 1, 1).free()] {
        bad_handle(dat_srq_resize(handle, 8), DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_resize_refuses_zero_and_negative_lengths(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let before = pool.param().max_recv_dtos;
    for length in [0, -1, DAT_COUNT::MIN] {
        bad_arg(dat_srq_resize(pool.srq.h(), length), 2);
    }
    assert_eq!(pool.param().max_recv_dtos, before);
}

fn srq_resize_beyond_the_limit_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let before = pool.param().max_recv_dtos;
    let allowed = [error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG2), error(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_SRQ)];
    for length in [pool.ia.attr().max_recv_per_srq + 1, DAT_COUNT::MAX] {
        one_of(dat_srq_resize(pool.srq.h(), length), &allowed);
    }
    assert_eq!(pool.param().max_recv_dtos, before);
}

fn srq_resize_to_the_same_length_succeeds(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    pool.post_all(0..4);
    ok(dat_srq_resize(pool.srq.h(), 4));
    pool.expect_counts(4, 4);
}

fn srq_resize_permits_more_receives(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for _ in 0..pool.param().max_recv_dtos {
        pool.post(0);
    }
    ok(dat_srq_resize(pool.srq.h(), 100));
    assert!(pool.param().max_recv_dtos >= 100, "the query returns less than the new length");
    for _ in pool.param().outstanding_dto_count..100 {
        pool.post(1);
    }
    pool.expect_counts(100, 100);
}

fn srq_resize_below_the_outstanding_receives_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    pool.post_all(0..5);
    for length in [1, 4] {
        refused(dat_srq_resize(pool.srq.h(), length), DAT_INVALID_STATE, DAT_NO_SUBTYPE);
    }
    assert!(pool.param().max_recv_dtos >= 8, "a refused resize shortened the queue");
    ok(dat_srq_resize(pool.srq.h(), 5));
    pool.expect_counts(5, 5);
}

fn srq_resize_below_the_low_watermark_is_refused(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    pool.post_all(0..4);
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    pool.post(4);
    // The new size is large enough for the outstanding receives, but below the watermark.
    let pool = {
        let other = Pool::new(&pool.ia, 8);
        ok(dat_srq_set_lw(other.srq.h(), 6));
        refused(dat_srq_resize(other.srq.h(), 5), DAT_INVALID_STATE, DAT_NO_SUBTYPE);
        assert!(other.param().max_recv_dtos >= 8, "a refused resize shortened the queue");
        ok(dat_srq_set_lw(other.srq.h(), 0));
        ok(dat_srq_resize(other.srq.h(), 5));
        pool
    };
    pool.expect_counts(5, 5);
}

fn srq_resize_to_a_smaller_length_limits_posts(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 8);
    pool.post_all(0..2);
    ok(dat_srq_resize(pool.srq.h(), 3));
    let length = pool.param().max_recv_dtos;
    assert!(length >= 3, "the queue holds {length} receives, wanted at least 3");
    for _ in 2..length {
        pool.post(2);
    }
    let full = pool.post_as(0, &mut [pool.slot(0)]);
    refused(full, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
}

fn srq_set_lw_refuses_a_handle_that_is_no_srq(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for handle in [null_mut(), pool.recv.h(), pool.ia.srq(&pool.pz, 1, 1).free()] {
        bad_handle(dat_srq_set_lw(handle, 1), DAT_INVALID_HANDLE_SRQ);
    }
}

fn srq_set_lw_refuses_negative_values_and_values_above_the_length(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let most = pool.param().max_recv_dtos;
    for low in [most + 1, DAT_COUNT::MAX, -1, DAT_COUNT::MIN] {
        bad_arg(dat_srq_set_lw(pool.srq.h(), low), 2);
    }
    assert_eq!(pool.param().low_watermark, 0);
    expect_nothing(pool.ia.errors());
}

fn srq_calls_without_a_peer_queue_no_events(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    pool.post_all(0..4);
    ok(dat_srq_resize(pool.srq.h(), 8));
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    pool.ep().free();
    pool.param();
    expect_nothing(pool.ia.errors());
    for evd in [&pool.recv, &pool.request, &pool.events] {
        expect_nothing(evd.h());
    }
}

fn srq_prevents_a_graceful_close_of_its_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let srq = ia.srq(&pz, 4, 1);
    refused(dat_ia_close(ia.h(), DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    ok(dat_srq_post_recv(srq.h(), 0, null_mut(), cookie(0)));
}

fn srq_handle_is_invalid_after_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let pool = Pool::new(&ia, 4);
    let _eps = [pool.ep(), pool.ep()].map(Ep::leak);
    pool.post_all(0..4);
    let srq = pool.srq.h();
    std::mem::forget(pool);
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    bad_handle(dat_srq_free(srq), DAT_INVALID_HANDLE_SRQ);
    bad_handle(dat_srq_post_recv(srq, 0, null_mut(), cookie(0)), DAT_INVALID_HANDLE_SRQ);
}

fn srq_handle_has_a_type_and_a_consumer_context(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    assert_eq!(filled(|out| dat_get_handle_type(pool.srq.h(), out)), DAT_HANDLE_TYPE_SRQ);
    ok(dat_set_consumer_context(pool.srq.h(), cookie(0x1234_5678_9abc_def0)));
    let context: DAT_CONTEXT = filled(|out| dat_get_consumer_context(pool.srq.h(), out));
    assert_eq!(context_bits(context), 0x1234_5678_9abc_def0);
}
