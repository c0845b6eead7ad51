//! Locks across `fork`: the forking thread takes all static locks, so that in the child none is held by a thread that does not
//! exist there.
//!
//! `registration` installs the handlers before anything is opened. Locks inside objects are not taken, since no object of the
//! parent can be reached in the child. A provider with static locks does the same through [`crate::runtime::thread::at_fork`].
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::ia::dapls_ia;
use crate::runtime::{handle, logger, thread, timer};
use crate::stats::publication;
use crate::{libdat, names, psp};

/// Registers the two handlers below with `pthread_atfork`, once per process.
pub(crate) fn prepare() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| thread::at_fork(before, after));
}

/// A guard of any static lock.
trait ForkGuard {}
impl<T> ForkGuard for T {}

/// In the order in which they are taken when one is guards while another is wanted.
fn all() -> [Box<dyn ForkGuard>; 9] {
    [
        Box::new(publication::hold()),
        Box::new(names::hold()),
        Box::new(timer::hold()),
        Box::new(psp::hold()),
        Box::new(dapls_ia::hold()),
        Box::new(libdat::hold()),
        Box::new(handle::hold()),
        Box::new(logger::hold()),
        // The log's.
        Box::new(io::stderr().lock()),
    ]
}

thread_local! {
    static FORK_GUARDS: RefCell<Option<[Box<dyn ForkGuard>; 9]>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    // In a thread that is ending, thread-local storage is gone; its fork then happens without the locks.
    let _ = FORK_GUARDS.try_with(|guards| guards.replace(Some(all())));
}

extern "C" fn after() {
    let _ = FORK_GUARDS.try_with(RefCell::take);
}
