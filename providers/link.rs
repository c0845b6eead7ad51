//! How a library or program is linked so that it finds libdat by itself: `libdat.so.1` is NEEDED, its symbols are bound by
//! version. A provider's SONAME is fixed besides, and it is never unmapped. A part of build scripts; no part of any library.
//!
//! libdat itself is linked elsewhere and later, so a stub with the same names and version node stands in for it here. All stubs
//! are alike: unit tests run with whichever comes first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What has the linker keep the need for libdat, whether it sees one or not.
pub(crate) const NEEDED: [&str; 3] = ["-Wl,--no-as-needed", "-l:libdat.so.1", "-Wl,--as-needed"];

/// Where libdat's names stand, from the packages that are linked so.
const MAP: &str = "../../dat/libdat.map";

/// Has cargo link this package's library as a provider of that name.
#[allow(dead_code, reason = "programs include this file too")]
pub(crate) fn provider(soname: &str) {
    println!("cargo::rerun-if-changed=../link.rs");
    println!("cargo::rerun-if-changed=build.rs");
    find_stub();
    for argument in NEEDED.iter().chain(&["-Wl,-z,nodelete"]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}

/// Has cargo find a stub of libdat.
pub(crate) fn find_stub() {
    println!("cargo::rerun-if-changed={MAP}");
    let map = fs::read_to_string(MAP).expect("the map is there");
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| name.starts_with("dat"));
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
