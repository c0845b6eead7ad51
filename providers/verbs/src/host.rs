//! RDMA devices of this host, their ports and network devices, and the device files.
//!
//! Read from sysfs and `/dev`, whose paths are arguments for tests. `find` makes the decisions.
#![forbid(unsafe_code)]

use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Maximum nesting of network devices: a VLAN on a bond on a port is two.
const DEEP: usize = 4;

/// A host.
pub(crate) struct Host {
    pub(crate) sys: PathBuf,
    pub(crate) dev: PathBuf,
    /// Addresses, each with its network device.
    pub(crate) addresses: Vec<(String, IpAddr)>,
    /// Resolves a host name.
    pub(crate) resolve: fn(&str) -> Vec<IpAddr>,
}

impl Host {
    /// The host of this process, in its current state.
    pub(crate) fn this() -> Self {
        let addresses = crate::addresses::of_this_host().unwrap_or_else(|error| {
            log::warn!("the addresses of this host are not known: {error}");
            Vec::new()
        });
        Host { sys: "/sys".into(), dev: "/dev".into(), addresses, resolve }
    }

    /// RDMA devices of the kernel, in order; `None` without RDMA support.
    pub(crate) fn devices(&self) -> Option<Vec<String>> {
        let directory = self.infiniband();
        directory.is_dir().then(|| names(&directory))
    }

    /// The ports of a device, in order.
    pub(crate) fn ports(&self, device: &str) -> Vec<u8> {
        let mut ports: Vec<u8> =
            names(&self.infiniband().join(device).join("ports")).iter().filter_map(|name| name.parse().ok()).collect();
        ports.sort_unstable();
        ports
    }

    /// The network devices of a port, best first.
    pub(crate) fn netdevs(&self, device: &str, port: u8) -> Vec<String> {
        let place = self.infiniband().join(device);
        let mut found = self.gid_netdevs(device, port);
        let siblings = names(&place.join("device/net"));
        found.extend(siblings.into_iter().filter(|netdev| self.port_of(netdev, device) == Some(port)));
        found.extend(text(&place.join("parent")).filter(|_| port == 1));
        let mut seen = std::collections::HashSet::new();
        found.retain(|netdev| seen.insert(netdev.clone()));
        found
    }

    /// Whether there is a network device with this name.
    pub(crate) fn has_netdev(&self, name: &str) -> bool {
        is_name(name) && self.net().join(name).exists()
    }

    /// The network devices that belong to an RDMA device.
    pub(crate) fn rdma_netdevs(&self) -> Vec<String> {
        let all = names(&self.net());
        all.into_iter().filter(|netdev| self.device_of(netdev).is_some()).collect()
    }

    /// RDMA device and port of a network device, also of a VLAN or bond on top of it.
    pub(crate) fn device_of(&self, netdev: &str) -> Option<(String, u8)> {
        self.device_below(netdev, DEEP)
    }

    /// The address of a network device, IPv4 first.
    pub(crate) fn addresses_of(&self, netdev: &str) -> Option<IpAddr> {
        let all = || self.addresses.iter().filter(|(name, _)| name == netdev).map(|(_, address)| *address);
        all().find(IpAddr::is_ipv4).or_else(|| all().next())
    }

    /// The network device that carries an address.
    pub(crate) fn carrier(&self, address: IpAddr) -> Option<&str> {
        self.addresses.iter().find(|(_, known)| *known == address).map(|(name, _)| name.as_str())
    }

    /// The file by which programs open a device; `None` when the kernel offers none.
    pub(crate) fn verbs_node(&self, device: &str) -> Option<PathBuf> {
        let directory = self.sys.join("class/infiniband_verbs");
        let is_ours = |name: &String| text(&directory.join(name).join("ibdev")).as_deref() == Some(device);
        let name = names(&directory).into_iter().find(is_ours)?;
        Some(self.dev.join("infiniband").join(name))
    }

