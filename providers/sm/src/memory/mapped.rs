//! A mapping of a peer's registered region, so that RDMA to it is one copy by this process.
//!
//! The peer, which may be malicious, sends the region as a descriptor or as the id of a System V segment. Accesses must
//! never raise SIGBUS. So this module maps only files that can never shrink, and no files with huge pages, because an
//! access fails if no huge page is free. `local_address` returns only addresses inside the region, and none for writes
//! to a read-only mapping. The callers check with the peer's table of registrations whether the key is still valid.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use dapl::provider::Region;
use dapl::runtime::mappings;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory::map::is_ordinary;

/// Maximum length in bytes of one mapped region, and of all mapped regions of a peer, so that a malicious peer cannot
/// exhaust the address space.
pub(crate) const MAX_MAPPED_BYTES: u64 = 1 << 40;

/// A registered region of a peer, mapped in this process. Dropping it unmaps the region.
pub(crate) struct PeerMapping {
    base: NonNull<u8>,
    span: usize,
    is_segment: bool,
    /// Offset in bytes of the region from `base`.
    skip: usize,
    /// The region, by its address in the peer's process.
    region: Region,
    writable: bool,
}

// SAFETY: a mapping belongs to no thread, and its memory is accessed only by raw copies and atomics.
unsafe impl Send for PeerMapping {}
// SAFETY: threads may access the memory concurrently, because they use only raw copies and atomics.
unsafe impl Sync for PeerMapping {}

impl PeerMapping {
    /// Maps a region that begins at `offset` of a memfd. The error is a text that names the violated condition.
    pub(crate) fn of_file(
        file: impl AsFd,
        offset: u64,
        region: Region,
        writable: bool,
    ) -> std::result::Result<Self, &'static str> {
        if !has_fixed_length(&file, offset, region.length, writable) {
            return Err("the file may shrink, is too short, is not writable, or has huge pages");
        }
        let skip = offset % rustix::param::page_size() as u64;
        let span = mapping_length(skip, region)?;
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let at = std::ptr::null_mut();
        // SAFETY: the address is null, so the kernel chooses an unused range for the new mapping.
        let base = unsafe { rustix::mm::mmap(at, span, rights, MapFlags::SHARED, file, offset - skip) };
        let base = base.ok().and_then(|base| NonNull::new(base.cast())).ok_or("the file cannot be mapped")?;
        let mapped = PeerMapping { base, span, is_segment: false, skip: skip as usize, region, writable };
        mapped.exclude_from_fork();
        Ok(mapped)
    }

    /// Attaches a System V segment in which a region begins at `offset`.
    pub(crate) fn of_segment(
        id: i32,
        offset: u64,
        region: Region,
        writable: bool,
    ) -> std::result::Result<Self, &'static str> {
        let whole = segment_size(id).ok_or("the segment does not exist, or belongs to another user")?;
        let fits = offset.checked_add(region.length).is_some_and(|end| end <= whole);
        if !fits || region.length == 0 {
            return Err("the segment is too short");
        }
        let span = mapping_length(0, Region { address: 0, length: whole })?;
        let flags = if writable { 0 } else { libc::SHM_RDONLY };
        // SAFETY: the address is null, so the kernel chooses an unused range for the segment.
        let base = unsafe { libc::shmat(id, std::ptr::null(), flags) };
        // `shmat` reports an error by the address -1.
        let base = NonNull::new(base.cast::<u8>()).filter(|at| at.as_ptr().addr() != usize::MAX);
        let base = base.ok_or("the segment cannot be attached")?;
        let mapped = PeerMapping { base, span, is_segment: true, skip: offset as usize, region, writable };
        mapped.exclude_from_fork();
        // After `segment_size`, the id may have been reused for another segment. Or the segment may have huge pages,
        // whose access fails if no huge page is free.
        let behind = mappings::backing_file(Region { address: base.as_ptr().addr() as u64, length: whole });
        match behind {
            Some(found) if found.inode == id as u64 && Some(found.device) == memory_device() => Ok(mapped),
            _ => Err("the segment has huge pages, or was replaced"),
        }
    }

    /// Returns the local address of `length` bytes at the peer's `address`. `None`: the range is not inside the region,
    /// or `write` is set and the mapping is read-only.
    #[inline]
    pub(crate) fn local_address(&self, address: u64, length: u64, write: bool) -> Option<*mut u8> {
        let offset = address.checked_sub(self.region.address)?;
        if offset > self.region.length || length > self.region.length - offset || (write && !self.writable) {
            return None;
        }
        // SAFETY: the offset is inside the region, as was checked above, and the region is inside the mapping.
        Some(unsafe { self.base.as_ptr().add(self.skip + offset as usize) })
    }

    /// Length of the mapping in bytes.
    pub(crate) fn span(&self) -> u64 {
        self.span as u64
    }

    fn exclude_from_fork(&self) {
        // SAFETY: the range is the mapping of this object. The advice only excludes it from forked children.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.span, Advice::LinuxDontFork) };
    }
}

