//! Lists the RDMA devices of this host, their ports, network devices, IP addresses and device files, from sysfs, `/dev`
//! and the list of addresses. `find` uses this module to choose a device.
//!
//! The paths of sysfs and `/dev`, the addresses and the resolver are parameters, so that tests can use a fake host.
#![forbid(unsafe_code)]

use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use dapl_software::interfaces;

/// Maximum nesting of network devices. A VLAN on a bond on a port has nesting 2.
const MAX_NESTING: usize = 4;

/// The sources from which devices and addresses of a host are determined. Tests replace them by fakes.
pub(crate) struct HostInterfaces {
    pub(crate) sys: PathBuf,
    pub(crate) dev: PathBuf,
    /// Addresses of the host except link-local IPv6 addresses, each with its network device.
    pub(crate) addresses: Vec<(String, IpAddr)>,
    /// Resolves a host name.
    pub(crate) resolve: fn(&str) -> Vec<IpAddr>,
}

impl HostInterfaces {
    /// Returns this host, with its current addresses.
    pub(crate) fn local() -> Self {
        let addresses = interfaces::addresses().unwrap_or_else(|error| {
            log::warn!(
                "cannot read the addresses of this host (getifaddrs): {error}; no device is found by its address; write a device \
                 name in dat.conf (ibv_devices lists them)"
            );
            Vec::new()
        });
        let all = addresses.iter().map(|one| (device(&one.interface).to_string(), one.address.ip()));
        let addresses = all.filter(|(_, address)| !is_link_local(*address)).collect();
        HostInterfaces { sys: "/sys".into(), dev: "/dev".into(), addresses, resolve }
    }

    /// Returns the RDMA devices of the kernel, sorted by name; `None` if the kernel has no RDMA support.
    pub(crate) fn devices(&self) -> Option<Vec<String>> {
        let directory = self.infiniband();
        directory.is_dir().then(|| names(&directory))
    }

