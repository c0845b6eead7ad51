//! A provider's engine thread: the queue of its jobs.

pub mod queue;
