//! Private functions of an EVD. They move completions from the CQ to the event queue, dequeue events, arm the CQ, and
//! notify the waiter or the CNO of new events.
//!
//! A function that leaves the notification to its caller returns an [`EvdNotification`], or an [`EventSignal`], which
//! [`Evd::signal`] converts to an [`EvdNotification`]. The caller releases the EVD's lock and then calls
//! [`EvdNotification::deliver`].
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::Evd;
use super::dapls_descriptor::ArmedDescriptor;
use super::event::{Event, is_failure};
use super::notification::EvdNotification;
use super::queue::{EventQueue, EventSignal, NotifyMode};
use crate::cno::{Cno, EvdSource, PollPass};
use crate::error::{Error, Result};
use crate::ia::Ia;
use crate::provider::{Completion, CompletionQueue, Provider, Work};
use crate::runtime::handle::UseGuard;
use crate::runtime::shared_cpu::SharedCpuBackoff;
use crate::runtime::sync::MutexGuard;
use crate::runtime::{cancel, wait};
use crate::stats::counters::CompletionsByEp;
use crate::stats::trace;

/// Maximum number of completions that one poll of the CQ fetches.
pub(super) const BATCH: usize = 16;
/// Maximum number of batches that are fetched under the lock at a time, so that many completions do not block other
/// threads.
const BATCHES: usize = 16;

/// The fields protected by the EVD's lock.
pub(super) struct EvdState<P: Provider> {
    pub(super) queue: EventQueue,
    pub(super) cno: Option<UseGuard<Cno<P>>>,
    /// The file descriptor for consumers that wait in `poll` or `epoll`, if one was requested.
    pub(super) descriptor: Option<ArmedDescriptor>,
    /// The EVD has neither a CNO nor a descriptor, so an event can notify only a waiter.
    pub(super) is_unobserved: bool,
    /// Counts of completions by EP.
    pub(super) completions: CompletionsByEp,
    /// Whether the next dequeue that finds the queue empty does not poll (see [`Self::set_taken`]). Set by a dequeue
    /// that returns an event, and when a completion is kept in the buffer. Used only if the EVD has a CNO or a
    /// descriptor.
    has_taken: bool,
    /// The CQ could not be armed for the CNO or the descriptor, and the error was not reported yet.
    arm_failed: bool,
    pub(super) backoff: SharedCpuBackoff,
    pub(super) buffer: [Completion; BATCH],
    /// The range of `buffer` that is not in `queue` yet (see `dapli_quick`). It is empty after [`Evd::lock`].
    pub(super) plain: Range<usize>,
}

impl<P: Provider> EvdState<P> {
    pub(super) fn new(queue: EventQueue, cno: Option<UseGuard<Cno<P>>>) -> Self {
        EvdState {
            queue,
            is_unobserved: cno.is_none(),
            cno,
            descriptor: None,
            completions: CompletionsByEp::default(),
            has_taken: false,
            arm_failed: false,
            backoff: SharedCpuBackoff::default(),
            buffer: [Completion::default(); BATCH],
            plain: 0..0,
        }
    }

    /// Updates `is_unobserved` after the CNO or the descriptor was added or removed.
    pub(super) fn observers_changed(&mut self) {
        self.is_unobserved = self.cno.is_none() && self.descriptor.is_none();
    }

    /// Polls the CQ into `buffer`, counts and traces the completions, and returns their number.
    #[inline(never)]
    fn poll(&mut self, cq: &P::Cq, how: FetchMode) -> usize {
        let n = self.fill(cq, how);
        self.buffer[..n].iter().for_each(|done| record(&mut self.completions, done));
        n
    }

    /// Fills the buffer from the front. The caller counts and traces the completions.
    #[inline(always)]
    fn fill(&mut self, cq: &P::Cq, how: FetchMode) -> usize {
        match how {
            FetchMode::Poll => cq.poll(&mut self.buffer),
            FetchMode::Ready => cq.ready(&mut self.buffer),
        }
    }

