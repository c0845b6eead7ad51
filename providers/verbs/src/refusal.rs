//! Failures to open an IA or to register memory: the log message, and the error for the caller.
//!
//! The message of a failed open has object, cause and remedy. A program that tries all names of dat.conf would flood
//! the log. So a process logs at most four different messages of failed opens as errors. Repeated ones and those after
//! the fourth are logged with level info.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::io;

use dapl::error::{AddressProblem, Error, Resource};
use dapl::provider::Region;
use ibverbs_sys::LoadError;
use parking_lot::Mutex;
use rustix::process::{Resource as Bound, getrlimit};

/// Why an IA cannot be opened.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum OpenFailure {
    #[error("a library of rdma-core cannot be used: {0}")]
    NoLibrary(LoadError),
    #[error("the kernel has no RDMA devices (/sys/class/infiniband does not exist)")]
    NoRdma,
    #[error("there is no RDMA device (/sys/class/infiniband is empty)")]
    NoDevices,
    #[error(
        "\"{object}\" is neither an RDMA device, a network device, an address nor a host name that can be resolved"
    )]
    Unknown { object: String, devices: Vec<String> },
    /// The name is of another host, or is an address of another host.
    #[error("{object} is not an address of this host")]
    Remote { object: String, addresses: Vec<String> },
    #[error("no RDMA device uses the network device {netdev}")]
    NotRdma { netdev: String, others: Vec<String> },
    #[error("{device} has no port {port}")]
    NoPort { device: String, port: u8, ports: Vec<u8> },
    /// The port has no IP address, which rdma_cm needs.
    #[error("{}", without_address(.device, *.port, .netdevs))]
    NoAddress { device: String, port: u8, netdevs: Vec<String> },
    #[error("the kernel does not make {device} available to programs")]
    NoVerbs { device: String },
    #[error("the device file {node} does not exist")]
    NoNode { node: String },
    #[error("no permission to read and write the device file {node}")]
    NoRights { node: String },
    #[error(
        "libibverbs has no driver for {device}{}",
        .kernel_driver.as_ref().map_or(String::new(), |driver| format!(" (the kernel's is {driver})"))
    )]
    NoDriver { device: String, kernel_driver: Option<String> },
    #[error("the kernel does not make rdma_cm available to programs")]
    NoManager,
    /// The dat.conf line names a library of the C implementation whose connection manager uses UD queue pairs.
    #[error("the connection managers of libdaploucm and libdaplomcm (over UD queue pairs) are not implemented")]
    NoDatagramManager,
    /// The port has no GID, or not the requested one.
    #[error(
        "port {port} of {device} has no GID{}",
        .index.map_or(String::new(), |index| format!(" with index {index}"))
    )]
    NoGid { device: String, port: u8, index: Option<u32> },
    /// The GID index is above 255, the maximum in an address handle. Only the manager `rdma` has no such limit.
    #[error(
        "GID index {index} (DAPL_VERBS_GID_INDEX) of port {port} of {device} is above 255, the limit with cm=socket, \
        cm=socket2 and cm=none"
    )]
    GidIndexTooHigh { device: String, port: u8, index: u32 },
    /// A call has failed. `operation`: a verb phrase, which follows "cannot".
    #[error("cannot {operation}: {error}")]
    Failed { operation: String, error: String },
}

/// The package of librdmacm, which only the connection manager `rdma` needs.
const MANAGER_PACKAGE: &str = "librdmacm1";
/// An additional remedy if rdma_cm cannot be used.
const MANAGER_CHOICE: &str = ", or choose another connection manager (cm=socket in ia_params, or DAPL_VERBS_CM=socket)";

