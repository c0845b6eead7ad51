//! Links the library as a provider.

fn main() {
    dapl_link::provider("libdaplloopback.so.1");
}
