//! What has completed and waits to be taken, and whether somebody sleeps until there is something.
//!
//! The heart of the completion queue of a provider that is made in software. Whoever goes to sleep arms it and looks once
//! more; whoever adds something looks whether it is armed. A full barrier lies between the two steps of each, so no completion
//! comes unnoticed. Tells nobody itself.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::Completion;
use dapl::runtime::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence};

/// Completions in their order. Room follows the posted work, so nothing that completes is ever lost.
#[derive(Debug, Default)]
pub struct CompletionList {
    queue: Mutex<VecDeque<Completion>>,
    /// Length of `queue`, to be read without its lock.
    waiting: AtomicUsize,
    /// One call of the sink is wanted.
    armed: AtomicBool,
}

impl CompletionList {
    /// Adds one. True: somebody sleeps, and must be told.
    #[inline]
    pub fn push(&self, completion: Completion) -> bool {
        {
            let mut queue = self.queue.lock();
            queue.push_back(completion);
            self.waiting.store(queue.len(), Ordering::Release);
        }
        // Pairs with the fence in `arm`: either it sees the completion, or we see that it is armed.
        fence(Ordering::SeqCst);
        self.armed.load(Ordering::Relaxed)
            && self.armed.compare_exchange(true, false, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes what fits, and says how many.
    #[inline]
    pub fn take(&self, out: &mut [Completion]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut queue = self.queue.lock();
        let taken = out.len().min(queue.len());
        for (place, completion) in out.iter_mut().zip(queue.drain(..taken)) {
            *place = completion;
        }
        self.waiting.store(queue.len(), Ordering::Release);
        taken
    }

    /// Nothing waits to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Asks for one telling. Between that and the last look `settle` sees to it that what comes will be pushed here. False:
    /// something is here already, and nobody will tell.
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

    /// No notification is wanted any more. The flag is written only if it is set: a poller calls this in each of its looks.
    #[inline]
    pub fn disarm(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// Somebody sleeps, and was not told yet.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }
}

/// A sleeper that is woken by `push` alone, and two that push. loom reports a lost wake-up as a deadlock.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use loom::sync::Condvar;
    use loom::thread;

    use super::*;
    use dapl::provider::Token;

    #[derive(Default)]
    struct Sleeper {
        told: Mutex<bool>,
        more: Condvar,
    }

    #[test]
    fn who_sleeps_on_it_is_told_and_nothing_is_taken_twice() {
        loom::model(|| {
            let (ready, sleeper) = (Arc::new(CompletionList::default()), Arc::new(Sleeper::default()));
            let pushers: Vec<_> = (1..=2)
                .map(|n| {
                    let (ready, sleeper) = (ready.clone(), sleeper.clone());
                    thread::spawn(move || {
                        let token = Token { ep: n, ..Token::default() };
                        if ready.push(Completion { token, ..Completion::default() }) {
                            *sleeper.told.lock() = true;
                            sleeper.more.notify_one();
                        }
                    })
                })
                .collect();
            let (mut out, mut sum) = ([Completion::default(); 4], 0);
            while sum != 1 + 2 {
                let taken = ready.take(&mut out);
                sum += out[..taken].iter().map(|done| done.token.ep).sum::<usize>();
                assert!(sum <= 1 + 2, "taken twice");
                if taken == 0 && ready.arm(|| ()) {
                    let mut told = sleeper.told.lock();
                    while !*told {
                        told = sleeper.more.wait(told).unwrap();
                    }
                    *told = false;
                }
            }
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        });
    }
}
