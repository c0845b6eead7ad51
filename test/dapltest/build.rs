//! Links the program against `libdat.so.1`. Installed, it looks for it in `../lib`, unless it is for a package: then only where
//! the system has libraries. Unit tests run with the stub, and call nothing of it.

use std::env;

/// It is for a package.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    dapl_link::programs(if env::var_os(PACKAGED).is_some() { &[] } else { &["-Wl,-rpath,$ORIGIN/../lib"] });
}
