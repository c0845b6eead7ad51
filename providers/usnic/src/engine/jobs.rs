//! The jobs of the engine thread. Any thread may queue a job, and the engine thread executes it.
//!
//! The queue has no size limit, because few jobs are pending at a time: a completion queue adds at most one each time
//! it is armed. A connection adds a wake-up if its next deadline moves forward while the engine sleeps, and other jobs
//! only for rare events.
#![forbid(unsafe_code)]

use std::sync::Weak;

use dapl::provider::{ConnId, ConnectionEvent, CqSink, SrqSink};
use dapl::runtime::handle::ObjectId;
use dapl_software::engine::queue::EngineQueue;
use dapl_software::memory::refused::RefusedAccess;
use dapl_software::overdue::OverdueSend;

pub(crate) type Jobs = EngineQueue<Job>;

pub(crate) enum Job {
    /// An armed completion queue has a completion.
    Notify(Weak<dyn CqSink>),
    /// A shared receive queue has fewer receives than its low watermark.
    LowSrq(Weak<dyn SrqSink>),
    /// The EP has more receives in use than its soft high watermark.
    ManyRecvs(ObjectId),
    /// Reports an event of a connection or connection attempt.
    Event(ConnId, ConnectionEvent),
    /// Logs a memory access that failed a check.
    Refused(RefusedAccess),
    /// Logs a send that waits for the peer to post a receive.
    Overdue(OverdueSend),
    /// Wakes the engine, because the connection manager or a connection has work to do or an earlier deadline, or
    /// because no thread polls any more.
    Wake,
    /// Ends the engine thread, because the IA is closed.
    Stop,
}

impl From<Weak<dyn SrqSink>> for Job {
    fn from(sink: Weak<dyn SrqSink>) -> Self {
        Job::LowSrq(sink)
    }
}
