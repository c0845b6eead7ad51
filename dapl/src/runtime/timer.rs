//! Deadlines: connect timeouts, and the checks of traces (`stats/trace/watch`). [`Deadlines`] is a set sorted by time;
//! one thread calls the targets of expired deadlines.
//!
//! `ep` arms a deadline for each connect with a finite timeout, and cancels it when the attempt ends. The first [`arm`]
//! starts the thread. The thread ends after `LINGER` without deadlines, or when an IA is closed while there are none.
//! It is woken only when a new deadline is the earliest one, or to end it. It runs callbacks without locks. A cancel
//! does not wait for a callback in progress. The callback of a connect timeout passes the number of the attempt; the EP
//! compares it under its lock, and ignores a stale number. Deadlines pending at exit are discarded.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Resource, Result};
use crate::runtime::thread;

/// The target of a deadline.
pub trait OnExpiry: Send + Sync {
    /// Called on the timer thread without locks. `attempt` is the argument of [`arm`].
    fn expired(&self, attempt: u32);
}

/// Identifies a deadline.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeadlineId(Instant, u64);

/// Calls `target.expired(attempt)` after the time `after`, unless the deadline is cancelled or the target was dropped.
///
/// Errors: `Exhausted(Memory)` if the timer thread cannot be started.
pub fn arm(after: Duration, target: Weak<dyn OnExpiry>, attempt: u32) -> Result<DeadlineId> {
    let mut clock = lock_for_fork();
    clock.ensure_thread()?;
    let (ticket, is_head) = clock.deadlines.insert(Instant::now() + after, ArmedDeadline { target, attempt });
    if is_head {
        WAKE.notify_one();
    }
    Ok(ticket)
}

/// Removes a deadline; no effect if it has expired. The thread is not woken: it may wake up once at the removed
/// deadline.
pub fn cancel(ticket: DeadlineId) {
    lock_for_fork().deadlines.remove(ticket);
}

/// Ends the timer thread and waits for it, if there are no deadlines. Called when an IA is closed, so that a program
/// that has closed all its IAs has no thread of this library.
pub fn end_if_idle() {
    let mut clock = lock_for_fork();
    if clock.owner != std::process::id() || clock.deadlines.next().is_some() {
        return;
    }
    clock.owner = 0;
    clock.generation += 1;
    let thread = clock.thread.take();
    WAKE.notify_all();
    drop(clock);
    thread.into_iter().for_each(thread::join);
}

/// A set sorted by time. Entries with equal times keep the order of insertion. All operations are O(log n).
#[derive(Debug)]
pub struct Deadlines<T> {
    entries: BTreeMap<DeadlineId, T>,
    sequence: u64,
}

