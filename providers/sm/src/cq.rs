//! Completion queues, and the connections on which a polling consumer makes progress.
//!
//! While a consumer polls a queue, it makes progress on the connections in `active`, and the engine sleeps. When the
//! consumer stops polling, the engine sets the wake-up flags of these connections and makes progress on them. A
//! connection without traffic is not in the list, so it does not slow down polls. The locks of this module are acquired
//! after all other locks except that of the engine queue.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{ArmMode, Completion, CompletionQueue, CqSink, ReceivedOp, Status, Token};
use dapl::runtime::cancel;
use dapl::runtime::empty_check::{EmptyCheck, RingWatch, WATCHES};
use dapl::runtime::pooled::Pooled;
use dapl_software::cq::CompletionList;
use dapl_software::engine::queue::Notify;
use parking_lot::{Mutex, MutexGuard};

use crate::engine::jobs::{EngineQueueClient, Job, Jobs};

/// If more connections than this are in the list of a completion queue, idle connections are removed from it.
const MAX_IDLE_POLLED: usize = 16;
/// A poll of more than [`WATCHES`] connections ends once it has a completion and this many consecutive connections had
/// no work. The limit is small, because the check of an idle connection costs about 15 instructions.
const QUIET_IN_SEQUENCE: usize = 4;
/// A poll of more than [`WATCHES`] connections that has no completion yet checks its first connection again after this
/// number of connections.
const RECHECK_INTERVAL: usize = 32;

/// The functions of a connection that completion queues call. A trait, because queue pairs also call completion queues,
/// and because the tests of this module use a fake connection without a ring.
pub(crate) trait PolledConnection: Send + Sync {
    /// Makes a pass over the connection for a polling thread. Returns whether the connection has ended.
    fn poll(&self, out: &mut CompletionWriter<'_>) -> bool;
    /// Returns the words from which a dequeue finds out, without a lock, whether `poll` would find work.
    fn watch(&self) -> &'static RingWatch;
    /// Whether the connection has ended.
    fn has_ended(&self) -> bool;
    /// Whether a thread polls the connection, so that its peer sends no wake-ups.
    fn is_polled(&self) -> bool;
    /// Called every tick. Whether the connection has made no progress for several ticks.
    fn was_idle(&self) -> bool;
    /// Clears the wake-up flags, because a thread polls.
    fn clear_wake_flags(&self);
    /// Makes progress. If a thread polls, adds the connection to its list; otherwise continues until no work is left,
    /// and sets the wake-up flags.
    fn serve(&self);
    /// Removes the connection from the lists of its completion queues, and sets its wake-up flags.
    fn stop_polling(&self);
    /// Whether the rings contain entries that were not consumed.
    fn has_unread(&self) -> bool;
}

/// Destination of the completions of a pass. Completions of the queue that the calling thread polls are written to the
/// thread's array; other completions are added to their queue.
#[derive(Debug, Default)]
pub(crate) struct CompletionWriter<'a> {
    poller: Option<(&'a Arc<CqCore>, &'a mut [Completion])>,
    filled: usize,
}

impl CompletionWriter<'_> {
    /// Whether the poller's array is full. A pass then ends, and leaves further messages in the rings.
    pub(crate) fn is_full(&self) -> bool {
        self.poller.as_ref().is_some_and(|(_, out)| self.filled == out.len())
    }

    /// Adds a completion of `cq`, after all earlier completions of `cq`.
    #[inline(always)]
    pub(crate) fn put(&mut self, cq: &Arc<CqCore>, completion: Completion) {
        match self.next_entry(cq) {
            Some(entry) => *entry = completion,
            None => cq.push(completion),
        }
    }

    /// Returns the destination of the next completions of `cq`: the poller's array if `cq` is the polled queue and
    /// contains no completions, otherwise `cq`. The caller then passes [`FreeEntries::used`] to
    /// [`CompletionWriter::add_filled`].
    #[inline]
    pub(crate) fn free_entries<'a>(&'a mut self, cq: &'a Arc<CqCore>) -> FreeEntries<'a> {
        match &mut self.poller {
            Some((own, out)) if Arc::ptr_eq(own, cq) && own.ready.is_empty() => {
                let direct = out[self.filled..].iter_mut();
                FreeEntries { cq, free: direct.len(), most: direct.len(), direct }
            }
            _ => FreeEntries { cq, free: 0, most: usize::MAX, direct: [].iter_mut() },
        }
    }

    /// Records that the first `count` free entries were filled.
    #[inline]
    pub(crate) fn add_filled(&mut self, count: usize) {
        self.filled += count;
    }

    /// Returns the next free entry for a completion of `cq`, if `cq` is the polled queue and an entry is free.
    #[inline(always)]
    fn next_entry(&mut self, cq: &Arc<CqCore>) -> Option<&mut Completion> {
        let (own, out) = self.poller.as_mut()?;
        if !Arc::ptr_eq(own, cq) || !own.ready.is_empty() {
            return None;
        }
        let entry = out.get_mut(self.filled)?;
        self.filled += 1;
        Some(entry)
    }
}

