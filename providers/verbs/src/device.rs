//! The device of an open IA: state shared by all its objects, and dispatch of device events to objects.
//!
//! The event of a queue pair contains its number, the event of a completion queue or shared receive queue its id.
//! `shared_device` maps both to the object.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{io, iter};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{CmSink, IaSpec, Limits, TRANSPORT_MTU};
use dapl::runtime::handle::ObjectId;
use dapl_software::base_dir::{BaseDir, BaseDirKind};
use dapl_software::shared_names::SharedNames;
use parking_lot::Mutex;

use crate::Verbs;
use crate::engine::{Engine, EventHandler, READ, WatchedDescriptor};
use crate::find::OpenedDevice;
use crate::ibv::{AsyncEvent, CompletionChannel, Context, Gid, PortEvent, QpEvent, SrqEvent};
use crate::memory::keys::LocalKeys;
use crate::settings::VerbsSettings;
use crate::shared_device::SharedDevice;
use crate::{find, gid, limits};

/// The device of an open IA.
pub(crate) struct Device {
    /// The IA's name, for messages.
    pub(crate) name: String,
    pub(crate) shared_device: Arc<SharedDevice>,
    pub(crate) context: Arc<Context>,
    pub(crate) port: u8,
    /// The IA's address, if its port has one.
    pub(crate) address: Option<IpAddr>,
    /// The GID that paths use by default.
    pub(crate) gid: Gid,
    pub(crate) is_roce: bool,
    /// Maximum capacity of a completion queue of the device.
    pub(crate) max_cqe: u32,
    is_software: bool,
    /// Whether the driver posts requests by `write` to the kernel, which is a thread cancellation point.
    pub(crate) posts_by_kernel: bool,
    pub(crate) settings: VerbsSettings,
    pub(crate) limits: Limits,
    pub(crate) channel: Arc<CompletionChannel>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) sink: Arc<dyn CmSink<Verbs>>,
    /// The local keys, to check inline data, and to find the cause of a local failure.
    pub(crate) keys: Arc<LocalKeys>,
    pub(crate) names: SharedNames,
    /// Listeners by qualifier.
    pub(crate) listeners: Mutex<HashMap<u64, ObjectId>>,
    completions: Arc<CompletionEventHandler>,
    asynchronous: Arc<AsyncEventHandler>,
    watches: OnceLock<[WatchedDescriptor; 2]>,
}

/// The base directory. Its files represent the groups of processes that share memory (spec/transports B3).
const NAMES: BaseDirKind = BaseDirKind { provider: "verbs", variable: "DAPL_DIR", default: "/dev/shm/dapl-verbs" };

/// Vendor id of soft-RoCE.
const SOFTWARE: u32 = 0xff_ffff;
/// Vendors whose drivers of rdma-core post through the kernel: soft-RoCE, soft-iWARP, and Intel's qib and hfi1.
const POST_BY_KERNEL: [u32; 3] = [SOFTWARE, 0x62_6d74, 0x1175];
/// Pause after a change to ERR: longer than soft-RoCE takes to handle a packet.
const PAUSE: Duration = Duration::from_micros(100);

