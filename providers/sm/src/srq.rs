//! Shared receive queues. If the queue is empty when a message arrives, the message stays in its ring, and its
//! connection waits for a receive. The next posted receive goes to the connection that has waited longest, and the post
//! delivers the message. While a connection waits, the queue is empty. The queue's lock is acquired after the locks of
//! the receive and send directions.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use dapl::error::Result;
use dapl::provider::{Segment, SharedReceiveQueue, SrqSpec};
use dapl_software::memory::scatter_gather::Segments;
pub(crate) use dapl_software::srq::SrqRecv;

use crate::engine::jobs::{Job, Jobs};

/// The state of a shared receive queue.
pub(crate) type SrqCore = dapl_software::srq::SrqCore<dyn SrqWaiter, Job>;

/// A connection that can wait for a receive. It is a trait because the calls go both ways: connections dequeue
/// receives, and the queue offers receives to waiting connections.
pub(crate) trait SrqWaiter: Send + Sync {
    /// Offers a receive to a waiting connection. Returns the receive if the connection does not wait any more.
    fn offer_receive(&self, buffer: SrqRecv) -> Option<SrqRecv>;
}

/// A shared receive queue, as dapl refers to it.
pub struct Srq(pub(crate) Arc<SrqCore>);

impl Srq {
    /// Creates a queue. `alive`: number of queues of the IA, which may be at most `most`.
    pub(crate) fn new(pd: u32, spec: SrqSpec, jobs: Arc<Jobs>, alive: Arc<AtomicU32>, most: u32) -> Result<Self> {
        SrqCore::new(pd, spec, jobs, alive, most).map(Srq)
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        let buffer = SrqRecv { segments: Segments::new(segments), cookie };
        self.0.push_or_hand_over(buffer, |waiter, buffer| waiter.offer_receive(buffer))
    }

    fn available(&self) -> u32 {
        self.0.available()
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        self.0.resize(max_recvs);
        Ok(())
    }

    fn watch(&self, limit: u32) -> Result<()> {
        self.0.watch(limit);
        Ok(())
    }
}
