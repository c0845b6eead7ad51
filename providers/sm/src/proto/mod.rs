//! The protocol between two processes as pure logic: it takes bytes and returns decisions.
//!
//! No I/O, clock, thread or shared memory: the calling modules read each field once and pass the copy. Data of a peer
//! are untrusted until these checks have passed.

pub(crate) mod handshake;
pub(crate) mod liveness;
pub(crate) mod machine;
pub(crate) mod message;
pub(crate) mod offer;
pub(crate) mod reassembly;
