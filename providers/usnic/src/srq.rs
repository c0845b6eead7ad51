//! Shared receive queues: receives for many connections, and the connections that stand in line for one.
//!
//! A message that finds the queue empty is not taken, and its connection stands in line. Whoever posts the next receive wakes
//! the first in line, which tells its peer that there is a receive now; a post pays nothing when nobody waits. The lock of
//! this room is taken below those of queue pairs; a taker is called without it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Segment, SharedReceiveQueue, SrqSink, SrqSpec};
use dapl::stats::watermark::Low;
use dapl_software::memory::scatter_gather::Segments;
use parking_lot::Mutex;

use crate::engine::jobs::{Bell, Job, Tells};

/// A receive that no connection has taken yet.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) segments: Segments,
    pub(crate) cookie: u64,
}

/// A connection that stands in line.
pub(crate) trait Taker: Send + Sync {
    /// There is a receive. `false`: it was not waiting for one.
    fn receive_came(&self) -> bool;
}

/// A shared receive queue as dapl holds it.
pub struct Srq(pub(crate) Arc<SrqCore>);

/// The queue itself, shared with its queue pairs and the engine.
pub(crate) struct SrqCore {
    /// Its receives name memory of this protection domain.
    pub(crate) pd: u32,
    inner: Mutex<Inner>,
    /// Receives in it, to be read without the lock.
    left: AtomicU32,
    sink: Weak<dyn SrqSink>,
    bell: Arc<Bell>,
    /// How many queues there are in the IA.
    alive: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Inner {
    buffers: VecDeque<Buffer>,
    line: VecDeque<Weak<dyn Taker>>,
    most: u32,
    low: Low,
}

impl std::fmt::Debug for SrqCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqCore").field("pd", &self.pd).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Srq {
    /// One more, if `alive` are fewer than `most`.
    pub(crate) fn new(pd: u32, spec: SrqSpec, bell: Arc<Bell>, alive: Arc<AtomicU32>, most: u32) -> Result<Self> {
        let more = |alive| (alive < most).then_some(alive + 1);
        alive.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map_err(|_| Error::Exhausted(Resource::Srq))?;
        let (buffers, line, low) = (VecDeque::new(), VecDeque::new(), Low::default());
        let inner = Mutex::new(Inner { buffers, line, most: spec.max_recvs, low });
        Ok(Srq(Arc::new(SrqCore { pd, inner, left: AtomicU32::new(0), sink: spec.sink, bell, alive })))
    }
}

impl SrqCore {
    /// A receive for a message that has come. Whoever stood in line for it does so no more.
    pub(crate) fn take(self: &Arc<Self>, taker: &Weak<dyn Taker>) -> Option<Buffer> {
        let mut inner = self.inner.lock();
        let buffer = inner.buffers.pop_front()?;
        inner.line.retain(|known| !known.ptr_eq(taker));
        self.look(&mut inner);
        Some(buffer)
    }

    /// `taker` waits for a receive, in its turn. It looks for one once more after this.
    pub(crate) fn stand_in_line(&self, taker: &Weak<dyn Taker>) {
        let mut inner = self.inner.lock();
        if !inner.line.iter().any(|known| known.ptr_eq(taker)) {
            inner.line.push_back(taker.clone());
        }
    }

    /// The first in line that takes the turn.
    fn wake(&self) {
        while let Some(first) = self.first() {
            if first.receive_came() {
                return;
            }
        }
    }

    /// The first in line that is still there. It is called without the lock.
    fn first(&self) -> Option<Arc<dyn Taker>> {
        let mut inner = self.inner.lock();
        std::iter::from_fn(|| inner.line.pop_front()).find_map(|taker| taker.upgrade())
    }

    /// Receives in it.
    pub(crate) fn left(&self) -> u32 {
        self.left.load(Ordering::Acquire)
    }

    /// It waits no more.
    pub(crate) fn leave(&self, taker: &Weak<dyn Taker>) {
        self.inner.lock().line.retain(|known| !known.ptr_eq(taker));
    }

    #[cfg(test)]
    pub(crate) fn line(&self) -> usize {
        self.inner.lock().line.len()
    }

    /// Their number has changed.
    fn look(self: &Arc<Self>, inner: &mut Inner) {
        let left = inner.buffers.len() as u32;
        self.left.store(left, Ordering::Release);
        if inner.low.look(left) {
            self.bell.ring(Job::Notify(self.clone()));
        }
    }
}

