//! Finds the device, port and address that the `ia_params` of an IA name, and opens the device.
//!
//! The open of an IA calls [`open`] once. The call may block in the resolver. `refusal` logs failures.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use dapl::error::Result;
use ibverbs_sys::{IBV_LINK_LAYER_ETHERNET, ibv_port_state};

use crate::gid;
use crate::host::HostInterfaces;
use crate::ibv::{Context, Gid};
use crate::manager_kind::ManagerKind;
use crate::refusal::{self, OpenFailure};
use crate::settings::VerbsSettings;

/// An opened device, with the port and address of an IA.
pub(crate) struct OpenedDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) port: u8,
    /// The IA's address, if its port has one.
    pub(crate) address: Option<IpAddr>,
    /// The GID of the port that paths use by default.
    pub(crate) gid: Gid,
    /// Whether the port is RoCE: its link layer is Ethernet, and the device is not iWARP.
    pub(crate) is_roce: bool,
}

/// Opens the device of the IA `name`. Errors are logged with their remedy.
pub(crate) fn open(name: &str, settings: &VerbsSettings) -> Result<OpenedDevice> {
    let host = HostInterfaces::local();
    let opened =
        load(settings).and_then(|()| find(&host, settings)).and_then(|place| open_place(&host, &place, settings));
    opened.map_err(|cause| refusal::refusal(name, &settings.object, &cause))
}

/// Loads libibverbs, and librdmacm if the connection manager is `rdma`. Fails for `Datagram`, which is not implemented.
fn load(settings: &VerbsSettings) -> FindResult<()> {
    if settings.manager == ManagerKind::Datagram {
        return Err(OpenFailure::NoDatagramManager);
    }
    ibverbs_sys::load().map_err(|error| OpenFailure::NoLibrary(error.clone()))?;
    match settings.manager {
        ManagerKind::Rdma => rdma_cm_sys::load().map_err(|error| OpenFailure::NoLibrary(error.clone())),
        _ => Ok(()),
    }
}

/// The port that an IA uses.
#[derive(Clone, Debug, Eq, PartialEq)]
struct DevicePort {
    device: String,
    port: u8,
    netdev: Option<String>,
    address: Option<IpAddr>,
}

type FindResult<T> = std::result::Result<T, OpenFailure>;

fn find(host: &HostInterfaces, settings: &VerbsSettings) -> FindResult<DevicePort> {
    let object = settings.object.as_str();
    let devices = host.devices().ok_or(OpenFailure::NoRdma)?;
    let place = if devices.is_empty() {
        return Err(OpenFailure::NoDevices);
    } else if object.is_empty() {
        first_with_address(host, &devices, settings)?
    } else if devices.iter().any(|device| device == object) {
        by_device(host, object, settings)?
    } else if host.has_netdev(object) {
        by_netdev(host, object, host.address_of(object))?
    } else {
        by_address(host, object, devices)?
    };
    if settings.manager == ManagerKind::Rdma {
        check_manager(host)?;
        if place.address.is_none() {
            let netdevs = place.netdev.map_or_else(|| host.netdevs(&place.device, place.port), |netdev| vec![netdev]);
            return Err(OpenFailure::NoAddress { device: place.device, port: place.port, netdevs });
        }
    }
    Ok(place)
}

/// Returns the first device whose port has an address; if there is none, the first device.
fn first_with_address(host: &HostInterfaces, devices: &[String], settings: &VerbsSettings) -> FindResult<DevicePort> {
    let places = || devices.iter().map(|device| by_device(host, device, settings));
    let with_address = places().find(|place| place.as_ref().is_ok_and(|place| place.address.is_some()));
    with_address.or_else(|| places().next()).unwrap_or(Err(OpenFailure::NoDevices))
}

fn by_device(host: &HostInterfaces, device: &str, settings: &VerbsSettings) -> FindResult<DevicePort> {
    let ports = host.ports(device);
    let port = settings.port.or(ports.first().copied()).unwrap_or(1);
    if !ports.contains(&port) {
        return Err(OpenFailure::NoPort { device: device.to_string(), port, ports });
    }
    let netdevs = host.netdevs(device, port);
    let mut with_address = netdevs.iter().filter_map(|netdev| Some((netdev, host.address_of(netdev)?)));
    let first = with_address.clone().next();
    let chosen = with_address.find(|(_, address)| address.is_ipv4()).or(first);
    let netdev = chosen.map(|(netdev, _)| netdev).or(netdevs.first()).cloned();
    Ok(DevicePort { device: device.to_string(), port, netdev, address: chosen.map(|(_, address)| address) })
}

