//! Completion queues, and the connections on which a polling consumer makes progress.
//!
//! While a consumer polls a queue, it drives the connections in `active` and the engine sleeps. When it stops, the
//! engine arms them and takes over. A connection without traffic is not in the list, so it costs a poller nothing.
//! Locks of this module are taken after all others except the engine queue's.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{Arrival, Completion, CompletionQueue, CqSink, Status, Token};
use dapl::runtime::cancel;
use dapl_software::cq::CompletionList;
use dapl_software::engine::queue::Notify;
use parking_lot::{Mutex, MutexGuard};

use crate::engine::jobs::{EngineQueueClient, Job, Jobs};

/// Maximum number of idle connections that stay in a poller's list.
const ACTIVE: usize = 16;

/// A connection, as seen by a thread that polls one of its queues. A trait, because a queue pair posts completions to
/// the queue while the queue polls its connections. Tests of the queue implement it without a ring.
pub(crate) trait PolledConnection: Send + Sync {
    /// A poller's pass over the connection. Returns whether the connection has ended.
    fn poll(&self, out: &mut Outbox<'_>) -> bool;
    /// Whether the connection has ended.
    fn is_over(&self) -> bool;
    /// Whether it is polled and its peer sends no wake-ups.
    fn is_polled(&self) -> bool;
    /// Whether the last calls of this function found no progress.
    fn was_idle(&self) -> bool;
    /// Clears the wake-up flags, because a thread polls.
    fn disarm(&self);
    /// Makes progress until there is nothing to do, then sets the wake-up flags, unless a thread polls.
    fn serve(&self);
    /// Removes the connection from the lists of its pollers.
    fn retire(&self);
    /// Whether the rings hold entries that have not been taken.
    fn has_unread(&self) -> bool;
}

/// Collects the completions of a pass: directly for the polling thread's queue, otherwise in their queue.
#[derive(Debug, Default)]
pub(crate) struct Outbox<'a> {
    poller: Option<(&'a Arc<CqCore>, &'a mut [Completion])>,
    filled: usize,
}

impl Outbox<'_> {
    /// Whether the poller's array is full. Further messages can stay in the rings.
    pub(crate) fn is_full(&self) -> bool {
        self.poller.as_ref().is_some_and(|(_, out)| self.filled == out.len())
    }

    /// Adds a completion of `cq` after those already queued.
    #[inline(always)]
    pub(crate) fn put(&mut self, cq: &Arc<CqCore>, completion: Completion) {
        match self.place(cq) {
            Some(place) => *place = completion,
            None => cq.push(completion),
        }
    }

    /// Returns the free places of the poller's array if `cq` is its queue and is empty. [`Outbox::used`] says how
    /// many were filled.
    #[inline]
    pub(crate) fn places<'a>(&'a mut self, cq: &'a Arc<CqCore>) -> Places<'a> {
        match &mut self.poller {
            Some((own, out)) if Arc::ptr_eq(own, cq) && own.ready.is_empty() => {
                Places { cq, direct: Some(out[self.filled..].iter_mut()) }
            }
            _ => Places { cq, direct: None },
        }
    }

    /// Records that the first `count` places were filled.
    #[inline]
    pub(crate) fn used(&mut self, count: usize) {
        self.filled += count;
    }

    /// Takes the next place for a completion of `cq`, if `cq` is the poller's queue and a place is free.
    #[inline(always)]
    fn place(&mut self, cq: &Arc<CqCore>) -> Option<&mut Completion> {
        let (own, out) = self.poller.as_mut()?;
        if !Arc::ptr_eq(own, cq) || !own.ready.is_empty() {
            return None;
        }
        let place = out.get_mut(self.filled)?;
        self.filled += 1;
        Some(place)
    }
}

/// Destination of a run of successful completions: the poller's array or their queue. See [`Outbox::places`].
pub(crate) struct Places<'a> {
    cq: &'a Arc<CqCore>,
    direct: Option<std::slice::IterMut<'a, Completion>>,
}

