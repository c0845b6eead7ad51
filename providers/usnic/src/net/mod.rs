//! Sockets: transmission and reception of datagrams, and their delivery errors. Also the addresses of this host, and
//! the forwarding of connection requests between processes.
//!
//! These modules do not depend on connections or the protocol, and trust no received data. Sending and receiving
//! never block. [`listener_dir`] may wait for the lock on its directory.

pub(crate) mod address;
pub(crate) mod errors;
pub(crate) mod handover;
pub(crate) mod listener_dir;
pub(crate) mod receive;
pub(crate) mod reuseport;
mod route;
pub(crate) mod send;
pub(crate) mod short_packet;
pub(crate) mod sockaddr;
pub(crate) mod socket;
