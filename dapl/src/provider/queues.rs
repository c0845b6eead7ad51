//! Completion queues, shared receive queues and queue pairs, and the sinks that hear of them.
//!
//! Traits, and what they take; nothing is implemented here.

use std::sync::{Arc, Weak};

use super::{Bind, BindWr, Completion, Connection, MemoryProvider, Segment, SendWr, Token};
use crate::error::Result;
use crate::runtime::handle::ObjectId;

/// Makes the queues of an adapter.
pub trait QueueProvider: MemoryProvider + Sized {
    /// Completion queue.
    type Cq: CompletionQueue;
    /// Shared receive queue.
    type Srq: SharedReceiveQueue;
    /// Queue pair.
    type Qp: QueuePair<Mr = Self::Mr, Mw = Self::Mw>;

    /// A shared receive queue. Errors: `Exhausted(Srq)` when there are as many as the limits say.
    fn create_srq(&self, pd: &Self::Pd, spec: SrqSpec) -> Result<Self::Srq>;

    /// A completion queue that tells `sink` when it was armed and something came.
    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq>;

    /// A queue pair that takes receives at once.
    fn create_qp(&self, pd: &Self::Pd, spec: QpSpec<Self>) -> Result<Self::Qp>;

    /// The calling thread is about to sleep in a wait, on any object of this IA: it polls no completion queue until it wakes.
    /// Called under the lock of what it waits on.
    fn sleeps(&self) {}
}

/// A completion queue. Its room follows the work posted to it: nothing posted is ever lost here.
pub trait CompletionQueue: Send + Sync {
    /// A completion says whether its message was solicited; else only [`Self::arm`] finds that out, and what a poll takes
    /// before it counts as not solicited.
    const REPORTS_SOLICITED: bool = true;
    /// A poll of one queue makes the progress of all queues of the IA.
    const SHARES_PROGRESS: bool = false;

    /// Makes progress, fills `out` from the front and says how many it filled. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> usize;
    /// As `poll`, but takes only what is there already.
    fn ready(&self, out: &mut [Completion]) -> usize;
    /// No notification is wanted any more: a consumer polls. One that is on its way may still come.
    fn disarm(&self) {}
    /// Nanoseconds at most that a wait looks before it sleeps; within these it learns how long that pays. 0: not at all.
    fn longest_look(&self) -> u32 {
        50_000
    }
    /// Asks for one call of the sink. `false`: a completion already waits, so poll, do not sleep. With `solicited` only
    /// failures and receives whose send carried SOLICITED_WAIT need call it; a transport whose completions do not tell these
    /// apart marks those that a call was made for.
    fn arm(&self, solicited: bool) -> Result<bool>;
}

/// What a new shared receive queue is to be.
pub struct SrqSpec {
    /// Receives in it at most.
    pub max_recvs: u32,
    /// Segments per receive.
    pub max_iov: u32,
    /// Hears when few are left.
    pub sink: Weak<dyn SrqSink>,
}

/// A shared receive queue. Connected queue pairs take receives out of it, each in the order of its peer's sends; one that
/// ends completes what it took, and leaves the rest alone. Dropped, it forgets its receives.
pub trait SharedReceiveQueue: Send + Sync {
    /// Posts a receive; the completion carries the taker's token with this cookie. Errors: `Exhausted(Memory)` when full.
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()>;
    /// Receives that a queue pair could take now.
    fn available(&self) -> u32;
    /// Changes `max_recvs`; what is posted stays. The caller has checked that it fits.
    fn resize(&self, max_recvs: u32) -> Result<()>;
    /// The sink is to hear, once, as soon as fewer than `limit` are available; 0 asks for nothing.
    fn watch(&self, limit: u32) -> Result<()>;
}

/// Where a queue pair takes its receives, if it has no queue of its own.
pub struct SharedRecvs<P: QueueProvider> {
    /// The queue.
    pub srq: Arc<P::Srq>,
    /// What its receives complete with, but for the cookie.
    pub token: Token,
}

/// What a new queue pair is to be.
pub struct QpSpec<P: QueueProvider> {
    /// The EP.
    pub ep: ObjectId,
    /// Receives come out of this; `post_recv` is not called then.
    pub shared: Option<SharedRecvs<P>>,
    /// Where receives complete; `None`: completions are not wanted.
    pub recv_cq: Option<Arc<P::Cq>>,
    /// Where requests complete; `None`: completions are not wanted.
    pub request_cq: Option<Arc<P::Cq>>,
    /// Receives outstanding at most; 0 with a shared queue.
    pub max_recvs: u32,
    /// Requests outstanding at most.
    pub max_requests: u32,
    /// Segments per receive.
    pub max_recv_iov: u32,
    /// Segments per request.
    pub max_request_iov: u32,
    /// Reads of the peer's that it may have outstanding here.
    pub max_reads_in: u32,
    /// Own reads outstanding; more wait in the queue.
    pub max_reads_out: u32,
}

/// Work posted whose completion has not been generated yet. With a shared receive queue: receives taken out of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Outstanding {
    pub recvs: u32,
    pub requests: u32,
}

/// The work of a queue pair: unconnected, connecting, connected, or in error, when all that is posted is flushed at once.
pub trait QueuePair: Connection {
    /// The provider's registered memory.
    type Mr;
    /// The provider's memory window.
    type Mw;

    /// Posts a receive in any state. Errors: `Exhausted(Memory)` when `max_recvs` are outstanding.
    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()>;
    /// Posts a request; before the connection stands it is held. Errors: `Exhausted(Memory)` when the queue is full.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()>;
    /// Posts a bind, or an unbind for `None`, and says the window's new remote key: one it never had before, and good once
    /// the bind is complete, when the old one is dead; 0 for an unbind. A failed or flushed bind leaves the window unbound.
    /// Errors: as `post_send`, and nothing has changed.
    fn post_bind(&self, mw: &Self::Mw, bind: Option<Bind<'_, Self::Mr>>, wr: &BindWr) -> Result<u32>;
    /// Watches how many receives are outstanding, for this and every later connection. Above `soft` the sink hears of it,
    /// once; above `hard` a connection breaks. `None` watches nothing. What is above already counts at once.
    ///
    /// Errors: `ModelNotSupported`.
    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()>;
    /// What is outstanding.
    fn outstanding(&self) -> Outstanding;
    /// Flushes the receives of an unconnected QP and stays usable.
    fn flush_recvs(&self);
}

/// Where a provider reports that an armed completion queue has something. Implemented by `dapl::evd`.
pub trait CqSink: Send + Sync {
    /// Something came since the queue was armed. It is disarmed now.
    fn notify(&self);
}

/// Where a shared receive queue reports that few receives are left. Implemented by `dapl::srq`.
pub trait SrqSink: Send + Sync {
    /// Fewer than the limit were available. The limit is off now.
    fn low(&self);
}
