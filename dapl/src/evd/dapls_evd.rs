//! What other rooms may ask of an EVD: make one, post into it, end it.
//!
//! Posting never blocks, holds no lock while it wakes or calls somebody, and may run on any thread.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock, Weak};

use dat_abi::DAT_EVD_HANDLE;

use super::dapli_evd::{EvdRef, EvdState, Fetch, Notification};
use super::event::{Event, Stream, Streams};
use super::queue::{Queue, Signal};
use super::{Config, Evd};
use crate::cno::Cno;
use crate::error::{Error, Handle, Resource, Result, State};
use crate::ia::dapls_ia::{self, AsyncEvdChoice};
use crate::ia::{AsyncError, AsyncErrorSink, AsyncKind, Ia, Rank};
use crate::provider::{CqSink, Provider};
use crate::runtime::handle::{self, Created, Usable, Use, UseCount};
use crate::runtime::spin::SpinBudget;
use crate::runtime::sync::Mutex;
use crate::stats::counters::{Completed, Sums};

/// A new EVD: enabled, waitable, empty; its handle is not live yet.
///
/// Errors: those of 2.1 about its length; what the provider says.
pub fn build<P: Provider>(
    ia: &Arc<Ia<P>>,
    length: i32,
    cno: Option<Arc<Cno<P>>>,
    streams: Streams,
) -> Result<Created<Evd<P>>> {
    let length = checked_length(ia, length, Error::Exhausted(Resource::Evd))?;
    handle::create(ia.table(), |id| {
        let evd_ref = Arc::new(EvdRef::<P>::new(id));
        let cq = if streams.has(Stream::Dto) || streams.has(Stream::RmrBind) {
            let sink: Arc<dyn CqSink> = evd_ref.clone();
            Some(Arc::new(ia.provider().create_cq(Arc::downgrade(&sink))?))
        } else {
            None
        };
        Ok(Evd {
            id,
            ia: ia.clone(),
            streams,
            cq,
            evd_ref,
            transfers: OnceLock::new(),
            uses: UseCount::default(),
            spin: SpinBudget::default(),
            inner: Mutex::new(EvdState::new(Queue::new(length), cno.map(Cno::attach))),
        })
    })
}

/// As [`build`], and makes it live in its IA.
pub fn create<P: Provider>(
    ia: &Arc<Ia<P>>,
    length: i32,
    cno: Option<Arc<Cno<P>>>,
    streams: Streams,
) -> Result<DAT_EVD_HANDLE> {
    let evd = build(ia, length, cno, streams)?;
    let object = evd.object().clone();
    let handle = evd.publish();
    let mut inner = object.inner.lock();
    object.join(&inner);
    let signal = object.rearm(&mut inner);
    object.unlock(inner, signal);
    ia.adopt(downgrade(&object), Rank::Evd);
    Ok(handle)
}

/// What to open an IA with, so that it has an async EVD of its own.
pub fn with_ia<P: Provider>(length: i32) -> AsyncEvdChoice<P> {
    AsyncEvdChoice::Make(Box::new(move |ia| {
        let evd = build(ia, length, None, Streams::default().with(Stream::Async))?;
        let object = evd.object().clone();
        evd.publish();
        ia.adopt(downgrade(&object), Rank::AsyncEvd);
        Ok(object as Arc<dyn AsyncErrorSink>)
    }))
}

/// Itself, as its IA knows it.
fn downgrade<P: Provider>(evd: &Arc<Evd<P>>) -> Weak<dyn crate::ia::Child> {
    let child: Arc<dyn crate::ia::Child> = evd.clone();
    Arc::downgrade(&child)
}

/// A length that the IA can give; 0 and less is parameter 2.
fn checked_length<P: Provider>(ia: &Ia<P>, length: i32, too_long: Error) -> Result<usize> {
    let wanted = u32::try_from(length).map_err(|_| Error::InvalidParameter(2))?;
    match wanted {
        0 => Err(Error::InvalidParameter(2)),
        n if n > ia.limits().max_evd_qlen => Err(too_long),
        n => Ok(n as usize),
    }
}

/// Queues an event behind everything that came before it; a closed EVD drops it.
///
/// Errors: `QueueFull` far beyond its length; then the IA's async EVD has been notification.
pub fn post<P: Provider>(evd: &Evd<P>, event: Event) -> Result<()> {
    let (notification, has_room) = evd.append(event);
    notification.deliver();
    if has_room { Ok(()) } else { overflow(evd, event) }
}

