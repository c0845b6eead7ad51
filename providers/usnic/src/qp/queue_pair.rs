//! Queue pairs, with their posted work and their connection. One lock guards the state of a queue pair.
//!
//! A queue pair queues work that is posted before its connection is established. After the end of the connection it
//! flushes posted work, until it is reset. An ended connection becomes a [`ClosingConnection`].
//!
//! If fewer than [`DIRECT_SEND_BELOW`] requests are outstanding, the posting thread sends its request immediately
//! (US-5). Other requests wait for the next pass, which sends them in one GSO batch.
//!
//! Lock order: pass, queue pair, shared receive queue, completion queue, job queue. Only the engine reports connection
//! events to dapl.
#![forbid(unsafe_code)]

mod fast_path;
mod handler;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    ATOMIC_SIZE, Bind, BindWr, ConnId, ConnectSpec, Connection, ConnectionEvent, MemoryRegion, NamedCount, Op,
    Outstanding, QpSpec, QueuePair, ReceivedOp, Remote, Segment, SendWr, SharedRecvs, Status, Token,
};
use dapl::runtime::cancel;
use dapl::stats::watermark::HighWatermark;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::scatter_gather::{self, Segments};
use dapl_software::memory::window::BindRequest;
use parking_lot::{Mutex, MutexGuard};

use crate::cm::{Cm, QpCaps};
use crate::counters::{self, IaCounters};
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::engine::progress::EngineProgress;
use crate::limits;
use crate::proto::Nanos;
use crate::proto::conn::{ConnConfig, Operation, Post, SendValue};
use crate::proto::counters::Counters;
use crate::proto::schedule::PendingWork;
use crate::qp::closing::ClosingConnection;
use crate::qp::context::{QpContext, QpSrq, RecvRequest, WorkRequest};
use crate::qp::transport::Transport;
use crate::{Mr, Mw, Usnic};

/// The posting thread sends its request if fewer requests than this are outstanding.
const DIRECT_SEND_BELOW: u32 = 4;

/// A queue pair, as dapl refers to it.
pub struct Qp(pub(crate) Arc<QpCore>);

/// A queue pair, shared by its [`Qp`], the connection table and the waiters of a shared receive queue.
pub(crate) struct QpCore {
    device: Arc<Device>,
    progress: Arc<EngineProgress>,
    cm: Arc<Cm>,
    ia_counters: Arc<IaCounters<QpCore>>,
    context: QpContext,
    config: ConnConfig,
    max_message: u64,
    caps: QpCaps,
    state: Mutex<QpState>,
}

/// State of a queue pair, guarded by its lock.
#[derive(Debug)]
struct QpState {
    phase: QpPhase,
    transport: Option<Transport>,
    /// Receives that were posted before the connection is established.
    recvs: VecDeque<RecvRequest>,
    /// Requests that were posted before the connection is established.
    requests: VecDeque<(Post, WorkRequest)>,
    /// Whether the consumer has requested a graceful disconnect between the handshake and `open`.
    drains: bool,
    marks: HighWatermark,
    /// [`QueuePair::post_recv_quickly`] fails if this many receives are outstanding: the capacity of the queue, or
    /// fewer if a watermark must be checked.
    quick_recvs: u32,
    /// Final counters of the last ended connection.
    past: Option<Box<Counters>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum QpPhase {
    /// There is no connection. Posted work is queued.
    Unconnected,
    /// An attempt with this connection number is in progress. Posted work is queued.
    Connecting(u32),
    /// There is a transport.
    Connected,
    /// The connection has ended. Posted work is flushed.
    Ended,
}

impl std::fmt::Debug for QpCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpCore").field("pd", &self.context.pd).finish_non_exhaustive()
    }
}

