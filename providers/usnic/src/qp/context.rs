//! The callbacks of a connection (`ConnCallbacks`): access to consumer memory, receives from the shared queue, and
//! completions.
//!
//! Copies use raw pointers, because no Rust reference to consumer memory may exist. Deregistration waits until the copy
//! is done: for a guard on the registration or, in `gather_short`, for the announced post. The caller holds the lock of
//! the queue pair. A closing connection uses [`ClosingCallbacks`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dapl::provider::{ATOMIC_SIZE, Bind, BindWr, Completion, Op, Region, Segment, SendWr, Status, Token};
use dapl::runtime::handle::ObjectId;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::refused::{FailedCheck, RefusedAccess};
use dapl_software::memory::rights::{AccessRight, PeerIds};
use dapl_software::memory::scatter_gather::{self, LocalMemory, Segments};
use dapl_software::memory::user_copy::{self, TimeSlot};
use dapl_software::memory::window::QpDomain;
use dapl_software::overdue::{OverdueSend, WaitCause};

use crate::Mr;
use crate::cq::CqCore;
use crate::engine::jobs::{Job, Jobs};
use crate::memory::regions::{RegionTable, Regions};
use crate::net::short_packet::ShortPacket;
use crate::proto::Nanos;
use crate::proto::conn::{
    CompletionCallbacks, ConnCallbacks, MemoryCallbacks, PostedData, SendValue, SharedReceiveCallbacks,
};
use crate::proto::wire::{FRAGMENT, Refusal};
use crate::srq::{SrqRecv, SrqWaiter};

pub(crate) type MwCore = dapl_software::memory::window::WindowCore<RegionTable>;

pub(crate) type Windows = dapl_software::memory::window::WindowDirectory<RegionTable>;

/// The data that a connection stores with a posted request.
#[derive(Default)]
pub(crate) struct WorkRequest {
    pub(crate) segments: Segments,
    token: Token,
    suppress: bool,
    kind: RequestKind,
}

#[derive(Default)]
enum RequestKind {
    #[default]
    Transfer,
    /// A bind or unbind of this window, with the number that identifies the operation in the window.
    Bind(Arc<MwCore>, u64),
    /// An invalid request. It completes with this status, in posting order.
    Fail(Status),
}

impl WorkRequest {
    /// Fills this slot with a request. An invalid request has a `failure`, the status with which it completes.
    #[inline(always)]
    pub(crate) fn set(&mut self, wr: &SendWr<'_>, failure: Option<Status>) {
        self.segments.set(wr.segments);
        (self.token, self.suppress) = (wr.token, wr.suppress);
        if failure.is_some() || !matches!(self.kind, RequestKind::Transfer) {
            self.kind = failure.map_or(RequestKind::Transfer, RequestKind::Fail);
        }
    }

    /// Fills this slot with a request of one segment, without flags or with SUPPRESS.
    #[inline(always)]
    pub(crate) fn set_plain(&mut self, segment: &Segment, token: Token, suppress: bool) {
        self.segments.set_one(segment);
        (self.token, self.suppress) = (token, suppress);
        if !matches!(self.kind, RequestKind::Transfer) {
            self.kind = RequestKind::Transfer;
        }
    }

    /// Creates a bind (`bind` is `Some`) or unbind request of the window. Returns the request and the new key.
    pub(crate) fn bind(
        window: &Arc<MwCore>,
        bind: Option<Bind<'_, Mr>>,
        wr: &BindWr,
    ) -> dapl::error::Result<(Self, u32)> {
        let (number, key) = window.post(bind)?;
        let kind = RequestKind::Bind(window.clone(), number);
        Ok((WorkRequest { segments: Segments::default(), token: wr.token, suppress: wr.suppress, kind }, key))
    }
}

/// The data that a connection stores with a posted receive.
#[derive(Debug, Default)]
pub(crate) struct RecvRequest {
    pub(crate) segments: Segments,
    pub(crate) token: Token,
}

/// The shared receive queue of a queue pair.
pub(crate) type QpSrq = dapl_software::srq::SrqUser<dyn SrqWaiter, Job>;

