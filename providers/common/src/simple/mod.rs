//! Building blocks of a minimal provider that connects queue pairs of one process, such as a reporter thread,
//! listeners, completion queues, memory and queue pairs.
//!
//! `test/loopback`, the template of `cargo xtask new-provider`, uses these blocks. They favour short code over speed,
//! so sm and usnic do not use them.

mod execute;
mod listeners;
mod memory;
mod per_process;
mod qp_state;
mod registrations;
mod reporter;
mod work_queues;

pub use execute::execute;
pub use listeners::{Listener, Listeners};
pub use memory::{Memory, Mr, Pd};
pub use per_process::PerProcess;
pub use qp_state::QpState;
pub use reporter::{Report, ReportedCq, Reporter};
pub use work_queues::{QueuedRequest, WorkQueues};
