//! The jobs of the engine thread. Any thread may queue a job; only the engine takes them.
//!
//! The length of the queue is bounded: each completion queue and each connection has at most a few jobs in it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::{EngineQueue, Notify};
use dapl_software::memory::refused::RefusedAccess;

/// The engine's job queue.
pub(crate) type Jobs = EngineQueue<Job>;

/// A completion queue, as seen by the engine. A trait, because a queue adds jobs and a job refers to its queue.
/// providers/common calls both kinds of queues through its supertrait.
pub(crate) trait EngineQueueClient: Notify {
    /// Called every tick while the queue is polled; `last` is the number of polls at the last call. Returns false when no
    /// thread polls any more.
    fn tick(&self, last: &mut u32) -> bool;
}

/// A job.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has a completion, or a shared receive queue is below its low watermark.
    Notify(Arc<dyn Notify>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// A completion queue began to be polled.
    Watch(Arc<dyn EngineQueueClient>),
    /// The connection with this id has work, and no consumer polls.
    Run(u32),
    /// All requests of this gracefully ended connection are complete.
    Drained(u32),
    /// The peer of this attempt has probably died.
    Gone(u32),
    /// Requests a mapping of the peer's shared memory with this key, for this connection.
    Ask(u32, u32),
    /// Reports this event of a connection or attempt.
    Event(ConnId, ConnectionEvent),
    /// An access was refused: log it.
    Refused(RefusedAccess),
    /// Recalculates the next deadline.
    Deadlines,
    /// The IA closes.
    Stop,
}

impl From<Arc<dyn Notify>> for Job {
    fn from(object: Arc<dyn Notify>) -> Self {
        Job::Notify(object)
    }
}
