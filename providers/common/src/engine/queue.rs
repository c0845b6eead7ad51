//! Jobs for a provider's engine thread, with an eventfd that wakes it. Every thread may push; only the engine takes.
//!
//! The queue is unbounded: its users keep at most a few jobs per object in it. An engine that announces its sleep is not
//! woken while it is awake, since it looks again before it sleeps. No call blocks, and no job is dropped before
//! [`EngineQueue::close`].
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dapl::error::{Error, Resource, Result};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// An object that reports to the layer above; the engine makes the call.
pub trait Notify: Debug + Send + Sync {
    /// Reports it.
    fn notify(&self);
}

/// The queue and its descriptor.
#[derive(Debug)]
pub struct EngineQueue<J> {
    /// `None` once the engine is gone: a job keeps its object, and that keeps the queue.
    work: Mutex<Option<Work<J>>>,
    fd: OwnedFd,
}

#[derive(Debug)]
struct Work<J> {
    jobs: VecDeque<J>,
    /// The engine looks again before it sleeps.
    is_awake: bool,
    /// The descriptor is readable.
    is_signalled: bool,
}

impl<J> EngineQueue<J> {
    /// An empty queue. Errors: `Exhausted(Memory)` without a descriptor for it.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an event descriptor: {e}");
            Error::Exhausted(Resource::Memory)
        })?;
        let work = Work { jobs: VecDeque::new(), is_awake: false, is_signalled: false };
        Ok(EngineQueue { work: Mutex::new(Some(work)), fd })
    }

    /// Adds a job and wakes the engine if it may sleep.
    pub fn push(&self, job: J) {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return };
        work.jobs.push_back(job);
        if !work.is_awake && !std::mem::replace(&mut work.is_signalled, true) {
            // Under the lock, so that `take_all` finds it written. The count never gets full, so this does not block.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Takes all jobs, and resets the descriptor.
    pub fn take_all(&self) -> VecDeque<J> {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return VecDeque::new() };
        if std::mem::take(&mut work.is_signalled) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut work.jobs)
    }

    /// The engine is awake: until [`prepare_sleep`](Self::prepare_sleep) a push does not write to the descriptor.
    pub fn set_awake(&self) {
        if let Some(work) = self.work.lock().as_mut() {
            work.is_awake = true;
        }
    }

    /// The engine is about to sleep on the descriptor. False: there are jobs that it has not taken.
    pub fn prepare_sleep(&self) -> bool {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return true };
        work.is_awake = false;
        work.jobs.is_empty()
    }

    /// The engine has ended: drops its jobs, and all that are pushed from now on.
    pub fn close(&self) {
        let left = self.work.lock().take();
        drop(left);
    }
}

impl<J> AsFd for EngineQueue<J> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Is the descriptor readable?
    fn is_signalled<J>(jobs: &EngineQueue<J>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(jobs, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn jobs_are_taken_in_order_until_the_queue_is_closed() {
        let (jobs, held) = (EngineQueue::new().unwrap(), Arc::new(()));
        (1..=3).for_each(|id| jobs.push((id, None)));
        assert!(is_signalled(&jobs));
        assert_eq!(jobs.take_all(), [(1, None), (2, None), (3, None)]);
        assert!(!is_signalled(&jobs));
        jobs.push((4, Some(held.clone())));
        jobs.close();
        assert_eq!(Arc::strong_count(&held), 1, "jobs that were not taken are dropped");
        jobs.push((5, Some(held.clone())));
        assert_eq!((Arc::strong_count(&held), jobs.take_all().len()), (1, 0), "and so are later ones");
    }

    #[test]
    fn an_awake_engine_is_not_signalled() {
        let jobs = EngineQueue::new().unwrap();
        jobs.push(1);
        jobs.set_awake();
        assert!(is_signalled(&jobs), "it slept when that was pushed");
        assert_eq!((jobs.take_all().len(), is_signalled(&jobs)), (1, false));
        jobs.push(2);
        assert!(!is_signalled(&jobs) && !jobs.prepare_sleep(), "not signalled, but found before the sleep");
        jobs.set_awake();
        assert_eq!(jobs.take_all(), [2]);
        assert!(jobs.prepare_sleep());
        jobs.push(3);
        jobs.push(4);
        assert!(is_signalled(&jobs));
        assert_eq!((jobs.take_all().len(), is_signalled(&jobs)), (2, false));
    }
}
