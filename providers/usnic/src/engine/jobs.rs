//! The jobs of the engine thread. Every thread may queue one; only the engine takes them.
//!
//! The queue is bounded by what there is: each completion queue and each connection has at most a few jobs in it. Nothing is
//! done here.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::{EngineQueue, Notify};

/// The engine's queue.
pub(crate) type Jobs = EngineQueue<Job>;

/// A piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has something, or a shared receive queue too little.
    Notify(Arc<dyn Notify>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// Report this of a connection or attempt.
    Event(ConnId, ConnectionEvent),
    /// Packets wait for the connection manager, or its deadline has changed.
    Cm,
    /// Somebody asks for more, or for an earlier look: only the waking counts.
    Wake,
    /// The end of the IA.
    Stop,
}

impl From<Arc<dyn Notify>> for Job {
    fn from(object: Arc<dyn Notify>) -> Self {
        Job::Notify(object)
    }
}
