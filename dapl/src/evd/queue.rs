//! The event queue of an EVD. It decides whether a new event notifies the waiter or the CNO, and when a wait can end.
//!
//! Used under the EVD's lock. Uses no clock, thread or provider.
#![forbid(unsafe_code)]

use super::event::{Event, is_failure};
use crate::error::{Error, Handle, Result, State};
use crate::provider::{ArmMode, Completion};
use crate::runtime::slot_queue::SlotQueue;
use crate::stats::counters::EvdCounts;

/// Which completions of an EP notify. An EVD has the most restrictive mode of all EPs that use it or have used it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum NotifyMode {
    /// All completions.
    #[default]
    Threshold,
    /// Completions of work posted without UNSIGNALLED; failed, flushed and solicited work in any case.
    Notify,
    /// Completions of receives whose send carried SOLICITED_WAIT, and of failed and flushed work.
    Solicited,
}

/// The notification that a new event causes.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum EventSignal {
    #[default]
    None,
    /// Wake the waiter: it sleeps, and its wait can end now.
    Waiter,
    /// Trigger the CNO, and make an armed descriptor readable, if the EVD has them.
    Cno,
}

/// The thread that is in `dat_evd_wait`.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    token: u64,
    threshold: usize,
    /// Whether a notifying event is queued, or was queued since the first check of the wait. True until that check
    /// ends.
    notified: bool,
    asleep: bool,
}

/// Whether a wait can end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitStatus {
    /// Enough events are queued for the threshold, and one of them may end the wait.
    Enough,
    /// Fewer events than the threshold are queued, or none of them notifies.
    TooFew,
    /// The wait was cancelled, because the EVD became unwaitable or was closed.
    Cancelled,
}

/// The queue, the waiter, and the settings that decide which events notify.
#[derive(Debug)]
pub(super) struct EventQueue {
    events: SlotQueue<Event>,
    /// Number of `events` that do not notify; usually zero.
    non_notifying: usize,
    /// Number of `events` that are failures not yet reported to their EP.
    failures: usize,
    length: usize,
    waiter: Option<Waiter>,
    pub(super) enabled: bool,
    pub(super) waitable: bool,
    /// Whether the EVD was closed: then events are dropped.
    pub(super) closed: bool,
    config: NotifyMode,
    /// Number of streams of the EVD's EPs whose mode is not `Solicited`.
    unsolicited_streams: u32,
    pub(super) counts: EvdCounts,
}

impl EventQueue {
    /// Number of events that may be queued beyond the length. Further ones are dropped, except completions (spec/events
    /// 1.4).
    const MARGIN: usize = 1 << 16;
    /// Maximum number of events for which memory is allocated at creation.
    const CAPACITY: usize = 64;

