//! A Debian kernel for the guest, with the required modules: downloaded and unpacked once into the target directory.
//!
//! The kernel is not installed on this machine. The kernel, the modules in load order, and busybox are kept; the rest
//! of the packages is deleted.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cpio::Archive;
use crate::quiet::{run_quietly, text_of};
use crate::{Result, setup};

/// Metapackage that depends on the current kernel.
const METAPACKAGE: &str = "linux-image-amd64";
/// Package of busybox, the only program in the initial file system.
const BUSYBOX: &str = "busybox-static";
/// Name prefixes of a kernel's packages. Its other dependencies are for booting from disk.
const PACKAGES: [&str; 2] = ["linux-image-", "linux-modules-"];

/// Modules that a guest requires. Some kernels have some of them built in.
const REQUIRED_MODULES: [&str; 17] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "ib_core",
    "ib_uverbs",
    "rdma_cm",
    "rdma_ucm",
    "rdma_rxe",
    "dummy",
    "virtio_net",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "act_gact",
    "udp_tunnel",
];
/// Modules that are loaded if the kernel has them. rxe requests a checksum algorithm (the first two) by name, and fails
/// with "failed to add" without it. Newer kernels have it built in.
const OPTIONAL_MODULES: [&str; 3] = ["crc32_generic", "crc32_pclmul", "ip6_udp_tunnel"];

/// Files from which a guest boots.
pub(super) struct Kernel {
    place: PathBuf,
}

impl Kernel {
    /// Returns the kernel in `place`. If it is missing or has other modules, downloads and unpacks it there.
    pub(super) fn find(place: &Path) -> Result<Self> {
        let kernel = Kernel { place: place.to_path_buf() };
        if fs::read_to_string(place.join("for")).is_ok_and(|text| text == purpose()) {
            return Ok(kernel);
        }
        let fresh = place.with_extension(format!("fresh-{}", std::process::id()));
        let made = make(&fresh).and_then(|()| settle(&fresh, place));
        // Remove the files of a failed build.
        let _ = fs::remove_dir_all(&fresh);
        made.map(|()| kernel)
    }

    /// Path of the kernel image.
    pub(super) fn image(&self) -> PathBuf {
        self.place.join("vmlinuz")
    }

    /// Returns the initial file system: busybox, the modules, and the files `init` and `guest.conf` with these texts.
    pub(super) fn initramfs(&self, init: &str, conf: &str) -> Result<Vec<u8>> {
        let read = |path: PathBuf| fs::read(&path).map_err(|error| format!("{}: {error}", path.display()));
        let mut archive = Archive::new();
        archive.folder("bin");
        archive.folder("modules");
        archive.file("bin/busybox", &read(self.place.join("busybox"))?);
        archive.file("init", init.as_bytes());
        archive.file("guest.conf", conf.as_bytes());
        let order = read(self.place.join("order"))?;
        archive.file("order", &order);
        for name in String::from_utf8_lossy(&order).lines() {
            archive.file(&format!("modules/{name}"), &read(self.place.join(name))?);
        }
        Ok(archive.finish())
    }
}

/// Text of the file `for` of an unpacked kernel: the modules. A kernel whose file has another text is replaced.
fn purpose() -> String {
    format!("{} {}\n", REQUIRED_MODULES.join(" "), OPTIONAL_MODULES.join(" "))
}

fn make(fresh: &Path) -> Result {
    let root = fresh.join("root");
    fs::create_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    eprintln!("xtask: fetching {METAPACKAGE} and {BUSYBOX} for the guest");
    let mut packages = match kernel_packages() {
        Ok(packages) => packages,
        Err(_) => setup::update().and_then(|()| kernel_packages())?,
    };
    packages.push(BUSYBOX.to_owned());
    if download(fresh, &packages).is_err() {
        // The download also fails if the local package lists are older than the archive.
        setup::update()?;
        download(fresh, &packages)?;
    }
    for package in list(fresh)?.iter().filter(|path| path.extension().is_some_and(|kind| kind == "deb")) {
        text_of(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
    }
    take(&root, fresh)?;
    fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    for package in list(fresh)?.iter().filter(|path| path.extension().is_some_and(|kind| kind == "deb")) {
        fs::remove_file(package).map_err(|error| format!("{}: {error}", package.display()))?;
    }
    fs::write(fresh.join("for"), purpose()).map_err(|error| error.to_string())
}

/// Moves the result to its final path. Another process may have put the same files there already.
fn settle(fresh: &Path, place: &Path) -> Result {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(format!("{}: {error}", place.display())),
        _ => {}
    }
    match fs::rename(fresh, place) {
        Err(_) if place.join("for").exists() => Ok(()),
        result => result.map_err(|error| format!("{}: {error}", place.display())),
    }
}

/// Returns the packages of the current kernel, on which the metapackage depends.
fn kernel_packages() -> Result<Vec<String>> {
    let mut found = vec![METAPACKAGE.to_owned()];
    let mut at = 0;
    while let Some(package) = found.get(at) {
        let text = text_of(Command::new("apt-cache").args(["depends", package]).env("LC_ALL", "C"))?;
        for name in dependencies(&text) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
        at += 1;
    }
    match found.len() {
        1 => Err(format!("apt-cache lists no kernel package on which {METAPACKAGE} depends")),
        _ => Ok(found.split_off(1)),
    }
}

