//! Which threads poll, and so make the device's progress in place of the engine.
//!
//! While a consumer polls, the engine does not watch the data sockets: it standbys, and checks after each standby whether somebody still
//! polls. A thread that goes to sleep in a wait says so first, and the engine then watches the sockets unless another thread
//! polled within the last [`POLL_LIFETIME`]. Polls count by thread, not by queue: a thread that sleeps polls none of its queues. A
//! thread that computes, or sleeps outside of DAT, says nothing: the end of the standby finds that out. The engine sleeps until a
//! moment that everybody can read, so that a post wakes it only for work that is due before. Pure state, no I/O.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::proto::{MICROS, MILLIS, Nanos};

/// A thread polls if its last poll is not older than this. Threads that spin poll every microsecond.
pub(crate) const POLL_LIFETIME: Nanos = 100 * MICROS;
/// The longest standby of the engine.
pub(crate) const MAX_STANDBY: Nanos = 2 * MILLIS;

/// Threads that are told apart. More of them share a slot: one that sleeps then hides another until its next poll.
const SLOTS: usize = 16;

thread_local! {
    /// The thread's number in every [`Polling`] of the process, from 1; 0: it has none yet.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// When a thread polled last; 0: it sleeps, or has never polled. Each on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(AtomicU64);

/// Polls of all threads, and the engine's sleep.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    slots: [Slot; SLOTS],
    /// The engine wakes by itself at this time at the latest; 0: it is awake, and looks around before it sleeps.
    wakes_at: AtomicU64,
    /// The engine's sleep ends when data come.
    watches_socket: AtomicBool,
}

/// Whether the engine leaves the data sockets to consumers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PollState {
    /// Some thread polls.
    Polled,
    /// None does, and each has said so or has never polled.
    Idle,
    /// None does, and the last one stopped without saying so.
    Abandoned,
}

impl Polling {
    /// The calling thread polls.
    #[inline]
    pub(crate) fn note_poll(&self, now: Nanos) {
        self.own().store(now, Ordering::Relaxed);
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        let number = NUMBER.get();
        &self.slots[if number == 0 { number_thread() } else { number } % SLOTS].0
    }

    /// The calling thread is about to sleep. True: it was the last that polled, so the engine must watch the sockets.
    pub(crate) fn stop(&self, now: Nanos) -> bool {
        // Pairs with `sleeps`: either the engine sees it, or we see how the engine sleeps.
        self.own().swap(0, Ordering::SeqCst) != 0 && self.state(now) != PollState::Polled
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

    /// The engine takes over from threads that have stopped without saying so.
    pub(crate) fn take_over(&self, now: Nanos) {
        for Slot(slot) in &self.slots {
            let last = slot.load(Ordering::Relaxed);
            if last != 0 && now > last.saturating_add(POLL_LIFETIME) {
                // Unless it polls again just now.
                let _ = slot.compare_exchange(last, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// The engine is about to sleep until then. It looks around once more after this. `watches_socket`: data wake it.
    pub(crate) fn set_sleeping(&self, until: Nanos, watches_socket: bool) {
        self.watches_socket.store(watches_socket, Ordering::SeqCst);
        self.wakes_at.store(until, Ordering::SeqCst);
    }

    /// The engine is awake.
    pub(crate) fn set_awake(&self) {
        self.wakes_at.store(0, Ordering::SeqCst);
    }

    /// Whether the engine must be woken for work that is due then. A thread that polls does it in time, and the engine ends its
    /// standby soon if that thread stops.
    pub(crate) fn must_wake_for(&self, deadline: Nanos, now: Nanos) -> bool {
        let wakes_at = self.wakes_at.load(Ordering::SeqCst);
        deadline < wakes_at && (deadline.saturating_add(MAX_STANDBY) < wakes_at || !self.is_polled(now))
    }

    /// Whether the engine must be woken to take over what is due then.
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

    /// Runs on a thread of its own.
    fn elsewhere<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn the_last_thread_that_sleeps_leaves_the_sockets_to_the_engine() {
        let polling = Polling::default();
        assert!(!polling.stop(1) && polling.state(1) == PollState::Idle, "a thread that never polled stops nothing");
        polling.note_poll(1);
        elsewhere(|| polling.note_poll(2));
        assert!(!polling.stop(3) && polling.is_polled(3), "the other goes on");
        polling.note_poll(4);
        assert!(!polling.stop(5));
        assert!(!polling.stop(5 + POLL_LIFETIME), "once");
        polling.note_poll(6 + POLL_LIFETIME);
        assert!(polling.stop(7 + POLL_LIFETIME), "the other has stopped since");
    }

    #[test]
    fn a_thread_that_sleeps_polls_none_of_its_queues() {
        let polling = Polling::default();
        (1..=3).for_each(|at| polling.note_poll(at));
        assert!(polling.stop(4) && polling.state(4) == PollState::Idle);
    }

    #[test]
    fn a_thread_that_stops_without_saying_so_is_noticed() {
        let polling = Polling::default();
        polling.note_poll(1);
        assert_eq!(
            (polling.state(1 + POLL_LIFETIME), polling.state(2 + POLL_LIFETIME)),
            (PollState::Polled, PollState::Abandoned)
        );
        elsewhere(|| polling.note_poll(2 + POLL_LIFETIME));
        polling.take_over(2 + POLL_LIFETIME);
        assert!(polling.is_polled(2 + POLL_LIFETIME), "what goes on is not taken over");
        polling.take_over(3 + 2 * POLL_LIFETIME);
        assert_eq!(polling.state(3 + 2 * POLL_LIFETIME), PollState::Idle);
        assert!(!polling.stop(4 + 2 * POLL_LIFETIME), "what was taken over is not given up again");
    }

    #[test]
    fn the_engine_is_woken_only_for_work_that_is_due_before_it_wakes() {
        let polling = Polling::default();
        assert!(!polling.must_wake_for(0, 0), "it is awake");
        polling.set_sleeping(10 * MILLIS, true);
        assert!(polling.must_wake_for(10 * MILLIS - 1, 1) && !polling.must_wake_for(10 * MILLIS, 1));
        polling.note_poll(1);
        assert!(!polling.must_wake_for(9 * MILLIS, 1), "a thread that polls sees to it");
        assert!(polling.must_wake_for(7 * MILLIS, 1), "but may stop: the engine must come by");
        assert!(polling.must_wake_for(9 * MILLIS, 2 + POLL_LIFETIME), "and has stopped");
        polling.set_awake();
        assert!(!polling.must_wake_for(0, 1));
    }

    #[test]
    fn an_engine_that_takes_over_must_listen_and_know_the_deadline() {
        let polling = Polling::default();
        assert!(!polling.must_wake_to_take_over(Some(0)), "it is awake");
        polling.set_sleeping(100, false);
        assert!(polling.must_wake_to_take_over(None));
        polling.set_sleeping(100, true);
        assert!(!polling.must_wake_to_take_over(None) && !polling.must_wake_to_take_over(Some(100)));
        assert!(polling.must_wake_to_take_over(Some(99)));
    }
}
