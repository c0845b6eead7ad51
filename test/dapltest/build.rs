//! Sets the search path for `libdat.so.1`, which the program opens at start: `../lib`, or in a package only the
//! system's library path.

/// Variable that is set for a package build.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    if std::env::var_os(PACKAGED).is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
    }
}
