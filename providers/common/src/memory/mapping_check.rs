//! Checks whether memory of this process is mapped with the rights that a registration needs. A region is checked when
//! it is registered. `user_copy` checks it again before a copy, unless it was used recently. The checks do not change
//! the content of memory.
//!
//! Also contains [`LastCheck`], with which a caller repeats a check of any kind at most once per tick of the engine, or
//! of the coarse clock while the engine sleeps. sm uses it for the check whether a peer's process is alive.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl::provider::Region;
use dapl::runtime::mappings::{self, MappingLookup, PageRights};

/// Regions up to this size in bytes are populated when they are registered, which also checks their rights. To populate
/// a larger region takes long, so its mappings are looked up in `/proc/self/maps`.
const POPULATE_MAX: u64 = 4 << 20;

/// Whether all of a region may be read, and also written if `write` is true. Called at registration. If
/// `/proc/self/maps` cannot be read, checks only that a large region is mapped.
///
/// Populates a region that consists of shared mappings, whatever its size. Otherwise a file that is too short, or a
/// full file system, would cause SIGBUS later.
pub fn is_usable(region: Region, write: bool) -> bool {
    if region.length <= POPULATE_MAX {
        return is_accessible(region, write);
    }
    let lookup = |shared| mappings::lookup(region, PageRights { read: true, write, shared });
    match lookup(false) {
        MappingLookup::Permitted => lookup(true) != MappingLookup::Permitted || is_accessible(region, write),
        MappingLookup::Unmapped | MappingLookup::Forbidden => false,
        MappingLookup::Unknown => is_mapped(region),
    }
}

/// A counter of engine ticks. The engine ticks every few milliseconds while a consumer polls. While the engine sleeps,
/// the coarse clock replaces the counter. A sleep does not reset the counter, so ticks before and after a sleep have
/// different numbers.
#[derive(Debug, Default)]
pub struct EngineTicks(AtomicU32);

impl EngineTicks {
    /// This bit is set in numbers of engine ticks, and clear in numbers from the clock.
    const ENGINE: u32 = 1 << 30;

    /// Counts a tick of the engine. If `continues` is false, the engine then sleeps, and no tick follows.
    pub fn tick(&self, continues: bool) {
        let next = self.0.load(Ordering::Relaxed).wrapping_add(1) & (Self::ENGINE - 1);
        self.0.store(if continues { next | Self::ENGINE } else { next }, Ordering::Relaxed);
    }

    /// Returns the number of the current tick, in 31 bits.
    #[inline]
    fn now(&self) -> u32 {
        let count = self.0.load(Ordering::Relaxed);
        if count & Self::ENGINE != 0 { count } else { clock() & (Self::ENGINE - 1) }
    }
}

/// The tick of the last successful check. The result of the check is valid until this tick ends.
#[derive(Debug, Default)]
pub struct LastCheck(AtomicU32);

impl LastCheck {
    /// Returns true if the check has already succeeded in this tick. Otherwise returns the result of `check`.
    #[inline]
    pub fn is_valid_or(&self, ticker: &EngineTicks, check: impl FnOnce() -> bool) -> bool {
        let now = ticker.now() << 1 | 1; // never 0, the initial value
        self.0.load(Ordering::Relaxed) == now
            || check() && {
                self.0.store(now, Ordering::Relaxed);
                true
            }
    }
}

/// Returns the coarse clock in milliseconds. It wraps after 49 days.
#[inline]
fn clock() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time into a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
}

/// Whether all of a region can be read, and also written if `write` is true, without causing a signal. Populates the
/// pages of the region.
pub fn is_accessible(region: Region, write: bool) -> bool {
    if region.length == 0 {
        return true;
    }
    match populate(region, write) {
        0 => true,
        // An access would raise a signal: the page is not mapped, is beyond the end of the file, has no space on the
        // file system, or is faulty memory.
        libc::ENOMEM | libc::EFAULT | libc::EHWPOISON => false,
        libc::EINVAL if can_populate() => {
            match mappings::lookup(region, PageRights { read: true, write, shared: false }) {
                MappingLookup::Permitted => true, // device memory: it is mapped, but the kernel cannot populate it
                MappingLookup::Unmapped | MappingLookup::Forbidden => false,
                MappingLookup::Unknown => is_mapped(region),
            }
        }
        libc::EINVAL => is_mapped(region),
        _ => true, // a temporary error, which says nothing about the mapping
    }
}

/// Populates the pages of a region for reads or writes. Returns 0, or the error number.
fn populate(Region { address, length }: Region, write: bool) -> i32 {
    let begin = address & !(page() - 1);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the call populates pages as an access to one byte would, and does not change their content.
    let done = unsafe { libc::madvise(begin as *mut libc::c_void, (address + length - begin) as usize, advice) };
    if done == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// Whether the kernel can populate pages on request (Linux 5.14 or newer).
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| populate(Region { address: (&raw const CAN) as u64, length: 1 }, false) == 0)
}

