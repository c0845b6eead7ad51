//! The fast path of dequeues, and of waits for one event. It applies to an EVD without a CNO, descriptor or waiter,
//! while all completions are plain: successful sends, receives, RDMA reads or RDMA writes that are not traced, that
//! have no data of an extension operation, and of which no other object, such as an SRQ, must be notified.
//!
//! A poll leaves such completions in the buffer, and the next dequeues and waits return them from there. All other
//! code, except the check whether a triggered EVD still has events (`EvdSource::pending`), locks by [`Evd::lock`],
//! which first moves the remaining completions from the buffer to the queue. So that code finds every event in the
//! queue.
//!
//! A wait on the CNO of an EVD also leaves a completion in the buffer, but only a single one: if an EVD still has
//! events after a dequeue, that dequeue has to trigger the CNO again.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::Evd;
use super::dapli_evd::{BATCH, EvdState, TakenEvent, record};
use super::event::Event;
use crate::error::{Error, Result};
use crate::provider::{Completion, CompletionQueue, Provider, ReceivedOp, Status, Work};
use crate::runtime::empty_check::QueueCheck;
use crate::runtime::shared_cpu;
use crate::runtime::sync::MutexGuard;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PollResult {
    Nothing,
    /// The only completion is in the first entry of the buffer, but not in `plain`. The caller dequeues it.
    Single,
    /// All completions may be dequeued directly from the buffer.
    Plain,
    /// Some completions have to go through the queue.
    Others,
}

impl Event {
    fn is_plain(&self) -> bool {
        matches!(self, Event::Dto(done) if is_plain(done))
    }
}

/// Whether a completion is a successful, untraced transfer of which no other object must be notified, and which fits
/// the fields of a DAT 1.2 event.
#[inline(always)]
fn is_plain(done: &Completion) -> bool {
    let is_transfer = matches!(done.token.work, Work::Send | Work::Recv | Work::Read | Work::Write);
    let outcome = [done.status as u8, done.arrival as u8]; // one comparison for both bytes
    is_transfer && outcome == [Status::Success as u8, ReceivedOp::Send as u8] && done.token.post == 0
}

impl<P: Provider> EvdState<P> {
    /// Removes the oldest event if it is in the buffer. Also returns whether the buffer is then empty.
    #[inline(always)]
    pub(super) fn next_plain(&mut self) -> Option<(&Completion, bool)> {
        let Range { start: next, end } = self.plain;
        if next >= end {
            return None;
        }
        self.plain.start = next + 1;
        // The remainder does not change `next`; it avoids a bounds check.
        Some((&self.buffer[next % BATCH], next + 1 == end))
    }

    /// Moves the remaining completions from the buffer to the queue.
    #[inline]
    pub(super) fn move_buffer_to_queue(&mut self) {
        if !self.plain.is_empty() {
            self.queue_buffer();
        }
    }

    #[inline(never)]
    fn queue_buffer(&mut self) {
        let left = std::mem::take(&mut self.plain);
        self.queue.counts.events -= left.len() as u64; // `complete` counts them again
        for done in &self.buffer[left] {
            // Their signals are ignored: when they were polled, the EVD had no waiter, CNO or descriptor, or the only
            // completion has already triggered the CNO.
            let _ = self.queue.complete(done);
        }
    }

    /// Leaves the only completion of a poll in the buffer if the queue is empty, the EVD has no descriptor, and the
    /// completion is plain (`is_plain`) and was not posted UNSIGNALLED. Returns whether it stays; the caller then
    /// triggers the CNO. Called only if the EVD has a CNO, has no waiter, and is enabled.
    #[inline(always)]
    pub(super) fn keep_single(&mut self) -> bool {
        let done = &self.buffer[0];
        let may_stay = self.queue.is_empty() && self.descriptor.is_none() && is_plain(done) && !done.token.unsignalled;
        if may_stay {
            self.completions.count_success(done);
            self.plain = 0..1;
            self.queue.counts.events += 1;
            self.queue.counts.highest = self.queue.counts.highest.max(1);
            self.set_taken();
        }
        may_stay
    }

    /// Whether completions may stay in the buffer: the queue is empty, and the EVD has no waiter, CNO or descriptor.
    #[inline(always)]
    pub(super) fn is_quick(&self) -> bool {
        self.is_unobserved && self.queue.is_empty() && !self.queue.has_waiter()
    }

    /// Polls the CQ. The completions stay in the buffer if all of them are plain (`is_plain`); otherwise all are
    /// queued. Requires `is_quick`.
    #[inline(always)]
    pub(super) fn refill(&mut self, cq: &P::Cq) -> PollResult {
        let n = cq.poll(&mut self.buffer);
        if n == 0 {
            return PollResult::Nothing;
        }
        if n == 1 && is_plain(&self.buffer[0]) {
            self.completions.count_success(&self.buffer[0]);
            self.backoff.reset();
            self.queue.counts.events += 1;
            return PollResult::Single;
        }
        let mut found = PollResult::Plain;
        for done in &self.buffer[..n] {
            if is_plain(done) {
                self.completions.count_success(done);
            } else {
                record(&mut self.completions, done);
                found = PollResult::Others;
            }
        }
        self.backoff.reset();
        self.plain = 0..n;
        self.queue.counts.events += n as u64;
        self.queue.counts.highest = self.queue.counts.highest.max(n as u64 - 1);
        if found == PollResult::Others {
            self.queue_buffer();
        }
        found
    }
}

