//! The registry as consumers may use it, and the words for codes.
#![forbid(unsafe_code)]

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use crate::kit::*;
use crate::names::{SUBTYPES, TYPES};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "registry-ia 3.1": registry_list_without_a_count_is_arg2,
        "registry-ia 3.1": registry_list_without_a_list_is_arg3,
        "registry-ia 3.1": registry_list_of_none_is_arg1_and_tells_the_size,
        "registry-ia 3.1": registry_list_of_less_than_none_is_arg1,
        "registry-ia 3.1": registry_list_of_one_is_cut_short,
        "registry-ia 3.1": registry_list_of_more_tells_how_many,
        "registry-ia 3.1": registry_list_with_a_hole_is_arg3,
        "registry-ia 3.1": registry_list_with_a_hole_behind_the_end,
        "registry-ia 3.1": registry_list_names_the_adapter_under_test,
        "registry-ia 3.1": registry_list_is_the_same_every_time,
        "registry-ia 3.1": registry_list_in_the_order_of_the_file,
        "consumers 20": registry_list_of_an_empty_file_succeeds,
        "registry-ia 5.1": registry_list_of_an_absent_file_succeeds,
        "consumers 25": registry_any_name_can_be_given_to_any_provider,
        "registry-ia 4.2": registry_open_of_an_absent_library_has_no_subtype,
        "registry-ia 3.2": registry_add_without_a_table_is_arg1,
        "registry-ia 3.2": registry_add_without_a_record_is_arg2,
        "registry-ia 3.2": registry_add_with_an_endless_name_is_arg2,
        "registry-ia 3.2": registry_add_without_entries_is_arg1,
        "registry-ia 3.2": registry_add_twice_is_already_registered,
        "registry-ia 3.2": registry_add_is_by_the_whole_key,
        "registry-ia 3.1": registry_add_opens_but_is_not_listed,
        "registry-ia 3.2": registry_remove_without_a_table_is_arg1,
        "registry-ia 3.2": registry_remove_without_a_record_is_arg2,
        "registry-ia 3.2": registry_remove_unknown_is_not_registered,
        "registry-ia 3.2": registry_remove_under_an_open_adapter_is_in_use,
        "registry-ia 3.2": registry_remove_twice_is_not_registered,
        "registry-ia 4.1": registry_open_error_of_a_provider_comes_through,
        "registry-ia 3.2": registry_empty_entries_are_not_implemented,
        "registry-ia 9.2": strerror_of_every_type,
        "registry-ia 9.2": strerror_of_every_subtype,
        "registry-ia 9.2": strerror_of_success,
        "registry-ia 9.2": strerror_of_not_implemented,
        "registry-ia 9.2": strerror_ignores_the_class,
        "registry-ia 9.2": strerror_of_an_unknown_type_sets_both,
        "registry-ia 9.2": strerror_of_an_unknown_subtype_sets_both,
        "registry-ia 9.2": strerror_of_one_string_only,
        "registry-ia 9.2": strerror_of_nothing_is_arg2,
        "registry-ia 9.2": strerror_gives_the_same_strings,
        "consumers 21": strerror_always_sets_both_strings,
    ]
}

/// Asks with room for so many: the code, the count, and the names that came.
fn list(room: usize, most: DAT_COUNT) -> (DAT_RETURN, DAT_COUNT, Vec<String>) {
    let mut records: Vec<DAT_PROVIDER_INFO> = (0..room).map(|_| zeroed()).collect();
    let mut places: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(std::ptr::from_mut).collect();
    let mut count = -7;
    let code = dat_registry_list_providers(most, &mut count, places.as_mut_ptr());
    let names = records.iter().map(|record| text_at(record.ia_name.as_ptr())).collect();
    (code, count, names)
}

