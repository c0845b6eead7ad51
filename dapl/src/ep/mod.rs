//! Endpoints: one end of a connection, with its two queues of work.
//!
//! Reached from C through `dapl_ep` and `dapl_post`; `cr`, `psp`, `rsp` and `cm` ask through `dapls_ep`. An EP never names a
//! CR: a CR accepts *into* an EP.
//!
//! Two locks, in this order. The **core** holds the state and all that control calls change; the provider is called with it
//! held (its rules allow that), C code never is. The **post_state** holds what a post needs: the QP, read-locked for the length of
//! a post, which costs one uncontended atomic each way, allocates nothing and lets posts of several threads run side by side.
//! Only who replaces, resets or destroys the QP write-locks it, so a post meets either the old queue or the new one, whole.
//! The state that a post looks at is an atomic mirror of the core's.
//!
//! Events are queued in their EVD under the core's lock, in the order of state changes, and told to others without it, since
//! an EVD may run an agent of the consumer's that calls back into this EP.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use dat_counters::text::Text;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::error::{Error, Handle, Result, State};
use crate::evd::Evd;
use crate::ia::{Child, Ia};
use crate::provider::{ConnId, Connection, ConnectionEvent, PeerAddress, Provider};
use crate::pz::Pz;
use crate::runtime::consumer_memory::{Address, PrivateData};
use crate::runtime::handle::{self, Kind, Object, ObjectId, Use};
use crate::runtime::timer::{self, OnExpiry, Ticket};
use crate::srq::Srq;
use crate::stats::counters::{EpCounts, Listing, Posts, Sums};
use crate::stats::trace::Trace;

pub mod attributes;
pub mod dapl_ep;
mod dapl_post;
mod dapli_connect;
mod dapli_counts;
mod dapli_modify;
mod dapli_outbox;
mod dapli_qp;
mod dapli_watch;
pub(crate) mod dapls_bind;
pub mod dapls_ep;
mod record;
pub mod state;

use attributes::{Attributes, Marks, PostLimits, Wired};
use dapli_outbox::Outbox;
use state::{EpState, Step};

/// An endpoint.
pub struct Ep<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    /// `ControlState::state` for those without the core's lock; written under it.
    mirror: AtomicU8,
    /// What is posted and what comes of it, if anybody wants to know.
    trace: Option<Arc<Trace>>,
    /// Declared before the core: the QP goes before the EVDs and the PZ it uses.
    post_state: RwLock<PostState<P>>,
    core: Mutex<ControlState<P>>,
    /// Private data of the last event that carried some.
    event_data: PrivateData,
    remote_address: Address,
    /// The counters as a consumer reads them; made by the first query.
    listing: OnceLock<Listing>,
}

/// What a post needs.
struct PostState<P: Provider> {
    binding: Binding<P>,
    limits: PostLimits,
    /// Here, since the lock around has brought the line already.
    posts: Posts,
}

/// Whether the EP has a QP. It has one whenever it has a PZ.
enum Binding<P: Provider> {
    Unattached,
    Attached(P::Qp),
}

/// What control calls change.
struct ControlState<P: Provider> {
    state: EpState,
    /// Counts attempts to connect and accept: late news carry another number and are dropped.
    attempt: u32,
    wiring: Wiring<P>,
    attributes: Attributes,
    /// The watermarks that are armed: another QP gets them too.
    marks: Marks,
    remote: Option<Remote>,
    /// The running timeout, only in ACP.
    timeout: Option<Ticket>,
    /// The CR whose private data the consumer may still look at; goes with reset, free or the next connection.
    kept_cr: Option<Arc<dyn Any + Send + Sync>>,
    outbox: Outbox<P>,
    /// What is not counted elsewhere: its connections, and completions in EVDs that it has left.
    counts: EpCounts,
    /// The handle is gone, calls that were under way find nothing.
    freed: bool,
}

/// The objects an EP uses.
pub(crate) struct Wiring<P: Provider> {
    pub(crate) pz: Option<Use<Pz<P>>>,
    pub(crate) recv: Option<Use<Evd<P>>>,
    pub(crate) request: Option<Use<Evd<P>>>,
    pub(crate) connect: Option<Use<Evd<P>>>,
    /// Receives come out of this; for life.
    pub(crate) srq: Option<Use<Srq<P>>>,
}

/// Who is at the other end, from the connect call or the request on.
#[derive(Clone)]
struct Remote {
    address: PeerAddress,
    /// The qualifier connected to, or the requester's port.
    qual: u64,
}

