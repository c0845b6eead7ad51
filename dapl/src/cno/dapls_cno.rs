//! CNO operations, except waits, for the C entries, for EVDs and for the close of the IA.
//!
//! [`Cno::trigger`], called under the EVD's lock, only records a trigger. After that lock is released,
//! [`CnoNotification::deliver`] wakes a waiter, makes the descriptor readable and calls the agent.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dat_abi::DAT_CNO_HANDLE;
use parking_lot::{Condvar, Mutex};

use super::dapli_cno::CnoState;
use super::{Cno, EvdSource};
use crate::error::{Error, Handle, Result, State};
use crate::ffi::Agent;
use crate::ia::{CloseRank, Ia};
use crate::provider::Provider;
use crate::runtime::descriptor::Descriptor;
use crate::runtime::handle::{self, ObjectId, UseCount, UseCounted, UseGuard};
use crate::runtime::spin::SpinBudget;
use crate::runtime::{thread, wait};

/// Creates a CNO with a live handle in its IA.
pub fn create<P: Provider>(ia: &Arc<Ia<P>>, agent: Option<Agent>) -> Result<DAT_CNO_HANDLE> {
    publish(ia, CnoState { agent, ..CnoState::default() })
}

/// Like [`create`], but with a descriptor. Also returns the descriptor's number.
pub fn create_with_descriptor<P: Provider>(ia: &Arc<Ia<P>>) -> Result<(DAT_CNO_HANDLE, i32)> {
    let descriptor = Descriptor::new()?;
    let number = descriptor.number();
    let cno = publish(ia, CnoState { descriptor: Some(descriptor), ..CnoState::default() })?;
    Ok((cno, number))
}

fn publish<P: Provider>(ia: &Arc<Ia<P>>, state: CnoState) -> Result<DAT_CNO_HANDLE> {
    let cno = handle::create(ia.table(), |id| {
        Ok(Cno {
            id,
            ia: ia.clone(),
            uses: UseCount::default(),
            inner: Mutex::new(state),
            polled: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            spin: SpinBudget::default(),
            agent_done: Condvar::new(),
        })
    })?;
    Ok(ia.publish(cno, CloseRank::Cno))
}

/// Replaces the agent. A call of the old agent that is in progress continues.
pub fn modify_agent<P: Provider>(cno: &Cno<P>, agent: Option<Agent>) {
    if agent.is_some() && cno.is_polled() {
        cno.poll(); // earlier completions must not trigger the new agent
    }
    let mut inner = cno.inner.lock();
    if inner.is_freed {
        return;
    }
    inner.agent = agent;
    if agent.is_some() {
        cno.arm(inner);
    }
}

/// Returns the descriptor of a CNO, which is readable while EVDs have triggered the CNO. The first call creates it. It
/// is closed when the CNO is freed.
///
/// Errors: `InvalidHandle` for a CNO that is being freed; errors of the operating system.
pub fn descriptor<P: Provider>(cno: &Cno<P>) -> Result<i32> {
    let mut inner = cno.inner.lock();
    if inner.is_freed {
        return Err(Error::InvalidHandle(Handle::Cno));
    }
    if let Some(known) = &inner.descriptor {
        return Ok(known.number());
    }
    let made = Descriptor::new()?;
    let number = made.number();
    inner.descriptor = Some(made);
    inner.update_descriptor();
    cno.arm(inner);
    Ok(number)
}

/// Removes triggers of EVDs without events from the front of the queue, up to the first EVD that has events. The
/// descriptor is then readable only if an EVD has events.
pub fn arm_descriptor<P: Provider>(cno: &Cno<P>) {
    loop {
        let Some(source) = cno.inner.lock().pop() else { return cno.ia.provider.sleeps() };
        if source.pending(cno.id) {
            let mut inner = cno.inner.lock();
            inner.triggers.put_back(source);
            cno.record_change(&inner);
            return inner.update_descriptor();
        }
    }
}

/// Removes and returns the first triggered EVD that still has events, without waiting. If other EVDs have triggered,
/// the descriptor stays readable.
///
/// Errors: `QueueEmpty` if no EVD has events; the descriptor is then not readable.
pub fn take_trigger<P: Provider>(cno: &Cno<P>) -> Result<usize> {
    cno.take_pending().ok_or_else(|| {
        // The consumer may sleep on the descriptor next, so the provider is informed.
        cno.ia.provider.sleeps();
        Error::QueueEmpty
    })
}

/// What a recorded trigger causes: a waiter to wake, a descriptor to make readable, an agent to call.
#[must_use = "without deliver() the waiter is not woken"]
pub struct CnoNotification<P: Provider> {
    cno: Arc<Cno<P>>,
    wake: bool,
    agent: Option<Agent>,
    has_descriptor: bool,
    evd: usize,
}

impl<P: Provider> CnoNotification<P> {
    /// Wakes a waiter, makes the descriptor readable and calls the agent. Called by the triggering thread, without
    /// locks.
    pub fn deliver(self) {
        if self.wake {
            wait::wake(self.cno.id, 1);
        }
        if self.has_descriptor {
            self.cno.inner.lock().update_descriptor();
        }
        if let Some(agent) = self.agent {
            agent.call(self.evd);
            self.cno.agent_returned();
        }
    }
}

