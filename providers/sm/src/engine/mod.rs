//! The engine of an IA: its thread, its jobs, and the wake-ups that peers send to it.

pub(crate) mod jobs;
mod thread;
pub(crate) mod wake;
pub(crate) mod wake_flags;

pub(crate) use thread::Engine;
