//! Shared receive queues: receives for many connections, and the connections that stand in line for one.
//!
//! A message that finds the queue empty waits in its ring, and its connection stands in line. Whoever posts the next receive
//! hands it to the first in line and brings that connection on: nobody polls for it, nobody is passed over, and a post pays
//! nothing when nobody waits. While somebody stands in line the queue is empty. The lock of this room is taken below those of
//! the halves; a taker is called without it.
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
    /// It is its turn. Gives the receive back if its message waits no more.
    fn offer(&self, buffer: Buffer) -> Option<Buffer>;
}

/// A shared receive queue as dapl holds it.
pub struct Srq(pub(crate) Arc<SrqCore>);

/// The queue itself, shared with its connections and the engine.
pub(crate) struct SrqCore {
    /// Its receives name memory of this protection domain.
    pub(crate) pd: u32,
    inner: Mutex<Inner>,
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
        f.debug_struct("SrqCore").field("pd", &self.pd).field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Srq {
    /// One more, if `alive` are fewer than `most`.
    pub(crate) fn new(pd: u32, spec: SrqSpec, bell: Arc<Bell>, alive: Arc<AtomicU32>, most: u32) -> Result<Self> {
        let more = |alive| (alive < most).then_some(alive + 1);
        alive.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map_err(|_| Error::Exhausted(Resource::Srq))?;
        let (buffers, line, low) = (VecDeque::new(), VecDeque::new(), Low::default());
        let inner = Mutex::new(Inner { buffers, line, most: spec.max_recvs, low });
        Ok(Srq(Arc::new(SrqCore { pd, inner, sink: spec.sink, bell, alive })))
    }
}

impl SrqCore {
    /// A receive for a message that has come; if there is none, `taker` stands in line from now on.
    pub(crate) fn take(self: &Arc<Self>, taker: &Weak<dyn Taker>) -> Option<Buffer> {
        let mut inner = self.inner.lock();
        let buffer = inner.buffers.pop_front();
        match buffer {
            Some(_) => self.look(&mut inner),
            None => inner.line.push_back(taker.clone()),
        }
        buffer
    }

    /// It waits no more.
    pub(crate) fn leave(&self, taker: &Weak<dyn Taker>) {
        self.inner.lock().line.retain(|known| !known.ptr_eq(taker));
    }

    #[cfg(test)]
    pub(crate) fn line(&self) -> usize {
        self.inner.lock().line.len()
    }

    /// To the first in line that wants it, or into the queue.
    fn hand_on(&self, mut buffer: Buffer) {
        loop {
            let first = {
                let mut inner = self.inner.lock();
                match std::iter::from_fn(|| inner.line.pop_front()).find_map(|taker| taker.upgrade()) {
                    Some(first) => first,
                    None => return inner.buffers.push_back(buffer),
                }
            };
            match first.offer(buffer) {
                Some(back) => buffer = back,
                None => return,
            }
        }
    }

    fn look(self: &Arc<Self>, inner: &mut Inner) {
        if inner.low.look(inner.buffers.len() as u32) {
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
        let buffer = Buffer { segments: Segments::new(segments), cookie };
        let mut inner = self.0.inner.lock();
        if inner.buffers.len() >= inner.most as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        if inner.line.is_empty() {
            inner.buffers.push_back(buffer);
        } else {
            drop(inner);
            self.0.hand_on(buffer);
        }
        Ok(())
    }

    fn available(&self) -> u32 {
        self.0.inner.lock().buffers.len() as u32
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
