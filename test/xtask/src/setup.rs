//! System packages: checks that required tools exist, and installs missing tools or names their packages in the
//! error.
//!
//! Installs only as root and with apt-get; otherwise the user decides.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Stdio};

use dapl_test::program::is_program;

use crate::Result;

/// A program or another file, and the Debian packages that contain it.
pub(crate) struct Tool {
    program: &'static str,
    packages: &'static [&'static str],
}

/// Links libraries and programs; compiles the C programs.
pub(crate) const CC: Tool = Tool { program: "cc", packages: &["gcc", "libc6-dev"] };
/// The headers with which the declarations of `ibverbs-sys` and `rdma-cm-sys` are compared.
pub(crate) const RDMA_HEADERS: Tool =
    Tool { program: "/usr/include/rdma/rdma_cma.h", packages: &["libibverbs-dev", "librdmacm-dev"] };
/// Compiles the C++ tests of the headers.
pub(crate) const CXX: Tool = Tool { program: "c++", packages: &["g++"] };
/// Detects memory errors.
pub(crate) const VALGRIND: Tool = Tool { program: "valgrind", packages: &["valgrind"] };
/// Builds Debian packages.
pub(crate) const DPKG_DEV: Tool = Tool { program: "dpkg-buildpackage", packages: &["dpkg-dev"] };
/// Steps of a Debian package build.
pub(crate) const DEBHELPER: Tool = Tool { program: "dh", packages: &["debhelper"] };
/// Builds RPM packages.
pub(crate) const RPMBUILD: Tool = Tool { program: "rpmbuild", packages: &["rpm"] };
/// Removes symbols from binaries.
pub(crate) const STRIP: Tool = Tool { program: "strip", packages: &["binutils"] };
/// Checks packages.
pub(crate) const LINTIAN: Tool = Tool { program: "lintian", packages: &["lintian"] };
/// Prints compiler flags.
pub(crate) const PKG_CONFIG: Tool = Tool { program: "pkg-config", packages: &["pkg-config"] };
/// Checks manual pages.
pub(crate) const MANDOC: Tool = Tool { program: "mandoc", packages: &["mandoc"] };
/// UCX's benchmark, a peer of the bench `sm`.
pub(crate) const UCX: Tool = Tool { program: "ucx_perftest", packages: &["ucx-utils"] };
/// libfabric's benchmark.
pub(crate) const FABRIC: Tool = Tool { program: "fi_pingpong", packages: &["libfabric-bin"] };
/// Pins programs to processors.
pub(crate) const TASKSET: Tool = Tool { program: "taskset", packages: &["util-linux"] };
/// Creates network namespaces and veth pairs.
pub(crate) const IP: Tool = Tool { program: "ip", packages: &["iproute2"] };
/// Drops, rejects and limits packets, and translates addresses.
pub(crate) const NFT: Tool = Tool { program: "nft", packages: &["nftables"] };
/// Turns segmentation offload of an interface off and on.
pub(crate) const ETHTOOL: Tool = Tool { program: "ethtool", packages: &["ethtool"] };
/// Measures TCP and UDP throughput.
pub(crate) const IPERF: Tool = Tool { program: "iperf3", packages: &["iperf3"] };
/// Measures latency and message rate of UDP and TCP.
pub(crate) const SOCKPERF: Tool = Tool { program: "sockperf", packages: &["sockperf"] };
/// Runs programs in namespaces.
pub(crate) const NSENTER: Tool = Tool { program: "nsenter", packages: &["util-linux"] };
/// Runs guests.
pub(crate) const QEMU: Tool = Tool { program: "qemu-system-x86_64", packages: &["qemu-system-x86"] };
/// Path of depmod, which is often not in PATH.
pub(crate) const DEPMOD_PATH: &str = "/usr/sbin/depmod";
/// Computes module dependencies.
pub(crate) const DEPMOD: Tool = Tool { program: DEPMOD_PATH, packages: &["kmod"] };
/// Starts a guest, or a program in a namespace, so that it is killed when the thread that started it ends.
pub(crate) const SETPRIV: Tool = Tool { program: "setpriv", packages: &["util-linux"] };
/// Creates soft-RoCE devices.
pub(crate) const RDMA: Tool = Tool { program: "rdma", packages: &["iproute2"] };
/// Shows RDMA devices.
pub(crate) const DEVINFO: Tool = Tool { program: "ibv_devinfo", packages: &["ibverbs-utils", "ibverbs-providers"] };
/// Measures RDMA devices.
pub(crate) const PERFTEST: Tool = Tool { program: "ib_send_lat", packages: &["perftest"] };
/// Renders web pages.
pub(crate) const CHROMIUM: Tool = Tool { program: "chromium", packages: &["chromium", "fonts-liberation"] };
/// Sends ICMP echo requests, to test whether a link works.
pub(crate) const PING: Tool = Tool { program: "ping", packages: &["iputils-ping"] };
/// Unpacks kernel modules compressed by xz.
pub(crate) const XZ: Tool = Tool { program: "xz", packages: &["xz-utils"] };
/// Unpacks kernel modules compressed by zstd.
pub(crate) const ZSTD: Tool = Tool { program: "zstd", packages: &["zstd"] };

