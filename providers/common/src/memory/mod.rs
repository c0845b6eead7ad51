//! Registered memory, for providers that copy the data in software: keys, their table and their rights, memory windows,
//! checks whether memory is mapped, copies from and to consumer memory, atomic operations on it, and the log message
//! for refused accesses.

pub mod atomic;
pub mod keys;
pub mod mapping_check;
pub mod refused;
pub mod regions;
pub mod rights;
pub mod scatter_gather;
pub mod user_copy;
pub mod vma_query;
pub mod window;
