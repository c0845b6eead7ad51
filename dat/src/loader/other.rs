//! Calls into the libdat of the other version, if this process has loaded it. A call of a provider may reach the wrong
//! libdat, which then passes it on.
//!
//! Providers of other implementations import the functions of libdat without a symbol version. In a process with both
//! libraries, the dynamic loader binds these imports to the library that is first in its search order, even if the
//! other libdat has loaded the provider.

use std::cell::Cell;
use std::ffi::{CStr, c_void};

use dat_abi::{DAT_IA_HANDLE, DAT_PROVIDER, DAT_PROVIDER_INFO, DAT_RETURN, DAT_SUCCESS};

use crate::api::{Api, V1};

type RegistryFunction = unsafe extern "C" fn(*const DAT_PROVIDER, *const DAT_PROVIDER_INFO) -> DAT_RETURN;
type NumberFunction = unsafe extern "C" fn(DAT_IA_HANDLE, *mut DAT_IA_HANDLE) -> DAT_RETURN;

thread_local! {
    /// Set while this thread passes a call to the other libdat. If the other libdat passes the call back, this libdat
    /// handles it, so that the two do not call each other endlessly.
    static IS_PASSING: Cell<bool> = const { Cell::new(false) };
}

/// Adds or removes a registration at the other libdat, if it belongs there by its major version. `None` if it does not,
/// if this process has not loaded the other libdat, or if the other libdat has passed the call to this one.
///
/// # Safety
///
/// Both pointers are valid arguments of `dat_registry_add_provider` or `dat_registry_remove_provider`.
pub(crate) unsafe fn register(
    api: &Api,
    major: u32,
    is_added: bool,
    provider: *const DAT_PROVIDER,
    info: *const DAT_PROVIDER_INFO,
) -> Option<DAT_RETURN> {
    if major == api.major || !matches!(major, 1 | 2) {
        return None;
    }
    let name = if is_added { c"dat_registry_add_provider" } else { c"dat_registry_remove_provider" };
    let function = function(api, name)?;
    // SAFETY: the ABI defines the type of the function with this name.
    let function = unsafe { std::mem::transmute::<*mut c_void, RegistryFunction>(function) };
    // SAFETY: the caller guarantees that both pointers are valid arguments.
    call_other(|| unsafe { function(provider, info) })
}

/// Calls `dats_get_ia_handle` of the other libdat. `None` if this process has not loaded the other libdat, if that call
/// fails, or if the other libdat has passed the call to this one.
pub(crate) fn translated(api: &Api, handle: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    let function = function(api, c"dats_get_ia_handle")?;
    // SAFETY: the ABI defines the type of the function with this name.
    let function = unsafe { std::mem::transmute::<*mut c_void, NumberFunction>(function) };
    let mut answer: DAT_IA_HANDLE = std::ptr::null_mut();
    // SAFETY: `dats_get_ia_handle` accepts any handle, and the out parameter is writable.
    let code = call_other(|| unsafe { function(handle, &raw mut answer) })?;
    (code == DAT_SUCCESS).then_some(answer)
}

fn call_other(call: impl FnOnce() -> DAT_RETURN) -> Option<DAT_RETURN> {
    if IS_PASSING.replace(true) {
        return None;
    }
    let code = call();
    IS_PASSING.set(false);
    Some(code)
}

/// Looks up a function of the libdat of the other version.
fn function(api: &Api, name: &CStr) -> Option<*mut c_void> {
    let soname = if api.major == V1.major { c"libdat2.so.2" } else { c"libdat.so.1" };
    // SAFETY: the name is NUL-terminated, and NOLOAD maps nothing new. The reference that dlopen counts keeps the
    // functions mapped.
    let image = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if image.is_null() {
        return None;
    }
    // SAFETY: the handle came from dlopen, and the name is NUL-terminated.
    let function = unsafe { libc::dlsym(image, name.as_ptr()) };
    (!function.is_null()).then_some(function)
}