impl OpenFailure {
    fn remedy(&self) -> String {
        let listed = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!(" ({what}: {})", names.join(", ")),
        };
        match self {
            OpenFailure::NoLibrary(error) => {
                let package = error.package();
                let other = if package == MANAGER_PACKAGE { MANAGER_CHOICE } else { "" };
                format!(
                    "install the package {package} ({} on Fedora), rdma-core 32 or later{other}",
                    package.trim_end_matches('1')
                )
            }
            OpenFailure::NoRdma | OpenFailure::NoDevices => "load the driver of the adapter (such as mlx5_ib, irdma or bnxt_re); \
                without an adapter: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev <network device>"
                .to_string(),
            OpenFailure::Unknown { devices, .. } => format!("correct ia_params{}", listed("devices", devices)),
            OpenFailure::Remote { addresses, .. } => format!("correct ia_params{}", listed("addresses", addresses)),
            OpenFailure::NotRdma { netdev, others } => format!(
                "name another{}, or create one: rdma link add rxe0 type rxe netdev {netdev}",
                listed("with RDMA devices", others)
            ),
            OpenFailure::NoPort { ports, .. } => {
                let ports: Vec<String> = ports.iter().map(u8::to_string).collect();
                format!("correct ia_params{}", listed("ports", &ports))
            }
            OpenFailure::NoAddress { .. } => {
                format!("give its network device an address (ip addr add; on InfiniBand load ib_ipoib){MANAGER_CHOICE}")
            }
            OpenFailure::NoVerbs { .. } => "load the kernel module ib_uverbs (modprobe ib_uverbs)".to_string(),
            OpenFailure::NoNode { node } => {
                format!("start udev, or in a container pass the file in (such as --device={node})")
            }
            OpenFailure::NoRights { node } => {
                format!("let the user read and write it (chmod 0666 {node}, or the udev rule of rdma-core's packages)")
            }
            OpenFailure::NoDriver { .. } => {
                "install the user-space drivers (package ibverbs-providers or rdma-core), as new as libibverbs"
                    .to_string()
            }
            OpenFailure::NoDatagramManager => {
                "write cm=rdma or cm=socket2 in ia_params, or open the name of a libdaplofa or libdaploscm line; the peer \
                 has to use the same"
                    .to_string()
            }
            OpenFailure::NoManager => format!("load the kernel module rdma_ucm (modprobe rdma_ucm){MANAGER_CHOICE}"),
            OpenFailure::NoGid { index: None, .. } => "bring its network device up (ip link set ... up)".to_string(),
            OpenFailure::NoGid { .. } => {
                "correct DAPL_VERBS_GID_INDEX, or leave it out (\"rdma\" or \"ibv_devinfo -v\" list GIDs)".to_string()
            }
            OpenFailure::GidIndexTooHigh { .. } => {
                "set DAPL_VERBS_GID_INDEX to an index from 0 to 255, or write cm=rdma in ia_params; the peer has to use \
                 the same connection manager"
                    .to_string()
            }
            OpenFailure::Failed { .. } => "see the kernel's log (dmesg)".to_string(),
        }
    }

    /// Returns the error for the caller.
    fn error(&self) -> Error {
        match self {
            OpenFailure::NoRights { .. } => Error::PermissionDenied,
            OpenFailure::Failed { .. } => Error::Internal,
            _ => Error::InvalidAddress(AddressProblem::Unreachable),
        }
    }
}

/// Describes a port without an IP address.
fn without_address(device: &str, port: u8, netdevs: &[String]) -> String {
    match netdevs {
        [] => format!("port {port} of {device} has no network device, so there is no IP address"),
        netdevs => format!("{} ({device}, port {port}) has no IP address", netdevs.join(", ")),
    }
}

/// Logs why an IA cannot be opened, and returns the error for the caller.
pub(crate) fn refusal(name: &str, object: &str, failure: &OpenFailure) -> Error {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("{name}: cannot open \"{object}\": {failure}; {}", failure.remedy());
    let (level, hint) = level_of(&mut REPORTED.lock(), &line);
    log::log!(level, "{line}{hint}");
    failure.error()
}

/// Maximum number of messages of failed opens that a process logs as errors.
const MAX_ERRORS: usize = 4;

/// Added to the last of these messages.
const HINT: &str = " (DAPL_DBG_TYPE=0xffff shows further IAs that cannot be opened)";

/// Returns the level of a message of a failed open, and the text to add to it. `reported`: the messages that were logged
/// as errors.
fn level_of(reported: &mut BTreeSet<String>, line: &str) -> (log::Level, &'static str) {
    if reported.len() >= MAX_ERRORS || !reported.insert(line.to_string()) {
        return (log::Level::Info, "");
    }
    (log::Level::Error, if reported.len() == MAX_ERRORS { HINT } else { "" })
}

/// Logs why memory cannot be registered, and returns the error for the caller.
///
/// `InvalidParameter(3)`: the memory is not mapped or not writable, or cannot be registered. `Exhausted(Memory)`: no
/// more memory may be locked. `Exhausted(MemoryRegion)`: the device or the kernel has no more regions or memory.
/// `PermissionDenied`: the kernel denies the access, for another reason than the limit of locked memory. `Internal`:
/// any other error.
pub(crate) fn registration(device: &str, region: Region, error: &io::Error) -> Error {
    let number = error.raw_os_error().unwrap_or_default();
    let (code, line) = classify(number, region, &LockedMemory::read());
    let Region { address, length } = region;
    match line {
        // Memory that is not mapped is a mistake of the program, which gets the error.
        None => log::debug!("{device}: cannot register {length} bytes at {address:#x}: {error}"),
        Some(line) => log::error!("{device}: cannot register {length} bytes at {address:#x}: {error}{line}"),
    }
    code
}

