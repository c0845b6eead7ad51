//! Where the program looks for `libdat.so.1`, which it opens when it starts: installed, in `../lib`, unless it is for a package: then
//! only where the system has libraries.

/// It is for a package.
const PACKAGED: &str = "XTASK_PACKAGED";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PACKAGED}");
    if std::env::var_os(PACKAGED).is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
    }
}
