//! Checks of this host: versions, the registry and its adapters, variables without effect, shared memory, cross-memory
//! copy, limits, socket buffers, network interfaces, the UDP port of usnic, RDMA devices.
//!
//! Reads `/proc`, `/sys` and limits, and tries harmless operations: it opens adapters in child processes, copies
//! memory, binds a port, opens device nodes. Pure functions compute most findings from the data that were read, so that
//! tests can pass data of other machines.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use dat_settings::{SM, USNIC};
use rustix::process::{Resource, getrlimit};

use super::{Finding, Grade, in_effect};
use crate::adapter;
use crate::options::Options;
use crate::registry::{Registry, ReportedEntry};
use crate::settings::IneffectiveVariable;
use crate::system;

/// Free space in bytes in the base directory of sm (`/dev/shm` by default), below which a warning is shown. sm has only
/// small files there, because its shared areas are memfds. The rest is for shared memory of the application.
const SHARED_MEMORY: u64 = 64 << 20;
/// Minimum limit of open files: enough for a program with about a hundred connections.
const FILES: u64 = 1024;
/// Bit number of the capability to lock memory without a limit (`linux/capability.h`).
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn check_host(options: &Options, need: u64, port: u16, findings: &mut Vec<Finding>) {
    versions(findings);
    registry(options, findings);
    variables(findings);
    shared_memory(findings);
    copies(findings);
    limits(need, findings);
    sockets(findings);
    interfaces(findings);
    findings.push(port_finding(port));
    devices(Path::new("/sys/class/infiniband"), Path::new("/dev/infiniband"), findings);
}

fn versions(findings: &mut Vec<Finding>) {
    let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    findings.push(Finding::note("versions", format!("datinfo {}, Linux {kernel}", env!("CARGO_PKG_VERSION"))));
}

/// Reports which libdat is used, files that cannot be read, invalid lines, entries for other versions of DAT, and for
/// each adapter whether it opens.
fn registry(options: &Options, findings: &mut Vec<Finding>) {
    let registry = match Registry::read(options, None) {
        Ok(registry) => registry,
        Err(error) => {
            let remedy = "install libdat1, or name it with --libdat or LD_LIBRARY_PATH";
            return findings.push(Finding::bad("libdat", error.trim_end(), remedy));
        }
    };
    let version = registry.version.as_deref().unwrap_or("of another project");
    findings.push(Finding::good("libdat", format!("{} {version}", registry.files.join(", "))));
    for trouble in &registry.unreadable {
        findings.push(Finding::bad("registry", trouble, "permit this user to read it, or correct its name"));
    }
    if registry.diagnostics.iter().any(|diagnostic| diagnostic.is_dropped) {
        let remedy = "datinfo check explains them";
        findings.push(Finding::warning("registry", "dat.conf has invalid lines", remedy));
    }
    let (entries, others) = registry.openable(options);
    findings.extend(others.map(|others| Finding::note("registry", others)));
    if options.api.major == 1 {
        libdat2(&registry.entries, findings);
    }
    let opened = adapter::open_all(options, &entries);
    for (entry, opened) in entries.iter().zip(&opened) {
        findings.push(match opened {
            adapter::OpenResult::Yes(_, None) => Finding::good("adapter", format!("{} opens", entry.name)),
            adapter::OpenResult::Yes(_, Some(why)) => {
                Finding::warning("adapter", format!("{} opens, but {why}", entry.name), "")
            }
            adapter::OpenResult::No(reason) => {
                let found = format!("{} does not open: {}", entry.name, reason.cause);
                Finding::warning("adapter", found, &reason.remedy)
            }
        });
    }
    if !opened.iter().any(adapter::OpenResult::is_open) {
        let remedy = "datinfo discover prints lines for the devices of this machine";
        findings.push(Finding::bad("registry", "no adapter opens", remedy));
    }
}

