//! Removes the files of a process in a base directory when the process exits without closing.
//!
//! There are no signal handlers. After a signal or `_exit` the lock of the files is free, and the next cleaner removes them.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, Weak};

use super::{BaseDir, lock};
use dapl::runtime::cancel;
use dapl::runtime::sync::{StaticMutex, StaticMutexGuard};

/// A file or folder that is removed at exit.
struct ExitEntry {
    pid: u32,
    base: BaseDir,
    path: PathBuf,
    /// Remove only if no other process has a lock on this file.
    shared: Option<Weak<File>>,
}

static ENTRIES: StaticMutex<Vec<ExitEntry>> = StaticMutex::new(Vec::new());

pub(super) fn register(base: &BaseDir, path: &Path, shared: Option<Weak<File>>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        dapl::runtime::thread::at_fork(before_fork, after_fork);
        // SAFETY: a function without arguments that does not unwind; this library is never unmapped.
        unsafe { libc::atexit(remove_all) };
    });
    ENTRIES.lock().push(ExitEntry { pid: std::process::id(), base: base.clone(), path: path.to_path_buf(), shared });
}

thread_local! {
    static HELD: RefCell<Option<StaticMutexGuard<Vec<ExitEntry>>>> = const { RefCell::new(None) };
}

/// Before a fork: takes the lock, so that the child does not inherit it locked by a thread that the child does not have.
extern "C" fn before_fork() {
    drop(HELD.try_with(|held| held.replace(Some(ENTRIES.lock()))));
}

extern "C" fn after_fork() {
    drop(HELD.try_with(RefCell::take));
}

/// Called when the owner of the path has removed it: nothing is removed at exit.
pub fn cancel_exit_removal(path: &Path) {
    ENTRIES.lock().retain(|known| known.shared.is_some() || known.path != path);
}

/// Called when this process has released its lock on the file: nothing is removed at exit.
pub fn cancel_exit_removal_of_lock(file: &Arc<File>) {
    let is_it = |weak: &Weak<File>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(file));
    ENTRIES.lock().retain(|known| !known.shared.as_ref().is_some_and(is_it));
}

extern "C" fn remove_all() {
    let _deferral = cancel::defer();
    // An exiting thread must not wait for the lock, because its holder may be a thread that was stopped.
    let Some(entries) = ENTRIES.try_lock() else { return };
    for ExitEntry { base, path, shared, .. } in entries.iter().filter(|entry| entry.pid == std::process::id()) {
        if shared.as_ref().is_some_and(|file| !file.upgrade().is_some_and(|file| lock(&file))) {
            continue;
        }
        let _ = std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path));
        base.prune(path);
    }
}
