//! The core of a shared receive queue: receives for many connections, and the connections that wait for a receive.
//!
//! Waiting connections are served in the order in which they began to wait; one that no longer needs a receive is
//! skipped. A provider posts a receive in one of two ways. [`SrqCore::push_or_hand_over`] passes the receive directly
//! to a waiting connection. [`SrqCore::push`] queues the receive, and the caller wakes the first waiting connection,
//! which takes a receive from the queue. The lock is not held while a waiting connection is called.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{SrqSink, SrqSpec, Token};
use dapl::stats::watermark::LowWatermark;
use parking_lot::Mutex;

use crate::engine::queue::EngineQueue;
use crate::memory::scatter_gather::Segments;

/// A posted receive that no connection uses yet.
pub struct SrqRecv {
    /// Memory for the message.
    pub segments: Segments,
    /// The consumer's cookie.
    pub cookie: u64,
}

/// The queue, shared by the provider's `Srq`, connections and the engine. `W` is the type of a waiting connection, `J`
/// the type of an engine job.
pub struct SrqCore<W: ?Sized, J> {
    /// Protection domain of the receives' memory.
    pub pd: u32,
    state: Mutex<SrqState<W>>,
    /// Number of receives in the queue, readable without the lock.
    available: AtomicU32,
    sink: Weak<dyn SrqSink>,
    jobs: Arc<EngineQueue<J>>,
    /// Number of shared receive queues of the IA.
    queue_count: Arc<AtomicU32>,
}

/// A connection's use of a shared receive queue.
pub struct SrqUser<W: ?Sized, J> {
    pub srq: Arc<SrqCore<W, J>>,
    /// Token of the connection's receive completions. Its cookie is replaced by that of the receive.
    pub token: Token,
    /// The connection, in the form in which it is added to the queue of waiters.
    pub waiter: Weak<W>,
}

struct SrqState<W: ?Sized> {
    buffers: VecDeque<SrqRecv>,
    waiters: VecDeque<Weak<W>>,
    max_recvs: u32,
    low: LowWatermark,
}

