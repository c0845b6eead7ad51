//! Shared areas: sealed memfds and their mappings.
//!
//! An area is created here or received from a peer as a descriptor. Its size is sealed, so accesses cannot raise
//! SIGBUS. The descriptor is closed once both sides have mapped the area. The other process may change its content at
//! any time, so this module provides atomics and copies of bytes, but no slice of shared memory.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dapl::error::{Error, Resource, Result};
use dapl::runtime::address_ranges;
use dapl::runtime::empty_check::RingWatch;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

pub(crate) use dapl_software::memory::mapping_check::{EngineTicks, LastCheck, is_accessible};

/// `TMPFS_MAGIC` of the kernel's `magic.h`: the file system of memfds, in which a hole reads as zeros. Files with huge
/// pages are on another file system; a page of such a file may be missing, which raises a signal.
const ORDINARY: i64 = 0x0102_1994;

/// Seals of an area: the size cannot change, and the seals cannot change.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped area.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Whether the addresses stay readable after the mapping has ended.
    stays_readable: bool,
}

// SAFETY: a mapping belongs to no thread, and its memory is accessed only by atomics and raw copies.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Creates a zeroed area of `len` bytes that is mapped for writing. Returns it and a descriptor for the peer. With
    /// `peer_read_only` the descriptor cannot be mapped for writing.
    pub(crate) fn create(name: &str, len: usize, peer_read_only: bool) -> Result<(Map, OwnedFd)> {
        let failed = |step: &str, error: Errno| {
            let remedy = match error {
                Errno::MFILE | Errno::NFILE => "; raise the limit of open files (ulimit -n)",
                _ => "",
            };
            log::error!("shared area {name} of {len} bytes: {step}: {error}{remedy}");
            Error::Exhausted(Resource::Memory)
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(|e| failed("memfd_create", e))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| failed("ftruncate", e))?;
        let map = Map::of(fd.as_fd(), len, true).map_err(|e| failed("mmap", e))?;
        // Kernels before 5.1 do not support FUTURE_WRITE. The peer can then write to the area; no check relies on the
        // seal.
        if !peer_read_only || rustix::fs::fcntl_add_seals(&fd, FIXED | SealFlags::FUTURE_WRITE).is_err() {
            rustix::fs::fcntl_add_seals(&fd, FIXED).map_err(|e| failed("seals", e))?;
        }
        Ok((map, fd))
    }

    /// Maps a peer's area. Returns `None` unless it is a file of ordinary memory with exactly `len` bytes and a sealed
    /// size.
    pub(crate) fn of_peer(fd: &OwnedFd, len: usize, writable: bool) -> Option<Map> {
        if !is_fixed(fd, len) {
            return None;
        }
        Map::of(fd.as_fd(), len, writable).ok()
    }

    /// Maps a peer's area read-only, with the checks of [`Map::of_peer`]. The addresses stay readable forever, because
    /// a dequeue reads the rings without a reference to the connection
    /// ([`RingWatch`](dapl::runtime::empty_check::RingWatch)).
    pub(crate) fn of_peer_rings(fd: &OwnedFd, len: usize) -> Option<Map> {
        if !is_fixed(fd, len) {
            return None;
        }
        let range = address_ranges::take(len);
        let mapped = match range {
            // SAFETY: the address range was just taken, so no other code uses it.
            Some(range) => unsafe { Map::at(range.as_ptr().cast(), MapFlags::FIXED, fd.as_fd(), len, false) },
            None => Map::of(fd.as_fd(), len, false),
        };
        if let (Err(_), Some(range)) = (&mapped, range) {
            address_ranges::give_back(range, len);
        }
        let mut map = mapped.ok()?;
        map.stays_readable = true;
        Some(map)
    }

    fn of(fd: BorrowedFd<'_>, len: usize, writable: bool) -> rustix::io::Result<Map> {
        // SAFETY: the kernel chooses the address.
        unsafe { Map::at(std::ptr::null_mut(), MapFlags::empty(), fd, len, writable) }
    }

    /// # Safety
    /// With `MapFlags::FIXED`, the address range must belong to the caller.
    unsafe fn at(
        address: *mut c_void,
        flags: MapFlags,
        fd: BorrowedFd<'_>,
        len: usize,
        writable: bool,
    ) -> rustix::io::Result<Map> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: creates a new shared mapping. By this function's contract it replaces no mapping that is in use.
        let base = unsafe { rustix::mm::mmap(address, len, protection, MapFlags::SHARED | flags, fd, 0) }?;
        // SAFETY: applies to the mapping that was just made. A forked child does not inherit it, and the child's
        // handles are invalid in any case.
        let _ = unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).ok_or(Errno::INVAL)?;
        Ok(Map { base, len, writable, stays_readable: false })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the aligned word at `offset`. Offsets are computed from the local geometry, so an offset outside the
    /// area is a bug of this library.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: the word is in bounds and aligned (a mapping begins on a page), and valid as long as the mapping.
        // Atomics permit the other process to change it at any time. Callers store only to writable maps.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the `N` consecutive words at `offset`, with the conditions of `word`.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.len, "{N} words at {offset} of {}", self.len);
        // SAFETY: as in `word`. An atomic has the size and alignment of its word.
        unsafe { &*self.base.as_ptr().add(offset).cast() }
    }

    /// Returns the address of `len` bytes at `offset`, for raw copies; `None` outside the area.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: the address is in bounds of the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Makes dequeues watch the word at `offset`, in which the peer counts the requests that it has taken.
    pub(crate) fn show_taken(&self, offset: usize, watch: &RingWatch) {
        if self.stays_readable {
            // SAFETY: the addresses of this area stay readable forever.
            unsafe { watch.set_taken(self.word(offset)) };
        }
    }
}

