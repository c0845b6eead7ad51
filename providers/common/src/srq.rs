//! The core of a shared receive queue: receives for many connections, and the connections that wait for a receive.
//!
//! Waiting connections are served in order. A post either passes its receive to the first of them
//! ([`SrqCore::push_or_hand_over`]), or queues it and wakes that connection, which then takes it ([`SrqCore::push`]).
//! Without waiting connections a post does no extra work. Waiters are called without the lock.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{SrqSink, SrqSpec, Token};
use dapl::stats::watermark::LowWatermark;
use parking_lot::Mutex;

use crate::engine::queue::{EngineQueue, Notify};
use crate::memory::scatter_gather::Segments;

/// A posted receive that no connection has taken yet.
#[derive(Debug)]
pub struct SrqRecv {
    /// Memory for the message.
    pub segments: Segments,
    /// The consumer's cookie.
    pub cookie: u64,
}

/// The queue, shared by the consumer's handle, its connections and the engine. `W` is a waiting connection, `J` a job of the
/// engine.
pub struct SrqCore<W: ?Sized, J> {
    /// Protection domain of the receives' memory.
    pub pd: u32,
    state: Mutex<SrqState<W>>,
    /// Receives in the queue, readable without the lock.
    available: AtomicU32,
    sink: Weak<dyn SrqSink>,
    jobs: Arc<EngineQueue<J>>,
    /// Number of queues of the IA.
    queue_count: Arc<AtomicU32>,
}

/// The shared receive queue of a connection.
pub struct Pool<W: ?Sized, J> {
    pub srq: Arc<SrqCore<W, J>>,
    /// Token of the connection's receive completions, without the cookie.
    pub token: Token,
    /// The connection as a waiter.
    pub waiter: Weak<W>,
}

impl<W: ?Sized, J> std::fmt::Debug for Pool<W, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("srq", &self.srq).finish_non_exhaustive()
    }
}

struct SrqState<W: ?Sized> {
    buffers: VecDeque<SrqRecv>,
    waiters: VecDeque<Weak<W>>,
    max_recvs: u32,
    low: LowWatermark,
}

impl<W: ?Sized, J> std::fmt::Debug for SrqCore<W, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqCore").field("pd", &self.pd).field("available", &self.available).finish_non_exhaustive()
    }
}

impl<W, J> SrqCore<W, J>
where
    W: ?Sized + Send + Sync + 'static,
    J: From<Arc<dyn Notify>> + Send + 'static,
{
    /// Creates a queue, if `queue_count` is below `max_queues`. Errors: `Exhausted(Srq)`.
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

    /// Receives in the queue.
    #[inline]
    pub fn available(&self) -> u32 {
        self.available.load(Ordering::Acquire)
    }

    /// Sets the maximum number of receives in the queue.
    pub fn resize(&self, max_recvs: u32) {
        self.state.lock().max_recvs = max_recvs;
    }

    /// Sets the low watermark: one report when fewer than `limit` receives are left, at once if that is so already.
    pub fn watch(self: &Arc<Self>, limit: u32) {
        let mut state = self.state.lock();
        state.low = LowWatermark::new(limit);
        let left = state.buffers.len();
        self.check_low(left, &mut state.low);
    }

    /// Adds a receive. Returns true if a connection waits for one. Errors: `Exhausted(Memory)` for a full queue.
    pub fn push(&self, buffer: SrqRecv) -> Result<bool> {
        let mut state = self.state.lock();
        state.check_capacity()?;
        self.add(&mut state, buffer);
        Ok(!state.waiters.is_empty())
    }

    /// Adds a receive if no connection waits; else offers it to the waiters in turn. `offer` returns the receive if the
    /// connection no longer needs it. Errors: `Exhausted(Memory)` for a full queue.
    pub fn push_or_hand_over(&self, mut buffer: SrqRecv, offer: impl Fn(&W, SrqRecv) -> Option<SrqRecv>) -> Result<()> {
        let mut state = self.state.lock();
        state.check_capacity()?;
        loop {
            let Some(first) = state.first() else {
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
        self.state.lock().first()
    }

    /// Takes a receive. On success `waiter` is removed from the queue of waiters.
    pub fn take(self: &Arc<Self>, waiter: &Weak<W>) -> Option<SrqRecv> {
        let mut state = self.state.lock();
        let buffer = self.pop(&mut state)?;
        state.waiters.retain(|known| !known.ptr_eq(waiter));
        Some(buffer)
    }

    /// Takes a receive; if there is none, `waiter` waits from now on.
    pub fn take_or_wait(self: &Arc<Self>, waiter: &Weak<W>) -> Option<SrqRecv> {
        let mut state = self.state.lock();
        let buffer = self.pop(&mut state);
        if buffer.is_none() {
            state.waiters.push_back(waiter.clone());
        }
        buffer
    }

    /// Makes `waiter` wait for a receive, unless it does already. The caller has to try [`take`](Self::take) once more after
    /// this.
    pub fn wait(&self, waiter: &Weak<W>) {
        let mut state = self.state.lock();
        if !state.waiters.iter().any(|known| known.ptr_eq(waiter)) {
            state.waiters.push_back(waiter.clone());
        }
    }

    /// Removes `waiter` from the waiters.
    pub fn cancel_wait(&self, waiter: &Weak<W>) {
        self.state.lock().waiters.retain(|known| !known.ptr_eq(waiter));
    }

    pub fn waiting(&self) -> usize {
        self.state.lock().waiters.len()
    }

    fn add(&self, state: &mut SrqState<W>, buffer: SrqRecv) {
        state.buffers.push_back(buffer);
        self.available.store(state.buffers.len() as u32, Ordering::Release);
    }

    fn pop(self: &Arc<Self>, state: &mut SrqState<W>) -> Option<SrqRecv> {
        let buffer = state.buffers.pop_front()?;
        let left = state.buffers.len();
        self.available.store(left as u32, Ordering::Release);
        self.check_low(left, &mut state.low);
        Some(buffer)
    }

    fn check_low(self: &Arc<Self>, left: usize, low: &mut LowWatermark) {
        if low.check(left as u32) {
            self.jobs.push(J::from(self.clone() as Arc<dyn Notify>));
        }
    }
}

impl<W: ?Sized> SrqState<W> {
    fn check_capacity(&self) -> Result<()> {
        if self.buffers.len() < self.max_recvs as usize { Ok(()) } else { Err(Error::Exhausted(Resource::Memory)) }
    }

    fn first(&mut self) -> Option<Arc<W>> {
        std::iter::from_fn(|| self.waiters.pop_front()).find_map(|waiter| waiter.upgrade())
    }
}

impl<W: ?Sized + Send + Sync, J: Send> Notify for SrqCore<W, J> {
    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.low();
        }
    }
}

impl<W: ?Sized, J> Drop for SrqCore<W, J> {
    fn drop(&mut self) {
        self.queue_count.fetch_sub(1, Ordering::AcqRel);
    }
}