    /// Returns the ports of a device in ascending order.
    pub(crate) fn ports(&self, device: &str) -> Vec<u8> {
        let mut ports: Vec<u8> =
            names(&self.infiniband().join(device).join("ports")).iter().filter_map(|name| name.parse().ok()).collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the network devices of a port: those of its GIDs first, then network devices of the same adapter, then
    /// the parent of a software device.
    pub(crate) fn netdevs(&self, device: &str, port: u8) -> Vec<String> {
        let directory = self.infiniband().join(device);
        let mut found = self.gid_netdevs(device, port);
        let siblings = names(&directory.join("device/net"));
        found.extend(siblings.into_iter().filter(|netdev| self.port_of(netdev, device) == Some(port)));
        found.extend(text(&directory.join("parent")).filter(|_| port == 1));
        let mut seen = std::collections::HashSet::new();
        found.retain(|netdev| seen.insert(netdev.clone()));
        found
    }

    /// Whether there is a network device with this name.
    pub(crate) fn has_netdev(&self, name: &str) -> bool {
        is_name(name) && self.net().join(name).exists()
    }

    /// Returns all network devices that belong to an RDMA device.
    pub(crate) fn rdma_netdevs(&self) -> Vec<String> {
        let all = names(&self.net());
        all.into_iter().filter(|netdev| self.device_of(netdev).is_some()).collect()
    }

    /// Returns the RDMA device and port of a network device, or of the network device below a VLAN or bond.
    pub(crate) fn device_of(&self, netdev: &str) -> Option<(String, u8)> {
        self.device_below(netdev, MAX_NESTING)
    }

    /// Returns the first IPv4 address of a network device; if there is none, the first address.
    pub(crate) fn address_of(&self, netdev: &str) -> Option<IpAddr> {
        let all = || self.addresses.iter().filter(|(name, _)| name == netdev).map(|(_, address)| *address);
        all().find(IpAddr::is_ipv4).or_else(|| all().next())
    }

    /// Returns the network device that has an address.
    pub(crate) fn netdev_of(&self, address: IpAddr) -> Option<&str> {
        self.addresses.iter().find(|(_, known)| *known == address).map(|(name, _)| name.as_str())
    }

    /// Returns the path of the device file of an RDMA device; `None` if the kernel does not make the device available
    /// to programs.
    pub(crate) fn verbs_node(&self, device: &str) -> Option<PathBuf> {
        let directory = self.sys.join("class/infiniband_verbs");
        let is_of_device = |name: &String| text(&directory.join(name).join("ibdev")).as_deref() == Some(device);
        let name = names(&directory).into_iter().find(is_of_device)?;
        Some(self.dev.join("infiniband").join(name))
    }

    /// Returns the path of the device file of rdma_cm; `None` if the kernel does not make rdma_cm available to
    /// programs.
    pub(crate) fn manager_node(&self) -> Option<PathBuf> {
        let node = self.dev.join("infiniband/rdma_cm");
        (node.exists() || self.sys.join("class/misc/rdma_cm").exists()).then_some(node)
    }

    /// Returns the name of the kernel driver of a device.
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

    /// Returns the network devices of the port's GIDs, in the order of the GID table, with duplicates.
    fn gid_netdevs(&self, device: &str, port: u8) -> Vec<String> {
        let directory = self.infiniband().join(device).join(format!("ports/{port}/gid_attrs/ndevs"));
        let (mut found, mut free) = (Vec::new(), 0);
        for index in 0_u32.. {
            match fs::read_to_string(directory.join(index.to_string())) {
                Ok(name) => {
                    found.push(name.trim().to_string());
                    free = 0;
                }
                // An empty entry. The kernel fills the first empty entry, so no GID follows a long run of empty
                // entries.
                Err(_) if free == MAX_EMPTY_GIDS => break,
                Err(_) => free += 1,
            }
        }
        found
    }

    fn device_below(&self, netdev: &str, max_nesting: usize) -> Option<(String, u8)> {
        if !is_name(netdev) {
            return None;
        }
        let devices = self.devices()?;
        let ports = || devices.iter().flat_map(|device| self.ports(device).into_iter().map(move |port| (device, port)));
        // RoCE: the GID table lists the port's network device, and VLANs and bonds above it.
        let mut by_gid =
            ports().filter(|(device, port)| self.gid_netdevs(device, *port).iter().any(|name| name == netdev));
        if let Some((device, port)) = by_gid.next() {
            return Some((device.clone(), port));
        }
        // IPoIB and iWARP: the network device and the RDMA device belong to one adapter.
        let siblings = names(&self.net().join(netdev).join("device/infiniband"));
        if let Some(device) = siblings.into_iter().next() {
            let port = self.port_of(netdev, &device)?;
            return Some((device, port));
        }
        // Soft-RoCE and soft-iWARP: the RDMA device names its network device as its parent.
        let is_parent =
            |device: &&String| text(&self.infiniband().join(device).join("parent")).as_deref() == Some(netdev);
        if let Some(device) = devices.iter().find(is_parent) {
            return Some((device.clone(), 1));
        }
        let lower = names(&self.net().join(netdev));
        let mut lower = lower.iter().filter_map(|name| name.strip_prefix("lower_"));
        if max_nesting == 0 { None } else { lower.find_map(|lower| self.device_below(lower, max_nesting - 1)) }
    }

    /// Returns the port of `device` to which a network device of the same adapter belongs.
    fn port_of(&self, netdev: &str, device: &str) -> Option<u8> {
        let number = |file: &str| {
            let text = text(&self.net().join(netdev).join(file))?;
            match text.strip_prefix("0x") {
                Some(hex) => u8::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            }
        };
        // Both files number ports from 0. Older drivers use `dev_id`, and `dev_port` is 0 then.
        let index = number("dev_port").filter(|port| *port != 0).or_else(|| number("dev_id")).unwrap_or(0);
        let ports = self.ports(device);
        let port = index.checked_add(1)?;
        match ports.as_slice() {
            // Some adapters have one RDMA device per port.
            [only] => Some(*only),
            ports => ports.contains(&port).then_some(port),
        }
    }
}

/// Removes the suffix of an alias: `eth0:1` is an alias of the device `eth0`.
fn device(name: &str) -> &str {
    name.split_once(':').map_or(name, |(device, _)| device)
}

/// Whether an IPv6 address is link-local: valid only together with the name of a device.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns the entries of a directory, sorted by name; none if it does not exist.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Number of consecutive empty GID entries after which the search ends. A GID table may have a thousand entries.
const MAX_EMPTY_GIDS: u32 = 64;

/// Returns the trimmed text of a file; `None` if it is empty or cannot be read.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim()).filter(|text| !text.is_empty()).map(String::from)
}

/// Whether `name` can be the name of a network device, and is not a path.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_include_the_loopback_address() {
        let found = HostInterfaces::local().addresses;
        assert!(found.contains(&("lo".to_string(), std::net::Ipv4Addr::LOCALHOST.into())), "{found:?}");
    }

    #[test]
    fn alias_suffix_is_removed_and_ipv6_link_local_is_recognized() {
        assert_eq!([device("eth0:1"), device("eth0.100"), device("ib0")], ["eth0", "eth0.100", "ib0"]);
        assert!(is_link_local("fe80::1".parse().unwrap()));
        assert!(!is_link_local("2001:db8::1".parse().unwrap()) && !is_link_local("169.254.0.1".parse().unwrap()));
    }
}
