//! Futex calls: sleep while a word has a value, and wake sleeping threads.
//!
//! The stack frames of these functions own no resources, since a thread may be cancelled while it sleeps.

use std::ffi::c_long;

use super::WakeCause;
use crate::runtime::sync::AtomicU32;

/// Wakes up to `count` sleeping threads.
pub(super) fn wake(word: &'static AtomicU32, count: i32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is never unmapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, count) };
}

/// Sleeps while the word equals `expected`. Returns after a wake-up, possibly a spurious one, a signal, or at the time
/// `until`, in nanoseconds on the monotonic clock.
#[inline(never)]
pub(super) fn sleep(word: &'static AtomicU32, expected: u32, until: Option<u64>) -> WakeCause {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut limit: *const libc::timespec = std::ptr::null();
    if let Some(at) = until {
        time.tv_sec = (at / 1_000_000_000) as libc::time_t;
        time.tv_nsec = (at % 1_000_000_000) as c_long;
        limit = &raw const time;
    }
    // Bitset waits take an absolute time on the monotonic clock.
    let op = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let any = u32::MAX;
    // SAFETY: the word is never unmapped; the timeout is null or a variable in this frame.
    let result = unsafe { syscall(libc::SYS_futex, word.as_ptr(), op, expected, limit, std::ptr::null::<u32>(), any) };
    if result == 0 {
        return WakeCause::Woken;
    }
    // SAFETY: `__errno_location` returns the calling thread's errno.
    match unsafe { *libc::__errno_location() } {
        libc::ETIMEDOUT => WakeCause::TimedOut,
        libc::EINTR => WakeCause::Interrupted,
        _ => WakeCause::Woken,
    }
}

// Declared as a function that may unwind, because cancellation unwinds through it. The declaration in the `libc` crate
// does not allow that.
unsafe extern "C-unwind" {
    fn syscall(number: c_long, ...) -> c_long;
}