    /// Sets `has_taken`: the next dequeue that finds the queue empty then takes only completions that are already in
    /// the CQ, without a poll. With an empty check it polls nevertheless. That dequeue also does not yield, because the
    /// consumer handles the event next.
    pub(super) fn set_taken(&mut self) {
        self.has_taken = true;
        self.backoff.reset();
    }
}

/// Counts and traces a fetched completion.
pub(super) fn record(completions: &mut CompletionsByEp, done: &Completion) {
    completions.count(done);
    if done.token.post != 0 {
        trace::completed(done);
    }
}

/// An event that a consumer dequeues.
pub(crate) enum TakenEvent<'a> {
    /// A successful transfer that fits the fields of a DAT 1.2 event.
    Plain(&'a Completion),
    /// Any completion. If the work has failed, the EP has already been notified.
    Done(&'a Completion),
    /// An event in the form in which the queue stores it.
    Other(&'a Event),
}

/// Handle of the SRQ, if the completion is that of an SRQ receive.
#[inline]
fn from_shared(done: &Completion) -> Option<usize> {
    (done.token.work == Work::SharedRecv).then_some(done.token.object)
}

#[derive(Clone, Copy)]
pub(super) enum FetchMode {
    /// Polls the CQ: the provider makes progress on the calling thread.
    Poll,
    /// Removes only completions that are already in the CQ.
    Ready,
}

impl<P: Provider> Evd<P> {
    /// Moves completions from the CQ to the queue, at most `BATCHES` batches.
    pub(super) fn fetch(&self, inner: &mut EvdState<P>, how: FetchMode) -> EventSignal {
        let mut signal = EventSignal::None;
        let Some(cq) = &self.cq else { return signal };
        for _ in 0..BATCHES {
            let n = inner.poll(cq, how);
            for done in &inner.buffer[..n] {
                signal = signal.max(inner.queue.complete(done));
            }
            if n < BATCH {
                break;
            }
        }
        signal
    }

    /// Like [`Self::fetch`], for an EVD with a CNO, and without a waiter. A single completion may stay in the buffer,
    /// so the caller must not read the queue before it releases the lock.
    #[inline]
    fn fetch_for_cno(&self, inner: &mut EvdState<P>, cq: &P::Cq, how: FetchMode) -> EventSignal {
        let n = inner.fill(cq, how);
        if n == 0 {
            return EventSignal::None;
        }
        if n == 1 && inner.keep_single() {
            return EventSignal::Cno;
        }
        let mut signal = EventSignal::None;
        for done in &inner.buffer[..n] {
            record(&mut inner.completions, done);
            signal = signal.max(inner.queue.complete(done));
        }
        if n == BATCH {
            signal = signal.max(self.fetch(inner, how));
        }
        signal
    }

    /// Dequeues the oldest event. Passes it to `give` by reference, because events are large and this is the hot path.
    #[inline]
    pub(crate) fn dequeue(&self, give: impl FnOnce(TakenEvent<'_>)) -> Result<()> {
        self.dequeue_locked(self.lock(), give)
    }

    /// Like [`Self::dequeue`], for a caller that holds the lock and has moved the completions in the buffer to the
    /// queue.
    #[inline(never)]
    pub(super) fn dequeue_locked<'a>(
        &'a self,
        mut inner: MutexGuard<'a, EvdState<P>>,
        give: impl FnOnce(TakenEvent<'_>),
    ) -> Result<()> {
        inner.queue.require_no_waiter()?;
        let mut signal = EventSignal::None;
        let state = &mut *inner;
        let shared = match state.queue.front() {
            Some(Event::Failed(_)) => return self.dequeue_failure(inner, signal, give),
            Some(Event::Dto(done)) => {
                let (shared, notifying) = (from_shared(done), done.is_notifying());
                give(TakenEvent::Done(done));
                state.queue.drop_front(notifying);
                shared
            }
            Some(other) => {
                let notifying = other.notifies();
                give(TakenEvent::Other(other));
                state.queue.drop_front(notifying);
                None
            }
            None => {
                let Some(cq) = &self.cq else { return Err(Error::QueueEmpty) };
                // A consumer with a CNO dequeues until the EVD is empty; then `dat_cno_wait` polls again, as does
                // arming a descriptor. Over a network each poll is a system call. So the first dequeue after a
                // successful one does not poll, but takes completions that are already in the CQ. With an empty check
                // this code runs only if a completion may have arrived, so it polls.
                let is_first = std::mem::take(&mut state.has_taken) && self.empty_check.is_none();
                let how = if is_first { FetchMode::Ready } else { FetchMode::Poll };
                let n = state.poll(cq, how);
                let Some((first, rest)) = state.buffer[..n].split_first() else {
                    return Err(self.found_nothing(inner));
                };
                state.backoff.reset();
                let failed = is_failure(first);
                if failed {
                    signal = state.queue.complete(first);
                }
                for done in rest {
                    signal = signal.max(state.queue.complete(done));
                }
                if failed {
                    return self.dequeue_failure(inner, signal, give);
                }
                state.queue.counts.events += 1; // this event bypasses the queue
                give(TakenEvent::Done(first));
                from_shared(first)
            }
        };
        if !inner.is_unobserved {
            inner.set_taken();
            let notification = self.taken(&mut inner, signal);
            if inner.queue.is_empty() {
                self.allow_empty_check(&inner);
            }
            drop(inner);
            notification.deliver();
        } else {
            drop(inner);
        }
        if let Some(srq) = shared {
            self.reaped_shared(srq);
        }
        Ok(())
    }

    /// If the event is the completion of an SRQ receive, informs the SRQ that the consumer has dequeued it or can no
    /// longer dequeue it.
    #[inline]
    pub(super) fn reaped(&self, event: &Event) {
        if let Event::Dto(done) | Event::Failed(done) = event
            && let Some(srq) = from_shared(done)
        {
            self.reaped_shared(srq);
        }
    }

    #[inline(never)]
    fn reaped_shared(&self, srq: usize) {
        if let Some(sink) = self.transfers.get() {
            sink.reaped(srq);
        }
    }

    /// Notifies EPs of failed completions at the front of the queue, then dequeues the oldest event. The lock is
    /// released for the notification. The dequeue fails if another thread has dequeued all events meanwhile, or has
    /// begun to wait on the EVD.
    #[cold]
    #[inline(never)]
    fn dequeue_failure(
        &self,
        mut inner: MutexGuard<'_, EvdState<P>>,
        signal: EventSignal,
        give: impl FnOnce(TakenEvent<'_>),
    ) -> Result<()> {
        let _deferral = cancel::defer();
        let signal = signal.max(self.fetch(&mut inner, FetchMode::Poll));
        self.unlock(inner, signal);
        let mut inner = self.report_failures(self.lock());
        inner.queue.require_no_waiter()?;
        let event = inner.queue.pop().ok_or(Error::QueueEmpty)?;
        let notification = self.taken(&mut inner, EventSignal::None);
        drop(inner);
        give(TakenEvent::Other(&event));
        notification.deliver();
        self.reaped(&event);
        Ok(())
    }

    /// Notifies EPs of their failures at the front of the queue, before a consumer gets the completions. The EVD's lock
    /// is released for the notification, because an EP's lock must be acquired before an EVD's lock, and an agent of
    /// the consumer may run.
    #[cold]
    pub(super) fn report_failures<'a>(&'a self, mut inner: MutexGuard<'a, EvdState<P>>) -> MutexGuard<'a, EvdState<P>> {
        while let Some(ep) = inner.queue.unreported_failure() {
            drop(inner);
            let is_reported = self.transfers.get().is_some_and(|sink| sink.failed(self, ep));
            inner = self.lock();
            if !is_reported {
                inner.queue.mark_reported(ep); // the EP no longer exists
            }
        }
        inner
    }

    /// Fetches all completions that are in the CQ, without the limit of [`Self::fetch`]. Their number is bounded by the
    /// posted work.
    pub(super) fn fetch_all(&self, inner: &mut EvdState<P>) -> EventSignal {
        let mut signal = EventSignal::None;
        let Some(cq) = &self.cq else { return signal };
        loop {
            let n = inner.poll(cq, FetchMode::Ready);
            for done in &inner.buffer[..n] {
                signal = signal.max(inner.queue.complete(done));
            }
            if n == 0 {
                return signal;
            }
        }
    }

    /// Called after a consumer has dequeued an event. If the EVD is enabled and other notifying events are queued,
    /// triggers the CNO again, because a consumer may dequeue one event per `dat_cno_wait` (spec/events 3.6).
    pub(super) fn taken(&self, inner: &mut EvdState<P>, signal: EventSignal) -> EvdNotification<P> {
        if signal == EventSignal::Cno {
            return self.signal(inner, signal);
        }
        let arm_failed = self.arm_failed(inner);
        match &inner.cno {
            Some(cno) if inner.queue.enabled && inner.queue.has_notifying() => {
                inner.queue.counts.cno_triggers += 1;
                EvdNotification { waiter: None, cno: cno.arc().trigger(self.source(), false), arm_failed }
            }
            _ => EvdNotification { waiter: None, cno: None, arm_failed },
        }
    }

    /// Converts a signal of the queue to a notification. The waiter's futex word is incremented here, under the lock.
    pub(super) fn signal(&self, inner: &mut EvdState<P>, signal: EventSignal) -> EvdNotification<P> {
        let arm_failed = self.arm_failed(inner);
        if signal == EventSignal::Cno
            && let Some(descriptor) = &mut inner.descriptor
        {
            descriptor.trigger();
        }
        match (signal, &inner.cno) {
            (EventSignal::Waiter, _) => {
                inner.queue.counts.wakeups += 1;
                wait::increment_word(self.id);
                EvdNotification { waiter: Some(self.id), cno: None, arm_failed }
            }
            (EventSignal::Cno, Some(cno)) => {
                inner.queue.counts.cno_triggers += 1;
                EvdNotification { waiter: None, cno: cno.arc().trigger(self.source(), true), arm_failed }
            }
            _ => EvdNotification { waiter: None, cno: None, arm_failed },
        }
    }

    fn arm_failed(&self, inner: &mut EvdState<P>) -> Option<(Arc<Ia<P>>, usize)> {
        std::mem::take(&mut inner.arm_failed).then(|| (self.ia.clone(), self.id.handle))
    }

    /// Arms the CQ if a sleeping waiter depends on its notification, or if the EVD is enabled and its CNO or an armed
    /// descriptor does. If arming fails, the waiter is woken; it arms the CQ itself, and returns the error if that
    /// fails too. If there is no waiter, the error is reported on the IA's async EVD.
    pub(super) fn rearm(&self, inner: &mut EvdState<P>) -> EventSignal {
        let mut signal = EventSignal::None;
        let Some(cq) = &self.cq else { return signal };
        // A waiter that still polls needs no notification, because it arms the CQ before it sleeps. As an exception,
        // some CQs recognise solicited messages only while they are armed for them.
        let needs_notification = !P::Cq::REPORTS_SOLICITED && inner.queue.config() == NotifyMode::Solicited;
        let waits = inner.queue.has_sleeping_waiter() || needs_notification && inner.queue.has_waiter();
        // A waiter of the CNO that polls arms the CQ before it sleeps.
        let triggers = inner.cno.as_ref().is_some_and(|cno| needs_notification || !cno.is_polled());
        let is_armed = inner.descriptor.as_ref().is_some_and(ArmedDescriptor::is_armed);
        let wanted = waits || (triggers || is_armed) && inner.queue.enabled;
        while wanted && signal != EventSignal::Waiter {
            match cq.arm(inner.queue.arm_mode()) {
                Ok(true) => break,
                Ok(false) => signal = signal.max(self.fetch(inner, FetchMode::Ready)),
                Err(error) => {
                    log::error!(
                        "evd {:#x}: cannot arm its completion queue: {error}; waits and CNO notifications of this EVD fail; poll it \
                         with dat_evd_dequeue",
                        self.id.handle
                    );
                    if inner.queue.has_waiter() {
                        return EventSignal::Waiter;
                    }
                    inner.arm_failed = true;
                    break;
                }
            }
        }
        signal
    }

    /// Called by the provider's thread when a completion has arrived since the CQ was armed.
    pub(super) fn notified(&self) {
        let mut inner = self.lock();
        let signal = self.fetch(&mut inner, FetchMode::Ready);
        // The CNO is triggered before the CQ is armed. If that wakes the CNO's only sleeping waiter, the CQ need not be
        // armed.
        let notification = self.signal(&mut inner, signal);
        let signal = self.rearm(&mut inner);
        self.unlock(inner, signal);
        notification.deliver();
    }

    /// Registers this EVD with its CNO. Waiters of the CNO then poll the EVD and arm its CQ.
    pub(super) fn join(&self, inner: &EvdState<P>) {
        if let Some(cno) = &inner.cno {
            cno.watch(self.source(), self.cq.as_ref().map_or(0, |cq| cq.max_spin()));
        }
    }

    /// Fetches completions for a thread that waits on the CNO (see [`EvdSource::poll`]). Does not poll if a thread
    /// waits on the EVD itself, if the EVD is disabled, or if only an armed CQ can recognise solicited messages.
    pub(super) fn poll_for_cno(&self, pass: &mut PollPass) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let (Some(cq), Some(cno)) = (&self.cq, &inner.cno) else { return };
        let needs_notification = !P::Cq::REPORTS_SOLICITED && inner.queue.config() == NotifyMode::Solicited;
        if needs_notification || inner.queue.has_waiter() || !inner.queue.enabled {
            return;
        }
        // A waiter that goes to sleep first makes `is_polled` false, and then arms the CQ under this lock. So if the CNO
        // is polled here, such a waiter arms the CQ again after this step.
        if cno.is_polled() && !inner.descriptor.as_ref().is_some_and(ArmedDescriptor::is_armed) {
            cq.disarm();
        }
        let how = if pass.polls_device { FetchMode::Poll } else { FetchMode::Ready };
        pass.polls_device &= !P::Cq::SHARES_PROGRESS;
        let may_take = pass.takes && pass.taken_at.is_none() && inner.descriptor.is_none() && !inner.arm_failed;
        let signal = self.fetch_for_cno(inner, cq, how);
        match &inner.cno {
            // A CNO that is polled has no agent or descriptor that depends on a trigger. So the EVD need not trigger
            // it: the polling thread returns this EVD.
            Some(cno) if may_take && signal == EventSignal::Cno && cno.is_polled() && cno.id == pass.cno => {
                pass.taken_at = Some(cno.changes());
                inner.queue.counts.cno_triggers += 1;
            }
            _ => self.unlock(guard, signal),
        }
    }

    /// Releases the lock after a step that may have queued events, and then delivers the notification.
    #[inline]
    pub(super) fn unlock(&self, mut inner: MutexGuard<'_, EvdState<P>>, signal: EventSignal) {
        if signal == EventSignal::None && !inner.arm_failed {
            return;
        }
        let notification = self.signal(&mut inner, signal);
        drop(inner);
        notification.deliver();
    }

    fn source(&self) -> Arc<dyn EvdSource> {
        self.evd_ref.clone()
    }

    /// Queues an event that does not come from the CQ, after all completions that arrived before it. The second
    /// result is false if the event was dropped, because the queue exceeds its length by 65,536 events (spec/events
    /// 1.4).
    pub(super) fn append(&self, event: Event) -> (EvdNotification<P>, bool) {
        let mut inner = self.lock();
        let mut signal = self.fetch(&mut inner, FetchMode::Ready);
        let overflown = inner.queue.is_overflown();
        if overflown {
            inner.queue.counts.overflows += 1;
        } else {
            signal = signal.max(inner.queue.push(event));
        }
        (self.signal(&mut inner, signal), !overflown)
    }
}