/// Destination of a sequence of successful completions: the poller's array, or their queue. See
/// [`CompletionWriter::free_entries`].
pub(crate) struct FreeEntries<'a> {
    cq: &'a Arc<CqCore>,
    /// Free entries of the poller's array; none if the completions are for the queue.
    direct: std::slice::IterMut<'a, Completion>,
    /// Number of entries that `direct` had at first.
    free: usize,
    /// Maximum number of completions that may be added; unlimited if they are for the queue.
    most: usize,
}

impl FreeEntries<'_> {
    /// Returns the maximum number of completions that may be added in total.
    #[inline(always)]
    pub(crate) fn max_completions(&self) -> usize {
        self.most
    }

    /// Number of entries of the poller's array that were used.
    #[inline(always)]
    pub(crate) fn used(&self) -> usize {
        self.free - self.direct.len()
    }

    /// Adds a completion. The fields are written one by one, because a copy of a record that was just written in smaller
    /// parts would stall on store forwarding.
    #[inline(always)]
    pub(crate) fn put(&mut self, token: &Token, bytes: u64, solicited: bool) {
        match self.direct.next() {
            Some(entry) => {
                entry.token = *token;
                (entry.status, entry.bytes, entry.solicited) = (Status::Success, bytes, solicited);
                entry.arrival = ReceivedOp::Send;
            }
            None => self.cq.push(Completion { token: *token, bytes, solicited, ..Completion::default() }),
        }
    }
}

/// A completion queue. Dropping it removes its connections from its list.
pub struct Cq(pub(crate) Arc<CqCore>);

/// A connection in the list of a completion queue.
struct ActiveConnection {
    conn: Arc<dyn PolledConnection>,
    watch: &'static RingWatch,
}

/// The connections that a poll of a completion queue makes progress on.
#[derive(Default)]
struct ActiveList {
    conns: Vec<ActiveConnection>,
    /// Index of the connection with which the next poll starts, if there are more than [`WATCHES`] connections. May
    /// exceed the length of `conns`.
    next: usize,
}

impl ActiveList {
    /// Polls the connections that have work, until `out` is full. Returns whether one of them has ended.
    #[inline(always)]
    fn poll(&mut self, out: &mut CompletionWriter<'_>) -> bool {
        if self.conns.len() > WATCHES {
            return self.poll_in_turn(out);
        }
        let (mut has_ended, mut served) = (false, 0);
        for ActiveConnection { conn, watch } in &self.conns {
            served += 1;
            if watch.has_no_progress() {
                continue;
            }
            has_ended |= conn.poll(out);
            if out.is_full() {
                break;
            }
        }
        if served < self.conns.len() {
            self.conns.rotate_left(served); // The next poll starts with the connections that were not polled.
        }
        has_ended
    }

    /// Polls the connections in turn, starting after the last one that had a completion. Ends early if `out` has a
    /// completion and the next [`QUIET_IN_SEQUENCE`] connections have no work. So a program that uses its connections
    /// in turn finds each message without a check of all connections.
    #[inline(never)]
    fn poll_in_turn(&mut self, out: &mut CompletionWriter<'_>) -> bool {
        let count = self.conns.len();
        let first = if self.next < count { self.next } else { 0 };
        let (mut has_ended, mut quiet) = (false, 0);
        for n in first..first + count {
            let at = if n < count { n } else { n - count };
            let mut found = at;
            if self.conns[at].watch.has_no_progress() {
                quiet += 1;
                if out.filled > 0 && quiet >= QUIET_IN_SEQUENCE {
                    break;
                }
                // A program that uses its connections in turn now waits for a message on the first connection. The
                // message may arrive during this loop.
                if out.filled > 0 || quiet % RECHECK_INTERVAL != 0 || self.conns[first].watch.has_no_progress() {
                    continue;
                }
                found = first;
            }
            let before = out.filled;
            has_ended |= self.conns[found].conn.poll(out);
            if out.filled > before {
                (quiet, self.next) = (0, found + 1);
            }
            if out.is_full() {
                break;
            }
        }
        has_ended
    }
}

