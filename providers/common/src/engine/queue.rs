//! The job queue of a provider's engine thread, with an eventfd that wakes the thread. Any thread may push; only the engine
//! takes.
//!
//! The queue is unbounded; its users keep at most a few jobs per object in it. An awake engine gets no wake-up, since
//! it checks the queue before it sleeps. No call blocks, and no job is dropped before [`EngineQueue::close`].
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dapl::error::{Error, Resource, Result};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// An object with a callback into the layer above, which the engine calls.
pub trait Notify: Debug + Send + Sync {
    /// Calls the layer above.
    fn notify(&self);
}

/// The queue and its eventfd.
#[derive(Debug)]
pub struct EngineQueue<J> {
    /// `None` once the engine has ended. Jobs refer to objects, and these to the queue, so the jobs are dropped then.
    state: Mutex<Option<QueueState<J>>>,
    fd: OwnedFd,
}

#[derive(Debug)]
struct QueueState<J> {
    jobs: VecDeque<J>,
    /// The engine will check the queue before it sleeps.
    is_awake: bool,
    /// The eventfd is readable.
    is_signalled: bool,
}

impl<J> EngineQueue<J> {
    /// Creates an empty queue. Errors: `Exhausted(Memory)` if no descriptor is available.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an event descriptor: {e}");
            Error::Exhausted(Resource::Memory)
        })?;
        let state = QueueState { jobs: VecDeque::new(), is_awake: false, is_signalled: false };
        Ok(EngineQueue { state: Mutex::new(Some(state)), fd })
    }

    /// Adds a job, and wakes the engine if it may be asleep.
    pub fn push(&self, job: J) {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return };
        state.jobs.push_back(job);
        if !state.is_awake && !std::mem::replace(&mut state.is_signalled, true) {
            // Written under the lock, so that `take_all` can reset it. The eventfd's counter cannot overflow, so this
            // does not block.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Takes all jobs, and resets the eventfd.
    pub fn take_all(&self) -> VecDeque<J> {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return VecDeque::new() };
        if std::mem::take(&mut state.is_signalled) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut state.jobs)
    }

    /// Called by the engine when it wakes: until [`prepare_sleep`](Self::prepare_sleep) a push does not write to the
    /// eventfd.
    pub fn set_awake(&self) {
        if let Some(state) = self.state.lock().as_mut() {
            state.is_awake = true;
        }
    }

    /// Called by the engine before it sleeps on the eventfd. Returns false if there are jobs.
    pub fn prepare_sleep(&self) -> bool {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return true };
        state.is_awake = false;
        state.jobs.is_empty()
    }

    /// Called when the engine ends: drops its jobs, and all later ones.
    pub fn close(&self) {
        let state = self.state.lock().take();
        drop(state);
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

    /// Whether the eventfd is readable.
    fn is_signalled<J>(jobs: &EngineQueue<J>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(jobs, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn jobs_are_taken_in_order_until_the_queue_is_closed() {
        let (jobs, object) = (EngineQueue::new().unwrap(), Arc::new(()));
        (1..=3).for_each(|id| jobs.push((id, None)));
        assert!(is_signalled(&jobs));
        assert_eq!(jobs.take_all(), [(1, None), (2, None), (3, None)]);
        assert!(!is_signalled(&jobs));
        jobs.push((4, Some(object.clone())));
        jobs.close();
        assert_eq!(Arc::strong_count(&object), 1, "jobs that were not taken are dropped");
        jobs.push((5, Some(object.clone())));
        assert_eq!((Arc::strong_count(&object), jobs.take_all().len()), (1, 0), "and so are later ones");
    }

    #[test]
    fn an_awake_engine_is_not_signalled() {
        let jobs = EngineQueue::new().unwrap();
        jobs.push(1);
        jobs.set_awake();
        assert!(is_signalled(&jobs), "the engine was asleep at that push");
        assert_eq!((jobs.take_all().len(), is_signalled(&jobs)), (1, false));
        jobs.push(2);
        assert!(!is_signalled(&jobs) && !jobs.prepare_sleep(), "found before the sleep without a signal");
        jobs.set_awake();
        assert_eq!(jobs.take_all(), [2]);
        assert!(jobs.prepare_sleep());
        jobs.push(3);
        jobs.push(4);
        assert!(is_signalled(&jobs));
        assert_eq!((jobs.take_all().len(), is_signalled(&jobs)), (2, false));
    }
}