impl<W, J> SrqCore<W, J>
where
    W: ?Sized,
    J: From<Weak<dyn SrqSink>>,
{
    /// Creates a queue. Errors: `Exhausted(Srq)` if `queue_count` has reached `max_queues`.
    pub fn new(
        pd: u32,
        spec: SrqSpec,
        jobs: Arc<EngineQueue<J>>,
        queue_count: Arc<AtomicU32>,
        max_queues: u32,
    ) -> Result<Arc<Self>> {
        let more = |queue_count| (queue_count < max_queues).then_some(queue_count + 1);
        queue_count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map_err(|_| Error::Exhausted(Resource::Srq))?;
        let (buffers, waiters, low) = (VecDeque::new(), VecDeque::new(), LowWatermark::default());
        let state = Mutex::new(SrqState { buffers, waiters, max_recvs: spec.max_recvs, low });
        Ok(Arc::new(SrqCore { pd, state, available: AtomicU32::new(0), sink: spec.sink, jobs, queue_count }))
    }

    /// Returns the number of receives in the queue.
    #[inline]
    pub fn available(&self) -> u32 {
        self.available.load(Ordering::Acquire)
    }

    /// Sets the maximum number of receives in the queue.
    pub fn resize(&self, max_recvs: u32) {
        self.state.lock().max_recvs = max_recvs;
    }

    /// Sets the low watermark. The sink is notified once, as soon as the queue has fewer than `limit` receives, or
    /// immediately if it already has fewer.
    pub fn watch(&self, limit: u32) {
        let mut state = self.state.lock();
        state.low = LowWatermark::new(limit);
        let count = state.buffers.len();
        self.check_low(count, &mut state.low);
    }

    /// Adds a receive. Returns true if a connection waits for a receive. The caller then wakes
    /// [`next_waiter`](Self::next_waiter).
    ///
    /// Errors: `Exhausted(Memory)` if the queue is full.
    pub fn push(&self, buffer: SrqRecv) -> Result<bool> {
        let mut state = self.state.lock();
        state.check_capacity()?;
        self.add(&mut state, buffer);
        Ok(!state.waiters.is_empty())
    }

    /// Offers a receive to each waiting connection in order, until one accepts it. If none accepts it, adds it to the
    /// queue. `offer` returns the receive if the connection no longer needs one.
    ///
    /// Errors: `Exhausted(Memory)` if the queue is full.
    pub fn push_or_hand_over(&self, mut buffer: SrqRecv, offer: impl Fn(&W, SrqRecv) -> Option<SrqRecv>) -> Result<()> {
        let mut state = self.state.lock();
        state.check_capacity()?;
        loop {
            let Some(first) = state.pop_waiter() else {
                self.add(&mut state, buffer);
                return Ok(());
            };
            drop(state);
            match offer(&first, buffer) {
                Some(back) => buffer = back,
                None => return Ok(()),
            }
            state = self.state.lock();
        }
    }

    /// Removes and returns the first waiter whose connection still exists.
    pub fn next_waiter(&self) -> Option<Arc<W>> {
        self.state.lock().pop_waiter()
    }

    /// Removes and returns the first receive. On success, also removes `waiter` from the queue of waiters.
    pub fn take(&self, waiter: &Weak<W>) -> Option<SrqRecv> {
        let mut state = self.state.lock();
        let buffer = self.pop(&mut state)?;
        state.waiters.retain(|known| !known.ptr_eq(waiter));
        Some(buffer)
    }

    /// Removes and returns the first receive. If there is none, adds `waiter` to the queue of waiters.
    pub fn take_or_wait(&self, waiter: &Weak<W>) -> Option<SrqRecv> {
        let mut state = self.state.lock();
        let buffer = self.pop(&mut state);
        if buffer.is_none() {
            state.waiters.push_back(waiter.clone());
        }
        buffer
    }

    /// Adds `waiter` to the queue of waiters, unless it is already there. The caller must then try [`take`](Self::take)
    /// again, because `waiter` is not notified of a receive that was posted just before.
    pub fn wait(&self, waiter: &Weak<W>) {
        let mut state = self.state.lock();
        if !state.waiters.iter().any(|known| known.ptr_eq(waiter)) {
            state.waiters.push_back(waiter.clone());
        }
    }

    /// Removes `waiter` from the queue of waiters.
    pub fn cancel_wait(&self, waiter: &Weak<W>) {
        self.state.lock().waiters.retain(|known| !known.ptr_eq(waiter));
    }

    pub fn waiter_count(&self) -> usize {
        self.state.lock().waiters.len()
    }

    fn add(&self, state: &mut SrqState<W>, buffer: SrqRecv) {
        state.buffers.push_back(buffer);
        self.available.store(state.buffers.len() as u32, Ordering::Release);
    }

    fn pop(&self, state: &mut SrqState<W>) -> Option<SrqRecv> {
        let buffer = state.buffers.pop_front()?;
        let count = state.buffers.len();
        self.available.store(count as u32, Ordering::Release);
        self.check_low(count, &mut state.low);
        Some(buffer)
    }

    fn check_low(&self, count: usize, low: &mut LowWatermark) {
        if low.check(count as u32) {
            self.jobs.push(J::from(self.sink.clone()));
        }
    }
}

impl<W: ?Sized> SrqState<W> {
    fn check_capacity(&self) -> Result<()> {
        if self.buffers.len() < self.max_recvs as usize { Ok(()) } else { Err(Error::Exhausted(Resource::Memory)) }
    }

    fn pop_waiter(&mut self) -> Option<Arc<W>> {
        std::iter::from_fn(|| self.waiters.pop_front()).find_map(|waiter| waiter.upgrade())
    }
}

impl<W: ?Sized, J> Drop for SrqCore<W, J> {
    fn drop(&mut self) {
        self.queue_count.fetch_sub(1, Ordering::AcqRel);
    }
}
