//! Access to each libdat that has loaded this library: its functions, and the hook, a record of further functions that
//! only this project's libdat has. There is one libdat per version of the API.
//!
//! `registration` calls `init`. An IA asks libdat for its IA number, the handle that the consumer uses. Through the
//! hook, this project's libdat gets the address range of all handles and the reason of a failed open, and returns the
//! IA number and the library name in the line of dat.conf.

use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicPtr, Ordering};

use dat_abi::hook::{LIBDAT_HOOK_LEAST, LIBDAT_HOOK_REQUEST, LibdatHook};
use dat_abi::*;

use crate::names::Version;
use crate::runtime::handle;
use crate::runtime::sync::StaticMutex;

/// SONAME of the libdat for API version 2.
const LIBDAT2: &CStr = c"libdat2.so.2";

type RegistryFunction = unsafe extern "C" fn(*const DAT_PROVIDER, *const DAT_PROVIDER_INFO) -> DAT_RETURN;
type NumberFunction = unsafe extern "C" fn(DAT_IA_HANDLE, *mut DAT_IA_HANDLE) -> DAT_RETURN;

/// The functions of libdat that a provider library uses. The provider library imports them from `libdat.so.1`, and
/// looks up those of `libdat2.so.2` at run time. `dapl` does not link libdat, so that its tests need none.
#[derive(Clone, Copy)]
pub struct Libdat {
    /// `dat_registry_add_provider`.
    pub add: RegistryFunction,
    /// `dat_registry_remove_provider`.
    pub remove: RegistryFunction,
    /// `dats_get_ia_handle`.
    pub get_ia_handle: NumberFunction,
}

