//! Finds device, port and address of an IA from its `ia_params`, and opens the device.
//!
//! Called once, when the IA is opened. It may call the resolver and so block. `explain` logs failures.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use dapl::error::Result;
use ibverbs_sys::{IBV_LINK_LAYER_ETHERNET, ibv_port_state};

use crate::gid;
use crate::host::Host;
use crate::ibv::{Context, Gid};
use crate::manager_kind::ManagerKind;
use crate::refusal::{self, Cause};
use crate::settings::Settings;

/// The opened device with its port and address.
pub(crate) struct OpenedDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) port: u8,
    /// The IA's address, if its port has one.
    pub(crate) address: Option<IpAddr>,
    /// The GID of that address.
    pub(crate) gid: Gid,
    /// Whether the port is Ethernet (RoCE).
    pub(crate) is_ethernet: bool,
}

/// Opens the device of the IA with this name. Errors are logged, with their remedy.
pub(crate) fn open(name: &str, settings: &Settings) -> Result<OpenedDevice> {
    let host = Host::this();
    let opened =
        load(settings).and_then(|()| find(&host, settings)).and_then(|place| open_place(&host, &place, settings));
    opened.map_err(|cause| refusal::refusal(name, &settings.object, &cause))
}

/// Loads the libraries of rdma-core.
fn load(settings: &Settings) -> Finding<()> {
    if settings.manager == ManagerKind::Datagram {
        return Err(Cause::NoDatagramManager);
    }
    ibverbs_sys::load().map_err(|error| Cause::NoLibrary(error.clone()))?;
    match settings.manager {
        ManagerKind::Rdma => rdma_cm_sys::load().map_err(|error| Cause::NoLibrary(error.clone())),
        _ => Ok(()),
    }
}

/// The location of an IA.
#[derive(Clone, Debug, Eq, PartialEq)]
struct DevicePort {
    device: String,
    port: u8,
    netdev: Option<String>,
    address: Option<IpAddr>,
}

type Finding<T> = std::result::Result<T, Cause>;

fn find(host: &Host, settings: &Settings) -> Finding<DevicePort> {
    let object = settings.object.as_str();
    let devices = host.devices().ok_or(Cause::NoRdma)?;
    let place = if devices.is_empty() {
        return Err(Cause::NoDevices);
    } else if object.is_empty() {
        any(host, &devices, settings)?
    } else if devices.iter().any(|device| device == object) {
        by_device(host, object, settings)?
    } else if host.has_netdev(object) {
        by_netdev(host, object, host.addresses_of(object))?
    } else {
        by_address(host, object, devices)?
    };
    if settings.manager == ManagerKind::Rdma {
        check_manager(host)?;
        if place.address.is_none() {
            let netdevs = place.netdev.map_or_else(|| host.netdevs(&place.device, place.port), |netdev| vec![netdev]);
            return Err(Cause::NoAddress { device: place.device, port: place.port, netdevs });
        }
    }
    Ok(place)
}

/// The first device with an address, else the first.
fn any(host: &Host, devices: &[String], settings: &Settings) -> Finding<DevicePort> {
    let places = || devices.iter().map(|device| by_device(host, device, settings));
    let with_address = places().find(|place| place.as_ref().is_ok_and(|place| place.address.is_some()));
    with_address.or_else(|| places().next()).unwrap_or(Err(Cause::NoDevices))
}

fn by_device(host: &Host, device: &str, settings: &Settings) -> Finding<DevicePort> {
    let ports = host.ports(device);
    let port = settings.port.or(ports.first().copied()).unwrap_or(1);
    if !ports.contains(&port) {
        return Err(Cause::NoPort { device: device.to_string(), port, ports });
    }
    let netdevs = host.netdevs(device, port);
    let mut with_address = netdevs.iter().filter_map(|netdev| Some((netdev, host.addresses_of(netdev)?)));
    let first = with_address.clone().next();
    let chosen = with_address.find(|(_, address)| address.is_ipv4()).or(first);
    let netdev = chosen.map(|(netdev, _)| netdev).or(netdevs.first()).cloned();
    Ok(DevicePort { device: device.to_string(), port, netdev, address: chosen.map(|(_, address)| address) })
}

