//! A process that exits with connections open: what it has received is acked, and its peers hear of the end at once.
//!
//! Without that an ack that waits for something to carry it would die with the process, and the peer's request with it,
//! though its message has been delivered; and the peer would learn of the end only when it asks. Nothing is waited for but
//! for a moment: whoever holds a lock while the process exits keeps that connection from saying anything. After a signal or
//! `_exit` nobody says anything. A forked child says nothing for its parent.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, Once, Weak};

use dapl::runtime::cancel;
use dapl::runtime::sync::{Lasting, LastingGuard};
use dapl::runtime::thread;

use crate::counters::Tally;

/// Of open IAs, each with its process.
type Open = Vec<(u32, Weak<Tally>)>;

static OPEN: Lasting<Open> = Lasting::new(Vec::new());

/// An IA is open.
pub(crate) fn remember(tally: &Arc<Tally>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        thread::at_fork(hold, release);
        thread::at_exit(say);
    });
    let mut open = OPEN.lock();
    open.retain(|(_, known)| known.strong_count() > 0);
    open.push((std::process::id(), Arc::downgrade(tally)));
}

thread_local! {
    static HELD: RefCell<Option<LastingGuard<Open>>> = const { RefCell::new(None) };
}

/// Before a fork: the child must not find the lock taken by a thread that it does not have.
extern "C" fn hold() {
    drop(HELD.try_with(|held| held.replace(Some(OPEN.lock()))));
}

extern "C" fn release() {
    drop(HELD.try_with(RefCell::take));
}

extern "C" fn say() {
    let _deferral = cancel::defer();
    let Some(open) = OPEN.try_lock() else { return };
    let ours = open.iter().filter(|(pid, _)| *pid == std::process::id());
    let tallies: Vec<_> = ours.filter_map(|(_, tally)| tally.upgrade()).collect();
    drop(open);
    if tallies.is_empty() {
        return;
    }
    // The exiting thread has given up what belongs to it alone, such as the place where packets are put together.
    let all = move || tallies.iter().for_each(|tally| tally.farewell());
    if let Ok(thread) = thread::spawn("dapl-farewell", all) {
        // It does not panic; if it did, it is over as well.
        let _ = thread.join();
    }
}
