//! Parts for a first provider, which has no engine, no key table and no queues of its own yet: the thread that reports, completion
//! queues, registrations, work queues, and the execution of work between two queue pairs of one process.
//!
//! `test/loopback`, the template of `cargo xtask new-provider`, adds a connection manager to them. They favour short code over
//! speed: sm and usnic use other modules of this crate.

mod execute;
mod registrations;
mod reporter;
mod work_queues;

pub use execute::execute;
pub use registrations::Registrations;
pub use reporter::{Report, ReportedCq, Reporter};
pub use work_queues::{QueuedRequest, WorkQueues, flushed};