impl Qp {
    pub(crate) fn new(ia: &Usnic, pd: u32, spec: QpSpec<Usnic>) -> Self {
        let config = limits::config(&ia.adapter.device, &spec);
        let mut context = QpContext {
            regions: ia.regions.clone(),
            windows: ia.windows.clone(),
            jobs: ia.adapter.device.jobs.clone(),
            ep: spec.ep,
            pd,
            domain: Arc::default(),
            recv_pd: pd,
            pool: None,
            shared_in_use: AtomicU32::new(0),
            max_shared_in_use: AtomicU32::new(0),
            recv_cq: spec.recv_cq.map(|cq| cq.0.clone()),
            request_cq: spec.request_cq.map(|cq| cq.0.clone()),
        };
        let caps = QpCaps { ord: spec.max_reads_out, ird: spec.max_reads_in, credits: 0 };
        let qp = Qp(Arc::new_cyclic(|me: &Weak<QpCore>| {
            if let Some(SharedRecvs { srq, token }) = spec.shared {
                context.recv_pd = srq.0.pd;
                context.pool = Some(QpSrq { srq: srq.0.clone(), token, waiter: me.clone() });
            }
            let state = QpState {
                phase: QpPhase::Unconnected,
                transport: None,
                recvs: VecDeque::new(),
                requests: VecDeque::new(),
                drains: false,
                marks: HighWatermark::default(),
                quick_recvs: config.max_recvs,
                past: None,
            };
            QpCore {
                device: ia.adapter.device.clone(),
                progress: ia.adapter.progress.clone(),
                cm: ia.adapter.cm.clone(),
                ia_counters: ia.counters.clone(),
                context,
                config,
                max_message: ia.limits.max_message,
                caps,
                state: Mutex::new(state),
            }
        }));
        ia.counters.add(Arc::downgrade(&qp.0));
        qp
    }
}

impl QpState {
    /// Returns the number of outstanding requests and of outstanding receives.
    fn outstanding(&self) -> (u32, u32) {
        match &self.transport {
            Some(transport) => transport.conn.outstanding(),
            None => (self.requests.len() as u32, self.recvs.len() as u32),
        }
    }

    /// Returns the transport if its connection number is `number`.
    fn transport(&mut self, number: u32) -> Option<&mut Transport> {
        self.transport.as_mut().filter(|transport| transport.number == number)
    }
}

impl QpCore {
    /// Handles a pending event of the connection. Returns the connection's pending work.
    fn update(&self, state: &mut QpState, now: Nanos) -> PendingWork {
        self.take_event(state);
        state.transport.as_ref().map_or(PendingWork::default(), |transport| transport.pending_work(now))
    }

    /// Handles a pending event of the connection, and checks the high watermarks of receives. Ends the connection if
    /// there was an event or the hard watermark is exceeded.
    #[inline(always)]
    fn take_event(&self, state: &mut QpState) {
        let Some(transport) = &mut state.transport else { return };
        let event = transport.conn.take_event();
        let recvs = self.recvs(transport);
        if event.is_some() || state.marks.is_crossed(recvs) {
            self.handle_event(state, event, recvs);
        }
    }

    #[cold]
    fn handle_event(&self, state: &mut QpState, event: Option<ConnectionEvent>, recvs: u32) {
        let Some(id) = state.transport.as_ref().map(|transport| transport.id) else { return };
        let event = match event {
            None if !self.check_watermarks(state, recvs) => return,
            None => {
                log::info!(
                    "connection of ep {:#x} ended: {recvs} outstanding receives exceed its hard high watermark; raise it with \
                     dat_ep_set_watermark",
                    self.context.ep.handle
                );
                ConnectionEvent::Broken
            }
            Some(event) => event,
        };
        self.end_connection(state, device::now());
        self.context.jobs.push(Job::Event(id, event));
    }

    /// Returns the number of receives to compare with the watermarks: outstanding receives, or with a shared receive
    /// queue the maximum number in use since the last check.
    #[inline]
    fn recvs(&self, transport: &Transport) -> u32 {
        match self.context.pool {
            Some(_) => self
                .context
                .max_shared_in_use
                .swap(self.context.shared_in_use.load(Ordering::Relaxed), Ordering::Relaxed),
            None => transport.conn.outstanding().1,
        }
    }