/// The slots of a ring in an area, each of `WORDS` words. The number of slots is a power of two, so that every masked
/// index is valid.
#[derive(Debug)]
pub(crate) struct Slots<const WORDS: usize> {
    first: NonNull<[AtomicU64; WORDS]>,
    mask: u64,
    stays_readable: bool,
    /// Reference that keeps the mapping.
    _area: Arc<Map>,
}

// SAFETY: as for `Map`.
unsafe impl<const WORDS: usize> Send for Slots<WORDS> {}
// SAFETY: as for `Map`.
unsafe impl<const WORDS: usize> Sync for Slots<WORDS> {}

impl<const WORDS: usize> Slots<WORDS> {
    /// # Panics Panics if the slots do not fit into the area, or if `count` is not a power of two.
    pub(crate) fn new(area: Arc<Map>, offset: usize, count: u32) -> Self {
        let end = offset + count as usize * WORDS * 8;
        assert!(count.is_power_of_two() && offset.is_multiple_of(8) && end <= area.len, "{count} slots at {offset}");
        // SAFETY: the address is inside the mapping, as was just checked.
        let first = unsafe { area.base.add(offset).cast() };
        Slots { first, mask: u64::from(count) - 1, stays_readable: area.stays_readable, _area: area }
    }

    /// Makes dequeues watch slot `index`. `lap` is the upper half of the slot's first word when the slot is filled.
    #[inline(always)]
    pub(crate) fn show(&self, index: u64, watch: &RingWatch, lap: u32) {
        if self.stays_readable {
            // SAFETY: the addresses of this area stay readable forever.
            unsafe { watch.set_next(&self.words(index)[0], lap) };
        }
    }

    /// Number of slots.
    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        self.mask + 1
    }

    /// The words of slot `index`, counted over all laps.
    #[inline(always)]
    pub(crate) fn words(&self, index: u64) -> &[AtomicU64; WORDS] {
        // SAFETY: `new` has checked that all slots are inside the mapping, and aligned; an atomic has the size and
        // alignment of its word. Callers store to writable maps only.
        unsafe { self.first.add((index & self.mask) as usize).as_ref() }
    }

    /// Returns the address of the bytes of a slot, starting at byte `OFFSET`, for raw copies.
    #[inline(always)]
    pub(crate) fn bytes<const OFFSET: usize>(&self, index: u64) -> *mut u8 {
        const { assert!(OFFSET < WORDS * 8) };
        self.first.as_ptr().wrapping_add((index & self.mask) as usize).cast::<u8>().wrapping_add(OFFSET)
    }

    /// Prefetches the cache line of a slot that contains byte `OFFSET`, for writing or reading.
    #[inline(always)]
    pub(crate) fn fetch<const OFFSET: usize>(&self, index: u64, to_write: bool) {
        prefetch(self.bytes::<OFFSET>(index), to_write);
    }
}

