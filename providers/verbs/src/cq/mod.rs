//! Completion queues: the completion queues of the device, and a software queue of completions that were fetched from
//! them or made in software.
//!
//! A thread that fetches the device's completions matches them with the work of the queue pairs. Consumer threads fetch
//! when they poll, and in some other calls, for example when a post finds its queue full. While no consumer thread
//! polls, the device's queues are armed and the engine thread fetches after their events, so that failures are
//! detected. If the consumer wants events of solicited messages only, but a receive watermark is set, the engine thread
//! polls at intervals instead.
//!
//! While a consumer thread polls, the engine thread leaves the fetching to it, checks at intervals whether polls
//! continue, and looks for overdue sends (`overdue`). Lock order: a queue pair's link, completion queue, a queue pair's
//! queues. Only the engine thread calls sinks.

mod device_queues;
mod members;
mod overdue;
mod pending;
pub(crate) mod status;

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dapl::error::{Error, Result};
use dapl::provider::{ArmMode, Completion, CompletionQueue, CqSink};
use dapl_software::overdue::Stalls;
use ibverbs_sys::ibv_wc;
use parking_lot::{Mutex, MutexGuard};

use self::device_queues::{DeviceCqParams, DeviceQueues};
use self::members::QpTable;
pub(crate) use self::pending::AssumedSolicited;
use self::pending::{PendingCompletions, PollBuffer};
use crate::device::Device;
use crate::engine::{Engine, EventHandler};
use crate::ibv;

/// Maximum number of completions polled from the device at a time.
const BATCH: usize = 16;
/// Interval at which the engine checks whether consumer threads still poll.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The object layer's handle of a completion queue.
pub struct Cq(pub(crate) Arc<CqCore>);

/// Selects one of a queue pair's two queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueueSide {
    Recv,
    Request,
}

/// The state of a completion queue, shared with its queue pairs and the engine.
pub(crate) struct CqCore {
    me: Weak<CqCore>,
    params: DeviceCqParams,
    engine: Arc<Engine>,
    /// `None` for the queue of an EP without an EVD: no consumer sees its completions.
    sink: Option<Weak<dyn CqSink>>,
    inner: Mutex<CqState>,
    polls: AtomicU32,
}

/// The state protected by the lock of a completion queue.
#[derive(Default)]
pub(crate) struct CqState {
    pending: PendingCompletions,
    pub(crate) table: QpTable,
    /// The device's queues, with capacity for all outstanding work.
    queues: DeviceQueues,
    /// The device queue that is polled first.
    next_queue: usize,
    /// Whether a queue pair of the queue was connected, or is being connected. Until then, the device's queues are not
    /// armed: the consumer may still restrict notification, and a device queue cannot be re-armed for fewer events.
    is_connected: bool,
    /// Whether a [`Check::Polls`] of the engine is scheduled.
    is_check_scheduled: bool,
    /// Value of `polls` when the check was scheduled.
    polls_seen: u32,
    /// The oldest outstanding send of each queue pair, by number of the queue pair.
    stalls: Stalls<u32>,
    /// Whether a check for overdue sends is scheduled.
    is_overdue_check_scheduled: bool,
}

/// A periodic check by the engine. The value is the tag of the scheduled call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Check {
    /// Whether consumer threads still poll.
    Polls,
    /// Whether sends are overdue.
    OverdueSends,
}

/// A locked completion queue. If a notification becomes due while the lock is held, the unlock queues it for the
/// engine.
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
        if self.inner.pending.notify_due {
            self.notify_soon();
        }
    }
}

impl LockedCq<'_> {
    #[cold]
    fn notify_soon(&mut self) {
        self.inner.pending.notify_due = false;
        if let Some(cq) = self.cq.me.upgrade() {
            self.cq.engine.run_on_engine(move || cq.notify());
        }
    }

    /// Adds a completion made in software.
    pub(crate) fn push(&mut self, completion: Completion) {
        self.pending.push(completion);
    }
}

impl CqCore {
    /// Creates a queue. If `sink` is `None`, its completions are dropped.
    pub(crate) fn new(device: &Arc<Device>, sink: Option<Weak<dyn CqSink>>) -> Result<Arc<Self>> {
        let id = device.shared_device.next_id();
        let (context, channel) = (device.context.clone(), device.channel.clone());
        let params = DeviceCqParams { context, channel, id, max_capacity: device.max_cqe };
        let inner = CqState {
            pending: PendingCompletions::new(sink.is_none()),
            queues: DeviceQueues::new(&params)?,
            ..CqState::default()
        };
        let cq = Arc::new_cyclic(|me| CqCore {
            me: Weak::clone(me),
            params,
            engine: device.engine.clone(),
            sink,
            inner: Mutex::new(inner),
            polls: AtomicU32::new(0),
        });
        device.shared_device.add_queue(id, cq.me.clone());
        Ok(cq)
    }

