//! The fake provider's completion queue. It notifies when a test delivers the events of a queue pair or feeds the
//! queue.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::provider::{ArmMode, Completion, CompletionQueue, CqSink};

/// A completion queue that a test can feed.
pub(crate) struct FakeCq {
    queue: Mutex<VecDeque<Completion>>,
    armed: AtomicBool,
    mode: Mutex<ArmMode>,
    sink: Weak<dyn CqSink>,
    /// Number of calls of `poll` and `ready`.
    pub(crate) fetches: AtomicU32,
    /// Number of calls of `poll`.
    pub(crate) polls: AtomicU32,
    /// Result of [`CompletionQueue::max_spin`].
    pub(crate) max_spin: AtomicU32,
}

impl FakeCq {
    pub(super) fn new(sink: Weak<dyn CqSink>) -> Self {
        FakeCq {
            queue: Mutex::default(),
            armed: AtomicBool::new(false),
            mode: Mutex::default(),
            sink,
            fetches: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            max_spin: AtomicU32::new(50_000),
        }
    }

    /// Adds a completion without a notification. [`FakeCq::ring`] notifies.
    pub(crate) fn put(&self, done: Completion) {
        self.queue.lock().push_back(done);
    }

    /// Notifies the sink, if the queue is armed, as a provider's thread does.
    pub(crate) fn ring(&self) {
        let sink = if self.armed.swap(false, Ordering::SeqCst) { self.sink.upgrade() } else { None };
        if let Some(sink) = sink {
            sink.notify();
        }
    }

    /// Adds a completion, and notifies the sink if the queue is armed.
    pub(crate) fn feed(&self, done: Completion) {
        self.put(done);
        self.ring();
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// Returns the completions for which the queue is armed.
    pub(crate) fn armed_mode(&self) -> Option<ArmMode> {
        self.is_armed().then(|| *self.mode.lock())
    }
}

impl CompletionQueue for FakeCq {
    fn poll(&self, out: &mut [Completion]) -> usize {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.ready(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        let n = queue.len().min(out.len());
        for (place, done) in out.iter_mut().zip(queue.drain(..n)) {
            *place = done;
        }
        n
    }

    fn max_spin(&self) -> u32 {
        self.max_spin.load(Ordering::Relaxed)
    }

    fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    fn arm(&self, mode: ArmMode) -> Result<bool> {
        let queue = self.queue.lock();
        if !queue.is_empty() {
            return Ok(false);
        }
        *self.mode.lock() = mode;
        self.armed.store(true, Ordering::SeqCst);
        Ok(true)
    }
}
