//! A fake provider for tests, in memory. Both ends of a connection are in the same IA. It moves no bytes, and reports
//! events only when a test asks for them.
//!
//! Events that a real provider reports from its own thread wait until the test calls [`FakeProvider::deliver`]. A test
//! can also add completions to a CQ ([`FakeCq::feed`]). So each test decides the order of events.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use crate::error::Result;
use crate::provider::*;
use crate::runtime::handle::ObjectId;

mod cq;
mod memory;
mod net;
mod opened;
mod qp;
mod request;
mod srq;

pub(crate) use cq::FakeCq;
pub(crate) use memory::{FakeMember, FakeMr, FakeMw};
pub(crate) use opened::{Opened, open, open_with};
pub(crate) use qp::FakeQp;
pub(crate) use request::{FakeListener, FakeRequest};
pub(crate) use srq::FakeSrq;

use net::FakeNetwork;

pub(crate) struct FakeProvider {
    limits: Limits,
    net: Arc<FakeNetwork>,
    sink: Arc<dyn CmSink<FakeProvider>>,
    /// Number of calls of `QueueProvider::sleeps`.
    sleeps: AtomicU32,
    /// Whether the completion queues have empty checks.
    has_empty_checks: bool,
}

impl FakeProvider {
    /// Reports all pending events, as a provider's thread does. Returns their number.
    pub(crate) fn deliver(&self) -> usize {
        let mut count = 0;
        loop {
            let Some(event) = self.net.events.lock().pop_front() else { return count };
            event(&*self.sink);
            count += 1;
        }
    }

    /// Enables slow mode: a receive that a message has consumed completes when the test calls [`FakeQp::arrive`], or is
    /// flushed.
    pub(crate) fn slow_down(&self) {
        self.net.slow.store(true, Ordering::SeqCst);
    }

    /// Calls `hook` in the next `listen`, with the listener's id. An error is the result of `listen`.
    pub(crate) fn at_next_listen(&self, hook: impl FnOnce(ObjectId) -> Result<()> + Send + 'static) {
        *self.net.at_next_listen.lock() = Some(Box::new(hook));
    }

    /// Makes all later binds fail.
    pub(crate) fn make_binds_fail(&self) {
        self.net.make_binds_fail.store(true, Ordering::SeqCst);
    }

    /// Returns the number of calls of `QueueProvider::sleeps`.
    pub(crate) fn sleeps_seen(&self) -> u32 {
        self.sleeps.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.net.closed.load(Ordering::SeqCst)
    }
}

impl Provider for FakeProvider {
    type Listener = FakeListener;
    type Request = FakeRequest;

    const NAME: &'static str = "fake";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let limits = Limits {
            max_eps: 64,
            max_dtos: 64,
            max_evds: 64,
            max_evd_qlen: 1000,
            max_iov: 4,
            max_lmrs: 64,
            max_lmr_size: 1 << 40,
            max_pzs: 64,
            max_message: 1 << 31,
            max_rdma: 1 << 31,
            max_rmrs: 64,
            max_srqs: if spec.name.contains("without srqs") { 0 } else { 2 },
            max_reads_in: 4,
            max_reads_out: 4,
            private_data_connect: 92,
            private_data_connect_1_2: 92,
            private_data_accept: 196,
            private_data_reject: 196,
            extensions: if spec.name.contains("without extensions") { Extensions::default() } else { Extensions::ALL },
            vendor: "none".into(),
            hardware_version: (0, 0),
            firmware_version: (0, 0),
        };
        let has_empty_checks = spec.name.contains("with empty checks");
        Ok(FakeProvider { limits, net: Arc::default(), sink, sleeps: AtomicU32::new(0), has_empty_checks })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 7))
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<FakeListener> {
        let hook = self.net.at_next_listen.lock().take();
        hook.map_or(Ok(()), |hook| hook(id))?;
        FakeListener::new(&self.net, qual, id)
    }

    fn close(&self) {
        self.net.closed.store(true, Ordering::SeqCst);
        self.net.events.lock().clear();
    }
}

impl MemoryProvider for FakeProvider {
    const HAS_QP_WINDOWS: bool = true;

    type Pd = ();
    type Mr = FakeMr;
    type Mw = FakeMw;
    type Membership = FakeMember;

    fn alloc_pd(&self) -> Result<()> {
        Ok(())
    }

    fn register(&self, (): &(), _: Region, access: Access) -> Result<FakeMr> {
        Ok(FakeMr::new(&self.net, access))
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<FakeMember> {
        FakeMember::join(&self.net, cookie, length)
    }

    fn alloc_mw(&self, (): &()) -> Result<FakeMw> {
        Ok(FakeMw::default())
    }

    fn alloc_mw_for_qp(&self, (): &()) -> Result<FakeMw> {
        Ok(FakeMw::default())
    }
}

impl QueueProvider for FakeProvider {
    type Cq = FakeCq;
    type Srq = FakeSrq;
    type Qp = FakeQp;

    fn create_srq(&self, (): &(), spec: SrqSpec) -> Result<FakeSrq> {
        FakeSrq::new(spec, &self.net, self.limits.max_srqs)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<FakeCq> {
        Ok(FakeCq::new(sink, self.has_empty_checks))
    }

    fn create_qp(&self, (): &(), spec: QpSpec<Self>) -> Result<FakeQp> {
        Ok(FakeQp::new(spec, &self.net))
    }

    fn sleeps(&self) {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
    }
}
