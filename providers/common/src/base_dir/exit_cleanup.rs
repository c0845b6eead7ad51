//! What a process leaves in a base directory when it exits without closing, and its removal then.
//!
//! No signal handlers: after a signal or `_exit` the next cleaner removes it, since its lock is gone.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, Weak};

use super::{BaseDir, lock};
use dapl::runtime::cancel;
use dapl::runtime::sync::{StaticMutex, StaticMutexGuard};

/// What is removed at exit.
struct ExitEntry {
    pid: u32,
    base: BaseDir,
    path: PathBuf,
    /// Only if nobody else holds a lock on this file.
    shared: Option<Weak<File>>,
}

static ENTRIES: StaticMutex<Vec<ExitEntry>> = StaticMutex::new(Vec::new());

pub(super) fn register(base: &BaseDir, path: &Path, shared: Option<Weak<File>>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        dapl::runtime::thread::at_fork(hold, release);
        // SAFETY: a function without arguments that does not unwind; this library is never unmapped.
        unsafe { libc::atexit(remove_all) };
    });
    ENTRIES.lock().push(ExitEntry { pid: std::process::id(), base: base.clone(), path: path.to_path_buf(), shared });
}

thread_local! {
    static HELD: RefCell<Option<StaticMutexGuard<Vec<ExitEntry>>>> = const { RefCell::new(None) };
}

/// Before a fork: the child must not find the lock taken by a thread that it does not have.
extern "C" fn hold() {
    drop(HELD.try_with(|held| held.replace(Some(ENTRIES.lock()))));
}

extern "C" fn release() {
    drop(HELD.try_with(RefCell::take));
}

/// It was removed in good order.
pub fn cancel_exit_removal(path: &Path) {
    ENTRIES.lock().retain(|known| known.shared.is_some() || known.path != path);
}

/// This process has let go of its lock.
pub fn cancel_exit_removal_of_lock(file: &Arc<File>) {
    let is_it = |weak: &Weak<File>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(file));
    ENTRIES.lock().retain(|known| !known.shared.as_ref().is_some_and(is_it));
}

extern "C" fn remove_all() {
    let _deferral = cancel::defer();
    // A thread that exits the process while another holds the lock must not wait for it.
    let Some(left) = ENTRIES.try_lock() else { return };
    for ExitEntry { base, path, shared, .. } in left.iter().filter(|left| left.pid == std::process::id()) {
        if shared.as_ref().is_some_and(|file| !file.upgrade().is_some_and(|file| lock(&file))) {
            continue;
        }
        let _ = std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path));
        base.prune(path);
    }
}
