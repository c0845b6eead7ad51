//! One word for the linker: the provider inside brings a `dat_provider_init` of its own, and the first one, ours, is meant.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,muldefs");
}