    pub(super) fn new(length: usize) -> Self {
        EventQueue {
            events: SlotQueue::with_slots(length.min(Self::CAPACITY)),
            non_notifying: 0,
            failures: 0,
            length,
            waiter: None,
            enabled: true,
            waitable: true,
            closed: false,
            config: NotifyMode::default(),
            unsolicited_streams: 0,
            counts: EvdCounts::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The length that the consumer has set (`evd_qlen`).
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether enough events are queued for a wait with this threshold.
    pub(super) fn has_enough(&self, threshold: i32) -> bool {
        usize::try_from(threshold).is_ok_and(|threshold| self.events.len() >= threshold)
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= self.length
    }

    pub(super) fn is_overflown(&self) -> bool {
        self.events.len() >= self.length + Self::MARGIN
    }

    pub(super) fn has_waiter(&self) -> bool {
        self.waiter.is_some()
    }

    /// Whether a thread may begin a wait for one event.
    #[inline(always)]
    pub(super) fn may_wait(&self) -> bool {
        self.waiter.is_none() && self.waitable && !self.closed
    }

    /// Whether a waiter sleeps and was not woken yet.
    pub(super) fn has_sleeping_waiter(&self) -> bool {
        self.waiter.is_some_and(|waiter| waiter.asleep)
    }

    /// Whether a notifying event is queued.
    pub(super) fn has_notifying(&self) -> bool {
        self.events.len() > self.non_notifying
    }

    pub(super) fn config(&self) -> NotifyMode {
        self.config
    }

    /// Adds a stream of an EP. If the stream's mode is more restrictive than the EVD's, the EVD changes to that mode,
    /// and keeps it after the stream was removed.
    pub(super) fn add_stream(&mut self, mode: NotifyMode) {
        self.config = self.config.max(mode);
        self.unsolicited_streams += u32::from(mode != NotifyMode::Solicited);
    }

    /// Removes a stream that [`Self::add_stream`] has added with this mode.
    pub(super) fn remove_stream(&mut self, mode: NotifyMode) {
        self.unsolicited_streams -= u32::from(mode != NotifyMode::Solicited);
    }

    /// Returns the completions for which the CQ must notify. Each event notifies by the mode of its own stream
    /// (spec/events 1.3), so the CQ is armed in the mode `Solicited` only if all streams of the EVD have this mode.
    pub(super) fn arm_mode(&self) -> ArmMode {
        match (self.config, self.unsolicited_streams) {
            (NotifyMode::Solicited, 0) => ArmMode::Solicited,
            (NotifyMode::Solicited, _) => ArmMode::Mixed,
            (NotifyMode::Threshold | NotifyMode::Notify, _) => ArmMode::All,
        }
    }

    /// Queues a completion, and returns the notification that it causes.
    #[inline(always)]
    pub(super) fn complete(&mut self, done: &Completion) -> EventSignal {
        if is_failure(done) || done.token.unsignalled || self.waiter.is_some() || self.closed {
            return self.complete_rarely(done);
        }
        match self.events.push() {
            // If the slot last contained a completion too, the tag of the variant is already right and need not be
            // written.
            Event::Dto(old) => *old = *done,
            other => *other = Event::Dto(*done),
        }
        self.count(true);
        if self.enabled { EventSignal::Cno } else { EventSignal::None }
    }

    /// Like `complete`, for a failure, a completion posted UNSIGNALLED, a waiting thread, or a closed queue.
    #[inline(never)]
    fn complete_rarely(&mut self, done: &Completion) -> EventSignal {
        if is_failure(done) { self.fail(*done) } else { self.push(Event::Dto(*done)) }
    }

    /// Counts an event that was just queued.
    #[inline(always)]
    fn count(&mut self, notifying: bool) {
        if !notifying {
            self.non_notifying += 1;
        }
        self.counts.events += 1;
        self.counts.highest = self.counts.highest.max(self.events.len() as u64);
    }

    #[cold]
    fn fail(&mut self, done: Completion) -> EventSignal {
        self.failures += usize::from(!self.closed);
        self.push(Event::Failed(done))
    }

    /// Returns the handle of the EP that must be notified of its failure before a consumer may dequeue the oldest
    /// event.
    #[inline]
    pub(super) fn unreported_failure(&self) -> Option<usize> {
        if self.failures == 0 {
            return None;
        }
        match self.events.front() {
            Some(Event::Failed(done)) => Some(done.token.ep),
            _ => None,
        }
    }

    /// Marks all queued failures of this EP as reported. Returns whether any of them was unreported.
    pub(super) fn mark_reported(&mut self, ep: usize) -> bool {
        let before = self.failures;
        if before > 0 {
            for event in self.events.iter_mut() {
                if let Event::Failed(done) = *event
                    && done.token.ep == ep
                {
                    *event = Event::Dto(done);
                    self.failures -= 1;
                }
            }
        }
        self.failures < before
    }

    /// Queues an event, and returns the notification that it causes (spec/events 1.3, 3.6).
    pub(super) fn push(&mut self, event: Event) -> EventSignal {
        if self.closed {
            return EventSignal::None;
        }
        let notifying = event.notifies();
        *self.events.push() = event;
        self.count(notifying);
        match &mut self.waiter {
            Some(waiter) => {
                waiter.notified |= notifying;
                if waiter.asleep && waiter.notified && self.events.len() >= waiter.threshold {
                    waiter.asleep = false;
                    return EventSignal::Waiter;
                }
                EventSignal::None
            }
            None if notifying && self.enabled => EventSignal::Cno,
            None => EventSignal::None,
        }
    }

    /// Removes and returns the oldest event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.non_notifying -= usize::from(!event.notifies());
        Some(event)
    }

    /// Refuses a dequeue while another thread waits on this EVD.
    #[inline(always)]
    pub(super) fn require_no_waiter(&self) -> Result<()> {
        if self.waiter.is_some() { Err(Error::InvalidState(State::EvdWaiter)) } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) fn front(&self) -> Option<&Event> {
        self.events.front()
    }

    /// Removes the oldest event without returning it. `notifying` says whether that event notifies.
    #[inline(always)]
    pub(super) fn drop_front(&mut self, notifying: bool) {
        if !notifying {
            self.non_notifying -= 1;
        }
        self.events.drop_front();
    }

    /// Registers a waiter. The arguments and states are checked in the order of spec/events 2.5.
    pub(super) fn begin_wait(&mut self, token: u64, threshold: i32) -> Result<()> {
        if self.closed {
            // The EVD was freed after the handle was checked. Its waiters have been woken, so nothing would wake a new
            // one.
            return Err(Error::InvalidHandle(Handle::Plain));
        }
        let threshold = usize::try_from(threshold).map_err(|_| Error::InvalidParameter(3))?;
        if threshold == 0 || threshold > self.length {
            return Err(Error::InvalidParameter(3));
        }
        if threshold > 1 && self.config != NotifyMode::Threshold {
            let state =
                if self.config == NotifyMode::Notify { State::EvdConfigNotify } else { State::EvdConfigSolicited };
            return Err(Error::InvalidState(state));
        }
        if self.waiter.is_some() {
            return Err(Error::InvalidState(State::EvdWaiter));
        }
        if !self.waitable {
            return Err(Error::InvalidState(State::EvdUnwaitable));
        }
        // Any events that are queued already can end a wait at its first check, even if they do not notify.
        self.waiter = Some(Waiter { token, threshold, notified: true, asleep: false });
        self.counts.waits += 1;
        Ok(())
    }

    /// Checks whether the wait `token` can end: enough events must be queued for its threshold. After its first check,
    /// a notifying event must also be queued or have been queued meanwhile, unless the timeout has expired.
    pub(super) fn check_wait(&mut self, token: u64, time_is_over: bool) -> WaitStatus {
        let queued = self.events.len();
        match &mut self.waiter {
            Some(waiter) if waiter.token == token => {
                waiter.asleep = false;
                if (waiter.notified || time_is_over) && queued >= waiter.threshold {
                    return WaitStatus::Enough;
                }
                WaitStatus::TooFew
            }
            _ => WaitStatus::Cancelled,
        }
    }

    /// Ends the first check of a wait: from now on, queued events that do not notify no longer end it.
    pub(super) fn end_first_check(&mut self) {
        if let Some(waiter) = &mut self.waiter {
            waiter.notified = self.events.len() > self.non_notifying;
        }
    }

    /// Records that the waiter goes to sleep.
    pub(super) fn set_sleeping(&mut self) {
        if let Some(waiter) = &mut self.waiter {
            waiter.asleep = true;
            self.counts.sleeps += 1;
        }
    }

    /// Removes the waiter with this token, if it is still registered.
    pub(super) fn end_wait(&mut self, token: u64) {
        if self.waiter.is_some_and(|waiter| waiter.token == token) {
            self.waiter = None;
        }
    }

    /// Cancels the wait in progress. Returns true if the waiting thread sleeps and must be woken.
    pub(super) fn cancel_wait(&mut self) -> bool {
        self.waiter.take().is_some_and(|waiter| waiter.asleep)
    }

    /// Changes the length (spec/events 2.8). The caller checks it against the limit of the IA.
    pub(super) fn resize(&mut self, length: usize) -> Result<()> {
        if self.waiter.is_some() {
            return Err(Error::InvalidState(State::EvdWaiter));
        }
        if length < self.events.len() {
            return Err(Error::InvalidState(State::Plain));
        }
        self.length = length;
        Ok(())
    }

    /// Closes the queue, and returns the events that no consumer will dequeue.
    pub(super) fn close(&mut self) -> SlotQueue<Event> {
        self.closed = true;
        self.non_notifying = 0;
        self.failures = 0;
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests;
