//! EVDs as objects: creation, queries, CNO, state bits, length, freeing. Their queue is in `queue`, waiting in `wait`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "events 2.1": evd_create_length_zero_is_arg2,
        "events 2.1": evd_create_negative_length_is_arg2,
        "events 2.1": evd_create_longest_is_refused_one_further,
        "events 2.1": evd_create_longest_that_the_adapter_promises,
        "events 2.1": evd_create_at_least_as_long_as_asked,
        "events 2.1": evd_create_without_flags_is_arg4,
        "events 2.1": evd_create_unknown_flags_are_arg4,
        "events 2.1": evd_create_without_out_pointer_is_arg5,
        "events 2.1": evd_create_looks_at_the_ia_before_the_length,
        "events 2.1": evd_create_looks_at_the_length_before_the_cno,
        "events 2.1": evd_create_looks_at_the_cno_before_the_flags,
        "events 2.1": evd_create_is_enabled_waitable_and_empty,
        "events 2.1": evd_create_takes_a_reference_on_its_cno,
        "events 1.2": evd_create_with_the_default_flags,
        "events 2.2": evd_query_without_a_record_is_arg3,
        "events 2.2": evd_query_unknown_mask_bits_are_arg2,
        "events 2.2": evd_query_of_each_bit_alone,
        "events 2.2": evd_query_with_no_bits_succeeds,
        "events 2.2": evd_query_of_the_async_evd,
        "events 1.3": evd_query_names_the_cno_and_the_ia,
        "events 2.3": evd_modify_cno_replaces_and_detaches,
        "events 2.3": evd_modify_cno_moves_the_reference,
        "events 2.3": evd_modify_cno_gives_the_async_evd_a_cno,
        "events 2.3": evd_modify_cno_to_the_same_keeps_one_reference,
        "events 2.4": evd_enable_and_disable_show_in_the_query,
        "events 2.9": evd_set_and_clear_unwaitable_show_in_the_query,
        "events 12": evd_disabled_and_unwaitable_are_independent,
        "events 2.8": evd_resize_to_the_same_length_succeeds,
        "events 2.8": evd_resize_grows_and_the_query_shows_it,
        "events 2.8": evd_resize_zero_or_less_is_arg2,
        "events 2.8": evd_resize_beyond_the_adapter_is_arg2,
        "events 2.8": evd_resize_below_what_is_queued_is_refused,
        "events 2.8": evd_resize_loses_nothing_that_is_queued,
        "events 2.8": evd_resize_smaller_that_still_fits_succeeds,
        "events 2.8": evd_resize_of_the_async_evd,
        "events 2.8": evd_resize_under_a_waiter_is_refused,
        "events 2.8": evd_resize_while_an_ep_uses_it,
        "events 2.10": evd_free_drops_queued_events_silently,
        "events 2.10": evd_free_of_the_own_async_evd_is_refused,
        "events 2.10": evd_free_under_a_psp_is_in_use,
        "events 2.10": evd_free_under_an_rsp_is_in_use,
        "events 2.10": evd_free_twice_is_an_invalid_handle,
        "consumers 16": evd_lengths_that_programs_ask_for,
    ];
    for (word, role) in [("recv", 0), ("request", 1), ("connect", 2)] {
        let case = local(move |ctx| is_in_use_by_an_ep(ctx, role));
        all.push(case.named(format!("evd_free_under_an_ep_as_{word}_is_in_use")).proves("events 2.10"));
    }
    for (word, flag) in STREAMS {
        let case = local(move |ctx| is_made_for(ctx, flag));
        all.push(case.named(format!("evd_create_for_{word}_alone")).proves("events 1.2"));
    }
    all.push(local(all_merge).named("evd_create_for_every_set_of_streams").proves("events 1.2"));
    all
}

const STREAMS: [(&str, DAT_EVD_FLAGS); 6] = [
    ("software", DAT_EVD_SOFTWARE_FLAG),
    ("requests", DAT_EVD_CR_FLAG),
    ("dtos", DAT_EVD_DTO_FLAG),
    ("connections", DAT_EVD_CONNECTION_FLAG),
    ("binds", DAT_EVD_RMR_BIND_FLAG),
    ("async", DAT_EVD_ASYNC_FLAG),
];

