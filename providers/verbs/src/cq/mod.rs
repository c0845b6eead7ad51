//! Completion queues: the device's queues, and in front of them completions taken from the device or made in software.
//!
//! A polling thread takes the device's completions and matches them with the queues of the queue pairs. When no
//! thread polls, the device's queue stays armed and the engine polls, so that a failure is detected. While a thread
//! polls, the engine only checks at intervals whether it still does. Lock order: a queue pair's link, completion
//! queue, a queue pair's queues. Only the engine calls sinks.

mod device_queues;
mod members;
mod pending;
pub(crate) mod status;

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dapl::error::{Error, Result};
use dapl::provider::{Completion, CompletionQueue, CqSink};
use ibverbs_sys::ibv_wc;
use parking_lot::{Mutex, MutexGuard};

use self::device_queues::{DeviceQueues, Maker};
use self::members::QpTable;
pub(crate) use self::pending::Solicited;
use self::pending::{Out, PendingCompletions};
use crate::device::Device;
use crate::engine::{Reactor, Source};
use crate::ibv;

/// Maximum number of completions polled from the device at a time.
const BATCH: usize = 16;
/// Interval at which the engine checks whether a thread still polls.
const GUARD: Duration = Duration::from_millis(10);

/// A completion queue, held by the object layer.
pub struct Cq(pub(crate) Arc<CqCore>);

/// Selects one of a queue pair's two queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    Recv,
    Request,
}

/// The state of a completion queue, shared with its queue pairs and the engine.
pub(crate) struct CqCore {
    me: Weak<CqCore>,
    maker: Maker,
    reactor: Arc<Reactor>,
    /// The sink; `None` for a queue without a consumer.
    sink: Option<Weak<dyn CqSink>>,
    inner: Mutex<CqState>,
    polls: AtomicU32,
}

/// State behind the lock.
#[derive(Default)]
pub(crate) struct CqState {
    front: PendingCompletions,
    table: QpTable,
    /// The device's queues, with capacity for all outstanding work.
    queues: DeviceQueues,
    /// The device queue that is polled first.
    turn: usize,
    /// Whether a queue pair uses the queue. Until then arming is deferred, because the consumer may still restrict
    /// notification.
    live: bool,
    /// Whether the engine has scheduled a check; and the number of polls at that time.
    watched: bool,
    seen: u32,
}

/// The locked queue. If a notification becomes due while it is locked, the engine sends it.
pub(crate) struct LockedCq<'a> {
    cq: &'a CqCore,
    inner: MutexGuard<'a, CqState>,
}

impl Deref for LockedCq<'_> {
    type Target = CqState;

    fn deref(&self) -> &CqState {
        &self.inner
    }
}

impl DerefMut for LockedCq<'_> {
    fn deref_mut(&mut self) -> &mut CqState {
        &mut self.inner
    }
}

impl Drop for LockedCq<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.inner.front.due {
            self.notify_soon();
        }
    }
}

impl LockedCq<'_> {
    #[cold]
    fn notify_soon(&mut self) {
        self.inner.front.due = false;
        if let Some(cq) = self.cq.me.upgrade() {
            self.cq.reactor.soon(move || cq.notify());
        }
    }

    /// Adds a completion made in software after all others.
    pub(crate) fn push(&mut self, completion: Completion) {
        self.front.push(completion);
    }
}

impl CqCore {
    /// Creates a queue. Without a sink its completions are dropped.
    pub(crate) fn new(device: &Arc<Device>, sink: Option<Weak<dyn CqSink>>) -> Result<Arc<Self>> {
        let id = device.opened.next_id();
        let (context, channel) = (device.context.clone(), device.channel.clone());
        let maker = Maker { context, channel, id, longest: device.max_cqe() };
        let inner = CqState {
            front: PendingCompletions::new(sink.is_none()),
            queues: DeviceQueues::new(&maker)?,
            ..CqState::default()
        };
        let cq = Arc::new_cyclic(|me| CqCore {
            me: Weak::clone(me),
            maker,
            reactor: device.reactor.clone(),
            sink,
            inner: Mutex::new(inner),
            polls: AtomicU32::new(0),
        });
        device.opened.adopt_queue(id, cq.me.clone());
        Ok(cq)
    }

