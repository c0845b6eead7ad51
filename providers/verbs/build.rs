//! Links the library as a provider: see `providers/link.rs`.

#[path = "../link.rs"]
mod link;

fn main() {
    link::provider("libdaplverbs.so.1");
}