impl Drop for PeerMapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast();
        if self.is_segment {
            // SAFETY: `of_segment` has attached the segment at `base`. A thread that copies has a reference to this
            // object.
            let _ = unsafe { libc::shmdt(base) };
        } else {
            // SAFETY: `of_file` has created this mapping. A thread that copies has a reference to this object.
            let _ = unsafe { rustix::mm::munmap(base.cast(), self.span) };
        }
    }
}

/// Returns the length in bytes of a mapping in which the region begins at offset `skip`.
fn mapping_length(skip: u64, region: Region) -> std::result::Result<usize, &'static str> {
    let span = region.length.checked_add(skip).filter(|span| (1..=MAX_MAPPED_BYTES).contains(span));
    span.and_then(|span| usize::try_from(span).ok()).ok_or("the region is empty or too long")
}

/// Whether the file is memory without huge pages that will always have `length` bytes at `offset`, and may be written
/// if `write` is set.
pub(crate) fn has_fixed_length(file: impl AsFd, offset: u64, length: u64, write: bool) -> bool {
    let fixed = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    let sealed = rustix::fs::fcntl_get_seals(&file)
        .is_ok_and(|seals| seals.contains(SealFlags::SHRINK) && !(write && seals.intersects(fixed)));
    let size = rustix::fs::fstat(&file).ok().and_then(|found| u64::try_from(found.st_size).ok());
    let end = offset.checked_add(length);
    sealed && is_ordinary(&file) && end.is_some_and(|end| size.is_some_and(|size| end <= size))
}

/// Returns the size in bytes of a System V segment, if it exists and belongs to this user. The size never changes.
pub(crate) fn segment_size(id: i32) -> Option<u64> {
    // SAFETY: all fields are integers, so all-zero bytes are valid.
    let mut found: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes only `found`, which outlives the call.
    let code = unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut found) };
    let is_own = code == 0 && found.shm_perm.uid == rustix::process::geteuid().as_raw();
    is_own.then_some(found.shm_segsz as u64)
}

/// Identifies the IPC namespace. In another namespace, an id refers to another segment.
pub(crate) fn segment_space() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/ipc").ok().map(|space| space.ino())
}

