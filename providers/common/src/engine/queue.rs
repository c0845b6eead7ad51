//! The job queue of a provider's engine thread, with an eventfd that wakes the thread. Any thread may push jobs. Only
//! the engine thread removes them.
//!
//! The queue is unbounded, and drops no job before [`EngineQueue::close`]. An engine thread that polls calls
//! [`EngineQueue::set_awake`]: pushes then do not signal the eventfd, because the thread checks the queue before it
//! sleeps.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dapl::error::{Error, Resource, Result};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// A queue of jobs of type `J`, and the eventfd that wakes the engine thread.
pub struct EngineQueue<J> {
    /// `None` after `close`, which drops the jobs. Jobs refer to objects, and objects refer to this queue, so without
    /// the drop these reference cycles would never be freed.
    state: Mutex<Option<QueueState<J>>>,
    fd: OwnedFd,
}

struct QueueState<J> {
    jobs: VecDeque<J>,
    /// Whether the engine thread has called `set_awake`. It then checks the queue before it sleeps.
    is_awake: bool,
    /// Whether the eventfd is readable.
    is_signalled: bool,
}

impl<J> EngineQueue<J> {
    /// Creates an empty queue. Errors: `Exhausted(Memory)` if no file descriptor is free.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an eventfd for the engine: {e}; allow more open files (ulimit -n)");
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(EngineQueue::with_eventfd(fd))
    }

    /// Creates an empty queue with a new non-blocking eventfd.
    pub fn with_eventfd(fd: OwnedFd) -> Self {
        let state = QueueState { jobs: VecDeque::new(), is_awake: false, is_signalled: false };
        EngineQueue { state: Mutex::new(Some(state)), fd }
    }

    /// Adds a job, and wakes the engine thread if it may be asleep. After `close`, drops the job.
    pub fn push(&self, job: J) {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return };
        state.jobs.push_back(job);
        self.signal(state);
    }

    /// Wakes the engine thread if it may be asleep, without a job. The caller has changed something that the thread
    /// checks after [`prepare_sleep`](Self::prepare_sleep), such as a deadline.
    pub fn wake(&self) {
        if let Some(state) = self.state.lock().as_mut() {
            self.signal(state);
        }
    }

    fn signal(&self, state: &mut QueueState<J>) {
        if !state.is_awake && !std::mem::replace(&mut state.is_signalled, true) {
            // The write is made under the lock, so that the eventfd agrees with `is_signalled`. It does not block,
            // because the counter of the eventfd is 0.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Removes and returns all jobs, and resets the eventfd.
    pub fn drain_jobs(&self) -> VecDeque<J> {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return VecDeque::new() };
        if std::mem::take(&mut state.is_signalled) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut state.jobs)
    }

    /// Records that the engine thread is awake. Until [`prepare_sleep`](Self::prepare_sleep), pushes do not signal the
    /// eventfd.
    pub fn set_awake(&self) {
        if let Some(state) = self.state.lock().as_mut() {
            state.is_awake = true;
        }
    }

    /// Records that the engine thread is about to sleep on the eventfd. Returns false if jobs are queued. The thread
    /// must then not sleep.
    pub fn prepare_sleep(&self) -> bool {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return true };
        state.is_awake = false;
        state.jobs.is_empty()
    }

    /// Drops all queued jobs, and makes `push` drop later ones. Called when the engine ends.
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
    fn jobs_are_returned_in_order_until_close() {
        let (jobs, object) = (EngineQueue::new().unwrap(), Arc::new(()));
        (1..=3).for_each(|id| jobs.push((id, None)));
        assert!(is_signalled(&jobs));
        assert_eq!(jobs.drain_jobs(), [(1, None), (2, None), (3, None)]);
        assert!(!is_signalled(&jobs));
        jobs.push((4, Some(object.clone())));
        jobs.close();
        assert_eq!(Arc::strong_count(&object), 1, "queued jobs are dropped");
        jobs.push((5, Some(object.clone())));
        assert_eq!((Arc::strong_count(&object), jobs.drain_jobs().len()), (1, 0), "later jobs are dropped");
    }

    #[test]
    fn push_signals_only_a_sleeping_engine() {
        let jobs = EngineQueue::new().unwrap();
        jobs.push(1);
        jobs.set_awake();
        assert!(is_signalled(&jobs), "the engine was asleep at that push");
        assert_eq!((jobs.drain_jobs().len(), is_signalled(&jobs)), (1, false));
        jobs.push(2);
        assert!(!is_signalled(&jobs) && !jobs.prepare_sleep(), "an awake engine finds the job without a signal");
        jobs.set_awake();
        assert_eq!(jobs.drain_jobs(), [2]);
        assert!(jobs.prepare_sleep());
        jobs.push(3);
        jobs.push(4);
        assert!(is_signalled(&jobs));
        assert_eq!((jobs.drain_jobs().len(), is_signalled(&jobs)), (2, false));
    }
}