    /// Reports an event if the soft watermark is exceeded. Returns true if the hard watermark is exceeded and there is
    /// a connection, which the caller must end.
    #[cold]
    fn check_watermarks(&self, state: &mut QpState, recvs: u32) -> bool {
        let crossed = state.marks.check(recvs);
        state.quick_recvs = self.config.max_recvs.min(state.marks.max_unchecked());
        if crossed.soft {
            self.context.jobs.push(Job::ManyRecvs(self.context.ep));
        }
        crossed.hard && state.transport.is_some()
    }

    /// Ends the connection, if there is one: flushes all work, notifies the peer, and starts a closing connection for
    /// late packets.
    fn end_connection(&self, state: &mut QpState, now: Nanos) {
        // Posts and polls call this function, and closing a socket is a cancellation point. Cancelling the thread would
        // leave the queue pair locked.
        let _deferral = cancel::defer();
        state.phase = QpPhase::Ended;
        if let Some(mut transport) = state.transport.take() {
            // The ack precedes the Reset, so that requests of the peer succeed if their messages have arrived.
            transport.conn.ack_all(now, &mut &self.context);
            transport.transmit(now, &mut &self.context, &self.context);
            transport.conn.abort(now, &mut &self.context);
            transport.transmit(now, &mut &self.context, &self.context);
            if let Some(pool) = &self.context.pool {
                pool.srq.cancel_wait(&pool.waiter);
            }
            let counters = transport.conn.counters();
            self.ia_counters.add_past(&counters);
            counters::log(self.context.ep, &counters);
            state.past = Some(Box::new(counters));
            ClosingConnection::start(&self.device, &self.context, transport, now);
        }
        self.flush(state);
    }

    /// Flushes the work that was queued before the connection was established.
    fn flush(&self, state: &mut QpState) {
        for (_, mut request) in state.requests.drain(..) {
            self.context.complete_request(&mut request, Status::Flushed, 0);
        }
        self.flush_recvs(state);
    }

    fn flush_recvs(&self, state: &mut QpState) {
        for recv in state.recvs.drain(..) {
            self.context.complete_recv(recv.token, Status::Flushed, 0, false);
        }
    }

    /// Handles a pending event, and schedules the work that the calling thread leaves to the next pass.
    fn schedule(&self, mut state: MutexGuard<'_, QpState>, now: Nanos) {
        if state.transport.as_ref().is_some_and(|transport| transport.next_service.is_immediate()) {
            // The next pass will serve this connection. It finds the new work, because this thread still holds the
            // lock.
            return self.take_event(&mut state);
        }
        let pending_work = self.update(&mut state, now);
        let next_service = state.transport.as_ref().map(|transport| (transport.number, transport.next_service.clone()));
        drop(state);
        if let Some((number, next_service)) = next_service {
            self.device.schedule(number, &next_service, &pending_work);
        }
    }

