//! Control functions that a test in the same process finds by `dlsym`: they plan the next failure, count live objects
//! and calls, and name the operation that failed last.
//!
//! Used by `test/c/walk.c`. The product does not use these names, and this library is never installed.

use std::ffi::{CStr, c_char};

use crate::plan::{self, Op};
use crate::{counted, heap};

/// Counts of live objects of this library. `walk.c` declares the same structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Live handles.
    pub handles: u64,
    /// Allocated blocks.
    pub blocks: i64,
    /// Allocated bytes.
    pub bytes: i64,
    /// Objects of the wrapped provider: IAs, PDs, MRs, MWs, memberships in groups that share memory, CQs, SRQs, QPs,
    /// listeners, requests.
    pub objects: [i64; counted::KINDS],
}

/// Writes the counts of live objects.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_usage(out: *mut Usage) {
    settle();
    let (blocks, bytes) = heap::usage();
    let usage = Usage { handles: dapl::runtime::handle::alive() as u64, blocks, bytes, objects: counted::alive() };
    // SAFETY: the caller guarantees that `out` is writable (# Safety).
    unsafe { out.write(usage) };
}

/// Makes the locks of this library allocate in this call. A lock allocates when a thread first waits for it, which
/// would count as a leak.
fn settle() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let mutex = parking_lot::Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock_for(std::time::Duration::from_nanos(1)).is_none(), "the lock is not held");
        drop(held);
    });
}

/// Makes the `n`-th following call of the operation `op` fail, or of any operation if `op` is null. 0 plans no failure.
/// Cancels what an earlier call has planned. Returns 1, or 0 without effect if the name is unknown.
///
/// # Safety
/// `op` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_fail(op: *const c_char, n: u64) -> i32 {
    if op.is_null() {
        plan::fail(None, n);
        return 1;
    }
    // SAFETY: `op` is not null, so the caller guarantees that it is a NUL-terminated string.
    let Some(op) = unsafe { CStr::from_ptr(op) }.to_str().ok().and_then(Op::named) else { return 0 };
    plan::fail(Some(op), n);
    1
}

/// Makes the `n`-th following request name unregistered memory. Cancels what an earlier call of this function has
/// planned. 0 plans nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dapl_faulty_spoil(n: u64) {
    plan::spoil(n);
}

/// Number of calls that can fail, since the library was loaded.
#[unsafe(no_mangle)]
pub extern "C" fn dapl_faulty_count() -> u64 {
    plan::count()
}

/// Name of the operation that failed last, with its error in `code`; null if none has failed since the last
/// `dapl_faulty_fail`.
///
/// # Safety
/// `code` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_fired(code: *mut u32) -> *const c_char {
    let Some(op) = plan::fired() else { return std::ptr::null() };
    if !code.is_null() {
        // SAFETY: `code` is not null, so the caller guarantees that it is writable.
        unsafe { code.write(op.error().code()) };
    }
    op.name().as_ptr().cast()
}
