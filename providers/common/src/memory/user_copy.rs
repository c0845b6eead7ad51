//! Copies between registered memory of the consumer and a provider's buffers. A copy fails where a plain copy would
//! cause a signal, because the consumer has unmapped, protected or truncated the memory since it was registered.
//!
//! A SIGSEGV handler would interfere with the program's own signal handling. Copies by the kernel report such memory as
//! an error, but cost a system call. So memory that was checked a moment ago is copied directly. Other memory is copied
//! by the kernel, or checked before the copy. A "range" is the memory of one copy. The rules are:
//!
//! - A page that was found usable counts as usable until the current time slot ends. A slot has 2^19 ticks of the time
//!   stamp counter on x86-64, or 0.5 ms elsewhere (`slot`). A table has one word per page. A copy of recently used
//!   memory reads only that word.
//! - The kernel (`process_vm_readv` on this process) makes the first two copies in a slot that use unrecorded pages and
//!   have at most 16 KiB. With these copies, the memory cannot change between check and use. Only the pages of the range
//!   are recorded.
//! - A program that uses many pages in a slot would need a system call for each copy. So after these two copies, and for
//!   longer copies, one check covers the 256 KiB blocks around the range, as far as they belong to its registration, or
//!   all of a registration that is not longer than a block.
//! - Ranges longer than 512 KiB are checked each time, and nothing is recorded.
//!
//! Limits of the method: an access still faults if the memory is unmapped within the slot of its last check, or between
//! check and copy. The functions acquire no lock.

mod copying;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use self::copying::copy;
use self::copying::{copy_body, copy_words};
use crate::memory::mapping_check::{self, is_accessible};
use crate::memory::vma_query::ProcessMaps;
use dapl::provider::Region;
use dapl::runtime::mappings::{MappingLookup, PageRights};

/// A time slot has 2^`SLOT_BITS` ticks of the clock. Memory in continuous use is checked once per slot. The check takes
/// 1 us, which is 0.4 % of a slot at 2 GHz.
const SLOT_BITS: u32 = 19;
/// A page of the table has 2^`PAGE_BITS` bytes, which divides every page size of Linux.
const PAGE_BITS: u32 = 12;
/// The table has 2^`TABLE_BITS` entries, indexed by the low bits of page numbers. It covers 16 MiB of memory at a time.
const TABLE_BITS: u32 = 12;
const TABLE_LEN: usize = 1 << TABLE_BITS;
/// Ranges longer than this are checked at each copy, because the check is cheap compared with the copy: it takes two
/// system calls. sm copies no longer part at once.
const MAX_CACHED_CHECK_BYTES: usize = 512 << 10;
/// Ranges longer than this are not copied by the kernel, because a check and a direct copy are faster.
const KERNEL_MAX: usize = 16 << 10;
/// The kernel makes at most this number of copies of unrecorded pages per slot.
const MAX_KERNEL_COPIES: u64 = 2;
/// After [`MAX_KERNEL_COPIES`] copies in a slot, one check covers all pages of a block of this size.
const BLOCK: u64 = 256 << 10;
/// Regions up to this size are checked by populating their pages, larger regions by a query of their mappings.
const SMALL_REGION: u64 = 2 << PAGE_BITS;

/// Each word records a usable page, the slot in which it was checked, and whether it may be written.
static TABLE: [AtomicU64; TABLE_LEN] = [const { AtomicU64::new(0) }; TABLE_LEN];
/// The current slot, and the number of copies of unrecorded pages in this slot that had at most [`KERNEL_MAX`] bytes.
static MISSES: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(SLOT_MASK <= u32::MAX as u64);

/// A bit that is set in each used word of the table, so that an unused word matches no page.
///
/// From the highest bit on, a word has the upper 33 bits of the page number (for addresses of 57 bits), this bit, the
/// slot (29 bits, which wrap after a day), and whether the page may be written.
const ALWAYS: u64 = 1 << 30;
const SLOT_MASK: u64 = ALWAYS - 1 - WRITABLE;
const WRITABLE: u64 = 1;