    #[inline]
    pub(crate) fn lock(&self) -> LockedCq<'_> {
        LockedCq { cq: self, inner: self.inner.lock() }
    }

    /// Finds or creates a queue of the device with capacity for `count` more completions.
    pub(crate) fn reserve(&self, count: u32) -> Result<Arc<ibv::Cq>> {
        self.reserved(|queues| queues.reserve(&self.maker, count))
    }

    /// Same as `reserve`, for a queue pair that uses a shared queue with `count` receives.
    pub(crate) fn reserve_shared(&self, srq: usize, count: u32) -> Result<Arc<ibv::Cq>> {
        self.reserved(|queues| queues.reserve_shared(&self.maker, srq, count))
    }

    fn reserved(&self, reserve: impl FnOnce(&mut DeviceQueues) -> Result<Arc<ibv::Cq>>) -> Result<Arc<ibv::Cq>> {
        let mut inner = self.lock();
        let before = inner.queues.len();
        let cq = reserve(&mut inner.queues)?;
        if inner.queues.len() > before && inner.front.armed {
            cq.arm(inner.front.solicited_only).map_err(|error| self.cannot_arm(&error))?;
        }
        Ok(cq)
    }

    /// Reserves for a shared queue that was resized to `count` receives.
    pub(crate) fn widen_shared(&self, srq: usize, count: u32) -> Result<()> {
        self.lock().queues.widen_shared(&self.maker, srq, count)
    }

    /// Releases reserved capacity.
    pub(crate) fn release(&self, cq: &Arc<ibv::Cq>, count: u32) {
        self.lock().queues.release(cq, count);
    }

    /// Releases the use of a shared queue by a queue pair that was dropped.
    pub(crate) fn release_shared(&self, srq: usize) {
        self.lock().queues.release_shared(srq);
    }

    /// Schedules checks of a queue that possibly no thread polls.
    pub(crate) fn guard(&self) {
        self.watch(&mut self.lock());
    }

    /// Same as [`Self::guard`], after receives are counted: the queue may be armed for fewer events.
    pub(crate) fn guard_count(&self) {
        let mut inner = self.lock();
        if inner.front.armed && !inner.front.solicited_only && self.arm_device(&mut inner, false).is_err() {
            inner.front.armed = false;
        }
        self.watch(&mut inner);
    }

    fn watch(&self, inner: &mut CqState) {
        if !std::mem::replace(&mut inner.watched, true) {
            inner.seen = self.polls.load(Ordering::Relaxed);
            let me: Weak<dyn Source> = self.me.clone();
            self.reactor.after(GUARD, me, 0);
        }
    }

    /// Called when a queue pair is about to be connected.
    pub(crate) fn arm_for_connection(&self) -> Result<()> {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.live, true) && inner.front.wanted {
            let solicited = inner.front.solicited_only;
            self.arm_device(&mut inner, solicited)?;
        }
        Ok(())
    }

    /// Adds a completion made in software.
    pub(crate) fn push(&self, completion: Completion) {
        self.lock().push(completion);
    }

    /// Fetches all completions of the device.
    pub(crate) fn fetch(&self) {
        self.drain(&mut self.lock());
    }

    fn drain(&self, inner: &mut CqState) {
        while self.take(inner, &mut Out { space: &mut [], filled: 0 }, BATCH).is_full {}
    }

    /// Same as [`Self::fill`], with nothing but completions of the only device queue to take: the common case. `None`: this is
    /// not the case, and nothing has happened.
    #[inline(always)]
    fn fill_quickly(&self, inner: &mut CqState, out: &mut [Completion]) -> Option<usize> {
        let CqState { front, table, queues, .. } = inner;
        let cq = queues.only().filter(|_| front.is_quiet() && out.len() <= BATCH)?;
        self.count_poll();
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let taken = cq.poll_into(&mut batch[..out.len()]).ok()?;
        let mut out = Out { space: out, filled: 0 };
        for wc in taken {
            table.complete(front, wc, &mut out);
        }
        Some(out.filled)
    }

    /// A poll that [`Self::fill_quickly`] leaves.
    #[cold]
    #[inline(never)]
    fn fill_rarely(&self, mut inner: LockedCq<'_>, out: &mut [Completion]) -> usize {
        let expects = inner.front.wanted;
        self.fill(&mut inner, out, expects)
    }

    #[inline(always)]
    fn count_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Fills a polling thread's buffer: first with waiting completions, then with the device's. `expects`: the device
    /// is armed for a solicited message, and this poll may come before its event.
    #[inline(never)]
    fn fill(&self, inner: &mut CqState, out: &mut [Completion], expects: bool) -> usize {
        let before = inner.front.solicited;
        if expects && inner.front.armed {
            inner.front.may_be_solicited();
        }
        self.count_poll();
        let mut out = Out { space: out, filled: 0 };
        if !inner.front.is_empty() {
            inner.front.give(&mut out);
        }
        while out.left() > 0 {
            let most = out.left();
            if !self.take(inner, &mut out, most).is_full {
                break;
            }
        }
        let filled = out.filled;
        // These include the solicited message that the consumer was notified of.
        inner.front.solicited = before && filled == 0;
        filled
    }

    /// Fetches up to `most` completions of the device.
    #[inline]
    fn take(&self, inner: &mut CqState, out: &mut Out<'_>, most: usize) -> Taken {
        let CqState { front, table, queues, turn, .. } = inner;
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let most = most.min(BATCH);
        for _ in 0..queues.len() {
            let Some(cq) = queues.get(*turn) else { break };
            let taken = match cq.poll_into(&mut batch[..most]) {
                Ok(taken) => taken,
                Err(error) => {
                    log::error!("{}: a completion queue cannot be polled: {error}", self.maker.context.name());
                    &[]
                }
            };
            for wc in taken {
                table.complete(front, wc, out);
            }
            if taken.len() == most {
                return Taken { is_full: true };
            }
            // This queue is empty; other queues may have more.
            if queues.len() > 1 {
                *turn = (*turn + 1) % queues.len();
                if !taken.is_empty() {
                    return Taken { is_full: true };
                }
            }
        }
        Taken { is_full: false }
    }

    /// Handles an event: the device has completions, and its queue is not armed.
    fn has_event(&self) {
        let mut inner = self.lock();
        inner.front.armed = false;
        inner.front.may_be_solicited();
        let is_wanted = std::mem::take(&mut inner.front.wanted);
        if inner.table.is_used() {
            self.watch(&mut inner);
        }
        drop(inner);
        if is_wanted {
            self.notify();
        }
    }

    fn notify(&self) {
        if let Some(sink) = self.sink.as_ref().and_then(Weak::upgrade) {
            sink.notify();
        }
    }

    fn arm_device(&self, inner: &mut CqState, solicited: bool) -> Result<()> {
        for cq in inner.queues.iter() {
            cq.arm(solicited).map_err(|error| self.cannot_arm(&error))?;
        }
        inner.front.armed = true;
        Ok(())
    }

    fn cannot_arm(&self, error: &std::io::Error) -> Error {
        log::error!("{}: a completion queue cannot be armed: {error}", self.maker.context.name());
        Error::Internal
    }
}

