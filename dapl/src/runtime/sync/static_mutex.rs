//! A lock that lives as long as the library, and can be let go of in a forked child.
//!
//! A lock with a list of its sleepers may be handed to one of them when it is released, and in a child none of them exists.
//! This one keeps no list: it is a word, and sleepers are the kernel's affair. For `static`s that `fork` holds.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::lock_api::{GuardNoSend, Mutex, MutexGuard, RawMutex};

/// A value behind such a lock.
pub type StaticMutex<T> = Mutex<Word, T>;
/// The lock, held.
pub type StaticMutexGuard<T> = MutexGuard<'static, Word, T>;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may sleep.
const WANTED: u32 = 2;

/// The lock itself.
pub struct Word(AtomicU32);

// SAFETY: only who changes the word from `FREE` holds the lock, and it stays so until it stores `FREE` again.
unsafe impl RawMutex for Word {
    #[allow(clippy::declare_interior_mutable_const, reason = "what a new lock is made of")]
    const INIT: Self = Word(AtomicU32::new(FREE));
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        // Acquire pairs with the Release in `unlock`.
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let for_ever: *const libc::timespec = std::ptr::null();
            // SAFETY: the word lives during the call.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), op, WANTED, for_ever) };
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), op, 1) };
        }
    }
}