/// Returns the kernel's packages among the dependencies in the output of apt-cache.
fn dependencies(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.filter(|name| PACKAGES.iter().any(|start| name.starts_with(start))).map(str::to_owned).collect()
}

fn download(place: &Path, packages: &[String]) -> Result {
    let mut apt = Command::new("apt-get");
    text_of(apt.args(["-qq", "download"]).args(packages).current_dir(place)).map(drop)
}

/// Extracts the kernel, its modules and busybox from the packages.
fn take(root: &Path, place: &Path) -> Result {
    // The modules are in lib in older packages, and in usr/lib in newer ones.
    let base = [root.to_path_buf(), root.join("usr")].into_iter().find(|base| base.join("lib/modules").is_dir());
    let base = base.ok_or("the kernel's package contains no modules")?;
    let modules = list(&base.join("lib/modules"))?.pop().ok_or("the kernel's package contains no modules")?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    copy(&root.join("boot").join(format!("vmlinuz-{release}")), &place.join("vmlinuz"))?;
    let busybox = [root.join("bin/busybox"), root.join("usr/bin/busybox")].into_iter().find(|path| path.exists());
    copy(&busybox.ok_or("the package of busybox contains no program busybox")?, &place.join("busybox"))?;

    text_of(Command::new(setup::DEPMOD_PATH).arg("-b").arg(&base).arg(&release))?;
    let read = |name: &str| fs::read_to_string(modules.join(name)).map_err(|error| format!("{name}: {error}"));
    let mut order = String::new();
    for path in load_order(&read("modules.dep")?, &read("modules.builtin")?)? {
        let from = modules.join(path);
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let plain = name.find(".ko").map_or(&*name, |at| &name[..at + ".ko".len()]);
        match name.rsplit('.').next() {
            Some("xz") => unpack("xz", &from, &place.join(plain))?,
            Some("zst") => unpack("zstd", &from, &place.join(plain))?,
            _ => copy(&from, &place.join(plain))?,
        }
        order += &format!("{plain}\n");
    }
    fs::write(place.join("order"), order).map_err(|error| error.to_string())
}

/// Paths of the modules, each after its dependencies.
fn load_order<'a>(dependencies: &'a str, builtin: &str) -> Result<Vec<&'a str>> {
    let rules = dependencies.lines().filter_map(|line| line.split_once(':'));
    let rules: BTreeMap<String, (&str, &str)> = rules.map(|(path, rest)| (name_of(path), (path, rest))).collect();
    let inside: Vec<String> = builtin.lines().map(name_of).collect();
    let mut order = Vec::new();
    // The optional modules come first: the checksum modules among them must be loaded before rxe.
    for name in OPTIONAL_MODULES.iter().chain(&REQUIRED_MODULES) {
        if rules.contains_key(*name) {
            load(name, &rules, &mut order);
        } else if REQUIRED_MODULES.contains(name) && !inside.iter().any(|module| module == name) {
            return Err(format!("the kernel has no module {name}"));
        }
    }
    Ok(order)
}

fn load<'a>(name: &str, rules: &BTreeMap<String, (&'a str, &'a str)>, order: &mut Vec<&'a str>) {
    let Some((path, needs)) = rules.get(name) else { return };
    if order.contains(path) {
        return;
    }
    for need in needs.split_whitespace() {
        load(&name_of(need), rules, order);
    }
    order.push(path);
}

/// Module name of a path: `crc32_pclmul` for `kernel/arch/x86/crypto/crc32-pclmul.ko.xz`.
fn name_of(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name).replace('-', "_")
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn unpack(with: &str, from: &Path, to: &Path) -> Result {
    setup::require(&[if with == "xz" { setup::XZ } else { setup::ZSTD }])?;
    let output = run_quietly(Command::new(with).arg("-dc").arg(from))?;
    fs::write(to, output.stdout).map_err(|error| format!("{}: {error}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_modules_load_after_their_dependencies() {
        let mut rules = String::from("kernel/a/rdma_rxe.ko: kernel/b/ib-core.ko kernel/c/crc32-pclmul.ko.xz\n");
        rules += "kernel/b/ib-core.ko: kernel/c/deep.ko\nkernel/c/deep.ko:\nkernel/c/crc32-pclmul.ko.xz:\n";
        let others = REQUIRED_MODULES.iter().filter(|name| !matches!(**name, "rdma_rxe" | "ib_core"));
        let inside: String = others.map(|name| format!("kernel/{}.ko\n", name.replace('_', "-"))).collect();
        let order = load_order(&rules, &inside).unwrap();
        let expected = ["c/crc32-pclmul.ko.xz", "c/deep.ko", "b/ib-core.ko", "a/rdma_rxe.ko"];
        assert_eq!(order, expected.map(|path| format!("kernel/{path}")));
        assert!(load_order(&rules, "").unwrap_err().contains("virtio_pci"));
    }

    #[test]
    fn only_kernel_packages_are_followed_as_dependencies() {
        let text = "linux-image-6.1.0-9-amd64\n  Depends: kmod\n  Depends: linux-modules-6.1.0-9\n |Depends: initramfs-tools\n  Conflicts: linux-image-6.1.0-9-amd64-unsigned\n";
        assert_eq!(dependencies(text), ["linux-modules-6.1.0-9"]);
    }
}
