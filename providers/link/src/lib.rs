//! Linker options of a provider library, for its build script. This crate is not part of any library.
//!
//! The options set the SONAME, add `libdat.so.1` as a NEEDED library, bind its symbols by version, and forbid unmapping
//! the provider. So the dynamic linker finds the functions of libdat that the provider calls, whatever program loads
//! the provider.
//!
//! libdat is built later (`cargo xtask build`), so the provider is linked with a stub that has the same symbols and
//! version. Each provider package builds a stub. All stubs are the same, so unit tests can load any of them.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Makes libdat a NEEDED library even if the linker finds no reference to it.
const NEEDED: [&str; 3] = ["-Wl,--no-as-needed", "-l:libdat.so.1", "-Wl,--as-needed"];

/// The version script of libdat, which names one symbol per line.
const MAP: &str = include_str!("../../../dat/libdat.map");

/// Makes cargo link this package's library as a provider with that SONAME.
///
/// # Panics
/// If the C compiler is missing or fails.
pub fn provider(soname: &str) {
    build_stub();
    for argument in NEEDED.iter().chain(&["-Wl,-z,nodelete"]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}

/// Builds a stub of libdat in cargo's output directory, and adds this directory to the linker's search path.
fn build_stub() {
    println!("cargo::rerun-if-changed=build.rs");
    let names = MAP.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| name.starts_with("dat"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    link_stub(&out, &names.collect::<Vec<_>>());
    println!("cargo::rustc-link-search=native={}", out.display());
}

fn link_stub(out: &Path, names: &[&str]) {
    let functions: String = names.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    let map = format!("DAT_1.2 {{ global: {}; local: *; }};\n", names.join("; "));
    let (source, script) = (out.join("stub.c"), out.join("stub.map"));
    fs::write(&source, functions).expect("OUT_DIR is writable");
    fs::write(&script, map).expect("OUT_DIR is writable");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libdat.so.1"])
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg("-o")
        .arg(out.join("libdat.so.1"))
        .arg(&source)
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "`{compiler}` cannot link the stub of libdat.so.1: install a C compiler, or set CC to one"
    );
}
