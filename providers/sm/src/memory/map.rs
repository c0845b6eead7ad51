//! Shared areas: sealed memfds and their mappings.
//!
//! An area is a shared-memory segment that is created here, or received from a peer as a descriptor. Its size is
//! sealed, so accesses cannot raise SIGBUS. Descriptors are closed after both processes have mapped the area; only the
//! owner of a table of registrations keeps its descriptor, for further peers. The other process may change the content
//! of an area at any time, so this module provides atomics and addresses for raw copies, but no references to bytes.

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
/// pages are on another file system: an access to them raises SIGBUS if no huge page is free.
const ORDINARY: i64 = 0x0102_1994;

/// Seals of an area: the size cannot change, and the seals cannot change.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of memory that this process shares with a peer: rings, buffers, or a table of registrations.
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Whether the addresses stay readable after this object is dropped, because dequeues read the rings without a
    /// reference to it.
    stays_readable: bool,
}

// SAFETY: a mapping belongs to no thread, and its memory is accessed only by atomics and raw copies.
unsafe impl Send for SharedMapping {}
// SAFETY: threads may access the memory concurrently, because they use only atomics and raw copies.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Creates a zeroed area of `len` bytes, mapped for writing. Returns the area and a descriptor for the peer. With
    /// `peer_read_only`, the peer cannot map the descriptor for writing (Linux 5.1 or newer).
    pub(crate) fn create(name: &str, len: usize, peer_read_only: bool) -> Result<(SharedMapping, OwnedFd)> {
        let failed = |step: &str, error: Errno| {
            let remedy = match error {
                Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
                _ => "check the free memory and the limit of address space (ulimit -v)",
            };
            log::error!("cannot create shared memory {name} of {len} bytes: {step}: {error}; {remedy}");
            Error::Exhausted(Resource::Memory)
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(|e| failed("memfd_create", e))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| failed("ftruncate", e))?;
        let map = SharedMapping::of(fd.as_fd(), len, true).map_err(|e| failed("mmap", e))?;
        // Kernels before 5.1 do not support FUTURE_WRITE, so the peer can write to the area there. The checks of a
        // peer's data do not rely on this seal.
        if !peer_read_only || rustix::fs::fcntl_add_seals(&fd, FIXED | SealFlags::FUTURE_WRITE).is_err() {
            rustix::fs::fcntl_add_seals(&fd, FIXED).map_err(|e| failed("seals", e))?;
        }
        Ok((map, fd))
    }

    /// Maps a peer's area. Returns `None` if it is not a file of ordinary memory with exactly `len` bytes and a sealed
    /// size, or if it cannot be mapped.
    pub(crate) fn of_peer(fd: &OwnedFd, len: usize, writable: bool) -> Option<SharedMapping> {
        if !is_fixed(fd, len) {
            return None;
        }
        SharedMapping::of(fd.as_fd(), len, writable).ok()
    }

    /// Maps a peer's area read-only, with the checks of [`SharedMapping::of_peer`]. The addresses stay readable
    /// forever, because a dequeue reads the rings without a reference to the connection
    /// ([`RingWatch`](dapl::runtime::empty_check::RingWatch)).
    pub(crate) fn of_peer_rings(fd: &OwnedFd, len: usize) -> Option<SharedMapping> {
        if !is_fixed(fd, len) {
            return None;
        }
        let range = address_ranges::allocate(len);
        let mapped = match range {
            // SAFETY: `address_ranges::allocate` has reserved this range for the caller, so no other code uses it.
            Some(range) => unsafe { SharedMapping::at(range.as_ptr().cast(), MapFlags::FIXED, fd.as_fd(), len, false) },
            None => SharedMapping::of(fd.as_fd(), len, false),
        };
        if let (Err(_), Some(range)) = (&mapped, range) {
            address_ranges::free(range, len);
        }
        let mut map = mapped.ok()?;
        map.stays_readable = true;
        Some(map)
    }

    fn of(fd: BorrowedFd<'_>, len: usize, writable: bool) -> rustix::io::Result<SharedMapping> {
        // SAFETY: without `MapFlags::FIXED`, the kernel chooses an unused address.
        unsafe { SharedMapping::at(std::ptr::null_mut(), MapFlags::empty(), fd, len, writable) }
    }

    /// Maps `len` bytes of a file.
    ///
    /// # Safety
    ///
    /// With `MapFlags::FIXED`, the range of `len` bytes at `address` must belong to the caller.
    unsafe fn at(
        address: *mut c_void,
        flags: MapFlags,
        fd: BorrowedFd<'_>,
        len: usize,
        writable: bool,
    ) -> rustix::io::Result<SharedMapping> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: with `MapFlags::FIXED`, the caller guarantees that the range belongs to it (# Safety); otherwise the
        // kernel chooses an unused address.
        let base = unsafe { rustix::mm::mmap(address, len, protection, MapFlags::SHARED | flags, fd, 0) }?;
        // SAFETY: the range is the mapping that `mmap` has returned above. The advice only excludes it from forked
        // children, whose handles are invalid in any case.
        let _ = unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).ok_or(Errno::INVAL)?;
        Ok(SharedMapping { base, len, writable, stays_readable: false })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the word at `offset`, which must be aligned and inside the area. The callers compute offsets from
    /// checked geometries, so another offset is a bug of this library, and panics.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: the word is in bounds and aligned (a mapping begins on a page), and valid as long as the mapping.
        // Atomics permit the other process to change it at any time. Callers store only to writable maps.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the `N` consecutive words at `offset`. Panics as `word` does.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.len, "{N} words at {offset} of {}", self.len);
        // SAFETY: the words are in bounds and aligned, as was checked above, and valid as long as the mapping. An
        // atomic has the size and alignment of a word, and callers store only to writable maps.
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

    /// Makes dequeues watch the word at `offset`, in which the peer counts the requests that it has consumed.
    pub(crate) fn watch_consumed(&self, offset: usize, watch: &RingWatch) {
        if self.stays_readable {
            // SAFETY: `stays_readable`: the word can be read while this process runs, even after the area is dropped.
            unsafe { watch.set_consumed_word(self.word(offset)) };
        }
    }
}

