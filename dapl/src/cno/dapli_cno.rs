//! A wait on a CNO in steps, between which the thread sleeps. The first step looks for a trigger, polls the EVDs, spins
//! and arms the CQs; a step after a sleep looks for a trigger and arms the CQs.
//!
//! `dapl_cno_wait` runs the steps and makes the sleeps. Any number of threads may wait. Each trigger wakes one of them.
//! All of them wake when the last attached EVD is freed or the CNO is closed.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dat_abi::DAT_TIMEOUT;

use parking_lot::MutexGuard;

use super::triggers::TriggerQueue;
use super::{Cno, EvdSource, PollPass};
use crate::error::{Error, Handle};
use crate::ffi::Agent;
use crate::provider::Provider;
use crate::runtime::descriptor::Descriptor;
use crate::runtime::handle::{self, ObjectId};
use crate::runtime::thread::ThreadId;
use crate::runtime::wait::{self, Deadline, ThreadWait, WakeCause};

/// The fields protected by the CNO's lock.
#[derive(Default)]
pub(super) struct CnoState {
    pub(super) triggers: TriggerQueue,
    /// The attached EVDs, each with its limit of the polling time in nanoseconds. Before it sleeps, a waiter polls all
    /// EVDs, at most for the largest of these limits.
    pub(super) sources: Arc<[(Arc<dyn EvdSource>, u32)]>,
    /// Tokens of all threads in `dat_cno_wait`, except those that are still in `wait_quickly`.
    pub(super) waiters: Vec<u64>,
    pub(super) asleep: Vec<u64>,
    /// Waiters that were released because the last attached EVD was freed or the CNO was closed, and that have not
    /// returned yet.
    pub(super) released: Vec<u64>,
    /// The last attached EVD was freed while no thread waited. The next wait must return without an EVD.
    pub(super) orphaned: bool,
    pub(super) agent: Option<Agent>,
    /// The file descriptor; readable while EVDs have triggered.
    pub(super) descriptor: Option<Descriptor>,
    /// Threads that are about to call an agent of this CNO, or are executing one.
    pub(super) calling: Vec<ThreadId>,
    /// The CNO was freed or closed: EVDs that trigger it are no longer queued.
    pub(super) is_freed: bool,
}

impl CnoState {
    /// Whether polling by the waiters suffices. It does not if an agent or a descriptor depends on notifications of a
    /// CQ.
    pub(super) fn may_be_polled(&self) -> bool {
        self.agent.is_none() && self.descriptor.is_none()
    }

    /// Removes and returns the EVD that triggered first.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Arc<dyn EvdSource>> {
        let source = self.triggers.pop();
        self.update_descriptor();
        source
    }

    /// Makes the descriptor readable if EVDs have triggered, and not readable otherwise.
    pub(super) fn update_descriptor(&mut self) {
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.set_readable(!self.triggers.is_empty());
        }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum CnoWaitResult {
    /// Handle of the EVD that triggered; 0 if the last attached EVD was freed or the CNO was closed.
    Evd(usize),
    Fail(Error),
    /// The thread sleeps while the futex word has this value.
    Sleep(u32),
}

/// Begins a wait. `has_polled`: [`Cno::wait_quickly`] has just polled the EVDs.
pub(super) fn begin<P: Provider>(cno: &Cno<P>, timeout: DAT_TIMEOUT, has_polled: bool) -> (ThreadWait, CnoWaitResult) {
    let mut wait = ThreadWait::new(cno.id);
    let polling = loop {
        let mut inner = cno.inner.lock();
        // A trigger that is queued already needs neither a waiter nor a poll. Over a network each poll is a system
        // call.
        if let Some(source) = inner.pop() {
            drop(inner);
            if source.pending(cno.id) {
                return (wait, CnoWaitResult::Evd(source.id().handle));
            }
            continue;
        }
        if inner.is_freed {
            // The CNO was freed after the handle was checked, so nothing would wake a new waiter.
            return (wait, CnoWaitResult::Fail(Error::InvalidHandle(Handle::Cno)));
        }
        if std::mem::take(&mut inner.orphaned) {
            return (wait, CnoWaitResult::Evd(0));
        }
        inner.waiters.push(wait.token);
        if inner.asleep.is_empty() && inner.may_be_polled() {
            cno.polled.store(true, Ordering::Relaxed);
        }
        break cno.polling(&inner);
    };
    if !has_polled && let Some(next) = cno.poll_and_take(&polling, wait.token) {
        return (wait, next);
    }
    if timeout == 0 {
        return (wait, cno.next_trigger(wait.token, WakeCause::TimedOut));
    }
    wait.deadline = Deadline::after(timeout);
    let found = cno.spin(&wait, polling);
    (wait, found.unwrap_or_else(|| cno.poll_and_arm(wait.token, WakeCause::Woken)))
}

