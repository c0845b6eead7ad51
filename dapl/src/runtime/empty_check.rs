//! Detects without a lock that an EVD has no event, so that an unsuccessful dequeue is cheap.
//!
//! If the transport supports empty checks, an EVD has an [`EmptyCheck`], and each connection that the EVD polls has a
//! [`RingWatch`]. Both consist of words. Each word except the counters `passes` and `polls` has one writer at a time:
//! the holder of the lock for the data that the word describes. A dequeue reads the words, and acquires no lock if all
//! of them indicate that nothing has arrived. Otherwise it acquires the locks and searches for events.
//!
//! A completion moves from a ring to the CQ's list of ready completions, and from there to the queue of the EVD. Each
//! step sets the word of its destination before the word of its origin (Release), and a dequeue reads the words in the
//! order in which completions move (Acquire). So the dequeue finds every completion that arrived before the call.
//!
//! The memory of checks and watches is never freed ([`Pooled`]), and the handle table entry of an EVD points to its
//! check, so that a dequeue needs no reference to the EVD. If the EVD is freed during a dequeue, the dequeue may return
//! either QUEUE_EMPTY or the error for an invalid handle.

use std::ptr;
use std::sync::OnceLock;

use crate::runtime::pooled::{Pool, Poolable, Pooled};
use crate::runtime::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, StaticMutex};

/// Maximum number of connections that a check covers. An EVD with more connections takes the locks in each dequeue.
pub const WATCHES: usize = 16;

/// Out of this many dequeues that find nothing, one takes the locks, because it may have to yield the CPU
/// (`SharedCpuBackoff`). A power of two.
pub const LOCKED_POLL_INTERVAL: u32 = 1024;

/// The words that dequeues of an EVD read; see the module documentation.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct EmptyCheck {
    /// Number of threads that are making progress without polling this EVD, such as the engine thread. They may
    /// complete receives, so a dequeue must take the locks while this number is not 0.
    passes: AtomicU32,
    /// Set if the list of connections has changed since `watches` was written, or if the next dequeue must poll for
    /// another reason. Then the first watch is `stale`, which makes a dequeue poll. Protected by the lock of the list
    /// of connections.
    is_stale: AtomicU32,
    /// Set if the CQ's list of ready completions is not empty. Protected by the lock of that list.
    has_ready: AtomicU32,
    /// Set if the EVD's queue may contain events, or if an unsuccessful dequeue must do more than return `QUEUE_EMPTY`.
    /// Protected by the lock of the EVD.
    has_queued: AtomicU32,
    /// Number of polls, for `SharedCpuBackoff`. Threads that count at the same time may lose counts.
    polls: AtomicU32,
    /// Number of watches beyond the first two.
    more: AtomicU32,
    watches: [AtomicPtr<RingWatch>; WATCHES],
    /// Placeholder for a missing connection: no ring, no requests.
    nothing: RingWatch,
    /// Placeholder for the first connection while the watches are stale: it makes a dequeue poll.
    stale: RingWatch,
}

/// The words that dequeues read for one connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RingWatch {
    /// Points to the first word of the ring's next slot, in memory that is never unmapped.
    next: AtomicPtr<AtomicU64>,
    /// Upper half of the slot's first word after the peer has filled the slot.
    lap: AtomicU32,
    /// State of the local requests that wait for the peer: [`IDLE`], [`COUNTS`] or [`MUST_POLL`].
    requests: AtomicU32,
    /// Points to the peer's count, the number of requests that the peer has processed, in memory that is never
    /// unmapped.
    taken: AtomicPtr<AtomicU64>,
    /// Low half of the peer's count up to which local requests have been completed.
    known: AtomicU32,
    /// Low half of the peer's count in the latest message that carried it.
    carried: AtomicU32,
    /// A word that never changes. `next` and `taken` point to it while there is no slot or no count to watch.
    zero: AtomicU64,
}

/// No request waits.
const IDLE: u32 = 0;
/// Requests complete when the peer's count grows.
const COUNTS: u32 = 1;
/// Only a poll can find out whether requests have progressed.
const MUST_POLL: u32 = 2;

