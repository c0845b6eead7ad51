//! EVD operations for other modules: create, configure, query and free an EVD, post events to it, and count and report
//! the completions of an EP.
//!
//! Any thread may post an event. A post never waits for the consumer, and holds no lock while it wakes a waiter or
//! calls an agent.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};

use dat_abi::*;

use super::dapli_evd::{EvdState, FetchMode};
use super::event::Event;
use super::notification::{EvdNotification, EvdRef};
use super::queue::{EventQueue, EventSignal};
use super::{Evd, NotifyMode};
use crate::cno::Cno;
use crate::error::{Error, Handle, Resource, Result, State};
use crate::ffi::count;
use crate::ia::dapls_ia::{self, AsyncEvdConstructor};
use crate::ia::{AsyncError, AsyncEvd, AsyncKind, CloseRank, Ia};
use crate::provider::{CompletionQueue, CqSink, Provider};
use crate::runtime::empty_check::{EmptyCheck, QueueCheck};
use crate::runtime::handle::{self, Ref, UnpublishedObject, UseCount, UseCounted, UseGuard};
use crate::runtime::spin::SpinBudget;
use crate::runtime::sync::Mutex;
use crate::stats::counters::{Completed, IaSums};

/// Creates an EVD that is enabled, waitable and empty. Its handle is not live yet.
///
/// Errors: `InvalidParameter(2)` for a length of zero or less; `Exhausted(Evd)` for a length above the limit of the IA;
/// those of the provider.
pub fn build<P: Provider>(
    ia: &Arc<Ia<P>>,
    length: i32,
    cno: Option<Arc<Cno<P>>>,
    streams: DAT_EVD_FLAGS,
) -> Result<UnpublishedObject<Evd<P>>> {
    let length = checked_length(ia, length, Error::Exhausted(Resource::Evd))?;
    handle::create(ia.table(), |id| {
        let evd_ref = Arc::new(EvdRef::<P>::new(id));
        const COMPLETIONS: DAT_EVD_FLAGS = DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG | v2::DAT_EVD_EXTENSION_BASE;
        let cq = if streams & COMPLETIONS != 0 {
            let sink: Arc<dyn CqSink> = evd_ref.clone();
            Some(Arc::new(ia.provider.create_cq(Arc::downgrade(&sink))?))
        } else {
            None
        };
        let empty_check = cq.as_ref().and_then(|cq| cq.empty_check());
        // Models have no empty check. Loom requires that each run of a model uses the same addresses, but an empty
        // check is never freed.
        let place = if cfg!(loom) { None } else { handle::set_empty_check(id, EmptyCheck::never()) };
        let _ = empty_check.map(|check| evd_ref.empty_check.set(check));
        let empty_check = empty_check.zip(place).map(|(check, place)| QueueCheck::new(check, place));
        Ok(Evd {
            id,
            ia: ia.clone(),
            streams,
            cq,
            evd_ref,
            transfers: OnceLock::new(),
            uses: UseCount::default(),
            spin: SpinBudget::default(),
            empty_check,
            inner: Mutex::new(EvdState::new(EventQueue::new(length), cno.map(Cno::attach))),
        })
    })
}

/// Like [`build`], but also makes the handle live and adds the EVD to the IA.
pub fn create<P: Provider>(
    ia: &Arc<Ia<P>>,
    length: i32,
    cno: Option<Arc<Cno<P>>>,
    streams: DAT_EVD_FLAGS,
) -> Result<DAT_EVD_HANDLE> {
    let evd = build(ia, length, cno, streams)?;
    let object = evd.object().clone();
    let handle = evd.publish();
    let mut inner = object.lock();
    object.join(&inner);
    let signal = object.rearm(&mut inner);
    object.unlock(inner, signal);
    ia.add_child(&object, CloseRank::Evd);
    Ok(handle)
}

/// Makes `ia::open` create an async EVD of this length.
pub fn with_ia<P: Provider>(length: i32) -> AsyncEvdConstructor<P> {
    Box::new(move |ia| {
        let evd = build(ia, length, None, DAT_EVD_ASYNC_FLAG)?;
        let object = evd.object().clone();
        ia.publish(evd, CloseRank::AsyncEvd);
        Ok(AsyncEvd::Own(object))
    })
}

