//! Registered memory, for providers that copy the data in software.

pub mod atomic;
pub mod keys;
pub mod mapping_check;
pub mod refused;
pub mod rights;
pub mod scatter_gather;
pub mod user_copy;
pub mod vma_query;
pub mod window;