/// Locked memory of this process, and its limit, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct LockedMemory {
    /// Memory that is pinned for RDMA (`VmPin`).
    pinned: u64,
    /// Limit of pinned memory (`RLIMIT_MEMLOCK`); `None`: no limit.
    allowed: Option<u64>,
    page: u64,
}

impl LockedMemory {
    fn read() -> Self {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let limit = getrlimit(Bound::Memlock).current;
        LockedMemory::from(&status, limit, rustix::param::page_size() as u64)
    }

    fn from(status: &str, limit: Option<u64>, page: u64) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_ascii_whitespace().next())
        };
        let pinned = field("VmPin").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024);
        /// The bit of `CAP_IPC_LOCK`. The limit does not apply to processes with this capability.
        const IPC_LOCK: u64 = 1 << 14;
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        LockedMemory { pinned, allowed: limit.filter(|_| capabilities & IPC_LOCK == 0), page }
    }

    /// If this region would exceed the limit: returns the number of bytes that would be locked, and the limit.
    fn excess_of(&self, region: Region) -> Option<(u64, u64)> {
        let mask = self.page - 1;
        let end = region.address.saturating_add(region.length).saturating_add(mask) & !mask;
        let needed = self.pinned.saturating_add(end - (region.address & !mask));
        self.allowed.filter(|allowed| needed > *allowed).map(|allowed| (needed, allowed))
    }
}

