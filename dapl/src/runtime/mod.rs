//! What the objects run on: handles, locks, threads, deadlines, waiting, the logger, fork.
//!
//! Only `fork` knows what lies above: it prepares every part of the library for a fork.

pub mod cancel;
pub mod consumer_memory;
pub(crate) mod fork;
pub mod handle;
pub mod logger;
pub mod mappings;
pub(crate) mod spin;
pub mod sync;
pub mod thread;
pub mod timer;
pub mod wait;
