//! Locks across `fork`: the forking thread takes the locks of the registry, the IA numbers, the arenas and the reports.
//! Otherwise a lock could be held in the child by a thread that exists only in the parent.
//!
//! `thunk::guard` installs the handlers in the first call that runs in it, such as an open or a registration.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arena::ARENAS;
use crate::loader::host;
use crate::{handles, registry, report};

/// The locks held across `fork`, in lock order.
struct ForkLocks {
    _registry: MutexGuard<'static, registry::Registry>,
    _handles: MutexGuard<'static, handles::IaTable>,
    _arenas: MutexGuard<'static, ()>,
    _report: MutexGuard<'static, report::Reporter>,
}

thread_local! {
    static HELD: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Registers the two handlers below with `pthread_atfork`, once per process.
pub(crate) fn prepare() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, Ordering::Relaxed) {
        host::at_fork(before, after);
    }
}

extern "C" fn before() {
    let all = || ForkLocks {
        _registry: registry::lock(),
        _handles: handles::lock(),
        _arenas: ARENAS.lock(),
        _report: report::lock(),
    };
    // If the forking thread is exiting, its thread-local storage is gone and cannot keep the guards: it forks without
    // these locks.
    let _ = HELD.try_with(|held| held.replace(Some(all())));
}

extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