/// Returns the error for the caller, and the text that is logged after the kernel's message; `None` if nothing is
/// logged.
fn classify(errno: i32, region: Region, locked: &LockedMemory) -> (Error, Option<String>) {
    let plain = |text: &str| Some(text.to_string());
    match (errno, locked.excess_of(region)) {
        // The kernel reports EPERM if no memory may be locked at all.
        (libc::ENOMEM | libc::EPERM, Some((needed, allowed))) => (
            Error::Exhausted(Resource::Memory),
            Some(format!(
                "; {needed} bytes would be locked and the limit (RLIMIT_MEMLOCK) allows {allowed}: raise \"memlock\" \
                 in /etc/security/limits.conf, LimitMEMLOCK= in the systemd unit, or \"ulimit -l\" (in KiB)"
            )),
        ),
        (libc::ENOMEM | libc::ENOSPC | libc::EAGAIN, _) => (
            Error::Exhausted(Resource::MemoryRegion),
            plain("; the device or the kernel has no more regions or memory"),
        ),
        (libc::EFAULT, _) => (Error::InvalidParameter(3), None),
        (libc::EINVAL | libc::EOPNOTSUPP, _) => {
            (Error::InvalidParameter(3), plain("; the device or the kernel cannot register such memory"))
        }
        (libc::EACCES | libc::EPERM, _) => (Error::PermissionDenied, plain("")),
        _ => (Error::Internal, plain("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn open_failures_have_distinct_descriptions_and_a_remedy() {
        let text = |text: &str| text.to_string();
        let device = || text("mlx5_0");
        let library =
            |package| OpenFailure::NoLibrary(LoadError::Library { package, reason: format!("{package}: not found") });
        let failures = [
            (library("libibverbs1"), "install the package libibverbs1 (libibverbs on Fedora), rdma-core 32 or later"),
            (library("librdmacm1"), "cm=socket"),
            (OpenFailure::NoRdma, "rdma_rxe"),
            (OpenFailure::NoDevices, "mlx5_ib"),
            (OpenFailure::Unknown { object: text("ib7"), devices: vec![device()] }, "ib7"),
            (OpenFailure::Remote { object: text("node"), addresses: vec![text("192.0.2.1")] }, "192.0.2.1"),
            (OpenFailure::NotRdma { netdev: text("eth0"), others: vec![text("eth2")] }, "eth2"),
            (OpenFailure::NoPort { device: device(), port: 3, ports: vec![1, 2] }, "1, 2"),
            (OpenFailure::NoAddress { device: device(), port: 1, netdevs: vec![text("ib0")] }, "cm=socket"),
            (OpenFailure::NoAddress { device: device(), port: 1, netdevs: vec![] }, "no network device"),
            (OpenFailure::NoVerbs { device: device() }, "ib_uverbs"),
            (OpenFailure::NoNode { node: text("/dev/infiniband/uverbs0") }, "--device=/dev/infiniband/uverbs0"),
            (OpenFailure::NoRights { node: text("/dev/infiniband/uverbs0") }, "chmod 0666 /dev/infiniband/uverbs0"),
            (OpenFailure::NoDriver { device: device(), kernel_driver: Some(text("mlx5_core")) }, "ibverbs-providers"),
            (OpenFailure::NoManager, "rdma_ucm"),
            (OpenFailure::NoDatagramManager, "cm=socket"),
            (OpenFailure::NoGid { device: device(), port: 1, index: Some(9) }, "DAPL_VERBS_GID_INDEX"),
            (OpenFailure::NoGid { device: device(), port: 1, index: None }, "up"),
            (OpenFailure::GidIndexTooHigh { device: device(), port: 1, index: 300 }, "0 to 255"),
            (OpenFailure::Failed { operation: text("open mlx5_0"), error: text("broken") }, "dmesg"),
        ];
        let mut seen = BTreeSet::new();
        for (failure, part) in failures {
            let line = format!("{failure}; {}", failure.remedy());
            assert!(line.contains(part) && !failure.to_string().is_empty() && !failure.remedy().is_empty(), "{line}");
            assert!(!line.contains("  "), "{line}");
            assert!(seen.insert(failure.to_string()), "two failures have the same description: {line}");
        }
        assert_eq!(OpenFailure::NoRights { node: text("x") }.error(), Error::PermissionDenied);
        assert_eq!(OpenFailure::NoRdma.error(), Error::InvalidAddress(AddressProblem::Unreachable));
    }

    #[test]
    fn open_failures_are_logged_as_errors_once_and_at_most_four() {
        let mut reported = BTreeSet::new();
        let levels = ["a", "a", "b", "c", "d", "e"].map(|line| level_of(&mut reported, line));
        let (show, last, hide) = ((log::Level::Error, ""), (log::Level::Error, HINT), (log::Level::Info, ""));
        assert_eq!(levels, [show, hide, show, show, last, hide]);
    }

    #[test]
    fn locked_memory_excess_counts_pinned_pages_and_respects_the_privilege() {
        let status = "Name:\tx\nVmLck:\t      64 kB\nVmPin:\t      40 kB\nCapEff:\t0000000000000400\n";
        let locked = LockedMemory::from(status, Some(64 * 1024), PAGE);
        assert_eq!(locked, LockedMemory { pinned: 40 * 1024, allowed: Some(64 * 1024), page: PAGE });
        // 24 KiB are left, which are six pages. An unaligned region of this length touches seven.
        assert_eq!(locked.excess_of(Region { address: 2 * PAGE, length: 6 * PAGE }), None);
        assert_eq!(locked.excess_of(Region { address: 2 * PAGE + 1, length: 6 * PAGE }), Some((68 * 1024, 64 * 1024)));
        let privileged = LockedMemory::from(&status.replace("0400", "4400"), Some(0), PAGE);
        assert_eq!(privileged.excess_of(Region { address: 0, length: 1 << 40 }), None);
        assert_eq!(LockedMemory::from("", None, PAGE).excess_of(Region { address: 0, length: 1 << 40 }), None);
    }

    #[test]
    fn registration_errors_map_to_dat_errors() {
        let region = Region { address: PAGE, length: PAGE };
        let free = LockedMemory { pinned: 0, allowed: None, page: PAGE };
        let full = LockedMemory { pinned: 0, allowed: Some(0), page: PAGE };
        let (error, line) = classify(libc::ENOMEM, region, &full);
        assert_eq!(error, Error::Exhausted(Resource::Memory));
        let line = line.unwrap();
        assert!(line.contains("4096 bytes") && line.contains("allows 0") && line.contains("LimitMEMLOCK"), "{line}");
        assert_eq!(classify(libc::EPERM, region, &full).0, Error::Exhausted(Resource::Memory), "nothing may be locked");
        assert_eq!(classify(libc::ENOMEM, region, &free).0, Error::Exhausted(Resource::MemoryRegion));
        let exhausted = [libc::ENOSPC, libc::EAGAIN].map(|errno| classify(errno, region, &full).0);
        assert_eq!(exhausted, [Error::Exhausted(Resource::MemoryRegion); 2], "not a matter of the limit");
        assert_eq!(classify(libc::EFAULT, region, &full), (Error::InvalidParameter(3), None));
        assert_eq!(classify(libc::EPERM, region, &free).0, Error::PermissionDenied);
        assert_eq!(classify(libc::EACCES, region, &full).0, Error::PermissionDenied);
        assert_eq!(classify(libc::EIO, region, &free).0, Error::Internal);
    }
}
