//! Work for a provider's engine thread, and the bell that wakes it. Anybody may ring; only the engine answers.
//!
//! The queue is as long as what is left in it: who uses it sees to it that each of its objects has at most a few jobs there.
//! An engine that says when it sleeps is not rung for while it is awake: it looks before it sleeps. Never drops a job before
//! its end, and never blocks.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use dapl::error::{Error, Resource, Result};

/// The queue and its descriptor.
#[derive(Debug)]
pub struct Bell<J> {
    /// `None` once the engine is gone: a job holds what it is about, and that holds the bell.
    work: Mutex<Option<Work<J>>>,
    fd: OwnedFd,
}

#[derive(Debug)]
struct Work<J> {
    jobs: VecDeque<J>,
    /// The engine looks again before it sleeps.
    is_awake: bool,
    /// The descriptor says so.
    has_rung: bool,
}

impl<J> Bell<J> {
    /// A bell without jobs. Errors: `Exhausted(Memory)` without a descriptor for it.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an event descriptor: {e}");
            Error::Exhausted(Resource::Memory)
        })?;
        let work = Work { jobs: VecDeque::new(), is_awake: false, has_rung: false };
        Ok(Bell { work: Mutex::new(Some(work)), fd })
    }

    /// Leaves a job and wakes the engine if it may sleep.
    pub fn ring(&self, job: J) {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return };
        work.jobs.push_back(job);
        if !work.is_awake && !std::mem::replace(&mut work.has_rung, true) {
            // Under the lock: who answers finds it written. It is never full, so this does not block.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Everything that was left, and silence again.
    pub fn answer(&self) -> VecDeque<J> {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return VecDeque::new() };
        if std::mem::take(&mut work.has_rung) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        std::mem::take(&mut work.jobs)
    }

    /// The engine is awake: until it says that it sleeps, jobs are left quietly. For an engine that answers in between.
    pub fn wakes(&self) {
        if let Some(work) = self.work.lock().as_mut() {
            work.is_awake = true;
        }
    }

    /// The engine is about to sleep by the descriptor. False: jobs have come since it answered last.
    pub fn sleeps(&self) -> bool {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return true };
        work.is_awake = false;
        work.jobs.is_empty()
    }

    /// Nobody answers any more: what was left is dropped, and so is what comes.
    pub fn silence(&self) {
        let left = self.work.lock().take();
        drop(left);
    }
}

impl<J> AsFd for Bell<J> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Does it ring? Not if it was answered.
    fn rings<J>(bell: &Bell<J>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn jobs_are_answered_in_order_until_the_end_and_none_is_kept_behind_it() {
        let (bell, held) = (Bell::new().unwrap(), Arc::new(()));
        (1..=3).for_each(|id| bell.ring((id, None)));
        assert!(rings(&bell));
        assert_eq!(bell.answer(), [(1, None), (2, None), (3, None)]);
        assert!(!rings(&bell));
        bell.ring((4, Some(held.clone())));
        bell.silence();
        assert_eq!(Arc::strong_count(&held), 1, "what nobody did is dropped");
        bell.ring((5, Some(held.clone())));
        assert_eq!((Arc::strong_count(&held), bell.answer().len()), (1, 0), "and so is what comes");
    }

    #[test]
    fn who_is_awake_looks_by_itself_before_it_sleeps() {
        let bell = Bell::new().unwrap();
        bell.ring(1);
        bell.wakes();
        assert!(rings(&bell), "it was asleep when that came");
        assert_eq!((bell.answer().len(), rings(&bell)), (1, false));
        bell.ring(2);
        assert!(!rings(&bell) && !bell.sleeps(), "left quietly, and there before it sleeps");
        bell.wakes();
        assert_eq!(bell.answer(), [2]);
        assert!(bell.sleeps());
        bell.ring(3);
        bell.ring(4);
        assert!(rings(&bell));
        assert_eq!((bell.answer().len(), rings(&bell)), (2, false));
    }
}
