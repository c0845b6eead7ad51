//! `libdaplusnic.so.1`: the uDAPL provider over UDP, for hosts without RDMA hardware.
//!
//! | module | task |
//! |---|---|
//! | `proto` | the protocol, without I/O, clock, threads or unsafe code |
//! | `net` | sockets, addresses and routes |
//! | `adapter`, `device` | an open IA, and its data socket and connection table |
//! | `cm` | connection set-up and listeners |
//! | `engine` | the engine thread, and passes, which receive, send and handle timers |
//! | `qp` | queue pairs and the transports of their connections, closing connections, the exit handler |
//! | `cq`, `srq` | completion queues and shared receive queues |
//! | `memory` | registered memory and memory windows |
//! | `settings`, `limits`, `counters` | settings, attributes and statistics |
//!
//! This crate looks up no DAT handles and creates no DAT events. It keeps handles as numbers, for dapl and for log
//! messages. The crate `dapl` contains no packet formats.

mod adapter;
mod cm;
mod counters;
mod cq;
mod device;
mod engine;
#[cfg(any(test, fuzzing))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod limits;
mod memory;
mod net;
mod proto;
mod qp;
mod settings;
mod srq;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{
    Access, CmSink, CqSink, IaSpec, Limits, MemoryProvider, NamedCount, Provider, QpSpec, QueueProvider, Region,
    SharedCookie, SrqSpec,
};
use dapl::runtime::handle::ObjectId;
use dapl_software::memory::window::WindowScope;
use dapl_software::shared_names::SharedNames;

pub use cm::{ConnectionRequest, Listener};
pub use cq::Cq;
pub use dapl_software::shared_names::Membership;
pub use memory::regions::RegionTable;
pub use qp::Qp;
pub use srq::Srq;

use adapter::Adapter;
use counters::IaCounters;
use memory::regions::Regions;
use qp::QpCore;
use qp::context::Windows;
use srq::SrqCore;

// Unit tests are not linked with libdat, so they do not export the provider's entry points.
#[cfg(not(test))]
dapl::export_provider!(Usnic);

/// An open IA of this provider.
pub struct Usnic {
    adapter: Adapter,
    regions: Arc<Regions>,
    windows: Arc<Windows>,
    limits: Limits,
    names: SharedNames,
    counters: Arc<IaCounters<QpCore>>,
    next_pd: AtomicU32,
    /// Number of shared receive queues.
    srqs: Arc<AtomicU32>,
}

/// Number of a protection domain. A request or receive can use only registrations of the domain of its queue pair or
/// shared receive queue.
pub struct Pd(u32);

pub type Mr = dapl_software::memory::regions::Mr<RegionTable>;
pub type Mw = dapl_software::memory::window::Mw<RegionTable>;

impl Provider for Usnic {
    type Listener = Listener;
    type Request = ConnectionRequest;

    const NAME: &'static str = "usnic";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let adapter = Adapter::open(spec, sink)?;
        let limits = limits::limits();
        let regions = Arc::new(Regions::new(RegionTable::new()?, cm::random_seed()));
        let names = SharedNames::new(adapter.device.settings.base_dir());
        let (counters, windows) = (Arc::default(), Arc::default());
        qp::exit_handler::register(&counters);
        Ok(Usnic {
            adapter,
            regions,
            windows,
            limits,
            names,
            counters,
            next_pd: AtomicU32::new(1),
            srqs: Arc::default(),
        })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn named_attributes(&self) -> Vec<(String, String)> {
        limits::named_attributes(&self.adapter.device)
    }

    fn counts(&self) -> Vec<NamedCount> {
        limits::counts(&self.adapter.device, self.adapter.cm.unreadable(), self.counters.sum(QpCore::counters))
    }

    fn address(&self) -> SocketAddr {
        self.adapter.device.address()
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listener> {
        self.adapter.start_engine()?;
        self.adapter.cm.listen(qual, id)
    }

    fn close(&self) {
        self.adapter.shut_down();
        self.counters.queue_pairs().iter().for_each(|qp| qp.abort());
    }
}

impl MemoryProvider for Usnic {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Membership = Membership;

    const HAS_QP_WINDOWS: bool = true;
    const HAS_ZERO_BASED: bool = true;

    fn alloc_pd(&self) -> Result<Pd> {
        Ok(Pd(self.next_pd.fetch_add(1, Ordering::Relaxed)))
    }

    fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        Mr::register(&self.regions, region, access, pd.0)
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        self.names.join(cookie, length)
    }

    fn alloc_mw(&self, pd: &Pd) -> Result<Mw> {
        Ok(Mw::new(&self.regions, &self.windows, pd.0, WindowScope::Pd))
    }

    fn alloc_mw_for_qp(&self, pd: &Pd) -> Result<Mw> {
        Ok(Mw::new(&self.regions, &self.windows, pd.0, WindowScope::Qp))
    }
}

impl QueueProvider for Usnic {
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn create_srq(&self, pd: &Pd, spec: SrqSpec) -> Result<Srq> {
        self.adapter.start_engine()?;
        let (jobs, count) = (self.adapter.device.jobs.clone(), self.srqs.clone());
        SrqCore::new(pd.0, spec, jobs, count, self.limits.max_srqs).map(Srq)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Cq> {
        self.adapter.start_engine()?;
        Ok(Cq::new(sink, self.adapter.progress.clone()))
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        self.adapter.start_engine()?;
        Ok(Qp::new(self, pd.0, spec))
    }

    fn sleeps(&self) {
        self.adapter.progress.stop_polling();
    }
}

impl Drop for Usnic {
    fn drop(&mut self) {
        self.close();
    }
}
