//! Sockets: transmission and reception of datagrams, and their delivery errors.
//!
//! These modules do not depend on connections or the protocol. They trust no received data, and never block.

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