/// The two exclusive pairs of state bits.
pub(super) const PAIRS: DAT_EVD_STATE =
    DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_WAITABLE | DAT_EVD_STATE_UNWAITABLE;

fn create(ia: &Ia, length: DAT_COUNT, cno: DAT_CNO_HANDLE, flags: DAT_EVD_FLAGS) -> DAT_RETURN {
    untouched(|out| dat_evd_create(ia.h(), length, cno, flags, out))
}

fn evd_create_length_zero_is_arg2(ctx: &Ctx) {
    let code = create(&ctx.ia(), 0, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn evd_create_negative_length_is_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    for length in [-1, -2, DAT_COUNT::MIN] {
        let code = create(&ia, length, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG);
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn evd_create_longest_is_refused_one_further(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr().max_evd_qlen;
    if most == DAT_COUNT::MAX {
        ctx.unsupported("a limit on the length of EVDs");
    }
    for length in [most + 1, DAT_COUNT::MAX] {
        let code = create(&ia, length, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG);
        refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_TEVD);
    }
}

fn evd_create_longest_that_the_adapter_promises(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr().max_evd_qlen;
    for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_SOFTWARE_FLAG] {
        let length = ia.evd(most, flags).param().evd_qlen;
        assert!(length >= most, "{length} of {most}");
    }
}

fn evd_create_at_least_as_long_as_asked(ctx: &Ctx) {
    let ia = ctx.ia();
    for asked in [1, 2, 3, 7, 10, 16, 100, 1000] {
        let length = ia.evd(asked, DAT_EVD_DTO_FLAG).param().evd_qlen;
        assert!(length >= asked, "{length} of {asked}");
    }
}

fn evd_create_without_flags_is_arg4(ctx: &Ctx) {
    refused(create(&ctx.ia(), 8, DAT_HANDLE_NULL, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
}

fn evd_create_unknown_flags_are_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let known = STREAMS.iter().fold(0, |all, (_, flag)| all | flag);
    for bit in (0..32).map(|bit| 1 << bit).filter(|bit| known & bit == 0) {
        for flags in [bit, bit | DAT_EVD_DTO_FLAG] {
            refused(create(&ia, 8, DAT_HANDLE_NULL, flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
        }
    }
}

fn evd_create_without_out_pointer_is_arg5(ctx: &Ctx) {
    let ia = ctx.ia();
    let code = dat_evd_create(ia.h(), 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
}

fn evd_create_looks_at_the_ia_before_the_length(_ctx: &Ctx) {
    let code = untouched(|out| dat_evd_create(DAT_HANDLE_NULL, 0, DAT_HANDLE_NULL, 0, out));
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}

fn evd_create_looks_at_the_length_before_the_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(create(&ia, 0, ia.pz().h(), 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn evd_create_looks_at_the_cno_before_the_flags(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(create(&ia, 8, ia.pz().h(), 0), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
}

fn evd_create_is_enabled_waitable_and_empty(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    assert_eq!(evd.param().evd_state & PAIRS, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
    expect_nothing(evd.h());
}

fn evd_create_takes_a_reference_on_its_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    evd.free();
    cno.free();
}

fn evd_create_with_the_default_flags(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DEFAULT_FLAG);
    assert_eq!(evd.param().evd_flags, DAT_EVD_DEFAULT_FLAG);
    // All but software events.
    refused(dat_evd_post_se(evd.h(), &software_event(1)), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
}

fn is_made_for(ctx: &Ctx, flag: DAT_EVD_FLAGS) {
    let ia = ctx.ia();
    let evd = ia.evd(8, flag);
    assert_eq!(evd.param().evd_flags, flag);
    evd.free();
}

fn all_merge(ctx: &Ctx) {
    let ia = ctx.ia();
    let merging = ia.provider_attr().evd_stream_merging_supported;
    for set in 1..1 << STREAMS.len() {
        let chosen: Vec<usize> = (0..STREAMS.len()).filter(|stream| set >> stream & 1 != 0).collect();
        let flags = chosen.iter().fold(0, |all, stream| all | STREAMS[*stream].1);
        let merges = chosen.iter().all(|one| chosen.iter().all(|other| merging[*one][*other] != DAT_FALSE));
        assert!(merges, "{flags:#x}: all streams are to merge");
        assert_eq!(ia.evd(8, flags).param().evd_flags, flags);
    }
}

fn evd_query_without_a_record_is_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let code = dat_evd_query(evd.h(), DAT_EVD_FIELD_ALL, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn evd_query_unknown_mask_bits_are_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    for mask in [0x20, 0x3f, 0x8000_0000] {
        let code = untouched(|out| dat_evd_query(evd.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn evd_query_of_each_bit_alone(ctx: &Ctx) {
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

fn evd_query_with_no_bits_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG);
    let _: DAT_EVD_PARAM = filled(|out| dat_evd_query(evd.h(), 0, out));
}

fn evd_query_of_the_async_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_ALL, out));
    assert_eq!((param.ia_handle, param.cno_handle), (ia.h(), DAT_HANDLE_NULL));
    assert_eq!(param.evd_flags, DAT_EVD_ASYNC_FLAG);
    assert!(param.evd_qlen >= 8, "as long as asked for: {}", param.evd_qlen);
    assert_eq!(param.evd_state & PAIRS, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
}

fn evd_query_names_the_cno_and_the_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (on, off) = (ia.evd_on(&cno, 8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_DTO_FLAG));
    assert_eq!((on.param().ia_handle, on.param().cno_handle), (ia.h(), cno.h()));
    assert_eq!((off.param().ia_handle, off.param().cno_handle), (ia.h(), DAT_HANDLE_NULL));
    assert_eq!(on.param().evd_state & DAT_EVD_STATE_CONFIG_THRESHOLD, DAT_EVD_STATE_CONFIG_THRESHOLD);
}

fn evd_modify_cno_replaces_and_detaches(ctx: &Ctx) {
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

fn evd_modify_cno_gives_the_async_evd_a_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    ok(dat_evd_modify_cno(ia.errors(), cno.h()));
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_ALL, out));
    assert_eq!(param.cno_handle, cno.h());
    refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    ok(dat_evd_modify_cno(ia.errors(), DAT_HANDLE_NULL));
}

fn evd_modify_cno_to_the_same_keeps_one_reference(ctx: &Ctx) {
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
    // Twice each: repeating is no mistake.
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
    assert_eq!(expect_event(evd.h(), SOON).software().addr(), 1, "disabled, it can be waited on");
    ok(dat_evd_set_unwaitable(evd.h()));
    assert_eq!(evd.param().evd_state & PAIRS, DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_UNWAITABLE);
    evd.post(2);
    assert_eq!(dequeue(evd.h()).map(|event| event.software().addr()), Some(2), "unwaitable, it queues and gives");
    ok(dat_evd_enable(evd.h()));
    assert_eq!(evd.param().evd_state & PAIRS, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_UNWAITABLE);
}

fn evd_resize_to_the_same_length_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    ok(dat_evd_resize(evd.h(), length));
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_grows_and_the_query_shows_it(ctx: &Ctx) {
    let ia = ctx.ia();
    for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_SOFTWARE_FLAG] {
        let evd = ia.evd(1, flags);
        for length in [2, 3, 64, 1000, ia.attr().max_evd_qlen] {
            ok(dat_evd_resize(evd.h(), length));
            assert!(evd.param().evd_qlen >= length);
        }
    }
}

fn evd_resize_zero_or_less_is_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    for wanted in [0, -1, DAT_COUNT::MIN] {
        refused(dat_evd_resize(evd.h(), wanted), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_beyond_the_adapter_is_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    let most = ia.attr().max_evd_qlen;
    if most == DAT_COUNT::MAX {
        ctx.unsupported("a limit on the length of EVDs");
    }
    for wanted in [most + 1, DAT_COUNT::MAX] {
        refused(dat_evd_resize(evd.h(), wanted), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    assert_eq!(evd.param().evd_qlen, length);
}

fn evd_resize_below_what_is_queued_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let length = evd.param().evd_qlen;
    for number in 1..=5 {
        evd.post(number);
    }
    refused(dat_evd_resize(evd.h(), 4), DAT_INVALID_STATE, DAT_NO_SUBTYPE);
    assert_eq!(evd.param().evd_qlen, length, "unchanged");
    assert_eq!(drain(evd.h()).len(), 5);
    ok(dat_evd_resize(evd.h(), 4));
}

fn evd_resize_loses_nothing_that_is_queued(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    for (number, length) in (1..).zip([16, 9, 40, 7, 100]) {
        evd.post(number);
        ok(dat_evd_resize(evd.h(), length));
    }
    let pointers: Vec<usize> = drain(evd.h()).iter().map(|event| event.software().addr()).collect();
    assert_eq!(pointers, [1, 2, 3, 4, 5]);
}

fn evd_resize_smaller_that_still_fits_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(100, DAT_EVD_SOFTWARE_FLAG);
    for number in 1..=3 {
        evd.post(number);
    }
    ok(dat_evd_resize(evd.h(), 3));
    assert!(evd.param().evd_qlen >= 3);
    assert_eq!(drain(evd.h()).len(), 3);
    ok(dat_evd_resize(evd.h(), 1));
}

fn evd_resize_of_the_async_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_evd_resize(ia.errors(), 32));
    let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(ia.errors(), DAT_EVD_FIELD_EVD_QLEN, out));
    assert!(param.evd_qlen >= 32);
}

fn evd_resize_under_a_waiter_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    refused(dat_evd_resize(evd.h(), 20), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    refused(dat_evd_resize(evd.h(), 2), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
    evd.post(3);
    assert_eq!(waiter.join().pointer, 3);
    ok(dat_evd_resize(evd.h(), 20));
}

fn evd_resize_while_an_ep_uses_it(ctx: &Ctx) {
    let (near, far) = ctx.loopback_with(&ctx.ia(), &Setup { qlen: 2, ..Setup::default() });
    let (from, into) = (near.memory(64), far.memory(64));
    far.post_recv(1, into.segment(0, 8));
    far.post_recv(2, into.segment(8, 8));
    near.post_send(11, from.segment(0, 8));
    expect_dto(near.request.h(), 11, DAT_DTO_SUCCESS, 8);
    for evd in [&far.recv, &near.request] {
        ok(dat_evd_resize(evd.h(), 200));
    }
    near.post_send(12, from.segment(0, 8));
    expect_dto(near.request.h(), 12, DAT_DTO_SUCCESS, 8);
    expect_dto(far.recv.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(far.recv.h(), 2, DAT_DTO_SUCCESS, 8);
}

fn evd_free_drops_queued_events_silently(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    for number in 1..=8 {
        evd.post(number);
    }
    evd.free();
    expect_nothing(ia.errors());
}

fn evd_free_of_the_own_async_evd_is_refused(ctx: &Ctx) {
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

fn evd_free_under_a_psp_is_in_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &evd);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    psp.free();
    evd.free();
}

fn evd_free_under_an_rsp_is_in_use(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let evd = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let rsp = conn.ia.rsp(ctx.qual(0), &conn.ep, &evd);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    rsp.free();
    evd.free();
}

fn evd_free_twice_is_an_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ia.evd(8, DAT_EVD_SOFTWARE_FLAG).free();
    refused(dat_evd_free(dead), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
}

fn evd_lengths_that_programs_ask_for(ctx: &Ctx) {
    let ia = ctx.ia();
    for length in [1, 3, 8, 10, 16, 64, 256, 1024, 4096, 6000] {
        let evd = ia.evd(length, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
        assert!(evd.param().evd_qlen >= length);
    }
    let idle = ia.evd(1, DAT_EVD_DTO_FLAG);
    ok(dat_evd_resize(idle.h(), 6000));
    assert!(idle.param().evd_qlen >= 6000, "an idle one grows, and says so");
}
