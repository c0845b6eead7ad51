//! The wire between two processes, as rules only: bytes in, decisions out.
//!
//! No I/O, no clock, no thread, no shared memory: the spaces around it read a field once and hand the copy in here. What a
//! peer wrote is believed only after these checks.

pub(crate) mod handshake;
pub(crate) mod liveness;
pub(crate) mod machine;
pub(crate) mod message;
pub(crate) mod offer;
pub(crate) mod reassembly;
