//! Sockets: what is sent and received, byte for byte, and what the kernel says of it.
//!
//! Knows no connection and no protocol, believes nothing that came, decides nothing. Never blocks.

pub(crate) mod address;
pub(crate) mod errors;
pub(crate) mod handover;
pub(crate) mod listener_dir;
pub(crate) mod receive;
pub(crate) mod reuseport;
mod route;
pub(crate) mod send;
pub(crate) mod sockaddr;
pub(crate) mod socket;
