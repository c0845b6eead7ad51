//! Removes the files of a process in a base directory when the process exits without closing its IAs. A forked child
//! removes only files that it has registered itself.
//!
//! The clean-up does not happen if a signal or `_exit` ends the process, or if another thread holds the lock on the
//! list of files at the exit. The kernel then releases the file locks of the process, and the next process that cleans
//! the directory removes the files.

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
    /// If set, the path is removed only if no other process has a lock on this file.
    shared: Option<Weak<File>>,
}

static ENTRIES: StaticMutex<Vec<ExitEntry>> = StaticMutex::new(Vec::new());

pub(super) fn register(base: &BaseDir, path: &Path, shared: Option<Weak<File>>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        dapl::runtime::thread::at_fork(before_fork, after_fork);
        // SAFETY: `remove_all` does not unwind, and the library that contains it is never unmapped.
        unsafe { libc::atexit(remove_all) };
    });
    ENTRIES.lock().push(ExitEntry { pid: std::process::id(), base: base.clone(), path: path.to_path_buf(), shared });
}

thread_local! {
    /// The guard of `ENTRIES` while this thread forks.
    static FORK_GUARD: RefCell<Option<StaticMutexGuard<Vec<ExitEntry>>>> = const { RefCell::new(None) };
}

/// Acquires the lock before a fork. Otherwise the child could inherit a lock that another thread of the parent holds
/// and that nothing in the child releases.
extern "C" fn before_fork() {
    drop(FORK_GUARD.try_with(|guard| guard.replace(Some(ENTRIES.lock()))));
}

extern "C" fn after_fork() {
    drop(FORK_GUARD.try_with(RefCell::take));
}

/// Cancels the removal of a path at exit. Called when its owner removes it. Has no effect on paths that were registered
/// with a lock file.
pub fn cancel_exit_removal(path: &Path) {
    ENTRIES.lock().retain(|entry| entry.shared.is_some() || entry.path != path);
}

/// Cancels the removal at exit of the path that was registered with this lock file. Called when this process releases
/// its lock on the file.
pub fn cancel_exit_removal_of_lock(file: &Arc<File>) {
    let is_same_file = |weak: &Weak<File>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(file));
    ENTRIES.lock().retain(|entry| !entry.shared.as_ref().is_some_and(is_same_file));
}

extern "C" fn remove_all() {
    let _deferral = cancel::defer();
    // If the lock is not free, nothing is removed, because the thread that holds it may be stopped and the exit would
    // hang.
    let Some(entries) = ENTRIES.try_lock() else { return };
    for ExitEntry { base, path, shared, .. } in entries.iter().filter(|entry| entry.pid == std::process::id()) {
        if shared.as_ref().is_some_and(|file| !file.upgrade().is_some_and(|file| lock(&file))) {
            continue;
        }
        let _ = std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path));
        base.remove_empty_dirs(path);
    }
}
