//! Completion queues: what has completed, and who brings the device on.
//!
//! A consumer that polls a queue does the engine's work: it receives for all connections of the device, and lets them send. Polls
//! of an armed queue do not take that work from the engine: whoever armed the queue relies on being notified, and may sleep where
//! the provider is not told, as a CNO's agent makes a thread do. A connection without traffic costs a poller nothing. The lock
//! of this module is taken below all others but the job queue's.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{Completion, CompletionQueue, CqSink};
use dapl_software::cq::CompletionList;
use dapl_software::engine::queue::Notify;

use crate::device::Device;
use crate::engine::jobs::{Job, Jobs};

/// The device, as whoever polls one of its queues sees it.
pub(crate) trait Drive: Send + Sync {
    /// A poller's pass: what has come is received, what can leave leaves. Waits for nobody, but for
    /// who puts bytes into their place just now. `counts`: the engine may leave the data sockets to this thread.
    fn poll(&self, counts: bool);
}

impl Drive for Device {
    fn poll(&self, counts: bool) {
        Device::poll(self, counts);
    }
}

/// A completion queue as dapl holds it.
pub struct Cq(pub(crate) Arc<CqCore>);

/// The queue itself, shared with queue pairs and the engine.
pub(crate) struct CqCore {
    ready: CompletionList,
    sink: Weak<dyn CqSink>,
    device: Arc<dyn Drive>,
    /// Nanoseconds that a wait may look before it sleeps.
    spin: u32,
    jobs: Arc<Jobs>,
}

impl std::fmt::Debug for CqCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqCore").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn new(sink: Weak<dyn CqSink>, device: Arc<dyn Drive>, jobs: Arc<Jobs>, spin: u32) -> Self {
        Cq(Arc::new(CqCore { ready: CompletionList::default(), sink, device, spin, jobs }))
    }
}

impl CqCore {
    /// A work request is complete.
    pub(crate) fn push(self: &Arc<Self>, completion: Completion) {
        if self.ready.push(completion) {
            self.jobs.push(Job::Notify(self.clone()));
        }
    }
}

impl Notify for CqCore {
    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.notify();
        }
    }
}

impl CompletionQueue for Cq {
    const SHARES_PROGRESS: bool = true;

    fn poll(&self, out: &mut [Completion]) -> usize {
        let taken = self.ready(out);
        if taken > 0 {
            return taken;
        }
        self.0.device.poll(!self.0.ready.is_armed());
        self.ready(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.0.ready.take(out)
    }

    fn disarm(&self) {
        self.0.ready.disarm();
    }

    fn longest_look(&self) -> u32 {
        self.0.spin
    }

    /// Completions tell themselves which were solicited.
    fn arm(&self, _: bool) -> Result<bool> {
        Ok(self.0.ready.arm(|| ()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use parking_lot::Mutex;

    use super::*;

    /// A device that completes something in each pass, if it is told to, and counts.
    #[derive(Default)]
    pub(crate) struct Double {
        pub(crate) into: Mutex<Option<Arc<CqCore>>>,
        pub(crate) polls: AtomicU32,
        /// Those that count.
        counting: AtomicU32,
    }

    impl Drive for Double {
        fn poll(&self, counts: bool) {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.counting.fetch_add(counts.into(), Ordering::Relaxed);
            if let Some(cq) = &*self.into.lock() {
                cq.push(Completion::default());
            }
        }
    }

    struct Counts(AtomicU32);

    impl CqSink for Counts {
        fn notify(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queue() -> (Cq, Arc<Double>, Arc<Jobs>, Arc<Counts>) {
        let (device, jobs) = (Arc::new(Double::default()), Arc::new(Jobs::new().unwrap()));
        let sink = Arc::new(Counts(AtomicU32::new(0)));
        let weak: Weak<dyn CqSink> = Arc::downgrade(&(sink.clone() as Arc<dyn CqSink>));
        (Cq::new(weak, device.clone(), jobs.clone(), 7), device, jobs, sink)
    }

    fn answer(jobs: &Jobs) {
        for job in jobs.take_all() {
            if let Job::Notify(queue) = job {
                queue.notify();
            }
        }
    }

    #[test]
    fn a_poll_brings_the_device_on_unless_something_waits() {
        let (cq, device, _, _) = queue();
        let mut out = [Completion::default(); 4];
        assert_eq!(cq.poll(&mut out), 0);
        *device.into.lock() = Some(cq.0.clone());
        assert_eq!((cq.poll(&mut out), device.polls.load(Ordering::Relaxed)), (1, 2));
        cq.0.push(Completion::default());
        assert_eq!((cq.poll(&mut out), device.polls.load(Ordering::Relaxed)), (1, 2), "it was there");
        assert_eq!((cq.ready(&mut out), device.polls.load(Ordering::Relaxed)), (0, 2));
    }

    #[test]
    fn who_arms_it_is_told_once_and_not_of_what_was_there() {
        let (cq, _, jobs, sink) = queue();
        assert!(cq.arm(false).unwrap());
        cq.0.push(Completion::default());
        cq.0.push(Completion::default());
        answer(&jobs);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
        assert!(!cq.arm(false).unwrap(), "two wait");
        cq.0.push(Completion::default());
        answer(&jobs);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn polls_of_an_armed_queue_leave_the_sockets_to_the_engine() {
        let (cq, device, jobs, _) = queue();
        let counting = || device.counting.load(Ordering::Relaxed);
        let mut out = [Completion::default(); 4];
        cq.poll(&mut out);
        assert!(counting() == 1 && cq.arm(false).unwrap());
        cq.poll(&mut out);
        assert_eq!(counting(), 1);
        cq.0.push(Completion::default());
        answer(&jobs);
        assert_eq!((cq.poll(&mut out), cq.poll(&mut out), counting()), (1, 0, 2), "disarmed by what came");
    }
}
