//! Records which threads poll. While a consumer's thread polls, it receives and sends for all connections, and the
//! engine thread is in standby: it sleeps without watching the data socket, and checks after each sleep whether a
//! thread still polls.
//!
//! A thread that is about to sleep in a wait calls [`Polling::stop`]. The engine then watches the socket, unless
//! another thread has polled within the last [`POLL_LIFETIME`]. A thread that computes, or sleeps outside of DAT, does
//! not call `stop`. The engine detects this at the end of its standby sleep. Polls are recorded by thread, not by
//! queue, because a sleeping thread polls none of its queues.
//!
//! The engine publishes the time until which it sleeps, so that a post wakes it only for work that is due earlier. This
//! module does no I/O.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::proto::{MICROS, MILLIS, Nanos};

/// Time in nanoseconds after its last poll during which a thread counts as polling. Threads that spin poll every
/// microsecond.
pub(crate) const POLL_LIFETIME: Nanos = 100 * MICROS;
/// Maximum length of a standby sleep of the engine, in nanoseconds.
pub(crate) const MAX_STANDBY: Nanos = 2 * MILLIS;

/// Number of slots for poll times. With more threads, several threads share a slot. A thread that goes to sleep clears
/// its slot, so the other threads of the slot count as polling only after their next poll.
const SLOTS: usize = 16;

thread_local! {
    /// Number of the calling thread, which selects its slot. Numbers start at 1. A thread without a number has 0.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Time of the last poll of a thread, or 0 if the thread has stopped or never polled. Each slot has its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PollSlot(AtomicU64);

/// Poll times of all threads, and the time until which the engine sleeps.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    slots: [PollSlot; SLOTS],
    /// Time at which the engine's sleep ends if nothing wakes the engine, or 0 while the engine is awake. An awake
    /// engine checks for work before it sleeps.
    wakes_at: AtomicU64,
    /// Whether an arriving datagram wakes the engine.
    watches_socket: AtomicBool,
}

/// Whether consumers poll, from the poll times of all threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PollState {
    /// At least one thread polls.
    Polled,
    /// No thread polls. Each thread that polled before has called `stop`, or `take_over` has cleared its slot.
    Idle,
    /// No thread polls, and at least one thread stopped polling without calling `stop`.
    Abandoned,
}

impl Polling {
    /// Records that the calling thread polls.
    #[inline]
    pub(crate) fn record_poll(&self, now: Nanos) {
        self.own_slot().store(now, Ordering::Relaxed);
    }

    #[inline]
    fn own_slot(&self) -> &AtomicU64 {
        let number = NUMBER.get();
        &self.slots[if number == 0 { number_thread() } else { number } % SLOTS].0
    }

    /// Records that the calling thread stops polling. Returns true if it had polled and no other thread polls. The
    /// engine must then watch the socket.
    pub(crate) fn stop(&self, now: Nanos) -> bool {
        // Pairs with `set_sleeping`: either the engine's later check of the slots sees this store, or this thread sees
        // that the engine sleeps.
        self.own_slot().swap(0, Ordering::SeqCst) != 0 && self.state(now) != PollState::Polled
    }

    pub(crate) fn state(&self, now: Nanos) -> PollState {
        let mut state = PollState::Idle;
        for slot in &self.slots {
            match slot.0.load(Ordering::SeqCst) {
                0 => {}
                last if now <= last.saturating_add(POLL_LIFETIME) => return PollState::Polled,
                _ => state = PollState::Abandoned,
            }
        }
        state
    }

    pub(crate) fn is_polled(&self, now: Nanos) -> bool {
        self.state(now) == PollState::Polled
    }