    /// The file by which programs reach rdma_cm; `None` when the kernel offers none.
    pub(crate) fn manager_node(&self) -> Option<PathBuf> {
        let node = self.dev.join("infiniband/rdma_cm");
        (node.exists() || self.sys.join("class/misc/rdma_cm").exists()).then_some(node)
    }

    /// The kernel's driver of a device.
    pub(crate) fn kernel_driver(&self, device: &str) -> Option<String> {
        let link = fs::read_link(self.infiniband().join(device).join("device/driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    fn infiniband(&self) -> PathBuf {
        self.sys.join("class/infiniband")
    }

    fn net(&self) -> PathBuf {
        self.sys.join("class/net")
    }

    /// The network devices that the port's GIDs belong to, by index.
    fn gid_netdevs(&self, device: &str, port: u8) -> Vec<String> {
        let directory = self.infiniband().join(device).join(format!("ports/{port}/gid_attrs/ndevs"));
        let (mut found, mut free) = (Vec::new(), 0);
        for index in 0_u32.. {
            match fs::read_to_string(directory.join(index.to_string())) {
                Ok(name) => {
                    found.push(name.trim().to_string());
                    free = 0;
                }
                // These are network devices without a GID. The kernel assigns the first free entry, so no GID follows
                // many empty ones.
                Err(_) if free == FREE => break,
                Err(_) => free += 1,
            }
        }
        found
    }

    fn device_below(&self, netdev: &str, deep: usize) -> Option<(String, u8)> {
        if !is_name(netdev) {
            return None;
        }
        let devices = self.devices()?;
        let ports = || devices.iter().flat_map(|device| self.ports(device).into_iter().map(move |port| (device, port)));
        // RoCE: from the kernel's table. A port's GIDs also name the devices on top of its network device.
        let mut by_gid =
            ports().filter(|(device, port)| self.gid_netdevs(device, *port).iter().any(|name| name == netdev));
        if let Some((device, port)) = by_gid.next() {
            return Some((device.clone(), port));
        }
        // IPoIB and iWARP: network device and RDMA device are functions of one adapter.
        let siblings = names(&self.net().join(netdev).join("device/infiniband"));
        if let Some(device) = siblings.into_iter().next() {
            let port = self.port_of(netdev, &device)?;
            return Some((device, port));
        }
        // Software drivers name their parent.
        let is_parent =
            |device: &&String| text(&self.infiniband().join(device).join("parent")).as_deref() == Some(netdev);
        if let Some(device) = devices.iter().find(is_parent) {
            return Some((device.clone(), 1));
        }
        let lower = names(&self.net().join(netdev));
        let mut lower = lower.iter().filter_map(|name| name.strip_prefix("lower_"));
        if deep == 0 { None } else { lower.find_map(|lower| self.device_below(lower, deep - 1)) }
    }

    /// The port of `device` that a network device of the same adapter belongs to.
    fn port_of(&self, netdev: &str, device: &str) -> Option<u8> {
        let number = |file: &str| {
            let text = text(&self.net().join(netdev).join(file))?;
            match text.strip_prefix("0x") {
                Some(hex) => u8::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            }
        };
        // Both files count from 0; drivers fill in one or the other.
        let place = number("dev_port").filter(|port| *port != 0).or_else(|| number("dev_id")).unwrap_or(0);
        let ports = self.ports(device);
        let port = place.checked_add(1)?;
        match ports.as_slice() {
            // An adapter with one function per port.
            [only] => Some(*only),
            ports => ports.contains(&port).then_some(port),
        }
    }
}

/// Entries of a directory, in order; empty if it does not exist.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Number of consecutive empty GID entries after which the search ends: a table may have a thousand.
const FREE: u32 = 64;

/// The trimmed text of a file, if there is any.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim()).filter(|text| !text.is_empty()).map(String::from)
}

/// Whether this can be the name of a network device, rather than a path.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

fn resolve(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    let mut addresses: Vec<IpAddr> = found.into_iter().flatten().map(|address| address.ip()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    addresses
}
