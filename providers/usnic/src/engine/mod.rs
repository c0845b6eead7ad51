//! The engine of an IA: its thread, its job queue, and the passes over all connections.

pub(crate) mod jobs;
pub(crate) mod polling;
pub(crate) mod progress;
mod thread;

pub(crate) use thread::Engine;
