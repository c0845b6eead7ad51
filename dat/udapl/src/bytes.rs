//! Page-aligned memory that peers and provider threads may change at any time.
//!
//! This module creates no slices of the memory. It copies bytes with atomic loads and stores of bytes and words, which
//! the compiler may not split, repeat or omit.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Alignment of a block. Providers copy page-aligned memory fastest.
const PAGE: usize = 4096;

/// A block of memory: an allocation, or a mapping of a file.
pub(crate) struct MemoryBlock {
    base: NonNull<u8>,
    length: usize,
    /// Layout of the allocation; `None` for a mapping.
    layout: Option<Layout>,
}

// SAFETY: the value owns the block, and accesses it by atomic loads and stores only; callers that create references
// guarantee exclusive use.
unsafe impl Send for MemoryBlock {}
// SAFETY: all accesses through a shared reference are atomic loads and stores; callers that create references
// guarantee exclusive use.
unsafe impl Sync for MemoryBlock {}

impl MemoryBlock {
    /// Allocates `length` zeroed bytes. `None` for a length of 0, or if memory is exhausted.
    pub(crate) fn new(length: usize) -> Option<Self> {
        let layout = Layout::from_size_align(length, PAGE).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(MemoryBlock { base, length, layout: Some(layout) })
    }

    /// Maps the first `length` bytes of a file, shared. The file must not become shorter, because an access beyond its
    /// end raises SIGBUS.
    pub(crate) fn map(file: impl AsFd, length: usize) -> io::Result<Self> {
        let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_fd().as_raw_fd());
        // SAFETY: the call creates a mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, rights, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(MemoryBlock { base, length, layout: None })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies bytes from the block into `out`.
    ///
    /// # Panics
    /// If the range is not inside the block.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        self.require(offset, out.len());
        let lead = out.len().min(offset.next_multiple_of(8) - offset);
        let (head, rest) = out.split_at_mut(lead);
        head.iter_mut().enumerate().for_each(|(at, byte)| *byte = self.byte(offset + at).load(Ordering::Relaxed));
        let mut at = offset + lead;
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        let tail = words.into_remainder().iter_mut().enumerate();
        tail.for_each(|(more, byte)| *byte = self.byte(at + more).load(Ordering::Relaxed));
    }

    /// Copies bytes into the block.
    ///
    /// # Panics
    /// If the range is not inside the block.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.require(offset, bytes.len());
        let (head, rest) = bytes.split_at(bytes.len().min(offset.next_multiple_of(8) - offset));
        head.iter().enumerate().for_each(|(at, byte)| self.byte(offset + at).store(*byte, Ordering::Relaxed));
        let at = offset + head.len();
        let (words, tail) = rest.as_chunks::<8>();
        for (index, word) in words.iter().enumerate() {
            self.word(at + 8 * index).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let at = at + 8 * words.len();
        tail.iter().enumerate().for_each(|(more, byte)| self.byte(at + more).store(*byte, Ordering::Relaxed));
    }

    /// Loads eight bytes in native byte order, with Acquire ordering: data that the writer stored before these bytes is
    /// visible after the load.
    ///
    /// # Panics
    /// If the eight bytes are not inside the block, or `offset` is not a multiple of eight.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.require(offset, 8);
        assert!(offset.is_multiple_of(8), "{offset} is not a multiple of eight");
        self.word(offset).load(Ordering::Acquire)
    }

    fn require(&self, offset: usize, length: usize) {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.len());
        assert!(is_inside, "{length} bytes at {offset} are not inside {} bytes", self.len());
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: in bounds, as the callers have checked. Simultaneous accesses of this crate are atomic too.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in bounds, as the callers have checked. The block begins at a page and `at` is a multiple of eight,
        // so the address is aligned. Simultaneous accesses of this crate are atomic too.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl Drop for MemoryBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, or mapped with this length; the last owner is being dropped.
        unsafe {
            match self.layout {
                Some(layout) => dealloc(self.base.as_ptr(), layout),
                None => _ = libc::munmap(self.base.as_ptr().cast(), self.length),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_write_copy_at_any_offset_and_length() {
        let bytes: Vec<u8> = (1..=40).collect();
        for offset in 0..17 {
            for length in 0..24 {
                let block = MemoryBlock::new(64).unwrap();
                block.write(offset, &bytes[..length]);
                let mut all = [0; 64];
                block.read(0, &mut all);
                let mut wanted = [0; 64];
                wanted[offset..offset + length].copy_from_slice(&bytes[..length]);
                assert_eq!(all, wanted, "{length} bytes at {offset}");
                let mut part = vec![0; length];
                block.read(offset, &mut part);
                assert_eq!(part, bytes[..length]);
            }
        }
    }

    #[test]
    fn load_returns_eight_bytes_in_native_order() {
        let block = MemoryBlock::new(24).unwrap();
        block.write(8, &0x0123_4567_89ab_cdef_u64.to_ne_bytes());
        assert_eq!((block.load(0), block.load(8)), (0, 0x0123_4567_89ab_cdef));
    }

    #[test]
    fn memory_block_of_zero_or_too_many_bytes_is_not_allocated() {
        assert!(MemoryBlock::new(0).is_none());
        assert!(MemoryBlock::new(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "8 bytes at 60 are not inside 64 bytes")]
    fn read_outside_a_memory_block_is_refused() {
        MemoryBlock::new(64).unwrap().read(60, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "not inside")]
    fn write_at_an_overflowing_offset_is_refused() {
        MemoryBlock::new(64).unwrap().write(usize::MAX, &[1, 2]);
    }
}
