//! Safe wrappers of C library calls, for example for the environment, the location of libdat, network interfaces,
//! syslog, fork and cancellation.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// Reads an environment variable. `None` if it is not set, and always in a set-uid process.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is NUL-terminated; the result is null or a string of the environment, copied before any other
    // call.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(value).to_bytes()).to_owned())
    }
}

/// Whether the process has more rights than the user who started it (set-uid, file capabilities). Environment variables
/// must not select libraries then.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: getauxval reads data that the kernel provided at process start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Path of the file that libdat was loaded from.
pub(crate) fn library() -> Option<CString> {
    file_at(library as *const c_void).map(|(_, name)| name)
}

/// Base address of the image that contains an address. It identifies the library.
pub(crate) fn image_of(address: *const c_void) -> Option<usize> {
    file_at(address).map(|(base, _)| base)
}

fn file_at(address: *const c_void) -> Option<(usize, CString)> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address without reading it, and fills the record if it returns non-zero.
    let info = unsafe { if libc::dladdr(address, info.as_mut_ptr()) == 0 { None } else { Some(info.assume_init()) } }?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name is the loader's string for an image that is mapped, and is copied here.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_owned();
    Some((info.dli_fbase as usize, name))
}

/// Names of the network interfaces that are up and have an IP address; a name with several addresses is repeated.
pub(crate) fn interfaces() -> Vec<Vec<u8>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call stores a pointer to a list in `list`. The list is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut at = list;
    // SAFETY: the list ends with null; its records are valid until it is freed.
    while let Some(one) = unsafe { at.as_ref() } {
        at = one.ifa_next;
        // SAFETY: the pointer is null, or refers to a socket address, which begins with its family.
        let family = unsafe { one.ifa_addr.as_ref() }.map(|address| i32::from(address.sa_family));
        let is_up = one.ifa_flags & libc::IFF_UP as u32 != 0;
        if is_up && matches!(family, Some(libc::AF_INET | libc::AF_INET6)) && !one.ifa_name.is_null() {
            // SAFETY: the string is valid as long as the list, and copied at once.
            names.push(unsafe { CStr::from_ptr(one.ifa_name) }.to_bytes().to_vec());
        }
    }
    // SAFETY: `getifaddrs` returned the list, and it is freed once and not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    names
}

/// The kernel's id of the calling thread.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: gettid takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Writes a line to syslog.
pub(crate) fn syslog(text: &str) {
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: the format takes exactly one string, and both are NUL-terminated.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_DEBUG, c"%s".as_ptr(), text.as_ptr()) }
}

/// Registers functions for `fork`: `before` runs in the forking thread, `after` in the parent and in the child. The
/// child has only the forking thread, so `before` takes the locks: no other thread can then hold one during the fork.
pub(crate) fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: the functions belong to libdat, which is never unmapped. If the registration fails for lack of memory,
    // fork works as without handlers.
    unsafe { pthread_atfork(before, after, after) };
}

/// While a value exists, cancellation of the thread that created it is disabled, because cancellation must not unwind
/// frames that have destructors.
pub(crate) struct CancellationDisabled(c_int);

impl CancellationDisabled {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the call sets the calling thread's state and writes the former state to `before`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Self(before)
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        let mut unused = 0;
        // SAFETY: the call restores the state that `new` saved, and `unused` is writable.
        unsafe { pthread_setcancelstate(self.0, &mut unused) };
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
    fn pthread_setcancelstate(state: c_int, oldstate: *mut c_int) -> c_int;
    fn pthread_atfork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> c_int;
}
