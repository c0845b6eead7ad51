//! Stands for memory in loom's models: loom reports two concurrent accesses, unless both only read.
//!
//! Exists under `cfg(loom)` only, and holds no data.

use loom::cell::UnsafeCell;

/// A piece of memory without content.
pub struct AccessCheck(UnsafeCell<()>);

// SAFETY: there is no data; loom checks the accesses.
unsafe impl Sync for AccessCheck {}

impl Default for AccessCheck {
    fn default() -> Self {
        AccessCheck(UnsafeCell::new(()))
    }
}

impl AccessCheck {
    /// A read access.
    pub fn read(&self) {
        self.0.with(|_| ());
    }

    /// A write access, or the end of the memory.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