/// The objects that the connection of a queue pair uses: memory tables, completion queues, and the shared receive
/// queue.
pub(crate) struct QpContext {
    pub(crate) regions: Arc<Regions>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) ep: ObjectId,
    pub(crate) pd: u32,
    /// Identifies this queue pair in the checks of windows that only its peer may access.
    pub(crate) domain: Arc<QpDomain>,
    /// Number of the protection domain of receives: that of the shared receive queue, if there is one.
    pub(crate) recv_pd: u32,
    pub(crate) pool: Option<QpSrq>,
    /// Current number of incomplete receives that were taken from the shared queue.
    pub(crate) shared_in_use: AtomicU32,
    /// Maximum of `shared_in_use` since the watermarks were last checked.
    pub(crate) max_shared_in_use: AtomicU32,
    pub(crate) recv_cq: Option<Arc<CqCore>>,
    pub(crate) request_cq: Option<Arc<CqCore>>,
}

impl QpContext {
    /// Returns the identifiers that checks of the peer's accesses need.
    #[inline]
    pub(crate) fn peer_ids(&self) -> PeerIds {
        PeerIds { pd: self.pd, qp: self.domain.number() }
    }

    pub(crate) fn flush_recv(&self, token: Token) {
        if let Some(cq) = &self.recv_cq {
            cq.push(Completion { token, status: Status::Flushed, ..Completion::default() });
        }
    }

    /// Whether the peer has this access. If not, makes the engine log it.
    fn allows_peer(&self, key: u32, range: Region, right: AccessRight) -> bool {
        let is_allowed = self.regions.address_for_peer(key, self.peer_ids(), range, right).is_some();
        if !is_allowed {
            self.report_refused(key, range, right);
        }
        is_allowed
    }

    /// Makes the engine log a memory access of the peer that failed a check.
    #[cold]
    fn report_refused(&self, key: u32, range: Region, right: AccessRight) {
        let check = FailedCheck::of(self.regions.entry(key), self.pd, range, right);
        self.jobs.push(Job::Refused(RefusedAccess { ep: self.ep.handle, cookie: None, key, range, right, check }));
    }

    /// Completes a request. If a bind or unbind is flushed, its window is unbound, even if the bind was executed. The
    /// window stays bound only if a later bind was posted.
    pub(crate) fn complete_request(&self, request: &mut WorkRequest, status: Status, bytes: u64) {
        if let RequestKind::Bind(window, number) = &request.kind {
            if status == Status::Flushed {
                window.flush(*number);
            }
            request.kind = RequestKind::Transfer; // A request slot must not keep a reference to the window.
        }
        if let Some(cq) = self.request_cq.as_ref().filter(|_| status != Status::Success || !request.suppress) {
            cq.push(Completion { token: request.token, status, bytes, ..Completion::default() });
        }
    }

    /// Whether all segments that are not empty are registered for local access, and for writing if `write` is true.
    ///
    /// The access to a segment is checked again when its memory is read or written. Without this check at the post, an
    /// invalid request would fail only after the peer has granted a credit, or never.
    pub(crate) fn is_registered(&self, segments: &[Segment], write: bool) -> bool {
        segments.iter().all(|&Segment { key, address, length, .. }| {
            length == 0 || self.regions.allows(key, self.pd, Region { address, length }, AccessRight::local(write))
        })
    }

    /// Appends `length` bytes of a request's memory to `out`, starting at `offset`.
    pub(crate) fn gather(&self, list: &Segments, offset: u64, length: usize, out: &mut Vec<u8>) -> Result<(), Status> {
        let end = out.len();
        out.resize(end + length, 0);
        // SAFETY: `length` bytes were appended just above, and only this function accesses the new bytes.
        let copied =
            unsafe { scatter_gather::gather(&*self.regions, self.pd, list, offset, out[end..].as_mut_ptr(), length) };
        copied.inspect_err(|_| out.truncate(end))
    }

    /// Copies the memory of a segment into the packet. Returns false if the segment is too long or invalid.
    ///
    /// The copy needs no reference on the registration, because the caller's post is announced
    /// ([`SendWr::announced`]), and deregistration waits for announced posts.
    #[inline(always)]
    pub(crate) fn gather_short(&self, segment: &Segment, packet: &mut ShortPacket<FRAGMENT>) -> bool {
        let Segment { key, address, length, .. } = *segment;
        if length > ShortPacket::<FRAGMENT>::MAX as u64 || !self.regions.allows_segment(self.pd, segment, false) {
            return false;
        }
        let length = length as usize;
        let (to, now) = (packet.payload(), TimeSlot::now());
        // SAFETY: the memory is registered, deregistration waits for this announced post, and the packet has space for
        // `length` bytes.
        let is_copied = unsafe {
            user_copy::read_recent(address, to, length, now)
                || user_copy::read(address, to, length, || self.regions.registration(key))
        };
        if is_copied {
            // SAFETY: `length` bytes were written just above.
            unsafe { packet.set_length(length) };
        }
        is_copied
    }

