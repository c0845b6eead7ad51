//! Links the program against `libdat.so.1`: see `providers/link.rs`. Installed, it looks for it in `../lib`, unless it is for a
//! package: then only where the system has libraries. Unit tests run with the stub, and call nothing of it.

use std::env;

#[path = "../../providers/link.rs"]
mod link;

/// It is for a package.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-changed=../../providers/link.rs");
    println!("cargo::rerun-if-changed=build.rs");
    link::find_stub();
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    let rpath: &[&str] = if env::var_os(PACKAGED).is_some() { &[] } else { &["-Wl,-rpath,$ORIGIN/../lib"] };
    for argument in link::NEEDED.iter().chain(rpath) {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
