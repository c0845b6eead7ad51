//! Stands for memory in loom's models: loom reports two that are at it at the same time, unless both only read.
//!
//! Exists under `cfg(loom)` only, and holds no data.

use loom::cell::UnsafeCell;

/// A piece of memory without content.
pub struct AccessCheck(UnsafeCell<()>);

// SAFETY: there is nothing to read or write; who calls when is what loom watches.
unsafe impl Sync for AccessCheck {}

impl Default for AccessCheck {
    fn default() -> Self {
        AccessCheck(UnsafeCell::new(()))
    }
}

impl AccessCheck {
    /// Somebody reads.
    pub fn read(&self) {
        self.0.with(|_| ());
    }

    /// Somebody writes, or the memory goes.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
