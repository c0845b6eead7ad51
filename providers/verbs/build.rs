//! Links the library as a provider.

fn main() {
    dapl_link::provider("libdaplverbs.so.1");
}