impl<T> Deadlines<T> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Deadlines { entries: BTreeMap::new(), sequence: 0 }
    }

    /// Adds an entry; returns true if it is now the earliest.
    pub fn insert(&mut self, at: Instant, what: T) -> (DeadlineId, bool) {
        self.sequence += 1;
        let ticket = DeadlineId(at, self.sequence);
        self.entries.insert(ticket, what);
        (ticket, self.entries.first_key_value().is_some_and(|(first, _)| *first == ticket))
    }

    /// Removes an entry, if it has not expired.
    pub fn remove(&mut self, ticket: DeadlineId) -> Option<T> {
        self.entries.remove(&ticket)
    }

    pub fn next(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|(ticket, _)| ticket.0)
    }

    /// Removes and returns the earliest deadline, if it is due.
    pub fn expire(&mut self, now: Instant) -> Option<T> {
        let first = self.entries.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Time without deadlines after which the thread ends. Connects come in bursts, and a program that has stopped
/// connecting should not keep a thread.
const LINGER: Duration = Duration::from_secs(2);

// A mutex of the standard library has no list of waiters, so a forked child can unlock it.
static CLOCK: Mutex<TimerState> =
    Mutex::new(TimerState { deadlines: Deadlines::new(), owner: 0, generation: 0, thread: None });
static WAKE: Condvar = Condvar::new();

/// Locks the deadlines while the process forks.
pub(crate) fn lock_for_fork() -> MutexGuard<'static, TimerState> {
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ArmedDeadline {
    target: Weak<dyn OnExpiry>,
    attempt: u32,
}

pub(crate) struct TimerState {
    deadlines: Deadlines<ArmedDeadline>,
    /// Id of the process in which the timer thread runs; 0 if there is none. A forked child inherits no thread.
    owner: u32,
    /// Number of timer threads that were stopped. A thread ends when this differs from the value at its start.
    generation: u64,
    thread: Option<JoinHandle<()>>,
}

impl TimerState {
    fn ensure_thread(&mut self) -> Result<()> {
        let process = std::process::id();
        if self.owner == process {
            return Ok(());
        }
        self.deadlines = Deadlines::new(); // a forked child drops its parent's deadlines
        let generation = self.generation;
        let thread = thread::spawn("dapl-timer", move || run(generation)).map_err(|error| {
            log::error!(
                "cannot start the timer thread: {error}; dat_ep_connect with a timeout fails, and traces are not \
                 checked; allow more processes (ulimit -u)"
            );
            Error::Exhausted(Resource::Memory)
        })?;
        // In a forked child the old handle refers to the parent's thread, which the child can neither join nor detach.
        std::mem::forget(self.thread.replace(thread));
        self.owner = process;
        Ok(())
    }
}

fn run(generation: u64) {
    let mut clock = lock_for_fork();
    while clock.generation == generation {
        if let Some(alarm) = clock.deadlines.expire(Instant::now()) {
            drop(clock);
            if let Some(target) = alarm.target.upgrade() {
                target.expired(alarm.attempt);
            }
            clock = lock_for_fork();
            continue;
        }
        let next = clock.deadlines.next();
        let pause = next.map_or(LINGER, |at| at.saturating_duration_since(Instant::now()));
        let (back, paused) = WAKE.wait_timeout(clock, pause).unwrap_or_else(PoisonError::into_inner);
        clock = back;
        if next.is_none() && paused.timed_out() && clock.deadlines.next().is_none() {
            clock.owner = 0;
            clock.thread = None;
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn earliest_deadline_comes_first_and_equal_ones_keep_their_order() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut deadlines = Deadlines::new();
        assert!(deadlines.insert(at(30), "c").1);
        assert!(deadlines.insert(at(10), "a").1);
        assert!(!deadlines.insert(at(10), "b").1, "after the equal deadline");
        assert_eq!(deadlines.next(), Some(at(10)));
        assert_eq!(deadlines.expire(at(9)), None);
        assert_eq!(deadlines.expire(at(30)), Some("a"));
        assert_eq!(deadlines.expire(at(30)), Some("b"));
        assert_eq!(deadlines.expire(at(30)), Some("c"));
        assert_eq!(deadlines.expire(at(30)), None);
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn a_removed_deadline_does_not_expire_and_can_be_removed_again() {
        let now = Instant::now();
        let mut deadlines = Deadlines::new();
        let (first, _) = deadlines.insert(now, 1);
        deadlines.insert(now, 2);
        assert_eq!(deadlines.remove(first), Some(1));
        assert_eq!(deadlines.remove(first), None);
        assert_eq!(deadlines.expire(now), Some(2));
    }

    struct Recorder(mpsc::Sender<u32>);
    impl OnExpiry for Recorder {
        fn expired(&self, attempt: u32) {
            let _ = self.0.send(attempt);
        }
    }

    #[test]
    fn timer_thread_calls_in_deadline_order_and_skips_cancelled_ones() {
        let (sender, receiver) = mpsc::channel();
        let recorder: Arc<dyn OnExpiry> = Arc::new(Recorder(sender));
        let gone: Arc<dyn OnExpiry> = Arc::new(Recorder(mpsc::channel().0));
        arm(Duration::from_millis(40), Arc::downgrade(&recorder), 3).unwrap();
        let cancelled = arm(Duration::from_millis(20), Arc::downgrade(&recorder), 2).unwrap();
        arm(Duration::from_millis(1), Arc::downgrade(&gone), 9).unwrap();
        arm(Duration::from_millis(1), Arc::downgrade(&recorder), 1).unwrap();
        drop(gone);
        cancel(cancelled);
        let limit = Duration::from_secs(30);
        assert_eq!((receiver.recv_timeout(limit), receiver.recv_timeout(limit)), (Ok(1), Ok(3)));
    }

    #[test]
    fn idle_timer_thread_ends_on_request_and_starts_again() {
        let is_running = || lock_for_fork().thread.is_some();
        let arm = || arm(Duration::from_secs(1000), Weak::<Recorder>::new(), 0).unwrap();
        for _ in 0..2 {
            let ticket = arm();
            end_if_idle();
            assert!(is_running(), "a deadline is pending");
            cancel(ticket);
            // Other tests run concurrently and may have deadlines.
            while is_running() {
                end_if_idle();
            }
        }
    }
}
