//! Queue pairs: the queue pair of the device, the work in flight, and the connection.
//!
//! A queue pair exists as long as its EP. A new or reset queue pair is in INIT, so that receives can be posted; the
//! connection manager brings it to RTS. [`QpCore::flush`] ends each connection in four steps: change to ERR, after
//! which no work succeeds; poll the device's completions; change to RESET, after which the device accesses no memory;
//! flush the remaining work in software.
//!
//! Requests other than binds that are posted before the connection is established are queued. Receive completions are
//! held back until ESTABLISHED was reported. Lock order: link, completion queue, receive queue, send queue. The engine
//! calls the sink without locks.
#![forbid(unsafe_code)]

mod complete;
pub(crate) mod gather;
mod lifecycle;
mod post;
pub(crate) mod queue_pair;
mod quick;
#[cfg(test)]
mod rxe_tests;
pub(crate) mod state;
pub(crate) mod work;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    Completion, ConnId, ConnectionEvent, Outstanding, QpSpec, SharedRecvs, Status, Token, Work as WorkKind,
};
use dapl::runtime::handle::ObjectId;
use dapl::stats::watermark::HighWatermark;
use ibverbs_sys::ibv_qp_cap;
use parking_lot::Mutex;

use crate::cq::{CqCore, QueueSide};
use crate::device::Device;
use crate::memory::keys::KeyHint;
use crate::memory::{Pd, PendingBind};
use crate::qp::state::PathToRts;
use crate::qp::work::InFlightWork;
use crate::shared_device::EventTarget;
use crate::srq::SrqCore;
use crate::{Verbs, ibv};

/// The state of a queue pair, shared by its handle, its completion queues, the connection manager and the engine.
pub(crate) struct QpCore {
    me: Weak<QpCore>,
    device: Arc<Device>,
    /// Number of the device's queue pair.
    number: AtomicU32,
    pd: Pd,
    ep: ObjectId,
    max_recvs: u32,
    max_requests: u32,
    reads: ReadLimits,
    shared: Option<(Arc<SrqCore>, Token)>,
    recv_cq: Arc<CqCore>,
    request_cq: Arc<CqCore>,
    /// Capacity reserved in `recv_cq` and `request_cq`.
    _queues: [ReservedCapacity; 2],
    link: Mutex<Option<CurrentConnection>>,
    recv: Mutex<ReceiveQueue>,
    send: Mutex<SendQueue>,
    /// Whether a high watermark is set on the number of outstanding receives.
    counts_recvs: AtomicBool,
    /// Whether the engine was notified of a failure, or the work was flushed. Further failures are then ignored.
    failed: AtomicBool,
    /// Whether the number was sent to a peer that has not replied. That peer's connection manager may still use the
    /// number.
    unanswered: AtomicBool,
}

/// Number of outstanding RDMA reads that a connection allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReadLimits {
    /// Reads by the peer.
    pub(crate) incoming: u8,
    /// Reads by the local queue pair.
    pub(crate) outgoing: u8,
}

/// The functions of [`QpCore`] that all connection managers call. A trait, because the tests of the connection managers
/// run without an RDMA device, and a queue pair cannot be created without one.
pub(crate) trait CmQueuePair: Send + Sync {
    /// Number of the device's queue pair.
    fn number(&self) -> u32;
    fn reads(&self) -> ReadLimits;
    /// Starts an attempt. Errors: `Internal` if the queue pair has a connection or attempt.
    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()>;
    /// Brings the queue pair to RTS. Returns `Ok(false)` without a change if `link` is not the current attempt.
    ///
    /// Errors: the device does not accept the path, or a completion queue cannot be armed. The attempt stays attached.
    fn bring_up(&self, link: &dyn CmConnection, path: &mut PathToRts) -> io::Result<bool>;
    /// Reports that the connection is established. Called by the engine thread only.
    fn established(&self, link: &dyn CmConnection, private_data: &[u8]);
    /// Ends the attempt or connection, and reports `event` to the consumer. `private_data`: the data of a peer that has
    /// rejected the request; empty for all other events. Called by the engine thread only.
    fn report_end(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]);
}

/// The connection manager's part of a connection or attempt, to which a queue pair refers.
pub(crate) trait CmConnection: Send + Sync {
    /// Ends the connection or attempt in any state, and notifies the peer if the manager's protocol has a message for
    /// it. Any thread may call it. Does not block, and reports no event.
    fn end(&self);
    /// Called when the device has received a message before the peer has confirmed the connection. The message shows
    /// that the peer is connected, so a lost confirmation need not be awaited.
    fn data_before_confirmation(&self) {}
}

/// The current connection or attempt of a queue pair.
struct CurrentConnection {
    conn: ConnId,
    link: Arc<dyn CmConnection>,
}

/// What happens to work that the consumer posts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PostPhase {
    /// Receives go to the device. Requests go to the device, or are queued until the connection is established.
    Live,
    /// A flush is in progress: posted work is queued, and flushed after earlier work.
    Flushing,
    /// Posted work is flushed immediately.
    Broken,
}

