//! Dequeues in the common case: one thread polls an EVD without a CNO or descriptor, and takes successes.
//!
//! A poll leaves such completions in the buffer, and the next dequeues take them from there. All other users of the state find
//! every event in the queue: they lock by [`Evd::lock`], which moves what is left in the buffer.
#![forbid(unsafe_code)]

use super::Evd;
use super::dapli_evd::{EvdState, Fetch};
use crate::error::{Error, Result};
use crate::provider::{Arrival, Completion, Provider, Status, Work};
use crate::runtime::sync::{MutexGuard, yield_now};

/// Result of a poll.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Found {
    Nothing,
    /// Completions that a consumer may take out of the buffer.
    Plain,
    /// Some that have to go through the queue.
    Others,
}

/// Whether a completion is given to the consumer without any other step, as an event of DAT 1.2 with these fields only.
#[inline(always)]
fn is_plain(done: &Completion) -> bool {
    let is_transfer = matches!(done.token.work, Work::Send | Work::Recv | Work::Read | Work::Write);
    is_transfer && done.status == Status::Success && done.arrival == Arrival::Send
}

impl<P: Provider> EvdState<P> {
    /// The oldest event, if it is in the buffer.
    #[inline(always)]
    pub(super) fn next_plain(&mut self) -> Option<&Completion> {
        let next = self.plain.start;
        if next >= self.plain.end {
            return None;
        }
        self.plain.start = next + 1;
        self.buffer.get(next)
    }

    /// Moves what is left in the buffer to the queue.
    #[inline]
    pub(super) fn settle(&mut self) {
        if !self.plain.is_empty() {
            self.settle_plain();
        }
    }

    #[inline(never)]
    fn settle_plain(&mut self) {
        let left = std::mem::take(&mut self.plain);
        self.queue.counts.events -= left.len() as u64; // `complete` counts them again
        for done in &self.buffer[left] {
            // There was no waiter, CNO or descriptor when it came, so it signals nothing.
            let _ = self.queue.complete(done);
        }
    }

    /// Whether completions may stay in the buffer: a thread that polls is the only one that an event is for.
    #[inline(always)]
    pub(super) fn is_quick(&self) -> bool {
        self.is_unobserved && self.queue.is_empty() && !self.queue.has_waiter()
    }

    /// Polls. What came stays in the buffer if each completion is a success that needs no report to another object; else it is
    /// queued. `is_quick` is true.
    #[inline(always)]
    pub(super) fn refill(&mut self, cq: &P::Cq) -> Found {
        let n = self.poll(cq, Fetch::Poll);
        if n == 0 {
            return Found::Nothing;
        }
        self.backoff.reset();
        self.plain = 0..n;
        self.queue.counts.events += n as u64;
        self.queue.counts.highest = self.queue.counts.highest.max(n as u64 - 1);
        if !self.buffer[..n].iter().all(is_plain) {
            self.settle_plain();
            return Found::Others;
        }
        Found::Plain
    }
}

impl<P: Provider> Evd<P> {
    /// Locks the state. All events are in the queue then.
    pub(super) fn lock(&self) -> MutexGuard<'_, EvdState<P>> {
        let mut inner = self.inner.lock();
        inner.settle();
        inner
    }

    /// Takes the oldest event, if that is a plain completion, with as few instructions as possible. `None`: `dequeue` has to do it.
    #[inline(always)]
    pub(super) fn dequeue_quickly(&self, give: impl FnOnce(&Completion)) -> Option<Result<()>> {
        let mut inner = self.inner.lock();
        if let Some(done) = inner.next_plain() {
            give(done);
            return Some(Ok(()));
        }
        let cq = self.cq.as_ref().filter(|_| inner.is_quick())?;
        match inner.refill(cq) {
            Found::Plain => {
                inner.next_plain().map(give);
                Some(Ok(()))
            }
            Found::Others => None,
            Found::Nothing => {
                let shares_cpu = inner.backoff.should_yield();
                drop(inner);
                if shares_cpu {
                    yield_now();
                }
                Some(Err(Error::QueueEmpty))
            }
        }
    }
}