/// The registration that contains a range, and the checker of its IA. Needed only if the range must be checked.
pub struct RegisteredRange<'a> {
    pub region: Region,
    pub checker: &'a MappingChecker,
}

/// Checks the mappings of the process that created the checker. Each IA has one.
pub struct MappingChecker {
    pid: libc::pid_t,
    maps: ProcessMaps,
}

impl Default for MappingChecker {
    fn default() -> Self {
        MappingChecker { pid: std::process::id() as libc::pid_t, maps: ProcessMaps::default() }
    }
}

impl MappingChecker {
    /// Whether a region may be registered: it must be readable, and also writable if `write` is true.
    ///
    /// For anonymous memory, one query of the mappings is sufficient, because transfers check it again. Other memory,
    /// and all memory if the query has no result, is checked by [`mapping_check::is_usable`].
    pub fn may_register(&self, region: Region, write: bool) -> bool {
        if region.length == 0 {
            return true;
        }
        let has_file = Cell::new(false);
        let rights = PageRights { read: true, write, shared: false };
        let found = self.maps.lookup(region, rights, |_| {
            has_file.set(true);
            true
        });
        match found {
            MappingLookup::Unmapped | MappingLookup::Forbidden => false,
            MappingLookup::Permitted if !has_file.get() => true,
            MappingLookup::Permitted | MappingLookup::Unknown => mapping_check::is_usable(region, write),
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Direction {
    /// From consumer memory.
    Read,
    /// Into consumer memory.
    Write,
}

/// Copies `length` bytes of consumer memory at `address` to `to`. Returns false if some of this memory is not mapped or
/// not readable. The bytes at `to` are then undefined.
///
/// # Safety
/// The mapped part of the consumer's `length` bytes may be read by this call. As many bytes at `to` are writable and do
/// not overlap them.
#[inline]
pub unsafe fn read<'a>(
    address: u64,
    to: *mut u8,
    length: usize,
    registration: impl FnOnce() -> RegisteredRange<'a>,
) -> bool {
    if was_readable(address, length) {
        // SAFETY: the table shows that the consumer's memory was usable in this time slot. The caller guarantees the
        // other conditions. No program polls the provider's buffer `to`, so its last byte need not be written last.
        unsafe { copy_body(address as *const u8, to, length) };
        return true;
    }
    // SAFETY: the caller guarantees the same conditions.
    unsafe { copy_checked(Direction::Read, address, to, length, &registration()) }
}

/// Same as [`read`], but writes the last byte last, because a program of the peer may poll the memory at `to`.
///
/// # Safety
/// Same as [`read`].
#[inline]
pub unsafe fn read_in_order<'a>(
    address: u64,
    to: *mut u8,
    length: usize,
    registration: impl FnOnce() -> RegisteredRange<'a>,
) -> bool {
    if was_readable(address, length) {
        // SAFETY: the table shows that the consumer's memory was usable in this time slot. The caller guarantees the
        // other conditions.
        unsafe { copy(address as *const u8, to, length) };
        return true;
    }
    // SAFETY: the caller guarantees the same conditions. `copy_checked` also writes the last byte last.
    unsafe { copy_checked(Direction::Read, address, to, length, &registration()) }
}

/// Whether all pages of the memory were found readable in the current time slot.
#[inline(always)]
fn was_readable(address: u64, length: usize) -> bool {
    let now = TimeSlot::now();
    is_recent(address, length, now, Direction::Read) || is_recent_range(address, length, now, Direction::Read)
}

/// Same as [`read`] for bytes in one page that was found usable in the time slot `now`. Otherwise returns false and
/// copies nothing.
///
/// # Safety
/// Same as [`read`].
#[inline(always)]
pub unsafe fn read_recent(address: u64, to: *mut u8, length: usize, now: TimeSlot) -> bool {
    let is_recent = is_recent(address, length, now, Direction::Read);
    if is_recent {
        // SAFETY: the table shows that the consumer's memory was usable in this time slot. The caller guarantees the
        // other conditions.
        unsafe { copy_body(address as *const u8, to, length) };
    }
    is_recent
}

/// Copies `length` bytes from `from` to consumer memory at `address`, the last byte last. Returns false if some of this
/// memory is not mapped or not writable. Its bytes are then undefined.
///
/// # Safety
/// The mapped part of the consumer's `length` bytes may be written by this call. As many bytes at `from` are readable
/// and do not overlap them.
#[inline]
pub unsafe fn write<'a>(
    from: *const u8,
    address: u64,
    length: usize,
    registration: impl FnOnce() -> RegisteredRange<'a>,
) -> bool {
    let now = TimeSlot::now();
    let is_recent =
        is_recent(address, length, now, Direction::Write) || is_recent_range(address, length, now, Direction::Write);
    if is_recent {
        // SAFETY: the table shows that the consumer's memory was usable in this time slot. The caller guarantees the
        // other conditions.
        unsafe { copy(from, address as *mut u8, length) };
        return true;
    }
    // SAFETY: the caller guarantees the same conditions.
    unsafe { copy_checked(Direction::Write, address, from.cast_mut(), length, &registration()) }
}