impl<P: Provider> Cno<P> {
    /// Attaches an EVD: counts it as a user of the CNO, and clears `CnoState::orphaned`.
    pub fn attach(cno: Arc<Self>) -> UseGuard<Self> {
        cno.inner.lock().orphaned = false;
        UseGuard::of(cno)
    }

    /// Adds an attached EVD to the polled EVDs. `longest` is the EVD's limit, in nanoseconds, of the polling time of a
    /// wait. The largest limit of all attached EVDs applies.
    pub fn watch(&self, source: Arc<dyn EvdSource>, longest: u32) {
        let mut inner = self.inner.lock();
        let known = inner.sources.iter().filter(|(known, _)| known.id() != source.id()).cloned();
        inner.sources = known.chain([(source.clone(), longest)]).collect();
        self.record_change(&inner);
    }

    /// Removes a detached EVD from the polled EVDs.
    pub fn unwatch(&self, evd: ObjectId) {
        let mut inner = self.inner.lock();
        inner.sources = inner.sources.iter().filter(|(known, _)| known.id() != evd).cloned().collect();
        self.record_change(&inner);
    }

    /// Whether waiters poll the EVDs themselves, so that no CQ needs to be armed.
    pub fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Records that an EVD has events. Called under the EVD's lock. If `arrival` is true and an agent is armed, the
    /// agent is disarmed and will be called. Returns `None` if no waiter, agent or descriptor is to be notified.
    pub fn trigger(self: &Arc<Self>, source: Arc<dyn EvdSource>, arrival: bool) -> Option<CnoNotification<P>> {
        let evd = source.id().handle;
        let mut inner = self.inner.lock();
        let mut agent = None;
        if !inner.is_freed {
            inner.triggers.insert(source);
            self.record_change(&inner);
            agent = if arrival { inner.agent.take() } else { None };
        }
        if agent.is_some() {
            inner.calling.push(thread::current());
        }
        let wake = !inner.asleep.is_empty();
        if wake {
            wait::increment_word(self.id);
        }
        if inner.asleep.len() == 1 && inner.may_be_polled() {
            // No other waiter sleeps. The woken thread looks for a trigger, and arms the CQs before it sleeps again. So
            // no CQ needs to be armed until then.
            self.polled.store(true, Ordering::Relaxed);
        }
        let has_descriptor = inner.descriptor.is_some();
        let notifies = wake || has_descriptor || agent.is_some();
        notifies.then(|| CnoNotification { cno: self.clone(), wake, agent, has_descriptor, evd })
    }

    /// Called after an attached EVD was freed. If no other EVD is attached, all waiters return and the agent is called
    /// without an EVD (spec/events 2.10).
    pub fn detached(&self) {
        if self.uses.count() == 0 {
            self.release();
        }
    }

    fn release(&self) {
        let mut inner = self.inner.lock();
        inner.orphaned = inner.waiters.is_empty() && !inner.is_freed;
        inner.released = inner.waiters.clone();
        self.record_change(&inner);
        let agent = inner.agent.take();
        if agent.is_some() {
            inner.calling.push(thread::current());
        }
        wait::increment_word(self.id);
        drop(inner);
        wait::wake(self.id, i32::MAX);
        if let Some(agent) = agent {
            agent.call(0);
            self.agent_returned();
        }
    }

    fn agent_returned(&self) {
        let me = thread::current();
        let mut inner = self.inner.lock();
        if let Some(at) = inner.calling.iter().position(|thread| *thread == me) {
            inner.calling.swap_remove(at);
        }
        self.agent_done.notify_all();
    }

    /// Waits until no other thread is executing an agent of this CNO.
    fn await_agents(&self) {
        let me = thread::current();
        let mut inner = self.inner.lock();
        self.agent_done.wait_while(&mut inner, |inner| inner.calling.iter().any(|thread| *thread != me));
    }
}

/// Frees the CNO on behalf of the consumer.
///
/// Errors: `InvalidState(CnoInUse)` while an EVD is attached or a thread waits; `InvalidHandle` if another thread has
/// freed the CNO.
pub fn free<P: Provider>(cno: &Cno<P>) -> Result<()> {
    cno.uses().require_unused(State::CnoInUse)?;
    let mut inner = cno.inner.lock();
    if !inner.waiters.is_empty() {
        return Err(Error::InvalidState(State::CnoInUse));
    }
    // The handle is destroyed under the lock. So a thread that begins to wait later finds no CNO, and a thread that
    // began earlier is in `waiters`.
    handle::free(cno.id, Handle::Cno)?;
    inner.is_freed = true;
    inner.agent = None;
    inner.descriptor = None;
    drop(inner);
    cno.await_agents();
    cno.ia.remove_child(cno);
    Ok(())
}

/// Closes the CNO: waiters return, and the agent is called without an EVD. When this returns, no other thread is
/// executing an agent of the CNO. The calling thread itself may be.
pub fn close<P: Provider>(cno: &Cno<P>) {
    if !handle::destroy(cno.id) {
        return;
    }
    let mut inner = cno.inner.lock();
    inner.is_freed = true;
    inner.descriptor = None;
    drop(inner);
    cno.release();
    cno.await_agents();
    cno.ia.remove_child(cno);
}
