//! Links the library as a provider.

fn main() {
    dapl_link::provider("libdaplsm.so.1");
}
