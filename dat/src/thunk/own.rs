//! Calls that libdat implements itself: open and close, the registry, names of return codes, conversion of IA handles,
//! and the private hook.
//!
//! Each function converts its C arguments to Rust values, calls another module, and writes its results last; an open
//! also writes a null handle first. The records of these calls, and the first members of a table, are the same in both
//! versions of the ABI.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use dat_abi::hook::{HandleArena, LIBDAT_HOOK_REQUEST, LibdatHook};
use dat_abi::*;

use super::{bad_parameter, guard, ia, not_a_handle, table};
use crate::api::{self, Api};
use crate::arena::ARENAS;
use crate::conf::Key;
use crate::loader::{host, other};
use crate::registry::{self, ProviderUse, error};
use crate::report::{self, Topic};
use crate::{handles, strerror};

/// `dat_ia_openv`: finds the provider of a name and opens an interface adapter.
///
/// # Safety
/// `name` is null or a C string, or at least 256 bytes; `ia_out` and `async_evd` are null or may be written.
#[allow(clippy::too_many_arguments, reason = "the arguments of the specification, and the version")]
pub unsafe fn ia_openv(
    api: &'static Api,
    name: DAT_NAME_PTR,
    async_evd_min_qlen: DAT_COUNT,
    async_evd: *mut DAT_EVD_HANDLE,
    ia_out: *mut DAT_IA_HANDLE,
    major: DAT_UINT32,
    minor: DAT_UINT32,
    thread_safety: DAT_BOOLEAN,
) -> DAT_RETURN {
    guard(api, || {
        // SAFETY: the caller guarantees that `name` is null, a C string, or at least 256 bytes long.
        let name = unsafe { name_at(name) }.ok_or(bad_parameter(1))?;
        if ia_out.is_null() {
            return Err(not_a_handle(DAT_INVALID_HANDLE_IA));
        }
        // SAFETY: `ia_out` is not null, and the caller guarantees that it is writable. It stays null if the open fails.
        unsafe { *ia_out = DAT_HANDLE_NULL };
        // SAFETY: the caller guarantees that `async_evd` is null or readable. The provider gets a copy, so a failed
        // open does not change the caller's handle.
        let mut evd = unsafe { async_evd.as_ref() }.copied();
        let wanted = Key { name, major, minor, thread_safe: thread_safety != DAT_FALSE };
        report::debug(Topic::ConsumerCalls, || {
            format!("dat_ia_openv of \"{}\" {major}.{minor}", wanted.name.escape_ascii())
        });
        let number = open(&wanted, async_evd_min_qlen, evd.as_mut())?;
        if let Some(evd) = evd {
            // SAFETY: `evd` was read through this pointer, so it is not null.
            unsafe { *async_evd = evd };
        }
        // SAFETY: `ia_out` is not null (checked above), and the caller guarantees that it is writable.
        unsafe { *ia_out = ptr::without_provenance_mut(number) };
        Ok(())
    })
}

/// Opens an IA by name and returns its number. After a failure, the use of the provider is released again.
fn open(wanted: &Key, qlen: DAT_COUNT, evd: Option<&mut DAT_EVD_HANDLE>) -> Result<usize, DAT_RETURN> {
    let name =
        CString::new(wanted.name.as_slice()).expect("`name_at` reads a name up to its NUL byte, so it contains none");
    let provider = registry::acquire(wanted)?;
    let mut ia = DAT_HANDLE_NULL;
    report::clear_explanation();
    let evd = evd.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the provider has registered the function with this type; name and results outlive the call.
    let code = unsafe { (provider.open)(name.as_ptr().cast_mut(), qlen, evd, &mut ia) };
    report::debug(Topic::ProviderCalls, || format!("ia_open of {name:?}: {}", words(code)));
    if code != DAT_SUCCESS || ia.is_null() {
        let (code, words) = match code {
            DAT_SUCCESS => (error(DAT_INTERNAL_ERROR, DAT_NO_SUBTYPE), "success without an adapter".to_owned()),
            code => (code, words(code)),
        };
        registry::refused_by_provider(wanted, provider.provider_use, code, &words);
        registry::release(provider.provider_use);
        return Err(code);
    }
    handles::add(ia, provider.provider_use).ok_or_else(|| {
        close_unnumbered(ia, provider.provider_use);
        error(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY)
    })
}