/// Device number (major, minor) of the kernel's file system for memfds, and for segments with small pages.
pub(crate) fn memory_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let file = rustix::fs::memfd_create("dapl-sm-device", MemfdFlags::CLOEXEC).ok()?;
        let device = rustix::fs::fstat(&file).ok()?.st_dev;
        Some((rustix::fs::major(device), rustix::fs::minor(device)))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    const REGION: Region = Region { address: 0x10_0000, length: 5000 };

    fn memory(length: u64, seals: SealFlags, flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("mapped", flags)?;
        rustix::fs::ftruncate(&file, length)?;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file)
    }

    fn sealed(length: u64) -> OwnedFd {
        memory(length, SealFlags::SHRINK, MemfdFlags::empty()).unwrap()
    }

    #[test]
    fn region_of_a_sealed_file_is_mapped_and_addresses_outside_are_none() {
        let file = sealed(12_000);
        rustix::io::pwrite(&file, b"here", 6999).unwrap();
        let mapped = PeerMapping::of_file(&file, 6999, REGION, true).unwrap();
        let at = |address, length| mapped.local_address(address, length, true);
        let base = REGION.address;
        // SAFETY: reads four bytes of the mapping.
        assert_eq!(unsafe { at(base, 4).unwrap().cast::<[u8; 4]>().read_unaligned() }, *b"here");
        // SAFETY: writes the last byte of the region.
        unsafe { at(base + 4999, 1).unwrap().write(9) };
        let mut last = [0];
        rustix::io::pread(&file, &mut last, 11_998).unwrap();
        assert_eq!(last, [9]);
        assert!(at(base, 5000).is_some() && at(base + 5000, 0).is_some());
        assert_eq!(
            [at(base - 1, 2), at(base, 5001), at(base + 5001, 0), at(u64::MAX, 2), at(base + 8, u64::MAX)],
            [None; 5]
        );
        let readable = PeerMapping::of_file(&file, 6999, REGION, false).unwrap();
        assert!(readable.local_address(base, 4, false).is_some() && readable.local_address(base, 4, true).is_none());
    }

    #[test]
    fn unsealed_short_or_read_only_files_are_not_mapped_for_writing() {
        let refused = |file: &OwnedFd, offset, length| {
            PeerMapping::of_file(file, offset, Region { address: 4096, length }, true).is_err()
        };
        let loose = memory(8192, SealFlags::GROW, MemfdFlags::empty()).unwrap();
        assert!(refused(&loose, 0, 8192), "the file may shrink");
        let file = sealed(8192);
        assert!(!refused(&file, 4096, 4096));
        assert!(refused(&file, 4096, 4097) && refused(&file, 8193, 1) && refused(&file, 0, 0));
        assert!(refused(&file, u64::MAX, 2) && refused(&file, 4096, u64::MAX) && refused(&file, 1 << 63, 1 << 63));
        let endless = sealed(1 << 50);
        assert!(refused(&endless, 0, 1 << 50), "longer than the maximum length of a mapping");
        assert!(refused(&std::fs::File::open("/dev/zero").unwrap().into(), 0, 4096), "a device is no memfd");
        let for_reading = memory(8192, SealFlags::SHRINK | SealFlags::FUTURE_WRITE, MemfdFlags::empty()).unwrap();
        assert!(refused(&for_reading, 0, 8192));
        assert!(PeerMapping::of_file(&for_reading, 0, REGION, false).is_ok());
        if let Ok(huge) = memory(2 << 20, SealFlags::SHRINK, MemfdFlags::HUGETLB) {
            assert!(refused(&huge, 0, 8192), "huge pages may run out");
        }
    }

    #[test]
    fn system_v_segment_is_attached_by_id_even_if_marked_for_removal() {
        // SAFETY: creates a new segment, which is marked for removal below.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 8192, 0o600) };
        let region = |length| Region { address: 4096, length };
        let mapped = PeerMapping::of_segment(id, 100, region(8092), true).unwrap();
        let other = PeerMapping::of_segment(id, 0, region(8192), false).unwrap();
        // SAFETY: marks the segment for removal when it is detached.
        assert_eq!(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }, 0);
        assert!(PeerMapping::of_segment(id, 8191, region(1), true).is_ok());
        // SAFETY: accesses bytes of both mappings.
        unsafe {
            mapped.local_address(4096, 1, true).unwrap().write(7);
            assert_eq!(other.local_address(4196, 1, false).unwrap().read(), 7);
        }
        assert!(other.local_address(4196, 1, true).is_none());
        let refused = |offset, length| PeerMapping::of_segment(id, offset, region(length), true).is_err();
        assert!(refused(101, 8092) && refused(8193, 0) && refused(0, 0) && refused(u64::MAX, 2));
        drop((mapped, other));
        assert!(PeerMapping::of_segment(id, 0, region(8192), true).is_err(), "the last detach has removed the segment");
        assert!(segment_size(-1).is_none() && segment_size(i32::MAX).is_none());
    }
}
