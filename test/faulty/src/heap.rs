//! Counting allocator of this library, on top of the system's. Blocks that remain after a close are leaks.
//!
//! It never fails allocations on purpose: a failed allocation aborts a Rust program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

static BLOCKS: AtomicI64 = AtomicI64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// Number of allocated blocks and bytes.
pub(crate) fn usage() -> (i64, i64) {
    (BLOCKS.load(Relaxed), BYTES.load(Relaxed))
}

struct Counted;

#[global_allocator]
static HEAP: Counted = Counted;

fn count(blocks: i64, bytes: i64) {
    BLOCKS.fetch_add(blocks, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
}

// SAFETY: every method passes its call unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's contract is the contract of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the call is passed unchanged to the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-1, -(layout.size() as i64));
        // SAFETY: the call is passed unchanged to the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(0, size as i64 - layout.size() as i64);
        // SAFETY: the call is passed unchanged to the system's allocator.
        unsafe { System.realloc(block, layout, size) }
    }
}