impl Tells for SrqCore {
    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.low();
        }
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        let mut inner = self.0.inner.lock();
        if inner.buffers.len() >= inner.most as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        inner.buffers.push_back(Buffer { segments: Segments::new(segments), cookie });
        self.0.left.store(inner.buffers.len() as u32, Ordering::Release);
        let somebody_waits = !inner.line.is_empty();
        drop(inner);
        if somebody_waits {
            self.0.wake();
        }
        Ok(())
    }

    fn available(&self) -> u32 {
        self.0.left()
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        self.0.inner.lock().most = max_recvs;
        Ok(())
    }

    fn watch(&self, limit: u32) -> Result<()> {
        let mut inner = self.0.inner.lock();
        inner.low = Low::new(limit);
        self.0.look(&mut inner);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Default)]
    struct Waits {
        woken: AtomicU32,
        is_served: AtomicBool,
    }

    impl Taker for Waits {
        fn receive_came(&self) -> bool {
            self.woken.fetch_add(1, Ordering::Relaxed);
            !self.is_served.load(Ordering::Relaxed)
        }
    }

    #[derive(Default)]
    struct Hears(AtomicU32);

    impl SrqSink for Hears {
        fn low(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queue(max_recvs: u32) -> (Srq, Arc<Hears>, Arc<Bell>) {
        let (sink, bell) = (Arc::new(Hears::default()), Arc::new(Bell::new().unwrap()));
        let weak: Weak<dyn SrqSink> = Arc::downgrade(&(sink.clone() as Arc<dyn SrqSink>));
        let spec = SrqSpec { max_recvs, max_iov: 1, sink: weak };
        (Srq::new(1, spec, bell.clone(), Arc::default(), 1).unwrap(), sink, bell)
    }

    fn taker(waits: &Arc<Waits>) -> Weak<dyn Taker> {
        Arc::downgrade(&(waits.clone() as Arc<dyn Taker>))
    }

    fn woken(all: &[Arc<Waits>]) -> Vec<u32> {
        all.iter().map(|waits| waits.woken.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn receives_are_taken_in_order_and_who_finds_none_stands_in_line_once() {
        let (srq, _, _) = queue(3);
        let all = [(); 3].map(|()| Arc::new(Waits::default()));
        (1..=3).for_each(|cookie| srq.post_recv(&[], cookie).unwrap());
        assert_eq!(srq.post_recv(&[], 4), Err(Error::Exhausted(Resource::Memory)));
        let cookies: Vec<_> = all.iter().map(|waits| srq.0.take(&taker(waits)).unwrap().cookie).collect();
        assert_eq!((cookies, srq.available(), srq.0.line()), (vec![1, 2, 3], 0, 0));
        for waits in &all {
            assert!(srq.0.take(&taker(waits)).is_none());
            (0..2).for_each(|_| srq.0.stand_in_line(&taker(waits)));
        }
        assert_eq!(srq.0.line(), 3);
        srq.post_recv(&[], 5).unwrap();
        assert_eq!((woken(&all), srq.available()), (vec![1, 0, 0], 1), "the first is woken, the receive stays");
        srq.0.leave(&taker(&all[1]));
        srq.post_recv(&[], 6).unwrap();
        assert_eq!((woken(&all), srq.0.line()), (vec![1, 0, 1], 0));
        (0..2).for_each(|at: usize| srq.0.stand_in_line(&taker(&all[at])));
        assert_eq!(
            (srq.0.take(&taker(&all[0])).unwrap().cookie, srq.0.line()),
            (5, 1),
            "who has taken one waits no more"
        );
    }

    #[test]
    fn who_does_not_need_its_turn_passes_it_on() {
        let (srq, _, _) = queue(3);
        let all = [(); 3].map(|()| Arc::new(Waits::default()));
        all.iter().for_each(|waits| srq.0.stand_in_line(&taker(waits)));
        all[0].is_served.store(true, Ordering::Relaxed);
        srq.post_recv(&[], 1).unwrap();
        assert_eq!((woken(&all), srq.0.line()), (vec![1, 1, 0], 1));
        all[2].is_served.store(true, Ordering::Relaxed);
        srq.post_recv(&[], 2).unwrap();
        assert_eq!((woken(&all), srq.0.line(), srq.available()), (vec![1, 1, 1], 0, 2), "nobody needs it");
    }

    #[test]
    fn who_is_gone_is_passed_over() {
        let (srq, _, _) = queue(3);
        let (gone, here) = (Arc::new(Waits::default()), Arc::new(Waits::default()));
        [&gone, &here].iter().for_each(|waits| srq.0.stand_in_line(&taker(waits)));
        drop(gone);
        srq.post_recv(&[], 1).unwrap();
        assert_eq!(woken(&[here]), [1]);
    }

    #[test]
    fn low_is_told_once_by_the_engine() {
        let (srq, sink, bell) = queue(4);
        let waits = Arc::new(Waits::default());
        (0..3).for_each(|cookie| srq.post_recv(&[], cookie).unwrap());
        srq.watch(2).unwrap();
        let tell = || {
            for job in bell.answer() {
                if let Job::Notify(queue) = job {
                    queue.notify();
                }
            }
            sink.0.load(Ordering::Relaxed)
        };
        let take = || srq.0.take(&taker(&waits)).map(|buffer| buffer.cookie);
        assert_eq!((tell(), take(), tell()), (0, Some(0), 0));
        assert_eq!((take(), tell()), (Some(1), 1));
        assert_eq!((take(), tell()), (Some(2), 1), "once");
        srq.watch(1).unwrap();
        assert_eq!(tell(), 2, "what is so already counts at once");
    }

    #[test]
    fn there_are_no_more_queues_than_may_be() {
        let (alive, bell) = (Arc::new(AtomicU32::new(0)), Arc::new(Bell::new().unwrap()));
        let sink: Weak<dyn SrqSink> = Weak::<Hears>::new();
        let new = || {
            let spec = SrqSpec { max_recvs: 1, max_iov: 1, sink: sink.clone() };
            Srq::new(1, spec, bell.clone(), alive.clone(), 1)
        };
        let first = new().unwrap();
        assert_eq!(new().err(), Some(Error::Exhausted(Resource::Srq)));
        drop(first);
        assert!(new().is_ok());
    }
}