    /// Appends the bytes of an RDMA read of the peer to `out`.
    pub(crate) fn append_readable(&self, part: &Segment, out: &mut Vec<u8>) -> Result<(), Status> {
        let region = Region { address: part.address, length: part.length };
        let acquired = self.regions.acquire_for_peer(part.key, self.peer_ids(), region, AccessRight::RemoteRead);
        let (_guard, address) =
            acquired.inspect_err(|_| self.report_refused(part.key, region, AccessRight::RemoteRead))?;
        let (end, length) = (out.len(), part.length as usize);
        out.resize(end + length, 0);
        let registration = || self.regions.registration(part.key);
        // SAFETY: the source is registered memory, with a reference on the registration during the copy. The
        // destination was appended just above.
        let is_copied = unsafe { user_copy::read(address, out[end..].as_mut_ptr(), length, registration) };
        if is_copied {
            return Ok(());
        }
        out.truncate(end);
        self.report_refused(part.key, region, AccessRight::RemoteRead);
        Err(Status::RemoteAccess)
    }
}

/// Copies received bytes into the memory of a request or receive, starting at `offset`.
fn scatter(context: &QpContext, pd: u32, list: &Segments, offset: u32, bytes: &[u8]) -> Result<(), Status> {
    // SAFETY: the source is a slice. `scatter` checks each segment of the destination, and holds a reference on its
    // registration during the copy.
    unsafe { scatter_gather::scatter(&*context.regions, pd, list, offset.into(), bytes.as_ptr(), bytes.len()) }
}

impl PostedData for QpContext {
    type Request = WorkRequest;
    type Recv = RecvRequest;
}

/// The callbacks of a transport's connection, and the context that has the memory of its payload.
pub(crate) trait TransportHost: ConnCallbacks<QpContext> {
    /// Returns `None` for a closing connection, which sends no payload.
    fn context(&self) -> Option<&QpContext>;
}

impl TransportHost for &QpContext {
    fn context(&self) -> Option<&QpContext> {
        Some(self)
    }
}

impl MemoryCallbacks<QpContext> for &QpContext {
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool {
        self.allows_peer(key, Region { address, length: length.into() }, AccessRight::remote(write))
    }

    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let region = Region { address, length: bytes.len() as u64 };
        let refused = || {
            self.report_refused(key, region, AccessRight::RemoteWrite);
            Refusal::Access
        };
        let acquired = self.regions.acquire_for_peer(key, self.peer_ids(), region, AccessRight::RemoteWrite);
        let (_guard, address) = acquired.map_err(|_| refused())?;
        let registration = || self.regions.registration(key);
        // SAFETY: the destination is within registered memory, with a reference on the registration during the copy.
        let is_copied = unsafe { user_copy::write(bytes.as_ptr(), address, bytes.len(), registration) };
        if is_copied { Ok(()) } else { Err(refused()) }
    }

    fn put_recv(&mut self, recv: &RecvRequest, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        scatter(self, self.recv_pd, &recv.segments, offset, bytes)
    }

    fn put_read(&mut self, request: &WorkRequest, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        scatter(self, self.pd, &request.segments, offset, bytes)
    }

    fn may_invalidate(&mut self, key: u32) -> bool {
        self.windows.holds(key, self.pd, &self.domain)
    }

    fn invalidate(&mut self, key: u32) {
        self.windows.invalidate_and_wait(key, self.pd, &self.domain);
    }

    fn may_execute(&mut self, key: u32, address: u64) -> bool {
        self.allows_peer(key, Region { address, length: ATOMIC_SIZE }, AccessRight::RemoteAtomic)
    }

    fn execute(&mut self, key: u32, address: u64, operation: Atomic) -> Option<u64> {
        let region = Region { address, length: ATOMIC_SIZE };
        let (ids, right) = (self.peer_ids(), AccessRight::RemoteAtomic);
        let (_guard, address) = self.regions.acquire_for_peer(key, ids, region, right).ok()?;
        // SAFETY: the memory is registered, with a reference on the registration during the call, and the peer may
        // execute atomic operations on it.
        unsafe { operation.apply_registered(address, || self.regions.registration(key)) }
    }
}

