//! `libdaplverbs.so.1`: the uDAPL provider over rdma-core, for InfiniBand, RoCE and iWARP.
//!
//! An open IA is a `device` (found by `find`, described by `limits`, configured by `settings` and `gid`) with a thread
//! of its own, the `engine`. The object layer uses queue pairs (`qp`), completion queues (`cq`), shared receive queues
//! (`srq`), memory regions and windows (`memory`). Each of them is built on its counterpart in `ibv`, the only module
//! that calls libibverbs. A connection manager (`cm`) connects two queue pairs: by rdma_cm, by messages over TCP, or
//! without messages.

mod cm;
mod cq;
mod device;
mod engine;
mod find;
mod gid;
mod host;
mod ibv;
mod limits;
mod manager_kind;
mod memory;
mod qp;
mod rdma_cm;
mod refusal;
#[cfg(test)]
mod rxe_tests;
mod settings;
mod shared_device;
mod srq;

use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    Access, CmSink, CqSink, IaSpec, Limits, MemoryProvider, Provider, QpSpec, QueueProvider, Region, SharedCookie,
    SrqSpec,
};
use dapl::runtime::handle::ObjectId;
use dapl::runtime::{logger, thread};
use parking_lot::Mutex;

pub use cm::request::ConnectionRequest;
pub use cq::Cq;
pub use dapl_software::shared_names::Membership;
pub use memory::{Mr, Mw, Pd};
pub use qp::queue_pair::Qp;
pub use srq::Srq;

use cq::CqCore;
use device::Device;

// Unit tests do not link libdat.
#[cfg(not(test))]
dapl::export_provider!(Verbs);

/// An open IA of this provider.
pub struct Verbs {
    device: Arc<Device>,
    manager: Arc<dyn cm::Manager>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A listener on a qualifier.
pub struct Listener {
    device: Arc<Device>,
    qual: u64,
    guard: Option<cm::ListenGuard>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.device.listeners.lock().remove(&self.qual);
    }
}

impl Provider for Verbs {
    type Listener = Listener;
    type Request = ConnectionRequest;

    const NAME: &'static str = "verbs";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let device = Device::open(spec, sink)?;
        let manager = cm::start(&device)?;
        let (engine, name) = (device.engine.clone(), spec.name.to_owned());
        let thread = thread::spawn("dapl-verbs", move || logger::with_ia(&name, || engine.run())).map_err(|error| {
            log::error!("{}: cannot start the engine thread: {error}; allow more processes (ulimit -u)", spec.name);
            Error::Exhausted(Resource::Device)
        })?;
        Ok(Verbs { device, manager, thread: Mutex::new(Some(thread)) })
    }

    fn limits(&self) -> &Limits {
        &self.device.limits
    }

    fn named_attributes(&self) -> Vec<(String, String)> {
        self.device.named_attributes()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.device.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), 0)
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listener> {
        // Added before the manager listens: a request may arrive immediately, and its hand-off looks the listener up.
        match self.device.listeners.lock().entry(qual) {
            Entry::Occupied(_) => return Err(Error::ConnQualTaken),
            Entry::Vacant(entry) => entry.insert(id),
        };
        // After an error of the manager, its drop removes the qualifier.
        let mut listener = Listener { device: self.device.clone(), qual, guard: None };
        listener.guard = Some(self.manager.listen(qual, id)?);
        Ok(listener)
    }

    fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.manager.close();
        self.device.engine.stop();
        thread::join(thread);
        self.device.names.remove_if_empty();
    }
}

impl MemoryProvider for Verbs {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Membership = Membership;

    fn alloc_pd(&self) -> Result<Pd> {
        Pd::new(&self.device.context)
    }

    fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        // Some devices without atomic operations fail a registration with this right, so it is removed.
        let remote_atomic = access.remote_atomic && self.device.limits.extensions.atomics;
        let access = Access { remote_atomic, ..access };
        Mr::new(pd, region, access, self.device.limits.max_rmrs > 0, &self.device.keys)
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        self.device.names.join(cookie, length)
    }

    fn alloc_mw(&self, pd: &Pd) -> Result<Mw> {
        Mw::new(pd)
    }
}

impl QueueProvider for Verbs {
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn create_srq(&self, pd: &Pd, spec: SrqSpec) -> Result<Srq> {
        Srq::new(&self.device, pd, spec)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Cq> {
        CqCore::new(&self.device, Some(sink)).map(Cq)
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        Qp::new(&self.device, &self.manager, pd, spec)
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        self.close();
    }
}