/// Prefetches the cache line at an address inside a mapping.
#[inline(always)]
fn prefetch(at: *const u8, to_write: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes only the content of caches, whatever the address.
    unsafe {
        use std::arch::{asm, x86_64};
        if to_write {
            // `_MM_HINT_ET0` of `_mm_prefetch` becomes a prefetch for reading, unless the compiler may use all
            // instructions of newer CPUs. So this code uses the instruction itself. CPUs without the instruction ignore
            // it.
            asm!("prefetchw [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
        } else {
            x86_64::_mm_prefetch::<{ x86_64::_MM_HINT_T0 }>(at.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, to_write);
}

/// Whether a file is ordinary memory of exactly `len` bytes with a sealed size.
fn is_fixed(fd: &OwnedFd, len: usize) -> bool {
    let is_sealed = rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(FIXED));
    let has_length = rustix::fs::fstat(fd).is_ok_and(|file| usize::try_from(file.st_size) == Ok(len));
    is_sealed && has_length && is_ordinary(fd)
}

/// Whether a file is ordinary memory: it is not on a disk, and has no huge pages.
pub(crate) fn is_ordinary(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type == ORDINARY)
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.stays_readable {
            // SAFETY: `at` made this read-only mapping. Code with a pointer into it has an `Arc` of this `Map`, except
            // dequeues, which only read words of the rings.
            return unsafe { address_ranges::end_mapping(self.base, self.len) };
        }
        // SAFETY: `at` made this mapping. All code with a pointer into it has an `Arc` of this `Map`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn peer_mapping_is_read_only_and_current() {
        let (local, fd) = Map::create("test", 8192, true).unwrap();
        let peer_map = Map::of_peer(&fd, 8192, false).unwrap();
        local.word(4096).store(42, Ordering::Release);
        assert_eq!(peer_map.word(4096).load(Ordering::Acquire), 42);
        assert!(Map::of_peer(&fd, 8192, true).is_none(), "sealed against writing");
        assert!(rustix::fs::ftruncate(&fd, 1).is_err());
    }

    #[test]
    fn an_area_of_another_size_or_without_seals_is_refused() {
        let (_mine, fd) = Map::create("test", 8192, false).unwrap();
        assert!(Map::of_peer(&fd, 4096, false).is_none());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(Map::of_peer(&loose, 8192, false).is_none());
    }

    #[test]
    fn an_area_of_huge_pages_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("huge", flags) else {
            eprintln!("skipped: no huge pages here");
            return;
        };
        rustix::fs::ftruncate(&huge, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, FIXED).unwrap();
        // The file has no reserved huge pages, so it is only checked and not mapped.
        assert!(!is_ordinary(&huge) && Map::of_peer(&huge, 4 << 20, false).is_none());
    }

    #[test]
    fn a_hole_that_the_owner_punches_is_zeros_and_no_signal() {
        use rustix::fs::FallocateFlags;
        for read_only in [false, true] {
            let (local, fd) = Map::create("test", 8192, read_only).unwrap();
            let peer_map = Map::of_peer(&fd, 8192, !read_only).unwrap();
            local.word(4096).store(42, Ordering::Relaxed);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&fd, hole, 0, 8192).is_ok();
            assert_eq!(punched, !read_only, "to punch is to write");
            assert_eq!(peer_map.word(4096).load(Ordering::Relaxed), if punched { 0 } else { 42 });
            if peer_map.is_writable() {
                peer_map.word(4096).store(43, Ordering::Relaxed);
                assert_eq!(local.word(4096).load(Ordering::Relaxed), 43, "the same page for both again");
            }
        }
    }

    #[test]
    fn addresses_of_rings_stay_readable_and_serve_the_next_connection() {
        // Length of the area, which no other test uses.
        const LEN: usize = 5 << 12;
        let (local, fd) = Map::create("test", LEN, true).unwrap();
        local.word(4096).store(42, Ordering::Relaxed);
        let peer_map = Map::of_peer_rings(&fd, LEN).unwrap();
        let address: *const AtomicU64 = peer_map.word(4096);
        drop(peer_map);
        // SAFETY: this test checks that the address is readable. Otherwise the test ends with a signal.
        let word = unsafe { &*address };
        assert_eq!(word.load(Ordering::Relaxed), 0);
        let again = Map::of_peer_rings(&fd, LEN).unwrap();
        assert_eq!((again.word(4096).load(Ordering::Relaxed), std::ptr::from_ref(again.word(4096))), (42, address));
    }

    #[test]
    fn bytes_stay_inside() {
        let (local, _fd) = Map::create("test", 4096, false).unwrap();
        assert!(local.bytes(4000, 96).is_some());
        assert!(local.bytes(4000, 97).is_none());
        assert!(local.bytes(usize::MAX, 2).is_none());
    }
}
