//! Registered memory of providers that copy it themselves.

pub mod atomic;
pub mod keys;
pub mod mapping_check;
pub mod refused;
pub mod rights;
pub mod scatter_gather;
pub mod user_copy;
pub mod vma_query;
pub mod window;