/// What the outstanding requests of a connection wait for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum AwaitedProgress {
    /// No request waits.
    Nothing = IDLE,
    /// Requests wait until the number of requests that the peer has processed grows.
    Count = COUNTS,
    /// Requests wait for something else, or the connection has ended. Only a poll can detect progress.
    Other = MUST_POLL,
}

impl Default for RingWatch {
    fn default() -> Self {
        RingWatch {
            next: AtomicPtr::new(ptr::null_mut()),
            lap: AtomicU32::new(0),
            requests: AtomicU32::new(IDLE),
            taken: AtomicPtr::new(ptr::null_mut()),
            known: AtomicU32::new(0),
            carried: AtomicU32::new(0),
            zero: AtomicU64::new(0),
        }
    }
}

impl Poolable for RingWatch {
    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<RingWatch> = StaticMutex::new(Vec::new());
        &POOL
    }

    /// Detaches from the ring and from all requests.
    fn clear(&self) {
        self.requests.store(IDLE, Ordering::Relaxed);
        self.detach();
    }
}

impl RingWatch {
    /// Detaches from the ring and from the peer's count. The field `requests` is unchanged.
    pub fn detach(&self) {
        let zero = ptr::from_ref(&self.zero).cast_mut();
        self.lap.store(1, Ordering::Relaxed);
        self.next.store(zero, Ordering::Release);
        self.taken.store(zero, Ordering::Release);
        self.known.store(0, Ordering::Relaxed);
        self.carried.store(0, Ordering::Relaxed);
    }

    /// Watches a slot. `lap` is the upper half of the slot's first word after the peer has filled the slot. Called
    /// under the lock of the receive direction, after the content of earlier slots was delivered.
    ///
    /// # Safety
    /// The word is never unmapped.
    #[inline(always)]
    pub unsafe fn set_next(&self, word: &AtomicU64, lap: u32) {
        self.lap.store(lap, Ordering::Relaxed);
        self.next.store(ptr::from_ref(word).cast_mut(), Ordering::Release);
    }

    /// Watches the peer's count, which must be 0 now. Called under the lock of the send direction.
    ///
    /// # Safety
    /// The word is never unmapped.
    pub unsafe fn set_consumed_word(&self, word: &AtomicU64) {
        self.taken.store(ptr::from_ref(word).cast_mut(), Ordering::Release);
    }

    /// Records the peer's count up to which requests have been completed. Called under the lock of the send direction,
    /// after the completions were added to the CQ's list.
    #[inline(always)]
    pub fn set_known(&self, taken: u64) {
        self.known.store(taken as u32, Ordering::Release);
    }

    /// Records what the local requests wait for. Called under the lock of the send direction.
    #[inline(always)]
    pub fn set_wait(&self, wait: AwaitedProgress) {
        self.requests.store(wait as u32, Ordering::Release);
    }

    /// Whether requests wait for the peer's count or for a poll.
    #[inline(always)]
    pub fn has_requests(&self) -> bool {
        self.requests.load(Ordering::Acquire) != IDLE
    }

    /// Stores the low half of the peer's count from a message. Called under the lock of the receive direction.
    #[inline(always)]
    pub fn set_carried_ack(&self, taken: u32) {
        self.carried.store(taken, Ordering::Release);
    }

    /// Returns the count that [`Self::set_carried_ack`] has stored.
    #[inline(always)]
    pub fn carried_ack(&self) -> u32 {
        self.carried.load(Ordering::Acquire)
    }

    /// Whether the next slot is empty, and certainly no request has progressed.
    #[inline(always)]
    pub fn has_no_progress(&self) -> bool {
        !self.has_entry() && self.do_requests_wait()
    }

    /// Whether the peer has filled the next slot.
    #[inline(always)]
    fn has_entry(&self) -> bool {
        // SAFETY: `set_next` was given a word that is never unmapped; the initial word is a field of this object, whose
        // memory is never freed.
        let next = unsafe { &*self.next.load(Ordering::Acquire) };
        (next.load(Ordering::Acquire) >> 32) as u32 == self.lap.load(Ordering::Relaxed)
    }