impl Device {
    /// Opens the device that `spec` names. Errors are logged.
    pub(crate) fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Verbs>>) -> Result<Arc<Self>> {
        let settings = VerbsSettings::read(spec.params, spec.library);
        let OpenedDevice { context, port, address, gid, is_roce } = find::open(spec.name, &settings)?;
        let failed = |operation: &str, error: io::Error| {
            log::error!(
                "{}: cannot {operation}: {error}; the IA cannot be opened; check the limit of open files (ulimit -n)",
                spec.name
            );
            Error::Exhausted(Resource::Device)
        };
        let shared_device = SharedDevice::find_or_add(context);
        let context = shared_device.context.clone();
        let engine = Engine::new().map_err(|error| failed("create the engine", error))?;
        let channel = CompletionChannel::new(&context).map_err(|error| failed("create a completion channel", error))?;
        let (limits, attributes) = limits::of(&context, port, &settings)?;
        let chosen = dapl::runtime::logger::secure_variable(NAMES.variable);
        let device = Arc::new_cyclic(|me| Device {
            name: spec.name.to_owned(),
            completions: Arc::new(CompletionEventHandler(Weak::clone(me))),
            asynchronous: Arc::new(AsyncEventHandler(Weak::clone(me))),
            shared_device,
            context,
            port,
            address,
            gid,
            is_roce,
            max_cqe: attributes.max_cqe.max(1) as u32,
            is_software: attributes.vendor_id == SOFTWARE,
            posts_by_kernel: POST_BY_KERNEL.contains(&attributes.vendor_id),
            settings,
            limits,
            channel,
            engine,
            sink,
            keys: Arc::default(),
            names: SharedNames::new(BaseDir::new(&NAMES, chosen.as_deref())),
            listeners: Mutex::default(),
            watches: OnceLock::new(),
        });
        let (completions, asynchronous) = (&Arc::downgrade(&device.completions), &Arc::downgrade(&device.asynchronous));
        let watched = device
            .engine
            .watch(device.channel.fd(), READ, completions)
            .and_then(|first| Ok([first, device.engine.watch(device.context.events(), READ, asynchronous)?]));
        let _ = device.watches.set(watched.map_err(|error| failed("wait for events of the device", error))?);
        Ok(device)
    }

    /// Returns how many of the `segments` of each work request are saved until it completes: all on soft-RoCE, which
    /// does not report whether a segment was invalid; 0 on other devices.
    pub(crate) fn saved_segment_count(&self, segments: u32) -> u32 {
        if self.is_software { segments } else { 0 }
    }

    /// Waits until soft-RoCE has handled the packets that it began before a queue pair changed to ERR. Does not wait
    /// for other devices. Soft-RoCE of Linux 6.1 checks the state twice per packet, and the kernel dereferences a null
    /// pointer if the first check sees ERR and the second sees RESET.
    pub(crate) fn wait_for_error_state(&self) {
        if self.is_software {
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the provider-specific attributes for `dat_ia_query`, as names and values.
    pub(crate) fn named_attributes(&self) -> Vec<(String, String)> {
        let mut attributes = vec![
            ("device", self.context.name().to_string()),
            ("port", self.port.to_string()),
            ("connection manager", self.settings.manager.name().to_string()),
            ("gid", gid::describe(&self.gid)),
            ("gid index", self.gid.index.to_string()),
            ("gid type", self.gid.kind.name().to_string()),
        ];
        attributes.extend(self.gid.netdev.clone().map(|netdev| ("network device", netdev)));
        if let Ok(port) = self.context.port(self.port) {
            attributes.push(("link layer", limits::link_layer(port.link_layer).to_string()));
            let mtu = limits::mtu(port.active_mtu);
            attributes.push(("mtu", mtu.to_string()));
            attributes.push((TRANSPORT_MTU, self.settings.path_mtu(mtu).to_string()));
        }
        attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    fn handle_event(&self, event: AsyncEvent) {
        log::debug!("{}: {event:?}", self.name);
        match event {
            AsyncEvent::Qp { number, kind } => match kind {
                QpEvent::CommEstablished => self.shared_device.qp_event(number, |qp| qp.data_before_confirmation()),
                QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError | QpEvent::PathMigrationError => {
                    self.shared_device.qp_event(number, |qp| qp.failed());
                }
                // The provider does not use these events: it flushes and drains by polling, and does not migrate paths.
                QpEvent::LastWqe | QpEvent::SqDrained | QpEvent::PathMigrated => {}
            },
            AsyncEvent::Cq { id } => {
                log::error!(
                    "{}: a completion queue of device {} has overrun or failed; the connections that use it end with BROKEN",
                    self.name,
                    self.context.name()
                );
                self.shared_device.queue_event(id, |queue| queue.failed());
            }
            AsyncEvent::Srq { id, kind: SrqEvent::Limit } => {
                self.shared_device.queue_event(id, |srq| srq.fell_below_limit())
            }
            AsyncEvent::Srq { id, kind: SrqEvent::Error } => {
                log::error!(
                    "{}: a shared receive queue of device {} has failed; the connections that use it end with BROKEN; free the \
                     SRQ and create another one",
                    self.name,
                    self.context.name()
                );
                self.shared_device.queue_event(id, |queue| queue.failed());
            }
            AsyncEvent::Port { port, kind } => self.port_changed(port, kind),
            AsyncEvent::DeviceFatal => self.fail_all_connections(),
            AsyncEvent::Other(_) => {}
        }
    }

    /// Handles an event of any port of the device, because other IAs of the process may use that port and do not read
    /// the event.
    pub(crate) fn port_changed(&self, port: u8, kind: PortEvent) {
        let (name, device) = (&self.name, self.context.name());
        match kind {
            PortEvent::Down => {
                self.shared_device.set_port_down(port, true);
                log::warn!(
                    "{name}: port {port} of {device} is down; connections break unless it is active again soon (check the \
                     cable and the link)"
                );
            }
            PortEvent::Active => {
                self.shared_device.set_port_down(port, false);
                log::info!("{name}: port {port} of {device} is active");
            }
            kind => log::info!(
                "{name}: the configuration of port {port} of {device} has changed ({kind:?}); if connects fail, open the IA again"
            ),
        }
    }

    /// Ends all connections over the device, also those of other IAs of this process, because the device has failed or
    /// was removed.
    fn fail_all_connections(&self) {
        log::error!(
            "{}: device {} has failed or is being removed; its connections end with BROKEN; close the IA and open it again when \
             the device is back",
            self.name,
            self.context.name()
        );
        self.shared_device.fail_all();
    }
}

/// Handles completion events of the device.
pub(crate) struct CompletionEventHandler(pub(crate) Weak<Device>);

impl EventHandler for CompletionEventHandler {
    fn ready(&self) {
        let Some(device) = self.0.upgrade() else { return };
        for event in iter::from_fn(|| device.channel.next().transpose()) {
            match event {
                Ok(id) => device.shared_device.queue_event(id, |cq| cq.completed()),
                Err(error) => {
                    return log::error!(
                        "{}: cannot read completion events of device {}: {error}; waits for completions may not return until the \
                         IA is opened again",
                        device.name,
                        device.context.name()
                    );
                }
            }
        }
    }
}

/// Handles asynchronous events of the device.
pub(crate) struct AsyncEventHandler(pub(crate) Weak<Device>);

impl EventHandler for AsyncEventHandler {
    fn ready(&self) {
        let Some(device) = self.0.upgrade() else { return };
        for event in iter::from_fn(|| device.context.next_event().transpose()) {
            match event {
                Ok(event) => device.handle_event(event),
                Err(error) => {
                    return log::error!(
                        "{}: cannot read asynchronous events of device {}: {error}; its failures may not be reported until the \
                         IA is opened again",
                        device.name,
                        device.context.name()
                    );
                }
            }
        }
    }
}