/// The EVDs that a waiting thread polls, copied from the CNO. They are valid while `Cno::changes` has not changed.
pub(super) struct PolledEvds {
    sources: Arc<[(Arc<dyn EvdSource>, u32)]>,
    /// Value of `Cno::changes` when the EVDs were copied. While `Cno::changes` has this value, no EVD has triggered
    /// since.
    changes: u32,
}

/// Polls the EVDs. EVDs with new events trigger the CNO. As an exception, if `takes` is set, the first EVD that has new
/// events and no descriptor does not trigger the CNO. Instead it is returned, with the value of `Cno::changes` at that
/// moment.
fn poll_all(cno: ObjectId, polling: &PolledEvds, takes: bool) -> Option<(&Arc<dyn EvdSource>, u32)> {
    let mut pass = PollPass { cno, polls_device: true, takes, taken_at: None };
    let mut found = None;
    for (source, _) in &*polling.sources {
        source.poll(&mut pass);
        found = found.or(pass.taken_at.map(|changes| (source, changes)));
    }
    found
}

/// Continues a wait after a sleep. If the CNO no longer exists, its IA was closed, because `dat_cno_free` fails while
/// threads wait. The wait then ends without an EVD.
pub(super) fn resume<P: Provider>(wait: &ThreadWait, cause: WakeCause) -> CnoWaitResult {
    match handle::from_id::<Cno<P>>(wait.id) {
        Some(cno) => cno.poll_and_arm(wait.token, cause),
        None => CnoWaitResult::Evd(0),
    }
}

/// Removes the waiter of a thread that was cancelled in its sleep, and wakes another waiter if triggers are pending.
pub(super) fn clear<P: Provider>(id: ObjectId, token: u64) {
    if let Some(cno) = handle::from_id::<Cno<P>>(id) {
        cno.remove_waiter(token);
    }
}

impl<P: Provider> Cno<P> {
    /// Takes the EVD that triggered first and still has events, and returns its handle.
    pub(super) fn take_pending(&self) -> Option<usize> {
        loop {
            let source = self.inner.lock().pop()?;
            if source.pending(self.id) {
                return Some(source.id().handle);
            }
        }
    }

    /// Completes a wait without registering a waiter, if an EVD has triggered or one poll of the EVDs finds an event.
    /// Returns the handle of that EVD, and whether the EVDs were polled. Does not poll while other threads wait, if the
    /// CNO has an agent or a descriptor, if the CNO was freed, or if the wait must end without an EVD.
    #[inline]
    pub(super) fn wait_quickly(&self) -> (Option<usize>, bool) {
        let polling = loop {
            let mut inner = self.inner.lock();
            if let Some(source) = inner.pop() {
                drop(inner);
                if source.pending(self.id) {
                    return (Some(source.id().handle), false);
                }
                continue;
            }
            if !inner.waiters.is_empty() || inner.is_freed || inner.orphaned || !inner.may_be_polled() {
                return (None, false);
            }
            // The CQs are not armed: this thread polls them again, or arms them, before it sleeps.
            self.polled.store(true, Ordering::Relaxed);
            break self.polling(&inner);
        };
        let Some((source, changes)) = poll_all(self.id, &polling, true) else { return (None, true) };
        if changes == polling.changes {
            return (Some(source.id().handle), true);
        }
        // Another EVD has triggered meanwhile, so the found EVD is queued after it.
        let mut inner = self.inner.lock();
        inner.triggers.insert(source.clone());
        self.record_change(&inner);
        drop(inner);
        (self.take_pending(), true)
    }

    /// Fetches completions of the attached EVDs. EVDs with new events trigger the CNO. Called without locks.
    pub(super) fn poll(&self) {
        let polling = self.polling(&self.inner.lock());
        poll_all(self.id, &polling, false);
    }

    fn polling(&self, inner: &CnoState) -> PolledEvds {
        PolledEvds { sources: inner.sources.clone(), changes: self.changes.load(Ordering::Relaxed) }
    }