    /// Whether certainly no local request has progressed since the last poll.
    #[inline(always)]
    fn do_requests_wait(&self) -> bool {
        match self.requests.load(Ordering::Acquire) {
            IDLE => true,
            COUNTS => {
                let known = self.known.load(Ordering::Acquire);
                // SAFETY: `set_consumed_word` was given a word that is never unmapped; the initial word is a field of
                // this object, whose memory is never freed.
                let taken = unsafe { &*self.taken.load(Ordering::Acquire) };
                // The peer publishes its count either in shared memory or in a message, not both, so either value may
                // be the older one.
                let (published, carried) = (taken.load(Ordering::Acquire) as u32, self.carried_ack());
                published.wrapping_sub(known) as i32 <= 0 && carried.wrapping_sub(known) as i32 <= 0
            }
            _ => false,
        }
    }
}

/// Replaces the check in an EVD's handle table entry while events are queued, so that dequeues read fewer words.
#[derive(Debug)]
pub struct QueueCheck {
    check: &'static EmptyCheck,
    /// A check that never reports an empty queue.
    never: &'static EmptyCheck,
    /// Pointer in the handle table entry of the EVD that `dat_evd_dequeue` reads to find the check.
    place: &'static AtomicPtr<EmptyCheck>,
}

impl QueueCheck {
    pub fn new(check: &'static EmptyCheck, place: &'static AtomicPtr<EmptyCheck>) -> Self {
        QueueCheck { check, never: EmptyCheck::never(), place }
    }

    /// Records whether the EVD's queue may contain events. The caller holds the EVD's lock. True is set before an event
    /// is added. False is set only by a dequeue or wait, because its reference to the EVD keeps `place` valid.
    ///
    /// While true, `place` points to the check `never`, so that a dequeue reads one word only. `has_queued` is set too,
    /// because a concurrent dequeue may have read the former value of `place`.
    #[inline(always)]
    pub fn set_queued(&self, may_be: bool) {
        self.check.has_queued.store(u32::from(may_be), Ordering::Release);
        let check = if may_be { self.never } else { self.check };
        self.place.store(ptr::from_ref(check).cast_mut(), Ordering::Release);
    }

    /// Makes concurrent dequeues wait for the EVD's lock while the holder of that lock moves completions from the CQ to
    /// the EVD. The holder calls [`Self::set_queued`] afterwards.
    #[inline(always)]
    pub fn begin_move(&self) {
        self.check.has_queued.store(1, Ordering::Release);
    }

    pub fn polls(&self) -> u32 {
        self.check.polls()
    }
}

impl Default for EmptyCheck {
    fn default() -> Self {
        EmptyCheck {
            passes: AtomicU32::new(0),
            is_stale: AtomicU32::new(1),
            has_ready: AtomicU32::new(0),
            has_queued: AtomicU32::new(1),
            polls: AtomicU32::new(0),
            more: AtomicU32::new(0),
            watches: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            nothing: RingWatch::default(),
            stale: RingWatch::default(),
        }
    }
}

impl Poolable for EmptyCheck {
    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<EmptyCheck> = StaticMutex::new(Vec::new());
        &POOL
    }

    fn clear(&self) {
        self.has_ready.store(0, Ordering::Relaxed);
        self.has_queued.store(1, Ordering::Relaxed);
        self.polls.store(0, Ordering::Relaxed);
        self.nothing.clear();
        self.stale.clear();
        self.stale.set_wait(AwaitedProgress::Other);
        self.set_watches(std::iter::empty());
        self.set_stale();
    }
}

