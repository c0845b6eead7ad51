//! Who makes the device progress: a consumer that polls, else the engine.
//!
//! While somebody polls, the engine does not look at the data sockets; it only comes by every few milliseconds to see whether
//! they still poll. When they stop, or go to sleep, it takes over. It sleeps until a moment that everybody can read, so that
//! who posts rings the bell only for something that is due before. Decides and remembers; rings nothing itself.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::proto::{MILLIS, Nanos};

/// How often a polling consumer is looked after.
pub(crate) const TICK: Nanos = 2 * MILLIS;

/// A completion queue's part in it.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// The epoch in which its consumer polls; 0: it does not.
    epoch: AtomicU32,
}

/// What all queues of an IA share.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Raised whenever the engine takes over from consumers that went away without a word; never 0.
    epoch: AtomicU32,
    /// Queues that are polled in this epoch.
    pollers: Mutex<u32>,
    /// There is one.
    polled: AtomicBool,
    /// Counts polls.
    polls: AtomicU32,
    /// The engine wakes by itself at this time at the latest; 0: it is awake, and looks around before it sleeps.
    wakes_at: AtomicU64,
    /// Where it sleeps, what comes in wakes it.
    listens: AtomicBool,
}

impl Default for Polling {
    fn default() -> Self {
        Polling {
            epoch: AtomicU32::new(1),
            pollers: Mutex::new(0),
            polled: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            wakes_at: AtomicU64::new(0),
            listens: AtomicBool::new(false),
        }
    }
}

impl Polling {
    /// A consumer polls this queue.
    #[inline]
    pub(crate) fn polls(&self, poller: &Poller) {
        if poller.epoch.load(Ordering::Relaxed) != self.epoch.load(Ordering::Relaxed) {
            self.begin(poller);
        }
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The engine needs no word: the first thing that comes in wakes it, and then it knows.
    #[cold]
    fn begin(&self, poller: &Poller) {
        let mut pollers = self.pollers.lock();
        let epoch = self.epoch.load(Ordering::Relaxed);
        if poller.epoch.swap(epoch, Ordering::Relaxed) != epoch {
            *pollers += 1;
            self.polled.store(true, Ordering::SeqCst);
        }
    }

    /// Its consumer goes to sleep, or gives it up. True: nobody polls any more, since now.
    pub(crate) fn stops(&self, poller: &Poller) -> bool {
        let mut pollers = self.pollers.lock();
        if poller.epoch.swap(0, Ordering::Relaxed) != self.epoch.load(Ordering::Relaxed) {
            return false;
        }
        *pollers = pollers.saturating_sub(1);
        if *pollers > 0 {
            return false;
        }
        // Pairs with `sleeps`: either the engine sees it, or we see that it does not listen.
        self.polled.store(false, Ordering::SeqCst);
        true
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// The engine begins to come by.
    pub(crate) fn take_note(&self, last: &mut u32) {
        *last = self.polls.load(Ordering::Relaxed);
    }

    /// The engine has come by. True: the last to poll have stopped without a word, and it takes over.
    pub(crate) fn take_over(&self, last: &mut u32) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        if std::mem::replace(last, polls) != polls {
            return false;
        }
        let mut pollers = self.pollers.lock();
        *pollers = 0;
        let next = self.epoch.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.epoch.store(next, Ordering::Relaxed);
        self.polled.store(false, Ordering::SeqCst);
        true
    }

    /// The engine is about to sleep until then. It looks around once more after this. `listens`: what comes in wakes it.
    pub(crate) fn sleeps(&self, until: Nanos, listens: bool) {
        self.listens.store(listens, Ordering::SeqCst);
        self.wakes_at.store(until, Ordering::SeqCst);
    }

    /// The engine is awake.
    pub(crate) fn wakes(&self) {
        self.wakes_at.store(0, Ordering::SeqCst);
    }

    /// Must the engine be woken for something that is due then? Who polls sees to it in time, so long as the engine comes by.
    pub(crate) fn must_wake_for(&self, deadline: Nanos) -> bool {
        let slack = if self.is_polled() { TICK } else { 0 };
        deadline.saturating_add(slack) < self.wakes_at.load(Ordering::SeqCst)
    }

    /// Must the engine be woken to take over what is due then?
    pub(crate) fn must_wake_to_take_over(&self, deadline: Option<Nanos>) -> bool {
        let wakes_at = self.wakes_at.load(Ordering::SeqCst);
        wakes_at != 0 && (!self.listens.load(Ordering::SeqCst) || deadline.is_some_and(|deadline| deadline < wakes_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_stop_leaves_it_to_the_engine() {
        let (polling, one, other) = (Polling::default(), Poller::default(), Poller::default());
        assert!(!polling.is_polled() && !polling.stops(&one), "who never polled stops nothing");
        polling.polls(&one);
        polling.polls(&one);
        polling.polls(&other);
        assert!(!polling.stops(&one) && polling.is_polled());
        assert!(polling.stops(&other) && !polling.is_polled());
        assert!(!polling.stops(&other), "once");
    }

    #[test]
    fn who_stops_without_a_word_is_noticed() {
        let (polling, one, other) = (Polling::default(), Poller::default(), Poller::default());
        polling.polls(&one);
        polling.polls(&other);
        let mut last = 0;
        assert!(!polling.take_over(&mut last) && polling.is_polled());
        polling.polls(&one);
        assert!(!polling.take_over(&mut last), "one of them goes on");
        assert!(polling.take_over(&mut last) && !polling.is_polled());
        assert!(!polling.stops(&other), "what was taken over is not given up again");
        polling.polls(&other);
        assert!(polling.is_polled() && polling.stops(&other));
    }

    #[test]
    fn the_engine_is_woken_only_for_what_is_due_before_it_wakes() {
        let (polling, one) = (Polling::default(), Poller::default());
        assert!(!polling.must_wake_for(0), "it is awake");
        polling.sleeps(10 * MILLIS, true);
        assert!(polling.must_wake_for(10 * MILLIS - 1) && !polling.must_wake_for(10 * MILLIS));
        polling.polls(&one);
        assert!(!polling.must_wake_for(9 * MILLIS), "who polls sees to it");
        assert!(polling.must_wake_for(7 * MILLIS), "but may stop: the engine must come by");
        polling.wakes();
        assert!(!polling.must_wake_for(0));
    }

    #[test]
    fn who_takes_over_must_listen_and_know_the_deadline() {
        let polling = Polling::default();
        assert!(!polling.must_wake_to_take_over(Some(0)), "it is awake");
        polling.sleeps(100, false);
        assert!(polling.must_wake_to_take_over(None));
        polling.sleeps(100, true);
        assert!(!polling.must_wake_to_take_over(None) && !polling.must_wake_to_take_over(Some(100)));
        assert!(polling.must_wake_to_take_over(Some(99)));
    }
}
