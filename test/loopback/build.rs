//! Build script: sets the linker options of a provider library.

fn main() {
    dapl_link::provider("libdaplloopback.so.1");
}
