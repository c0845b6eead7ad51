//! Sockets: sending and receiving of datagrams, and delivery errors of the kernel.
//!
//! Knows neither connections nor the protocol, and trusts no received data. Never blocks.

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