/// The receives in flight, and whether their completions are passed on. Locked by posts and by polls.
struct ReceiveQueue {
    /// The device's queue pair, the same as in [`SendQueue`]. `QpCore::renumber` replaces both.
    hw: Arc<ibv::Qp>,
    work: InFlightWork<PendingBind>,
    high: HighWatermark,
    phase: PostPhase,
    /// Whether the connection is established: ESTABLISHED was reported, or is about to be.
    is_established: bool,
    /// Whether ESTABLISHED was reported, so that receive completions are passed on immediately.
    is_reported: bool,
    /// Receive completions held back until ESTABLISHED was reported.
    unreported_recvs: Vec<Completion>,
}

/// The requests in flight, queued requests, and what a post needs to know of the connection. Locked by posts and by
/// polls.
struct SendQueue {
    hw: Arc<ibv::Qp>,
    work: InFlightWork<PendingBind>,
    /// Requests that were posted before the connection was established, or during a flush.
    queued_requests: VecDeque<post::DeferredRequest>,
    phase: PostPhase,
    /// Whether the device's queue pair is in RTS, where it accepts requests.
    is_rts: bool,
    /// Whether the connection is established, so that requests go to the device.
    is_established: bool,
    template: ibv::SendWrTemplate,
    /// Maximum length in the fast path (`quick`), in bytes: the smaller of the maximum lengths of messages and of RDMA.
    longest: u64,
    /// The registration that the last lookup of a key found, which most posts use again.
    hint: KeyHint,
    /// Number of outstanding RDMA reads that the connection allows the local queue pair.
    reads: u8,
    /// Whether the connection ends when no request is outstanding.
    draining: bool,
}

impl QpCore {
    /// Creates a queue pair in INIT. Errors: `Exhausted`, `Internal`. They are logged.
    pub(super) fn create(device: &Arc<Device>, pd: &Pd, spec: QpSpec<Verbs>) -> Result<Arc<Self>> {
        let queue = |cq: Option<Arc<crate::cq::Cq>>| match cq {
            Some(cq) => Ok(cq.0.clone()),
            None => CqCore::new(device, None),
        };
        let (recv_cq, request_cq) = (queue(spec.recv_cq)?, queue(spec.request_cq)?);
        let shared = spec.shared.map(|SharedRecvs { srq, token }| (srq.0.clone(), token));
        let (srq, max_recvs) =
            shared.as_ref().map_or((None, spec.max_recvs), |(srq, _)| (Some(srq.id), srq.capacity()));
        let queues = [
            ReservedCapacity::reserve(&recv_cq, srq, max_recvs)?,
            ReservedCapacity::reserve(&request_cq, None, spec.max_requests)?,
        ];
        let caps = ibv_qp_cap {
            max_send_wr: spec.max_requests.max(1),
            max_recv_wr: spec.max_recvs.max(1),
            max_send_sge: spec.max_request_iov.max(1),
            max_recv_sge: spec.max_recv_iov.max(1),
            max_inline_data: device.settings.inline(device.context.is_iwarp),
        };
        let attributes = ibv::QpAttributes {
            send_cq: queues[1].hw.clone(),
            recv_cq: queues[0].hw.clone(),
            srq: shared.as_ref().map(|(srq, _)| srq.hw.clone()),
            caps,
        };
        let hw = ibv::Qp::new(&pd.0, attributes).map_err(|error| {
            log::error!(
                "{0}: cannot create a queue pair for {1} requests of {2} segments and {3} receives of {4} segments: {error}; free EPs, or \
                 create the EP with smaller attributes (ibv_devinfo -v -d {0} shows the limits)",
                device.context.name(),
                caps.max_send_wr,
                caps.max_send_sge,
                caps.max_recv_wr,
                caps.max_recv_sge
            );
            Error::Exhausted(Resource::Ep)
        })?;
        state::to_init(&hw, device.port)?;
        let hw = Arc::new(hw);
        let core = Arc::new_cyclic(|me| QpCore {
            me: Weak::clone(me),
            device: device.clone(),
            number: AtomicU32::new(hw.number),
            pd: pd.clone(),
            ep: spec.ep,
            max_recvs: spec.max_recvs,
            max_requests: spec.max_requests,
            reads: ReadLimits {
                incoming: saturate_to_u8(spec.max_reads_in),
                outgoing: saturate_to_u8(spec.max_reads_out),
            },
            shared,
            recv_cq: recv_cq.clone(),
            request_cq: request_cq.clone(),
            _queues: queues,
            link: Mutex::new(None),
            recv: Mutex::new(ReceiveQueue {
                hw: hw.clone(),
                work: InFlightWork::with_capacity_for(spec.max_recvs, device.saved_segment_count(spec.max_recv_iov)),
                high: HighWatermark::default(),
                phase: PostPhase::Live,
                is_established: false,
                is_reported: false,
                unreported_recvs: Vec::new(),
            }),
            send: Mutex::new(SendQueue {
                hw,
                work: InFlightWork::with_capacity_for(
                    spec.max_requests,
                    device.saved_segment_count(spec.max_request_iov),
                ),
                queued_requests: VecDeque::new(),
                phase: PostPhase::Live,
                is_rts: false,
                is_established: false,
                template: ibv::SendWrTemplate::new(),
                longest: device.limits.max_message.min(device.limits.max_rdma),
                hint: KeyHint::default(),
                reads: 0,
                draining: false,
            }),
            counts_recvs: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            unanswered: AtomicBool::new(false),
        });
        Ok(core)
    }

