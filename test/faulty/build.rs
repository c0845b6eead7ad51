//! Linker option for duplicate symbols: the wrapped provider also defines `dat_provider_init`, and the wrapper's
//! definition must be used.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,muldefs");
}
