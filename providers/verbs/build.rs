//! Links the library as a provider, where it is one: see `providers/link.rs`.

#[path = "../link.rs"]
mod link;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_RDMA_CORE").is_none() {
        println!(
            "cargo::warning=libdaplverbs.so.1 is left out: its feature rdma-core is off (it needs rdma-core's development packages)"
        );
        return;
    }
    link::provider("libdaplverbs.so.1");
}
