//! Atomics, fences and locks for modules with loom models: the real ones, or loom's.
//!
//! Only this module depends on `cfg(loom)`. A module that takes its atomics from here can be run by loom unchanged; its models
//! are at its foot (`mod interleavings`), and `cargo xtask test loom` runs them all. Loom's types work inside a model only, and
//! cannot be used in a `static`.

#[cfg(loom)]
pub mod access_check;
mod static_mutex;

pub use kind::*;
pub use static_mutex::{StaticMutex, StaticMutexGuard};

#[cfg(not(loom))]
mod kind {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::thread::{sleep, yield_now};

    pub use parking_lot::{Mutex, MutexGuard};

    /// A full fence right behind a read-modify-write with `SeqCst`: on x86 that operation is one already.
    #[inline]
    pub fn fence_behind_rmw() {
        if cfg!(target_arch = "x86_64") {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(loom)]
mod kind {
    pub use loom::sync::MutexGuard;
    pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::thread::yield_now;

    /// A model has no clock.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }

    /// A full fence, as for a machine that reorders freely.
    pub fn fence_behind_rmw() {
        fence(Ordering::SeqCst);
    }

    /// loom's lock, spoken to as the real one. It is never poisoned: a model that panics is over.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A free lock.
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        /// The lock, if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
