//! Lets the program find `libdat.so.1` in `../lib` beside its own directory. In a package build it sets no path, so the
//! program finds only the system's library.

/// Variable that is set for a package build.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    if std::env::var_os(PACKAGED).is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
    }
}
