//! `libdaplusnic.so.1`: the uDAPL provider over UDP, for hosts without RDMA hardware.
//!
//! `proto` is the whole protocol, without I/O, clock, threads or unsafe code. `net` has the sockets. An open IA is a `device`: a
//! `table` of connections by number, of which each is a queue pair behind the trait of `pair`; a pass over all of them
//! (`progress`), made by whoever polls, or by the `engine` with its `bell`, as `polling` decides; and the `setups`.

mod bell;
mod device;
mod engine;
mod knobs;
mod net;
mod pair;
mod polling;
mod progress;
mod proto;
mod setups;
mod table;
