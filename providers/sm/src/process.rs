//! What belongs to the process and to no IA: its environment, and what it removes when it exits without closing.
//!
//! No signal handlers: after a signal or `_exit` the next cleaner removes the folder, since its lock is gone.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Once;

use parking_lot::Mutex;

unsafe extern "C" {
    /// glibc; the libc crate does not declare it.
    fn secure_getenv(name: *const std::ffi::c_char) -> *mut std::ffi::c_char;
}

static LEFT: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// Removes a folder or file when the process exits, if it still exists then.
pub(crate) fn at_exit(path: &Path) {
    static REGISTERED: Once = Once::new();
    LEFT.lock().push((std::process::id(), path.to_path_buf()));
    REGISTERED.call_once(|| {
        // SAFETY: a function without arguments that does not unwind; this library is never unmapped.
        unsafe { libc::atexit(remove_left) };
    });
}

/// It was removed in good order.
pub(crate) fn forget(path: &Path) {
    LEFT.lock().retain(|(_, known)| known != path);
}

extern "C" fn remove_left() {
    // A thread that exits the process while another holds the lock must not wait for it.
    let Some(left) = LEFT.try_lock() else { return };
    for (_, path) in left.iter().filter(|(pid, _)| *pid == std::process::id()) {
        let _ = std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path));
        // The process's folder, `quals`, and a base of our own making go when they are empty.
        for parent in path.ancestors().skip(1).take(2) {
            if std::fs::remove_dir(parent).is_err() {
                break;
            }
        }
    }
}

/// A variable of the environment; none in a set-uid program.
pub(crate) fn environment(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string in, a C string or null out. It is copied at once; whoever changes the environment from another
    // thread meanwhile has the problem that C always had.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}
