//! Work for a provider's engine thread, and the bell that wakes it. Anybody may ring; only the engine answers.
//!
//! The queue is as long as what is left in it: who uses it sees to it that each of its objects has at most a few jobs there.
//! Never drops a job before its end, and never blocks.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use crate::error::{Error, Resource, Result};

/// The queue and its descriptor.
#[derive(Debug)]
pub struct Bell<J> {
    /// `None` once the engine is gone: a job holds what it is about, and that holds the bell.
    jobs: Mutex<Option<VecDeque<J>>>,
    fd: OwnedFd,
}

impl<J> Bell<J> {
    /// A bell without jobs. Errors: `Exhausted(Memory)` without a descriptor for it.
    pub fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            log::error!("cannot create an event descriptor: {e}");
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(Bell { jobs: Mutex::new(Some(VecDeque::new())), fd })
    }

    /// Leaves a job and wakes the engine if it may sleep.
    pub fn ring(&self, job: J) {
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
    pub fn answer(&self) -> VecDeque<J> {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.jobs.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody answers any more: what was left is dropped, and so is what comes.
    pub fn silence(&self) {
        let left = self.jobs.lock().take();
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

    #[test]
    fn jobs_are_answered_in_order_until_the_end_and_none_is_kept_behind_it() {
        let (bell, held) = (Bell::new().unwrap(), Arc::new(()));
        (1..=3).for_each(|id| bell.ring((id, None)));
        assert_eq!(bell.answer(), [(1, None), (2, None), (3, None)]);
        bell.ring((4, Some(held.clone())));
        bell.silence();
        assert_eq!(Arc::strong_count(&held), 1, "what nobody did is dropped");
        bell.ring((5, Some(held.clone())));
        assert_eq!((Arc::strong_count(&held), bell.answer().len()), (1, 0), "and so is what comes");
    }
}