/// Checks a length against the IA's limit; the error for a length above it is `too_long`. A length of zero or less is
/// `InvalidParameter(2)`.
fn checked_length<P: Provider>(ia: &Ia<P>, length: i32, too_long: Error) -> Result<usize> {
    let wanted = u32::try_from(length).map_err(|_| Error::InvalidParameter(2))?;
    match wanted {
        0 => Err(Error::InvalidParameter(2)),
        n if n > ia.limits().max_evd_qlen => Err(too_long),
        n => Ok(n as usize),
    }
}

/// Counts a use of the EVD by an object that reports events of `stream` to it.
///
/// Errors: `InvalidHandle(wanted)` if the EVD does not serve the stream, or is being freed.
pub fn use_for<P: Provider>(evd: &Ref<Evd<P>>, stream: DAT_EVD_FLAGS, wanted: Handle) -> Result<UseGuard<Evd<P>>> {
    if !evd.serves(stream) {
        return Err(Error::InvalidHandle(wanted));
    }
    UseGuard::of_open(evd.to_arc(), wanted)
}

/// Queues an event after all earlier ones. A closed EVD drops it.
///
/// Errors: `QueueFull` if the number of queued events exceeds the length by 65,536. The IA's async EVD then gets an
/// overflow event, unless the lost event is an asynchronous error.
pub fn post<P: Provider>(evd: &Evd<P>, event: Event) -> Result<()> {
    let (notification, has_room) = evd.append(event);
    notification.deliver();
    if has_room { Ok(()) } else { report_overflow(evd, event) }
}

/// The notification of an event that was queued by a caller that holds a lock. The caller delivers it after it has
/// released the lock, because an agent that the notification calls may acquire that lock.
#[must_use = "without deliver() the waiter is not woken"]
pub(crate) struct PendingNotification<P: Provider> {
    evd: Arc<Evd<P>>,
    notification: EvdNotification<P>,
    lost: Option<Event>,
}

impl<P: Provider> PendingNotification<P> {
    /// Whether the event was dropped, because the queue exceeded its length by 65,536 events.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Delivers the notification (see [`EvdNotification::deliver`]), and reports an overflow.
    pub(crate) fn deliver(self) {
        self.notification.deliver();
        if let Some(event) = self.lost {
            let _ = report_overflow(&self.evd, event); // the caller finds the loss by `is_lost`
        }
    }
}

/// Queues an event like [`post`], but notifies no waiter, CNO or agent. The caller holds a lock. After it has released
/// the lock, it must call [`PendingNotification::deliver`] on the result, which also reports an overflow.
pub(crate) fn enqueue<P: Provider>(evd: &Arc<Evd<P>>, event: Event) -> PendingNotification<P> {
    let (notification, has_room) = evd.append(event);
    PendingNotification { evd: evd.clone(), notification, lost: if has_room { None } else { Some(event) } }
}

/// Marks the EP's failed completions in this EVD as reported. The caller holds the EP's lock. Returns true if any of
/// them was not reported before.
pub(crate) fn take_failure<P: Provider>(evd: &Evd<P>, ep: usize) -> bool {
    evd.lock().queue.mark_reported(ep)
}

/// Queues all completions of an EVD that has a CNO, so that the CNO returns this EVD before any EVD that triggers it
/// later. Without a CNO the order is not visible to the consumer, and the function returns `None`.
pub(crate) fn queue_all_completions<P: Provider>(evd: &Arc<Evd<P>>) -> Option<PendingNotification<P>> {
    let mut inner = evd.lock();
    inner.cno.as_ref()?;
    let signal = evd.fetch_all(&mut inner);
    let notification = evd.signal(&mut inner, signal);
    Some(PendingNotification { evd: evd.clone(), notification, lost: None })
}

/// Called when an EP that uses this EVD is reset or freed. Queues all completions in the CQ, and marks the EP's failed
/// completions as reported. The caller holds the EP's lock.
pub(crate) fn queue_and_mark_reported<P: Provider>(evd: &Arc<Evd<P>>, ep: usize) -> PendingNotification<P> {
    let mut inner = evd.lock();
    let signal = evd.fetch_all(&mut inner);
    inner.queue.mark_reported(ep);
    let notification = evd.signal(&mut inner, signal);
    PendingNotification { evd: evd.clone(), notification, lost: None }
}