fn by_netdev(host: &Host, netdev: &str, address: Option<IpAddr>) -> Finding<DevicePort> {
    let plain = || Cause::Plain { netdev: netdev.to_string(), others: host.rdma_netdevs() };
    let (device, port) = host.device_of(netdev).ok_or_else(plain)?;
    Ok(DevicePort { device, port, netdev: Some(netdev.to_string()), address })
}

fn by_address(host: &Host, object: &str, devices: Vec<String>) -> Finding<DevicePort> {
    let addresses = object.parse().map_or_else(|_| (host.resolve)(object), |address| vec![address]);
    if addresses.is_empty() {
        return Err(Cause::Unknown { object: object.to_string(), devices });
    }
    let mut why = None;
    for (netdev, address) in addresses.iter().filter_map(|address| Some((host.carrier(*address)?, *address))) {
        match by_netdev(host, netdev, Some(address)) {
            Ok(place) => return Ok(place),
            Err(cause) => why = why.or(Some(cause)),
        }
    }
    let addresses = || host.addresses.iter().map(|(_, address)| address.to_string()).collect();
    Err(why.unwrap_or_else(|| Cause::NotHere { object: object.to_string(), addresses: addresses() }))
}

/// Whether rdma_cm can be reached.
fn check_manager(host: &Host) -> Finding<()> {
    let node = host.manager_node().ok_or(Cause::NoManager)?;
    let opened = OpenOptions::new().read(true).write(true).open(&node);
    opened.map(drop).or_else(|error| node_trouble(&node, &error).map_or(Ok(()), Err))
}

/// The cause of a failure to open a device file, if there is a remedy.
fn node_trouble(node: &Path, error: &io::Error) -> Option<Cause> {
    let node = node.display().to_string();
    match error.kind() {
        ErrorKind::NotFound => Some(Cause::NoNode { node }),
        ErrorKind::PermissionDenied => Some(Cause::NoRights { node }),
        _ => None,
    }
}

/// Determines why libibverbs does not open a device that the kernel has.
fn diagnose(host: &Host, device: &str, is_listed: bool, error: &io::Error) -> Cause {
    let Some(node) = host.verbs_node(device) else { return Cause::NoVerbs { device: device.to_string() } };
    if !node.exists() {
        return Cause::NoNode { node: node.display().to_string() };
    }
    if !is_listed {
        return Cause::NoDriver { device: device.to_string(), kernel_driver: host.kernel_driver(device) };
    }
    let failed = || Cause::Failed { what: format!("libibverbs cannot open {device}"), error: error.to_string() };
    node_trouble(&node, error).unwrap_or_else(failed)
}

fn open_place(host: &Host, place: &DevicePort, settings: &Settings) -> Finding<OpenedDevice> {
    let DevicePort { device, port, netdev, address } = place;
    let context = Context::open(device).map_err(|error| {
        let is_listed = Context::devices().is_ok_and(|devices| devices.contains(device));
        diagnose(host, device, is_listed, &error)
    })?;
    let failed = |what: &'static str| {
        move |error: io::Error| Cause::Failed { what: format!("{device}: {what}"), error: error.to_string() }
    };
    let attributes = context.port(*port).map_err(failed("the port's attributes"))?;
    if attributes.state != ibv_port_state::IBV_PORT_ACTIVE {
        log::warn!("{device}: port {port} is not active yet; no peer can be reached");
    }
    let is_ethernet = u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET && !context.is_iwarp();
    let gids = context.gids(*port).map_err(failed("the port's GIDs"))?;
    let wanted =
        gid::GidRequirements { is_ethernet, address: *address, netdev: netdev.as_deref(), index: settings.gid_index };
    let gid = gid::choose(&gids, &wanted);
    let gid = gid.ok_or_else(|| Cause::NoGid { device: device.clone(), port: *port, index: settings.gid_index })?;
    log::info!(
        "{device}: port {port}, {}; {}",
        address.map_or("no address".to_string(), |address| address.to_string()),
        gid::shown(&gid)
    );
    Ok(OpenedDevice { context, port: *port, address: *address, gid, is_ethernet })
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
