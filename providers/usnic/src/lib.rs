//! `libdaplusnic.so.1`: the uDAPL provider over UDP, for hosts without RDMA hardware.
//!
//! `proto` is the whole protocol, without I/O, clock, threads or unsafe code.

mod proto;
