//! Completion queues, and the connections on which a polling consumer makes progress.
//!
//! While a consumer polls a queue, it makes progress on the connections in `active`, and the engine checks every tick
//! whether the consumer still polls. When the consumer stops polling, the engine sets the wake-up flags of these
//! connections and makes progress on them. If the list has more than 16 connections, the engine removes those without
//! traffic, so that they do not slow down polls.
//!
//! Lock order: a poll holds the lock of `active` while it makes passes over connections, which acquire the locks of
//! queue pairs. The lock of `ready`, the queued completions, is acquired after them, and that of the engine queue last.
#![forbid(unsafe_code)]

mod active;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{ArmMode, Completion, CompletionQueue, CqSink};
use dapl::runtime::cancel;
use dapl::runtime::empty_check::EmptyCheck;
use dapl::runtime::pooled::Pooled;
use dapl_software::cq::CompletionList;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use active::PolledConnection;
use active::{ActiveConnection, ActiveList};
pub(crate) use writer::CompletionWriter;

use crate::engine::jobs::{EngineQueueClient, Job, Jobs};

/// If more connections than this are in the list of a completion queue, idle connections are removed from it.
const MAX_IDLE_POLLED: usize = 16;
/// Number of successive polls that find a completion in the list, after which the consumer counts as polling again.
const READY_POLLS: u32 = 64;

/// A completion queue. Dropping it removes its connections from its list.
pub struct Cq(pub(crate) Arc<CqCore>);

/// The state of a completion queue, shared with its connections and the engine.
pub(crate) struct CqCore {
    ready: CompletionList,
    sink: Weak<dyn CqSink>,
    /// Lets a dequeue of an empty queue return without a poll. Also counts polls, and engine passes in progress that
    /// may complete receives of this queue.
    empty_check: Pooled<EmptyCheck>,
    active: Mutex<ActiveList>,
    /// Whether a consumer polls the queue, so that its connections need no wake-ups.
    polled: AtomicBool,
    /// Number of polls that have found a completion in the list, since the queue was armed or stopped being polled.
    ready_polls: AtomicU32,
    /// Whether the engine calls `tick` for this queue every tick.
    watched: AtomicBool,
    /// Whether the queue was dropped, so that it accepts no connections.
    closed: AtomicBool,
    /// Longest time in nanoseconds that a waiting thread polls before it sleeps.
    spin: u32,
    jobs: Arc<Jobs>,
}

impl Cq {
    pub(crate) fn new(sink: Weak<dyn CqSink>, jobs: Arc<Jobs>, spin: u32) -> Self {
        let empty_check = Pooled::<EmptyCheck>::take();
        Cq(Arc::new(CqCore {
            ready: CompletionList::with_check(empty_check.get()),
            empty_check,
            sink,
            active: Mutex::default(),
            polled: AtomicBool::new(false),
            ready_polls: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spin,
            jobs,
        }))
    }
}

impl CqCore {
    /// Adds a completion to the queue, and queues a notification if the queue is armed.
    #[inline(never)]
    pub(crate) fn push(&self, completion: Completion) {
        if self.ready.push(completion) {
            self.jobs.push(Job::Notify(self.sink.clone()));
        }
    }

    /// Records the start of an engine pass that may complete receives of this queue. Dropping the returned object
    /// records the end.
    pub(crate) fn begin_engine_pass(&self) -> EnginePass<'_> {
        self.empty_check.begin_pass();
        EnginePass(self)
    }

    /// Waits until no engine pass is in progress. A program that polls memory may see the last byte of a message while
    /// the engine is preempted before it adds the completion. This wait ensures that the program then dequeues the
    /// completion. It is short, because a pass has a bounded length and does not call dapl.
    #[inline]
    fn await_engine_passes(&self) {
        while self.empty_check.has_pass() {
            std::thread::yield_now();
        }
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Acquire)
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.ready.is_armed()
    }

    /// Adds a connection to the list, so that polls of this queue make progress on it.
    pub(crate) fn add_active(&self, conn: Arc<dyn PolledConnection>) {
        let mut active = self.active.lock();
        let known = active.conns.iter().any(|known| Arc::ptr_eq(&known.conn, &conn));
        if !known && !self.closed.load(Ordering::Acquire) && !conn.has_ended() {
            self.empty_check.set_stale();
            active.conns.push(ActiveConnection { watch: conn.watch(), conn });
        }
    }

    /// Adds a new connection to the list while the list is short. Then the first polls find the first messages, and
    /// need not wait until the engine adds the connection.
    pub(crate) fn add_new(&self, conn: Arc<dyn PolledConnection>) {
        if self.active.lock().conns.len() < MAX_IDLE_POLLED {
            self.add_active(conn);
        }
    }

    #[cfg(test)]
    pub(crate) fn has_connections(&self) -> bool {
        !self.active.lock().conns.is_empty()
    }

    /// Removes a connection from the list. Has no effect while another thread uses the list: a poll removes connections
    /// that have ended, and the other ones stay.
    pub(crate) fn remove_connection(&self, conn: &dyn PolledConnection) {
        if let Some(mut active) = self.active.try_lock() {
            self.empty_check.set_stale();
            active.conns.retain(|known| !std::ptr::addr_eq(Arc::as_ptr(&known.conn), conn));
        }
    }

    /// Calls `serve` for every polled connection in the list, which makes progress on it. `serve` also sets the wake-up
    /// flags, unless a thread polls the other queue of the connection. The caller has cleared `polled` of this queue
    /// before. A concurrent `serve` adds its connection to the list before it reads this flag for the last time. So
    /// either this function finds the connection, or that `serve` sets the flags.
    fn serve_active(&self) {
        let polled: Vec<Arc<dyn PolledConnection>> = {
            let active = self.active.lock();
            self.empty_check.set_stale(); // The next dequeue must poll.
            active.conns.iter().map(|active| &active.conn).filter(|conn| conn.is_polled()).cloned().collect()
        };
        polled.iter().for_each(|conn| conn.serve());
    }

    /// Whether a poll that has found a completion in the list must poll the connections too. It must after many such
    /// polls, because their wake-up flags are set as long as the consumer does not count as polling. If the consumer
    /// sleeps between its polls, it arms the queue, and the count begins again.
    #[inline(always)]
    fn must_poll_after_ready(&self) -> bool {
        !self.polled.load(Ordering::Relaxed) && self.ready_polls.fetch_add(1, Ordering::Relaxed) >= READY_POLLS
    }

    #[cold]
    fn begin_polling(self: &Arc<Self>, active: &[ActiveConnection]) {
        self.polled.store(true, Ordering::SeqCst);
        self.ready_polls.store(0, Ordering::Relaxed);
        active.iter().for_each(|active| active.conn.clear_wake_flags());
        if !self.watched.swap(true, Ordering::SeqCst) {
            self.jobs.push(Job::Watch(self.clone()));
        }
    }
}