impl Places<'_> {
    /// Whether the poller's array is full.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.direct.as_ref().is_some_and(|left| left.len() == 0)
    }

    /// Adds a completion. Returns the number of the poller's places used. Writes field by field: copying a record
    /// that was just written in smaller pieces would stall on store forwarding.
    #[inline(always)]
    pub(crate) fn put(&mut self, token: &Token, bytes: u64, solicited: bool) -> usize {
        match self.direct.as_mut().map(Iterator::next) {
            Some(Some(place)) => {
                place.token = *token;
                (place.status, place.bytes, place.solicited) = (Status::Success, bytes, solicited);
                place.arrival = Arrival::Send;
                1
            }
            _ => {
                self.cq.push(Completion { token: *token, bytes, solicited, ..Completion::default() });
                0
            }
        }
    }
}

/// A completion queue, as dapl holds it.
pub struct Cq(pub(crate) Arc<CqCore>);

/// The state of a completion queue, shared with its connections and the engine.
pub(crate) struct CqCore {
    ready: CompletionList,
    sink: Weak<dyn CqSink>,
    active: Mutex<Vec<Arc<dyn PolledConnection>>>,
    /// A consumer polls the queue, so its connections need no wake-ups.
    polled: AtomicBool,
    polls: AtomicU32,
    /// Engine passes in progress that may complete receives of this queue.
    in_service: AtomicU32,
    /// The engine checks it every tick.
    watched: AtomicBool,
    /// The queue was dropped and accepts no connections.
    closed: AtomicBool,
    /// Longest time in nanoseconds that a wait polls before it sleeps.
    spin: u32,
    jobs: Arc<Jobs>,
}

impl std::fmt::Debug for CqCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqCore").field("ready", &self.ready).field("polled", &self.polled).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn new(sink: Weak<dyn CqSink>, jobs: Arc<Jobs>, spin: u32) -> Self {
        Cq(Arc::new(CqCore {
            ready: CompletionList::default(),
            sink,
            active: Mutex::default(),
            polled: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            in_service: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spin,
            jobs,
        }))
    }
}

impl CqCore {
    /// Adds the completion of a work request.
    #[inline(never)]
    pub(crate) fn push(self: &Arc<Self>, completion: Completion) {
        if self.ready.push(completion) {
            self.jobs.push(Job::Notify(self.clone()));
        }
    }

    /// Marks an engine pass that may complete receives of this queue, until it is dropped.
    pub(crate) fn begin_service(&self) -> Service<'_> {
        self.in_service.fetch_add(1, Ordering::SeqCst);
        Service(self)
    }

    /// Waits until no engine pass is in progress. A program that has seen the last byte of a message in memory then
    /// finds its completion, even if the engine was preempted between the two. A pass has a bounded length and does
    /// not call the upper layer.
    #[inline]
    fn await_service(&self) {
        while self.in_service.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Acquire)
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.ready.is_armed()
    }

    /// Adds a connection with traffic to the list that pollers serve.
    pub(crate) fn activate(&self, conn: Arc<dyn PolledConnection>) {
        let mut active = self.active.lock();
        let known = active.iter().any(|known| Arc::ptr_eq(known, &conn));
        if !known && !self.closed.load(Ordering::Acquire) && !conn.is_over() {
            active.push(conn);
        }
    }

    /// Removes a connection that has ended, or whose QP is dropped. A poller that is using the list detects this
    /// itself.
    pub(crate) fn forget(&self, conn: &dyn PolledConnection) {
        if let Some(mut active) = self.active.try_lock() {
            active.retain(|known| !std::ptr::addr_eq(Arc::as_ptr(known), conn));
        }
    }

    /// Called when no thread polls: makes progress on every connection and arms it. This function clears `polled`
    /// before it reads the list; the engine adds to the list before it reads `polled`. So no connection is missed.
    fn serve_active(&self) {
        let hot: Vec<Arc<dyn PolledConnection>> =
            self.active.lock().iter().filter(|conn| conn.is_polled()).cloned().collect();
        hot.iter().for_each(|conn| conn.serve());
    }

    #[cold]
    fn begin_polling(self: &Arc<Self>, active: &[Arc<dyn PolledConnection>]) {
        self.polled.store(true, Ordering::SeqCst);
        active.iter().for_each(|conn| conn.disarm());
        if !self.watched.swap(true, Ordering::SeqCst) {
            self.jobs.push(Job::Watch(self.clone()));
        }
    }
}

/// An engine pass over a connection; see [`CqCore::begin_service`].
pub(crate) struct Service<'a>(&'a CqCore);

impl Drop for Service<'_> {
    fn drop(&mut self) {
        self.0.in_service.fetch_sub(1, Ordering::Release);
    }
}