impl EmptyCheck {
    /// Returns the check that never reports an EVD as empty. Used for an EVD whose transport has no check, or whose
    /// queue contains events. Many threads read this check, and none writes it.
    pub fn never() -> &'static EmptyCheck {
        static NEVER: OnceLock<&'static EmptyCheck> = OnceLock::new();
        let create = || {
            let never = Pooled::<EmptyCheck>::leak();
            never.begin_pass();
            never
        };
        // Loom forbids that one model uses an object of another.
        if cfg!(loom) { create() } else { NEVER.get_or_init(create) }
    }

    /// Whether a dequeue would certainly find no event. Returns false in one of [`LOCKED_POLL_INTERVAL`] calls.
    ///
    /// Optimised for at most two connections, no outstanding requests, and few registers.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        if self.passes.load(Ordering::Acquire) != 0 {
            return false;
        }
        if self.count_poll().is_multiple_of(LOCKED_POLL_INTERVAL) {
            return false;
        }
        let [first, second] = [self.watch_at(0), self.watch_at(1)];
        if first.has_entry() || second.has_entry() {
            return false;
        }
        let requests = first.requests.load(Ordering::Acquire) | second.requests.load(Ordering::Acquire);
        if requests != 0 && !(first.do_requests_wait() && second.do_requests_wait()) {
            return false;
        }
        let found = self.has_ready.load(Ordering::Acquire) | self.has_queued.load(Ordering::Acquire);
        let more = self.more.load(Ordering::Relaxed);
        found | more == 0 || found == 0 && self.is_empty_beyond(more)
    }

    /// Whether a poll for an observer of the EVD, such as a CNO, would certainly find no completion. The EVD's queue
    /// may hold events that were already reported to the observer.
    pub fn has_no_completion(&self) -> bool {
        if self.has_pass() {
            return false;
        }
        self.count_poll();
        let count = WATCHES.min(2 + self.more.load(Ordering::Relaxed) as usize);
        (0..count).all(|n| self.watch_at(n).has_no_progress()) && self.has_ready.load(Ordering::Acquire) == 0
    }

    /// Like [`Self::is_empty`], for all connections after the second.
    #[inline(always)]
    fn is_empty_beyond(&self, more: u32) -> bool {
        let mut n = 2;
        while n < WATCHES && n - 2 < more as usize {
            if !self.watch_at(n).has_no_progress() {
                return false;
            }
            n += 1;
        }
        // The words are read a second time, because a completion may have moved from a ring to the list or the queue in
        // the meantime.
        self.has_ready.load(Ordering::Acquire) | self.has_queued.load(Ordering::Acquire) == 0
    }

    #[inline(always)]
    fn watch_at(&self, n: usize) -> &RingWatch {
        // SAFETY: `set_watches` has stored a reference to an object whose memory is never freed. It runs before any
        // other thread can reach this check.
        unsafe { &*self.watches[n].load(Ordering::Acquire) }
    }

    /// Counts a poll, and returns the number of polls so far.
    #[inline(always)]
    pub fn count_poll(&self) -> u32 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// Number of polls so far.
    #[inline]
    pub fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Records whether the CQ's list has completions. Called under the lock of the list.
    #[inline(always)]
    pub fn set_ready(&self, is_any: bool) {
        self.has_ready.store(u32::from(is_any), Ordering::Release);
    }

    /// Marks the watches as stale, because the list of connections has changed, or because the next dequeue must poll
    /// for another reason. Called under the lock of the list.
    pub fn set_stale(&self) {
        self.is_stale.store(1, Ordering::Relaxed);
        self.watches[0].store(ptr::from_ref(&self.stale).cast_mut(), Ordering::Release);
    }

    /// Whether the watches are stale, so that the next poll must call [`Self::watch`].
    #[inline(always)]
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed) != 0
    }

    /// Watches these connections. If there are more than [`WATCHES`], the watches stay stale, and each dequeue polls.
    /// Called under the lock of the list of connections.
    pub fn watch(&self, connections: impl ExactSizeIterator<Item = &'static RingWatch>) {
        if connections.len() <= WATCHES {
            self.set_watches(connections);
            self.is_stale.store(0, Ordering::Relaxed);
        }
    }

    fn set_watches(&self, mut connections: impl ExactSizeIterator<Item = &'static RingWatch>) {
        self.more.store(connections.len().saturating_sub(2) as u32, Ordering::Relaxed);
        let mut next = || connections.next().map_or(ptr::from_ref(&self.nothing), ptr::from_ref).cast_mut();
        let first = next();
        self.watches[1..].iter().for_each(|place| place.store(next(), Ordering::Release));
        // Written last, because the old first watch marks all watches as stale.
        self.watches[0].store(first, Ordering::Release);
    }

    /// Begins a pass: a thread makes progress without polling this EVD.
    pub fn begin_pass(&self) {
        self.passes.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a pass, after its completions were added to the list.
    pub fn end_pass(&self) {
        self.passes.fetch_sub(1, Ordering::Release);
    }

    /// Whether a pass is in progress.
    #[inline]
    pub fn has_pass(&self) -> bool {
        self.passes.load(Ordering::Acquire) > 0
    }
}

#[cfg(all(test, loom))]
mod interleavings;
#[cfg(all(test, not(loom)))]
mod tests;