#[cold]
fn close_unnumbered(ia: DAT_IA_HANDLE, provider_use: ProviderUse) {
    if let Some(close) = table::<DAT_PROVIDER>(ia).and_then(|(_, table)| table.ia_close_func) {
        // SAFETY: the provider has just opened this IA, and no other thread knows its handle.
        unsafe { close(ia, DAT_CLOSE_ABRUPT_FLAG) };
    }
    registry::release(provider_use);
}

/// `dat_ia_close`: closes the IA at the provider, then releases its number and its use of the provider.
///
/// # Safety
///
/// `handle` may have any value.
pub unsafe fn ia_close(api: &'static Api, handle: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN {
    guard(api, || {
        report::debug(Topic::ConsumerCalls, || format!("dat_ia_close of {handle:?} with flags {flags}"));
        let (ia, table) = ia::<DAT_PROVIDER>(handle).ok_or(not_a_handle(DAT_INVALID_HANDLE_IA))?;
        // Looked up before the close, because afterwards another IA may have the same address.
        let number = if ia == handle { handles::number_of(ia) } else { Some(handle as usize) };
        let close = table.ia_close_func.ok_or(api.not_implemented)?;
        // SAFETY: the member has this type, and this provider opened the IA.
        let code = unsafe { close(ia, flags) };
        report::debug(Topic::ProviderCalls, || format!("ia_close of {handle:?}: {}", words(code)));
        if code != DAT_SUCCESS {
            return Err(code);
        }
        if let Some(provider_use) = number.and_then(handles::remove) {
            registry::release(provider_use);
        }
        Ok(())
    })
}

/// `dat_registry_add_provider`: registers a name. Providers call it, or the program itself.
///
/// # Safety
///
/// Each pointer is null, or points to a record of its type.
pub unsafe fn registry_add_provider(
    api: &'static Api,
    provider: *const DAT_PROVIDER,
    info: *const DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    guard(api, || {
        // SAFETY: the caller guarantees that `provider` is null or points at a record.
        let provider = unsafe { provider.as_ref() }.ok_or(bad_parameter(1))?;
        // SAFETY: the caller guarantees that `info` is null or points at a record.
        let key = unsafe { info.as_ref() }.and_then(key_of).ok_or(bad_parameter(2))?;
        // SAFETY: the caller also satisfies the contract of `other::register`.
        if let Some(code) = unsafe { other::register(api, key.major, true, provider, info) } {
            registry::note_passed_on(&key);
            return succeed(code);
        }
        let (Some(open), Some(_), Some(_)) = (provider.ia_open_func, provider.ia_query_func, provider.ia_close_func)
        else {
            return Err(bad_parameter(1));
        };
        succeed(registry::add(key, open, host::image_of(open as *const c_void)))
    })
}

/// `dat_registry_remove_provider`: removes a registration that no IA and no open in progress uses.
///
/// # Safety
///
/// Each pointer is null, or points to a record of its type.
pub unsafe fn registry_remove_provider(
    api: &'static Api,
    provider: *const DAT_PROVIDER,
    info: *const DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    guard(api, || {
        if provider.is_null() {
            return Err(bad_parameter(1));
        }
        // SAFETY: the caller guarantees that `info` is null or points at a record.
        let key = unsafe { info.as_ref() }.and_then(key_of).ok_or(bad_parameter(2))?;
        // SAFETY: the caller also satisfies the contract of `other::register`.
        if let Some(code) = unsafe { other::register(api, key.major, false, provider, info) } {
            return succeed(code);
        }
        succeed(registry::remove(&key))
    })
}

/// `dat_registry_list_providers`: writes the adapters of the files into the consumer's records.
///
/// If `most` is not positive, or one of the needed pointers in `list` is null, it returns an error and the number of
/// adapters. If `list` itself is null and `most` is not 0, it returns only an error. If `most` is less than the number
/// of adapters, it succeeds and writes the first `most` adapters.
///
/// # Safety
/// `returned` is null or writable. `list` is null or has `most` pointers, each null or to a writable record.
pub unsafe fn registry_list_providers(
    api: &'static Api,
    most: DAT_COUNT,
    returned: *mut DAT_COUNT,
    list: *mut *mut DAT_PROVIDER_INFO,
) -> DAT_RETURN {
    guard(api, || {
        if returned.is_null() {
            return Err(bad_parameter(2));
        }
        if list.is_null() && most != 0 {
            return Err(bad_parameter(3));
        }
        let infos = registry::list();
        let report_count = |count: usize| {
            // SAFETY: `returned` is not null, and the caller guarantees that it is writable.
            unsafe { *returned = DAT_COUNT::try_from(count).unwrap_or(DAT_COUNT::MAX) }
        };
        let Some(capacity) = usize::try_from(most).ok().filter(|capacity| *capacity > 0) else {
            report_count(infos.len());
            return Err(bad_parameter(1));
        };
        let count = capacity.min(infos.len());
        // SAFETY: the caller's array has `most` elements, and `count` is not larger.
        let places = unsafe { std::slice::from_raw_parts(list, count) };
        if places.iter().any(|place| place.is_null()) {
            report_count(infos.len());
            return Err(bad_parameter(3));
        }
        for (place, info) in places.iter().zip(infos) {
            // SAFETY: `place` is not null, and the caller guarantees that it points to a writable record.
            unsafe { place.write(info) };
        }
        report_count(count);
        Ok(())
    })
}

