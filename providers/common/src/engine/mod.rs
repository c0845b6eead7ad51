//! The job queue of a provider's engine thread.

pub mod queue;
