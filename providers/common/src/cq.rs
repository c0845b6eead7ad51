//! The core of a completion queue: the completions that were not polled yet, and whether the consumer has armed the
//! queue.
//!
//! Before a consumer sleeps, it arms the queue and then checks it again. `push` adds a completion and then checks
//! whether the queue is armed. On both sides, a full barrier separates these two steps, so a sleeping consumer never
//! misses a completion. The caller of `push` notifies the consumer.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::Completion;
use dapl::runtime::empty_check::EmptyCheck;
use dapl::runtime::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence};

/// Completions in order. The list grows with the posted work, so it never overflows.
#[derive(Debug, Default)]
pub struct CompletionList {
    queue: Mutex<VecDeque<Completion>>,
    /// Length of `queue`, readable without its lock.
    waiting: AtomicUsize,
    /// Whether the consumer has requested a notification.
    armed: AtomicBool,
    /// The empty check of the EVD, which shows whether `queue` has completions.
    empty_check: Option<&'static EmptyCheck>,
}

impl CompletionList {
    /// Creates an empty list that updates the empty check of its EVD.
    pub fn with_check(empty_check: &'static EmptyCheck) -> Self {
        CompletionList { empty_check: Some(empty_check), ..CompletionList::default() }
    }

    /// Publishes the length of `queue`, whose lock the caller holds.
    #[inline]
    fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Release);
        if let Some(check) = self.empty_check {
            check.set_ready(waiting > 0);
        }
    }

    /// Adds a completion. Returns true if the caller has to notify the consumer.
    #[inline]
    pub fn push(&self, completion: Completion) -> bool {
        {
            let mut queue = self.queue.lock();
            queue.push_back(completion);
            self.set_waiting(queue.len());
        }
        // Pairs with the fence in `arm`: either `arm` sees the completion, or this load sees that the queue is armed.
        fence(Ordering::SeqCst);
        self.armed.load(Ordering::Relaxed)
            && self.armed.compare_exchange(true, false, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Moves the oldest completions into `out`, and returns their number.
    #[inline(always)]
    pub fn take(&self, out: &mut [Completion]) -> usize {
        if self.is_empty() { 0 } else { self.take_waiting(out) }
    }

    #[inline(never)]
    fn take_waiting(&self, out: &mut [Completion]) -> usize {
        let mut queue = self.queue.lock();
        let taken = out.len().min(queue.len());
        for (slot, completion) in out.iter_mut().zip(queue.drain(..taken)) {
            *slot = completion;
        }
        self.set_waiting(queue.len());
        taken
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Requests one notification. Returns false, and leaves the list disarmed, if it has a completion.
    ///
    /// Calls `settle` before it checks the list. A provider whose polls collect completions without `push` ends that
    /// mode in `settle`, so that later completions are pushed.
    pub fn arm(&self, settle: impl FnOnce()) -> bool {
        self.armed.store(true, Ordering::SeqCst);
        settle();
        // Pairs with the fence in `push`.
        fence(Ordering::SeqCst);
        if !self.is_empty() {
            self.armed.swap(false, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Withdraws the request for a notification. Writes the flag only if it is set, because each poll of a thread that
    /// waits on a CNO calls this function.
    #[inline]
    pub fn disarm(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// Whether a notification was requested and not yet sent.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }
}

/// Model for loom: a consumer that sleeps until it is notified, and two threads that push. loom reports a lost wake-up
/// as a deadlock.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use loom::sync::Condvar;
    use loom::thread;

    use super::*;
    use dapl::provider::Token;

    #[derive(Default)]
    struct Sleeper {
        notified: Mutex<bool>,
        more: Condvar,
    }

    #[test]
    fn armed_consumer_is_notified_and_completions_are_polled_once() {
        loom::model(|| {
            let (ready, sleeper) = (Arc::new(CompletionList::default()), Arc::new(Sleeper::default()));
            let pushers: Vec<_> = (1..=2)
                .map(|n| {
                    let (ready, sleeper) = (ready.clone(), sleeper.clone());
                    thread::spawn(move || {
                        let token = Token { ep: n, ..Token::default() };
                        if ready.push(Completion { token, ..Completion::default() }) {
                            *sleeper.notified.lock() = true;
                            sleeper.more.notify_one();
                        }
                    })
                })
                .collect();
            let (mut out, mut sum) = ([Completion::default(); 4], 0);
            while sum != 1 + 2 {
                let taken = ready.take(&mut out);
                sum += out[..taken].iter().map(|done| done.token.ep).sum::<usize>();
                assert!(sum <= 1 + 2, "a completion was polled twice");
                if taken == 0 && ready.arm(|| ()) {
                    let mut notified = sleeper.notified.lock();
                    while !*notified {
                        notified = sleeper.more.wait(notified).unwrap();
                    }
                    *notified = false;
                }
            }
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        });
    }
}
