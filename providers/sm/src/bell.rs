//! Work for the engine's thread, and the bell that wakes it. Anybody may ring; only the engine answers.
//!
//! The queue is bounded by what there is: each completion queue and each connection has at most a few jobs in it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::handle::ObjectId;
use dapl::provider::ConnId;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// Something that the layer above wants to hear of.
pub(crate) trait Tells: Debug + Send + Sync {
    /// Tells it.
    fn notify(&self);
}

/// A completion queue, as the engine looks after it.
pub(crate) trait Attended: Tells {
    /// Every few milliseconds while it is polled; `last` is the count of polls seen the time before. False: nobody polls
    /// any more, and the engine need not look again.
    fn tick(&self, last: &mut u32) -> bool;
}

/// What the engine reports to the layer above, without borrowed data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum News {
    PeerRejected,
    Rejected,
    AcceptFailed,
    Disconnected,
    Broken,
}

/// A piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has something, or a shared receive queue too little.
    Notify(Arc<dyn Tells>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// A completion queue began to be polled.
    Watch(Arc<dyn Attended>),
    /// The connection of this id has work that nobody else does.
    Run(u32),
    /// Its graceful end is drained.
    Drained(u32),
    /// The other side of this attempt is not there any more.
    Gone(u32),
    /// The peer of this connection has shared memory under this key, which could be mapped.
    Ask(u32, u32),
    /// News of a connection or attempt.
    Event(ConnId, News),
    /// Look at the deadlines again.
    Deadlines,
    /// The end of the IA.
    Stop,
}

/// The queue and its descriptor.
#[derive(Debug)]
pub(crate) struct Bell {
    /// `None` once the engine is gone: a job holds what it is about, and that holds the bell.
    jobs: Mutex<Option<VecDeque<Job>>>,
    fd: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an event descriptor: {e}");
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(Bell { jobs: Mutex::new(Some(VecDeque::new())), fd })
    }

    /// Leaves a job and wakes the engine if it may sleep.
    pub(crate) fn ring(&self, job: Job) {
        let first = {
            let mut jobs = self.jobs.lock();
            let Some(jobs) = jobs.as_mut() else { return };
            jobs.push_back(job);
            jobs.len() == 1
        };
        if first {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Everything that was left, and silence again.
    pub(crate) fn answer(&self) -> VecDeque<Job> {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.jobs.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody answers any more: what was left is dropped, and so is what comes.
    pub(crate) fn silence(&self) {
        let left = self.jobs.lock().take();
        drop(left);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Deaf;

    impl Tells for Deaf {
        fn notify(&self) {}
    }

    #[test]
    fn jobs_are_answered_in_order_until_the_end_and_none_is_kept_behind_it() {
        let (bell, held) = (Bell::new().unwrap(), Arc::new(Deaf));
        (1..=3).for_each(|id| bell.ring(Job::Run(id)));
        let ids: Vec<_> = bell.answer().into_iter().map(|job| if let Job::Run(id) = job { id } else { 0 }).collect();
        assert_eq!(ids, [1, 2, 3]);
        bell.ring(Job::Notify(held.clone()));
        bell.silence();
        assert_eq!(Arc::strong_count(&held), 1, "what nobody did is dropped");
        bell.ring(Job::Notify(held.clone()));
        assert_eq!((Arc::strong_count(&held), bell.answer().len()), (1, 0), "and so is what comes");
    }
}