/// The slots of a ring in an area, each of `WORDS` words. The number of slots is a power of two, so that every masked
/// index is valid.
pub(crate) struct RingSlots<const WORDS: usize> {
    first: NonNull<[AtomicU64; WORDS]>,
    mask: u64,
    stays_readable: bool,
    /// Reference to the mapping that contains `first`.
    _area: Arc<SharedMapping>,
}

// SAFETY: a mapping belongs to no thread, and the slots are accessed only by atomics and raw copies.
unsafe impl<const WORDS: usize> Send for RingSlots<WORDS> {}
// SAFETY: threads may access the slots concurrently, because they use only atomics and raw copies.
unsafe impl<const WORDS: usize> Sync for RingSlots<WORDS> {}

impl<const WORDS: usize> RingSlots<WORDS> {
    /// Returns `count` slots that begin at `offset` of an area.
    ///
    /// # Panics
    ///
    /// Panics if the slots do not fit into the area, if `count` is not a power of two, or if `offset` is not a multiple
    /// of 8.
    pub(crate) fn new(area: Arc<SharedMapping>, offset: usize, count: u32) -> Self {
        let end = offset + count as usize * WORDS * 8;
        assert!(count.is_power_of_two() && offset.is_multiple_of(8) && end <= area.len, "{count} slots at {offset}");
        // SAFETY: `offset` is inside the mapping, as was checked above.
        let first = unsafe { area.base.add(offset).cast() };
        RingSlots { first, mask: u64::from(count) - 1, stays_readable: area.stays_readable, _area: area }
    }

