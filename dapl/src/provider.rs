//! All that dapl and a transport say to each other.
//!
//! Downwards the object layer calls a [`Provider`] and the objects it makes: protection domains, memory regions and windows,
//! completion queues, queue pairs, shared receive queues, listeners, requests. Upwards a provider calls the three sinks,
//! [`CmSink`], [`CqSink`] and [`SrqSink`].
//! Every `.so` holds one provider, so all of this is static.
//!
//! Rules that hold for every transport:
//! - **The sinks are called from a thread of the provider's own, with no lock of the provider held that a down-call could
//!   want, and never from inside a down-call.** dapl may hold the EP's and the EVD's lock while it calls down.
//! - Down-calls do not block on the network or on a peer.
//! - For one [`ConnId`] the provider reports one failure, or `Established` and later one end; nothing after that.
//! - No receive of a connection completes before its `Established` was reported.
//! - Every accepted work request completes exactly once, in post order per queue, and its completion is in the CQ before
//!   the sink hears of the end of the connection. Successful requests marked `suppress` complete without a [`Completion`].
//! - A work request that fails other than by flush ends the connection: the rest is flushed and `Broken` is reported,
//!   whether or not anybody polls.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::handle::ObjectId;

/// What a transport supplies. One per provider library.
pub trait Provider: Sized + Send + Sync + 'static {
    /// Protection domain.
    type Pd: Send + Sync;
    /// Registered memory; dropping it deregisters, and after that no transfer touches the memory.
    type Mr: MemoryRegion;
    /// Memory window.
    type Mw: MemoryWindow;
    /// One of those who registered the same shared memory; dropping it leaves, and the last one out cleans up.
    type Membership: Send + Sync;
    /// Completion queue.
    type Cq: CompletionQueue;
    /// Shared receive queue.
    type Srq: SharedReceiveQueue;
    /// Queue pair.
    type Qp: QueuePair<Mr = Self::Mr, Mw = Self::Mw>;
    /// A listener; dropping it stops listening and frees the qualifier. Requests already reported stay answerable.
    type Listener: Send + Sync;
    /// A connection request; dropping it unanswered rejects it.
    type Request: ConnRequest<Qp = Self::Qp>;

    /// Name for logs and attributes, such as "sm".
    const NAME: &'static str;

    /// Opens the interface adapter. Errors are logged where they are found, with object, cause and remedy.
    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self>;

    /// What this IA can do; constant while it is open.
    fn limits(&self) -> &Limits;

    /// Named facts for `provider_specific_attr`, such as the method of RMA in use.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The address peers connect to.
    fn address(&self) -> SocketAddr;

    /// A new protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Registers `region`. Errors: `InvalidParameter(3)` for memory that is not there.
    fn register(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr>;

    /// As `register`, of memory that is mapped as shared and registered as such: a transport may pass on to its peers what is
    /// behind it, and their transfers then touch that, as hardware does, whatever is mapped there later.
    fn register_shared(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr> {
        self.register(pd, region, access)
    }

    /// Joins those who registered shared memory under `cookie`, in any process of this provider; the first makes the entry.
    /// A process that dies leaves.
    ///
    /// Errors: `InvalidParameter(4)` when the others say another length.
    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Self::Membership>;

    /// A window that is not bound.
    fn alloc_mw(&self, pd: &Self::Pd) -> Result<Self::Mw>;

    /// A shared receive queue. Errors: `Exhausted(Srq)` when there are as many as the limits say.
    fn create_srq(&self, pd: &Self::Pd, spec: SrqSpec) -> Result<Self::Srq>;

    /// A completion queue that tells `sink` when it was armed and something came.
    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq>;

    /// A queue pair that takes receives at once.
    fn create_qp(&self, pd: &Self::Pd, spec: QpSpec<Self>) -> Result<Self::Qp>;

    /// Starts listening. Requests may be reported, for `id`, before this returns.
    ///
    /// Errors: `ConnQualTaken` when somebody listens there.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Self::Listener>;

    /// Ends everything at once: peers see a disconnect, threads are joined; the sinks hear nothing more.
    fn close(&self);
}

/// Which interface adapter to open.
#[derive(Clone, Copy, Debug)]
pub struct IaSpec<'a> {
    /// Name in the registry.
    pub name: &'a str,
    /// The `ia_params` field of its line.
    pub params: &'a str,
}

/// What an IA can do: the source of `DAT_IA_ATTR` and of the checks on EP attributes. Counts fit in 31 bits.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the attributes")]
pub struct Limits {
    pub max_eps: u32,
    /// Per EP and direction.
    pub max_dtos: u32,
    pub max_evds: u32,
    pub max_evd_qlen: u32,
    pub max_iov: u32,
    pub max_lmrs: u32,
    pub max_lmr_size: u64,
    pub max_pzs: u32,
    /// Bytes.
    pub max_message: u64,
    /// Bytes.
    pub max_rdma: u64,
    pub max_rmrs: u32,
    pub max_srqs: u32,
    /// Reads outstanding per EP, as target.
    pub max_reads_in: u32,
    /// Reads outstanding per EP, as initiator.
    pub max_reads_out: u32,
    /// Bytes of private data with a connect.
    pub private_data_connect: usize,
    /// Bytes of private data with an accept.
    pub private_data_accept: usize,
    pub vendor: String,
    /// Major, minor.
    pub hardware_version: (u32, u32),
    /// Major, minor.
    pub firmware_version: (u32, u32),
}

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Region {
    /// First byte.
    pub address: u64,
    /// Bytes; `address + length` does not wrap.
    pub length: u64,
}

