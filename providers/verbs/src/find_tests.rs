//! Tests of `find` with fake hosts: the device, port and address that `ia_params` name, and the causes of failures.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A fake host: sysfs and `/dev` in a temporary directory, which is removed when this is dropped.
struct Tree {
    root: PathBuf,
    host: HostInterfaces,
}

impl Tree {
    /// Creates a host without RDMA support.
    fn bare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("daplverbs-find-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        let (sys, dev) = (root.join("sys"), root.join("dev"));
        fs::create_dir_all(&dev).unwrap();
        let addresses = vec![("lo".to_string(), ip("127.0.0.1")), ("eth0".to_string(), ip("203.0.113.5"))];
        let tree = Tree { root, host: HostInterfaces { sys, dev, addresses, resolve } };
        ["lo", "eth0"].iter().for_each(|netdev| tree.directory(&format!("class/net/{netdev}")));
        tree
    }

    /// Creates a host with rdma_cm, a RoCE adapter (eth2, with a VLAN), an InfiniBand adapter with two ports, soft-RoCE
    /// (eth3, below a bond with a VLAN), and a network device without RDMA (eth4).
    fn full() -> Self {
        let mut tree = Tree::bare();
        tree.file("class/misc/rdma_cm/dev", "10:58");
        tree.node("rdma_cm");
        tree.device("mlx5_0", &[1], "uverbs0");
        tree.gids("mlx5_0", 1, &[(0, "eth2"), (2, "eth2"), (10, "eth2.100")]);
        tree.device("mthca0", &[1, 2], "uverbs1");
        for (netdev, port) in [("ib0", "0"), ("ib1", "1")] {
            tree.file(&format!("class/net/{netdev}/dev_port"), port);
            tree.directory(&format!("class/net/{netdev}/device/infiniband/mthca0"));
            tree.directory(&format!("class/infiniband/mthca0/device/net/{netdev}"));
        }
        tree.device("rxe0", &[1], "uverbs2");
        tree.file("class/infiniband/rxe0/parent", "eth3");
        ["eth2", "eth2.100", "eth3", "eth4"].iter().for_each(|netdev| tree.directory(&format!("class/net/{netdev}")));
        tree.directory("class/net/bond0/lower_eth3");
        tree.directory("class/net/bond0.5/lower_bond0");
        let all = [
            ("eth2", "192.0.2.2"),
            ("eth2", "2001:db8::2"),
            ("eth2.100", "192.0.2.100"),
            ("ib0", "2001:db8::10"),
            ("ib1", "192.0.2.11"),
            ("eth3", "192.0.2.3"),
            ("bond0.5", "192.0.2.5"),
        ];
        tree.host.addresses.extend(all.map(|(netdev, address)| (netdev.to_string(), ip(address))));
        tree
    }