/// Reports for each library in lines for DAT 2.0 whether it exists.
fn libdat2(entries: &[ReportedEntry], findings: &mut Vec<Finding>) {
    let about = "DAT 2.0";
    let mut libraries: BTreeMap<&str, (usize, Option<&str>)> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.api().is_some_and(|(major, _)| major == 2)) {
        let (lines, file) = libraries.entry(&entry.library).or_default();
        *lines += 1;
        *file = entry.file.as_deref();
    }
    for (library, (lines, file)) in &libraries {
        let lines = if *lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
        let found = format!("{library}, named in {lines} of dat.conf, ");
        findings.push(match file {
            Some("") => Finding::new(Grade::Note, about, found + "does not exist", "install it to use these names"),
            Some(file) => Finding::note(about, format!("{found}is {file}{}", linked(Path::new(file)))),
            None => Finding::note(about, found + "is not searched by this libdat"),
        });
    }
}

/// Text that names a symbolic link's target; empty if the file is not a link, or if its target has the same file name.
fn linked(file: &Path) -> String {
    let target = fs::read_link(file).ok().filter(|target| target.file_name() != file.file_name());
    target.map_or(String::new(), |target| format!(", a link to {}", target.display()))
}

/// Reports variables that are set but have no effect.
fn variables(findings: &mut Vec<Finding>) {
    for idle in IneffectiveVariable::all() {
        let found = format!("{} is set and has no effect", idle.name);
        findings.push(Finding::warning("variables", found, idle.remedy()));
    }
}

fn shared_memory(findings: &mut Vec<Finding>) {
    let directory = SM.named("dir").and_then(|setting| std::env::var(setting.variable).ok());
    let directory = directory.filter(|text| !text.is_empty()).unwrap_or_else(|| "/dev/shm".to_owned());
    findings.extend(base_directory(Path::new(&directory)));
}

/// Checks a base directory. If it is missing, its nearest existing ancestor is checked, because the providers create
/// the directory.
fn base_directory(directory: &Path) -> Vec<Finding> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let shown = existing.display().to_string();
    let mut findings = vec![match rustix::fs::statvfs(existing) {
        Err(error) => Finding::bad(
            "shared memory",
            format!("{shown}: {error}"),
            "mount a tmpfs there, or set DAPL_DIR to a directory of your own on one",
        ),
        Ok(found) => space(&shown, found.f_bavail.saturating_mul(found.f_frsize)),
    }];
    let may_write = rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_ok();
    if !may_write {
        let found = format!("{shown} is not writable by this user");
        let remedy = "chmod 1777 /dev/shm, or set DAPL_DIR to a directory of your own (mode 0700) on a tmpfs";
        findings.push(Finding::bad("shared memory", found, remedy));
    }
    findings
}

fn space(directory: &str, free: u64) -> Finding {
    let found = format!("{directory} has {} MiB free", free >> 20);
    match free >= SHARED_MEMORY {
        true => Finding::good("shared memory", found),
        false => Finding::warning(
            "shared memory",
            found,
            format!(
                "at least {} MiB: mount -o remount,size=... {directory} (in a container: --shm-size)",
                SHARED_MEMORY >> 20
            ),
        ),
    }
}

/// Checks cross-memory copy: whether the kernel supports it, and permits it between processes of one user.
fn copies(findings: &mut Vec<Finding>) {
    let word = 1_u64;
    let tried = system::read_process_memory(std::process::id() as i32, (&raw const word) as usize);
    let seccomp = status_field("Seccomp", 10);
    let scope = read("/proc/sys/kernel/yama/ptrace_scope").and_then(|text| text.parse().ok());
    findings.push(copy_finding(tried.map(drop).map_err(|error| error.to_string()), seccomp, scope));
}