/// What may be done with registered memory. Local reading always may.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Access {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
}

/// Registered memory.
pub trait MemoryRegion: Send + Sync {
    /// Names it in local segments; never 0.
    fn local_key(&self) -> u32;
    /// Names it to peers; 0 without any remote access.
    fn remote_key(&self) -> u32;
}

/// What processes that share memory call it: 40 bytes, compared as they are.
pub type SharedCookie = [u8; 40];

/// A window onto a part of a registered region, under a remote key of its own. Unbound at first; dropping it unbinds at once,
/// and after that no transfer of a peer's touches the memory by its key.
pub trait MemoryWindow: Send + Sync {
    /// A bind was accepted, and has not been undone, nor failed, nor been flushed.
    fn is_bound(&self) -> bool;
}

/// Kept by whoever depends on it, and let go once.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// What a window is bound to. The remote rights need not be rights of the region.
pub struct Bind<'a, Mr> {
    /// The registration.
    pub mr: &'a Mr,
    /// The part of it.
    pub region: Region,
    /// What the peer may do there.
    pub access: Access,
    /// Keeps the registration: dropped when the window is bound elsewhere, unbound, or when the bind fails or is flushed.
    pub keep: Keep,
}

/// A request to bind or unbind a window. Nothing that is posted later starts before it is complete.
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    /// Comes back with the completion.
    pub token: Token,
    /// No completion if it succeeds.
    pub suppress: bool,
    /// Starts only after all earlier reads of this QP are complete.
    pub fence: bool,
}

/// A piece of local memory, laid out as `DAT_LMR_TRIPLET`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Segment {
    /// The `local_key` of the region.
    pub key: u32,
    /// Never looked at; consumers leave it uninitialised.
    pub pad: u32,
    /// First byte.
    pub address: u64,
    /// Bytes; with 0 the other fields are not looked at.
    pub length: u64,
}

/// A piece of the peer's memory: where an RDMA operation begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// The `remote_key` that the peer gave out.
    pub key: u32,
    /// First byte, in the peer's addresses.
    pub address: u64,
}

/// What the completion of a work request carries back, unchanged: all that an event needs, so nobody looks anything up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token {
    /// The consumer's.
    pub cookie: u64,
    /// The EP's handle as the event will show it.
    pub ep: usize,
    /// What kind of work this is.
    pub work: Work,
    /// Handle of the other object concerned: the SRQ a receive came from, the RMR that is bound; else 0.
    pub object: usize,
    /// Posted with UNSIGNALLED: the completion is queued but notifies nobody.
    pub unsignalled: bool,
    /// Its number in the EP's trace; 0: not traced.
    pub post: u32,
}

/// Kinds of work, as far as their events and counters differ.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Work {
    #[default]
    Send,
    Recv,
    Read,
    Write,
    /// A receive out of a shared queue.
    SharedRecv,
    Bind,
}

impl Work {
    /// A receive, out of whichever queue.
    pub fn is_recv(self) -> bool {
        matches!(self, Work::Recv | Work::SharedRecv)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Op {
    Send { solicited: bool },
    Write(Remote),
    Read(Remote),
}

impl Op {
    /// What its completion is of.
    pub fn work(self) -> Work {
        match self {
            Op::Send { .. } => Work::Send,
            Op::Write(_) => Work::Write,
            Op::Read(_) => Work::Read,
        }
    }

    /// Where it begins at the peer.
    pub fn remote(self) -> Option<Remote> {
        match self {
            Op::Send { .. } => None,
            Op::Write(remote) | Op::Read(remote) => Some(remote),
        }
    }
}

/// A request: send, RDMA write or RDMA read.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// What to do.
    pub op: Op,
    /// Local memory; copied before the post returns.
    pub segments: &'a [Segment],
    /// Comes back with the completion.
    pub token: Token,
    /// No completion if it succeeds.
    pub suppress: bool,
    /// Starts only after all earlier reads of this QP are complete.
    pub fence: bool,
}

/// How a work request ended (events-transfers-memory.md 4.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names are the specification's")]
#[repr(u8)]
pub enum Status {
    #[default]
    Success,
    Flushed,
    LocalLength,
    LocalEp,
    LocalProtection,
    BadResponse,
    RemoteAccess,
    RemoteResponder,
    Transport,
    ReceiverNotReady,
    BindFailed,
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    /// What the post gave.
    pub token: Token,
    /// How it ended.
    pub status: Status,
    /// Bytes moved, on success.
    pub bytes: u64,
    /// A receive whose send carried SOLICITED_WAIT.
    pub solicited: bool,
}

impl Completion {
    /// Whether it releases waiters (events-transfers-memory.md 1.3): all do, but a success that was posted UNSIGNALLED. A
    /// receive on an EP that waits for solicited messages is posted so, and `solicited` undoes it.
    #[inline]
    pub fn is_loud(&self) -> bool {
        !self.token.unsignalled || self.solicited || self.status != Status::Success
    }
}

/// A completion queue. Its room follows the work posted to it: nothing posted is ever lost here.
pub trait CompletionQueue: Send + Sync {
    /// A completion says whether its message was solicited; else only [`Self::arm`] finds that out, and what a poll takes
    /// before it counts as not solicited.
    const TELLS_SOLICITED: bool = true;