impl Tool {
    /// A tool whose package name contains a version. The strings are leaked, since there are few.
    pub(crate) fn versioned(program: &str, package: &str) -> Self {
        let packages: Box<[&'static str]> = [&*package.to_owned().leak()].into();
        Tool { program: program.to_owned().leak(), packages: Box::leak(packages) }
    }

    fn is_there(&self) -> bool {
        is_program(self.program) || Path::new(self.program).is_file()
    }
}

/// Runs `setup`: installs the tools that plain `cargo xtask test` needs, and the RDMA headers, without which it skips a
/// suite. Other commands install their tools themselves.
pub(crate) fn run() -> Result {
    require(&[CC, CXX, VALGRIND, RDMA_HEADERS])
}

/// Checks that all tools exist, and installs missing tools if possible.
pub(crate) fn require(tools: &[Tool]) -> Result {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = missing.iter().map(|tool| tool.program).collect();
    let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages.iter().copied()).collect();
    install(&programs.join(", "), &packages)?;
    match missing.iter().find(|tool| !tool.is_there()) {
        None => Ok(()),
        Some(tool) => Err(format!("{} is still missing after apt-get install {}", tool.program, packages.join(" "))),
    }
}

/// Same as `require`, for tools without which a suite skips checks: if they cannot be installed, only prints the
/// reason.
pub(crate) fn recommend(tools: &[Tool]) {
    if let Err(reason) = require(tools) {
        eprintln!("xtask: some checks will be skipped: {reason}");
    }
}

/// Installs packages, or reports how the user can install them.
fn install(missing: &str, packages: &[&str]) -> Result {
    let wanted = packages.join(" ");
    if !is_program("apt-get") {
        return Err(format!("{missing} missing; install the Debian packages {wanted}, and try again"));
    }
    if !is_root() {
        return Err(format!("{missing} missing; run: sudo apt-get install -y {wanted}"));
    }
    eprintln!("xtask: installing {wanted}");
    // The package lists may be missing on a fresh machine. Old lists may suffice, so a failed update is ignored.
    let _ = apt(&["update"]);
    apt(&[&["install", "-y", "--no-install-recommends"], packages].concat())
}

/// Updates the package lists, or reports how the user can update them.
pub(crate) fn update() -> Result {
    match is_root() {
        true => apt(&["update"]),
        false => Err("the package lists are missing or old; run: sudo apt-get update".to_owned()),
    }
}

fn apt(arguments: &[&str]) -> Result {
    let mut apt = Command::new("apt-get");
    // Wait for another apt process.
    apt.args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
    match apt.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{apt:?}: {status}")),
        Err(error) => Err(format!("{apt:?}: {error}")),
    }
}

pub(crate) fn is_root() -> bool {
    // The fields are the real, effective, saved and filesystem uid; the effective uid decides.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}
