//! A wait on an EVD in steps, between which the thread sleeps. The first step polls, spins, polls again and arms the
//! CQ; a step after a sleep polls and arms the CQ.
//!
//! `dapl_evd_wait` runs the steps and makes the sleeps. A sleeping thread holds no lock and no reference. After the
//! sleep it finds the EVD by its id, and its waiter in the EVD by a token.
#![forbid(unsafe_code)]

use dat_abi::DAT_TIMEOUT;

use super::Evd;
use super::dapli_evd::{EvdState, FetchMode};
use super::event::Event;
use super::queue::{NotifyMode, WaitStatus};
use crate::error::{Error, Result, State};
use crate::provider::{CompletionQueue, Provider};
use crate::runtime::handle::{self, ObjectId};
use crate::runtime::sync::MutexGuard;
use crate::runtime::wait::{self, Deadline, ThreadWait, WakeCause};

/// Result of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum EvdWaitResult {
    /// The event, and the number of events left in the queue.
    Event(Event, usize),
    /// The error, and the number of queued events.
    Fail(Error, usize),
    /// The thread sleeps while the futex word has this value.
    Sleep(u32),
}

/// Begins a wait and runs its first step.
///
/// Errors: an invalid argument, or a state of the EVD that does not allow a wait.
pub(super) fn begin<P: Provider>(
    evd: &Evd<P>,
    timeout: DAT_TIMEOUT,
    threshold: i32,
) -> Result<(ThreadWait, EvdWaitResult)> {
    let mut wait = ThreadWait::new(evd.id);
    let token = wait.token;
    let mut inner = evd.lock();
    inner.queue.begin_wait(token, threshold)?;
    // If enough events are queued, the wait does not poll. So the events of one poll are dequeued before the next poll.
    // The clock is read after this check, and only if the thread may have to wait.
    if !inner.queue.has_enough(threshold) {
        evd.fetch(&mut inner, FetchMode::Poll);
    }
    if timeout == 0 || inner.queue.check_wait(token, false) == WaitStatus::Enough {
        return Ok((wait, evd.finish_wait(inner, token, Some(Error::TimedOut))));
    }
    wait.deadline = Deadline::after(timeout);
    inner.queue.end_first_check();
    if !P::Cq::REPORTS_SOLICITED && inner.queue.config() == NotifyMode::Solicited {
        // The CQ is armed before the next poll, because only an armed CQ recognises a solicited message. An unarmed
        // poll could fetch a solicited message without recognising it, and the wait would not end.
        let next = evd.arm_and_poll(inner, &wait, WakeCause::Start);
        return Ok((wait, next));
    }
    drop(inner);
    Ok((wait, evd.spin(&wait).unwrap_or_else(|| evd.poll_and_arm(&wait, WakeCause::Woken))))
}

/// Runs the step after a sleep.
pub(super) fn resume<P: Provider>(wait: &ThreadWait, cause: WakeCause) -> EvdWaitResult {
    match handle::from_id::<Evd<P>>(wait.id) {
        Some(evd) => evd.poll_and_arm(wait, cause),
        None => EvdWaitResult::Fail(Error::Aborted, 0),
    }
}

/// Removes the waiter of a thread that was cancelled in its sleep. Then arms the CQ if the CNO or the descriptor
/// depends on its notification.
pub(super) fn clear<P: Provider>(id: ObjectId, token: u64) {
    if let Some(evd) = handle::from_id::<Evd<P>>(id) {
        let mut inner = evd.lock();
        inner.queue.end_wait(token);
        let signal = evd.rearm(&mut inner);
        evd.unlock(inner, signal);
    }
}