/// What is left of a call that was made under a lock from above this room: others are still to be notification, without any lock.
#[must_use = "somebody sleeps until notification"]
pub(crate) struct PendingNotification<P: Provider> {
    evd: Arc<Evd<P>>,
    notification: Notification<P>,
    lost: Option<Event>,
}

impl<P: Provider> PendingNotification<P> {
    /// The event found no room.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Wakes, calls, complains.
    pub(crate) fn deliver(self) {
        self.notification.deliver();
        if let Some(event) = self.lost {
            let _ = overflow(&self.evd, event); // says what the caller knows
        }
    }
}

/// As [`post`], for a caller that holds a lock.
pub(crate) fn enqueue<P: Provider>(evd: &Arc<Evd<P>>, event: Event) -> PendingNotification<P> {
    let (notification, has_room) = evd.append(event);
    PendingNotification { evd: evd.clone(), notification, lost: if has_room { None } else { Some(event) } }
}

/// The EP hears of its failures in this EVD, with its lock held. False: there is none left that it had not heard of.
pub(crate) fn take_failure<P: Provider>(evd: &Evd<P>, ep: usize) -> bool {
    evd.inner.lock().queue.mark_reported(ep)
}

/// Queues what has completed on an EVD with a CNO, so that the CNO reports this EVD before one that an event is queued in later.
/// `None` without a CNO: nobody could tell the order.
pub(crate) fn catch_up<P: Provider>(evd: &Arc<Evd<P>>) -> Option<PendingNotification<P>> {
    let mut inner = evd.inner.lock();
    inner.cno.as_ref()?;
    let signal = evd.fetch_all(&mut inner);
    let notification = evd.signal(&mut inner, signal);
    Some(PendingNotification { evd: evd.clone(), notification, lost: None })
}

/// All that the EP has posted so far is over, and so is its connection: what has failed is no news any more. For a caller
/// that holds the EP's lock.
pub(crate) fn settle<P: Provider>(evd: &Arc<Evd<P>>, ep: usize) -> PendingNotification<P> {
    let mut inner = evd.inner.lock();
    let signal = evd.fetch_all(&mut inner);
    inner.queue.mark_reported(ep);
    let notification = evd.signal(&mut inner, signal);
    PendingNotification { evd: evd.clone(), notification, lost: None }
}

/// An EP with this handle is going to complete here.
pub(crate) fn start_counting<P: Provider>(evd: &Evd<P>, ep: usize) {
    evd.inner.lock().completions.open(ep);
}

/// What the EP has completed here so far.
pub(crate) fn account<P: Provider>(evd: &Evd<P>, ep: usize) -> Completed {
    evd.inner.lock().completions.of(ep)
}

/// What the EP has completed here, to the last; nothing more is counted for it. For a caller that holds the EP's lock.
pub(crate) fn stop_counting<P: Provider>(evd: &Arc<Evd<P>>, ep: usize) -> (Completed, PendingNotification<P>) {
    let mut inner = evd.inner.lock();
    let signal = evd.fetch_all(&mut inner);
    let completed = inner.completions.close(ep);
    let notification = evd.signal(&mut inner, signal);
    (completed, PendingNotification { evd: evd.clone(), notification, lost: None })
}

/// Queues a consumer's event.
///
/// Errors: `InvalidParameter(1)` without the SOFTWARE stream; `QueueFull`, of which nobody else hears.
pub fn post_software<P: Provider>(evd: &Evd<P>, pointer: usize) -> Result<()> {
    if !evd.serves(Stream::Software) {
        return Err(Error::InvalidParameter(1));
    }
    let mut inner = evd.inner.lock();
    let mut signal = evd.fetch(&mut inner, Fetch::Ready);
    let full = inner.queue.is_full();
    if !full {
        signal = signal.max(inner.queue.push(Event::Software { pointer }));
    }
    evd.unlock(inner, signal);
    if full { Err(Error::QueueFull) } else { Ok(()) }
}

/// An event found no room: the IA's async EVD hears of it. Of a lost asynchronous error nobody hears: a full async EVD
/// would be notification of its own overflow.
#[cold]
pub(super) fn overflow<P: Provider>(evd: &Evd<P>, lost: Event) -> Result<()> {
    log::error!("evd {:#x} overflows; an event is lost", evd.id.handle);
    if !matches!(lost, Event::Async(_)) {
        let kind = AsyncKind::EvdOverflow;
        dapls_ia::report(&evd.ia, AsyncError { kind, handle: evd.id.handle, reason: 0 });
    }
    Err(Error::QueueFull)
}

