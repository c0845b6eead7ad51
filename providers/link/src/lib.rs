//! For build scripts: links a provider library so that it finds libdat without further set-up.
//!
//! `libdat.so.1` is NEEDED, and its symbols are bound by version. The SONAME is fixed, and the provider is never
//! unmapped. This crate is not part of any library.
//!
//! libdat itself is linked later (`cargo xtask build`), so a stub with the same names and version node is linked here.
//! All stubs are alike, so unit tests may run with the stub of any package.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Lists libdat as needed even if the linker sees no use of it.
const NEEDED: [&str; 3] = ["-Wl,--no-as-needed", "-l:libdat.so.1", "-Wl,--as-needed"];

/// Symbols of libdat, one per line.
const MAP: &str = include_str!("../../../dat/libdat.map");

/// Links this package's library as a provider with that SONAME.
///
/// # Panics
/// Where there is no C compiler.
pub fn provider(soname: &str) {
    find_stub();
    for argument in NEEDED.iter().chain(&["-Wl,-z,nodelete"]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}

/// Builds a stub of libdat in cargo's output directory.
fn find_stub() {
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
        "`{compiler}` could not link the import stub of libdat.so.1: is a C compiler installed?"
    );
}