    /// Adds the queue pair to the tables that map events and completions to queue pairs. After an error, the caller
    /// drops the queue pair, which removes it from the tables.
    fn add_to_tables(self: &Arc<Self>) -> Result<()> {
        let (core, recv_cq, request_cq) = (self, &self.recv_cq, &self.request_cq);
        let recv_slot = recv_cq.lock().table.add_queue(core, QueueSide::Recv)?;
        let request_slot = request_cq.lock().table.add_queue(core, QueueSide::Request)?;
        core.recv.lock().work.set_slot(recv_slot);
        core.send.lock().work.set_slot(request_slot);
        if let Some((srq, _)) = &core.shared {
            recv_cq.lock().table.add_number(core.number(), core);
            srq.completes_on(recv_cq);
            // The shared queue may have been resized between the reservation of capacity and `completes_on`.
            recv_cq.grow_shared(srq.id, srq.capacity())?;
        }
        self.device.shared_device.add_qp(core.number(), self.me.clone());
        Ok(())
    }

    /// Ends the queue pair and removes it from the tables.
    fn remove_from_tables(&self) {
        self.abort();
        self.device.shared_device.remove_qp(self.number(), self.me.as_ptr().cast());
        for cq in [&self.recv_cq, &self.request_cq] {
            cq.lock().table.remove(self);
        }
    }
}

impl EventTarget for QpCore {
    fn failed(&self) {
        self.fail();
    }

    fn data_before_confirmation(&self) {
        let link = self.link.lock().as_ref().map(|attached| attached.link.clone());
        if let Some(link) = link {
            link.data_before_confirmation();
        }
    }
}

/// Capacity reserved in a completion queue of the device. Dropping it releases the capacity.
struct ReservedCapacity {
    cq: Arc<CqCore>,
    hw: Arc<ibv::Cq>,
    /// Id of the shared receive queue whose receives use the capacity; `None` for a queue of the queue pair.
    srq: Option<usize>,
    count: u32,
}

impl ReservedCapacity {
    fn reserve(cq: &Arc<CqCore>, srq: Option<usize>, count: u32) -> Result<Self> {
        Ok(ReservedCapacity { cq: cq.clone(), hw: cq.reserve(srq, count)?, srq, count })
    }
}

impl Drop for ReservedCapacity {
    fn drop(&mut self) {
        self.cq.release(&self.hw, self.srq, self.count);
    }
}

/// Limits a number of RDMA reads to the eight bits that it has in connection messages.
fn saturate_to_u8(count: u32) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

impl QpCore {
    /// Returns the number of the device's queue pair. It changes when [`QpCore::renumber`] replaces the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The device's queue pair.
    fn hw(&self) -> Arc<ibv::Qp> {
        self.send.lock().hw.clone()
    }

    /// Whether a high watermark is set on the number of outstanding receives.
    pub(crate) fn counts_recvs(&self) -> bool {
        self.counts_recvs.load(Ordering::Relaxed)
    }

    pub(crate) fn has_shared_queue(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether the queue pair uses the shared receive queue with this id.
    pub(crate) fn takes_from(&self, srq: usize) -> bool {
        self.shared.as_ref().is_some_and(|(own, _)| own.id == srq)
    }

    /// Returns the id of the oldest outstanding request, and the handle of its EP. `None` if there is no request, or if
    /// the oldest one needs no receive of the peer, or if the queue pair is being or was flushed.
    pub(crate) fn oldest_send(&self) -> Option<(u64, usize)> {
        let send = self.send.lock();
        let (id, entry) = send.work.oldest().filter(|_| send.phase == PostPhase::Live)?;
        matches!(entry.token.work, WorkKind::Send | WorkKind::WriteImmediate).then_some((id, entry.token.ep))
    }

    /// Fetches all completions of both completion queues, and returns the number of receives and requests still
    /// outstanding.
    fn outstanding(&self) -> Outstanding {
        self.recv_cq.fetch();
        self.request_cq.fetch();
        let recvs = self.recv.lock().work.len();
        let send = self.send.lock();
        Outstanding { recvs, requests: send.work.len() + send.queued_requests.len() as u32 }
    }
}

/// Returns the completion of a flushed work request.
fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}
