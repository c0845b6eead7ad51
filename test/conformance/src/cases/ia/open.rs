//! Opening adapters: names, versions, thread safety, queue lengths, refusals, several at a time, and IA handles, which
//! are numbers. The async EVD is tested in `open_async`.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::ptr::{null_mut, without_provenance_mut};

use crate::cases::consumers::names::{own_line, registry};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 4.1": ia_open_without_a_name_returns_invalid_arg1,
        "spec/registry 4.1": ia_open_without_name_and_out_pointer_returns_invalid_arg1,
        "spec/registry 4.1": ia_open_without_out_pointer_returns_invalid_handle_ia,
        "spec/registry 4.1": ia_open_unknown_name_is_not_registered,
        "spec/registry 4.1": ia_open_empty_name_is_not_registered,
        "spec/registry 4.1": ia_open_name_of_255_letters_is_looked_up,
        "spec/registry 4.1": ia_open_names_above_255_letters_return_invalid_arg1,
        "spec/registry 4.1": ia_open_similar_names_are_not_registered,
        "spec/registry 4.1": ia_open_names_are_case_sensitive,
        "spec/registry 15": ia_open_reports_an_unknown_name_before_a_bad_length,
        "spec/registry 15": ia_open_reports_an_unknown_name_before_a_bad_async_evd,
        "spec/registry 4.1": ia_open_failure_sets_the_handle_to_null,
        "spec/registry 4.1": ia_open_failure_leaves_the_async_evd_unchanged,
        "spec/registry 4.2": ia_open_other_major_is_major_not_found,
        "spec/registry 4.2": ia_open_larger_minor_is_minor_not_found,
        "spec/registry 4.2": ia_open_older_minor_is_minor_not_found,
        "spec/registry 4.2": ia_open_checks_name_then_major_then_minor,
        "spec/registry 4.2": ia_open_thread_safe_succeeds_if_the_provider_list_says_so,
        "spec/registry 4.2": ia_open_thread_safe_needs_a_threadsafe_line_or_a_threadsafe_library,
        "spec/registry 4.1": ia_open_treats_any_nonzero_thread_safety_as_true,
        "spec/registry 4.1": ia_open_succeeds_after_refusals,
        "spec/registry 4.3": ia_open_length_zero_returns_invalid_arg2,
        "spec/registry 4.3": ia_open_negative_length_returns_invalid_arg2,
        "spec/registry 4.3": ia_open_beyond_the_maximum_evd_length_is_refused,
        "spec/registry 4.3": ia_open_evd_lengths_used_by_programs_are_accepted,
        "spec/registry 4.1": ia_open_twice_returns_two_adapters,
        "spec/registry 4.1": ia_open_of_forty_adapters_returns_distinct_handles,
        "spec/registry 4.1": ia_open_adapters_do_not_share_objects,
        "spec/registry 4.1": ia_open_from_four_threads_succeeds,
        "spec/registry 4.1": ia_open_and_close_succeed_a_hundred_times,
        "spec/registry 7.2": ia_handle_is_a_number_from_1_to_65535,
        "spec/registry 7.2": ia_handle_is_not_reused_immediately,
        "spec/registry 7.2": dats_get_ia_handle_returns_the_provider_pointer_of_the_ia,
        "spec/registry 7.2": dats_get_ia_handle_accepts_a_provider_pointer,
        "spec/registry 7.2": dats_get_ia_handle_without_out_pointer_returns_invalid_arg2,
        "spec/registry 7.2": dats_get_ia_handle_of_an_invalid_handle_returns_invalid_handle_ia,
        "spec/registry 7.2": ia_provider_pointer_is_accepted_as_a_handle,
        "spec/registry 7.2": ia_handle_is_returned_by_queries_of_all_objects,
        "spec/registry 7.2": ia_close_by_provider_pointer_invalidates_the_ia_handle,
    ]
}

/// Opens with this name, version and thread safety, and closes the adapter. Checks that a failed open writes no async
/// EVD.
fn open(name: &str, major: u32, minor: u32, thread_safe: DAT_BOOLEAN) -> DAT_RETURN {
    let name = CString::new(name).expect("the name has no NUL");
    let (mut errors, mut ia) = (DAT_HANDLE_NULL, without_provenance_mut(0x7777));
    let code = dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, &mut ia, major, minor, thread_safe);
    if code == DAT_SUCCESS {
        ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    } else {
        assert!(errors.is_null(), "the refused open wrote an async EVD");
    }
    code
}