impl Notify for CqCore {
    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.notify();
        }
    }
}

impl EngineQueueClient for CqCore {
    /// Takes over from a consumer that stopped polling.
    fn tick(&self, last: &mut u32) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        if polls == *last {
            self.watched.store(false, Ordering::SeqCst);
            self.polled.store(false, Ordering::SeqCst);
            self.serve_active();
            return false;
        }
        *last = polls;
        let mut active = self.active.lock();
        if active.len() > ACTIVE {
            let (idle, busy): (Vec<_>, Vec<_>) = active.drain(..).partition(|conn| conn.was_idle());
            *active = busy;
            drop(active);
            idle.iter().for_each(|conn| conn.retire());
        }
        true
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // The list references the connections, and they reference the queue.
        let mut active = self.0.active.lock();
        self.0.closed.store(true, Ordering::Release);
        let dropped = std::mem::take(&mut *active);
        drop(active);
        drop(dropped);
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, out: &mut [Completion]) -> usize {
        let taken = self.ready(out);
        if taken > 0 {
            return taken;
        }
        let cq = &self.0;
        cq.polls.store(cq.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut filled = 0;
        if let Some(mut active) = cq.active.try_lock() {
            let mut outbox = Outbox { poller: Some((cq, out)), filled: 0 };
            // An armed queue has a sleeping consumer: its connections keep waking the engine.
            if !cq.polled.load(Ordering::Relaxed) && !cq.is_armed() {
                cq.begin_polling(&active);
            }
            let (mut over, mut served) = (false, 0);
            for conn in active.iter() {
                over |= conn.poll(&mut outbox);
                served += 1;
                if outbox.is_full() {
                    break;
                }
            }
            filled = outbox.filled;
            if served < active.len() {
                active.rotate_left(served); // the next pass starts with the others
            }
            if over {
                let _deferral = cancel::defer(); // the last reference to a connection closes its descriptors
                active.retain(|conn| !conn.is_over());
            }
            // A thread that polls without a pause would retake the lock before the engine, which adds connections, has
            // woken up.
            MutexGuard::unlock_fair(active);
        }
        if filled == 0 {
            cq.await_service();
        }
        filled + self.ready(&mut out[filled..])
    }

    #[inline(always)]
    fn ready(&self, out: &mut [Completion]) -> usize {
        self.0.ready.take(out)
    }

    fn disarm(&self) {
        self.0.ready.disarm();
    }

    fn max_spin(&self) -> u32 {
        self.0.spin
    }

    fn arm(&self, _: bool) -> Result<bool> {
        let cq = &self.0;
        Ok(cq.ready.arm(|| {
            cq.polled.store(false, Ordering::SeqCst);
            cq.serve_active();
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that always has more completions than a poller takes.
    struct ManyCompletions(Arc<CqCore>, AtomicU32);

    impl PolledConnection for ManyCompletions {
        fn poll(&self, out: &mut Outbox<'_>) -> bool {
            while !out.is_full() {
                out.put(&self.0, Completion::default());
                self.1.fetch_add(1, Ordering::Relaxed);
            }
            false
        }
        fn is_over(&self) -> bool {
            false
        }
        fn is_polled(&self) -> bool {
            true
        }
        fn was_idle(&self) -> bool {
            false
        }
        fn has_unread(&self) -> bool {
            false
        }
        fn disarm(&self) {}
        fn serve(&self) {}
        fn retire(&self) {}
    }

    struct NoWaiter;

    impl CqSink for NoWaiter {
        fn notify(&self) {}
    }

    #[test]
    fn connections_take_turns_and_excess_stays_in_the_ring() {
        let sink: Weak<dyn CqSink> = Weak::<NoWaiter>::new();
        let cq = Cq::new(sink, Arc::new(Jobs::new().unwrap()), 0);
        let floods: Vec<_> = (0..3).map(|_| Arc::new(ManyCompletions(cq.0.clone(), AtomicU32::new(0)))).collect();
        floods.iter().for_each(|flood| cq.0.activate(flood.clone()));
        let mut out = [Completion::default(); 16];
        for _ in 0..6 {
            assert_eq!(cq.poll(&mut out), 16);
        }
        assert!(cq.0.ready.is_empty(), "no completion had to wait");
        assert_eq!(floods.iter().map(|flood| flood.1.load(Ordering::Relaxed)).collect::<Vec<_>>(), [32; 3]);
    }
}
