//! Links the library as a provider.

fn main() {
    dapl_link::provider("libdaplusnic.so.1");
}
