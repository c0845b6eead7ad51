//! `dat_registry_list_providers`, and the dat.conf whose lines it lists.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 3.1": registry_list_without_a_count_returns_invalid_arg2,
        "spec/registry 3.1": registry_list_without_a_list_returns_invalid_arg3,
        "spec/registry 3.1": registry_list_with_capacity_zero_returns_invalid_arg1_and_the_size,
        "spec/registry 3.1": registry_list_with_negative_capacity_returns_invalid_arg1,
        "spec/registry 3.1": registry_list_with_capacity_one_returns_one_provider,
        "spec/registry 3.1": registry_list_with_enough_capacity_returns_all_providers,
        "spec/registry 3.1": registry_list_with_a_null_entry_returns_invalid_arg3,
        "spec/registry 3.1": registry_list_ignores_a_null_entry_after_the_last_provider,
        "spec/registry 3.1": registry_list_names_the_adapter_under_test,
        "spec/registry 3.1": registry_list_is_the_same_after_an_open,
        "spec/registry 3.1": registry_list_keeps_file_order_with_lines_of_its_api_version_first,
        "spec/consumers 20": registry_list_of_an_empty_file_succeeds,
        "spec/registry 5.1": registry_list_of_an_absent_file_succeeds,
        "spec/consumers 25": registry_four_names_of_one_library_open_and_report_their_own_name,
        "spec/registry 4.2": registry_open_of_an_absent_library_returns_not_found_without_subtype,
    ]
}

pub(super) fn open(name: &str) -> (DAT_RETURN, DAT_IA_HANDLE) {
    let (name, mut errors, mut ia) =
        (CString::new(name).expect("the name has no NUL"), DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    (dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, &mut ia, 1, 2, DAT_FALSE), ia)
}

/// Lists with this capacity. Returns the code, the count, and the names.
fn list(capacity: usize, most: DAT_COUNT) -> (DAT_RETURN, DAT_COUNT, Vec<String>) {
    let mut records: Vec<DAT_PROVIDER_INFO> = (0..capacity).map(|_| zeroed()).collect();
    let mut places: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(std::ptr::from_mut).collect();
    let mut count = -7;
    let code = dat_registry_list_providers(most, &mut count, places.as_mut_ptr());
    let names = records.iter().map(|record| text_at(record.ia_name.as_ptr())).collect();
    (code, count, names)
}