/// An engine pass in progress, which may complete receives of the queue. Dropping it records the end.
pub(crate) struct EnginePass<'a>(&'a CqCore);

impl Drop for EnginePass<'_> {
    fn drop(&mut self) {
        self.0.empty_check.end_pass();
    }
}

impl EngineQueueClient for CqCore {
    /// If the consumer has stopped polling, makes progress on the connections and sets their wake-up flags. Otherwise
    /// makes the next dequeue poll, and removes idle connections from a long list.
    fn tick(&self, last: &mut u32) -> bool {
        let polls = self.empty_check.polls();
        if polls == *last {
            self.watched.store(false, Ordering::SeqCst);
            self.polled.store(false, Ordering::SeqCst);
            self.serve_active();
            return false;
        }
        *last = polls;
        let mut active = self.active.lock();
        // At least one dequeue per tick makes a full poll, which detects whether the thread shares its CPU, and removes
        // connections that have ended.
        self.empty_check.set_stale();
        if active.conns.len() > MAX_IDLE_POLLED {
            let (idle, busy): (Vec<_>, Vec<_>) = active.conns.drain(..).partition(|active| active.conn.was_idle());
            active.conns = busy;
            drop(active);
            idle.iter().for_each(|idle| idle.conn.stop_polling());
        }
        true
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // The connections in the list have references to this queue. Clearing the list breaks the reference cycle.
        let mut active = self.0.active.lock();
        self.0.closed.store(true, Ordering::Release);
        let dropped = std::mem::take(&mut active.conns);
        drop(active);
        drop(dropped);
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, out: &mut [Completion]) -> usize {
        let cq = &self.0;
        cq.empty_check.count_poll();
        let taken = self.ready(out);
        if taken > 0 && !cq.must_poll_after_ready() {
            return taken;
        }
        let out = &mut out[taken..];
        let mut filled = 0;
        if let Some(mut active) = cq.active.try_lock() {
            let mut writer = CompletionWriter { poller: Some((cq, out)), filled: 0 };
            // The consumer of an armed queue sleeps or will sleep, so the peers of its connections must still wake the
            // engine.
            if !cq.polled.load(Ordering::Relaxed) && !cq.is_armed() {
                cq.begin_polling(&active.conns);
            }
            let has_ended = active.poll(&mut writer);
            filled = writer.filled;
            if has_ended {
                // Dropping the last reference to a connection closes descriptors, which is a cancellation point.
                let _deferral = cancel::defer();
                active.conns.retain(|active| !active.conn.has_ended());
            }
            if (has_ended || cq.empty_check.is_stale()) && cq.is_polled() {
                cq.empty_check.watch(active.conns.iter().map(|active| active.watch));
            }
            // An unfair unlock would let a thread that polls without pause acquire the lock again before the engine,
            // which must add connections to the list.
            MutexGuard::unlock_fair(active);
        }
        if taken + filled == 0 {
            cq.await_engine_passes();
        }
        taken + filled + self.ready(&mut out[filled..])
    }

    #[inline(always)]
    fn ready(&self, out: &mut [Completion]) -> usize {
        self.0.ready.take(out)
    }

    fn disarm(&self) {
        self.0.ready.disarm();
    }

    fn empty_check(&self) -> Option<&'static EmptyCheck> {
        Some(self.0.empty_check.get())
    }

    fn max_spin(&self) -> u32 {
        self.0.spin
    }

    fn arm(&self, _: ArmMode) -> Result<bool> {
        let cq = &self.0;
        Ok(cq.ready.arm(|| {
            cq.polled.store(false, Ordering::SeqCst);
            cq.ready_polls.store(0, Ordering::Relaxed);
            cq.serve_active();
        }))
    }
}

#[cfg(test)]
mod tests;
