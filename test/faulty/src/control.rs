//! Control functions for a test in the same process, by `dlsym`: the next failure, and the live objects.
//!
//! `test/c/walk.c` uses them. The product does not use these names, and this library is never installed.

use std::ffi::{CStr, c_char};

use crate::plan::{self, Op};
use crate::{heap, held};

/// Live objects of this library. `walk.c` declares the same structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Live handles.
    pub handles: u64,
    /// Blocks of its allocator.
    pub blocks: i64,
    /// Bytes in them.
    pub bytes: i64,
    /// Objects of the inner provider: IAs, PDs, MRs, MWs, memberships, CQs, SRQs, QPs, listeners, requests.
    pub objects: [i64; held::KINDS],
}

/// Writes the live objects.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_usage(out: *mut Usage) {
    settle();
    let (blocks, bytes) = heap::usage();
    let usage = Usage { handles: dapl::runtime::handle::alive() as u64, blocks, bytes, objects: held::alive() };
    // SAFETY: this function's own contract.
    unsafe { out.write(usage) };
}

/// Makes the locks of this library do their one-time allocation, which happens when a thread first waits for one: otherwise it
/// would count as a leak.
fn settle() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let mutex = parking_lot::Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock_for(std::time::Duration::from_nanos(1)).is_none(), "it is held");
        drop(held);
    });
}

/// The `n`-th call from now fails, of the operation of this name or, for null, of any; with 0 none does. Answers 0 for a
/// name that is unknown.
///
/// # Safety
/// `op` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_fail(op: *const c_char, n: u64) -> i32 {
    if op.is_null() {
        plan::fail(None, n);
        return 1;
    }
    // SAFETY: a string, by this function's contract.
    let Some(op) = unsafe { CStr::from_ptr(op) }.to_str().ok().and_then(Op::named) else { return 0 };
    plan::fail(Some(op), n);
    1
}

/// The `n`-th request from now is spoilt; with 0 none is.
#[unsafe(no_mangle)]
pub extern "C" fn dapl_faulty_spoil(n: u64) {
    plan::spoil(n);
}

/// Calls so far.
#[unsafe(no_mangle)]
pub extern "C" fn dapl_faulty_count() -> u64 {
    plan::count()
}

/// The operation that failed since the last `dapl_faulty_fail`, and the code that it failed with; null for none.
///
/// # Safety
/// `code` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dapl_faulty_fired(code: *mut u32) -> *const c_char {
    let Some(op) = plan::fired() else { return std::ptr::null() };
    if !code.is_null() {
        // SAFETY: this function's own contract.
        unsafe { code.write(op.error().code()) };
    }
    op.name().as_ptr().cast()
}
