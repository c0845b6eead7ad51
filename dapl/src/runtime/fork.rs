//! Holds the static locks of the library across `fork`, except those of traces. Otherwise a lock could be held in the
//! child by a thread that exists only in the parent.
//!
//! `registration` installs the handlers before any IA is opened. Locks inside objects are not acquired, because the
//! child cannot reach any object of the parent. A provider with static locks installs its own handlers by
//! [`crate::runtime::thread::at_fork`].
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::ia::dapls_ia;
use crate::runtime::empty_check::{EmptyCheck, RingWatch};
use crate::runtime::pooled::Poolable;
use crate::runtime::{address_ranges, handle, logger, thread, timer};
use crate::stats::publication;
use crate::{libdat, names, psp};

/// Registers `before` and `after` with `pthread_atfork`, once per process.
pub(crate) fn prepare() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| thread::at_fork(before, after));
}

/// A guard of any static lock, so that one array can contain the guards of different locks.
trait ForkGuard {}
impl<T> ForkGuard for T {}

/// Acquires the static locks, in the order in which they nest.
fn all() -> [Box<dyn ForkGuard>; 12] {
    [
        Box::new(publication::lock_for_fork()),
        Box::new(names::lock_for_fork()),
        Box::new(timer::lock_for_fork()),
        Box::new(psp::lock_for_fork()),
        Box::new(dapls_ia::lock_for_fork()),
        Box::new(libdat::lock_for_fork()),
        Box::new(handle::lock_for_fork()),
        Box::new(EmptyCheck::pool().lock()),
        Box::new(RingWatch::pool().lock()),
        Box::new(address_ranges::lock_for_fork()),
        Box::new(logger::lock_for_fork()),
        // The logger locks stderr.
        Box::new(io::stderr().lock()),
    ]
}

thread_local! {
    static FORK_GUARDS: RefCell<Option<[Box<dyn ForkGuard>; 12]>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    // A forking thread that is exiting has no thread-local storage any more, so it cannot store the guards, and forks
    // without the locks.
    let _ = FORK_GUARDS.try_with(|guards| guards.replace(Some(all())));
}

extern "C" fn after() {
    let _ = FORK_GUARDS.try_with(RefCell::take);
}
