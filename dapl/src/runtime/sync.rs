//! Atomics, fences, locks, sleeps and yields for modules with loom models: the normal ones, or those for loom under
//! `cfg(loom)`. [`StaticMutex`] is the same in both.
//!
//! A module that imports its atomics from here can run unchanged under loom. Its models are in its submodule
//! `interleavings`; `cargo xtask test loom` runs them. Loom's types work only inside a model, and cannot be used in a
//! `static`.

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

    /// A full fence directly after a `SeqCst` read-modify-write. On x86-64 the read-modify-write is itself a full
    /// fence, so this is only a compiler fence.
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

    /// Does not sleep, because loom models have no clock.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }

    /// A full fence, because loom models a CPU on which a read-modify-write is no fence.
    pub fn fence_behind_rmw() {
        fence(Ordering::SeqCst);
    }

    /// Loom's mutex with the interface of `parking_lot::Mutex`. It is never poisoned, because a panic ends the model.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
