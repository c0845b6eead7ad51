//! A mutex for statics that can be unlocked in a forked child.
//!
//! A lock with a list of waiters may pass ownership to a waiter that does not exist in the child. This lock is a futex
//! word without such a list.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::lock_api::{GuardNoSend, Mutex, MutexGuard, RawMutex};

/// A value protected by `RawLock`.
pub type StaticMutex<T> = Mutex<RawLock, T>;
pub type StaticMutexGuard<T> = MutexGuard<'static, RawLock, T>;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Locked, and other threads may be sleeping.
const WANTED: u32 = 2;

pub struct RawLock(AtomicU32);

// SAFETY: only the thread that changes the word from `FREE` owns the lock, until it stores `FREE` again.
unsafe impl RawMutex for RawLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "initial value of a lock")]
    const INIT: Self = RawLock(AtomicU32::new(FREE));
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        // Acquire pairs with the Release in `unlock`.
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let for_ever: *const libc::timespec = std::ptr::null();
            // SAFETY: the word outlives the call.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), op, WANTED, for_ever) };
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word outlives the call.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), op, 1) };
        }
    }
}
