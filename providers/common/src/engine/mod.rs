//! The engine thread of a provider: its job queue.

pub mod queue;