    /// Makes progress, fills `out` from the front and says how many it filled. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> usize;
    /// As `poll`, but takes only what is there already.
    fn ready(&self, out: &mut [Completion]) -> usize;
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
pub struct SharedRecvs<P: Provider> {
    /// The queue.
    pub srq: Arc<P::Srq>,
    /// What its receives complete with, but for the cookie.
    pub token: Token,
}

/// What a new queue pair is to be.
pub struct QpSpec<P: Provider> {
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

/// One attempt to connect, and the connection that comes of it: late reports meet a dead generation or attempt.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ConnId {
    /// The EP.
    pub ep: ObjectId,
    /// Counts the EP's attempts.
    pub attempt: u32,
}

/// Work posted whose completion has not been generated yet. With a shared receive queue: receives taken out of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Outstanding {
    pub recvs: u32,
    pub requests: u32,
}

/// Where to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSpec<'a> {
    /// The peer's IA.
    pub address: &'a PeerAddress,
    /// Its service point.
    pub qual: u64,
    /// For its consumer; within `Limits::private_data_connect`.
    pub private_data: &'a [u8],
}

/// An IA address as a consumer gives it; ports are never looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PeerAddress {
    Ip(std::net::IpAddr),
    /// `AF_UNIX`: a path.
    Path(std::path::PathBuf),
}

/// A queue pair: unconnected, connecting, connected, or in error, when all that is posted is flushed at once.
pub trait QueuePair: Send + Sync {
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
    /// Starts connecting; the sink hears the outcome.
    ///
    /// Errors: `InvalidAddress(Unreachable)` for what can be seen at once; then the sink hears nothing.
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Lets the requests finish (receives stay until then), then ends the connection; the sink hears `Disconnected`.
    fn drain(&self);
    /// Ends the connection or attempt now and tells the peer; everything posted is flushed before this returns.
    /// The sink hears nothing more of it.
    fn abort(&self);
    /// Back to unconnected and empty, ready to connect again; what was posted is flushed before this returns.
    fn reset(&self) -> Result<()>;
    /// Flushes the receives of an unconnected QP and stays usable.
    fn flush_recvs(&self);
}

/// A connection request, answered once.
pub trait ConnRequest: Send + Sync + Sized {
    /// The QP that it can be accepted into.
    type Qp;
    /// Accepts into `qp`, which is unconnected; the sink hears `Established` or `AcceptFailed` for `conn`.
    ///
    /// A requester that has left is no error here: the sink hears `AcceptFailed`. Errors: the QP cannot take it; the
    /// request is consumed and the peer rejected.
    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Refuses it as the consumer's own decision.
    fn reject(self);
    /// Gives it to whoever listens on `qual` on this host, as a request of the same peer's with the same private data.
    ///
    /// Errors, with the request back and unchanged: `InvalidParameter(2)` when nobody listens there.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)>;
}

/// Facts about a request, as `dat_cr_query` shows them.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// The requester's IA address; the port is its source port, if the transport has one.
    pub peer: SocketAddr,
    /// The bytes that were sent, or as many as the transport always carries.
    pub private_data: Vec<u8>,
    /// How many of them the consumer is told of; who looks further finds the rest.
    pub told: usize,
}

/// News of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CmEvent<'a> {
    /// It stands. `private_data` is the acceptor's (active side only).
    Established {
        /// The bytes that were sent, or as many as the transport always carries; empty on the passive side.
        private_data: &'a [u8],
    },
    /// The peer's consumer said no.
    PeerRejected,
    /// Somebody else said no: nobody listens, no room, not understood.
    Rejected,
    /// The peer could not be found or did not answer.
    Unreachable,
    /// An accepted request came to nothing.
    AcceptFailed,
    /// The peer ended it, or went away; or the end of `drain`.
    Disconnected,
    /// A transfer or the transport failed.
    Broken,
}

/// Where a provider reports requests and connections. Implemented by `dapl::cm`.
pub trait CmSink<P: Provider>: Send + Sync {
    /// A request for the listener made with `listener`. `Err` gives it back when nobody listens there any more or nobody
    /// has room: the provider refuses it as `Rejected`.
    fn request(
        &self,
        listener: ObjectId,
        request: P::Request,
        info: RequestInfo,
    ) -> std::result::Result<(), P::Request>;
    /// News of a connection or attempt.
    fn event(&self, conn: ConnId, event: CmEvent<'_>);
    /// An EP has more receives outstanding than its soft watermark.
    fn many_recvs(&self, ep: ObjectId);
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
