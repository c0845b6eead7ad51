//! Links the provider as a library that finds libdat by itself: `libdat.so.1` is NEEDED, its symbols are bound by version,
//! the SONAME is fixed, and the library is never unmapped.
//!
//! libdat itself is linked elsewhere and later, so a stub with the same names and version node stands in for it here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What a provider wants from libdat.
const IMPORTS: [&str; 3] = ["dat_registry_add_provider", "dat_registry_remove_provider", "dats_get_ia_handle"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    link_stub(&out);
    println!("cargo::rustc-link-search=native={}", out.display());
    for argument in ["-Wl,--no-as-needed", "-l:libdat.so.1", "-Wl,--as-needed", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdaplusnic.so.1");
}

fn link_stub(out: &Path) {
    let functions: String = IMPORTS.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    let map = format!("DAT_1.2 {{ global: {}; local: *; }};\n", IMPORTS.join("; "));
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
        status.is_ok_and(|s| s.success()),
        "`{compiler}` could not link the import stub of libdat.so.1: is a C compiler installed?"
    );
}
