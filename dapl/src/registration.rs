//! Registers a provider library with libdat: `dat_provider_init` and `dat_provider_fini`.
//!
//! `export_provider!` defines the two exported functions, which call this module. `init` opens no IA and starts no
//! thread. It installs the logger and the fork handlers, copies its arguments, stores libdat's functions, and registers
//! only the name for which libdat has called it (spec/registry 3.3 P1 to P9).

use std::ffi::{CStr, c_char};
use std::ptr;

use dat_abi::*;

use crate::libdat::{self, Libdat};
use crate::names::{self, Registration, Version};
use crate::provider::Provider;
use crate::runtime::{cancel, fork, logger};
use crate::table;

/// `dat_provider_init`: registers the name in `info`.
///
/// # Safety
/// `info` is null or readable, `params` is null or a NUL-terminated string, and the functions are those of
/// `libdat.so.1`.
pub unsafe fn init<P: Provider>(libdat: Libdat, info: *const DAT_PROVIDER_INFO, params: *const c_char) {
    let _deferral = cancel::defer();
    logger::install();
    fork::prepare();
    if info.is_null() {
        return log::error!(
            "{}: dat_provider_init failed: libdat passed no DAT_PROVIDER_INFO; check which libdat.so.1 or libdat2.so.2 \
             is loaded (ldd)",
            P::NAME
        );
    }
    // SAFETY: `info` is not null, and the caller guarantees that it is readable.
    let info = unsafe { info.read_unaligned() };
    let Some(name) = name_of(&info) else {
        return log::error!(
            "{}: dat_provider_init failed: the adapter name exceeds 255 bytes; shorten it in dat.conf",
            P::NAME
        );
    };
    let Some(version) = Version::of_major(info.dapl_version_major) else {
        let (wanted, minor) = (info.dapl_version_major, info.dapl_version_minor);
        return log::error!(
            "{}: {name:?} needs DAT {wanted}.{minor}, this library implements 1.2 and 2.0; name another library in its line of dat.conf",
            P::NAME
        );
    };
    let of_version = match version {
        Version::V1 => Some(libdat),
        Version::V2 => Libdat::loaded_2(),
    };
    let Some(libdat) = of_version else {
        return log::error!(
            "{}: {name:?} needs DAT 2.0, but libdat2.so.2 is not loaded in this process; write u1.2 in its line of dat.conf, or \
             link the program to libdat2",
            P::NAME
        );
    };
    // SAFETY: `params` is not null, so the caller guarantees that it is a C string.
    let params = if params.is_null() { c"" } else { unsafe { CStr::from_ptr(params) } };
    // SAFETY: the caller guarantees that the functions are those of `libdat.so.1`. For version 2, they are those of
    // libdat2.
    let is_own_libdat = unsafe { libdat::init(version, libdat) };
    let registered = Registration {
        major: info.dapl_version_major,
        minor: info.dapl_version_minor,
        thread_safe: is_own_libdat || info.is_thread_safe != DAT_FALSE,
        params: params.to_string_lossy().into_owned(),
        library: libdat::library_name(version),
    };
    let made = names::remember(name, version, registered, table_of::<P>(version));
    // SAFETY: the function is libdat's, the table is never freed, and `info` is valid during the call.
    let code = unsafe { (libdat.add)(made.table, &raw const info) };
    if code != DAT_SUCCESS {
        log::error!(
            "{}: libdat refused to register {name:?} ({code:#x}); the name cannot be opened; check that its line of dat.conf is \
             unique",
            P::NAME
        );
    }
}

/// `dat_provider_fini`: removes the registration. Errors of libdat are ignored. The table stays allocated, because
/// handles may point to it.
///
/// # Safety
/// `info` is null or readable, and the functions are those of `libdat.so.1`.
pub unsafe fn fini<P: Provider>(libdat: Libdat, info: *const DAT_PROVIDER_INFO) {
    let _deferral = cancel::defer();
    if info.is_null() {
        return;
    }
    // SAFETY: `info` is not null, and the caller guarantees that it is readable.
    let info = unsafe { info.read_unaligned() };
    let Some(version) = Version::of_major(info.dapl_version_major) else { return };
    let Some(known) = name_of(&info).and_then(|name| names::find(version, name)) else { return };
    let libdat = libdat::functions(version).unwrap_or(libdat);
    // SAFETY: the functions are libdat's: `libdat::functions` stores only such, and the caller guarantees the same for
    // its own. `info` is valid during the call.
    let code = unsafe { (libdat.remove)(known.table, &raw const info) };
    log::debug!("{}: {} unregistered ({code:#x})", P::NAME, known.name);
}

/// Returns a function that creates the provider table of a version of the API, with this `device_name`.
fn table_of<P: Provider>(version: Version) -> impl FnOnce(*const c_char) -> *const DAT_PROVIDER {
    move |device_name| match version {
        Version::V1 => Box::leak(Box::new(table::table::<P>(device_name))),
        Version::V2 => ptr::from_ref(Box::leak(Box::new(table::table_v2::<P>(device_name)))).cast(),
    }
}

fn name_of(info: &DAT_PROVIDER_INFO) -> Option<&CStr> {
    // SAFETY: `c_char` and `u8` have the same size, and the array is part of `info`.
    let bytes = unsafe { std::slice::from_raw_parts(info.ia_name.as_ptr().cast::<u8>(), info.ia_name.len()) };
    CStr::from_bytes_until_nul(bytes).ok()
}

/// Registers a name for tests; the name must be unique.
#[cfg(test)]
pub(crate) fn for_test<P: Provider>(name: &CStr) -> &'static names::RegisteredName {
    for_test_with::<P>(name, c"")
}

/// Like [`for_test`], with these `ia_params`.
#[cfg(test)]
pub(crate) fn for_test_with<P: Provider>(name: &CStr, params: &CStr) -> &'static names::RegisteredName {
    let params = params.to_string_lossy().into_owned();
    let registered = Registration { major: 1, minor: 2, thread_safe: true, params, library: String::new() };
    names::remember(name, Version::V1, registered, table_of::<P>(Version::V1))
}
