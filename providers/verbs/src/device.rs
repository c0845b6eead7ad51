//! An open device: state shared by the objects of an IA, and dispatch of events to their objects.
//!
//! Events name queue pairs by number and queues by id; a table gives the object if it still exists.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{CmSink, IaSpec, Limits, TRANSPORT_MTU};
use dapl::runtime::handle::ObjectId;
use dapl_software::base_dir::{BaseDir, BaseDirKind};
use dapl_software::shared_names::SharedNames;
use parking_lot::Mutex;

use crate::Verbs;
use crate::engine::{Interest, Reactor, Source, Watch};
use crate::find::OpenedDevice;
use crate::ibv::{AsyncEvent, Channel, Context, Gid, PortEvent, QpEvent, SrqEvent};
use crate::memory::keys::Keys;
use crate::settings::Settings;
use crate::shared_device::{ObjectEvent, Opened};
use crate::{find, gid, limits};

/// An open device.
pub(crate) struct Device {
    /// The IA's name, for messages.
    pub(crate) name: String,
    pub(crate) opened: Arc<Opened>,
    pub(crate) context: Arc<Context>,
    pub(crate) port: u8,
    /// The IA's address, if its port has one.
    pub(crate) address: Option<IpAddr>,
    /// The GID of that address.
    pub(crate) gid: Gid,
    is_ethernet: bool,
    max_cqe: u32,
    is_software: bool,
    /// Whether the driver posts requests by a `write` to the kernel, which is a cancellation point.
    pub(crate) posts_by_kernel: bool,
    pub(crate) settings: Settings,
    pub(crate) limits: Limits,
    pub(crate) channel: Arc<Channel>,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) sink: Arc<dyn CmSink<Verbs>>,
    /// Registrations, for checks of inline data.
    pub(crate) keys: Arc<Keys>,
    pub(crate) names: SharedNames,
    /// Listeners by qualifier.
    pub(crate) listeners: Mutex<HashMap<u64, ObjectId>>,
    completions: Arc<Completions>,
    asynchronous: Arc<Asynchronous>,
    watches: OnceLock<[Watch; 2]>,
}

/// Base directory for names of shared memory.
const NAMES: BaseDirKind = BaseDirKind { provider: "verbs", variable: "DAPL_DIR", default: "/dev/shm/dapl-verbs" };

/// The vendor's number of soft-RoCE.
const SOFTWARE: u32 = 0xff_ffff;
/// Vendors whose drivers of rdma-core post through the kernel: soft-RoCE, soft-iWARP, and Intel's qib and hfi1.
const POST_BY_KERNEL: [u32; 3] = [SOFTWARE, 0x62_6d74, 0x1175];
/// Longer than soft-RoCE takes to handle a packet.
const PAUSE: Duration = Duration::from_micros(100);

