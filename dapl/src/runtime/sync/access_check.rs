//! A stand-in for a memory location in loom models. Loom reports concurrent accesses to it, unless all of them are
//! reads.
//!
//! Exists under `cfg(loom)` only, and holds no data.

use loom::cell::UnsafeCell;

/// A memory location for loom's checks. It holds no data.
pub struct AccessCheck(UnsafeCell<()>);

// SAFETY: there is no data; loom checks the accesses.
unsafe impl Sync for AccessCheck {}

impl Default for AccessCheck {
    fn default() -> Self {
        AccessCheck(UnsafeCell::new(()))
    }
}

impl AccessCheck {
    pub fn read(&self) {
        self.0.with(|_| ());
    }

    /// Records a write access or a deallocation.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