/// Starts counting the completions of the EP with this handle.
pub(crate) fn start_counting<P: Provider>(evd: &Evd<P>, ep: usize) {
    evd.lock().completions.open(ep);
}

/// Counts of the EP's completions in this EVD so far.
pub(crate) fn completed_by_ep<P: Provider>(evd: &Evd<P>, ep: usize) -> Completed {
    evd.lock().completions.counts_of(ep)
}

/// Queues all completions in the CQ, so that they are counted, stops counting for the EP, and returns its final counts.
/// The caller holds the EP's lock.
pub(crate) fn stop_counting<P: Provider>(evd: &Arc<Evd<P>>, ep: usize) -> (Completed, PendingNotification<P>) {
    let mut inner = evd.lock();
    let signal = evd.fetch_all(&mut inner);
    let completed = inner.completions.close(ep);
    let notification = evd.signal(&mut inner, signal);
    (completed, PendingNotification { evd: evd.clone(), notification, lost: None })
}

/// Queues a software event of the consumer. The EVD serves the SOFTWARE stream.
///
/// Errors: `QueueFull` if the queue is full, which causes no asynchronous error.
pub fn post_software<P: Provider>(evd: &Evd<P>, pointer: usize) -> Result<()> {
    let mut inner = evd.lock();
    let mut signal = evd.fetch(&mut inner, FetchMode::Ready);
    let full = inner.queue.is_full();
    if !full {
        signal = signal.max(inner.queue.push(Event::Software { pointer }));
    }
    evd.unlock(inner, signal);
    if full { Err(Error::QueueFull) } else { Ok(()) }
}

/// Logs a dropped event and reports it on the IA's async EVD. The loss of an asynchronous error is only logged, since a
/// full async EVD cannot report its own overflow.
#[cold]
pub(super) fn report_overflow<P: Provider>(evd: &Evd<P>, lost: Event) -> Result<()> {
    log::error!(
        "evd {:#x} is full, and {} event is lost; create the EVD with a larger length, or dequeue more often",
        evd.id.handle,
        match lost {
            Event::Dto(_) | Event::Failed(_) => "a completion",
            Event::Request { .. } => "a connection request",
            Event::Connection { .. } => "a connection",
            Event::Async(_) => "an asynchronous error",
            Event::Software { .. } => "a software",
        }
    );
    if !matches!(lost, Event::Async(_)) {
        let kind = AsyncKind::EvdOverflow;
        dapls_ia::report(&evd.ia, AsyncError { kind, handle: evd.id.handle, reason: 0 });
    }
    Err(Error::QueueFull)
}

/// Replaces the EVD's CNO; `None` detaches it (spec/events 2.3).
pub fn modify_cno<P: Provider>(evd: &Evd<P>, cno: Option<Arc<Cno<P>>>) {
    let new = cno.map(Cno::attach);
    let mut inner = evd.lock();
    let old = std::mem::replace(&mut inner.cno, new);
    inner.observers_changed();
    if let Some(old) = &old {
        old.unwatch(evd.id);
    }
    evd.join(&inner);
    let signal = evd.rearm(&mut inner);
    evd.unlock(inner, signal);
    drop(old);
}

/// Called when an EP has begun to use the EVD or has changed its completion flags. If an EP of the EVD notifies, or has
/// notified, for solicited messages only, and a waiter, CNO or descriptor needs the CQ armed, arms it in the new mode.
pub fn rearm_for_streams<P: Provider>(evd: &Evd<P>) {
    let mut inner = evd.lock();
    if inner.queue.config() == NotifyMode::Solicited {
        let signal = evd.rearm(&mut inner);
        evd.unlock(inner, signal);
    }
}

/// Sets whether events trigger the CNO (spec/events 2.4) and make an armed descriptor readable.
pub fn set_enabled<P: Provider>(evd: &Evd<P>, enabled: bool) {
    let mut inner = evd.lock();
    inner.queue.enabled = enabled;
    let signal = evd.rearm(&mut inner);
    evd.unlock(inner, signal);
}

