//! An open interface adapter: the state that its objects share, and its limits.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{CmSink, Extensions, IaSpec, Limits};
use dapl::runtime::handle::ObjectId;
use dapl_software::host_address;
use dapl_software::limits::limits;
use dapl_software::memory::regions::SLOTS;
use parking_lot::Mutex;

use crate::Sm;
use crate::cm::socket::{self, SetupSocket};
use crate::cm::table::ConnectionTable;
use crate::dir::{EndpointBase, EndpointDir};
use crate::engine::jobs::Jobs;
use crate::memory::cma::Probe;
use crate::memory::knem::Knem;
use crate::memory::regions::{RegionTable, Regions};
use crate::memory::window::Windows;
use crate::settings::{ByKernel, SmSettings};

/// State shared by all objects of an open IA.
pub(crate) struct Device {
    /// Name of the IA, for log messages.
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) settings: SmSettings,
    pub(crate) ip: IpAddr,
    /// Number that distinguishes this end point from earlier end points with the same path.
    pub(crate) epoch: u64,
    pub(crate) endpoint: EndpointDir,
    pub(crate) socket: SetupSocket,
    pub(crate) fifo: OwnedFd,
    pub(crate) regions: Arc<Regions>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) probe: Probe,
    /// Whether this process is registered for `membarrier`. If its peer is registered too, the process that sets
    /// wake-up flags executes the barrier for both.
    pub(crate) barrier: bool,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) listeners: Mutex<HashMap<u64, ObjectId>>,
    pub(crate) sink: Arc<dyn CmSink<Sm>>,
    next_pd: AtomicU32,
    /// Number of shared receive queues that exist.
    pub(crate) srqs: Arc<AtomicU32>,
}

impl Device {
    pub(crate) fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Sm>>) -> Result<Self> {
        let settings = SmSettings::read(spec.params);
        if settings.is_open {
            crate::memory::cma::open_to_the_user();
        }
        let base = EndpointBase::open(settings.base.as_deref())?;
        let endpoint = EndpointDir::create(base)?;
        endpoint.base.remove_at_exit(endpoint.path());
        let failed = |what: &str, error: rustix::io::Errno| {
            log::error!(
                "{}: cannot {what} in {}: {error}; the IA cannot be opened; check the limit of open files (ulimit -n) and the space \
                 on that file system",
                spec.name,
                endpoint.path().display()
            );
            Error::Exhausted(Resource::Device)
        };
        let socket = SetupSocket::bind(endpoint.path()).map_err(|e| failed("bind the set-up socket", e))?;
        let fifo = socket::open_own_fifo(endpoint.path()).map_err(|e| failed("open the FIFO", e))?;
        let knem = if settings.rma.has(ByKernel::Knem) { Knem::open() } else { None };
        let connections = Arc::<ConnectionTable>::default();
        let copying = connections.clone();
        let table = RegionTable::new(knem, move |key| copying.announces_copy(key))?;
        Ok(Device {
            name: spec.name.to_owned(),
            limits: Limits { extensions: Extensions::ALL, ..limits(65_535, SLOTS as u32 - 1) },
            settings,
            ip: host_address::advertised_address(),
            epoch: random()?,
            socket,
            fifo,
            regions: Arc::new(Regions::new(table, random()?)),
            windows: Arc::default(),
            probe: Probe::new(random()?),
            barrier: crate::qp::link::register_membarrier(),
            jobs: Arc::new(Jobs::new()?),
            connections,
            listeners: Mutex::default(),
            sink,
            next_pd: AtomicU32::new(1),
            srqs: Arc::default(),
            endpoint,
        })
    }

    pub(crate) fn new_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns 64 random bits from the system, for tokens and keys, which must not be predictable.
pub(crate) fn random() -> Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(|e| {
        log::error!(
            "cannot read random numbers from the system (getrandom): {e}; the call fails with DAT_INTERNAL_ERROR"
        );
        Error::Internal
    })?;
    Ok(u64::from_ne_bytes(bytes))
}
