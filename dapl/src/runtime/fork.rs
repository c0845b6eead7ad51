//! Locks across `fork`: the forking thread holds all that live as long as the library, so that the child finds none taken by
//! a thread it lacks.
//!
//! `registration` sets it up before anything is opened. Locks inside objects are not guards: no object of the parent can be
//! reached in the child, where its handles are refused. A provider with such locks of its own sees to them likewise
//! ([`crate::runtime::thread::at_fork`]). It changes nothing else about a fork.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::ia::dapls_ia;
use crate::runtime::{handle, logger, thread, timer};
use crate::stats::publication;
use crate::{libdat, names, psp};

/// Asks for the two calls below, once per process.
pub(crate) fn prepare() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| thread::at_fork(before, after));
}

/// A lock that somebody else wants.
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
    // A thread on its last steps has no room for the locks any more; its fork then is as it would be without us.
    let _ = FORK_GUARDS.try_with(|guards| guards.replace(Some(all())));
}

extern "C" fn after() {
    let _ = FORK_GUARDS.try_with(RefCell::take);
}
