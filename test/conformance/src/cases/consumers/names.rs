//! Queries of adapter and registry, codes and their names, invalid handles (spec/consumers 20 to 22, 24, 25).
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::ptr::{from_mut, from_ref, null, null_mut, without_provenance_mut};

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 20": consumers_20_ia_query_without_an_evd_pointer_succeeds,
        "spec/consumers 20": consumers_20_ia_query_with_either_mask_zero_succeeds,
        "spec/consumers 20": consumers_20_ia_query_for_the_evd_alone_succeeds,
        "spec/consumers 20": consumers_20_list_returns_at_most_the_requested_number,
        "spec/consumers 20": consumers_20_list_of_an_empty_registry_succeeds,
        "spec/consumers 21": consumers_21_strerror_sets_both_strings,
        "spec/consumers 22": consumers_22_address_of_a_handle_variable_is_refused_as_a_handle,
        "spec/consumers 22": consumers_22_values_that_are_no_pointers_are_refused_as_handles,
        "spec/consumers 24": consumers_24_queue_empty_of_an_evd_has_no_subtype,
        "spec/consumers 24": consumers_24_queue_empty_of_a_cno_has_no_subtype,
        "spec/consumers 25": consumers_25_entry_after_a_broken_one_opens_and_works,
    ];
    for name in ["OpenIB-cma", "OpenIB-cma-name", "ib0", "mx"] {
        let case = local(move |ctx| opens_as(ctx, name));
        let word = name.replace('-', "_").to_lowercase();
        all.push(case.named(format!("consumers_25_adapter_opens_under_the_name_{word}")).proves("spec/consumers 25"));
    }
    all
}

fn consumers_20_ia_query_without_an_evd_pointer_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let (mut attr, mut provider) = (zeroed::<DAT_IA_ATTR>(), zeroed::<DAT_PROVIDER_ATTR>());
    let (all, every) = (DAT_IA_FIELD_ALL, DAT_PROVIDER_FIELD_ALL);
    ok(dat_ia_query(ia.h(), null_mut(), all, &mut attr, every, &mut provider));
    assert!(!attr.ia_address_ptr.is_null() && attr.max_eps > 0 && provider.max_private_data_size >= 48);
}

fn consumers_20_ia_query_with_either_mask_zero_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let (mut attr, mut provider) = (zeroed::<DAT_IA_ATTR>(), zeroed::<DAT_PROVIDER_ATTR>());
    ok(dat_ia_query(ia.h(), null_mut(), DAT_IA_FIELD_ALL, &mut attr, 0, null_mut()));
    ok(dat_ia_query(ia.h(), null_mut(), 0, null_mut(), DAT_PROVIDER_FIELD_ALL, &mut provider));
    ok(dat_ia_query(ia.h(), null_mut(), 0, null_mut(), 0, null_mut()));
    assert!(attr.max_eps > 0 && provider.max_private_data_size > 0);
}

fn consumers_20_ia_query_for_the_evd_alone_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd: DAT_EVD_HANDLE = filled(|out| dat_ia_query(ia.h(), out, 0, null_mut(), 0, null_mut()));
    assert!(evd == ia.errors());
}