fn size() -> DAT_COUNT {
    let mut count = -7;
    let code = dat_registry_list_providers(0, &mut count, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    count
}

fn registry_list_without_a_count_is_arg2(_ctx: &Ctx) {
    for most in [0, 1, -1] {
        let code = dat_registry_list_providers(most, null_mut(), null_mut());
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn registry_list_without_a_list_is_arg3(_ctx: &Ctx) {
    for most in [1, 8, -1] {
        let code = untouched(|count| dat_registry_list_providers(most, count, null_mut()));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
}

fn registry_list_of_none_is_arg1_and_tells_the_size(_ctx: &Ctx) {
    let (code, count, names) = list(1, 0);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    assert!(count >= 1, "{count}");
    assert_eq!(count, size(), "with and without a list");
    assert_eq!(names, [""]);
}

fn registry_list_of_less_than_none_is_arg1(_ctx: &Ctx) {
    for most in [-1, DAT_COUNT::MIN] {
        let (code, _, names) = list(1, most);
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!(names, [""]);
    }
}

fn registry_list_of_one_is_cut_short(_ctx: &Ctx) {
    let (code, count, names) = list(2, 1);
    ok(code);
    assert_eq!(count, 1);
    assert!(!names[0].is_empty());
    assert_eq!(names[1], "");
}

fn registry_list_of_more_tells_how_many(_ctx: &Ctx) {
    let size = size();
    for most in [size, size + 1, 64] {
        let (code, count, names) = list(64, most);
        ok(code);
        assert_eq!(count, size);
        assert_eq!(names.iter().filter(|name| !name.is_empty()).count(), size as usize);
    }
}

fn registry_list_with_a_hole_is_arg3(_ctx: &Ctx) {
    let mut count = -7;
    let code = dat_registry_list_providers(1, &mut count, [null_mut()].as_mut_ptr());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    assert_eq!(count, size());
}

/// Only what would be filled has to be there.
fn registry_list_with_a_hole_behind_the_end(_ctx: &Ctx) {
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
    assert_eq!(names.iter().filter(|name| **name == ctx.provider).count(), 1, "{names:?}");
}

fn registry_list_is_the_same_every_time(ctx: &Ctx) {
    let before = list(64, 64);
    let _ia = ctx.ia();
    assert_eq!(list(64, 64), before);
}

/// The library of the adapter under test, as its file names it.
fn own_library(ctx: &Ctx) -> String {
    let Ok(path) = std::env::var("DAT_OVERRIDE") else { ctx.unsupported("a registry file of the run") };
    let text = std::fs::read_to_string(path).expect("the run's registry can be read");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(ctx.provider.as_str()));
    let library = line.and_then(|line| line.split_whitespace().nth(4)).map(str::to_owned);
    library.unwrap_or_else(|| ctx.unsupported("a line of the adapter in the run's registry"))
}

/// From now on the registry has these lines.
fn with_file(ctx: &Ctx, text: &str) {
    let path = ctx.file("dat.conf");
    std::fs::write(&path, text).expect("the run's directory is writable");
    os::set_env("DAT_OVERRIDE", &path);
}

fn registry_list_in_the_order_of_the_file(ctx: &Ctx) {
    let line = |name: &str, version: &str| format!("{name} {version} nonthreadsafe default lib.so a.1.2 \"\" \"\"\n");
    let second = line("newer", "u2.0") + &line("zebra", "u1.2") + &line("apple", "u1.2") + &line("zebra", "u1.2");
    with_file(ctx, &(second + &line("older", "u2.0") + &line("mouse", "u1.2")));
    let (code, count, names) = list(8, 8);
    ok(code);
    // Those of this version first, each key once.
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

fn registry_open_of_an_absent_library_has_no_subtype(ctx: &Ctx) {
    with_file(ctx, "gone u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"\n");
    refused(open("gone").0, DAT_PROVIDER_NOT_FOUND, DAT_NO_SUBTYPE);
}

fn registry_any_name_can_be_given_to_any_provider(ctx: &Ctx) {
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

/// A provider of the case's own: it opens nothing and says so.
fn table() -> DAT_PROVIDER {
    extern "C" fn open(_: DAT_NAME_PTR, _: DAT_COUNT, _: *mut DAT_EVD_HANDLE, _: *mut DAT_IA_HANDLE) -> DAT_RETURN {
        error(DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE)
    }
    extern "C" fn query(
        _: DAT_IA_HANDLE,
        _: *mut DAT_EVD_HANDLE,
        _: DAT_IA_ATTR_MASK,
        _: *mut DAT_IA_ATTR,
        _: DAT_PROVIDER_ATTR_MASK,
        _: *mut DAT_PROVIDER_ATTR,
    ) -> DAT_RETURN {
        DAT_SUCCESS
    }
    extern "C" fn close(_: DAT_IA_HANDLE, _: DAT_CLOSE_FLAGS) -> DAT_RETURN {
        DAT_SUCCESS
    }
    let mut table: DAT_PROVIDER = zeroed();
    table.ia_open_func = Some(open);
    table.ia_query_func = Some(query);
    table.ia_close_func = Some(close);
    table
}

/// The same, and it opens: a handle that begins with this table.
fn table_that_opens() -> &'static DAT_PROVIDER {
    extern "C" fn open(_: DAT_NAME_PTR, _: DAT_COUNT, _: *mut DAT_EVD_HANDLE, ia: *mut DAT_IA_HANDLE) -> DAT_RETURN {
        let table: &'static DAT_PROVIDER = Box::leak(Box::new(table()));
        let object: &'static Buffer = Box::leak(Box::new(Buffer::new(64)));
        object.put(0, &std::ptr::from_ref(table).expose_provenance().to_ne_bytes());
        let handle = object.pointer().expose_provenance().to_ne_bytes();
        crate::kit::write_at(ia.cast(), &handle);
        DAT_SUCCESS
    }
    let mut table = table();
    table.ia_open_func = Some(open);
    Box::leak(Box::new(table))
}

fn info(name: &str, minor: u32, thread_safe: DAT_BOOLEAN) -> DAT_PROVIDER_INFO {
    let mut info: DAT_PROVIDER_INFO = zeroed();
    for (to, from) in info.ia_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    (info.dapl_version_major, info.dapl_version_minor, info.is_thread_safe) = (1, minor, thread_safe);
    info
}

fn own() -> DAT_PROVIDER_INFO {
    info("a case's own", 2, DAT_FALSE)
}

fn open(name: &str) -> (DAT_RETURN, DAT_IA_HANDLE) {
    let (name, mut errors, mut ia) = (CString::new(name).expect("no NUL"), DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    (dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, &mut ia, 1, 2, DAT_FALSE), ia)
}

fn registry_add_without_a_table_is_arg1(_ctx: &Ctx) {
    for info in [&own() as *const _, null()] {
        refused(dat_registry_add_provider(null(), info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
}

fn registry_add_without_a_record_is_arg2(_ctx: &Ctx) {
    refused(dat_registry_add_provider(&table(), null()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_add_with_an_endless_name_is_arg2(_ctx: &Ctx) {
    let info = info(&"n".repeat(256), 2, DAT_FALSE);
    refused(dat_registry_add_provider(&table(), &info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    refused(dat_registry_remove_provider(&table(), &info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_add_without_entries_is_arg1(_ctx: &Ctx) {
    let without = [
        DAT_PROVIDER { ia_open_func: None, ..table() },
        DAT_PROVIDER { ia_query_func: None, ..table() },
        DAT_PROVIDER { ia_close_func: None, ..table() },
    ];
    for table in without {
        refused(dat_registry_add_provider(&table, &own()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
    assert_eq!(kind_of(open("a case's own").0), error(DAT_PROVIDER_NOT_FOUND, 0));
}

fn registry_add_twice_is_already_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    refused(dat_registry_add_provider(&table, &own()), DAT_PROVIDER_ALREADY_REGISTERED, DAT_NO_SUBTYPE);
    ok(dat_registry_remove_provider(&table, &own()));
    ok(dat_registry_add_provider(&table, &own()));
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_add_is_by_the_whole_key(_ctx: &Ctx) {
    let table = table();
    let keys = [("one", 2, DAT_FALSE), ("one", 3, DAT_FALSE), ("one", 2, DAT_TRUE), ("two", 2, DAT_FALSE)];
    for (name, minor, safe) in keys {
        ok(dat_registry_add_provider(&table, &info(name, minor, safe)));
    }
    for (name, minor, safe) in keys {
        ok(dat_registry_remove_provider(&table, &info(name, minor, safe)));
    }
}

fn registry_add_opens_but_is_not_listed(_ctx: &Ctx) {
    let table = table_that_opens();
    let before = size();
    ok(dat_registry_add_provider(table, &own()));
    assert_eq!(size(), before);
    let (code, ia) = open("a case's own");
    ok(code);
    assert!(!ia.is_null());
    ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    ok(dat_registry_remove_provider(table, &own()));
}

fn registry_remove_without_a_table_is_arg1(_ctx: &Ctx) {
    for info in [&own() as *const _, null()] {
        refused(dat_registry_remove_provider(null(), info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
}

fn registry_remove_without_a_record_is_arg2(_ctx: &Ctx) {
    refused(dat_registry_remove_provider(&table(), null()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_remove_unknown_is_not_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    for other in [info("a case's", 2, DAT_FALSE), info("a case's own", 3, DAT_FALSE)] {
        refused(dat_registry_remove_provider(&table, &other), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
    }
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_remove_under_an_open_adapter_is_in_use(_ctx: &Ctx) {
    let table = table_that_opens();
    ok(dat_registry_add_provider(table, &own()));
    let (one, other) = (open("a case's own").1, open("a case's own").1);
    for ia in [one, other] {
        refused(dat_registry_remove_provider(table, &own()), DAT_PROVIDER_IN_USE, DAT_NO_SUBTYPE);
        ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    }
    ok(dat_registry_remove_provider(table, &own()));
    assert_eq!(kind_of(open("a case's own").0), error(DAT_PROVIDER_NOT_FOUND, 0));
}

fn registry_remove_twice_is_not_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    ok(dat_registry_remove_provider(&table, &own()));
    refused(dat_registry_remove_provider(&table, &own()), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
}

fn registry_open_error_of_a_provider_comes_through(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    for _ in 0..3 {
        let (code, ia) = open("a case's own");
        refused(code, DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE);
        assert!(ia.is_null());
    }
    // The failed opens are not counted as uses.
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_empty_entries_are_not_implemented(_ctx: &Ctx) {
    let table = table_that_opens();
    ok(dat_registry_add_provider(table, &own()));
    let ia = open("a case's own").1;
    expect(untouched(|out| dat_pz_create(ia, out)), DAT_NOT_IMPLEMENTED);
    expect(untouched(|out| dat_get_handle_type(ia, out)), DAT_NOT_IMPLEMENTED);
    ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    ok(dat_registry_remove_provider(table, &own()));
}

/// The answer, and both strings, of which none may be left unset.
fn words(code: DAT_RETURN) -> (DAT_RETURN, String, String) {
    let (mut major, mut minor): (*const c_char, *const c_char) = (null(), null());
    let answer = dat_strerror(code, &mut major, &mut minor);
    assert!(!major.is_null() && !minor.is_null(), "{code:#x} leaves a string unset");
    (answer, text_at(major), text_at(minor))
}

fn strerror_of_every_type(_ctx: &Ctx) {
    for (code, name) in TYPES.iter().filter(|(code, _)| *code != DAT_NOT_IMPLEMENTED) {
        assert_eq!(words(DAT_CLASS_ERROR | code), (DAT_SUCCESS, (*name).to_owned(), String::new()));
    }
}

fn strerror_of_every_subtype(_ctx: &Ctx) {
    for (code, name) in SUBTYPES {
        // Whether or not it belongs to the type.
        for kind in [DAT_INVALID_STATE, DAT_INVALID_PARAMETER] {
            assert_eq!(words(error(kind, *code)).2, *name);
        }
    }
    let known: Vec<u32> = SUBTYPES.iter().map(|(code, _)| *code).collect();
    assert!((1..=101).all(|code| known.contains(&code)), "the table here is whole");
}

fn strerror_of_success(_ctx: &Ctx) {
    assert_eq!(words(DAT_SUCCESS), (DAT_SUCCESS, "DAT_SUCCESS".to_owned(), String::new()));
}

fn strerror_of_not_implemented(_ctx: &Ctx) {
    for code in [0xffff_0000, 0x3fff_0000] {
        let (answer, major, minor) = words(code);
        assert_eq!((answer, major.as_str(), minor.as_str()), (DAT_SUCCESS, "DAT_NOT_IMPLEMENTED", ""));
    }
}

fn strerror_ignores_the_class(_ctx: &Ctx) {
    let code = DAT_INVALID_PARAMETER | DAT_INVALID_ARG3;
    let wanted = (DAT_SUCCESS, "DAT_INVALID_PARAMETER".to_owned(), "DAT_INVALID_ARG3".to_owned());
    for class in [0, DAT_CLASS_ERROR, DAT_CLASS_WARNING] {
        assert_eq!(words(class | code), wanted);
    }
}

fn strerror_of_an_unknown_type_sets_both(_ctx: &Ctx) {
    for kind in [0x0015_0000, 0x0100_0000, 0x3ffe_0000] {
        let (answer, major, minor) = words(DAT_CLASS_ERROR | kind | DAT_INVALID_ARG3);
        refused(answer, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!((major.as_str(), minor.as_str()), ("unknown error", "DAT_INVALID_ARG3"));
    }
}

fn strerror_of_an_unknown_subtype_sets_both(_ctx: &Ctx) {
    for subtype in [102, 0x7fff, 0xffff] {
        let (answer, major, minor) = words(error(DAT_INVALID_STATE, subtype));
        refused(answer, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
        assert_eq!((major.as_str(), minor.as_str()), ("DAT_INVALID_STATE", "unknown minor error"));
    }
}

fn strerror_of_one_string_only(_ctx: &Ctx) {
    let code = error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    let mut text: *const c_char = null();
    ok(dat_strerror(code, &mut text, null_mut()));
    assert_eq!(text_at(text), "DAT_INVALID_PARAMETER");
    ok(dat_strerror(code, null_mut(), &mut text));
    assert_eq!(text_at(text), "DAT_INVALID_ARG3");
}

fn strerror_of_nothing_is_arg2(_ctx: &Ctx) {
    for code in [DAT_SUCCESS, error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG3), 0x1234_5678] {
        refused(dat_strerror(code, null_mut(), null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn strerror_gives_the_same_strings(_ctx: &Ctx) {
    let (mut one, mut other, mut minor): (*const c_char, *const c_char, *const c_char) = (null(), null(), null());
    ok(dat_strerror(DAT_QUEUE_EMPTY, &mut one, &mut minor));
    ok(dat_strerror(DAT_QUEUE_EMPTY, &mut other, &mut minor));
    assert_eq!(one, other, "static");
}

fn strerror_always_sets_both_strings(_ctx: &Ctx) {
    let mut code: u32 = 1;
    for _ in 0..20_000 {
        let (_, major, _) = words(code);
        assert!(!major.is_empty());
        // Any numbers will do, as long as they are many.
        code = code.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
    }
}
