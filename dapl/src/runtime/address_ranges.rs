//! Address ranges that stay readable after their mapping has ended, because threads read such mappings without holding
//! a reference.
//!
//! The mapping is replaced by pages of zeros, which occupy no memory. The range is reused for the next mapping of the
//! same length, so the number of ranges of a length does not exceed the highest number of simultaneous mappings of that
//! length.

use std::ptr::NonNull;

use crate::runtime::sync::StaticMutex;

/// A range of addresses, with a length that is a multiple of the page size.
#[derive(Clone, Copy, Debug)]
struct Range {
    base: usize,
    len: usize,
}

static FREE: StaticMutex<Vec<Range>> = StaticMutex::new(Vec::new());

/// Takes a free range of this length; the caller maps memory there with `MAP_FIXED`. Returns `None` if no range is
/// free; the caller then maps at another address.
pub fn allocate(len: usize) -> Option<NonNull<u8>> {
    let mut free = FREE.lock();
    let at = free.iter().rposition(|range| range.len == len)?;
    NonNull::new(free.swap_remove(at).base as *mut u8)
}

/// Ends a mapping. Afterwards its range reads as zeros; if the kernel cannot map zeros, the old mapping stays.
///
/// # Safety
/// The range is a mapping of this process to which no thread writes and to which no reference exists. Reads of its
/// atomics may be in progress.
pub unsafe fn end_mapping(base: NonNull<u8>, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller guarantees that the mapping may be replaced.
    let zeros = unsafe { libc::mmap(base.as_ptr().cast(), len, libc::PROT_READ, flags, -1, 0) };
    // If the kernel cannot map the pages of zeros, the old mapping stays, and its range is never reused.
    if zeros != libc::MAP_FAILED {
        FREE.lock().push(Range { base: base.as_ptr() as usize, len });
    }
}

/// Gives back a range that [`allocate`] has returned and in which the caller has mapped nothing.
pub fn free(base: NonNull<u8>, len: usize) {
    FREE.lock().push(Range { base: base.as_ptr() as usize, len });
}

/// Locks the list of free ranges while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    FREE.lock()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A length that no other test uses.
    const LEN: usize = 7 * 4096;

    fn map(at: Option<NonNull<u8>>) -> NonNull<u8> {
        let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
        let wanted = at.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        // SAFETY: the call creates a new mapping, or replaces the pages of zeros in a range that `allocate` returned.
        let base = unsafe { libc::mmap(wanted, LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        NonNull::new(base.cast()).unwrap()
    }

    #[test]
    fn range_of_an_ended_mapping_reads_as_zeros_and_is_used_again() {
        let base = map(None);
        // SAFETY: the word is in the mapping, whose range is always readable.
        let word = unsafe { AtomicU64::from_ptr(base.as_ptr().cast()) };
        word.store(7, Ordering::Relaxed);
        // SAFETY: the mapping was created above and is not used afterwards.
        unsafe { end_mapping(base, LEN) };
        assert_eq!(word.load(Ordering::Relaxed), 0);
        assert_eq!(allocate(LEN + 4096), None, "another length");
        let taken = allocate(LEN);
        assert_eq!(map(taken), base);
        word.store(8, Ordering::Relaxed);
        assert_eq!(allocate(LEN), None, "in use");
    }
}