fn by_netdev(host: &HostInterfaces, netdev: &str, address: Option<IpAddr>) -> FindResult<DevicePort> {
    let plain = || OpenFailure::NotRdma { netdev: netdev.to_string(), others: host.rdma_netdevs() };
    let (device, port) = host.device_of(netdev).ok_or_else(plain)?;
    Ok(DevicePort { device, port, netdev: Some(netdev.to_string()), address })
}

fn by_address(host: &HostInterfaces, object: &str, devices: Vec<String>) -> FindResult<DevicePort> {
    let addresses = object.parse().map_or_else(|_| (host.resolve)(object), |address| vec![address]);
    if addresses.is_empty() {
        return Err(OpenFailure::Unknown { object: object.to_string(), devices });
    }
    let mut why = None;
    for (netdev, address) in addresses.iter().filter_map(|address| Some((host.netdev_of(*address)?, *address))) {
        match by_netdev(host, netdev, Some(address)) {
            Ok(place) => return Ok(place),
            Err(cause) => why = why.or(Some(cause)),
        }
    }
    let addresses = || host.addresses.iter().map(|(_, address)| address.to_string()).collect();
    Err(why.unwrap_or_else(|| OpenFailure::Remote { object: object.to_string(), addresses: addresses() }))
}

/// Fails if the device file of rdma_cm is missing, or if the user may not open it.
fn check_manager(host: &HostInterfaces) -> FindResult<()> {
    let node = host.manager_node().ok_or(OpenFailure::NoManager)?;
    let opened = OpenOptions::new().read(true).write(true).open(&node);
    opened.map(drop).or_else(|error| node_failure(&node, &error).map_or(Ok(()), Err))
}

/// Returns why a device file cannot be opened: it does not exist, or the user has no permission. `None` for other
/// errors.
fn node_failure(node: &Path, error: &io::Error) -> Option<OpenFailure> {
    let node = node.display().to_string();
    match error.kind() {
        ErrorKind::NotFound => Some(OpenFailure::NoNode { node }),
        ErrorKind::PermissionDenied => Some(OpenFailure::NoRights { node }),
        _ => None,
    }
}

/// Determines why libibverbs cannot open a device that the kernel has.
fn diagnose(host: &HostInterfaces, device: &str, is_listed: bool, error: &io::Error) -> OpenFailure {
    let Some(node) = host.verbs_node(device) else { return OpenFailure::NoVerbs { device: device.to_string() } };
    if !node.exists() {
        return OpenFailure::NoNode { node: node.display().to_string() };
    }
    if !is_listed {
        return OpenFailure::NoDriver { device: device.to_string(), kernel_driver: host.kernel_driver(device) };
    }
    let failed = || OpenFailure::Failed { operation: format!("open {device} by libibverbs"), error: error.to_string() };
    node_failure(&node, error).unwrap_or_else(failed)
}

fn open_place(host: &HostInterfaces, place: &DevicePort, settings: &VerbsSettings) -> FindResult<OpenedDevice> {
    let DevicePort { device, port, netdev, address } = place;
    let context = Context::open(device).map_err(|error| {
        let is_listed = Context::devices().is_ok_and(|devices| devices.contains(device));
        diagnose(host, device, is_listed, &error)
    })?;
    let failed = |attributes: &'static str| {
        move |error: io::Error| OpenFailure::Failed {
            operation: format!("query the {attributes} of {device}, port {port}"),
            error: error.to_string(),
        }
    };
    let attributes = context.port(*port).map_err(failed("attributes"))?;
    if attributes.state != ibv_port_state::IBV_PORT_ACTIVE {
        log::warn!("{device}: port {port} is not active; connections fail until it is (check the cable and the link)");
    }
    let is_roce = u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET && !context.is_iwarp;
    let mut gids = context.gids(*port).map_err(failed("GIDs"))?;
    if settings.gid_index.is_none() {
        gids.retain(|gid| gid::is_usable(gid.index, settings.manager));
    }
    let wanted =
        gid::GidRequirements { is_roce, address: *address, netdev: netdev.as_deref(), index: settings.gid_index };
    let gid = gid::choose(&gids, &wanted);
    let gid =
        gid.ok_or_else(|| OpenFailure::NoGid { device: device.clone(), port: *port, index: settings.gid_index })?;
    if !gid::is_usable(gid.index, settings.manager) {
        return Err(OpenFailure::GidIndexTooHigh { device: device.clone(), port: *port, index: gid.index });
    }
    log::info!(
        "using device {device}, port {port}, {}, {}",
        address.map_or("no IP address".to_string(), |address| format!("IP address {address}")),
        gid::describe(&gid)
    );
    Ok(OpenedDevice { context, port: *port, address: *address, gid, is_roce })
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
