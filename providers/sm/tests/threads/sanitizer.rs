//! What ThreadSanitizer does not know of `Arc`, which gives up a reference by a release and, if it was the last, an acquire
//! fence: it understands no fences, and would report every object that dies on another thread than it was used on.
//!
//! So the subtraction, to which the linker leads here (`--wrap`), acquires as well. In dapl and sm nothing else subtracts
//! from 64 bits but what acquires anyhow.

use std::ffi::c_int;

/// `__ATOMIC_ACQ_REL`.
const BOTH: c_int = 4;

unsafe extern "C" {
    fn __real___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64;
}

#[unsafe(no_mangle)]
extern "C" fn __wrap___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64 {
    // SAFETY: the sanitizer's own call, passed on.
    unsafe { __real___tsan_atomic64_fetch_sub(place, value, order.max(BOTH)) }
}
