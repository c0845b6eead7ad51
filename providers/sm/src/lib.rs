//! `libdaplsm.so.1`: the uDAPL provider over shared memory, between processes of one user on one host. The design is in
//! docs/sm.md.
//!
//! An open IA is a `device`: an end point directory (`dir`) with a set-up socket and a FIFO, and one thread (`engine`)
//! with its `jobs`. `cm` sets up connections by datagrams (`proto`), which pass sealed memory (`memory/map`,
//! `qp/link`), and keeps the table of attempts and connections. The two directions of a connection (`qp/rx`, `qp/tx`,
//! `qp/context`) use slot rings (`qp/ring`); shared memory contains no locks. RDMA is a single copy (`qp/single_copy`)
//! if possible: from or to shared memory that the peer exports (`memory/backing`, `exchange`, `imports`, `mapped`), or
//! by the kernel (`memory/kernel_copy`: `knem`, `cma`). Otherwise RDMA uses a bounce buffer. The kernel also copies
//! long sends, if it permits this; `calibration` measures their minimum length. Sender and receiver may each copy a
//! part (`delegation`). dapl uses queue pairs (`qp`), completion queues (`cq`), shared receive queues (`srq`), requests
//! (`cm/request`), registered memory (`memory/regions`) and memory windows (`memory/window`).

/// A point at which a test can kill or stop this process, or act in the calling thread. Expands to nothing in builds
/// without tests.
macro_rules! fail_point {
    ($point:ident) => {
        #[cfg(test)]
        crate::tests::fail_points::at(crate::tests::fail_points::Point::$point);
    };
}

mod cm;
mod cq;
mod delegation;
mod device;
mod dir;
mod eager_claims;
mod engine;
mod memory;
mod proto;
mod qp;
mod settings;
mod srq;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    Access, CmSink, CqSink, IaSpec, Limits, MemoryProvider, Provider, QpSpec, QueueProvider, Region, SharedCookie,
    SrqSpec, TRANSPORT_MTU,
};
use dapl::runtime::handle::ObjectId;
use dapl::runtime::{logger, thread};
use dapl_software::memory::window::WindowScope;
use parking_lot::Mutex;

pub use cm::request::ConnectionRequest;
pub use cq::Cq;
pub use dapl_software::shared_names::Membership;
pub use memory::regions::RegionTable;
pub use qp::Qp;
pub use srq::Srq;

use device::Device;

// Unit tests are not linked with libdat, so they do not export the provider's entry points.
#[cfg(not(test))]
dapl::export_provider!(Sm);

/// An open IA: its shared state and its engine thread.
pub struct Sm {
    device: Arc<Device>,
    stopping: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A protection domain, by number. A registration can be used only by queue pairs and shared receive queues of the same
/// domain.
pub struct Pd(u32);

/// A registration of memory. Dropping it deregisters the memory.
pub type Mr = dapl_software::memory::regions::Mr<RegionTable>;

/// A memory window. Dropping it revokes all of its keys.
pub type Mw = dapl_software::memory::window::Mw<RegionTable>;

/// A listener on a qualifier. Dropping it frees the qualifier.
pub struct Listener {
    device: Arc<Device>,
    qual: u64,
    _name: dir::ListenerName,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.device.listeners.lock().remove(&self.qual);
    }
}

impl Sm {
    /// Starts the engine thread if it does not run yet. Called when an object is created that can cause events, so an
    /// adapter without such objects has no thread. Errors: `Exhausted(Device)`, logged here.
    fn start_engine(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            log::error!(
                "{}: cannot start the engine thread: {error}; allow more processes (ulimit -u) and open files (ulimit -n)",
                self.device.endpoint.path().display()
            );
            Error::Exhausted(Resource::Device)
        };
        let engine = engine::Engine::new(self.device.clone()).map_err(|e| failed(e.into()))?;
        let (stopping, name) = (self.stopping.clone(), self.device.name.clone());
        let started = thread::spawn("dapl-sm", move || {
            thread::request_short_slice();
            logger::with_ia(&name, || engine.run(&stopping));
        });
        *thread = Some(started.map_err(failed)?);
        Ok(())
    }
}

impl Provider for Sm {
    type Listener = Listener;
    type Request = ConnectionRequest;

    const NAME: &'static str = "sm";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let device = Arc::new(Device::open(spec, sink)?);
        Ok(Sm { device, stopping: Arc::default(), thread: Mutex::default() })
    }

    fn limits(&self) -> &Limits {
        &self.device.limits
    }

    fn named_attributes(&self) -> Vec<(String, String)> {
        let uri = format!("sm://{}", self.device.endpoint.path().display());
        let rma = self.device.settings.rma.to_string();
        vec![("endpoint".into(), uri), ("rma".into(), rma), (TRANSPORT_MTU.into(), proto::message::INLINE.to_string())]
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.device.ip, 0)
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listener> {
        self.start_engine()?;
        let name = self.device.endpoint.create_name(qual)?;
        self.device.listeners.lock().insert(qual, id);
        Ok(Listener { device: self.device.clone(), qual, _name: name })
    }

    fn close(&self) {
        self.stopping.store(true, Ordering::Release);
        self.device.jobs.wake();
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(thread::join);
        self.device.jobs.close();
        for link in self.device.connections.links() {
            cm::setup::close(&self.device, &link);
        }
    }
}

impl MemoryProvider for Sm {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Membership = Membership;

    const HAS_QP_WINDOWS: bool = true;
    const HAS_ZERO_BASED: bool = true;

    fn alloc_pd(&self) -> Result<Pd> {
        Ok(Pd(self.device.new_pd()))
    }

    fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        Mr::register(&self.device.regions, region, access, pd.0)
    }

    fn register_shared(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        let Device { regions, settings, .. } = &*self.device;
        let backings = &regions.store.backings;
        let remote = access.is_remote();
        let usable =
            remote && settings.rma == settings::RmaMethod::Auto && regions.may_register(region, access.writes());
        let Some(backing) = usable.then(|| backings.find(region, access.remote_write)).flatten() else {
            if remote {
                log::info!(
                    "peers cannot map the shared memory at {:#x} of {} bytes; any RDMA to it uses other copy methods \
                     (man 7 dapl_sm)",
                    region.address,
                    region.length
                );
            }
            return self.register(pd, region, access);
        };
        let key = regions.export(region, access, pd.0)?;
        backings.export(key, backing);
        Ok(Mr::new(regions, key, access))
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        self.device.endpoint.base.names.join(cookie, length)
    }

    fn alloc_mw(&self, pd: &Pd) -> Result<Mw> {
        Ok(Mw::new(&self.device.regions, &self.device.windows, pd.0, WindowScope::Pd))
    }

    fn alloc_mw_for_qp(&self, pd: &Pd) -> Result<Mw> {
        Ok(Mw::new(&self.device.regions, &self.device.windows, pd.0, WindowScope::Qp))
    }
}

impl QueueProvider for Sm {
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn create_srq(&self, pd: &Pd, spec: SrqSpec) -> Result<Srq> {
        self.start_engine()?;
        let Device { jobs, srqs, limits, .. } = &*self.device;
        Srq::new(pd.0, spec, jobs.clone(), srqs.clone(), limits.max_srqs)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Cq> {
        self.start_engine()?;
        Ok(Cq::new(sink, self.device.jobs.clone(), self.device.settings.spin))
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        self.start_engine()?;
        Ok(Qp::new(self.device.clone(), pd.0, spec))
    }
}

impl Drop for Sm {
    fn drop(&mut self) {
        self.close();
    }
}
