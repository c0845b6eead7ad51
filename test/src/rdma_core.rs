//! Whether libdaplverbs.so.1 can be built here, and if not, what is missing: rdma-core's development packages, and what the
//! package `ibverbs-sys` makes its declarations with.
//!
//! Everything that builds asks here, so that all of it leaves the provider out or none does. Looks, and installs nothing.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The provider's package.
pub const PACKAGE: &str = "daplverbs";
/// What cargo is told to build it; without, it is an empty library.
pub const FEATURES: [&str; 2] = ["--features", "daplverbs/rdma-core"];

/// A package, as Debian calls it, and whether what it brings is there.
type Need = (&'static str, fn() -> bool);

/// What the system must bring besides a C compiler. Less does not do: it was tried on a system with nothing else.
const NEEDS: [Need; 7] = [
    // ibverbs-sys configures a copy of rdma-core to get its headers, which asks for these four, ...
    ("cmake", || is_program("cmake")),
    ("make", || is_program("make") || is_program("gmake")),
    ("pkg-config", || is_program("pkg-config") || is_program("pkgconf")),
    ("python3-minimal", || is_program("python3")),
    // ... and reads them with bindgen.
    ("libclang-dev", has_libclang),
    // The provider is linked with these, and the second's declarations are held against its header.
    ("libibverbs-dev", || compiles("infiniband/verbs.h") && is_library("libibverbs.so")),
    ("librdmacm-dev", || compiles("rdma/rdma_cma.h") && is_library("librdmacm.so")),
];

/// Whether the provider can be built here.
pub fn has_rdma_core() -> bool {
    // What is there stays there.
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_none() && missing_packages().is_empty() {
        let _ = FOUND.set(());
    }
    FOUND.get().is_some()
}

/// What would have to be installed for it.
pub fn missing_packages() -> Vec<&'static str> {
    NEEDS.iter().filter(|(_, is_there)| !is_there()).map(|(package, _)| *package).collect()
}

/// Whether a shell would find it.
pub fn is_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| {
        let file = fs::metadata(directory.join(name));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

/// The library, and the headers that belong to it: without `stddef.h` it reads no other header.
fn has_libclang() -> bool {
    let mut places: Vec<PathBuf> = env::var_os("LIBCLANG_PATH").map(PathBuf::from).into_iter().collect();
    for root in ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(Path::new) {
        places.push(root.to_owned());
        // /usr/lib/x86_64-linux-gnu, /usr/lib/llvm-14/lib
        for below in directories(root) {
            places.push(below.join("lib"));
            places.push(below);
        }
    }
    let has_library = |place: &PathBuf| names(place).iter().any(|name| is_libclang(name));
    let has_headers = |place: &PathBuf| {
        directories(&place.join("clang")).iter().any(|version| version.join("include/stddef.h").exists())
    };
    places.iter().any(has_library) && (places.iter().any(has_headers) || is_program("clang"))
}

/// `libclang.so`, `libclang-14.so.1`; not `libclang-cpp.so.14`, which is another.
fn is_libclang(name: &str) -> bool {
    let rest = name.strip_prefix("libclang").unwrap_or_default();
    rest.starts_with(".so") || rest.starts_with('-') && !rest.starts_with("-cpp") && rest.contains(".so")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn directories(below: &Path) -> Vec<PathBuf> {
    names(below).into_iter().map(|name| below.join(name)).filter(|path| path.is_dir()).collect()
}

fn compiler() -> Command {
    Command::new(env::var_os("CC").as_deref().unwrap_or(OsStr::new("cc")))
}

/// Whether the compiler finds a header, and all that it includes.
fn compiles(header: &str) -> bool {
    let output = compiler().args(["-fsyntax-only", "-include", header, "-x", "c", "/dev/null"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether the compiler would link with it: it says the name alone when it finds nothing.
fn is_library(file: &str) -> bool {
    let output = compiler().arg(format!("-print-file-name={file}")).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libclang() {
        let known = ["libclang.so", "libclang.so.1", "libclang-14.so.1", "libclang-14.so.14.0.6"];
        assert!(known.iter().all(|name| is_libclang(name)));
        let others = ["libclang-cpp.so.14", "libclang-cpp.so", "libclangBasic.a", "libclang", "liblang.so"];
        assert!(!others.iter().any(|name| is_libclang(name)));
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        assert!(compiles("stdio.h") && is_library("libc.so.6") && is_program("sh"));
        assert!(!compiles("rdma/no_such_header.h") && !is_library("libnosuch.so") && !is_program("no-such-program"));
    }
}
