//! Asks the kernel how a range of this process's memory is mapped, with one system call per mapping, whatever its size.
//!
//! Uses `PROCMAP_QUERY` of Linux 6.11. If this call is missing or forbidden, or the range has more than 16 mappings,
//! the result is [`MappingLookup::Unknown`], and callers use the checks of `mapping_check`. A [`ProcessMaps`] describes
//! the process that made its first query, so a forked child must not use that of its parent.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dapl::provider::Region;
use dapl::runtime::mappings::{MappingLookup, PageRights};

/// Maximum number of mappings in one lookup. The result for a region with more mappings is `Unknown`.
const MAX_MAPPINGS: usize = 16;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct VmaQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const PROCMAP_QUERY: libc::Ioctl = libc::_IOWR::<VmaQuery>(b'f' as u32, 17);
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// The file `/proc/self/maps`, opened by the first query.
#[derive(Debug, Default)]
pub struct ProcessMaps {
    file: OnceLock<Option<File>>,
    is_unsupported: AtomicBool,
}

impl ProcessMaps {
    /// Checks whether all of a region is mapped with these rights (`shared` is ignored).
    ///
    /// Calls `last_page` with the last byte of each part that maps a file. `last_page` returns whether that byte can be
    /// accessed, because the mapping of a truncated file still exists, but its last pages do not.
    pub fn lookup(&self, region: Region, rights: PageRights, last_page: impl Fn(Region) -> bool) -> MappingLookup {
        let end = region.address.saturating_add(region.length);
        let mut at = region.address;
        for _ in 0..MAX_MAPPINGS {
            let query = match self.query(at) {
                Ok(Some(query)) => query,
                Ok(None) => return MappingLookup::Unmapped,
                Err(()) => return MappingLookup::Unknown,
            };
            let lacks = |wanted, flag| wanted && query.vma_flags & flag == 0;
            if lacks(rights.read, READABLE) || lacks(rights.write, WRITABLE) {
                return MappingLookup::Forbidden;
            }
            let until = query.vma_end.min(end);
            if query.inode != 0 && !last_page(Region { address: until - 1, length: 1 }) {
                return MappingLookup::Unmapped;
            }
            at = until;
            if at >= end {
                return MappingLookup::Permitted;
            }
        }
        MappingLookup::Unknown
    }

    /// Returns the mapping at an address. Fails if the kernel does not support or allow the query.
    fn query(&self, address: u64) -> Result<Option<VmaQuery>, ()> {
        if self.is_unsupported.load(Ordering::Relaxed) {
            return Err(());
        }
        let file = self.file.get_or_init(|| File::open("/proc/self/maps").ok()).as_ref().ok_or(())?;
        let mut query = VmaQuery { size: size_of::<VmaQuery>() as u64, query_addr: address, ..VmaQuery::default() };
        // SAFETY: the kernel reads and writes only `query`, whose size is in its first field.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if done == 0 => Ok(Some(query).filter(|query| query.vma_end > address)),
            Some(libc::ENOENT) => Ok(None),
            error => {
                log::debug!("PROCMAP_QUERY: error {error:?}; memory is checked page by page");
                self.is_unsupported.store(true, Ordering::Relaxed);
                Err(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const PAGE: usize = 4096;

    fn map(pages: usize, shared: bool) -> u64 {
        let flags = libc::MAP_ANONYMOUS | if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    #[test]
    fn lookup_detects_unmapped_pages_missing_rights_and_truncated_files() {
        let (maps, at) = (ProcessMaps::default(), map(8, false));
        let files = Cell::new(0);
        let lookup = |from: usize, pages: usize, write| {
            let region = Region { address: at + (from * PAGE) as u64 + 1, length: (pages * PAGE) as u64 - 1 };
            maps.lookup(region, PageRights { read: true, write, shared: false }, |_| {
                files.set(files.get() + 1);
                true
            })
        };
        if lookup(0, 8, true) == MappingLookup::Unknown {
            return eprintln!("skipped: this kernel has no PROCMAP_QUERY");
        }
        assert_eq!(lookup(0, 8, true), MappingLookup::Permitted);
        // SAFETY: only this test accesses these pages.
        unsafe {
            assert_eq!(libc::mprotect((at as usize + 2 * PAGE) as *mut _, PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect((at as usize + 3 * PAGE) as *mut _, PAGE, libc::PROT_NONE), 0);
            assert_eq!(libc::munmap((at as usize + 6 * PAGE) as *mut _, PAGE), 0);
        }
        assert_eq!([lookup(0, 3, false), lookup(0, 2, true), lookup(4, 2, true)], [MappingLookup::Permitted; 3]);
        assert_eq!([lookup(0, 3, true), lookup(0, 4, false), lookup(3, 1, false)], [MappingLookup::Forbidden; 3]);
        assert_eq!([lookup(4, 3, false), lookup(6, 1, true), lookup(6, 2, true)], [MappingLookup::Unmapped; 3]);
        assert_eq!(files.get(), 0, "anonymous memory has no file");
        let shared = Region { address: map(2, true), length: PAGE as u64 + 1 };
        let read = PageRights { read: true, ..PageRights::default() };
        assert_eq!(
            maps.lookup(shared, read, |last| last.address != shared.address + PAGE as u64),
            MappingLookup::Unmapped
        );
        assert_eq!(maps.lookup(shared, read, |_| true), MappingLookup::Permitted);
    }
}
