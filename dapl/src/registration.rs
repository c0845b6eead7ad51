//! A provider library and the registry: `dat_provider_init`, `dat_provider_fini`, and which names we serve.
//!
//! `export_provider!` makes the two exported functions and calls here. Nothing is opened, no thread started: init only
//! copies, tells our libdat where the handles live (if it is ours), and registers exactly what it was asked to
//! (registry-ia.md 3.3, P1 to P9). A registration is never freed: handles point at its table for ever.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering};

use dat_abi::hook::{LIBDAT_HOOK_REQUEST, LibdatHook};
use dat_abi::*;
use parking_lot::Mutex;

use crate::provider::Provider;
use crate::{debug, handle, table};

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

/// A name that this library serves, and the table behind its handles.
pub struct Registration {
    name: CString,
    text: String,
    table: DAT_PROVIDER,
    served: Mutex<Served>,
    params: Mutex<String>,
}

// SAFETY: the raw pointers are the table's `device_name`, which points into `name` beside it, and null ones. Nothing but the
// two mutexes changes after the construction.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// What the registry asked for last under this name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Served {
    /// Major version of the API.
    pub major: u32,
    /// Minor version of the API.
    pub minor: u32,
    /// What to say of thread safety: the registry's word, or the truth when libdat is ours.
    pub thread_safe: bool,
}

impl Registration {
    /// The IA name.
    pub fn name(&self) -> &str {
        &self.text
    }

    /// The `ia_params` of its line.
    pub fn params(&self) -> String {
        self.params.lock().clone()
    }

    /// The table; it stays for the process's life.
    pub fn table(&self) -> *const DAT_PROVIDER {
        &raw const self.table
    }

    /// What the registry asked for.
    pub fn served(&self) -> Served {
        *self.served.lock()
    }
}

static NAMES: Mutex<Vec<&'static Registration>> = Mutex::new(Vec::new());
static LIBDAT: Mutex<Option<Libdat>> = Mutex::new(None);
static HOOK: AtomicPtr<LibdatHook> = AtomicPtr::new(std::ptr::null_mut());

/// The registration of a name.
pub fn find(name: &CStr) -> Option<&'static Registration> {
    NAMES.lock().iter().copied().find(|known| known.name.as_c_str() == name)
}

/// Makes a registration without telling any libdat of it; a second one of the same name changes the first.
fn remember<P: Provider>(name: &CStr, params: &CStr, served: Served) -> &'static Registration {
    let params = params.to_string_lossy().into_owned();
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().copied().find(|known| known.name.as_c_str() == name) {
        *known.served.lock() = served;
        *known.params.lock() = params;
        return known;
    }
    let name = name.to_owned();
    let text = name.to_string_lossy().into_owned();
    // The text of a CString does not move with it, so the table may name it before both are in place.
    let table = DAT_PROVIDER { device_name: name.as_ptr(), ..table::table::<P>() };
    let made: &'static Registration =
        Box::leak(Box::new(Registration { name, text, table, served: Mutex::new(served), params: Mutex::new(params) }));
    names.push(made);
    made
}

/// `dat_provider_init`: registers the name that libdat asks for.
///
/// # Safety
/// `info` is null or readable, `params` null or a string, and the functions are those of the libdat that calls.
pub unsafe fn init<P: Provider>(libdat: Libdat, info: *const DAT_PROVIDER_INFO, params: *const c_char) {
    debug::install();
    if info.is_null() {
        return log::error!("{}: init without a provider info", P::NAME);
    }
    // SAFETY: not null, and readable by this function's contract.
    let info = unsafe { info.read_unaligned() };
    let Some(name) = name_of(&info) else {
        return log::error!("{}: init with a name of more than 255 bytes", P::NAME);
    };
    if info.dapl_version_major != DAT_VERSION_MAJOR {
        let (wanted, minor) = (info.dapl_version_major, info.dapl_version_minor);
        return log::error!(
            "{}: {name:?} wants DAT {wanted}.{minor}, this library serves {DAT_VERSION_MAJOR}.{DAT_VERSION_MINOR}: name another library in its line",
            P::NAME
        );
    }
    // SAFETY: null, or a string by this function's contract.
    let params = if params.is_null() { c"" } else { unsafe { CStr::from_ptr(params) } };
    *LIBDAT.lock() = Some(libdat);
    // SAFETY: the functions are libdat's, by this function's contract.
    let ours = unsafe { meet(&libdat) };
    let served = Served {
        major: info.dapl_version_major,
        minor: info.dapl_version_minor,
        thread_safe: ours || info.is_thread_safe != DAT_FALSE,
    };
    let made = remember::<P>(name, params, served);
    // SAFETY: as above; the table lives for ever, the info as long as the call.
    let code = unsafe { (libdat.add)(made.table(), &raw const info) };
    if code != DAT_SUCCESS {
        log::error!("{}: libdat refused to register {name:?} ({code:#x})", P::NAME);
    }
}

