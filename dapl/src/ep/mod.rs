//! Endpoints (EPs): an EP is one end of a connection, with a request queue and a receive queue.
//!
//! C calls come through `dapl_ep` and `dapl_post`; other modules use `dapls_ep`, `dapls_post` and `dapls_bind`. This
//! module does not import `cr`: a CR accepts into an EP, and the EP keeps the CR only as an opaque object.
//!
//! An EP has two locks, acquired in this order:
//!
//! - `ControlState` (mutex) holds the DAT state and all other fields that control calls change. While it is locked, the
//!   provider may be called, but no agent of the consumer.
//! - `PostState` (`post_lock`) holds the QP and limits for posts. Posts share the lock, so threads post concurrently.
//!   Replacing, resetting or destroying the QP excludes posts, so a post sees either the old or the new QP.
//!
//! Posts read the DAT state from an atomic copy. Events are queued in their EVD under the control lock, in the order of
//! state changes. They are notified without that lock, since an agent of the consumer may call back into this EP.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use dat_counters::text::Text;
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};

use crate::error::{Error, Handle, Result, State};
use crate::evd::Evd;
use crate::ia::{Child, Ia};
use crate::provider::{ConnId, Connection, ConnectionEvent, PeerAddress, Provider};
use crate::pz::Pz;
use crate::runtime::consumer_memory::{PrivateData, SocketAddress};
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseGuard};
use crate::runtime::timer::{self, DeadlineId, OnExpiry};
use crate::srq::Srq;
use crate::stats::counters::{EpCounts, IaSums, Listing, Posts};
use crate::stats::trace::Trace;

pub mod attributes;
mod communicator;
pub mod dapl_ep;
mod dapl_post;
mod dapli_connect;
mod dapli_counts;
mod dapli_modify;
mod dapli_outbox;
mod dapli_qp;
pub(crate) mod dapls_bind;
pub mod dapls_ep;
pub mod dapls_post;
mod post_lock;
mod record;
pub mod state;

pub use communicator::Communicator;

use attributes::{AttachedQueues, Attributes, HighWatermarks, PostLimits};
use dapli_outbox::PendingEvents;
use post_lock::PostLock;
use state::{EpState, EpStep};

pub struct Ep<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// Copy of `ControlState::state` for readers without the control lock; written under that lock.
    mirror: AtomicU8,
    /// Trace of posts and completions, if tracing is on.
    trace: Option<Arc<Trace>>,
    /// Declared before the control state, so that the QP is dropped before the EVDs and the PZ it uses.
    post_state: PostLock<P>,
    core: Mutex<ControlState<P>>,
    /// Private data of the last event that carried data.
    event_data: PrivateData,
    remote_address: SocketAddress,
    /// The counters in the form that a consumer reads; created by the first query.
    listing: OnceLock<Listing>,
}

/// The data that posts use; see the module documentation.
struct PostState<P: Provider> {
    /// An EP with a PZ always has a QP; other EPs have none.
    qp: Option<P::Qp>,
    limits: PostLimits,
    /// Counters of posts. They are stored beside the QP, because a post has loaded that cache line already.
    posts: Posts,
}

/// The data that control calls use; see the module documentation.
struct ControlState<P: Provider> {
    state: EpState,
    /// Number of the current attempt to connect or accept. Events of earlier attempts are dropped.
    attempt: u32,
    objects: EpObjects<P>,
    attributes: Attributes,
    /// The watermarks that the consumer has set, without a soft one that was exceeded and reported. They are also set
    /// in a QP that replaces the current one.
    marks: HighWatermarks,
    remote: Option<EpPeer>,
    /// The communicator for connects to common service points.
    communicator: Communicator,
    /// The running connect timeout; present only in the state `ActivePending`.
    timeout: Option<DeadlineId>,
    /// The CR whose private data the consumer may still read. Dropped by a reset, a free or the next connection.
    kept_cr: Option<Arc<dyn Any + Send + Sync>>,
    outbox: PendingEvents<P>,
    /// Counts of connects, disconnects and resets, and of completions in EVDs that the EP no longer uses.
    counts: EpCounts,
    /// Whether the EP was freed: calls in progress then return `InvalidHandle`.
    freed: bool,
}

/// The objects that an EP uses.
pub(crate) struct EpObjects<P: Provider> {
    pub(crate) pz: Option<UseGuard<Pz<P>>>,
    pub(crate) recv: Option<UseGuard<Evd<P>>>,
    pub(crate) request: Option<UseGuard<Evd<P>>>,
    pub(crate) connect: Option<UseGuard<Evd<P>>>,
    /// The SRQ whose receives the EP uses; set at creation.
    pub(crate) srq: Option<UseGuard<Srq<P>>>,
}

/// The peer, known from the connect call or from the accepted request.
#[derive(Clone)]
struct EpPeer {
    address: PeerAddress,
    /// The qualifier that the EP connects to, or the requester's port.
    qual: u64,
}

impl<P: Provider> EpObjects<P> {
    pub(crate) fn none() -> Self {
        EpObjects { pz: None, recv: None, request: None, connect: None, srq: None }
    }

