//! Exit handler: a process that exits with open connections acknowledges what it has received, and resets them.
//!
//! Without it a delayed ack would be lost with the process, so the peer's request would fail although its message was
//! delivered. The peer would also notice the end only by its timeouts. If another thread keeps a connection's lock for
//! longer than a short timeout, nothing is sent on that connection. Nothing is sent after a signal or `_exit`, nor in a
//! forked child.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, Once, Weak};

use dapl::runtime::cancel;
use dapl::runtime::sync::{StaticMutex, StaticMutexGuard};
use dapl::runtime::thread;

use super::QpCore;
use crate::counters::IaCounters;

/// The queue pairs of open IAs, each with the process that opened the IA.
type OpenIas = Vec<(u32, Weak<IaCounters<QpCore>>)>;

static OPEN_IAS: StaticMutex<OpenIas> = StaticMutex::new(Vec::new());

/// Registers an open IA, and the exit handler with the first one.
pub(crate) fn register(counters: &Arc<IaCounters<QpCore>>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        thread::at_fork(lock, release);
        thread::at_exit(reset_all);
    });
    let mut open = OPEN_IAS.lock();
    open.retain(|(_, known)| known.strong_count() > 0);
    open.push((std::process::id(), Arc::downgrade(counters)));
}

thread_local! {
    static HELD: RefCell<Option<StaticMutexGuard<OpenIas>>> = const { RefCell::new(None) };
}

/// Before a fork: takes the lock, so that the child does not inherit it locked by a thread that the child does not have.
extern "C" fn lock() {
    drop(HELD.try_with(|held| held.replace(Some(OPEN_IAS.lock()))));
}

extern "C" fn release() {
    drop(HELD.try_with(RefCell::take));
}

extern "C" fn reset_all() {
    let _deferral = cancel::defer();
    let Some(open) = OPEN_IAS.try_lock() else { return };
    let own = open.iter().filter(|(pid, _)| *pid == std::process::id());
    let open_ias: Vec<_> = own.filter_map(|(_, counters)| counters.upgrade()).collect();
    drop(open);
    if open_ias.is_empty() {
        return;
    }
    // The thread-local variables of the exiting thread are destroyed already, and building a packet needs one of them.
    let all = move || open_ias.iter().flat_map(|counters| counters.try_live()).for_each(|qp| qp.exit());
    if let Ok(thread) = thread::spawn("dapl-exit", all) {
        // The thread does not panic. If it did, its work would be over as well.
        let _ = thread.join();
    }
}
