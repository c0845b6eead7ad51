//! Shared receive queues. If a message arrives while the queue is empty, its connection drops it and waits for a
//! receive. The next post notifies the first waiting connection that still needs a receive. This connection advertises
//! a credit to its peer.
//!
//! A thread may acquire the lock of the queue while it holds that of a queue pair, but not the other way round.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{Segment, SharedReceiveQueue};
use dapl_software::memory::scatter_gather::Segments;
pub(crate) use dapl_software::srq::SrqRecv;

use crate::engine::jobs::Job;

/// A shared receive queue, shared by its [`Srq`], queue pairs, and jobs of the engine.
pub(crate) type SrqCore = dapl_software::srq::SrqCore<dyn SrqWaiter, Job>;

/// A connection that waits for a receive. Queue pairs implement this trait, so that this module does not depend on
/// them.
pub(crate) trait SrqWaiter: Send + Sync {
    /// Notifies the connection that a receive was posted. Returns false if it has ended, or its peer already knows of
    /// enough receives. The queue then notifies the next connection.
    fn on_receive_posted(&self) -> bool;
}

/// The shared receive queue object that dapl owns.
pub struct Srq(pub(crate) Arc<SrqCore>);

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        if self.0.push(SrqRecv { segments: Segments::new(segments), cookie })? {
            while self.0.next_waiter().is_some_and(|waiter| !waiter.on_receive_posted()) {}
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use dapl::error::{Error, Resource};
    use dapl::provider::{SrqSink, SrqSpec};

    use super::*;
    use crate::engine::jobs::Jobs;

    #[derive(Default)]
    struct FakeWaiter {
        woken: AtomicU32,
        is_served: AtomicBool,
    }

    impl SrqWaiter for FakeWaiter {
        fn on_receive_posted(&self) -> bool {
            self.woken.fetch_add(1, Ordering::Relaxed);
            !self.is_served.load(Ordering::Relaxed)
        }
    }

    #[derive(Default)]
    struct CountingSink(AtomicU32);

    impl SrqSink for CountingSink {
        fn low(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queue(max_recvs: u32) -> (Srq, Arc<CountingSink>, Arc<Jobs>) {
        let (sink, jobs) = (Arc::new(CountingSink::default()), Arc::new(Jobs::new().unwrap()));
        let weak: Weak<dyn SrqSink> = Arc::downgrade(&(sink.clone() as Arc<dyn SrqSink>));
        let spec = SrqSpec { max_recvs, max_iov: 1, sink: weak };
        (Srq(SrqCore::new(1, spec, jobs.clone(), Arc::default(), 1).unwrap()), sink, jobs)
    }

    fn waiter(fake: &Arc<FakeWaiter>) -> Weak<dyn SrqWaiter> {
        Arc::downgrade(&(fake.clone() as Arc<dyn SrqWaiter>))
    }

    fn woken(all: &[Arc<FakeWaiter>]) -> Vec<u32> {
        all.iter().map(|waits| waits.woken.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn srq_receives_and_waiters_are_served_in_order() {
        let (srq, _, _) = queue(3);
        let all = [(); 3].map(|()| Arc::new(FakeWaiter::default()));
        (1..=3).for_each(|cookie| srq.post_recv(&[], cookie).unwrap());
        assert_eq!(srq.post_recv(&[], 4), Err(Error::Exhausted(Resource::Memory)));
        let cookies: Vec<_> = all.iter().map(|waits| srq.0.take(&waiter(waits)).unwrap().cookie).collect();
        assert_eq!((cookies, srq.available(), srq.0.waiter_count()), (vec![1, 2, 3], 0, 0));
        for waits in &all {
            assert!(srq.0.take(&waiter(waits)).is_none());
            (0..2).for_each(|_| srq.0.wait(&waiter(waits)));
        }
        assert_eq!(srq.0.waiter_count(), 3);
        srq.post_recv(&[], 5).unwrap();
        assert_eq!(
            (woken(&all), srq.available()),
            (vec![1, 0, 0], 1),
            "the first waiter is woken, and the receive stays in the SRQ"
        );
        srq.0.cancel_wait(&waiter(&all[1]));
        srq.post_recv(&[], 6).unwrap();
        assert_eq!((woken(&all), srq.0.waiter_count()), (vec![1, 0, 1], 0));
        (0..2).for_each(|at: usize| srq.0.wait(&waiter(&all[at])));
        assert_eq!(
            (srq.0.take(&waiter(&all[0])).unwrap().cookie, srq.0.waiter_count()),
            (5, 1),
            "a connection that has taken a receive is no longer a waiter"
        );
    }

    #[test]
    fn next_waiter_is_notified_if_the_first_needs_no_receive() {
        let (srq, _, _) = queue(3);
        let all = [(); 3].map(|()| Arc::new(FakeWaiter::default()));
        all.iter().for_each(|waits| srq.0.wait(&waiter(waits)));
        all[0].is_served.store(true, Ordering::Relaxed);
        srq.post_recv(&[], 1).unwrap();
        assert_eq!((woken(&all), srq.0.waiter_count()), (vec![1, 1, 0], 1));
        all[2].is_served.store(true, Ordering::Relaxed);
        srq.post_recv(&[], 2).unwrap();
        assert_eq!(
            (woken(&all), srq.0.waiter_count(), srq.available()),
            (vec![1, 1, 1], 0, 2),
            "after all waiters are served, both receives stay in the SRQ"
        );
    }

    #[test]
    fn dropped_srq_waiter_is_skipped() {
        let (srq, _, _) = queue(3);
        let (gone, here) = (Arc::new(FakeWaiter::default()), Arc::new(FakeWaiter::default()));
        [&gone, &here].iter().for_each(|waits| srq.0.wait(&waiter(waits)));
        drop(gone);
        srq.post_recv(&[], 1).unwrap();
        assert_eq!(woken(&[here]), [1]);
    }

    #[test]
    fn low_watermark_is_reported_once_by_the_engine() {
        let (srq, sink, jobs) = queue(4);
        let fake = Arc::new(FakeWaiter::default());
        (0..3).for_each(|cookie| srq.post_recv(&[], cookie).unwrap());
        srq.watch(2).unwrap();
        let notify = || {
            for job in jobs.drain_jobs() {
                if let Job::LowSrq(sink) = job {
                    sink.upgrade().unwrap().low();
                }
            }
            sink.0.load(Ordering::Relaxed)
        };
        let take = || srq.0.take(&waiter(&fake)).map(|buffer| buffer.cookie);
        assert_eq!((notify(), take(), notify()), (0, Some(0), 0));
        assert_eq!((take(), notify()), (Some(1), 1));
        assert_eq!((take(), notify()), (Some(2), 1), "the low watermark is reported only once");
        srq.watch(1).unwrap();
        assert_eq!(notify(), 2, "a watermark above the number of receives is reported immediately");
    }

    #[test]
    fn number_of_srqs_is_limited() {
        let (queue_count, jobs) = (Arc::new(AtomicU32::new(0)), Arc::new(Jobs::new().unwrap()));
        let sink: Weak<dyn SrqSink> = Weak::<CountingSink>::new();
        let new = || {
            let spec = SrqSpec { max_recvs: 1, max_iov: 1, sink: sink.clone() };
            SrqCore::new(1, spec, jobs.clone(), queue_count.clone(), 1)
        };
        let first = new().unwrap();
        assert_eq!(new().err(), Some(Error::Exhausted(Resource::Srq)));
        drop(first);
        assert!(new().is_ok());
    }
}