impl<P: Provider> Wiring<P> {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Wiring { pz: None, recv: None, request: None, connect: None, srq: None }
    }

    fn wired(&self) -> Wired {
        Wired { recv: self.recv.is_some(), request: self.request.is_some(), shared: self.srq.is_some() }
    }

    /// Whether no object in use was closed with its IA.
    fn is_alive(&self) -> bool {
        let alive = |evd: &Option<Use<Evd<P>>>| evd.as_ref().is_none_or(|evd| is_live(evd));
        let pz = self.pz.as_ref().is_none_or(|pz| handle::from_id::<Pz<P>>(pz.id()).is_some());
        pz && alive(&self.recv) && alive(&self.request) && alive(&self.connect)
    }

    fn has_live_connect_evd(&self) -> bool {
        self.connect.as_ref().is_some_and(|evd| is_live(evd))
    }
}

fn is_live<P: Provider>(evd: &Use<Evd<P>>) -> bool {
    handle::from_id::<Evd<P>>(evd.id()).is_some()
}

impl<P: Provider> Binding<P> {
    /// Errors: `EpNotReady` without a QP.
    fn qp(&self) -> Result<&P::Qp> {
        match self {
            Binding::Attached(qp) => Ok(qp),
            Binding::Unattached => Err(Error::InvalidState(State::EpNotReady)),
        }
    }
}

impl<P: Provider> Ep<P> {
    /// Its name for those who must not keep it alive; `id().handle` is its handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The IA it was made in.
    pub fn ia(&self) -> &Arc<Ia<P>> {
        &self.ia
    }

    /// Its state at this moment.
    pub fn state(&self) -> EpState {
        // Pairs with the Release in `step`.
        EpState::ALL[usize::from(self.mirror.load(Ordering::Acquire))]
    }

    /// The core of an EP that was not freed meanwhile.
    fn open(&self) -> Result<MutexGuard<'_, ControlState<P>>> {
        let core = self.core.lock();
        if core.freed { Err(Error::InvalidHandle(Handle::Ep)) } else { Ok(core) }
    }

    /// What a post needs, for its length.
    fn post_state(&self) -> RwLockReadGuard<'_, PostState<P>> {
        self.post_state.read()
    }

    /// Moves the state, and says what the connect EVD has to hear. A timeout ends with the state that it watches.
    fn step(&self, core: &mut ControlState<P>, step: Step) -> Result<Option<ConnectionEvent>> {
        let (notice, before) = (core.state.notice(step), core.state);
        core.state = before.after(step)?;
        core.counts.add(&dapli_counts::of_step(before, core.state));
        // Pairs with the Acquire in `state`.
        self.mirror.store(core.state as u8, Ordering::Release);
        if core.state == EpState::Connected && core.wiring.srq.is_some() {
            core.outbox.connection_began();
        }
        if core.state != EpState::ActivePending
            && let Some(timeout) = core.timeout.take()
        {
            timer::cancel(timeout);
        }
        Ok(notice)
    }

    /// Moves the state to an end that this side decides: the provider gives the connection or attempt up, all that was
    /// posted is flushed, and the connect EVD hears of it where it should.
    fn end(&self, core: &mut ControlState<P>, step: Step) -> Result<()> {
        let was_live = core.state.is_live();
        let notice = self.step(core, step)?;
        if let (true, Ok(qp)) = (was_live, self.post_state().binding.qp()) {
            qp.abort();
        }
        self.announce(core, notice, None);
        if was_live {
            core.outbox.connection_ended();
        }
        Ok(())
    }

    /// Begins another attempt.
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

    fn counts_as_open(&self) -> bool {
        true
    }

    fn add_counts(&self, sums: &mut Sums) {
        let core = self.core.lock();
        // Those of a freed EP are with its IA already.
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

/// The connect timeout. Whoever takes the EP's lock first while the attempt is pending decides its end; the other finds
/// another state or another attempt, and is silent.
impl<P: Provider> OnExpiry for Ep<P> {
    fn expired(&self, attempt: u32) {
        let mut core = self.core.lock();
        if core.freed || core.attempt != attempt || self.end(&mut core, Step::Event(ConnectionEvent::TimedOut)).is_err()
        {
            return;
        }
        log::debug!("ep {:#x} has no answer in time", self.id.handle);
        drop(core);
        self.deliver();
    }
}

#[cfg(test)]
mod tests;