fn copy_finding(tried: Result<(), String>, seccomp: u64, scope: Option<u32>) -> Finding {
    let about = "cross-memory copy";
    let slower = "sm works without it: it copies through shared buffers";
    if let Err(error) = tried {
        let why = if seccomp == 2 { ", under a seccomp filter" } else { "" };
        let remedy = format!(
            "permit process_vm_readv and process_vm_writev in the seccomp filter (containers: SYS_PTRACE), or use a \
             kernel with CONFIG_CROSS_MEMORY_ATTACH; {slower}"
        );
        return Finding::warning(about, format!("refused{why}: {error}"), remedy);
    }
    match scope {
        None | Some(0) => Finding::good(about, "works between processes of this user"),
        Some(1) => Finding::warning(
            about,
            "Yama's ptrace_scope is 1: a process may copy only from processes that permit it",
            format!("DAPL_SM_CMA=open in the programs, or sysctl kernel.yama.ptrace_scope=0; {slower}"),
        ),
        Some(3) => Finding::warning(
            about,
            "Yama's ptrace_scope is 3: no process may copy",
            format!("reboot with a lower value: the kernel does not allow lowering 3; {slower}"),
        ),
        Some(scope) => Finding::warning(
            about,
            format!("Yama's ptrace_scope is {scope}: a process without CAP_SYS_PTRACE may not copy"),
            format!("sysctl kernel.yama.ptrace_scope=0; {slower}"),
        ),
    }
}

fn limits(need: u64, findings: &mut Vec<Finding>) {
    let has_devices = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    let may_lock = status_field("CapEff", 16) >> CAP_IPC_LOCK & 1 == 1;
    findings.push(memlock(getrlimit(Resource::Memlock).current, need, may_lock, has_devices));
    let files = getrlimit(Resource::Nofile).current;
    findings.push(match files {
        Some(files) if files < FILES => {
            Finding::warning("open files", format!("{files} at most"), format!("ulimit -n {FILES} or more"))
        }
        files => {
            Finding::good("open files", files.map_or("without limit".to_owned(), |files| format!("{files} at most")))
        }
    });
}

/// Compares the limit of locked memory with `need`. `may_lock`: the process has `CAP_IPC_LOCK`.
fn memlock(limit: Option<u64>, need: u64, may_lock: bool, has_devices: bool) -> Finding {
    let about = "locked memory";
    match limit {
        Some(limit) if limit < need && !may_lock => {
            let found = format!("{limit} bytes may be locked, verbs programs need {need} (--need)");
            let remedy = format!(
                "ulimit -l {} (LimitMEMLOCK= of a service, /etc/security/limits.d for logins)",
                need.div_ceil(1024)
            );
            // Only the verbs provider locks registered memory.
            let grade = if has_devices { Grade::Bad } else { Grade::Note };
            Finding::new(grade, about, found, remedy)
        }
        Some(limit) if limit < need => {
            Finding::good(about, format!("{limit} bytes, not enforced because of CAP_IPC_LOCK"))
        }
        Some(limit) => Finding::good(about, format!("{limit} bytes, verbs programs need {need} (--need)")),
        None => Finding::good(about, "without limit"),
    }
}

fn sockets(findings: &mut Vec<Finding>) {
    let buffer = in_effect(&USNIC, "buffer");
    // usnic requests a send buffer of half the size of the receive buffer.
    for (sysctl, wanted) in [("rmem_max", buffer), ("wmem_max", buffer / 2)] {
        let ceiling = read(&format!("/proc/sys/net/core/{sysctl}")).and_then(|text| text.parse().ok());
        findings.push(ceiling_finding(sysctl, ceiling, wanted));
    }
}

fn ceiling_finding(sysctl: &str, ceiling: Option<u64>, wanted: u64) -> Finding {
    let about = "socket buffers";
    match ceiling {
        None => Finding::note(about, format!("net.core.{sysctl} cannot be read")),
        Some(ceiling) if ceiling >= wanted => Finding::good(about, format!("net.core.{sysctl} is {ceiling}")),
        Some(ceiling) => Finding::warning(
            about,
            format!("net.core.{sysctl} is {ceiling}, usnic requests {wanted}"),
            format!("sysctl -w net.core.{sysctl}={wanted}"),
        ),
    }
}