impl Device {
    /// Opens the device that `spec` names. Errors are logged where they are detected.
    pub(crate) fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Verbs>>) -> Result<Arc<Self>> {
        let settings = Settings::read(spec.params, spec.library);
        let OpenedDevice { context, port, address, gid, is_ethernet } = find::open(spec.name, &settings)?;
        let failed = |what: &str, error: io::Error| {
            log::error!("{}: {what}: {error}", spec.name);
            Error::Exhausted(Resource::Device)
        };
        let opened = Opened::of(context);
        let context = opened.context.clone();
        let reactor = Reactor::new().map_err(|error| failed("no engine", error))?;
        let channel = Channel::new(&context).map_err(|error| failed("no completion channel", error))?;
        let limits = limits::of(&context, port, &settings)?;
        let attributes = context.attributes();
        let max_cqe = attributes.as_ref().map_or(limits.max_dtos, |device| device.max_cqe.max(1) as u32);
        let vendor = attributes.map_or(0, |device| device.vendor_id);
        let is_software = vendor == SOFTWARE;
        let chosen = dapl::runtime::logger::secure_variable(NAMES.variable);
        let device = Arc::new_cyclic(|me| Device {
            name: spec.name.to_owned(),
            completions: Arc::new(Completions(Weak::clone(me))),
            asynchronous: Arc::new(Asynchronous(Weak::clone(me))),
            opened,
            context,
            port,
            address,
            gid,
            is_ethernet,
            max_cqe,
            is_software,
            posts_by_kernel: POST_BY_KERNEL.contains(&vendor),
            settings,
            limits,
            channel,
            reactor,
            sink,
            keys: Arc::default(),
            names: SharedNames::new(BaseDir::new(&NAMES, chosen.as_deref())),
            listeners: Mutex::default(),
            watches: OnceLock::new(),
        });
        let (completions, asynchronous): (Weak<dyn Source>, Weak<dyn Source>) =
            (Arc::downgrade(&device.completions) as _, Arc::downgrade(&device.asynchronous) as _);
        let watched = device.reactor.watch(device.channel.fd(), Interest::Read, completions).and_then(|first| {
            Ok([first, device.reactor.watch(device.context.events(), Interest::Read, asynchronous)?])
        });
        let _ = device.watches.set(watched.map_err(|error| failed("the device's events cannot be watched", error))?);
        Ok(device)
    }

    /// Number of segments of a request that are kept while it is in flight: none, except for soft-RoCE, which does not
    /// report which segment was invalid.
    pub(crate) fn kept(&self, segments: u32) -> u32 {
        if self.is_software { segments } else { 0 }
    }

    /// Waits until the device has processed the change of a queue pair to ERR. Soft-RoCE of Linux 6.1 checks the
    /// state twice per packet, and follows a null pointer if the first check sees ERR and the second sees RESET.
    pub(crate) fn wait_for_error_state(&self) {
        if self.is_software {
            std::thread::sleep(PAUSE);
        }
    }

    /// Provider-specific attributes for `dat_ia_query`: names and values.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![
            ("device", self.context.name().to_string()),
            ("port", self.port.to_string()),
            ("connection manager", self.settings.manager.name().to_string()),
            ("gid", gid::shown(&self.gid)),
            ("gid index", self.gid.index.to_string()),
            ("gid type", self.gid.kind.name().to_string()),
        ];
        facts.extend(self.gid.netdev.clone().map(|netdev| ("network device", netdev)));
        if let Ok(port) = self.context.port(self.port) {
            facts.push(("link layer", limits::link_layer(port.link_layer).to_string()));
            let mtu = limits::mtu(port.active_mtu);
            facts.push(("mtu", mtu.to_string()));
            facts.push((TRANSPORT_MTU, self.settings.path_mtu(mtu).to_string()));
        }
        facts.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.is_ethernet
    }

    /// Maximum capacity of a completion queue.
    pub(crate) fn max_cqe(&self) -> u32 {
        self.max_cqe
    }

    fn handle_event(&self, event: AsyncEvent) {
        log::debug!("{}: {event:?}", self.name);
        match event {
            AsyncEvent::Qp { number, kind } => match kind {
                QpEvent::CommEstablished => self.opened.qp_event(number, ObjectEvent::PeerIsThere),
                QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError | QpEvent::PathMigrationError => {
                    self.opened.qp_event(number, ObjectEvent::Failed);
                }
                // The queue pair has ended, or the event has no consequences.
                QpEvent::LastWqe | QpEvent::SqDrained | QpEvent::PathMigrated => {}
            },
            AsyncEvent::Cq { id } => {
                log::error!("{}: a completion queue has overrun or failed; its connections are ended", self.name);
                self.opened.queue_event(id, ObjectEvent::Failed);
            }
            AsyncEvent::Srq { id, kind: SrqEvent::Limit } => self.opened.queue_event(id, ObjectEvent::Low),
            AsyncEvent::Srq { id, kind: SrqEvent::Error } => {
                log::error!("{}: a shared receive queue has failed; its connections are ended", self.name);
                self.opened.queue_event(id, ObjectEvent::Failed);
            }
            AsyncEvent::Port { port, kind } if port == self.port => self.port_changed(kind),
            AsyncEvent::DeviceFatal => self.all_over(),
            AsyncEvent::Port { .. } | AsyncEvent::Other(_) => {}
        }
    }

    fn port_changed(&self, kind: PortEvent) {
        match kind {
            PortEvent::Down => log::warn!("{}: port {} is down", self.name, self.port),
            PortEvent::Active => log::info!("{}: port {} is active", self.name, self.port),
            _ => log::info!("{}: the configuration of port {} has changed", self.name, self.port),
        }
    }

    /// Ends all connections, because the device has failed or was removed.
    fn all_over(&self) {
        log::error!(
            "{}: device {} has failed or is being removed; all its connections are ended",
            self.name,
            self.context.name()
        );
        self.opened.fail_all();
    }
}

/// Receives completion events.
pub(crate) struct Completions(pub(crate) Weak<Device>);

impl Source for Completions {
    fn ready(&self) {
        let Some(device) = self.0.upgrade() else { return };
        loop {
            match device.channel.next() {
                Ok(Some(id)) => device.opened.queue_event(id, ObjectEvent::Completion),
                Ok(None) => return,
                Err(error) => {
                    log::error!("{}: completion events cannot be read: {error}", device.name);
                    return;
                }
            }
        }
    }
}

/// Receives asynchronous events of the device.
pub(crate) struct Asynchronous(pub(crate) Weak<Device>);

impl Source for Asynchronous {
    fn ready(&self) {
        let Some(device) = self.0.upgrade() else { return };
        loop {
            match device.context.next_event() {
                Ok(Some(event)) => device.handle_event(event),
                Ok(None) => return,
                Err(error) => {
                    log::error!("{}: the device's events cannot be read: {error}", device.name);
                    return;
                }
            }
        }
    }
}