/// Sets whether threads may wait on the EVD (spec/events 2.9). If not, cancels the wait in progress.
pub fn set_waitable<P: Provider>(evd: &Evd<P>, waitable: bool) {
    let mut inner = evd.lock();
    inner.queue.waitable = waitable;
    let signal = if waitable { EventSignal::None } else { cancel_wait(&mut inner) };
    evd.unlock(inner, signal);
}

/// Cancels the wait in progress. The waiting thread returns an error in its next step.
fn cancel_wait<P: Provider>(inner: &mut EvdState<P>) -> EventSignal {
    if inner.queue.cancel_wait() { EventSignal::Waiter } else { EventSignal::None }
}

/// Changes the length of the queue (spec/events 2.8).
pub fn resize<P: Provider>(evd: &Evd<P>, length: i32) -> Result<()> {
    let mut inner = evd.lock();
    if usize::try_from(length) == Ok(inner.queue.length()) {
        return Ok(());
    }
    let length = checked_length(&evd.ia, length, Error::InvalidParameter(2))?;
    inner.queue.resize(length)
}

/// Returns the record for `dat_evd_query`.
pub fn param<P: Provider>(evd: &Evd<P>) -> DAT_EVD_PARAM {
    let ia_handle = evd.ia.consumer_handle();
    let inner = evd.lock();
    let enabled = if inner.queue.enabled { DAT_EVD_STATE_ENABLED } else { DAT_EVD_STATE_DISABLED };
    let waitable = if inner.queue.waitable { DAT_EVD_STATE_WAITABLE } else { DAT_EVD_STATE_UNWAITABLE };
    let config = match inner.queue.config() {
        NotifyMode::Threshold => DAT_EVD_STATE_CONFIG_THRESHOLD,
        NotifyMode::Notify => DAT_EVD_STATE_CONFIG_NOTIFY,
        NotifyMode::Solicited => DAT_EVD_STATE_CONFIG_SOLICITED,
    };
    DAT_EVD_PARAM {
        ia_handle,
        evd_qlen: count(inner.queue.length()),
        evd_state: enabled | waitable | config,
        cno_handle: inner.cno.as_ref().map_or(DAT_HANDLE_NULL, |cno| cno.id.handle as DAT_CNO_HANDLE),
        evd_flags: evd.streams,
    }
}

/// Frees the EVD on behalf of the consumer.
///
/// Errors: `InvalidState(EvdAsync)` for the async EVD that was created with the IA; `InvalidState(EvdInUse)` while an
/// object uses the EVD; `InvalidHandle` if another thread has freed the EVD.
pub fn free<P: Provider>(evd: &Evd<P>) -> Result<()> {
    if evd.ia.owns_async_evd(evd.id) {
        return Err(Error::InvalidState(State::EvdAsync));
    }
    evd.uses().close(State::EvdInUse)?;
    close(evd)
}

/// Closes the EVD even while objects use it. A waiter returns `Aborted`. Queued and later events are dropped, and
/// queued connection requests are rejected. Errors: `InvalidHandle` if the EVD is already closed.
pub(super) fn close<P: Provider>(evd: &Evd<P>) -> Result<()> {
    handle::free(evd.id, Handle::Plain)?;
    evd.ia.remove_child(evd);
    let mut inner = evd.lock();
    let signal = cancel_wait(&mut inner);
    // Completions that the consumer can no longer dequeue count as dequeued, so that their SRQ releases the receives.
    let _ = evd.fetch_all(&mut inner);
    let dropped = inner.queue.close();
    dropped.iter().for_each(|event| evd.reaped(event));
    evd.ia.add_final_counts(&IaSums { evds: inner.queue.counts, ..IaSums::default() });
    let cno = inner.cno.take();
    inner.descriptor = None;
    evd.unlock(inner, signal);
    for event in dropped.iter() {
        if let Event::Request { child, .. } = *event {
            evd.ia.close_request(child); // The consumer cannot answer it, so it is rejected.
        }
    }
    if let Some(attached) = cno {
        let cno = attached.arc().clone();
        cno.unwatch(evd.id);
        drop::<UseGuard<_>>(attached);
        cno.detached();
    }
    Ok(())
}