    #[inline]
    pub(crate) fn lock(&self) -> LockedCq<'_> {
        LockedCq { cq: self, inner: self.inner.lock() }
    }

    /// Reserves capacity for `count` completions in a queue of the device; creates the queue if necessary. `srq`: id of
    /// the shared receive queue whose receives complete there.
    pub(crate) fn reserve(&self, srq: Option<usize>, count: u32) -> Result<Arc<ibv::Cq>> {
        let mut inner = self.lock();
        let before = inner.queues.len();
        let cq = inner.queues.reserve(&self.params, srq, count)?;
        if inner.queues.len() > before && inner.pending.device_armed {
            cq.arm(inner.pending.is_solicited_only()).map_err(|error| self.cannot_arm(&error))?;
        }
        Ok(cq)
    }

    /// Increases the reservation for a shared receive queue that was resized to `count` receives.
    pub(crate) fn grow_shared(&self, srq: usize, count: u32) -> Result<()> {
        self.lock().queues.grow_shared(&self.params, srq, count)
    }

    /// Releases the capacity that [`Self::reserve`] has reserved in this device queue.
    pub(crate) fn release(&self, cq: &Arc<ibv::Cq>, srq: Option<usize>, count: u32) {
        self.lock().queues.release(cq, srq, count);
    }

    /// Schedules the engine's next check whether consumer threads poll, unless one is scheduled.
    pub(crate) fn schedule_check(&self) {
        self.schedule_next_check(&mut self.lock());
    }

    /// Same as [`Self::schedule_check`], after a receive watermark was set. If the device is armed for failures only,
    /// it is armed for all completions instead.
    pub(crate) fn arm_for_recv_count(&self) {
        let mut inner = self.lock();
        if inner.pending.device_armed
            && !inner.pending.is_solicited_only()
            && self.arm_device(&mut inner, false).is_err()
        {
            inner.pending.device_armed = false;
        }
        self.schedule_next_check(&mut inner);
    }

    fn schedule_next_check(&self, inner: &mut CqState) {
        if !std::mem::replace(&mut inner.is_check_scheduled, true) {
            inner.polls_seen = self.polls.load(Ordering::Relaxed);
            self.engine.schedule(CHECK_INTERVAL, &self.me, Check::Polls as u64);
        }
    }

    /// Called before a queue pair is connected. Schedules the check for overdue sends. The first call also arms the
    /// device, if the consumer has requested a notification.
    pub(crate) fn arm_for_connection(&self) -> Result<()> {
        let mut inner = self.lock();
        self.schedule_overdue_check(&mut inner);
        if !std::mem::replace(&mut inner.is_connected, true) && inner.pending.notify_requested {
            let solicited = inner.pending.is_solicited_only();
            self.arm_device(&mut inner, solicited)?;
        }
        Ok(())
    }

    /// Adds a completion made in software.
    pub(crate) fn push(&self, completion: Completion) {
        self.lock().push(completion);
    }

    /// Fetches all completions in the device's queues into the software queue.
    pub(crate) fn fetch(&self) {
        self.drain(&mut self.lock());
    }

    fn drain(&self, inner: &mut CqState) {
        while self.fetch_batch(inner, &mut PollBuffer { space: &mut [], filled: 0 }, BATCH) {}
    }

    /// Fast path of a poll. It needs one device queue, an empty software queue, a consumer that awaits no notification
    /// from an armed device, receives that do not count as solicited, and a buffer of at most `BATCH` completions.
    /// Returns the number of completions. If a condition is not met or the device cannot be polled, returns `None`, and
    /// takes no completion.
    #[inline(always)]
    fn fill_quickly(&self, inner: &mut CqState, out: &mut [Completion]) -> Option<usize> {
        let CqState { pending, table, queues, .. } = inner;
        let cq = queues.single_queue().filter(|_| pending.allows_fast_poll() && out.len() <= BATCH)?;
        self.count_poll();
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let taken = cq.poll_into(&mut batch[..out.len()]).ok()?;
        let mut out = PollBuffer { space: out, filled: 0 };
        for wc in taken {
            table.complete(pending, wc, &mut out);
        }
        Some(out.filled)
    }

    /// General path of a poll, used if [`Self::fill_quickly`] returns `None`.
    #[cold]
    #[inline(never)]
    fn fill_cold(&self, mut inner: LockedCq<'_>, out: &mut [Completion]) -> usize {
        let expects = inner.pending.notify_requested;
        self.fill(&mut inner, out, expects)
    }

    #[inline(always)]
    fn count_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Fills the buffer of a polling thread, first from the software queue, then from the device. Returns the number of
    /// completions. `expects`: the consumer waits for a notification. In this case, if the device is armed and the mode
    /// is not `All`, receives of this poll count as solicited: the event of a solicited message may arrive after the
    /// poll.
    #[inline(never)]
    fn fill(&self, inner: &mut CqState, out: &mut [Completion], expects: bool) -> usize {
        let before = inner.pending.solicited;
        if expects && inner.pending.device_armed {
            inner.pending.may_be_solicited();
        }
        self.count_poll();
        let mut out = PollBuffer { space: out, filled: 0 };
        if !inner.pending.is_empty() {
            inner.pending.move_to(&mut out);
        }
        while out.remaining() > 0 {
            let most = out.remaining();
            if !self.fetch_batch(inner, &mut out, most) {
                break;
            }
        }
        let filled = out.filled;
        // An earlier event marks the receives of the first poll that returns completions, but not those of later polls.
        inner.pending.solicited = before && filled == 0;
        filled
    }

    /// Fetches up to `most` completions of the device. Returns whether the device may have more.
    #[inline]
    fn fetch_batch(&self, inner: &mut CqState, out: &mut PollBuffer<'_>, most: usize) -> bool {
        let CqState { pending, table, queues, next_queue, .. } = inner;
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let most = most.min(BATCH);
        for _ in 0..queues.len() {
            let Some(cq) = queues.get(*next_queue) else { break };
            let taken = match cq.poll_into(&mut batch[..most]) {
                Ok(taken) => taken,
                Err(error) => {
                    log::error!(
                        "{}: cannot poll a completion queue: {error}; its EVD gets no completions until a poll succeeds",
                        self.params.context.name()
                    );
                    &[]
                }
            };
            for wc in taken {
                table.complete(pending, wc, out);
            }
            if taken.len() == most {
                return true;
            }
            // This device queue is empty; others may have completions.
            if queues.len() > 1 {
                *next_queue = (*next_queue + 1) % queues.len();
                if !taken.is_empty() {
                    return true;
                }
            }
        }
        false
    }

    /// Handles a completion event of the device. The device has disarmed the queue that caused the event.
    pub(super) fn handle_event(&self) {
        let mut inner = self.lock();
        inner.pending.device_armed = false;
        inner.pending.may_be_solicited();
        let is_wanted = std::mem::take(&mut inner.pending.notify_requested);
        if inner.table.is_used() {
            self.schedule_next_check(&mut inner);
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
        inner.pending.device_armed = true;
        Ok(())
    }

    fn cannot_arm(&self, error: &std::io::Error) -> Error {
        log::error!(
            "{}: cannot arm a completion queue: {error}; waits on its EVD fail with DAT_INTERNAL_ERROR",
            self.params.context.name()
        );
        Error::Internal
    }
}

