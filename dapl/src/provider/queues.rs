//! Provider interface for completion queues, shared receive queues and queue pairs, and their sinks.

use std::sync::{Arc, Weak};

use super::{Bind, BindWr, Completion, Connection, MemoryProvider, Op, Segment, SendWr, Token};
use crate::error::{Error, Result};
use crate::runtime::empty_check::EmptyCheck;
use crate::runtime::handle::ObjectId;

/// Creates the queues of an adapter.
pub trait QueueProvider: MemoryProvider + Sized {
    /// Completion queue.
    type Cq: CompletionQueue;
    /// Shared receive queue.
    type Srq: SharedReceiveQueue;
    /// Queue pair.
    type Qp: QueuePair<Mr = Self::Mr, Mw = Self::Mw>;

    /// Creates a shared receive queue. Errors: `Exhausted(Srq)` when the adapter's limit is reached;
    /// `ModelNotSupported` by default.
    fn create_srq(&self, _pd: &Self::Pd, _spec: SrqSpec) -> Result<Self::Srq> {
        Err(Error::ModelNotSupported)
    }

    /// Creates a completion queue that notifies `sink` when it is armed and a completion arrives.
    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq>;

    /// Creates an unconnected queue pair, to which receives may be posted.
    fn create_qp(&self, pd: &Self::Pd, spec: QpSpec<Self>) -> Result<Self::Qp>;

    /// Called before a thread sleeps in a wait on an EVD or CNO of this IA, and when a consumer may next sleep on a
    /// descriptor. The thread polls no completion queue until it wakes. The caller may hold the lock of the EVD or CNO.
    fn sleeps(&self) {}
}

/// The completions for which an armed completion queue notifies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ArmMode {
    /// All completions.
    #[default]
    All,
    /// Only failed and flushed work, and receives whose send carried SOLICITED_WAIT.
    Solicited,
    /// All completions of some work, and those that `Solicited` selects of other work. A transport that cannot
    /// recognise solicited messages notifies for all completions, and sets `solicited` in all receives.
    Mixed,
}

/// A completion queue. It grows with the work posted to it, so it never overflows.
pub trait CompletionQueue: Send + Sync {
    /// Whether completions report that their message was solicited. If false, only an armed queue ([`Self::arm`])
    /// recognises solicited messages; a completion polled before arming counts as not solicited.
    const REPORTS_SOLICITED: bool = true;
    /// Whether a poll of one queue makes progress for all queues of the IA.
    const SHARES_PROGRESS: bool = false;

    /// Makes progress, fills `out` from the front and returns the number of completions. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> usize;
    /// Like `poll`, but only returns completions that are queued already, without making progress.
    fn ready(&self, out: &mut [Completion]) -> usize;
    /// Called when a consumer polls, so that notifications are no longer needed. A notification may still be delivered
    /// afterwards.
    fn disarm(&self) {}
    /// State by which a dequeue detects without a lock that a poll would return no completion. `None` if the transport
    /// does not support it. The queue and its connections keep the state up to date.
    fn empty_check(&self) -> Option<&'static EmptyCheck> {
        None
    }
    /// Upper limit, in nanoseconds, of the time that a wait polls before it sleeps. The actual time adapts below the
    /// limit. 0: a wait does not poll.
    fn max_spin(&self) -> u32 {
        50_000
    }
    /// Requests one call of the sink. Returns `false` if the queue has a completion: the caller must then poll instead
    /// of sleeping. Completions outside `mode` need not notify. With a mode other than `All`, a transport that cannot
    /// recognise solicited messages sets `solicited` in the receives for which it notified.
    fn arm(&self, mode: ArmMode) -> Result<bool>;
}

/// Parameters of a new shared receive queue.
pub struct SrqSpec {
    /// Maximum number of receives.
    pub max_recvs: u32,
    /// Maximum number of segments per receive.
    pub max_iov: u32,
    /// Notified when the queue falls below its low watermark.
    pub sink: Weak<dyn SrqSink>,
}

/// A shared receive queue. Connected queue pairs consume its receives in the order in which their peers' messages
/// arrive. When a queue pair ends, it completes the receives that it has consumed. Dropping the queue discards its
/// remaining receives.
pub trait SharedReceiveQueue: Send + Sync {
    /// Posts a receive. Its completion carries this cookie and the token of the queue pair that consumed it. Errors:
    /// `Exhausted(Memory)` if `max_recvs` receives are posted.
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()>;
    /// Number of posted receives that no message has consumed.
    fn available(&self) -> u32;
    /// Changes `max_recvs`; posted receives stay posted. The caller has checked that they do not exceed the new limit.
    fn resize(&self, max_recvs: u32) -> Result<()>;
    /// Notifies the sink once when fewer than `limit` receives are available; 0 disables the notification.
    fn watch(&self, limit: u32) -> Result<()>;
}