/// Result of polling the device's queues.
struct Taken {
    /// Whether there may be more completions.
    is_full: bool,
}

impl Source for CqCore {
    /// Checks whether a thread still polls. If not, the engine polls for failures.
    fn expired(&self, _: u64) {
        let mut inner = self.lock();
        inner.watched = false;
        if !inner.table.is_used() || !inner.live {
            return;
        }
        if self.polls.load(Ordering::Relaxed) != inner.seen {
            return self.watch(&mut inner);
        }
        // The consumer's notification excludes events that the provider needs, so the engine has to poll.
        let must_poll = inner.front.solicited_only && inner.table.counts_recvs();
        if must_poll {
            self.drain(&mut inner);
            return self.watch(&mut inner);
        }
        if !inner.front.armed {
            self.drain(&mut inner);
            // A queue armed for all events cannot be armed for fewer.
            let solicited = inner.front.solicited_only || inner.table.wants_failures_only();
            if self.arm_device(&mut inner, solicited).is_err() {
                return self.watch(&mut inner);
            }
            self.drain(&mut inner);
        }
        // From here on the device reports events.
    }
}

impl CompletionQueue for Cq {
    const REPORTS_SOLICITED: bool = false;

    #[inline(always)]
    fn poll(&self, out: &mut [Completion]) -> usize {
        let mut inner = self.0.lock();
        if let Some(filled) = self.0.fill_quickly(&mut inner, out) {
            return filled;
        }
        self.0.fill_rarely(inner, out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        // The device has completions already, so the caller polls.
        self.0.fill(&mut self.0.lock(), out, true)
    }

    fn arm(&self, solicited: bool) -> Result<bool> {
        let cq = &*self.0;
        let mut inner = cq.lock();
        if !inner.front.is_empty() {
            return Ok(false);
        }
        inner.front.solicited_only = solicited;
        if !inner.live {
            inner.front.wanted = true;
            return Ok(true);
        }
        cq.arm_device(&mut inner, solicited)?;
        // Completions from before the arming cause no event, so it is unknown whether they were solicited.
        let before = std::mem::replace(&mut inner.front.solicited, solicited);
        cq.drain(&mut inner);
        inner.front.solicited = before;
        inner.front.wanted = inner.front.is_empty();
        Ok(inner.front.wanted)
    }
}
