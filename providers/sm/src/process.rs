//! What belongs to the process and to no IA: its environment, and what it removes when it exits without closing.
//!
//! No signal handlers: after a signal or `_exit` the next cleaner removes the folder, since its lock is gone.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, Weak};

use dapl::sync::{Lasting, LastingGuard};
use rustix::fs::{FlockOperation, flock};

unsafe extern "C" {
    /// glibc; the libc crate does not declare it.
    fn secure_getenv(name: *const std::ffi::c_char) -> *mut std::ffi::c_char;
}

/// What is removed at exit.
struct Left {
    pid: u32,
    path: PathBuf,
    /// Only if nobody else holds a lock on this file.
    shared: Option<Weak<File>>,
}

static LEFT: Lasting<Vec<Left>> = Lasting::new(Vec::new());

/// Removes a folder or file when the process exits, if it still exists then.
pub(crate) fn at_exit(path: &Path) {
    register(path, None);
}

/// As `at_exit`, for a file that this process holds a lock on together with others: if it is the last one.
pub(crate) fn at_exit_if_last(path: &Path, file: &Arc<File>) {
    register(path, Some(Arc::downgrade(file)));
}

fn register(path: &Path, shared: Option<Weak<File>>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        dapl::thread::at_fork(hold, release);
        // SAFETY: a function without arguments that does not unwind; this library is never unmapped.
        unsafe { libc::atexit(remove_left) };
    });
    LEFT.lock().push(Left { pid: std::process::id(), path: path.to_path_buf(), shared });
}

thread_local! {
    static HELD: RefCell<Option<LastingGuard<Vec<Left>>>> = const { RefCell::new(None) };
}

/// Before a fork: the child must not find the lock taken by a thread that it does not have.
extern "C" fn hold() {
    drop(HELD.try_with(|held| held.replace(Some(LEFT.lock()))));
}

extern "C" fn release() {
    drop(HELD.try_with(RefCell::take));
}

/// It was removed in good order.
pub(crate) fn forget(path: &Path) {
    LEFT.lock().retain(|known| known.shared.is_some() || known.path != path);
}

/// This process has let go of its lock.
pub(crate) fn forget_lock(file: &Arc<File>) {
    let is_it = |weak: &Weak<File>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(file));
    LEFT.lock().retain(|known| !known.shared.as_ref().is_some_and(is_it));
}

extern "C" fn remove_left() {
    // A thread that exits the process while another holds the lock must not wait for it.
    let Some(left) = LEFT.try_lock() else { return };
    for Left { path, shared, .. } in left.iter().filter(|left| left.pid == std::process::id()) {
        let is_last = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if shared.as_ref().is_some_and(|file| !file.upgrade().is_some_and(|file| is_last(&file))) {
            continue;
        }
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
