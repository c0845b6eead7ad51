//! Defers POSIX thread cancellation (`pthread_cancel`) during calls that may reach a cancellation point.
//!
//! glibc ends a cancelled thread by a forced unwind that begins in a cancellation point, such as `close`, `write` or
//! `pthread_join`. If the unwind passes through a Rust frame with a destructor or `catch_unwind`, the process aborts.
//! Posts and dequeues defer cancellation only around such points, because a deferral costs time. The sleep of a wait
//! permits cancellation (see `wait`).

use std::ffi::c_int;
use std::marker::PhantomData;

/// Defers cancellation of the calling thread while the value exists; a cancellation request remains pending. Deferrals
/// nest.
#[must_use = "cancellation is deferred until this is dropped"]
#[derive(Debug)]
pub struct CancelDeferral {
    before: c_int,
    /// The cancellation state belongs to the thread that created the value.
    _not_send: PhantomData<*const ()>,
}

/// Defers cancellation of the calling thread. Creating and dropping the value cost one atomic read-modify-write each,
/// or none if another deferral is active.
#[inline]
pub fn defer() -> CancelDeferral {
    let mut before = 0;
    // SAFETY: the call sets the state of this thread and writes the old state; it is not a cancellation point.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    CancelDeferral { before, _not_send: PhantomData }
}

impl Drop for CancelDeferral {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the call restores the state that `defer` found on this thread. It does not unwind even if a request
        // is pending, because the cancellation type is deferred, except in the sleep of a wait.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// Declared as functions that may unwind, because glibc's cancellation can unwind through them.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_deferred() -> bool {
        defer().before == PTHREAD_CANCEL_DISABLE
    }

    #[test]
    fn nested_deferral_of_cancellation_ends_with_the_outermost() {
        let before = is_deferred();
        let outer = defer();
        drop(defer());
        assert!(is_deferred());
        drop(outer);
        assert_eq!(is_deferred(), before);
    }
}
