//! Exit handler: acknowledges the received packets of open connections, and sends a Reset on each.
//!
//! Without these packets, a delayed ack would be lost, and the peer's request would fail although its message was
//! delivered. The peer would also detect the exit only later, by ICMP messages or a timeout.
//!
//! The handler skips a connection whose lock another thread holds for longer than `EXIT_LOCK_TIMEOUT`, and all
//! connections of an IA if another thread holds the lock of its list of queue pairs for longer than that. It sends
//! nothing if another thread holds the lock of the list of open IAs, or if no thread can be created. It does not run
//! after a fatal signal or `_exit`. In a forked child it handles only IAs that the child itself has opened.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Arc, Once, Weak};

use dapl::runtime::cancel;
use dapl::runtime::sync::{StaticMutex, StaticMutexGuard};
use dapl::runtime::thread;

use super::QpCore;
use crate::counters::IaCounters;

/// For each open IA: the id of the process that opened it, and its counters, which list its queue pairs.
type OpenIas = Vec<(u32, Weak<IaCounters<QpCore>>)>;

static OPEN_IAS: StaticMutex<OpenIas> = StaticMutex::new(Vec::new());

/// Registers an open IA. The first call also registers the exit handler.
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

/// Acquires the lock before a fork. Otherwise the child could inherit a lock that another thread of the parent holds
/// and that nothing in the child releases.
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
    // Building packets needs a thread-local variable, and those of the exiting thread are already destroyed. So a new
    // thread sends the packets.
    let all = move || open_ias.iter().flat_map(|counters| counters.try_queue_pairs()).for_each(|qp| qp.exit());
    if let Ok(thread) = thread::spawn("dapl-exit", all) {
        // `join` fails only if the thread has panicked. The process exits in any case.
        let _ = thread.join();
    }
}
