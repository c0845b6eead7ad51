//! The libdat that loaded this library: which of its functions we call, and what only ours can tell.
//!
//! `registration` meets it; an IA asks it for the number that the consumer knows. Ours is told where our handles live, a
//! foreign one does without.

use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};

use dat_abi::hook::{LIBDAT_HOOK_LEAST, LIBDAT_HOOK_REQUEST, LibdatHook};
use dat_abi::*;

use crate::handle;
use crate::sync::Lasting;

/// The functions of libdat that a provider library imports. `dapl` does not link libdat itself, so that its tests need none.
#[derive(Clone, Copy)]
pub struct Libdat {
    /// `dat_registry_add_provider`.
    pub add: unsafe extern "C" fn(*const DAT_PROVIDER, *const DAT_PROVIDER_INFO) -> DAT_RETURN,
    /// `dat_registry_remove_provider`.
    pub remove: unsafe extern "C" fn(*const DAT_PROVIDER, *const DAT_PROVIDER_INFO) -> DAT_RETURN,
    /// `dats_get_ia_handle`.
    pub get_ia_handle: unsafe extern "C" fn(DAT_IA_HANDLE, *mut DAT_IA_HANDLE) -> DAT_RETURN,
}

static LIBDAT: Lasting<Option<Libdat>> = Lasting::new(None);
static HOOK: AtomicPtr<LibdatHook> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps others out, for `fork`.
pub(crate) fn hold() -> impl Sized {
    LIBDAT.lock()
}

/// Remembers libdat, asks whether it is ours, and tells ours where the handles live.
///
/// # Safety
/// The functions are libdat's.
pub(crate) unsafe fn meet(libdat: Libdat) -> bool {
    *LIBDAT.lock() = Some(libdat);
    let mut answer: DAT_IA_HANDLE = std::ptr::null_mut();
    // SAFETY: this function's own contract; a foreign libdat refuses the number.
    let code = unsafe { (libdat.get_ia_handle)(LIBDAT_HOOK_REQUEST as DAT_IA_HANDLE, &raw mut answer) };
    if code != DAT_SUCCESS || answer.is_null() {
        return false;
    }
    let hook = answer.cast::<LibdatHook>();
    // SAFETY: ours answers with a record that lives as long as the process; `size` is its first field in every version.
    if unsafe { (&raw const (*hook).size).read() } < LIBDAT_HOOK_LEAST {
        return false;
    }
    HOOK.store(hook, Ordering::Release);
    let Ok(arena) = handle::arena() else { return true };
    // SAFETY: as above, and the record is long enough for this field.
    if unsafe { (&raw const (*hook).add_arena).read()(arena) } != 0 {
        log::error!("libdat has no room for another library's handles; it will refuse them");
    }
    true
}

/// The number under which the consumer knows this IA; `None` as long as there is none.
pub fn ia_number(ia: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    let hook = HOOK.load(Ordering::Acquire);
    if hook.is_null() {
        return search_number(ia);
    }
    // SAFETY: `meet` stored it after checking its size.
    let number = unsafe { (&raw const (*hook).ia_number).read()(ia) };
    (!number.is_null()).then_some(number)
}

/// Has libdat tell why the open that this thread is in is refused; `false` if it cannot, or nothing is said.
pub(crate) fn say(words: &str) -> bool {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: `meet` stored it, with a size in every version.
    if hook.is_null() || words.is_empty() || unsafe { (&raw const (*hook).size).read() } < size_of::<LibdatHook>() {
        return false;
    }
    let Ok(words) = CString::new(words) else { return false };
    // SAFETY: the record is as long as we know it; the string lives through the call.
    unsafe { ((*hook).provider_says)(words.as_ptr()) };
    true
}

/// Some libdats number IAs from 1, lowest free first, and say only what a number stands for (registry-ia.md 7.2).
#[cold]
fn search_number(ia: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    /// More IAs than a process opens.
    const LAST: usize = 1024;
    let libdat = (*LIBDAT.lock())?;
    (1..=LAST).map(|number| number as DAT_IA_HANDLE).find(|number| {
        let mut found: DAT_IA_HANDLE = std::ptr::null_mut();
        // SAFETY: the function is libdat's (`meet`); it takes any number.
        let code = unsafe { (libdat.get_ia_handle)(*number, &raw mut found) };
        code == DAT_SUCCESS && found == ia
    })
}
