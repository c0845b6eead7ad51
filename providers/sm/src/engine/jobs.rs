//! The jobs of the engine thread. Any thread may queue a job; only the engine takes them.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use dapl::provider::{ConnId, ConnectionEvent, CqSink, SrqSink};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::EngineQueue;
use dapl_software::memory::refused::RefusedAccess;

/// The engine's job queue.
pub(crate) type Jobs = EngineQueue<Job>;

/// A completion queue, as the engine uses it. It is a trait, because completion queues push jobs and jobs contain
/// completion queues.
pub(crate) trait EngineQueueClient: Send + Sync {
    /// Called every tick while a thread polls the queue. `last`: number of polls at the previous call, which this call
    /// updates. Returns false if there was no poll since then.
    fn tick(&self, last: &mut u32) -> bool;
}

/// What the engine thread must do, queued by another thread or by itself.
pub(crate) enum Job {
    /// Notify the consumer: an armed completion queue has a completion.
    Notify(Weak<dyn CqSink>),
    /// A shared receive queue has fewer receives than its low watermark.
    LowSrq(Weak<dyn SrqSink>),
    /// Report that the outstanding receives of this EP exceed its soft high watermark.
    ManyRecvs(ObjectId),
    /// A thread has begun to poll this completion queue: call its `tick` every tick.
    Watch(Arc<dyn EngineQueueClient>),
    /// Make progress on the connection with this id.
    Run(u32),
    /// Complete the graceful disconnect of the connection with this id: all of its requests are complete.
    Drained(u32),
    /// The peer of this connection or attempt has probably exited, or was inactive for too long: handle the datagrams
    /// that it has already sent, then end the connection or attempt with this id.
    Gone(u32),
    /// Request a mapping of the peer's shared memory: the connection's id, and the key.
    RequestMapping(u32, u32),
    /// Report this event of a connection or connection attempt.
    Event(ConnId, ConnectionEvent),
    /// Log a refused memory access.
    Refused(RefusedAccess),
}

impl From<Weak<dyn SrqSink>> for Job {
    fn from(sink: Weak<dyn SrqSink>) -> Self {
        Job::LowSrq(sink)
    }
}
