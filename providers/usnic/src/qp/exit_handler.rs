//! Exit handler: a process that exits with open connections acknowledges what it has received, and resets them.
//!
//! Without it an ack that is still delayed would be lost with the process, so the peer's request would fail although its message
//! was delivered; and the peer would notice the end only by its timeouts. A lock that another thread holds is waited for
//! briefly, then that connection sends nothing. After a signal or `_exit`, and in a forked child, nothing is sent.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, Once, Weak};

use dapl::runtime::cancel;
use dapl::runtime::sync::{StaticMutex, StaticMutexGuard};
use dapl::runtime::thread;

use super::QpCore;
use crate::counters::IaCounters;

/// The queue pairs of open IAs, each with the process that opened it.
type OpenIas = Vec<(u32, Weak<IaCounters<QpCore>>)>;

static OPEN_IAS: StaticMutex<OpenIas> = StaticMutex::new(Vec::new());

/// An IA is open.
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

/// Before a fork: the child must not find the lock taken by a thread that it does not have.
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
    // The thread-local variables of the exiting thread are gone by now, and the batch that packets are built in is one.
    let all = move || open_ias.iter().flat_map(|counters| counters.try_live()).for_each(|qp| qp.exit());
    if let Ok(thread) = thread::spawn("dapl-exit", all) {
        // It does not panic; if it did, it is over as well.
        let _ = thread.join();
    }
}