/// Same as [`write()`] for bytes in one page that was found usable in the time slot `now`. Otherwise returns false and
/// copies nothing.
///
/// # Safety
/// Same as [`write()`].
#[inline(always)]
pub unsafe fn write_recent(from: *const u8, address: u64, length: usize, now: TimeSlot) -> bool {
    let is_recent = is_recent(address, length, now, Direction::Write);
    if is_recent {
        // SAFETY: the table shows that the consumer's memory was usable in this time slot. The caller guarantees the
        // other conditions.
        unsafe { copy_words(from, address as *mut u8, length) };
    }
    is_recent
}

/// Whether consumer memory may be written. Does not check again memory that was found writable in this time slot. Logs
/// a warning if the memory may not be written.
pub fn may_write<'a>(address: u64, length: usize, registration: impl FnOnce() -> RegisteredRange<'a>) -> bool {
    let now = TimeSlot::now();
    is_recent(address, length, now, Direction::Write) || is_writable(address, length, now, &registration())
}

/// Checks memory whose pages were not used recently.
#[cold]
fn is_writable(address: u64, length: usize, now: TimeSlot, registration: &RegisteredRange<'_>) -> bool {
    let range = Region { address, length: length as u64 };
    let is_writable = is_usable(range, Direction::Write, &registration.checker.maps);
    if is_writable {
        cache_pages(range, now.0, Direction::Write);
    } else {
        warn_unusable(range, Direction::Write);
    }
    is_writable
}

fn warn_unusable(Region { address, length }: Region, direction: Direction) {
    let done = if direction == Direction::Write { "written" } else { "read" };
    log::warn!(
        "transfer fails: {length} bytes of registered memory at {address:#x} are no longer mapped, or may not be {done}; \
         free the LMR before its memory is unmapped or protected"
    );
}

/// The number of a time slot, as it is stored in a word of the table.
#[derive(Clone, Copy, Debug)]
pub struct TimeSlot(u64);

impl TimeSlot {
    /// Returns the current slot. Reading the time takes about 10 ns.
    #[inline(always)]
    pub fn now() -> Self {
        TimeSlot(slot())
    }
}

#[inline]
fn slot() -> u64 {
    // The time stamp counter gives slots of 105 us at 5 GHz, and of 262 us at 2 GHz.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (low, high): (u32, u32);
        // SAFETY: the instruction only reads a counter. The two halves of the result stay separate, because the
        // compiler then shifts them in one instruction (`shld`).
        unsafe {
            std::arch::asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
        }
        let ticks = high << (u32::BITS - (SLOT_BITS - 1)) | low >> (SLOT_BITS - 1);
        u64::from(ticks & SLOT_MASK as u32)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes the time into a local variable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        let ticks = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
        ticks >> (SLOT_BITS - 1) & SLOT_MASK
    }
}

