//! Provider interface for completion queues, shared receive queues and queue pairs, and their sinks.

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

    /// Creates a completion queue that notifies `sink` when it is armed and a completion arrives.
    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq>;

    /// Creates a queue pair, to which receives may be posted at once.
    fn create_qp(&self, pd: &Self::Pd, spec: QpSpec<Self>) -> Result<Self::Qp>;

    /// The calling thread is about to sleep in a wait, on any object of this IA: it polls no completion queue until it wakes.
    /// Called under the lock of what it waits on.
    fn sleeps(&self) {}
}

/// A completion queue. Its capacity follows the work posted to it, so it never overflows.
pub trait CompletionQueue: Send + Sync {
    /// A completion says whether its message was solicited; else only [`Self::arm`] finds that out, and what a poll takes
    /// before it counts as not solicited.
    const REPORTS_SOLICITED: bool = true;
    /// A poll of one queue makes the progress of all queues of the IA.
    const SHARES_PROGRESS: bool = false;

    /// Makes progress, fills `out` from the front and returns the number of completions. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> usize;
    /// As `poll`, but takes queued completions only, without making progress.
    fn ready(&self, out: &mut [Completion]) -> usize;
    /// No notification is wanted any more: a consumer polls. One that is on its way may still come.
    fn disarm(&self) {}
    /// Longest time in nanoseconds that a wait polls before it sleeps; the wait adapts within it. 0: it does not poll.
    fn longest_look(&self) -> u32 {
        50_000
    }
    /// Requests one call of the sink. Returns `false` if a completion is already there: poll instead of sleeping. With
    /// `solicited`, only failures and receives whose send carried SOLICITED_WAIT need to notify. A transport that cannot
    /// distinguish these marks the completions that it notified for.
    fn arm(&self, solicited: bool) -> Result<bool>;
}

/// Parameters of a new shared receive queue.
pub struct SrqSpec {
    /// Receives in it at most.
    pub max_recvs: u32,
    /// Segments per receive.
    pub max_iov: u32,
    /// Notified at the low watermark.
    pub sink: Weak<dyn SrqSink>,
}

/// A shared receive queue. Connected queue pairs take receives out of it, each in the order of its peer's sends; one that
/// ends completes what it took, and leaves the rest alone. Dropped, it forgets its receives.
pub trait SharedReceiveQueue: Send + Sync {
    /// Posts a receive; the completion carries the SRQ waiter's token with this cookie. Errors: `Exhausted(Memory)` when full.
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()>;
    /// Receives that a queue pair could take now.
    fn available(&self) -> u32;
    /// Changes `max_recvs`; what is posted stays. The caller has checked that it fits.
    fn resize(&self, max_recvs: u32) -> Result<()>;
    /// Notifies the sink once when fewer than `limit` receives are available; 0 disables this.
    fn watch(&self, limit: u32) -> Result<()>;
}

/// The SRQ that a queue pair takes its receives from.
pub struct SharedRecvs<P: QueueProvider> {
    /// The queue.
    pub srq: Arc<P::Srq>,
    /// Token of its receive completions, without the cookie.
    pub token: Token,
}

/// Parameters of a new queue pair.
pub struct QpSpec<P: QueueProvider> {
    /// The EP.
    pub ep: ObjectId,
    /// Receives come out of this; `post_recv` is not called then.
    pub shared: Option<SharedRecvs<P>>,
    /// CQ of receives; `None`: no completions.
    pub recv_cq: Option<Arc<P::Cq>>,
    /// CQ of requests; `None`: no completions.
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

/// Posted work that has not completed yet. With a shared receive queue: receives taken out of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
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
    /// Posts a request; it is held until the connection is established. Errors: `Exhausted(Memory)` when the queue is full;
    /// `ModelNotSupported` for an extension that the provider or the peer does not have. One that was held, and that the peer
    /// turns out not to have, completes with `RemoteResponder`.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()>;
    /// Posts a bind, or an unbind for `None`, and returns the window's new remote key, 0 for an unbind. The key has not been
    /// used before. It is valid once the bind is complete; then the old one is invalid. A failed or flushed bind leaves the
    /// window unbound.
    ///
    /// Errors: as `post_send`, and nothing has changed.
    fn post_bind(&self, mw: &Self::Mw, bind: Option<Bind<'_, Self::Mr>>, wr: &BindWr) -> Result<u32>;
    /// Sets watermarks of outstanding receives for this and every later connection. Above `soft` the sink is notified once;
    /// above `hard` the connection breaks. `None` disables a mark. A mark that is exceeded already takes effect at once.
    ///
    /// Errors: `ModelNotSupported`.
    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()>;
    /// Number of outstanding work requests.
    fn outstanding(&self) -> Outstanding;
    /// Flushes the receives of an unconnected QP and stays usable.
    fn flush_recvs(&self);
}

/// Notified when an armed completion queue has a completion. Implemented by `dapl::evd`.
pub trait CqSink: Send + Sync {
    /// Something came since the queue was armed. It is disarmed now.
    fn notify(&self);
}

/// Notified when a shared receive queue falls below its low watermark. Implemented by `dapl::srq`.
pub trait SrqSink: Send + Sync {
    /// Fewer than the limit were available. The limit is off now.
    fn low(&self);
}
