//! State that both directions of a connection share, and the faults that end the connection.
//!
//! Each counter is written by one direction under its lock, and read without a lock by the other direction or by a
//! query.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::{Completion, Region};
use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::handle::ObjectId;
use dapl::runtime::pooled::Pooled;
use dapl_software::memory::refused::{FailedCheck, RefusedAccess};
use dapl_software::memory::rights::{KeyEntry, PeerIds};
use dapl_software::memory::window::QpDomain;

use crate::cq::{CompletionWriter, CqCore};
use crate::engine::jobs::{Job, Jobs};
use crate::memory::regions::{AccessTarget, Regions};
use crate::memory::window::Windows;
use crate::qp::link::ConnectionMemory;
use crate::srq::SrqWaiter;

/// A fault that ends the connection with the event BROKEN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionFault {
    /// The peer wrote invalid data.
    InvalidData(&'static str),
    /// A receive failed. Its completion, which is already reported, contains the status.
    Receive,
    /// The peer tried to access local memory for which it has no access right.
    Access,
    /// A request failed. Its completion, which is already reported, contains the status.
    Request,
    /// The number of outstanding receives exceeds the hard high watermark.
    Watermark,
}

// Statuses in the length field of a response; 0 means success.

/// The peer has no right to access the memory, or the key of its send with invalidate belongs to no window that it may
/// use.
pub(crate) const NAK_ACCESS: u32 = 6;
/// The receive of a send is too short, or its memory is not mapped or not registered.
pub(crate) const NAK_RESPONDER: u32 = 7;
/// The memory of a send is not mapped or not registered.
pub(crate) const NAK_SOURCE: u32 = 8;

/// The use of a shared receive queue by a queue pair: the queue, the token of its receives, and the waiter.
pub(crate) type QpSrq = dapl_software::srq::SrqUser<dyn SrqWaiter, Job>;

/// State that the send and the receive direction of a queue pair share.
pub(crate) struct QpContext {
    pub(crate) regions: Arc<Regions>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) ep: ObjectId,
    pub(crate) pd: u32,
    /// Identifies this queue pair for windows of scope `Qp`, which only its peer may access.
    pub(crate) domain: QpDomain,
    /// Protection domain of the receives: that of the shared receive queue, if there is one.
    pub(crate) recv_pd: u32,
    pub(crate) pool: Option<QpSrq>,
    pub(crate) recv_cq: Option<Arc<CqCore>>,
    pub(crate) request_cq: Option<Arc<CqCore>>,
    /// Maximum length of a send in bytes.
    pub(crate) max_message: u64,
    /// Maximum length of an RDMA operation in bytes.
    pub(crate) max_rdma: u64,
    pub(crate) max_reads_out: u32,
    /// Number of the peer's requests that the receive direction has consumed.
    pub(crate) rx_consumed: AtomicU64,
    /// Value of `rx_consumed` in the last request that the send direction has published.
    pub(crate) reported_consumed: AtomicU64,
    /// Number of messages that had to wait for a receive, for the counter "receiver not ready".
    pub(crate) not_ready: AtomicU64,
    /// Words that a dequeue reads without a lock, to find out whether a poll would find work: a request of the peer in
    /// the ring, or progress of local requests.
    pub(crate) watch: Pooled<RingWatch>,
}

impl QpContext {
    /// Returns the identifiers that checks of the peer's accesses need.
    pub(crate) fn peer_ids(&self) -> PeerIds {
        PeerIds { pd: self.pd, qp: self.domain.number() }
    }

    /// Queues a denied access for the engine, which logs it. `cookie`: cookie of the local request, or `None` for an
    /// access of the peer. `entry`: entry of the key in the table of registrations.
    #[cold]
    pub(crate) fn report_refused(&self, cookie: Option<u64>, entry: Option<KeyEntry>, target: AccessTarget) {
        let AccessTarget { key, pd, address, length, right } = target;
        let range = Region { address, length };
        let check = FailedCheck::of(entry, pd, range, right);
        self.jobs.push(Job::Refused(RefusedAccess { ep: self.ep.handle, cookie, key, range, right, check }));
    }

    pub(crate) fn complete_recv(&self, out: &mut CompletionWriter<'_>, completion: Completion) {
        if let Some(cq) = &self.recv_cq {
            out.put(cq, completion);
        }
    }

    pub(crate) fn complete_request(&self, out: &mut CompletionWriter<'_>, completion: Completion) {
        if let Some(cq) = &self.request_cq {
            out.put(cq, completion);
        }
    }

    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CqCore>> {
        self.recv_cq.iter().chain(&self.request_cq)
    }

    /// Makes the engine complete a graceful disconnect. Called when all requests are complete.
    pub(crate) fn drained(&self, link: &ConnectionMemory) {
        self.jobs.push(Job::Drained(link.id));
    }

    /// Resets the counts of consumed requests and the watched words for a new connection.
    pub(crate) fn begin(&self) {
        self.rx_consumed.store(0, Ordering::Relaxed);
        self.reported_consumed.store(0, Ordering::Relaxed);
        self.watch.detach();
    }
}