/// Gives it another CNO, or none (2.3).
pub fn modify_cno<P: Provider>(evd: &Evd<P>, cno: Option<Arc<Cno<P>>>) {
    let new = cno.map(Cno::attach);
    let mut inner = evd.inner.lock();
    let old = std::mem::replace(&mut inner.cno, new);
    if let Some(old) = &old {
        old.unwatch(evd.id);
    }
    evd.join(&inner);
    let signal = evd.rearm(&mut inner);
    evd.unlock(inner, signal);
    drop(old);
}

/// It may tell of less from now on; if somebody waits for it, its completion queue is to know before anything comes.
pub fn arm_anew<P: Provider>(evd: &Evd<P>) {
    let mut inner = evd.inner.lock();
    if inner.queue.config() == Config::Solicited {
        let signal = evd.rearm(&mut inner);
        evd.unlock(inner, signal);
    }
}

/// Whether arrivals trigger the CNO (2.4).
pub fn set_enabled<P: Provider>(evd: &Evd<P>, enabled: bool) {
    let mut inner = evd.inner.lock();
    inner.queue.enabled = enabled;
    let signal = evd.rearm(&mut inner);
    evd.unlock(inner, signal);
}

/// Whether it may be waited on (2.9); a waiter is sent away.
pub fn set_waitable<P: Provider>(evd: &Evd<P>, waitable: bool) {
    let mut inner = evd.inner.lock();
    inner.queue.waitable = waitable;
    let signal = if waitable { Signal::None } else { expel(&mut inner) };
    evd.unlock(inner, signal);
}

/// Sends the waiter away; it finds out when it wakes.
fn expel<P: Provider>(inner: &mut EvdState<P>) -> Signal {
    if inner.queue.expel() { Signal::Waiter } else { Signal::None }
}

/// Changes its length (2.8).
pub fn resize<P: Provider>(evd: &Evd<P>, length: i32) -> Result<()> {
    let mut inner = evd.inner.lock();
    if usize::try_from(length) == Ok(inner.queue.length()) {
        return Ok(());
    }
    let length = checked_length(&evd.ia, length, Error::InvalidParameter(2))?;
    inner.queue.resize(length)
}

/// What `dat_evd_query` shows.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its length.
    pub length: usize,
    /// Do arrivals trigger the CNO?
    pub enabled: bool,
    /// May it be waited on?
    pub waitable: bool,
    /// Which completions notify.
    pub config: Config,
    /// Handle of its CNO, or 0.
    pub cno: usize,
}

/// Its state now.
pub fn facts<P: Provider>(evd: &Evd<P>) -> Facts {
    let inner = evd.inner.lock();
    Facts {
        length: inner.queue.length(),
        enabled: inner.queue.enabled,
        waitable: inner.queue.waitable,
        config: inner.queue.config(),
        cno: inner.cno.as_ref().map_or(0, |cno| cno.id().handle),
    }
}

/// Frees it for a consumer.
///
/// Errors: `EvdAsync` for the EVD that was made with its IA, `EvdInUse` while anything feeds it.
pub fn free<P: Provider>(evd: &Evd<P>) -> Result<()> {
    if evd.ia.owns_async_evd(evd.id) {
        return Err(Error::InvalidState(State::EvdAsync));
    }
    evd.uses().close(State::EvdInUse)?;
    if end(evd) { Ok(()) } else { Err(Error::InvalidHandle(Handle::Plain)) }
}

/// Ends it whoever uses it: a waiter leaves with `Aborted`, what comes later is dropped.
pub fn close<P: Provider>(evd: &Evd<P>) {
    end(evd);
}

fn end<P: Provider>(evd: &Evd<P>) -> bool {
    if !handle::destroy(evd.id) {
        return false;
    }
    evd.ia.forget(evd);
    let mut inner = evd.inner.lock();
    let signal = expel(&mut inner);
    // What nobody will get counts as reaped.
    let _ = evd.fetch_all(&mut inner);
    inner.queue.close().iter().for_each(|event| evd.reaped(event));
    evd.ia.bury(&Sums { evds: inner.queue.counts, ..Sums::default() });
    let cno = inner.cno.take();
    evd.unlock(inner, signal);
    let Some(attached) = cno else { return true };
    let cno = attached.arc().clone();
    cno.unwatch(evd.id);
    drop::<Use<_>>(attached);
    cno.detached();
    true
}