pub(super) fn size() -> DAT_COUNT {
    let mut count = -7;
    let code = dat_registry_list_providers(0, &mut count, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    count
}

fn registry_list_without_a_count_returns_invalid_arg2(_ctx: &Ctx) {
    for most in [0, 1, -1] {
        let code = dat_registry_list_providers(most, null_mut(), null_mut());
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn registry_list_without_a_list_returns_invalid_arg3(_ctx: &Ctx) {
    for most in [1, 8, -1] {
        let code = untouched(|count| dat_registry_list_providers(most, count, null_mut()));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
}

fn registry_list_with_capacity_zero_returns_invalid_arg1_and_the_size(_ctx: &Ctx) {
    let (code, count, names) = list(1, 0);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    assert!(count >= 1, "the count is {count}, wanted 1 or more");
    assert_eq!(count, size(), "the count differs between calls with and without a list");
    assert_eq!(names, [""]);
}

fn registry_list_with_negative_capacity_returns_invalid_arg1(_ctx: &Ctx) {
    for most in [-1, DAT_COUNT::MIN] {
        let (code, _, names) = list(1, most);
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!(names, [""]);
    }
}

fn registry_list_with_capacity_one_returns_one_provider(_ctx: &Ctx) {
    let (code, count, names) = list(2, 1);
    ok(code);
    assert_eq!(count, 1);
    assert!(!names[0].is_empty());
    assert_eq!(names[1], "");
}

fn registry_list_with_enough_capacity_returns_all_providers(_ctx: &Ctx) {
    let size = size();
    for most in [size, size + 1, 64] {
        let (code, count, names) = list(64, most);
        ok(code);
        assert_eq!(count, size);
        assert_eq!(names.iter().filter(|name| !name.is_empty()).count(), size as usize);
    }
}

fn registry_list_with_a_null_entry_returns_invalid_arg3(_ctx: &Ctx) {
    let mut count = -7;
    let code = dat_registry_list_providers(1, &mut count, [null_mut()].as_mut_ptr());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    assert_eq!(count, size());
}

/// Only as many entries as there are providers must be valid pointers.
fn registry_list_ignores_a_null_entry_after_the_last_provider(_ctx: &Ctx) {
    let size = size() as usize;
    let mut records: Vec<DAT_PROVIDER_INFO> = (0..size).map(|_| zeroed()).collect();
    let mut places: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(std::ptr::from_mut).collect();
    places.push(null_mut());
    let count = filled(|count| dat_registry_list_providers(size as DAT_COUNT + 1, count, places.as_mut_ptr()));
    assert_eq!(count as usize, size);
}

fn registry_list_names_the_adapter_under_test(ctx: &Ctx) {
    let (code, _, names) = list(64, 64);
    ok(code);
    assert_eq!(
        names.iter().filter(|name| **name == ctx.provider).count(),
        1,
        "{} is not listed exactly once: {names:?}",
        ctx.provider
    );
}

fn registry_list_is_the_same_after_an_open(ctx: &Ctx) {
    let before = list(64, 64);
    let _ia = ctx.ia();
    assert_eq!(list(64, 64), before);
}

/// The library path of the adapter under test, as given in the registry.
fn own_library(ctx: &Ctx) -> String {
    let Ok(path) = std::env::var("DAT_OVERRIDE") else { ctx.unsupported("a registry file of the run") };
    let text = std::fs::read_to_string(path).expect("the run's registry can be read");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(ctx.provider.as_str()));
    let library = line.and_then(|line| line.split_whitespace().nth(4)).map(str::to_owned);
    library.unwrap_or_else(|| ctx.unsupported("a line of the adapter in the run's registry"))
}

/// Replaces the registry by these lines.
fn with_file(ctx: &Ctx, text: &str) {
    let path = ctx.file("dat.conf");
    std::fs::write(&path, of_version(text)).expect("the run's directory is writable");
    os::set_env("DAT_OVERRIDE", &path);
}

fn registry_list_keeps_file_order_with_lines_of_its_api_version_first(ctx: &Ctx) {
    let line = |name: &str, version: &str| format!("{name} {version} nonthreadsafe default lib.so a.1.2 \"\" \"\"\n");
    let second = line("newer", "u2.0") + &line("zebra", "u1.2") + &line("apple", "u1.2") + &line("zebra", "u1.2");
    with_file(ctx, &(second + &line("older", "u2.0") + &line("mouse", "u1.2")));
    let (code, count, names) = list(8, 8);
    ok(code);
    // Lines of the version under test come first. Each name is listed once.
    assert_eq!(names[..count as usize], ["zebra", "apple", "mouse", "newer", "older"]);
}

fn registry_list_of_an_empty_file_succeeds(ctx: &Ctx) {
    with_file(ctx, "# nothing\n\n");
    let (code, count, _) = list(8, 8);
    assert_eq!((code, count, size()), (DAT_SUCCESS, 0, 0));
}

fn registry_list_of_an_absent_file_succeeds(ctx: &Ctx) {
    os::set_env("DAT_OVERRIDE", ctx.file("absent.conf"));
    let (code, count, _) = list(8, 8);
    assert_eq!((code, count, size()), (DAT_SUCCESS, 0, 0));
}

fn registry_open_of_an_absent_library_returns_not_found_without_subtype(ctx: &Ctx) {
    with_file(ctx, "gone u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"\n");
    refused(open("gone").0, DAT_PROVIDER_NOT_FOUND, DAT_NO_SUBTYPE);
}

fn registry_four_names_of_one_library_open_and_report_their_own_name(ctx: &Ctx) {
    let library = own_library(ctx);
    let names = ["OpenIB-cma", "OpenIB-cma-name", "ib0", "mx"];
    let line = |name: &&str| format!("{name} u1.2 nonthreadsafe default {library} dapl.1.2 \"\" \"\"\n");
    with_file(ctx, &names.iter().map(line).collect::<String>());
    for name in names {
        let ia = Ia::open(name, 8);
        assert_eq!(text_at(ia.attr().adapter_name.as_ptr()), name);
        ia.close();
    }
}