    /// Acquires the lock, and checks that the queue has space for one more request.
    #[inline]
    fn lock_for_request(&self) -> Result<MutexGuard<'_, QpState>> {
        let state = self.state.lock();
        if state.outstanding().0 < self.config.max_requests {
            return Ok(state);
        }
        drop(state);
        // The queue is full. A pass may receive acks that complete requests.
        self.progress.run_pass_if_free();
        let state = self.state.lock();
        let is_full = state.outstanding().0 >= self.config.max_requests;
        if is_full { Err(Error::Exhausted(Resource::Memory)) } else { Ok(state) }
    }

    /// Posts a request. If `may_send_now` is true and few requests are outstanding, the calling thread sends it.
    #[inline]
    fn submit(
        &self,
        mut state: MutexGuard<'_, QpState>,
        post: Post,
        fill: impl FnOnce(&mut WorkRequest),
        may_send_now: bool,
    ) {
        let phase = state.phase;
        match (&mut state.transport, phase) {
            (Some(transport), _) => {
                let now = device::now();
                let may_send_now = may_send_now && transport.conn.outstanding().0 < DIRECT_SEND_BELOW;
                let is_behind = transport.conn.has_requests();
                transport.conn.post(now, post, fill, &mut &self.context);
                if may_send_now {
                    transport.send_now(now, &mut &self.context, &self.context);
                } else if is_behind {
                    // An earlier request is waiting to be sent, so a pass is already scheduled.
                    return self.take_event(&mut state);
                }
                self.schedule(state, now);
            }
            (None, phase) => {
                let mut request = WorkRequest::default();
                fill(&mut request);
                match phase {
                    QpPhase::Ended => self.context.complete_request(&mut request, Status::Flushed, 0),
                    _ => state.requests.push_back((post, request)),
                }
            }
        }
    }

    /// Builds the request for the connection. For an invalid request, also returns the status with which it completes.
    #[inline(always)]
    fn build_post(&self, wr: &SendWr<'_>) -> (Post, Option<Status>) {
        let total = scatter_gather::total(wr.segments);
        let work = match wr.op {
            Op::Send { solicited } => Operation::Send { solicited },
            Op::Write(remote) => Operation::Write(remote),
            Op::Read(remote) => Operation::Read(remote),
            Op::SendImmediate { data, solicited } => {
                Operation::SendWith(SendValue { arrival: ReceivedOp::SendImmediate, value: data, solicited })
            }
            Op::SendInvalidate { key, solicited } => {
                Operation::SendWith(SendValue { arrival: ReceivedOp::SendInvalidate, value: key, solicited })
            }
            Op::WriteImmediate { remote, data, solicited } => Operation::WriteImmediate { remote, data, solicited },
            Op::FetchAdd { remote, add } => Operation::Atomic(remote, Atomic::FetchAdd(add)),
            Op::CompareSwap { remote, compare, swap } => {
                Operation::Atomic(remote, Atomic::CompareSwap { compare, swap })
            }
        };
        let atomic = match work {
            Operation::Atomic(remote, _) => check_atomic(remote, total),
            _ => None,
        };
        let is_registered =
            self.context.is_registered(wr.segments, matches!(wr.op, Op::Read(_)) || wr.op.work().is_atomic());
        let wraps = wr.op.remote().is_some_and(|remote| remote.address.checked_add(total).is_none());
        match u32::try_from(total).ok().filter(|length| u64::from(*length) <= self.max_message) {
            Some(length) if !wraps && is_registered && atomic.is_none() => {
                (Post { work, length, fence: wr.fence }, None)
            }
            found => {
                let status = match found {
                    _ if atomic.is_some() => atomic.unwrap_or_default(),
                    None => Status::LocalLength,
                    Some(_) if !is_registered => Status::LocalProtection,
                    Some(_) => Status::RemoteAccess,
                };
                (Post { work: Operation::Bind, length: 0, fence: wr.fence }, Some(status))
            }
        }
    }

    /// Returns the limits that the handshake sends to the peer.
    pub(crate) fn caps(&self) -> QpCaps {
        let credits = match &self.context.pool {
            Some(pool) => pool.srq.available(),
            None => self.state.lock().recvs.len() as u32,
        };
        QpCaps { credits, ..self.caps }
    }

    /// Whether there is no connection and no connection attempt.
    fn is_unconnected(&self) -> bool {
        self.state.lock().phase == QpPhase::Unconnected
    }

    /// Ends the connection or the attempt without an event.
    pub(crate) fn abort(&self) {
        let mut state = self.state.lock();
        let attempt = match state.phase {
            QpPhase::Connecting(number) => Some(number),
            _ => None,
        };
        self.end_connection(&mut state, device::now());
        drop(state);
        if let Some(number) = attempt {
            self.cm.cancel(number);
        }
    }
}

