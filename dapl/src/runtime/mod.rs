//! Services for the objects, such as handles, locks, threads, deadlines, waiting, the logger, and locks across `fork`.
//!
//! Only `fork` imports modules of upper layers, because it acquires their static locks.

pub mod address_ranges;
pub mod cancel;
pub mod consumer_memory;
pub mod descriptor;
pub mod empty_check;
pub(crate) mod fork;
pub mod handle;
pub mod hazard;
pub mod logger;
pub mod mappings;
pub mod pooled;
pub(crate) mod shared_cpu;
pub mod slot_queue;
pub(crate) mod spin;
pub mod sync;
pub mod thread;
pub mod timer;
pub mod wait;
