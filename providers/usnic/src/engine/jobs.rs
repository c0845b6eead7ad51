//! The jobs of the engine thread. Any thread may queue a job; only the engine takes them.
//!
//! The length of the queue is bounded: each completion queue and each connection has at most a few jobs in it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::{EngineQueue, Notify};
use dapl_software::memory::refused::RefusedAccess;
use dapl_software::overdue::OverdueSend;

pub(crate) type Jobs = EngineQueue<Job>;

#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has a completion, or a shared receive queue is below its low watermark.
    Notify(Arc<dyn Notify>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// Report this event of a connection or attempt.
    Event(ConnId, ConnectionEvent),
    /// An access was refused: log it.
    Refused(RefusedAccess),
    /// A send waits for a receive of the peer: log it.
    Overdue(OverdueSend),
    /// Packets wait for the connection manager, or its deadline has changed.
    Cm,
    /// Wakes the engine without further work: there are updates, or an earlier deadline.
    Wake,
    /// The IA closes.
    Stop,
}

impl From<Arc<dyn Notify>> for Job {
    fn from(object: Arc<dyn Notify>) -> Self {
        Job::Notify(object)
    }
}