/// `dat_provider_fini`: takes the registration back. Whatever libdat answers is fine; the table stays.
///
/// # Safety
/// As [`init`].
pub unsafe fn fini<P: Provider>(libdat: Libdat, info: *const DAT_PROVIDER_INFO) {
    if info.is_null() {
        return;
    }
    // SAFETY: not null, and readable by this function's contract.
    let info = unsafe { info.read_unaligned() };
    let Some(known) = name_of(&info).and_then(find) else { return };
    // SAFETY: the functions are libdat's, by this function's contract; the info lives as long as the call.
    let code = unsafe { (libdat.remove)(known.table(), &raw const info) };
    log::debug!("{}: {} taken back ({code:#x})", P::NAME, known.name());
}

fn name_of(info: &DAT_PROVIDER_INFO) -> Option<&CStr> {
    // SAFETY: the same bytes, read as what they are.
    let bytes = unsafe { std::slice::from_raw_parts(info.ia_name.as_ptr().cast::<u8>(), info.ia_name.len()) };
    CStr::from_bytes_until_nul(bytes).ok()
}

/// Asks libdat whether it is ours, and tells ours where the handles live.
///
/// # Safety
/// The functions are libdat's.
unsafe fn meet(libdat: &Libdat) -> bool {
    let mut answer: DAT_IA_HANDLE = std::ptr::null_mut();
    // SAFETY: this function's own contract; a foreign libdat refuses the number.
    let code = unsafe { (libdat.get_ia_handle)(LIBDAT_HOOK_REQUEST as DAT_IA_HANDLE, &raw mut answer) };
    if code != DAT_SUCCESS || answer.is_null() {
        return false;
    }
    let hook = answer.cast::<LibdatHook>();
    // SAFETY: ours answers with a record that lives as long as the process; `size` is its first field in every version.
    if unsafe { (*hook).size } < size_of::<LibdatHook>() {
        return false;
    }
    HOOK.store(hook, Ordering::Release);
    let Ok(arena) = handle::arena() else { return true };
    // SAFETY: as above, and the record is as long as we know it.
    if unsafe { ((*hook).add_arena)(arena) } != 0 {
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
    let number = unsafe { ((*hook).ia_number)(ia) };
    (!number.is_null()).then_some(number)
}

/// Some libdats number IAs from 1, lowest free first, and say only what a number stands for (registry-ia.md 7.2).
#[cold]
fn search_number(ia: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    /// More IAs than a process opens.
    const LAST: usize = 1024;
    let libdat = (*LIBDAT.lock())?;
    (1..=LAST).map(|number| number as DAT_IA_HANDLE).find(|number| {
        let mut found: DAT_IA_HANDLE = std::ptr::null_mut();
        // SAFETY: the function is libdat's (`init`); it takes any number.
        let code = unsafe { (libdat.get_ia_handle)(*number, &raw mut found) };
        code == DAT_SUCCESS && found == ia
    })
}

/// A registration for tests, under a name of its own.
#[cfg(test)]
pub(crate) fn for_test<P: Provider>(name: &CStr) -> &'static Registration {
    remember::<P>(name, c"", Served { major: 1, minor: 2, thread_safe: true })
}