    /// Clears the slots of threads that have stopped polling without calling `stop`. Called by the engine.
    pub(crate) fn take_over(&self, now: Nanos) {
        for PollSlot(slot) in &self.slots {
            let last = slot.load(Ordering::Relaxed);
            if last != 0 && now > last.saturating_add(POLL_LIFETIME) {
                // The exchange fails if the thread has polled again, and then the thread counts as polling.
                let _ = slot.compare_exchange(last, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// Publishes that the engine sleeps until `until`, and whether an arriving datagram ends the sleep. The engine
    /// checks for work once more after this call.
    pub(crate) fn set_sleeping(&self, until: Nanos, watches_socket: bool) {
        self.watches_socket.store(watches_socket, Ordering::SeqCst);
        self.wakes_at.store(until, Ordering::SeqCst);
    }

    pub(crate) fn set_awake(&self) {
        self.wakes_at.store(0, Ordering::SeqCst);
    }

    /// Whether the engine must be woken for work that is due at `deadline`, because the engine sleeps longer.
    ///
    /// Returns false if a thread polls and the sleep ends within [`MAX_STANDBY`] after the deadline. The polling thread
    /// does the work then. If it stops polling, the work is late by at most that time.
    pub(crate) fn must_wake_for(&self, deadline: Nanos, now: Nanos) -> bool {
        let wakes_at = self.wakes_at.load(Ordering::SeqCst);
        deadline < wakes_at && (deadline.saturating_add(MAX_STANDBY) < wakes_at || !self.is_polled(now))
    }

    /// Whether the engine must be woken because the last thread stops polling: the engine sleeps, and would miss
    /// arriving datagrams or `deadline`, the next deadline of a connection.
    pub(crate) fn must_wake_to_take_over(&self, deadline: Option<Nanos>) -> bool {
        let wakes_at = self.wakes_at.load(Ordering::SeqCst);
        wakes_at != 0
            && (!self.watches_socket.load(Ordering::SeqCst) || deadline.is_some_and(|deadline| deadline < wakes_at))
    }
}

#[cold]
fn number_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_other_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn stop_returns_true_only_for_the_last_polling_thread() {
        let polling = Polling::default();
        assert!(!polling.stop(1) && polling.state(1) == PollState::Idle, "a thread that never polled does not stop");
        polling.record_poll(1);
        on_other_thread(|| polling.record_poll(2));
        assert!(!polling.stop(3) && polling.is_polled(3), "the other thread polls");
        polling.record_poll(4);
        assert!(!polling.stop(5));
        assert!(!polling.stop(5 + POLL_LIFETIME), "the thread has stopped already");
        polling.record_poll(6 + POLL_LIFETIME);
        assert!(polling.stop(7 + POLL_LIFETIME), "the poll of the other thread has expired");
    }

    #[test]
    fn stop_clears_all_polls_of_the_thread() {
        let polling = Polling::default();
        (1..=3).for_each(|at| polling.record_poll(at));
        assert!(polling.stop(4) && polling.state(4) == PollState::Idle);
    }

    #[test]
    fn polls_of_a_thread_that_stops_silently_expire_and_are_taken_over() {
        let polling = Polling::default();
        polling.record_poll(1);
        assert_eq!(
            (polling.state(1 + POLL_LIFETIME), polling.state(2 + POLL_LIFETIME)),
            (PollState::Polled, PollState::Abandoned)
        );
        on_other_thread(|| polling.record_poll(2 + POLL_LIFETIME));
        polling.take_over(2 + POLL_LIFETIME);
        assert!(polling.is_polled(2 + POLL_LIFETIME), "a polling thread is not taken over");
        polling.take_over(3 + 2 * POLL_LIFETIME);
        assert_eq!(polling.state(3 + 2 * POLL_LIFETIME), PollState::Idle);
        assert!(!polling.stop(4 + 2 * POLL_LIFETIME), "a thread that was taken over does not stop again");
    }

    #[test]
    fn engine_is_woken_only_for_work_due_before_its_sleep_ends() {
        let polling = Polling::default();
        assert!(!polling.must_wake_for(0, 0), "the engine is awake");
        polling.set_sleeping(10 * MILLIS, true);
        assert!(polling.must_wake_for(10 * MILLIS - 1, 1) && !polling.must_wake_for(10 * MILLIS, 1));
        polling.record_poll(1);
        assert!(!polling.must_wake_for(9 * MILLIS, 1), "the polling thread does the work");
        assert!(polling.must_wake_for(7 * MILLIS, 1), "a polling thread may stop before that");
        assert!(polling.must_wake_for(9 * MILLIS, 2 + POLL_LIFETIME), "the thread has stopped");
        polling.set_awake();
        assert!(!polling.must_wake_for(0, 1));
    }

    #[test]
    fn engine_is_woken_to_take_over_only_if_socket_or_deadline_is_unwatched() {
        let polling = Polling::default();
        assert!(!polling.must_wake_to_take_over(Some(0)), "the engine is awake");
        polling.set_sleeping(100, false);
        assert!(polling.must_wake_to_take_over(None));
        polling.set_sleeping(100, true);
        assert!(!polling.must_wake_to_take_over(None) && !polling.must_wake_to_take_over(Some(100)));
        assert!(polling.must_wake_to_take_over(Some(99)));
    }
}