    /// Makes dequeues watch slot `index`. `lap` is the upper half of the slot's first word when the slot is filled.
    #[inline(always)]
    pub(crate) fn watch_slot(&self, index: u64, watch: &RingWatch, lap: u32) {
        if self.stays_readable {
            // SAFETY: `stays_readable`: the word can be read while this process runs, even after the area is dropped.
            unsafe { watch.set_next(&self.words(index)[0], lap) };
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the words of slot `index`, which is counted over all laps.
    #[inline(always)]
    pub(crate) fn words(&self, index: u64) -> &[AtomicU64; WORDS] {
        // SAFETY: `new` has checked that all slots are inside the mapping, and aligned; an atomic has the size and
        // alignment of its word. Callers store to writable maps only.
        unsafe { self.first.add((index & self.mask) as usize).as_ref() }
    }

    /// Returns slot `index` and those after it, up to the end of the ring.
    #[inline(always)]
    pub(crate) fn run(&self, index: u64) -> &[[AtomicU64; WORDS]] {
        let (from, count) = (index & self.mask, self.count());
        // SAFETY: `new` has checked that all slots of the ring are inside the mapping, and aligned. The slice begins at
        // a slot of the ring and ends with the ring.
        unsafe { std::slice::from_raw_parts(self.first.add(from as usize).as_ptr(), (count - from) as usize) }
    }

    /// Prefetches the cache line of a slot that contains byte `OFFSET`, for reading.
    #[inline(always)]
    pub(crate) fn prefetch_line<const OFFSET: usize>(slot: &[AtomicU64; WORDS]) {
        const { assert!(OFFSET < WORDS * 8) };
        prefetch(std::ptr::from_ref(slot).cast::<u8>().wrapping_add(OFFSET), false);
    }

    /// Prefetches the slot that is `ahead` slots after `slot` in memory, for reading.
    #[inline(always)]
    pub(crate) fn prefetch_ahead(slot: &[AtomicU64; WORDS], ahead: usize) {
        prefetch(std::ptr::from_ref(slot).wrapping_add(ahead).cast(), false);
    }

    /// Returns the address of the bytes of a slot, starting at byte `OFFSET`, for raw copies.
    #[inline(always)]
    pub(crate) fn bytes<const OFFSET: usize>(&self, index: u64) -> *mut u8 {
        const { assert!(OFFSET < WORDS * 8) };
        self.first.as_ptr().wrapping_add((index & self.mask) as usize).cast::<u8>().wrapping_add(OFFSET)
    }

    /// Prefetches the cache line of a slot that contains byte `OFFSET`, for writing if `to_write` is set, otherwise for
    /// reading.
    #[inline(always)]
    pub(crate) fn prefetch_slot<const OFFSET: usize>(&self, index: u64, to_write: bool) {
        prefetch(self.bytes::<OFFSET>(index), to_write);
    }
}

/// Prefetches the cache line at an address, which need not be mapped. Has no effect on CPUs other than x86-64.
#[inline(always)]
fn prefetch(at: *const u8, to_write: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes only the content of caches, whatever the address.
    unsafe {
        use std::arch::{asm, x86_64};
        if to_write {
            // For a baseline CPU, the compiler turns `_mm_prefetch` with `_MM_HINT_ET0` into a prefetch for reading. So
            // this code contains the instruction itself. CPUs that do not support it ignore it.
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

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if self.stays_readable {
            // SAFETY: `at` has created this read-only mapping. All code with a pointer into it has an `Arc` of this
            // `SharedMapping`, except dequeues, which only read words that remain readable.
            return unsafe { address_ranges::end_mapping(self.base, self.len) };
        }
        // SAFETY: `at` has created this mapping. All code with a pointer into it has an `Arc` of this `SharedMapping`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn peer_mapping_is_read_only_and_shows_later_stores() {
        let (local, fd) = SharedMapping::create("test", 8192, true).unwrap();
        let peer_map = SharedMapping::of_peer(&fd, 8192, false).unwrap();
        local.word(4096).store(42, Ordering::Release);
        assert_eq!(peer_map.word(4096).load(Ordering::Acquire), 42);
        assert!(SharedMapping::of_peer(&fd, 8192, true).is_none(), "sealed against writing");
        assert!(rustix::fs::ftruncate(&fd, 1).is_err());
    }

    #[test]
    fn area_of_wrong_size_or_without_seals_is_not_mapped() {
        let (_mine, fd) = SharedMapping::create("test", 8192, false).unwrap();
        assert!(SharedMapping::of_peer(&fd, 4096, false).is_none());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(SharedMapping::of_peer(&loose, 8192, false).is_none());
    }

    #[test]
    fn area_with_huge_pages_is_not_mapped() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("huge", flags) else {
            eprintln!("skipped: the kernel has no huge pages");
            return;
        };
        rustix::fs::ftruncate(&huge, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, FIXED).unwrap();
        // The file has no reserved huge pages, so it is only checked and not mapped.
        assert!(!is_ordinary(&huge) && SharedMapping::of_peer(&huge, 4 << 20, false).is_none());
    }

    #[test]
    fn hole_punched_by_the_owner_reads_as_zeros_without_a_signal() {
        use rustix::fs::FallocateFlags;
        for read_only in [false, true] {
            let (local, fd) = SharedMapping::create("test", 8192, read_only).unwrap();
            let peer_map = SharedMapping::of_peer(&fd, 8192, !read_only).unwrap();
            local.word(4096).store(42, Ordering::Relaxed);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&fd, hole, 0, 8192).is_ok();
            assert_eq!(punched, !read_only, "the seal against writing prevents holes");
            assert_eq!(peer_map.word(4096).load(Ordering::Relaxed), if punched { 0 } else { 42 });
            if peer_map.is_writable() {
                peer_map.word(4096).store(43, Ordering::Relaxed);
                assert_eq!(local.word(4096).load(Ordering::Relaxed), 43, "both mappings have the same new page");
            }
        }
    }

    #[test]
    fn ring_addresses_stay_readable_and_are_reused_by_the_next_mapping() {
        // Length of the area, which no other test uses.
        const LEN: usize = 5 << 12;
        let (local, fd) = SharedMapping::create("test", LEN, true).unwrap();
        local.word(4096).store(42, Ordering::Relaxed);
        let peer_map = SharedMapping::of_peer_rings(&fd, LEN).unwrap();
        let address: *const AtomicU64 = peer_map.word(4096);
        drop(peer_map);
        // SAFETY: the addresses of a ring mapping remain readable after it is dropped. If not, this test ends with a
        // signal.
        let word = unsafe { &*address };
        assert_eq!(word.load(Ordering::Relaxed), 0);
        let again = SharedMapping::of_peer_rings(&fd, LEN).unwrap();
        assert_eq!((again.word(4096).load(Ordering::Relaxed), std::ptr::from_ref(again.word(4096))), (42, address));
    }

    #[test]
    fn bytes_returns_none_outside_the_shared_mapping() {
        let (local, _fd) = SharedMapping::create("test", 4096, false).unwrap();
        assert!(local.bytes(4000, 96).is_some());
        assert!(local.bytes(4000, 97).is_none());
        assert!(local.bytes(usize::MAX, 2).is_none());
    }
}