/// Lists with a capacity of `asked` entries. Returns the count and the names.
fn list(asked: DAT_COUNT) -> (DAT_COUNT, Vec<String>) {
    let mut entries = vec![zeroed::<DAT_PROVIDER_INFO>(); asked as usize];
    let mut places: Vec<_> = entries.iter_mut().map(from_mut).collect();
    let mut count = -1;
    ok(dat_registry_list_providers(asked, &mut count, places.as_mut_ptr()));
    let name = |entry: &DAT_PROVIDER_INFO| {
        let bytes = bytes_at(from_ref(&entry.ia_name).cast(), size_of_val(&entry.ia_name));
        let length = bytes.iter().position(|byte| *byte == 0).expect("an adapter name ends with NUL");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    (count, entries.iter().take(count.max(0) as usize).map(name).collect())
}

/// The registry line of the adapter under test, with its name replaced by `name`.
pub(crate) fn own_line(ctx: &Ctx, name: &str) -> String {
    let Ok(path) = std::env::var("DAT_OVERRIDE") else { ctx.unsupported("a registry file of the run") };
    let text = std::fs::read_to_string(path).expect("the run's registry can be read");
    let line = text.lines().find_map(|line| line.strip_prefix(ctx.provider.as_str()));
    let Some(rest) = line else { ctx.unsupported("a line of the adapter in the run's registry") };
    format!("{name}{rest}\n")
}

/// Replaces the registry by these lines. The case must call this before its first DAT call.
pub(crate) fn registry(ctx: &Ctx, text: &str) {
    let path = ctx.file("dat.conf");
    std::fs::write(&path, text).expect("the run's directory is writable");
    os::set_env("DAT_OVERRIDE", &path);
}

fn consumers_20_list_returns_at_most_the_requested_number(ctx: &Ctx) {
    registry(ctx, &["one", "two", "three"].map(|name| own_line(ctx, name)).concat());
    for asked in 1..6 {
        let (count, names) = list(asked);
        assert_eq!(count, asked.min(3));
        assert_eq!(names, ["one", "two", "three"][..count as usize]);
    }
}

fn consumers_20_list_of_an_empty_registry_succeeds(ctx: &Ctx) {
    registry(ctx, "# none\n");
    assert_eq!(list(4), (0, vec![]));
}

fn consumers_21_strerror_sets_both_strings(_: &Ctx) {
    let classes = [DAT_CLASS_ERROR, DAT_CLASS_SUCCESS, DAT_CLASS_WARNING];
    for kind in 0..0x30 {
        for subtype in 0..0x60 {
            for class in classes {
                let (mut major, mut minor) = (null(), null());
                dat_strerror(class | kind << 16 | subtype, &mut major, &mut minor);
                // Programs print both strings without checking the return code.
                assert!(
                    !major.is_null() && !minor.is_null(),
                    "a name of the code {:#x} is null",
                    class | kind << 16 | subtype
                );
                assert!(!bytes_at(major.cast(), 1).is_empty() && !bytes_at(minor.cast(), 1).is_empty());
            }
        }
    }
    for code in [DAT_NOT_IMPLEMENTED, DAT_QUEUE_EMPTY, u32::MAX] {
        let (mut major, mut minor) = (null(), null());
        dat_strerror(code, &mut major, &mut minor);
        assert!(!major.is_null() && !minor.is_null(), "a name of the code {code:#x} is null");
    }
}

fn consumers_22_address_of_a_handle_variable_is_refused_as_a_handle(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    for kind in ObjectKind::ALL.into_iter().filter(|kind| objects.has(*kind)) {
        let mut handle = objects.handle(kind);
        let address = from_mut(&mut handle).cast();
        let code = kind.end(address);
        assert_eq!(
            kind_of(code),
            error(DAT_INVALID_HANDLE, DAT_NO_SUBTYPE),
            "the address of the handle of a {} was accepted",
            kind.word()
        );
    }
    objects.expect_alive();
}

fn consumers_22_values_that_are_no_pointers_are_refused_as_handles(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    for kind in ObjectKind::ALL {
        for value in [0, 1, 2, 8, 0x1000, 0xffff_ffff, 0x7fff_ffff_f000, usize::MAX, usize::MAX - 7] {
            let code = match kind {
                // The value could be the number of another open adapter, which is a valid handle.
                ObjectKind::Ia if value < 0x1000 => continue,
                _ => kind.end(without_provenance_mut(value)),
            };
            assert_eq!(
                kind_of(code),
                error(DAT_INVALID_HANDLE, DAT_NO_SUBTYPE),
                "{value:#x} was accepted as a {}",
                kind.word()
            );
        }
    }
    objects.expect_alive();
}

fn consumers_24_queue_empty_of_an_evd_has_no_subtype(ctx: &Ctx) {
    let ia = ctx.ia();
    let single = [
        DAT_EVD_SOFTWARE_FLAG,
        DAT_EVD_CR_FLAG,
        DAT_EVD_DTO_FLAG,
        DAT_EVD_CONNECTION_FLAG,
        DAT_EVD_RMR_BIND_FLAG,
        DAT_EVD_DEFAULT_FLAG,
    ];
    for flags in single {
        let evd = ia.evd(4, flags);
        assert_eq!(untouched(|out| dat_evd_dequeue(evd.h(), out)), 0x000d_0000);
    }
    assert_eq!(
        dat_evd_dequeue(ia.errors(), &mut zeroed()),
        0x000d_0000,
        "dequeue of the async EVD returned another code"
    );
}

fn consumers_24_queue_empty_of_a_cno_has_no_subtype(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    for time in [0, 1000] {
        assert_eq!(dat_cno_wait(cno.h(), time, &mut null_mut()), 0x000d_0000);
    }
}

/// Opens the adapter under this name and sends a message over a connection to itself.
fn works_as(ctx: &Ctx, name: &str) {
    let ia = Ia::open(name, 8);
    let (client, server) = ctx.loopback_with(&ia, &Setup::default());
    ok(dat_ep_post_recv(server.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    assert!(bytes_at(ia.attr().adapter_name.as_ptr().cast(), 1) != [0], "the adapter name is empty");
}

fn opens_as(ctx: &Ctx, name: &str) {
    registry(ctx, &own_line(ctx, name));
    works_as(ctx, name);
}

fn consumers_25_entry_after_a_broken_one_opens_and_works(ctx: &Ctx) {
    let broken = &of_version("mx u1.2 nonthreadsafe default /nowhere/libnone.so dapl.1.2 \"\" \"\"\n");
    registry(ctx, &(broken.to_owned() + &own_line(ctx, "ib0")));
    let names = list(8).1;
    assert_eq!(names, ["mx", "ib0"]);
    let opens = |name: &String| {
        let name = CString::new(name.as_str()).expect("the name has no NUL");
        let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
        let (major, minor) = (DAT_VERSION_MAJOR, DAT_VERSION_MINOR);
        let code = dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, &mut ia, major, minor, DAT_THREADSAFE);
        if code == DAT_SUCCESS {
            ok(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
        }
        code == DAT_SUCCESS
    };
    let first = names.iter().find(|name| opens(name)).expect("at least one adapter can be opened");
    assert_eq!(first, "ib0");
    works_as(ctx, first);
}