/// The state of a completion queue, shared with its connections and the engine.
pub(crate) struct CqCore {
    ready: CompletionList,
    sink: Weak<dyn CqSink>,
    /// Lets a dequeue of an empty queue return without a poll. Also counts polls, and engine passes in progress that may
    /// complete receives of this queue.
    empty_check: Pooled<EmptyCheck>,
    active: Mutex<ActiveList>,
    /// Whether a consumer polls the queue, so that its connections need no wake-ups.
    polled: AtomicBool,
    /// Whether the engine calls `tick` for this queue every tick.
    watched: AtomicBool,
    /// Whether the queue was dropped, so that it accepts no connections.
    closed: AtomicBool,
    /// Longest time in nanoseconds that a waiting thread polls before it sleeps.
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
        let empty_check = Pooled::<EmptyCheck>::take();
        Cq(Arc::new(CqCore {
            ready: CompletionList::with_check(empty_check.get()),
            empty_check,
            sink,
            active: Mutex::default(),
            polled: AtomicBool::new(false),
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
    pub(crate) fn push(self: &Arc<Self>, completion: Completion) {
        if self.ready.push(completion) {
            self.jobs.push(Job::Notify(self.clone()));
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

    /// Adds a connection with traffic to the list, so that polls of this queue make progress on it.
    pub(crate) fn add_active(&self, conn: Arc<dyn PolledConnection>) {
        let mut active = self.active.lock();
        let known = active.conns.iter().any(|known| Arc::ptr_eq(&known.conn, &conn));
        if !known && !self.closed.load(Ordering::Acquire) && !conn.has_ended() {
            self.empty_check.set_stale();
            active.conns.push(ActiveConnection { watch: conn.watch(), conn });
        }
    }

    /// Removes a connection that has ended, or whose QP is dropped. Has no effect while a thread polls with the list;
    /// that thread removes ended connections itself.
    pub(crate) fn remove_connection(&self, conn: &dyn PolledConnection) {
        if let Some(mut active) = self.active.try_lock() {
            self.empty_check.set_stale();
            active.conns.retain(|known| !std::ptr::addr_eq(Arc::as_ptr(&known.conn), conn));
        }
    }

    /// Makes progress on every polled connection in the list, and sets its wake-up flags. The caller has cleared
    /// `polled` before. `serve` adds a connection to the list before it reads `polled`. So either this function finds
    /// the connection, or `serve` sets the flags.
    fn serve_active(&self) {
        let polled: Vec<Arc<dyn PolledConnection>> = {
            let active = self.active.lock();
            self.empty_check.set_stale(); // The next dequeue must poll.
            active.conns.iter().map(|active| &active.conn).filter(|conn| conn.is_polled()).cloned().collect()
        };
        polled.iter().for_each(|conn| conn.serve());
    }

    #[cold]
    fn begin_polling(self: &Arc<Self>, active: &[ActiveConnection]) {
        self.polled.store(true, Ordering::SeqCst);
        active.iter().for_each(|active| active.conn.clear_wake_flags());
        if !self.watched.swap(true, Ordering::SeqCst) {
            self.jobs.push(Job::Watch(self.clone()));
        }
    }
}

/// An engine pass over a connection (see [`CqCore::begin_engine_pass`]).
pub(crate) struct EnginePass<'a>(&'a CqCore);

impl Drop for EnginePass<'_> {
    fn drop(&mut self) {
        self.0.empty_check.end_pass();
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
    /// If the consumer has stopped polling, makes progress on the connections and sets their wake-up flags.
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
        let taken = self.ready(out);
        if taken > 0 {
            return taken;
        }
        let cq = &self.0;
        cq.empty_check.count_poll();
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
        if filled == 0 {
            cq.await_engine_passes();
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
            cq.serve_active();
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use dapl::runtime::empty_check::{AwaitedProgress, QueueCheck};
    use dapl::runtime::sync::AtomicPtr;

    use super::*;

    /// A fake connection.
    struct FakeConnection {
        cq: Arc<CqCore>,
        /// Number of completions that were polled.
        polled: AtomicU32,
        /// Whether each poll fills the poller's array. Otherwise a connection has one completion after [`Self::fill`].
        is_endless: bool,
        watch: Pooled<RingWatch>,
    }

    impl FakeConnection {
        fn new(cq: &Cq, is_endless: bool) -> Arc<Self> {
            let watch = Pooled::<RingWatch>::take();
            watch.set_wait(if is_endless { AwaitedProgress::Other } else { AwaitedProgress::Nothing });
            Arc::new(FakeConnection { cq: cq.0.clone(), polled: AtomicU32::new(0), is_endless, watch })
        }

        /// Creates an active connection without a completion.
        fn idle(cq: &Cq) -> Arc<Self> {
            let conn = Self::new(cq, false);
            cq.0.add_active(conn.clone());
            conn
        }

        fn fill(&self) {
            self.watch.set_wait(AwaitedProgress::Other);
        }
    }

    impl PolledConnection for FakeConnection {
        fn poll(&self, out: &mut CompletionWriter<'_>) -> bool {
            while !out.is_full() {
                out.put(&self.cq, Completion::default());
                self.polled.fetch_add(1, Ordering::Relaxed);
                if !self.is_endless {
                    self.watch.set_wait(AwaitedProgress::Nothing);
                    break;
                }
            }
            false
        }
        fn watch(&self) -> &'static RingWatch {
            self.watch.get()
        }
        fn has_ended(&self) -> bool {
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
        fn clear_wake_flags(&self) {}
        fn serve(&self) {}
        fn stop_polling(&self) {}
    }

    struct NoWaiter;

    impl CqSink for NoWaiter {
        fn notify(&self) {}
    }

    #[test]
    fn polls_share_completions_among_connections_and_queue_none() {
        let sink: Weak<dyn CqSink> = Weak::<NoWaiter>::new();
        let cq = Cq::new(sink, Arc::new(Jobs::new().unwrap()), 0);
        let floods: Vec<_> = (0..3).map(|_| FakeConnection::new(&cq, true)).collect();
        floods.iter().for_each(|flood| cq.0.add_active(flood.clone()));
        let mut out = [Completion::default(); 16];
        for _ in 0..6 {
            assert_eq!(cq.poll(&mut out), 16);
        }
        assert!(cq.0.ready.is_empty(), "no completion was queued");
        assert_eq!(floods.iter().map(|flood| flood.polled.load(Ordering::Relaxed)).collect::<Vec<_>>(), [32; 3]);
    }

    #[test]
    fn polls_of_many_connections_find_every_completion_in_turn() {
        let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
        let conns: Vec<_> = (0..100).map(|_| FakeConnection::idle(&cq)).collect();
        let mut out = [Completion::default(); 16];
        let mut poll = || cq.poll(&mut out);
        for n in (0..100).chain([70, 69, 3, 99, 98, 0]) {
            assert_eq!(poll(), 0);
            conns[n].fill();
            assert_eq!(poll(), 1, "connection {n}");
        }
        // Each poll returns the completions of neighbouring connections, and starts after the connection of the last
        // completion.
        for round in 0..3 {
            [10, 11, 14, 50, 90].iter().for_each(|n| conns[*n].fill());
            let found: Vec<usize> = (0..4).map(|_| poll()).collect();
            assert_eq!(found.iter().sum::<usize>(), 5, "round {round}: {found:?}");
            assert_eq!(found.last(), Some(&0), "round {round}: {found:?}");
        }
        conns.iter().for_each(|conn| conn.fill());
        assert_eq!((0..8).map(|_| poll()).collect::<Vec<_>>(), [16, 16, 16, 16, 16, 16, 4, 0]);
    }

    #[test]
    fn busy_connection_delays_no_other_of_many() {
        let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
        let conns: Vec<_> = (0..40).map(|_| FakeConnection::idle(&cq)).collect();
        let mut out = [Completion::default(); 16];
        assert_eq!(cq.poll(&mut out), 0);
        conns[20].fill();
        let mut taken = 0;
        for _ in 0..3 {
            conns[0].fill();
            taken += cq.poll(&mut out);
        }
        assert!(conns[20].watch.has_no_progress(), "the poll after that of connection 0 begins with connection 1");
        assert_eq!(taken, 3, "one completion in each poll");
    }

    #[test]
    fn empty_check_watches_all_polled_connections() {
        let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
        let check = cq.empty_check().unwrap();
        let slot: &'static AtomicPtr<EmptyCheck> = Box::leak(Box::new(AtomicPtr::new(std::ptr::null_mut())));
        QueueCheck::new(check, slot).set_queued(false);
        let mut out = [Completion::default(); 16];
        let poll = |out: &mut [Completion]| cq.poll(out);
        assert_eq!((check.is_empty(), poll(&mut out), check.is_empty()), (false, 0, true), "after the first poll");
        let conns: Vec<_> = (0..3).map(|_| FakeConnection::new(&cq, true)).collect();
        for conn in &conns {
            conn.watch.set_wait(AwaitedProgress::Nothing);
            cq.0.add_active(conn.clone());
            assert!(!check.is_empty(), "the new connection is not watched yet");
            assert_eq!((poll(&mut out), check.is_empty()), (0, true));
        }
        for conn in &conns {
            conn.watch.set_wait(AwaitedProgress::Other);
            assert_eq!((check.is_empty(), poll(&mut out)), (false, 16));
            conn.watch.set_wait(AwaitedProgress::Nothing);
            assert!(check.is_empty());
        }
        cq.0.push(Completion::default());
        assert_eq!((check.is_empty(), poll(&mut out), check.is_empty()), (false, 1, true));
        assert!(cq.arm(ArmMode::All).unwrap() && !check.is_empty(), "after an arm, the next dequeue polls");
    }
}