/// `dat_strerror`: the names of a return code's type and subtype. Each output that is not null is written even for an
/// unknown code, because programs print the names without checking the result.
///
/// # Safety
///
/// Both pointers are null or writable.
pub unsafe fn strerror(
    api: &'static Api,
    value: DAT_RETURN,
    major: *mut *const c_char,
    minor: *mut *const c_char,
) -> DAT_RETURN {
    api::enter(api);
    if major.is_null() && minor.is_null() {
        return bad_parameter(2);
    }
    let words = strerror::look_up(api, value);
    for (place, word) in [(major, words.major), (minor, words.minor)] {
        if !place.is_null() {
            // SAFETY: `place` is not null, and the caller guarantees that it is writable. The text is static.
            unsafe { *place = word.as_ptr() };
        }
    }
    if words.known { DAT_SUCCESS } else { bad_parameter(1) }
}

/// `dats_get_ia_handle`: converts an IA number to the provider's pointer. In 2.0 it also converts such a pointer to its
/// number. A pointer that belongs to no IA of this libdat is passed to the libdat of the other version. Providers of
/// this project also request the hook by this call.
///
/// # Safety
///
/// `out` is null or writable.
pub unsafe fn get_ia_handle(api: &'static Api, handle: DAT_IA_HANDLE, out: *mut DAT_IA_HANDLE) -> DAT_RETURN {
    guard(api, || {
        if out.is_null() {
            return Err(bad_parameter(2));
        }
        let answer = if handle as u64 == LIBDAT_HOOK_REQUEST {
            registry::note_hook();
            ptr::from_ref(&HOOK).cast_mut().cast()
        } else {
            let back = if api.maps_back { handles::number_of(handle) } else { None };
            let number = back.map(ptr::without_provenance_mut);
            let own = number.or_else(|| handles::translate(handle));
            // An IA number never belongs to the other libdat.
            let is_pointer = handle as usize > usize::from(u16::MAX);
            let of_other_libdat = || if is_pointer { other::translated(api, handle) } else { None };
            own.or_else(of_other_libdat).ok_or(not_a_handle(DAT_INVALID_HANDLE_IA))?
        };
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { *out = answer };
        Ok(())
    })
}

static HOOK: LibdatHook = LibdatHook {
    size: size_of::<LibdatHook>(),
    add_arena,
    ia_number,
    last_refusal,
    provider_says,
    describe,
    record_library,
};

extern "C" fn add_arena(arena: HandleArena) -> i32 {
    if ARENAS.add(arena) { 0 } else { -1 }
}

extern "C" fn ia_number(provider_ia: *mut c_void) -> DAT_IA_HANDLE {
    ptr::without_provenance_mut(handles::number_of(provider_ia).unwrap_or(0))
}

/// # Safety
/// `capacity` bytes may be written at `out`.
unsafe extern "C" fn last_refusal(out: *mut c_char, capacity: usize) -> usize {
    let text = report::last_refusal().map_or(String::new(), |refused| refused.to_string());
    // SAFETY: the caller also satisfies the contract of `copy_out`.
    unsafe { copy_out(&text, out, capacity) }
}

/// # Safety
/// `words` is null or a C string.
unsafe extern "C" fn provider_says(words: *const c_char) {
    /// Maximum length of a provider's explanation.
    const LONGEST: usize = 2048;
    if !words.is_null() {
        // SAFETY: `words` is not null, so the caller guarantees that it is a C string.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        let words: String = words.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
        report::set_explanation(&words);
    }
}

