//! Makes `Arc` visible to ThreadSanitizer. `Arc` drops a reference by a release operation and, if it was the last one,
//! an acquire fence. The sanitizer does not understand fences. It would report each object that one thread uses and
//! another thread drops.
//!
//! The linker redirects atomic subtractions to this module (`--wrap`), which adds an acquire to each. All other 64-bit
//! subtractions in dapl and sm acquire anyway, except that of the count of zero-based LMRs
//! (`dapl/src/lmr/zero_based.rs`). It runs whenever an LMR is freed, so the sanitizer may miss a race between two
//! threads that free LMRs.

use std::ffi::c_int;

/// The value of `__ATOMIC_ACQ_REL`.
const BOTH: c_int = 4;

unsafe extern "C" {
    fn __real___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64;
}

#[unsafe(no_mangle)]
extern "C" fn __wrap___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64 {
    // SAFETY: calls the sanitizer's own function with the same arguments.
    unsafe { __real___tsan_atomic64_fetch_sub(place, value, order.max(BOTH)) }
}
