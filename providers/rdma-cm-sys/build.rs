//! Links librdmacm, where the declarations are wanted.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_RDMA_CORE").is_some() {
        println!("cargo::rustc-link-lib=rdmacm");
    }
}