/// Returns the status with which an atomic operation fails if its address or length is invalid.
#[cold]
fn check_atomic(remote: Remote, total: u64) -> Option<Status> {
    if total != ATOMIC_SIZE {
        return Some(Status::LocalLength);
    }
    (!Atomic::is_aligned(remote.address)).then_some(Status::RemoteResponder)
}

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    const POSTS_QUICKLY: bool = true;

    #[inline(always)]
    fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        self.0.post_recv_quickly(segment, cookie)
    }

    #[inline(always)]
    fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        self.0.post_request_quickly::<SUPPRESS>(op, segment, cookie)
    }

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &self.0;
        let mut state = core.state.lock();
        if state.outstanding().1 >= core.config.max_recvs {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let phase = state.phase;
        match (&mut state.transport, phase) {
            (Some(transport), _) => {
                let length = scatter_gather::total(segments);
                let fill = |recv: &mut RecvRequest| recv.set(segments, token);
                if transport.conn.post_recv(length, fill, &mut &core.context) {
                    core.schedule(state, device::now());
                } else {
                    core.take_event(&mut state);
                }
            }
            (None, QpPhase::Ended) => core.context.complete_recv(token, Status::Flushed, 0, false),
            (None, _) => {
                state.recvs.push_back(RecvRequest { segments: Segments::new(segments), token });
                if state.marks.is_crossed(state.recvs.len() as u32) {
                    let recvs = state.recvs.len() as u32;
                    core.check_watermarks(&mut state, recvs);
                }
            }
        }
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let state = self.0.lock_for_request()?;
        let (post, failure) = self.0.build_post(wr);
        if post.work.is_extension()
            && state.transport.as_ref().is_some_and(|transport| !transport.conn.has_extensions())
        {
            return Err(Error::ModelNotSupported);
        }
        // A short request of several segments waits for the next pass, which sends it with others in one GSO batch.
        let may_send_now = wr.segments.len() <= 1 || post.length > self.0.config.tiny;
        self.0.submit(state, post, |request| request.set(wr, failure), may_send_now);
        Ok(())
    }

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let state = self.0.lock_for_request()?;
        let wanted =
            bind.map(|Bind { mr, region, access, kept }| BindRequest { source: mr.local_key(), region, access, kept });
        let (request, key) = WorkRequest::bind(&mw.0, wanted, wr)?;
        let post = Post { work: Operation::Bind, length: 0, fence: wr.fence };
        self.0.submit(state, post, |own| *own = request, true);
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let core = &self.0;
        let mut state = core.state.lock();
        state.marks = HighWatermark::new(soft, hard);
        state.quick_recvs = core.config.max_recvs.min(state.marks.max_unchecked());
        if state.transport.is_some() {
            core.schedule(state, device::now());
        } else {
            let recvs = state.recvs.len() as u32;
            core.check_watermarks(&mut state, recvs);
        }
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        self.0.progress.run_pass_if_free(); // Receives acks that have arrived, which may complete work.
        let (requests, recvs) = self.0.state.lock().outstanding();
        Outstanding { recvs, requests }
    }

    fn flush_recvs(&self) {
        self.0.flush_recvs(&mut self.0.state.lock());
    }
}

impl Connection for Qp {
    fn counts(&self) -> Vec<NamedCount> {
        let state = self.0.state.lock();
        let past = || state.past.as_deref().copied();
        let counters = state.transport.as_ref().map(|transport| transport.conn.counters()).or_else(past);
        counters.map(|counters| counters::connection_counts(&counters)).unwrap_or_default()
    }

    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if !self.0.is_unconnected() {
            return Err(Error::Internal);
        }
        self.0.cm.connect(self.0.clone(), spec, conn, self.0.caps()).map(drop)
    }

    fn drain(&self) {
        let mut state = self.0.state.lock();
        if let Some(transport) = &mut state.transport {
            let now = device::now();
            transport.conn.drain(now);
            transport.transmit(now, &mut &self.0.context, &self.0.context);
            self.0.schedule(state, now);
        } else {
            // After the handshake, the consumer may disconnect before `open` is called. `open` then starts the drain.
            state.drains = matches!(state.phase, QpPhase::Connecting(_));
        }
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn reset(&self) -> Result<()> {
        self.0.abort();
        self.0.state.lock().phase = QpPhase::Unconnected;
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.0.abort();
    }
}
