//! A linker option: the wrapped provider has a `dat_provider_init` of its own, and the wrapper's must come first.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,muldefs");
}
