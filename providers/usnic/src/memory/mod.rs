//! Registered memory.

pub(crate) mod regions;
