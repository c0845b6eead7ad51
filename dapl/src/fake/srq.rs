//! The fake provider's shared receive queue. It stores cookies and lengths of receives, and the queue pairs that wait
//! for a receive, in order.
//!
//! Lock order: queue pair, then SRQ. Events are reported without these locks, when the test delivers them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::net::FakeNetwork;
use super::qp::{FakeQpCore, length};
use crate::error::{Error, Resource, Result};
use crate::provider::{Segment, SharedReceiveQueue, SrqSink, SrqSpec};
use crate::stats::watermark::LowWatermark;

pub(crate) struct FakeSrq {
    sink: Weak<dyn SrqSink>,
    net: Arc<FakeNetwork>,
    inner: Mutex<FakeSrqState>,
}

#[derive(Default)]
struct FakeSrqState {
    most: u32,
    /// Cookies and lengths of the posted receives.
    recvs: VecDeque<(u64, u64)>,
    /// Queue pairs that have a message but no receive, in the order in which they began to wait.
    waiting: VecDeque<Weak<FakeQpCore>>,
    low: LowWatermark,
}

impl FakeSrq {
    pub(super) fn new(spec: SrqSpec, net: &Arc<FakeNetwork>, most: u32) -> Result<Self> {
        let inner = Mutex::new(FakeSrqState { most: spec.max_recvs, ..FakeSrqState::default() });
        let made = FakeSrq { sink: spec.sink, net: net.clone(), inner };
        // The SRQ is counted before the limit is checked. If the creation fails, the drop subtracts it again.
        let before = net.srqs.fetch_add(1, Ordering::SeqCst);
        if before < most { Ok(made) } else { Err(Error::Exhausted(Resource::Srq)) }
    }

    /// Removes and returns a receive for `core`. If there is none, registers `core` as waiting.
    pub(super) fn take(&self, core: &Arc<FakeQpCore>) -> Option<(u64, u64)> {
        let mut inner = self.inner.lock();
        let taken = inner.recvs.pop_front();
        if taken.is_none() {
            inner.waiting.push_back(Arc::downgrade(core));
        }
        self.check_watermarks(&mut inner);
        taken
    }

    /// If a receive is posted, removes and returns the queue pair that has waited longest.
    fn next_waiting(&self) -> Option<Arc<FakeQpCore>> {
        let mut inner = self.inner.lock();
        if inner.recvs.is_empty() {
            return None;
        }
        std::iter::from_fn(|| inner.waiting.pop_front()).find_map(|core| core.upgrade())
    }

    /// Reports a crossing of the low watermark if the number of receives has fallen below it.
    fn check_watermarks(&self, inner: &mut FakeSrqState) {
        if inner.low.check(inner.recvs.len() as u32) {
            let sink = self.sink.clone();
            self.net.report(move |_| sink.upgrade().into_iter().for_each(|sink| sink.low()));
        }
    }
}

impl SharedReceiveQueue for FakeSrq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.recvs.len() >= inner.most as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        inner.recvs.push_back((cookie, length(segments)));
        drop(inner);
        while let Some(core) = self.next_waiting() {
            core.receive_early(); // has no effect if the connection of `core` has ended
        }
        Ok(())
    }

    fn available(&self) -> u32 {
        self.inner.lock().recvs.len() as u32
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        self.inner.lock().most = max_recvs;
        Ok(())
    }

    fn watch(&self, limit: u32) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.low = LowWatermark::new(limit);
        self.check_watermarks(&mut inner);
        Ok(())
    }
}

impl Drop for FakeSrq {
    fn drop(&mut self) {
        self.net.srqs.fetch_sub(1, Ordering::SeqCst);
    }
}