    /// Increments `changes`, for threads that poll without the lock. The caller holds the lock.
    pub(super) fn record_change(&self, _: &CnoState) {
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Polls the EVDs once, and ends the wait if one of them has new events. If another EVD has triggered since
    /// `polling` was copied, the found EVD is queued after it.
    fn poll_and_take(&self, polling: &PolledEvds, token: u64) -> Option<CnoWaitResult> {
        let (source, changes) = poll_all(self.id, polling, true)?;
        if changes == polling.changes {
            self.remove_waiter(token);
            return Some(CnoWaitResult::Evd(source.id().handle));
        }
        let mut inner = self.inner.lock();
        inner.triggers.insert(source.clone());
        self.record_change(&inner);
        drop(inner);
        self.try_trigger(token)
    }

    /// Like [`Self::next_trigger`], for a thread that polls. Returns `None` if the wait must continue.
    fn try_trigger(&self, token: u64) -> Option<CnoWaitResult> {
        Some(self.next_trigger(token, WakeCause::Woken)).filter(|next| !matches!(next, CnoWaitResult::Sleep(_)))
    }

    /// Polls without sleeping for an adaptive time, as a wait on an EVD does.
    fn spin(&self, wait: &ThreadWait, mut polling: PolledEvds) -> Option<CnoWaitResult> {
        let most = polling.sources.iter().map(|(_, longest)| *longest).max().unwrap_or(0);
        self.spin.poll(most, wait.deadline, || {
            let mut next = self.poll_and_take(&polling, wait.token);
            if next.is_none() && self.changes() != polling.changes {
                polling = self.polling(&self.inner.lock());
                next = self.try_trigger(wait.token);
            }
            next
        })
    }

    /// Looks for a trigger, and arms the CQs before the caller sleeps. Arming triggers the CNO for completions that
    /// have already arrived, so the function looks for a trigger again afterwards.
    fn poll_and_arm(&self, token: u64, cause: WakeCause) -> CnoWaitResult {
        self.inner.lock().asleep.retain(|sleeper| *sleeper != token);
        loop {
            let next = self.next_trigger(token, cause);
            if !matches!(next, CnoWaitResult::Sleep(_)) {
                return next;
            }
            let mut inner = self.inner.lock();
            let known = inner.asleep.contains(&token);
            if known && !self.is_polled() {
                self.ia.provider.sleeps();
                return next;
            }
            if !known {
                inner.asleep.push(token);
            }
            self.arm(inner);
        }
    }

    /// Releases the lock, and then arms the CQs if the waiters have polled them, so that they notify.
    pub(super) fn arm(&self, inner: MutexGuard<'_, CnoState>) {
        let sources = inner.sources.clone();
        let was_polled = self.polled.swap(false, Ordering::Relaxed);
        drop(inner);
        if was_polled {
            sources.iter().for_each(|(source, _)| source.arm());
        }
    }

    /// Ends the wait with the first triggered EVD that still has events, or for another reason. Returns `Sleep` if the
    /// wait must continue.
    fn next_trigger(&self, token: u64, cause: WakeCause) -> CnoWaitResult {
        let next = loop {
            let mut inner = self.inner.lock();
            if let Some(at) = inner.released.iter().position(|released| *released == token) {
                inner.released.swap_remove(at);
                break CnoWaitResult::Evd(0);
            }
            if cause == WakeCause::Interrupted {
                break CnoWaitResult::Fail(Error::Interrupted);
            }
            let Some(source) = inner.pop() else {
                if std::mem::take(&mut inner.orphaned) {
                    break CnoWaitResult::Evd(0);
                }
                if cause == WakeCause::TimedOut {
                    break CnoWaitResult::Fail(Error::QueueEmpty);
                }
                return CnoWaitResult::Sleep(wait::futex_word(self.id).map_or(0, |(_, value)| value));
            };
            drop(inner);
            if source.pending(self.id) {
                break CnoWaitResult::Evd(source.id().handle);
            }
        };
        self.remove_waiter(token);
        next
    }

    /// Removes a waiter. If triggers are pending, wakes the next waiter, since the removed one may have been woken for
    /// them.
    fn remove_waiter(&self, token: u64) {
        let mut inner = self.inner.lock();
        inner.waiters.retain(|waiter| *waiter != token);
        inner.asleep.retain(|waiter| *waiter != token);
        inner.released.retain(|waiter| *waiter != token);
        if inner.triggers.is_empty() || inner.asleep.is_empty() {
            return;
        }
        wait::increment_word(self.id);
        drop(inner);
        wait::wake(self.id, 1);
    }
}