/// Returns the table word of a page that may be written.
#[inline]
fn word(address: u64, slot: u64) -> u64 {
    address >> (PAGE_BITS + TABLE_BITS) << 31 | ALWAYS | slot | WRITABLE
}

#[inline]
fn entry(address: u64) -> &'static AtomicU64 {
    &TABLE[(address >> PAGE_BITS) as usize % TABLE_LEN]
}

#[inline]
fn is_recorded(address: u64, slot: u64, direction: Direction) -> bool {
    entry(address).load(Ordering::Relaxed) | u64::from(direction == Direction::Read) == word(address, slot)
}

/// Whether the bytes are in one page that was found usable in the time slot `now`. Returns false for bytes in several
/// pages.
#[inline]
fn is_recent(address: u64, length: usize, now: TimeSlot, direction: Direction) -> bool {
    let last = address.wrapping_add(length as u64).wrapping_sub(1);
    (address ^ last) >> PAGE_BITS == 0 && is_recorded(address, now.0, direction)
}

/// Whether all pages of a range were found usable in the time slot `now`. Returns false for ranges longer than
/// `MAX_CACHED_CHECK_BYTES`.
#[inline(never)]
fn is_recent_range(address: u64, length: usize, now: TimeSlot, direction: Direction) -> bool {
    length <= MAX_CACHED_CHECK_BYTES
        && pages(Region { address, length: length as u64 }).all(|page| is_recorded(page, now.0, direction))
}

/// Returns the address of each page of a region.
fn pages(region: Region) -> impl Iterator<Item = u64> {
    let count = (region.address + region.length).div_ceil(1 << PAGE_BITS) - (region.address >> PAGE_BITS);
    let first = region.address >> PAGE_BITS;
    (first..first + if region.length == 0 { 0 } else { count }).map(|page| page << PAGE_BITS)
}

/// Records that a region was usable in a slot.
fn cache_pages(region: Region, slot: u64, direction: Direction) {
    for page in pages(region) {
        // A read does not clear the record that a page may be written.
        if direction == Direction::Write || !is_recorded(page, slot, Direction::Write) {
            entry(page).store(word(page, slot) & !u64::from(direction == Direction::Read), Ordering::Relaxed);
        }
    }
}

/// Counts a copy of unrecorded pages that has at most [`KERNEL_MAX`] bytes. Returns true for the first [`MAX_KERNEL_COPIES`] in a slot.
fn count_miss(slot: u64) -> bool {
    let seen = MISSES.load(Ordering::Relaxed);
    let count = if seen >> 32 == slot { seen & 0xFFFF } else { 0 };
    MISSES.store(slot << 32 | (count + 1).min(0xFFFF), Ordering::Relaxed);
    count < MAX_KERNEL_COPIES
}

/// Copies a range that was not used recently. Logs a warning and returns false if the consumer's memory is not usable.
///
/// # Safety
/// Same as [`read`] or [`write()`].
#[cold]
unsafe fn copy_checked(
    direction: Direction,
    address: u64,
    buffer: *mut u8,
    length: usize,
    registration: &RegisteredRange<'_>,
) -> bool {
    let range = Region { address, length: length as u64 };
    let slot = slot();
    let is_short = length <= MAX_CACHED_CHECK_BYTES;
    if length <= KERNEL_MAX && count_miss(slot) {
        // SAFETY: the caller guarantees the same conditions.
        if unsafe { copy_by_kernel(direction, range, buffer, registration.checker.pid) } {
            cache_pages(range, slot, direction);
            return true;
        }
    } else if is_short {
        let block = around(range, registration.region);
        if is_usable(block, direction, &registration.checker.maps) {
            cache_pages(block, slot, direction);
            // SAFETY: `is_usable` has just checked the consumer's memory. The caller guarantees the other conditions.
            unsafe { copy_directly(direction, address, buffer, length) };
            return true;
        }
    }
    if !is_usable(range, direction, &registration.checker.maps) {
        warn_unusable(range, direction);
        return false;
    }
    if is_short {
        cache_pages(range, slot, direction);
    }
    // SAFETY: `is_usable` has just checked the consumer's memory. The caller guarantees the other conditions.
    unsafe { copy_directly(direction, address, buffer, length) };
    true
}