impl EventHandler for CqCore {
    fn expired(&self, tag: u64) {
        if tag == Check::OverdueSends as u64 { self.check_overdue_sends() } else { self.check_polls() }
    }
}

impl CqCore {
    /// Checks whether consumer threads still poll. If not, and the device is not armed, fetches completions, to detect
    /// failures, and arms the device. With a receive watermark, fetches at each check instead if the consumer wants
    /// events of solicited messages only.
    fn check_polls(&self) {
        let mut inner = self.lock();
        inner.is_check_scheduled = false;
        if !inner.table.is_used() || !inner.is_connected {
            return;
        }
        if self.polls.load(Ordering::Relaxed) != inner.polls_seen {
            return self.schedule_next_check(&mut inner);
        }
        // The consumer wants events of solicited messages only, but a receive watermark needs events of all receives.
        // So the engine polls instead of arming the device.
        let must_poll = inner.pending.is_solicited_only() && inner.table.counts_recvs();
        if must_poll {
            self.drain(&mut inner);
            return self.schedule_next_check(&mut inner);
        }
        if !inner.pending.device_armed {
            self.drain(&mut inner);
            // Arms for as few events as possible: each event wakes the engine, and a queue that is armed for all events
            // cannot be re-armed for fewer.
            let solicited = inner.pending.is_solicited_only() || inner.table.wants_failures_only();
            if self.arm_device(&mut inner, solicited).is_err() {
                return self.schedule_next_check(&mut inner);
            }
            self.drain(&mut inner);
        }
        // The device is armed, so the next check is scheduled when it reports an event.
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
        self.0.fill_cold(inner, out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        // The device makes progress without polls, so completions in its queues count as queued.
        self.0.fill(&mut self.0.lock(), out, true)
    }

    fn arm(&self, mode: ArmMode) -> Result<bool> {
        let cq = &*self.0;
        let mut inner = cq.lock();
        if !inner.pending.is_empty() {
            return Ok(false);
        }
        inner.pending.mode = mode;
        if !inner.is_connected {
            inner.pending.notify_requested = true;
            return Ok(true);
        }
        cq.arm_device(&mut inner, mode == ArmMode::Solicited)?;
        // Completions that arrived before the arming cause no event, so it is not known whether they are solicited.
        // They count as solicited if the consumer waits for solicited messages.
        let before = std::mem::replace(&mut inner.pending.solicited, mode != ArmMode::All);
        cq.drain(&mut inner);
        inner.pending.solicited = before;
        inner.pending.notify_requested = inner.pending.is_empty();
        Ok(inner.pending.notify_requested)
    }
}
