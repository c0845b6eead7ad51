//! The protocol between two processes as pure logic: it takes bytes and returns decisions.
//!
//! These modules use no I/O, clock, thread or shared memory: the calling modules read each field once and pass the
//! copy. Data from a peer is untrusted until these modules have checked it.

pub(crate) mod handshake;
pub(crate) mod liveness;
pub(crate) mod machine;
pub(crate) mod message;
pub(crate) mod offer;
pub(crate) mod reassembly;