/// Copies a range by CPU instructions.
///
/// # Safety
/// Same as [`read`] or [`write()`]. In addition, the consumer's memory is mapped with the right that the copy needs.
unsafe fn copy_directly(direction: Direction, address: u64, buffer: *mut u8, length: usize) {
    // SAFETY: the caller guarantees that both ranges are mapped and may be used by this call.
    unsafe {
        match direction {
            Direction::Read => copy(address as *const u8, buffer, length),
            Direction::Write => copy(buffer, address as *mut u8, length),
        }
    }
}

/// Returns the blocks that contain a range, limited to its registration, or the whole registration if it is short.
fn around(range: Region, registration: Region) -> Region {
    let (last, end) = (range.address + range.length, registration.address.saturating_add(registration.length));
    if range.address < registration.address || last > end {
        return range; // the memory was deregistered, so the registration is empty or another one
    }
    if registration.length <= BLOCK {
        return registration;
    }
    let from = (range.address & !(BLOCK - 1)).max(registration.address);
    Region { address: from, length: last.next_multiple_of(BLOCK).min(end) - from }
}

/// Checks whether all of a region may be read, or written in the direction `Write`.
fn is_usable(region: Region, direction: Direction, maps: &ProcessMaps) -> bool {
    let write = direction == Direction::Write;
    if region.length <= SMALL_REGION {
        return is_accessible(region, write);
    }
    match maps.lookup(region, PageRights { read: true, write, shared: false }, |last| is_accessible(last, write)) {
        MappingLookup::Permitted => true,
        MappingLookup::Unmapped | MappingLookup::Forbidden => false,
        MappingLookup::Unknown => is_accessible(region, write),
    }
}

/// Copies a range by a system call, the last byte last. Returns false if the system call fails.
///
/// # Safety
/// Same as [`read`] or [`write()`].
unsafe fn copy_by_kernel(direction: Direction, range: Region, buffer: *mut u8, pid: libc::pid_t) -> bool {
    /// Whether a sandbox forbids the system call. Without a sandbox, a process may always access its own memory.
    static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
    let Some(body) = (range.length as usize).checked_sub(1) else { return true };
    if IS_FORBIDDEN.load(Ordering::Relaxed) {
        return false;
    }
    let vector = |base: *mut u8| {
        [
            libc::iovec { iov_base: base.cast(), iov_len: body },
            libc::iovec { iov_base: base.wrapping_add(body).cast(), iov_len: 1 },
        ]
    };
    let (buffer, consumer) = (vector(buffer), vector(range.address as *mut u8));
    let (from, to) = match direction {
        Direction::Read => (&consumer, &buffer),
        Direction::Write => (&buffer, &consumer),
    };
    // process_vm_readv(2) makes the copies of both directions, because valgrind does not track the writes of
    // process_vm_writev(2), and would report received data as uninitialised.
    // SAFETY: both vectors outlive the call. The kernel checks the memory that they describe, and the caller guarantees
    // that this call may use it.
    let copied = unsafe { libc::process_vm_readv(pid, to.as_ptr(), 2, from.as_ptr(), 2, 0) };
    if copied < 0 && matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        IS_FORBIDDEN.store(true, Ordering::Relaxed);
    }
    copied == range.length as isize
}

#[cfg(test)]
mod tests;
