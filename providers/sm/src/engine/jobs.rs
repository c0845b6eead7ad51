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

/// A completion queue, as seen by the engine. A trait, because a queue adds jobs while a
/// job names its queue; providers/common calls both kinds of queues by its supertrait.
pub(crate) trait EngineQueueClient: Notify {
    /// Called every tick while the queue is polled; `last` is the number of polls at the last call. Returns false when no
    /// thread polls any more.
    fn tick(&self, last: &mut u32) -> bool;
}

/// A piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has something, or a shared receive queue too little.
    Notify(Arc<dyn Notify>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// A completion queue began to be polled.
    Watch(Arc<dyn EngineQueueClient>),
    /// The connection of this id has work that no consumer does.
    Run(u32),
    /// Its graceful end is drained.
    Drained(u32),
    /// The other side of this attempt seems to be gone.
    Gone(u32),
    /// The peer of this connection has shared memory under this key, which could be mapped.
    Ask(u32, u32),
    /// Report this of a connection or attempt.
    Event(ConnId, ConnectionEvent),
    /// Check the deadlines again.
    Deadlines,
    /// The end of the IA.
    Stop,
}

impl From<Arc<dyn Notify>> for Job {
    fn from(object: Arc<dyn Notify>) -> Self {
        Job::Notify(object)
    }
}
