//! The fake provider's completion queue. It notifies when a test delivers the events of a queue pair or feeds the
//! queue.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::provider::{ArmMode, Completion, CompletionQueue, CqSink};
use crate::runtime::empty_check::EmptyCheck;
use crate::runtime::pooled::Pooled;

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
    empty_check: Option<Pooled<EmptyCheck>>,
    /// Whether the empty check has reported an empty EVD while `poll` or `ready` returned completions to the EVD.
    pub(crate) lost_completions: AtomicBool,
}

impl FakeCq {
    pub(super) fn new(sink: Weak<dyn CqSink>, has_empty_check: bool) -> Self {
        let empty_check = has_empty_check.then(|| {
            let check = Pooled::<EmptyCheck>::take();
            check.watch(std::iter::empty());
            check
        });
        FakeCq {
            queue: Mutex::default(),
            armed: AtomicBool::new(false),
            mode: Mutex::default(),
            sink,
            fetches: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            max_spin: AtomicU32::new(50_000),
            empty_check,
            lost_completions: AtomicBool::new(false),
        }
    }

    /// Adds a completion without a notification. [`FakeCq::ring`] notifies.
    pub(crate) fn put(&self, done: Completion) {
        let mut queue = self.queue.lock();
        queue.push_back(done);
        if let Some(check) = &self.empty_check {
            check.set_ready(true);
        }
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

    /// Returns the completions for which the queue is armed; `None` if it is not armed.
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
        if let (Some(check), true) = (&self.empty_check, n > 0) {
            check.set_ready(!queue.is_empty());
            // Another thread may read the check at this moment, while the completions are neither in the CQ nor in the
            // EVD.
            self.lost_completions.fetch_or(check.is_empty(), Ordering::Relaxed);
        }
        n
    }

    fn empty_check(&self) -> Option<&'static EmptyCheck> {
        self.empty_check.as_ref().map(Pooled::get)
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