/// # Safety
/// `capacity` bytes may be written at `out`.
unsafe extern "C" fn describe(topic: u32, index: usize, out: *mut c_char, capacity: usize) -> usize {
    let text = registry::query::line(topic, index).unwrap_or_default();
    // SAFETY: the caller also satisfies the contract of `copy_out`.
    unsafe { copy_out(&text, out, capacity) }
}

/// # Safety
/// `capacity` bytes may be written at `out`.
unsafe extern "C" fn record_library(out: *mut c_char, capacity: usize) -> usize {
    let text = registry::library_in_init().unwrap_or_default();
    // SAFETY: the caller also satisfies the contract of `copy_out`.
    unsafe { copy_out(&text, out, capacity) }
}

/// Writes as much of `text` as fits, and a NUL byte; returns the full length.
///
/// # Safety
/// `capacity` bytes may be written at `out`.
unsafe fn copy_out(text: &str, out: *mut c_char, capacity: usize) -> usize {
    if let Some(most) = capacity.checked_sub(1) {
        let bytes = &text.as_bytes()[..text.len().min(most)];
        // SAFETY: `capacity` bytes are writable, and this writes at most one fewer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
        // SAFETY: this byte is at most the last of the `capacity` bytes.
        unsafe { *out.add(bytes.len()) = 0 };
    }
    text.len()
}

/// Copies a name of at most 255 bytes. Reads at most 256 bytes; `None` if they contain no NUL, or if `name` is null.
///
/// # Safety
/// `name` is null, or readable up to its NUL byte or for 256 bytes.
unsafe fn name_at(name: *const c_char) -> Option<Vec<u8>> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that `name` is readable up to its NUL byte, where the reads stop.
    let byte = |at: usize| unsafe { name.add(at).cast::<u8>().read() };
    let length = (0..DAT_NAME_MAX_LENGTH).find(|at| byte(*at) == 0)?;
    Some((0..length).map(byte).collect())
}

/// The key in a record. `None` if the name in the record has no NUL.
fn key_of(info: &DAT_PROVIDER_INFO) -> Option<Key> {
    let length = info.ia_name.iter().position(|byte| *byte == 0)?;
    let name = info.ia_name[..length].iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let thread_safe = info.is_thread_safe != DAT_FALSE;
    Some(Key { name, major: info.dapl_version_major, minor: info.dapl_version_minor, thread_safe })
}

fn succeed(code: DAT_RETURN) -> Result<(), DAT_RETURN> {
    if code == DAT_SUCCESS { Ok(()) } else { Err(code) }
}

fn words(code: DAT_RETURN) -> String {
    let words = strerror::look_up(api::current(), code);
    let text = format!("{} {}", words.major.to_string_lossy(), words.minor.to_string_lossy());
    text.trim_end().to_owned()
}

/// Exports the calls of this module for a version: `own_calls!(&dat::api::V1)`. The macro uses the types that the
/// invoking crate imports.
#[macro_export]
macro_rules! own_calls {
    ($api:expr) => {
        $crate::own_calls! { of $api;
            dat_ia_openv = ia_openv(
                provider: DAT_NAME_PTR, async_evd_min_qlen: DAT_COUNT, async_evd_handle: *mut DAT_EVD_HANDLE,
                ia_handle: *mut DAT_IA_HANDLE, major: DAT_UINT32, minor: DAT_UINT32, thread_safety: DAT_BOOLEAN
            );
            dat_ia_close = ia_close(ia_handle: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS);
            dat_registry_add_provider = registry_add_provider(
                provider: *const $crate::thunk::CommonTable, info: *const DAT_PROVIDER_INFO
            );
            dat_registry_remove_provider = registry_remove_provider(
                provider: *const $crate::thunk::CommonTable, info: *const DAT_PROVIDER_INFO
            );
            dat_registry_list_providers = registry_list_providers(
                most: DAT_COUNT, returned: *mut DAT_COUNT, list: *mut *mut DAT_PROVIDER_INFO
            );
            dat_strerror = strerror(value: DAT_RETURN, major: *mut *const c_char, minor: *mut *const c_char);
            dats_get_ia_handle = get_ia_handle(handle: DAT_IA_HANDLE, out: *mut DAT_IA_HANDLE);
        }
    };
    (of $api:expr; $($name:ident = $call:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: see `dat::thunk::own::", stringify!($call), "`.")]
        /// # Safety
        /// The contract of the called function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> DAT_RETURN {
            // SAFETY: the caller also satisfies the contract of the called function, which reads only those members of
            // a table that all versions have.
            unsafe { $crate::thunk::own::$call($api, $($arg),*) }
        }
    )*};
}