fn interfaces(findings: &mut Vec<Finding>) {
    for name in sorted(Path::new("/sys/class/net")) {
        let file = |file: &str| read(&format!("/sys/class/net/{name}/{file}"));
        let (Some(mtu), Some(state)) = (file("mtu"), file("operstate")) else { continue };
        findings.push(Finding::note("interface", format!("{}: state {state}, MTU {mtu}", name.escape_debug())));
    }
}

/// Checks whether usnic could listen on the port. Over usnic, processes of one user share a port, and a process of
/// another user cannot use it.
fn port_finding(port: u16) -> Finding {
    match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Finding::good("UDP port", format!("{port} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Finding::note(
            "UDP port",
            format!(
                "{port} is in use. If a usnic program of this user uses it, other programs of this user share it; \
                 otherwise set another port with DAPL_USNIC_PORT, the same on all hosts"
            ),
        ),
        Err(error) => {
            let remedy = "choose another with DAPL_USNIC_PORT, the same on all hosts";
            Finding::warning("UDP port", format!("{port}: {error}"), remedy)
        }
    }
}

/// Checks the RDMA devices: device nodes, port states and GIDs.
fn devices(class: &Path, nodes: &Path, findings: &mut Vec<Finding>) {
    let about = "RDMA device";
    let names = sorted(class);
    if names.is_empty() {
        findings.push(Finding::note(about, "none; sm and usnic need none"));
        return;
    }
    let mut wanted = vec!["rdma_cm".to_owned()];
    for device in &names {
        let verbs = class.join(device).join("device/infiniband_verbs");
        match sorted(&verbs).first() {
            Some(node) => wanted.push(node.clone()),
            None => findings.push(Finding::bad(about, format!("{device} has no verbs device"), "modprobe ib_uverbs")),
        }
        for port in sorted(&class.join(device).join("ports")) {
            findings.push(port_of_device(device, &port, &class.join(device).join("ports").join(&port)));
        }
    }
    for node in wanted {
        let path = nodes.join(&node);
        findings.push(match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) => Finding::good(about, format!("{} opens", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let module = if node == "rdma_cm" { "rdma_ucm" } else { "ib_uverbs" };
                Finding::bad(about, format!("{} is missing", path.display()), format!("modprobe {module}"))
            }
            Err(error) => {
                let remedy =
                    format!("chmod 0666 {0}, or a udev rule that does (in a container: --device {0})", path.display());
                Finding::bad(about, format!("{}: {error}", path.display()), remedy)
            }
        });
    }
}

fn port_of_device(device: &str, port: &str, path: &Path) -> Finding {
    let about = "RDMA port";
    let state = fs::read_to_string(path.join("state")).unwrap_or_default();
    let is_active = state.contains("ACTIVE");
    let gids = sorted(&path.join("gids"));
    let is_set = |text: &str| text.chars().any(|c| !matches!(c, '0' | ':' | '\n'));
    let set = gids.iter().filter(|gid| fs::read_to_string(path.join("gids").join(gid)).is_ok_and(|text| is_set(&text)));
    match (is_active, set.count()) {
        (false, _) => Finding::bad(
            about,
            format!("{device} port {port} is {}", state.trim()),
            "bring its link up (ip link set ... up; on InfiniBand a subnet manager must run)",
        ),
        (true, 0) => Finding::bad(
            about,
            format!("{device} port {port} has no GID"),
            "give its network device an address (rdma link shows which)",
        ),
        (true, count) => Finding::good(about, format!("{device} port {port} is active, {count} GIDs")),
    }
}

fn sorted(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Reads a field of `/proc/self/status`, a number with this radix. Returns 0 if there is no such field.
fn status_field(name: &str, radix: u32) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.and_then(|text| u64::from_str_radix(text.trim(), radix).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