fn not_found(code: DAT_RETURN, subtype: DAT_RETURN_SUBTYPE) {
    refused(code, DAT_PROVIDER_NOT_FOUND, subtype);
}

fn ia_open_without_a_name_returns_invalid_arg1(_ctx: &Ctx) {
    let mut errors = DAT_HANDLE_NULL;
    let code = untouched(|ia| dat_ia_openv(null_mut(), 8, &mut errors, ia, 1, 2, DAT_FALSE));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    assert!(errors.is_null(), "the refused open wrote an async EVD");
}

fn ia_open_without_name_and_out_pointer_returns_invalid_arg1(_ctx: &Ctx) {
    let code = dat_ia_openv(null_mut(), 0, null_mut(), null_mut(), 0, 0, DAT_FALSE);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
}

fn ia_open_without_out_pointer_returns_invalid_handle_ia(ctx: &Ctx) {
    let (name, mut errors) = (ctx.name(), DAT_HANDLE_NULL);
    let code = dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, null_mut(), 1, 2, DAT_FALSE);
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    assert!(errors.is_null());
}

fn ia_open_unknown_name_is_not_registered(ctx: &Ctx) {
    not_found(open(&format!("{}-and-no-other", ctx.provider), 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    not_found(open("no adapter of any file", 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
}

fn ia_open_empty_name_is_not_registered(_ctx: &Ctx) {
    not_found(open("", 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
}

fn ia_open_name_of_255_letters_is_looked_up(_ctx: &Ctx) {
    not_found(open(&"n".repeat(255), 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
}

fn ia_open_names_above_255_letters_return_invalid_arg1(_ctx: &Ctx) {
    for length in [256, 257, 5000] {
        refused(open(&"n".repeat(length), 1, 2, DAT_FALSE), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
}

fn ia_open_similar_names_are_not_registered(ctx: &Ctx) {
    let name = &ctx.provider;
    let others = [format!("{name} "), format!(" {name}"), name[..name.len() - 1].to_owned(), format!("{name}{name}")];
    for other in others {
        not_found(open(&other, 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    }
}

fn ia_open_names_are_case_sensitive(ctx: &Ctx) {
    let (upper, lower) = (ctx.provider.to_uppercase(), ctx.provider.to_lowercase());
    for other in [upper, lower].into_iter().filter(|other| *other != ctx.provider) {
        not_found(open(&other, 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    }
}

fn ia_open_reports_an_unknown_name_before_a_bad_length(_ctx: &Ctx) {
    for length in [0, -1] {
        let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
        let name = c"no adapter of any file".as_ptr().cast_mut();
        not_found(dat_ia_openv(name, length, &mut errors, &mut ia, 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    }
}

fn ia_open_reports_an_unknown_name_before_a_bad_async_evd(_ctx: &Ctx) {
    let name = c"no adapter of any file".as_ptr().cast_mut();
    let (mut errors, mut ia) = (without_provenance_mut(0x10), DAT_HANDLE_NULL);
    not_found(dat_ia_openv(name, 8, null_mut(), &mut ia, 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    not_found(dat_ia_openv(name, 8, &mut errors, &mut ia, 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
    assert_eq!(errors.addr(), 0x10);
}

fn ia_open_failure_sets_the_handle_to_null(ctx: &Ctx) {
    let own = ctx.name();
    for (name, length, major) in [(c"no adapter of any file", 8, 1), (own.as_c_str(), 0, 1), (own.as_c_str(), 8, 2)] {
        let (mut errors, mut ia) = (DAT_HANDLE_NULL, without_provenance_mut(0x7777));
        let code = dat_ia_openv(name.as_ptr().cast_mut(), length, &mut errors, &mut ia, major, 2, DAT_FALSE);
        assert_ne!(code, DAT_SUCCESS);
        assert!(ia.is_null(), "the failed open set the handle to {ia:?}, wanted null");
    }
}

fn ia_open_failure_leaves_the_async_evd_unchanged(ctx: &Ctx) {
    let ia = ctx.ia();
    let name = ctx.name();
    let pz = ia.pz();
    // The name is registered, but not with major version 2.
    for value in [null_mut(), ia.errors(), pz.h(), DAT_EVD_ASYNC_EXISTS, DAT_EVD_OUT_OF_SCOPE] {
        let (mut errors, mut other) = (value, DAT_HANDLE_NULL);
        let code = dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, &mut other, 2, 0, DAT_FALSE);
        not_found(code, DAT_MAJOR_NOT_FOUND);
        assert_eq!(errors, value);
    }
}

fn ia_open_other_major_is_major_not_found(ctx: &Ctx) {
    for (major, minor) in [(0, 2), (2, 0), (2, 2), (u32::MAX, 2)] {
        not_found(open(&ctx.provider, major, minor, DAT_FALSE), DAT_MAJOR_NOT_FOUND);
    }
}

fn ia_open_larger_minor_is_minor_not_found(ctx: &Ctx) {
    for minor in [3, 100, u32::MAX] {
        not_found(open(&ctx.provider, 1, minor, DAT_FALSE), DAT_MINOR_NOT_FOUND);
    }
}

/// The records of 1.2 are longer: a caller compiled for 1.1 would have memory overwritten.
fn ia_open_older_minor_is_minor_not_found(ctx: &Ctx) {
    for minor in [0, 1] {
        not_found(open(&ctx.provider, 1, minor, DAT_FALSE), DAT_MINOR_NOT_FOUND);
    }
}

fn ia_open_checks_name_then_major_then_minor(ctx: &Ctx) {
    not_found(open("no adapter of any file", 9, 9, DAT_TRUE), DAT_NAME_NOT_REGISTERED);
    not_found(open(&ctx.provider, 9, 9, DAT_TRUE), DAT_MAJOR_NOT_FOUND);
    not_found(open(&ctx.provider, 1, 9, DAT_TRUE), DAT_MINOR_NOT_FOUND);
}

/// Whether the registry line says `threadsafe`.
fn is_thread_safe(ctx: &Ctx) -> bool {
    let mut records: Vec<DAT_PROVIDER_INFO> = (0..64).map(|_| zeroed()).collect();
    let mut list: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(std::ptr::from_mut).collect();
    let count = filled(|count| dat_registry_list_providers(64, count, list.as_mut_ptr()));
    let own = ctx.name();
    let is_own = |info: &&DAT_PROVIDER_INFO| text_at(info.ia_name.as_ptr()) == own.to_string_lossy();
    records[..count as usize].iter().filter(is_own).any(|info| info.is_thread_safe != DAT_FALSE)
}

fn ia_open_thread_safe_succeeds_if_the_provider_list_says_so(ctx: &Ctx) {
    ok(open(&ctx.provider, 1, 2, DAT_FALSE));
    let code = open(&ctx.provider, 1, 2, DAT_TRUE);
    if is_thread_safe(ctx) { ok(code) } else { thread_safe_by_library(&ctx.provider, code) }
}

/// A `nonthreadsafe` line can be opened thread-safe if libdat knows that the library is thread-safe.
fn thread_safe_by_library(name: &str, code: DAT_RETURN) {
    let is_known = Ia::open(name, 8).provider_attr().is_thread_safe != DAT_FALSE;
    if is_known { ok(code) } else { not_found(code, DAT_THREAD_SAFETY_NOT_FOUND) }
}

/// Writes its own registry, so that the registry of this run does not matter.
fn ia_open_thread_safe_needs_a_threadsafe_line_or_a_threadsafe_library(ctx: &Ctx) {
    let lines = ["threadsafe", "nonthreadsafe"].map(|word| {
        let line = own_line(ctx, word);
        let mut words: Vec<&str> = line.split(' ').collect();
        words[2] = word;
        words.join(" ")
    });
    registry(ctx, &lines.concat());
    ok(open("threadsafe", 1, 2, DAT_TRUE));
    ok(open("threadsafe", 1, 2, DAT_FALSE));
    ok(open("nonthreadsafe", 1, 2, DAT_FALSE));
    thread_safe_by_library("nonthreadsafe", open("nonthreadsafe", 1, 2, DAT_TRUE));
}

fn ia_open_treats_any_nonzero_thread_safety_as_true(ctx: &Ctx) {
    let code = open(&ctx.provider, 1, 2, DAT_TRUE);
    for truth in [2, 7, 0x100, DAT_BOOLEAN::MAX] {
        expect(open(&ctx.provider, 1, 2, truth), code);
    }
}

fn ia_open_succeeds_after_refusals(ctx: &Ctx) {
    for _ in 0..10 {
        not_found(open("no adapter of any file", 1, 2, DAT_FALSE), DAT_NAME_NOT_REGISTERED);
        not_found(open(&ctx.provider, 2, 0, DAT_FALSE), DAT_MAJOR_NOT_FOUND);
        ok(open(&ctx.provider, 1, 2, DAT_FALSE));
    }
}

fn with_length(ctx: &Ctx, length: DAT_COUNT) -> DAT_RETURN {
    let (name, mut errors, mut ia) = (ctx.name(), DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    let code = dat_ia_openv(name.as_ptr().cast_mut(), length, &mut errors, &mut ia, 1, 2, DAT_FALSE);
    if code == DAT_SUCCESS {
        let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(errors, DAT_EVD_FIELD_ALL, out));
        assert!(param.evd_qlen >= length, "the async EVD holds {} events, wanted {length}", param.evd_qlen);
        ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    } else {
        assert!(errors.is_null() && ia.is_null());
    }
    code
}

fn ia_open_length_zero_returns_invalid_arg2(ctx: &Ctx) {
    refused(with_length(ctx, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn ia_open_negative_length_returns_invalid_arg2(ctx: &Ctx) {
    for length in [-1, -8, DAT_COUNT::MIN] {
        refused(with_length(ctx, length), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn ia_open_beyond_the_maximum_evd_length_is_refused(ctx: &Ctx) {
    let most = ctx.ia().attr().max_evd_qlen;
    if most == DAT_COUNT::MAX {
        ctx.unsupported("a limit on the length of EVDs");
    }
    // The type is that of `dat_evd_create`; the subtype may differ.
    assert_eq!(kind_of(with_length(ctx, most + 1)), error(DAT_INSUFFICIENT_RESOURCES, 0));
    ok(with_length(ctx, most));
}

fn ia_open_evd_lengths_used_by_programs_are_accepted(ctx: &Ctx) {
    for length in [1, 8, 10, 16, 256] {
        ok(with_length(ctx, length));
    }
}

fn ia_open_twice_returns_two_adapters(ctx: &Ctx) {
    let (one, other) = (ctx.ia(), ctx.ia());
    assert_ne!(one.h(), other.h());
    assert_ne!(one.errors(), other.errors());
    let pointer = |ia: &Ia| filled::<DAT_HANDLE>(|out| dats_get_ia_handle(ia.h(), out));
    assert_ne!(pointer(&one), pointer(&other));
}

fn ia_open_of_forty_adapters_returns_distinct_handles(ctx: &Ctx) {
    let all: Vec<Ia> = (0..40).map(|_| ctx.ia()).collect();
    let mut numbers: Vec<usize> = all.iter().map(|ia| ia.h().addr()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all.len(), "two IAs have the same handle");
    for ia in &all {
        ia.pz().free();
    }
}

fn ia_open_adapters_do_not_share_objects(ctx: &Ctx) {
    let (one, other) = (ctx.ia(), ctx.ia());
    let pz = other.pz();
    // Objects in the second IA do not prevent the close of the first.
    one.close();
    let param: DAT_PZ_PARAM = filled(|out| dat_pz_query(pz.h(), DAT_PZ_FIELD_ALL, out));
    assert_eq!(param.ia_handle, other.h());
}

fn ia_open_from_four_threads_succeeds(ctx: &Ctx) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let ia = ctx.ia();
                    ia.pz().free();
                    ia.close();
                }
            });
        }
    });
}

fn ia_open_and_close_succeed_a_hundred_times(ctx: &Ctx) {
    for _ in 0..100 {
        ctx.ia().close();
    }
}

fn ia_handle_is_a_number_from_1_to_65535(ctx: &Ctx) {
    let number = ctx.ia().h().addr();
    assert!((1..0x1_0000).contains(&number), "the IA handle is {number:#x}, wanted 1 to 0xffff");
}

fn ia_handle_is_not_reused_immediately(ctx: &Ctx) {
    let mut dead = Vec::new();
    for _ in 0..50 {
        let ia = ctx.ia();
        assert!(!dead.contains(&ia.h()), "the handle of a closed IA was returned again");
        dead.push(ia.close());
    }
}

fn dats_get_ia_handle_returns_the_provider_pointer_of_the_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer: DAT_HANDLE = filled(|out| dats_get_ia_handle(ia.h(), out));
    assert!(
        pointer.addr() >= 0x1_0000 && pointer.addr().is_multiple_of(4),
        "the provider's handle {pointer:?} is not an aligned address"
    );
    // The object of every handle begins with the address of its provider's table.
    let table = |handle: DAT_HANDLE| bytes_at(handle, 8);
    assert_eq!(table(pointer), table(ia.errors()));
}

fn dats_get_ia_handle_accepts_a_provider_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer: DAT_HANDLE = filled(|out| dats_get_ia_handle(ia.h(), out));
    // The libdat of 2.0 translates a pointer back to the number, as Dapl 2 does (spec/registry 7.2).
    let wanted = if is_2_0() { ia.h() } else { pointer };
    assert_eq!(filled::<DAT_HANDLE>(|out| dats_get_ia_handle(pointer, out)), wanted);
}

fn dats_get_ia_handle_without_out_pointer_returns_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    refused(dats_get_ia_handle(ia.h(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn dats_get_ia_handle_of_an_invalid_handle_returns_invalid_handle_ia(ctx: &Ctx) {
    let ia = ctx.ia();
    let dead = ctx.ia().close();
    let beyond = without_provenance_mut(ia.h().addr() + 1000);
    for handle in [DAT_HANDLE_NULL, dead, beyond, without_provenance_mut(0xffff), ia.errors()] {
        let code = untouched(|out| dats_get_ia_handle(handle, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}

fn ia_provider_pointer_is_accepted_as_a_handle(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer: DAT_HANDLE = filled(|out| dats_get_ia_handle(ia.h(), out));
    let pz = Pz::own(filled(|out| dat_pz_create(pointer, out)));
    let evd = Evd::own(filled(|out| dat_evd_create(pointer, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, out)));
    let _: DAT_IA_ATTR = filled(|out| dat_ia_query(pointer, null_mut(), DAT_IA_FIELD_ALL, out, 0, null_mut()));
    assert_eq!(filled::<DAT_HANDLE_TYPE>(|out| dat_get_handle_type(pointer, out)), DAT_HANDLE_TYPE_IA);
    assert_eq!(evd.param().ia_handle, ia.h(), "the query returns another IA handle");
    pz.free();
}

fn ia_handle_is_returned_by_queries_of_all_objects(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    let ia = objects.ia.h();
    assert_eq!(objects.evd.param().ia_handle, ia);
    assert_eq!(objects.ep.param().ia_handle, ia);
    assert_eq!(filled::<DAT_CNO_PARAM>(|out| dat_cno_query(objects.cno.h(), DAT_CNO_FIELD_ALL, out)).ia_handle, ia);
    assert_eq!(filled::<DAT_PZ_PARAM>(|out| dat_pz_query(objects.pz.h(), DAT_PZ_FIELD_ALL, out)).ia_handle, ia);
    assert_eq!(filled::<DAT_LMR_PARAM>(|out| dat_lmr_query(objects.memory.h(), DAT_LMR_FIELD_ALL, out)).ia_handle, ia);
    assert_eq!(filled::<DAT_PSP_PARAM>(|out| dat_psp_query(objects.psp.h(), DAT_PSP_FIELD_ALL, out)).ia_handle, ia);
    assert_eq!(filled::<DAT_RSP_PARAM>(|out| dat_rsp_query(objects.rsp.h(), DAT_RSP_FIELD_ALL, out)).ia_handle, ia);
    if let Some(rmr) = &objects.rmr {
        assert_eq!(filled::<DAT_RMR_PARAM>(|out| dat_rmr_query(rmr.h(), DAT_RMR_FIELD_ALL, out)).ia_handle, ia);
    }
    if let Some(srq) = &objects.srq {
        assert_eq!(filled::<DAT_SRQ_PARAM>(|out| dat_srq_query(srq.h(), DAT_SRQ_FIELD_ALL, out)).ia_handle, ia);
    }
}

fn ia_close_by_provider_pointer_invalidates_the_ia_handle(ctx: &Ctx) {
    let ia = ctx.ia().leak();
    let pointer: DAT_HANDLE = filled(|out| dats_get_ia_handle(ia, out));
    ok(dat_ia_close(pointer, DAT_CLOSE_GRACEFUL_FLAG));
    for handle in [ia, pointer] {
        refused(dat_ia_close(handle, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}
