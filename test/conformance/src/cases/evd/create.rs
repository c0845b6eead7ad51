//! `dat_evd_create`: refused arguments and the order of its checks, queue lengths, event streams, and the state of a
//! new EVD.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::modify::PAIRS;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 2.1": evd_create_length_zero_returns_invalid_arg2,
        "spec/events 2.1": evd_create_negative_length_returns_invalid_arg2,
        "spec/events 2.1": evd_create_beyond_the_maximum_length_is_refused,
        "spec/events 2.1": evd_create_at_the_adapters_maximum_length_succeeds,
        "spec/events 2.1": evd_create_returns_an_evd_at_least_as_long_as_requested,
        "spec/events 2.1": evd_create_without_flags_returns_invalid_arg4,
        "spec/events 2.1": evd_create_unknown_flags_return_invalid_arg4,
        "spec/events 2.1": evd_create_without_out_pointer_returns_invalid_arg5,
        "spec/events 2.1": evd_create_checks_the_ia_before_the_length,
        "spec/events 2.1": evd_create_checks_the_length_before_the_cno,
        "spec/events 2.1": evd_create_checks_the_cno_before_the_flags,
        "spec/events 2.1": evd_create_returns_an_enabled_waitable_empty_evd,
        "spec/events 2.1": evd_create_takes_a_reference_on_its_cno,
        "spec/events 1.2": evd_create_default_flags_exclude_software_events,
        "spec/consumers 16": evd_lengths_used_by_programs_are_accepted,
    ];
    for (word, flag) in STREAMS {
        let case = local(move |ctx| creates_evd_with_one_stream(ctx, flag));
        all.push(case.named(format!("evd_create_with_only_the_{word}_stream_succeeds")).proves("spec/events 1.2"));
    }
    all.push(local(all_merge).named("evd_create_accepts_every_set_of_streams").proves("spec/events 1.2"));
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

fn create(ia: &Ia, length: DAT_COUNT, cno: DAT_CNO_HANDLE, flags: DAT_EVD_FLAGS) -> DAT_RETURN {
    untouched(|out| dat_evd_create(ia.h(), length, cno, flags, out))
}

fn evd_create_length_zero_returns_invalid_arg2(ctx: &Ctx) {
    let code = create(&ctx.ia(), 0, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn evd_create_negative_length_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    for length in [-1, -2, DAT_COUNT::MIN] {
        let code = create(&ia, length, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG);
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn evd_create_beyond_the_maximum_length_is_refused(ctx: &Ctx) {
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

fn evd_create_at_the_adapters_maximum_length_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr().max_evd_qlen;
    for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_SOFTWARE_FLAG] {
        let length = ia.evd(most, flags).param().evd_qlen;
        assert!(length >= most, "the EVD has length {length}, wanted {most}");
    }
}

fn evd_create_returns_an_evd_at_least_as_long_as_requested(ctx: &Ctx) {
    let ia = ctx.ia();
    for asked in [1, 2, 3, 7, 10, 16, 100, 1000] {
        let length = ia.evd(asked, DAT_EVD_DTO_FLAG).param().evd_qlen;
        assert!(length >= asked, "the EVD has length {length}, wanted {asked}");
    }
}

fn evd_create_without_flags_returns_invalid_arg4(ctx: &Ctx) {
    refused(create(&ctx.ia(), 8, DAT_HANDLE_NULL, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
}

fn evd_create_unknown_flags_return_invalid_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    let extended = if is_2_0() { v2::DAT_EVD_EXTENSION_BASE } else { 0 };
    let known = STREAMS.iter().fold(extended, |all, (_, flag)| all | flag);
    for bit in (0..32).map(|bit| 1 << bit).filter(|bit| known & bit == 0) {
        for flags in [bit, bit | DAT_EVD_DTO_FLAG] {
            refused(create(&ia, 8, DAT_HANDLE_NULL, flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
        }
    }
}

fn evd_create_without_out_pointer_returns_invalid_arg5(ctx: &Ctx) {
    let ia = ctx.ia();
    let code = dat_evd_create(ia.h(), 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
}

fn evd_create_checks_the_ia_before_the_length(_ctx: &Ctx) {
    let code = untouched(|out| dat_evd_create(DAT_HANDLE_NULL, 0, DAT_HANDLE_NULL, 0, out));
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}

fn evd_create_checks_the_length_before_the_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(create(&ia, 0, ia.pz().h(), 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn evd_create_checks_the_cno_before_the_flags(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(create(&ia, 8, ia.pz().h(), 0), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
}

fn evd_create_returns_an_enabled_waitable_empty_evd(ctx: &Ctx) {
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

fn evd_create_default_flags_exclude_software_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DEFAULT_FLAG);
    assert_eq!(evd.param().evd_flags, DAT_EVD_DEFAULT_FLAG);
    // The EVD has every stream except software events.
    refused(dat_evd_post_se(evd.h(), &software_event(1)), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
}

fn creates_evd_with_one_stream(ctx: &Ctx, flag: DAT_EVD_FLAGS) {
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
        assert!(merges, "the streams {flags:#x} do not merge");
        assert_eq!(ia.evd(8, flags).param().evd_flags, flags);
    }
}

fn evd_lengths_used_by_programs_are_accepted(ctx: &Ctx) {
    let ia = ctx.ia();
    for length in [1, 3, 8, 10, 16, 64, 256, 1024, 4096, 6000] {
        let evd = ia.evd(length, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
        assert!(evd.param().evd_qlen >= length);
    }
    let idle = ia.evd(1, DAT_EVD_DTO_FLAG);
    ok(dat_evd_resize(idle.h(), 6000));
    assert!(idle.param().evd_qlen >= 6000, "the query returns less than the new length");
}