/// Whether all of a region is mapped, with any rights. Accesses no page.
fn is_mapped(Region { address, length }: Region) -> bool {
    let mut at = address & !(page() - 1);
    let end = address + length;
    let mut resident = [0u8; 1024];
    while at < end {
        let span = (end - at).min(resident.len() as u64 * page());
        // SAFETY: the kernel does not access the pages. It writes one byte per page to `resident`, and `span` has at
        // most `resident.len()` pages.
        if unsafe { libc::mincore(at as *mut libc::c_void, span as usize, resident.as_mut_ptr()) } != 0 {
            return false;
        }
        at += span.next_multiple_of(page());
    }
    true
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    const PAGE: usize = 4096;

    /// Maps eight pages of a file that has `pages` pages.
    fn map_file(pages: usize) -> (u64, std::os::fd::OwnedFd) {
        let file = rustix::fs::memfd_create("mapping_check", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, (pages * PAGE) as u64).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8 * PAGE, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        (at as u64, file)
    }

    fn protect(at: u64, rights: i32) {
        // SAFETY: only this test accesses the mapping.
        assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, PAGE, rights) }, 0);
    }

    #[test]
    fn mapped_memory_is_accessible() {
        let (at, _file) = map_file(8);
        let whole = Region { address: at + 1, length: 8 * PAGE as u64 - 1 };
        assert!(is_accessible(whole, true) && is_accessible(whole, false) && is_mapped(whole));
        assert!(is_accessible(Region { address: 8, length: 0 }, true), "an empty region is always accessible");
        assert!(
            !is_accessible(Region { address: 8, length: 1 }, false) && !is_mapped(Region { address: 8, length: 1 })
        );
    }

    #[test]
    fn memory_without_the_page_rights_is_not_accessible() {
        let (at, _file) = map_file(8);
        let two = Region { address: at, length: 2 * PAGE as u64 };
        protect(at + PAGE as u64, libc::PROT_READ);
        assert!(is_accessible(two, false) && !is_accessible(two, true));
        protect(at + PAGE as u64, libc::PROT_NONE);
        assert!(!is_accessible(two, false) && is_mapped(two));
    }

    #[test]
    fn memory_beyond_end_of_file_is_not_accessible() {
        let (at, file) = map_file(3);
        let of = |pages: usize| Region { address: at, length: (pages * PAGE) as u64 };
        assert!(is_accessible(of(3), true) && !is_accessible(of(4), true) && !is_accessible(of(4), false));
        assert!(is_usable(of(3), true) && !is_usable(of(4), false));
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert!(!is_accessible(of(1), false));
    }

    #[test]
    fn large_region_of_truncated_file_is_refused() {
        let file = rustix::fs::memfd_create("mapping_check", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, POPULATE_MAX).unwrap();
        let length = POPULATE_MAX as usize + PAGE;
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let region = Region { address: at as u64, length: length as u64 };
        assert!(!is_usable(region, false));
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        assert!(is_usable(region, false) && !is_usable(region, true));
    }

    #[test]
    fn mapping_check_is_valid_only_until_the_next_tick() {
        let (check, ticker) = (LastCheck::default(), EngineTicks::default());
        let next_clock_tick = || {
            let begin = clock();
            while clock() == begin {
                std::thread::yield_now();
            }
        };
        let next_engine_tick = || ticker.tick(true);
        for next_tick in [&next_clock_tick as &dyn Fn(), &next_engine_tick] {
            next_tick();
            assert!(check.is_valid_or(&ticker, || true));
            next_tick();
            assert!(!check.is_valid_or(&ticker, || false));
            assert!(!check.is_valid_or(&ticker, || false), "a failed check is not remembered");
        }
    }

    #[test]
    fn engine_ticks_differ_from_each_other_and_from_clock_ticks() {
        let ticker = EngineTicks::default();
        assert!(ticker.now() < EngineTicks::ENGINE, "the clock is used");
        let mut last = ticker.now();
        for start in [0, EngineTicks::ENGINE, 2 * EngineTicks::ENGINE - 2] {
            ticker.0.store(start, Ordering::Relaxed);
            for _ in 0..4 {
                ticker.tick(true);
                let now = ticker.now();
                assert!(now != last && now & EngineTicks::ENGINE != 0 && now < 2 * EngineTicks::ENGINE, "{now:#x}");
                last = now;
            }
        }
        ticker.tick(false);
        assert!(ticker.now() < EngineTicks::ENGINE);
    }

    #[test]
    fn mapping_check_is_repeated_after_an_engine_sleep() {
        let (check, ticker) = (LastCheck::default(), EngineTicks::default());
        ticker.tick(true);
        assert!(check.is_valid_or(&ticker, || true));
        ticker.tick(false);
        ticker.tick(true);
        assert!(!check.is_valid_or(&ticker, || false), "the tick after the sleep has another number");
    }
}
