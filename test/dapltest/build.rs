//! Sets where the program searches `libdat.so.1`, which it opens at start: in `../lib`, or for a package only in the system's
//! library path.

/// It is for a package.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    if std::env::var_os(PACKAGED).is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
    }
}