    /// The EVDs of receives and requests, which may be the same.
    fn dto_evds(&self) -> [Option<UseGuard<Evd<P>>>; 2] {
        [self.recv.clone(), self.request.clone()]
    }

    fn attached(&self) -> AttachedQueues {
        AttachedQueues { recv: self.recv.is_some(), request: self.request.is_some(), shared: self.srq.is_some() }
    }

    /// Whether the PZ and the EVDs are still open. An EVD may belong to another IA, whose abrupt close closes the EVD.
    fn is_alive(&self) -> bool {
        let alive = |evd: &Option<UseGuard<Evd<P>>>| evd.as_ref().is_none_or(|evd| is_live(evd));
        let pz = self.pz.as_ref().is_none_or(|pz| handle::from_id::<Pz<P>>(pz.id).is_some());
        pz && alive(&self.recv) && alive(&self.request) && alive(&self.connect)
    }

    fn has_live_connect_evd(&self) -> bool {
        self.connect.as_ref().is_some_and(|evd| is_live(evd))
    }
}

fn is_live<P: Provider>(evd: &UseGuard<Evd<P>>) -> bool {
    handle::from_id::<Evd<P>>(evd.id).is_some()
}

impl<P: Provider> PostState<P> {
    /// Returns the QP. Errors: `InvalidState(EpNotReady)` if there is none.
    fn qp(&self) -> Result<&P::Qp> {
        self.qp.as_ref().ok_or(Error::InvalidState(State::EpNotReady))
    }
}

impl<P: Provider> Ep<P> {
    /// Current DAT state.
    #[inline(always)]
    pub fn state(&self) -> EpState {
        // Pairs with the Release in `step`.
        EpState::ALL[usize::from(self.mirror.load(Ordering::Acquire))]
    }

    #[inline(always)]
    fn is_connected(&self) -> bool {
        self.mirror.load(Ordering::Acquire) == EpState::Connected as u8
    }

    /// Locks the control state. Errors: `InvalidHandle` if the EP was freed.
    fn open(&self) -> Result<MutexGuard<'_, ControlState<P>>> {
        let core = self.core.lock();
        if core.freed { Err(Error::InvalidHandle(Handle::Ep)) } else { Ok(core) }
    }

    /// Locks the post state for reading.
    fn post_state(&self) -> RwLockReadGuard<'_, PostState<P>> {
        self.post_state.read()
    }

    /// Makes a state transition, and returns the event for the connect EVD. A transition out of `ActivePending` cancels
    /// the connect timeout.
    fn step(&self, core: &mut ControlState<P>, step: EpStep) -> Result<Option<ConnectionEvent>> {
        let (notice, before) = (core.state.connection_event(step), core.state);
        core.state = before.after(step)?;
        core.counts.add(&dapli_counts::of_step(before, core.state));
        // Pairs with the Acquire in `state`.
        self.mirror.store(core.state as u8, Ordering::Release);
        if core.state == EpState::Connected && core.objects.srq.is_some() {
            core.outbox.connection_began();
        }
        if core.state != EpState::ActivePending
            && let Some(timeout) = core.timeout.take()
        {
            timer::cancel(timeout);
        }
        Ok(notice)
    }

    /// Makes a transition by which the local side ends the connection or attempt. If there is one, the provider aborts
    /// it and flushes all posted work. The event of the transition, if any, is queued in the connect EVD.
    fn end(&self, core: &mut ControlState<P>, step: EpStep) -> Result<()> {
        let was_live = core.state.is_live();
        let notice = self.step(core, step)?;
        if let (true, Ok(qp)) = (was_live, self.post_state().qp()) {
            qp.abort();
        }
        self.queue_event(core, notice, None);
        if was_live {
            core.outbox.connection_ended();
        }
        Ok(())
    }

    /// Begins a new attempt to connect or accept, with the next number.
    fn next_attempt(&self, core: &mut ControlState<P>) -> ConnId {
        core.attempt = core.attempt.wrapping_add(1);
        ConnId { ep: self.id, attempt: core.attempt }
    }
}

impl<P: Provider> Object for Ep<P> {
    const KIND: Kind = Kind::Ep;
}

impl<P: Provider> Child for Ep<P> {
    fn close(&self) {
        dapls_ep::close(self);
    }

    fn add_counts(&self, sums: &mut IaSums) {
        let core = self.core.lock();
        // The free has already added these counts to those of the IA.
        if !core.freed {
            sums.eps.add(&self.counts(&core));
        }
    }

    fn describe(&self, text: &mut Text) {
        let core = self.core.lock();
        if !core.freed {
            self.describe_counts(&core, text);
        }
    }
}

/// The connect timeout. The timeout and the provider's report both take the EP's lock. The first one decides the
/// outcome of the attempt; the second one finds another state or attempt number and has no effect.
impl<P: Provider> OnExpiry for Ep<P> {
    fn expired(&self, attempt: u32) {
        let mut core = self.core.lock();
        if core.freed
            || core.attempt != attempt
            || self.end(&mut core, EpStep::Event(ConnectionEvent::TimedOut)).is_err()
        {
            return;
        }
        log::debug!("ep {:#x}: the timeout of its connect has expired", self.id.handle);
        drop(core);
        self.deliver();
    }
}

#[cfg(test)]
mod tests;
