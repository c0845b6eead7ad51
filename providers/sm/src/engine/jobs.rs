//! The jobs of the engine thread. Any thread may queue a job; only the engine takes them.
//!
//! The length of the queue is bounded: each completion queue and each connection queues at most a few jobs at a time.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::{EngineQueue, Notify};
use dapl_software::memory::refused::RefusedAccess;

/// The engine's job queue.
pub(crate) type Jobs = EngineQueue<Job>;

/// A completion queue, as the engine uses it. It is a trait, because a queue adds jobs and a job refers to its queue.
/// `providers/common` calls all kinds of completion queues through the supertrait.
pub(crate) trait EngineQueueClient: Notify {
    /// Called every tick while the queue is polled. `last`: number of polls at the previous call. Returns false if no
    /// thread polls any more.
    fn tick(&self, last: &mut u32) -> bool;
}

/// A job of the engine.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has a completion, or a shared receive queue is below its low watermark.
    Notify(Arc<dyn Notify>),
    /// More posted receives of this EP are in use than its soft high watermark allows.
    ManyRecvs(ObjectId),
    /// A thread has begun to poll this completion queue.
    Watch(Arc<dyn EngineQueueClient>),
    /// The connection with this id has work, and no consumer polls.
    Run(u32),
    /// All requests of this gracefully ended connection are complete.
    Drained(u32),
    /// The peer of this connection attempt has probably died.
    Gone(u32),
    /// Request a mapping of the peer's shared memory with this key (second number), for this connection (first number).
    RequestMapping(u32, u32),
    /// Report this event of a connection or connection attempt.
    Event(ConnId, ConnectionEvent),
    /// Log a refused memory access.
    Refused(RefusedAccess),
    /// Recalculate the next deadline.
    Deadlines,
    /// The IA is being closed.
    Stop,
}

impl From<Arc<dyn Notify>> for Job {
    fn from(object: Arc<dyn Notify>) -> Self {
        Job::Notify(object)
    }
}
