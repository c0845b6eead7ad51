//! `dat_registry_add_provider` and `dat_registry_remove_provider`: providers that a program registers. Names from
//! dat.conf are in `list`.
#![forbid(unsafe_code)]

use std::ffi::c_char;
use std::ptr::null;

use crate::kit::*;

use super::list::{open, size};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 3.2": registry_add_without_a_table_returns_invalid_arg1,
        "spec/registry 3.2": registry_add_without_a_record_returns_invalid_arg2,
        "spec/registry 3.2": registry_add_and_remove_with_an_unterminated_name_return_invalid_arg2,
        "spec/registry 3.2": registry_add_without_open_query_or_close_returns_invalid_arg1,
        "spec/registry 3.2": registry_add_twice_returns_already_registered,
        "spec/registry 3.2": registry_add_distinguishes_name_version_and_thread_safety,
        "spec/registry 3.1": registry_added_provider_opens_but_is_not_listed,
        "spec/registry 4.2": registry_nonthreadsafe_provider_is_not_found_by_a_threadsafe_open,
        "spec/registry 3.2": registry_remove_without_a_table_returns_invalid_arg1,
        "spec/registry 3.2": registry_remove_without_a_record_returns_invalid_arg2,
        "spec/registry 3.2": registry_remove_unknown_name_or_version_returns_name_not_registered,
        "spec/registry 3.2": registry_remove_while_an_adapter_is_open_returns_in_use,
        "spec/registry 3.2": registry_second_remove_returns_name_not_registered,
        "spec/registry 4.1": registry_open_error_of_a_provider_is_returned,
        "spec/registry 3.2": registry_null_table_entries_return_not_implemented,
    ]
}

/// A provider table of the case, whose open returns an error.
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

/// A provider table whose open succeeds. The opened IA is an object that begins with the address of another provider
/// table.
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

fn registry_add_without_a_table_returns_invalid_arg1(_ctx: &Ctx) {
    for info in [&own() as *const _, null()] {
        refused(dat_registry_add_provider(null(), info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
}

fn registry_add_without_a_record_returns_invalid_arg2(_ctx: &Ctx) {
    refused(dat_registry_add_provider(&table(), null()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_add_and_remove_with_an_unterminated_name_return_invalid_arg2(_ctx: &Ctx) {
    let info = info(&"n".repeat(256), 2, DAT_FALSE);
    refused(dat_registry_add_provider(&table(), &info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    refused(dat_registry_remove_provider(&table(), &info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_add_without_open_query_or_close_returns_invalid_arg1(_ctx: &Ctx) {
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

fn registry_add_twice_returns_already_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    refused(dat_registry_add_provider(&table, &own()), DAT_PROVIDER_ALREADY_REGISTERED, DAT_NO_SUBTYPE);
    ok(dat_registry_remove_provider(&table, &own()));
    ok(dat_registry_add_provider(&table, &own()));
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_add_distinguishes_name_version_and_thread_safety(_ctx: &Ctx) {
    let table = table();
    let keys = [("one", 2, DAT_FALSE), ("one", 3, DAT_FALSE), ("one", 2, DAT_TRUE), ("two", 2, DAT_FALSE)];
    for (name, minor, safe) in keys {
        ok(dat_registry_add_provider(&table, &info(name, minor, safe)));
    }
    for (name, minor, safe) in keys {
        ok(dat_registry_remove_provider(&table, &info(name, minor, safe)));
    }
}

fn registry_nonthreadsafe_provider_is_not_found_by_a_threadsafe_open(_ctx: &Ctx) {
    let table = table_that_opens();
    ok(dat_registry_add_provider(table, &own()));
    let name = c"a case's own".as_ptr().cast_mut();
    let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    let code = dat_ia_openv(name, 8, &mut errors, &mut ia, 1, 2, DAT_TRUE);
    refused(code, DAT_PROVIDER_NOT_FOUND, DAT_THREAD_SAFETY_NOT_FOUND);
    ok(dat_registry_remove_provider(table, &own()));
}

fn registry_added_provider_opens_but_is_not_listed(_ctx: &Ctx) {
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

fn registry_remove_without_a_table_returns_invalid_arg1(_ctx: &Ctx) {
    for info in [&own() as *const _, null()] {
        refused(dat_registry_remove_provider(null(), info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
    }
}

fn registry_remove_without_a_record_returns_invalid_arg2(_ctx: &Ctx) {
    refused(dat_registry_remove_provider(&table(), null()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn registry_remove_unknown_name_or_version_returns_name_not_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    for other in [info("a case's", 2, DAT_FALSE), info("a case's own", 3, DAT_FALSE)] {
        refused(dat_registry_remove_provider(&table, &other), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
    }
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_remove_while_an_adapter_is_open_returns_in_use(_ctx: &Ctx) {
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

fn registry_second_remove_returns_name_not_registered(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    ok(dat_registry_remove_provider(&table, &own()));
    refused(dat_registry_remove_provider(&table, &own()), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
}

fn registry_open_error_of_a_provider_is_returned(_ctx: &Ctx) {
    let table = table();
    ok(dat_registry_add_provider(&table, &own()));
    for _ in 0..3 {
        let (code, ia) = open("a case's own");
        refused(code, DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE);
        assert!(ia.is_null());
    }
    // Failed opens are not counted as uses of the provider.
    ok(dat_registry_remove_provider(&table, &own()));
}

fn registry_null_table_entries_return_not_implemented(_ctx: &Ctx) {
    let table = table_that_opens();
    ok(dat_registry_add_provider(table, &own()));
    let ia = open("a case's own").1;
    expect(untouched(|out| dat_pz_create(ia, out)), DAT_NOT_IMPLEMENTED);
    expect(untouched(|out| dat_get_handle_type(ia, out)), DAT_NOT_IMPLEMENTED);
    ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    ok(dat_registry_remove_provider(table, &own()));
}