impl Libdat {
    /// The functions of the `libdat2.so.2` in this process; `None` if it is not loaded or does not export all of them.
    /// A provider library does not list `libdat2.so.2` as a needed library, so the provider runs without it, and with
    /// any implementation of it.
    pub(crate) fn loaded_2() -> Option<Self> {
        // SAFETY: the name is NUL-terminated, and NOLOAD maps nothing new. The reference that dlopen counts keeps the
        // functions mapped.
        let image = unsafe { libc::dlopen(LIBDAT2.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if image.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the handle came from dlopen, and the name is NUL-terminated.
            let address = unsafe { libc::dlsym(image, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        let (add, remove) = (symbol(c"dat_registry_add_provider")?, symbol(c"dat_registry_remove_provider")?);
        let get_ia_handle = symbol(c"dats_get_ia_handle")?;
        Some(Self {
            // SAFETY: `add` is not null, and libdat2.so.2 exports the function of this name with this type. The table
            // that is passed to it later has the layout of version 2.
            add: unsafe { std::mem::transmute::<*mut c_void, RegistryFunction>(add) },
            // SAFETY: `remove` is not null, and libdat2.so.2 exports the function of this name with this type.
            remove: unsafe { std::mem::transmute::<*mut c_void, RegistryFunction>(remove) },
            // SAFETY: `get_ia_handle` is not null, and libdat2.so.2 exports the function of this name with this type.
            get_ia_handle: unsafe { std::mem::transmute::<*mut c_void, NumberFunction>(get_ia_handle) },
        })
    }
}

/// Functions and private hook of the libdat of one version.
struct LibdatFunctions {
    functions: StaticMutex<Option<Libdat>>,
    hook: AtomicPtr<LibdatHook>,
}

/// The libdats, indexed by `Version`.
static LIBDATS: [LibdatFunctions; 2] =
    [const { LibdatFunctions { functions: StaticMutex::new(None), hook: AtomicPtr::new(std::ptr::null_mut()) } }; 2];

/// Locks the functions of both libdats while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    LIBDATS.each_ref().map(|libdat| libdat.functions.lock())
}

/// The functions of the libdat of this version, which `init` has stored.
pub(crate) fn functions(version: Version) -> Option<Libdat> {
    *LIBDATS[version as usize].functions.lock()
}

/// Stores libdat's functions, and checks whether this is this project's libdat. If so, passes the address range of the
/// handles to it and returns true.
///
/// # Safety
/// The functions are libdat's.
pub(crate) unsafe fn init(version: Version, libdat: Libdat) -> bool {
    *LIBDATS[version as usize].functions.lock() = Some(libdat);
    let mut answer: DAT_IA_HANDLE = std::ptr::null_mut();
    // SAFETY: the caller guarantees that the function is libdat's. The libdat of another project refuses the number.
    let code = unsafe { (libdat.get_ia_handle)(LIBDAT_HOOK_REQUEST as DAT_IA_HANDLE, &raw mut answer) };
    if code != DAT_SUCCESS || answer.is_null() {
        return false;
    }
    let hook = answer.cast::<LibdatHook>();
    // SAFETY: this project's libdat returns a record that is never freed; `size` is its first field in every version.
    if unsafe { (&raw const (*hook).size).read() } < LIBDAT_HOOK_LEAST {
        return false;
    }
    LIBDATS[version as usize].hook.store(hook, Ordering::Release);
    let Ok(arena) = handle::arena() else { return true };
    // SAFETY: the record is never freed, and it is long enough for this field, because its size was checked.
    if unsafe { (&raw const (*hook).add_arena).read()(arena) } != 0 {
        log::error!(
            "libdat has no space for the handles of another provider library, so calls with them return DAT_INVALID_HANDLE; use \
             fewer provider libraries in one process"
        );
    }
    true
}

/// The number that libdat has assigned to an IA opened through `version`; `None` if it has not assigned one yet.
pub fn ia_number(version: Version, ia: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    let hook = LIBDATS[version as usize].hook.load(Ordering::Acquire);
    if hook.is_null() {
        return search_number(version, ia);
    }
    // SAFETY: `init` stored the hook after checking that its record is long enough for this field.
    let number = unsafe { (&raw const (*hook).ia_number).read()(ia) };
    (!number.is_null()).then_some(number)
}

/// Passes the reason of a failed open to libdat. Returns `false` if libdat does not support this, or if `words` is
/// empty or contains a NUL byte.
pub(crate) fn report_refusal(version: Version, words: &str) -> bool {
    let hook = LIBDATS[version as usize].hook.load(Ordering::Acquire);
    if words.is_empty() || !has_field(hook, offset_of!(LibdatHook, provider_says)) {
        return false;
    }
    let Ok(words) = CString::new(words) else { return false };
    // SAFETY: the record has this field; the string outlives the call.
    unsafe { (&raw const (*hook).provider_says).read()(words.as_ptr()) };
    true
}

/// File name of this library in the dat.conf line for which libdat calls `dat_provider_init` on this thread. If libdat
/// does not report it: the file name by which the process first loaded this library.
pub(crate) fn library_name(version: Version) -> String {
    let path = record_library(version).or_else(image_path).unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn record_library(version: Version) -> Option<String> {
    let hook = LIBDATS[version as usize].hook.load(Ordering::Acquire);
    if !has_field(hook, offset_of!(LibdatHook, record_library)) {
        return None;
    }
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the record has this field, and the buffer has the length that is passed.
    let length = unsafe { (&raw const (*hook).record_library).read()(bytes.as_mut_ptr().cast(), bytes.len()) };
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().into_owned();
    (length > 0).then_some(text)
}

/// Path by which the dynamic loader first opened this library.
fn image_path() -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address without reading it, and fills the record if it returns non-zero.
    let info = unsafe {
        if libc::dladdr((&raw const LIBDATS).cast(), info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the string belongs to the loader and is valid while this library is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

/// Whether the hook exists and its record is long enough for the function at this offset.
fn has_field(hook: *const LibdatHook, offset: usize) -> bool {
    // SAFETY: `init` stored the hook; `size` is its first field in every version.
    !hook.is_null() && unsafe { (&raw const (*hook).size).read() } >= offset + size_of::<usize>()
}

/// Finds the number of an IA. A libdat of version 2 maps an IA to its number. Some libdats of version 1 only map a
/// number to its IA, and assign the lowest free number from 1 (spec/registry 7.2). Then all numbers up to `LAST` are
/// tried.
#[cold]
fn search_number(version: Version, ia: DAT_IA_HANDLE) -> Option<DAT_IA_HANDLE> {
    /// Largest number that is tried. No process is expected to open more IAs.
    const LAST: usize = 1024;
    let libdat = functions(version)?;
    let mapped = |handle: DAT_IA_HANDLE| {
        let mut found: DAT_IA_HANDLE = std::ptr::null_mut();
        // SAFETY: `init` was called with libdat's functions; this one accepts any number and any IA.
        let code = unsafe { (libdat.get_ia_handle)(handle, &raw mut found) };
        (code == DAT_SUCCESS).then_some(found)
    };
    if version == Version::V2 {
        return mapped(ia).filter(|number| !number.is_null() && *number != ia);
    }
    (1..=LAST).map(|number| number as DAT_IA_HANDLE).find(|number| mapped(*number) == Some(ia))
}