/// The SRQ whose receives a queue pair consumes.
pub struct SharedRecvs<P: QueueProvider> {
    pub srq: Arc<P::Srq>,
    /// Token of the queue pair's receive completions. Its cookie is replaced by that of the consumed receive.
    pub token: Token,
}

/// Parameters of a new queue pair.
pub struct QpSpec<P: QueueProvider> {
    /// Id of the EP.
    pub ep: ObjectId,
    /// The SRQ whose receives the queue pair consumes. `post_recv` is not called on such a queue pair.
    pub shared: Option<SharedRecvs<P>>,
    /// CQ for receive completions. `None`: receives report no completions.
    pub recv_cq: Option<Arc<P::Cq>>,
    /// CQ for request completions. `None`: requests report no completions.
    pub request_cq: Option<Arc<P::Cq>>,
    /// Maximum number of outstanding receives; 0 with an SRQ.
    pub max_recvs: u32,
    /// Maximum number of outstanding requests.
    pub max_requests: u32,
    /// Maximum number of segments of a receive.
    pub max_recv_iov: u32,
    /// Maximum number of segments of a request.
    pub max_request_iov: u32,
    /// Maximum number of RDMA reads that the peer may have outstanding.
    pub max_reads_in: u32,
    /// Maximum number of outstanding RDMA reads of this queue pair; further reads wait in its queue.
    pub max_reads_out: u32,
}

/// Numbers of posted work requests that have not completed yet. For a queue pair with an SRQ, `recvs` counts the SRQ
/// receives that it has consumed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outstanding {
    pub recvs: u32,
    pub requests: u32,
}

/// A queue pair. Its state is unconnected, connecting, connected or error. In the error state, posted work is flushed
/// at once.
pub trait QueuePair: Connection {
    /// The provider's registered memory.
    type Mr;
    /// The provider's memory window.
    type Mw;

    /// Posts a receive, in any state. Errors: `Exhausted(Memory)` when `max_recvs` receives are outstanding.
    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()>;
    /// Posts a request. Before the connection is established, the request waits in the queue.
    ///
    /// Errors: `Exhausted(Memory)` when the queue is full; `ModelNotSupported` for an extension that the provider or
    /// the peer lacks. A request that was queued before the peer's extensions were known completes with
    /// `RemoteResponder` if the peer lacks its extension.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()>;
    /// Whether `post_recv_quickly` and `post_request_quickly` are implemented.
    const POSTS_QUICKLY: bool = false;
    /// Posts a receive of one segment that notifies and is not traced, with as few instructions as possible. Returns
    /// false, without any effect, if the caller must use [`QueuePair::post_recv`] instead.
    #[inline(always)]
    fn post_recv_quickly(&self, _segment: &Segment, _cookie: u64) -> bool {
        false
    }
    /// Like [`QueuePair::post_recv_quickly`], for a send, write or read. If `SUPPRESS` is true, its only flag is
    /// SUPPRESS; otherwise it has no flags. A hazard slot of the calling thread contains the EP's address (see
    /// [`SendWr::announced`]).
    #[inline(always)]
    fn post_request_quickly<const SUPPRESS: bool>(&self, _op: Op, _segment: &Segment, _cookie: u64) -> bool {
        false
    }
    /// Posts a bind, or an unbind if `bind` is `None`. Returns the window's new remote key, or 0 for an unbind. The key
    /// has not been used before. When the bind is complete, the new key is valid and the old key is invalid. A failed
    /// or flushed bind leaves the window unbound.
    ///
    /// Errors: as for `post_send`, with the window unchanged; `ModelNotSupported` by default.
    fn post_bind(&self, _mw: &Self::Mw, _bind: Option<Bind<'_, Self::Mr>>, _wr: &BindWr) -> Result<u32> {
        Err(Error::ModelNotSupported)
    }
    /// Sets watermarks of outstanding receives for this and later connections. Above `soft`, the sink is notified once;
    /// above `hard`, the connection breaks. `None` disables a watermark. A watermark that is already exceeded takes
    /// effect at once.
    ///
    /// Errors: `ModelNotSupported` if the provider has no such watermarks.
    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()>;
    /// Numbers of outstanding receives and requests.
    fn outstanding(&self) -> Outstanding;
    /// Flushes the receives of an unconnected QP, which stays usable.
    fn flush_recvs(&self);
}

/// Receives a notification when an armed completion queue has a completion. Implemented by `dapl::evd`.
pub trait CqSink: Send + Sync {
    /// Called when a completion arrived after the queue was armed. The queue is now disarmed.
    fn notify(&self);
}

/// Receives a notification when a shared receive queue falls below its low watermark. Implemented by `dapl::srq`.
pub trait SrqSink: Send + Sync {
    /// Called when fewer receives than the limit are available. The SRQ then notifies no more until
    /// [`SharedReceiveQueue::watch`] sets a limit again.
    fn low(&self);
}