impl<P: Provider> Evd<P> {
    /// Locks the EVD, and moves the completions in the buffer to the queue. Afterwards dequeues also lock the EVD,
    /// until [`Self::allow_empty_check`] is called.
    pub(super) fn lock(&self) -> MutexGuard<'_, EvdState<P>> {
        let mut inner = self.inner.lock();
        inner.move_buffer_to_queue();
        if let Some(check) = &self.empty_check {
            check.set_queued(true);
        }
        inner
    }

    /// Allows dequeues to detect without the lock that the EVD is empty. Has no effect if the polling thread shares its
    /// only CPU, because each dequeue must then count unsuccessful polls under the lock. Called when the EVD has no
    /// event.
    #[inline(always)]
    pub(super) fn allow_empty_check(&self, inner: &EvdState<P>) {
        if let Some(check) = &self.empty_check
            && !inner.backoff.shares_cpu()
        {
            check.set_queued(false);
        }
    }

    /// Called by a dequeue that has found no event. Yields the CPU if the calling thread is limited to one CPU and has
    /// polled without success for a few microseconds.
    pub(super) fn found_nothing(&self, mut inner: MutexGuard<'_, EvdState<P>>) -> Error {
        let must_yield = inner.backoff.should_yield(self.empty_check.as_ref().map(QueueCheck::polls));
        if inner.is_quick() {
            self.allow_empty_check(&inner);
        }
        drop(inner);
        if must_yield {
            let has_another_run = shared_cpu::yield_cpu();
            if self.inner.lock().backoff.record_yield(has_another_run)
                && let Some(check) = &self.empty_check
            {
                check.set_queued(true); // The next dequeues take the lock, so that they count polls.
            }
        }
        Error::QueueEmpty
    }

    /// Polls the CQ by [`EvdState::refill`]; `None` without a CQ. Concurrent dequeues wait for the lock from the moment
    /// at which completions leave the CQ. The caller then sets or clears `has_queued` of the empty check.
    #[inline(always)]
    fn refill(&self, inner: &mut EvdState<P>) -> Option<PollResult> {
        let cq = self.cq.as_ref()?;
        if let Some(check) = &self.empty_check {
            check.begin_move();
        }
        Some(inner.refill(cq))
    }

    /// Completes a wait for one event if the oldest event is plain (`is_plain`), without registering a waiter. Returns
    /// the number of events left. Returns `None`, and dequeues no event, if the wait needs the full path.
    #[inline(always)]
    pub(super) fn wait_quickly(&self, give: impl FnOnce(&Completion)) -> Option<usize> {
        let mut inner = self.inner.lock();
        if !inner.is_unobserved || !inner.queue.may_wait() {
            return None;
        }
        let left = if inner.queue.is_empty() {
            let found = if inner.plain.is_empty() { self.refill(&mut inner)? } else { PollResult::Plain };
            match found {
                PollResult::Single => give(&inner.buffer[0]),
                PollResult::Plain => inner.next_plain().map(|(done, _)| give(done))?,
                PollResult::Others | PollResult::Nothing => return None,
            }
            inner.plain.len()
        } else {
            let Some(Event::Dto(done)) = inner.queue.front().filter(|event| event.is_plain()) else { return None };
            let is_notifying = done.is_notifying();
            give(done);
            inner.queue.drop_front(is_notifying);
            inner.queue.len()
        };
        inner.queue.counts.waits += 1;
        match &self.empty_check {
            Some(check) if left > 0 => check.set_queued(true),
            _ => self.allow_empty_check(&inner),
        }
        Some(left)
    }

    /// Locks the EVD if no other thread holds the lock. Unlike [`Evd::lock`], leaves events in the buffer.
    #[inline(always)]
    pub(super) fn try_lock_quickly(&self) -> Option<MutexGuard<'_, EvdState<P>>> {
        self.inner.try_lock()
    }

    /// Waits for the lock, and dequeues the oldest event.
    pub(super) fn dequeue_quickly(&self, give: impl FnOnce(TakenEvent<'_>)) -> Result<()> {
        let mut inner = self.inner.lock();
        let Some((done, is_last)) = inner.next_plain() else { return self.poll_quickly(inner, give) };
        give(TakenEvent::Plain(done));
        if is_last {
            self.allow_empty_check(&inner);
        }
        Ok(())
    }

    /// Dequeues the oldest event from the queue, or from a poll of the CQ if the queue is empty. The buffer must be
    /// empty.
    #[inline(always)]
    pub(super) fn poll_quickly<'a>(
        &'a self,
        mut inner: MutexGuard<'a, EvdState<P>>,
        give: impl FnOnce(TakenEvent<'_>),
    ) -> Result<()> {
        if inner.is_quick()
            && let Some(found) = self.refill(&mut inner)
        {
            match found {
                PollResult::Single => {
                    give(TakenEvent::Plain(&inner.buffer[0]));
                    self.allow_empty_check(&inner);
                    return Ok(());
                }
                PollResult::Plain => {
                    let Some((done, is_last)) = inner.next_plain() else { return Err(Error::Internal) };
                    give(TakenEvent::Plain(done));
                    match &self.empty_check {
                        Some(check) if !is_last => check.set_queued(true),
                        _ => self.allow_empty_check(&inner),
                    }
                    return Ok(());
                }
                PollResult::Others => {}
                PollResult::Nothing => return Err(self.found_nothing(inner)),
            }
        }
        if let Some(check) = &self.empty_check {
            check.set_queued(true);
        }
        self.dequeue_locked(inner, give)
    }
}