    fn directory(&self, path: &str) {
        fs::create_dir_all(self.host.sys.join(path)).unwrap();
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.host.sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn node(&self, name: &str) {
        fs::create_dir_all(self.host.dev.join("infiniband")).unwrap();
        fs::write(self.host.dev.join("infiniband").join(name), "").unwrap();
    }

    fn device(&self, name: &str, ports: &[u8], node: &str) {
        ports.iter().for_each(|port| self.directory(&format!("class/infiniband/{name}/ports/{port}")));
        self.file(&format!("class/infiniband_verbs/{node}/ibdev"), name);
        self.directory(&format!("class/infiniband/{name}/device"));
        symlink(
            "../../../bus/pci/drivers/some_core",
            self.host.sys.join(format!("class/infiniband/{name}/device/driver")),
        )
        .unwrap();
        self.node(node);
    }

    fn gids(&self, device: &str, port: u8, netdevs: &[(u32, &str)]) {
        for (index, netdev) in netdevs {
            self.file(&format!("class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}"), netdev);
        }
    }

    fn find(&self, params: &str) -> FindResult<DevicePort> {
        find(&self.host, &VerbsSettings::read(params, ""))
    }

    fn failure(&self, params: &str) -> OpenFailure {
        self.find(params).unwrap_err()
    }

    fn path(&self, node: &str) -> String {
        self.host.dev.join("infiniband").join(node).display().to_string()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A fake resolver. `node-ib1` has a remote and two local addresses, `abroad` a remote one, and `plain` the address of
/// a network device without RDMA.
fn resolve(name: &str) -> Vec<IpAddr> {
    let known: &[&str] = match name {
        "node-ib1" => &["198.51.100.9", "192.0.2.11", "2001:db8::10"],
        "abroad" => &["198.51.100.9"],
        "plain" => &["203.0.113.5"],
        _ => &[],
    };
    known.iter().map(|text| ip(text)).collect()
}

fn place(device: &str, port: u8, netdev: &str, address: &str) -> FindResult<DevicePort> {
    Ok(DevicePort { device: device.to_string(), port, netdev: Some(netdev.to_string()), address: address.parse().ok() })
}

#[test]
fn device_and_port_find_the_address_of_their_network_device() {
    let tree = Tree::full();
    assert_eq!(tree.find("mlx5_0 1"), place("mlx5_0", 1, "eth2", "192.0.2.2"));
    assert_eq!(tree.find("mlx5_0"), place("mlx5_0", 1, "eth2", "192.0.2.2"));
    assert_eq!(tree.find("mlx5_0 0"), place("mlx5_0", 1, "eth2", "192.0.2.2"));
    assert_eq!(tree.find("mthca0 1"), place("mthca0", 1, "ib0", "2001:db8::10"));
    assert_eq!(tree.find("mthca0 2"), place("mthca0", 2, "ib1", "192.0.2.11"));
    assert_eq!(tree.find("rxe0 1"), place("rxe0", 1, "eth3", "192.0.2.3"));
}

#[test]
fn ipv4_address_of_any_network_device_precedes_ipv6() {
    let mut tree = Tree::full();
    tree.host.addresses.retain(|(netdev, address)| netdev != "eth2" || address.is_ipv6());
    assert_eq!(tree.find("mlx5_0 1"), place("mlx5_0", 1, "eth2.100", "192.0.2.100"));
    assert_eq!(tree.find("eth2 0"), place("mlx5_0", 1, "eth2", "2001:db8::2"));
}

#[test]
fn network_device_name_determines_device_and_port() {
    let tree = Tree::full();
    assert_eq!(tree.find("eth2 7"), place("mlx5_0", 1, "eth2", "192.0.2.2"));
    assert_eq!(tree.find("eth2.100 0"), place("mlx5_0", 1, "eth2.100", "192.0.2.100"));
    assert_eq!(tree.find("ib0 0"), place("mthca0", 1, "ib0", "2001:db8::10"));
    assert_eq!(tree.find("ib1 0"), place("mthca0", 2, "ib1", "192.0.2.11"));
    assert_eq!(tree.find("eth3"), place("rxe0", 1, "eth3", "192.0.2.3"));
    assert_eq!(tree.find("bond0.5 0"), place("rxe0", 1, "bond0.5", "192.0.2.5"), "devices above other devices");
}

#[test]
fn port_number_is_read_from_dev_id_if_dev_port_is_zero() {
    let tree = Tree::full();
    tree.file("class/net/ib1/dev_port", "0");
    tree.file("class/net/ib1/dev_id", "0x1");
    assert_eq!(tree.find("ib1 0"), place("mthca0", 2, "ib1", "192.0.2.11"));
}

#[test]
fn address_or_host_name_finds_the_network_device_that_has_it() {
    let tree = Tree::full();
    assert_eq!(tree.find("192.0.2.100 0"), place("mlx5_0", 1, "eth2.100", "192.0.2.100"));
    assert_eq!(tree.find("2001:db8::2"), place("mlx5_0", 1, "eth2", "2001:db8::2"));
    assert_eq!(
        tree.find("node-ib1 0"),
        place("mthca0", 2, "ib1", "192.0.2.11"),
        "the first address of this host is used"
    );
}

#[test]
fn only_rdma_cm_needs_an_address() {
    let mut tree = Tree::full();
    tree.host.addresses.retain(|(netdev, _)| !netdev.starts_with("ib"));
    let none = |netdevs: &[&str]| OpenFailure::NoAddress {
        device: "mthca0".to_string(),
        port: 1,
        netdevs: netdevs.iter().map(|netdev| netdev.to_string()).collect(),
    };
    assert_eq!(tree.failure("mthca0 1"), none(&["ib0"]));
    assert_eq!(tree.failure("ib0 0"), none(&["ib0"]));
    assert_eq!(tree.find("mthca0 1 cm=socket"), place("mthca0", 1, "ib0", ""));
    let bare = DevicePort { device: "mthca0".to_string(), port: 1, netdev: None, address: None };
    fs::remove_dir_all(tree.host.sys.join("class/infiniband/mthca0/device/net")).unwrap();
    assert_eq!(tree.failure("mthca0 1"), none(&[]));
    assert_eq!(tree.find("mthca0 1 cm=none"), Ok(bare));
}

#[test]
fn empty_params_find_the_first_device_with_an_address() {
    let tree = Tree::full();
    assert_eq!(find(&tree.host, &VerbsSettings::read("", "")), place("mlx5_0", 1, "eth2", "192.0.2.2"));
}

#[test]
fn unusable_device_name_fails_with_its_cause() {
    let tree = Tree::full();
    let text = |text: &str| text.to_string();
    let devices = ["mlx5_0", "mthca0", "rxe0"].map(text).to_vec();
    assert_eq!(tree.failure("ib7 0"), OpenFailure::Unknown { object: text("ib7"), devices: devices.clone() });
    assert_eq!(tree.failure("../etc 0"), OpenFailure::Unknown { object: text("../etc"), devices });
    assert_eq!(tree.failure("mthca0 3"), OpenFailure::NoPort { device: text("mthca0"), port: 3, ports: vec![1, 2] });
    let others = ["bond0", "bond0.5", "eth2", "eth2.100", "eth3", "ib0", "ib1"].map(text).to_vec();
    let plain = |netdev: &str| OpenFailure::NotRdma { netdev: text(netdev), others: others.clone() };
    assert_eq!(tree.failure("eth4 0"), plain("eth4"));
    assert_eq!(tree.failure("203.0.113.5"), plain("eth0"));
    assert_eq!(tree.failure("plain"), plain("eth0"));
    assert_eq!(tree.failure("127.0.0.1"), plain("lo"));
    let OpenFailure::Remote { object, addresses } = tree.failure("abroad") else {
        panic!("a resolvable host must fail as a remote address")
    };
    assert_eq!((object.as_str(), addresses.len()), ("abroad", tree.host.addresses.len()));
    assert!(matches!(tree.failure("198.51.100.9"), OpenFailure::Remote { .. }));
}

#[test]
fn host_without_rdma_support_or_devices_fails() {
    let tree = Tree::bare();
    assert_eq!(tree.failure("mlx5_0 1"), OpenFailure::NoRdma);
    tree.directory("class/infiniband");
    assert_eq!(tree.failure("eth0 0"), OpenFailure::NoDevices);
}

#[test]
fn missing_rdma_cm_fails_only_ias_that_use_it() {
    let tree = Tree::full();
    fs::remove_file(tree.host.dev.join("infiniband/rdma_cm")).unwrap();
    assert_eq!(
        tree.failure("mlx5_0 1"),
        OpenFailure::NoNode { node: tree.path("rdma_cm") },
        "only the device file is missing, as in a container"
    );
    fs::remove_dir_all(tree.host.sys.join("class/misc/rdma_cm")).unwrap();
    assert_eq!(tree.failure("mlx5_0 1"), OpenFailure::NoManager);
    assert!(tree.find("mlx5_0 1 cm=socket").is_ok());
}

#[test]
fn diagnose_returns_why_a_device_does_not_open() {
    let tree = Tree::full();
    let error = |errno| io::Error::from_raw_os_error(errno);
    let node = tree.path("uverbs1");
    let diagnose = |is_listed, errno| diagnose(&tree.host, "mthca0", is_listed, &error(errno));
    assert_eq!(diagnose(true, libc::EACCES), OpenFailure::NoRights { node: node.clone() });
    assert_eq!(diagnose(true, libc::EPERM), OpenFailure::NoRights { node: node.clone() });
    assert!(matches!(diagnose(true, libc::ENOMEM), OpenFailure::Failed { .. }));
    let driver = Some("some_core".to_string());
    assert_eq!(
        diagnose(false, libc::ENOENT),
        OpenFailure::NoDriver { device: "mthca0".to_string(), kernel_driver: driver }
    );
    fs::remove_file(&node).unwrap();
    assert_eq!(diagnose(false, libc::ENOENT), OpenFailure::NoNode { node });
    fs::remove_dir_all(tree.host.sys.join("class/infiniband_verbs")).unwrap();
    assert_eq!(diagnose(false, libc::ENOENT), OpenFailure::NoVerbs { device: "mthca0".to_string() });
}

#[test]
fn node_failure_maps_error_numbers_that_have_a_remedy() {
    let failure = |errno| node_failure(Path::new("/dev/x"), &io::Error::from_raw_os_error(errno));
    let node = || "/dev/x".to_string();
    assert_eq!(failure(libc::EACCES), Some(OpenFailure::NoRights { node: node() }));
    assert_eq!(failure(libc::ENOENT), Some(OpenFailure::NoNode { node: node() }));
    assert_eq!(failure(libc::ENODEV), None, "other errors are reported by the library that uses the file");
}