impl<P: Provider> Evd<P> {
    /// Polls without sleeping for an adaptive time, which grows when polling was successful.
    fn spin(&self, wait: &ThreadWait) -> Option<EvdWaitResult> {
        let most = self.cq.as_ref().map_or(0, |cq| cq.max_spin());
        self.spin.poll(most, wait.deadline, || {
            let mut inner = self.lock();
            self.fetch(&mut inner, FetchMode::Poll);
            let is_over = inner.queue.check_wait(wait.token, false) != WaitStatus::TooFew;
            is_over.then(|| self.finish_wait(inner, wait.token, None))
        })
    }

    /// Polls, and arms the CQ before the caller sleeps. The CQ refuses to be armed while it has a completion; then
    /// polls again, so that no event is missed.
    fn poll_and_arm(&self, wait: &ThreadWait, cause: WakeCause) -> EvdWaitResult {
        let mut inner = self.lock();
        self.fetch(&mut inner, FetchMode::Poll);
        self.arm_and_poll(inner, wait, cause)
    }

    /// Like [`Self::poll_and_arm`], without the first poll.
    fn arm_and_poll(
        &self,
        mut inner: MutexGuard<'_, EvdState<P>>,
        wait: &ThreadWait,
        cause: WakeCause,
    ) -> EvdWaitResult {
        loop {
            let found = inner.queue.check_wait(wait.token, cause == WakeCause::TimedOut);
            let over = match cause {
                WakeCause::TimedOut => Some(Error::TimedOut),
                WakeCause::Interrupted => Some(Error::Interrupted),
                WakeCause::Start | WakeCause::Woken => None,
            };
            if found != WaitStatus::TooFew || over.is_some() {
                return self.finish_wait(inner, wait.token, over);
            }
            match self.cq.as_ref().map_or(Ok(true), |cq| cq.arm(inner.queue.arm_mode())) {
                Ok(true) => break,
                Ok(false) => _ = self.fetch(&mut inner, FetchMode::Poll),
                Err(error) => return self.finish_wait(inner, wait.token, Some(error)),
            }
        }
        inner.queue.set_sleeping();
        self.ia.provider.sleeps();
        let expected = wait::futex_word(self.id).map_or(0, |(_, value)| value);
        EvdWaitResult::Sleep(expected)
    }

    /// Ends a wait. Returns the oldest event if enough events are queued and no signal has interrupted the wait.
    /// Otherwise returns the error `over`, or the reason for which the wait was cancelled.
    fn finish_wait<'a>(
        &'a self,
        mut inner: MutexGuard<'a, EvdState<P>>,
        token: u64,
        over: Option<Error>,
    ) -> EvdWaitResult {
        if inner.queue.unreported_failure().is_some() {
            // This thread is registered as the waiter, so no other thread can dequeue an event meanwhile.
            inner = self.report_failures(inner);
        }
        let found = inner.queue.check_wait(token, over == Some(Error::TimedOut));
        inner.queue.end_wait(token);
        let timed_out = found == WaitStatus::TooFew && over == Some(Error::TimedOut);
        inner.queue.counts.timeouts += u64::from(timed_out);
        let next = match found {
            // No event is dequeued after a signal handler ran (spec/events 1.5).
            WaitStatus::Enough if over != Some(Error::Interrupted) => match inner.queue.pop() {
                Some(event) => {
                    inner.backoff.reset();
                    self.reaped(&event);
                    EvdWaitResult::Event(event, inner.queue.len())
                }
                None => EvdWaitResult::Fail(Error::Internal, 0),
            },
            WaitStatus::Cancelled if inner.queue.closed => EvdWaitResult::Fail(Error::Aborted, 0),
            WaitStatus::Cancelled => EvdWaitResult::Fail(Error::InvalidState(State::EvdUnwaitable), inner.queue.len()),
            _ => EvdWaitResult::Fail(over.unwrap_or(Error::Internal), inner.queue.len()),
        };
        if inner.cno.is_none() {
            return next;
        }
        let signal = self.rearm(&mut inner);
        let notification = self.taken(&mut inner, signal);
        drop(inner);
        notification.deliver();
        next
    }
}