impl SharedReceiveCallbacks<QpContext> for &QpContext {
    fn take_shared(&mut self) -> Option<(RecvRequest, u64)> {
        let pool = self.pool.as_ref()?;
        let SrqRecv { segments, cookie } = pool.srq.take(&pool.waiter)?;
        let length = segments.total();
        let shared_in_use = self.shared_in_use.load(Ordering::Relaxed) + 1;
        self.shared_in_use.store(shared_in_use, Ordering::Relaxed);
        self.max_shared_in_use.fetch_max(shared_in_use, Ordering::Relaxed);
        Some((RecvRequest { segments, token: Token { cookie, ..pool.token } }, length))
    }

    fn shared_left(&self) -> u32 {
        self.pool.as_ref().map_or(0, |pool| pool.srq.available())
    }

    fn await_shared(&mut self) {
        if let Some(pool) = &self.pool {
            pool.srq.wait(&pool.waiter);
        }
    }
}

impl CompletionCallbacks<QpContext> for &QpContext {
    fn execute_bind(&mut self, request: &WorkRequest) -> Result<bool, Status> {
        match &request.kind {
            RequestKind::Transfer => Ok(true),
            RequestKind::Bind(window, number) => window.execute(*number, self.pd, &self.domain),
            RequestKind::Fail(status) => Err(*status),
        }
    }

    fn request_done(&mut self, request: &mut WorkRequest, status: Status, bytes: u64) {
        self.complete_request(request, status, bytes);
    }

    #[cold]
    fn access_refused(&mut self, request: &WorkRequest, work: Op, length: u32) {
        let Some(remote) = work.remote() else { return };
        let right = match work {
            Op::Read(_) => AccessRight::RemoteRead,
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => AccessRight::RemoteAtomic,
            _ => AccessRight::RemoteWrite,
        };
        let range = Region { address: remote.address, length: length.into() };
        let (ep, cookie, check) = (self.ep.handle, Some(request.token.cookie), FailedCheck::Unknown);
        self.jobs.push(Job::Refused(RefusedAccess { ep, cookie, key: remote.key, range, right, check }));
    }

    #[cold]
    fn send_overdue(&mut self, age: Nanos) {
        self.jobs.push(Job::Overdue(OverdueSend {
            ep: self.ep.handle,
            age: Duration::from_nanos(age),
            cause: WaitCause::NoReceive,
        }));
    }

    fn recv_done(&mut self, recv: &mut RecvRequest, status: Status, bytes: u64, value: SendValue) {
        if self.pool.is_some() {
            let shared_in_use = self.shared_in_use.load(Ordering::Relaxed);
            self.shared_in_use.store(shared_in_use.saturating_sub(1), Ordering::Relaxed);
        }
        if let Some(cq) = &self.recv_cq {
            let SendValue { arrival, value, solicited } = value;
            cq.push(Completion { token: recv.token, status, bytes, solicited, arrival, value });
        }
    }
}

/// Callbacks of a closing connection, and of the exit handler. They access no memory and report no completion. The exit
/// handler has a context, because it may send payload.
pub(crate) struct ClosingCallbacks<'a>(pub(crate) Option<&'a QpContext>);

impl TransportHost for ClosingCallbacks<'_> {
    fn context(&self) -> Option<&QpContext> {
        self.0
    }
}

impl MemoryCallbacks<QpContext> for ClosingCallbacks<'_> {}

impl SharedReceiveCallbacks<QpContext> for ClosingCallbacks<'_> {}

impl CompletionCallbacks<QpContext> for ClosingCallbacks<'_> {
    fn execute_bind(&mut self, _: &WorkRequest) -> Result<bool, Status> {
        Err(Status::Flushed)
    }

    fn request_done(&mut self, _: &mut WorkRequest, _: Status, _: u64) {}

    fn recv_done(&mut self, _: &mut RecvRequest, _: Status, _: u64, _: SendValue) {}
}
