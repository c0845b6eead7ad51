//! Copies between registered memory of the consumer and a provider's own buffers, which fail where a plain copy would fault:
//! the consumer may have unmapped or protected the memory since it was registered, or cut off the file behind it.
//!
//! A handler for SIGSEGV is out of the question: it would change what the program has said about its own signals. Copies by
//! the kernel report such memory as an error, but cost a system call. So memory that was found usable a moment ago is copied
//! directly, and all other memory is checked first:
//!
//! - Whether a page is usable is remembered until the current time slot ends (2^19 ticks of the time stamp counter on x86-64,
//!   0.5 ms elsewhere; see `slot`). The table below has one word per page, which is all that a copy of recently used
//!   memory looks at.
//! - The first copies of a slot that meet other pages go through the kernel (`process_vm_readv` and `process_vm_writev` on
//!   this process): there is no gap between check and use, and nothing but the pages used is remembered.
//! - A program that uses many pages in a slot would pay a system call for each. From then on up to 256 KiB of the
//!   registration around the piece are checked at once.
//! - Pieces beyond 64 KiB are checked each time, and nothing is remembered.
//!
//! What remains: memory that is taken away within a slot of its last check, or in the instant between check and copy, faults.
//! No lock is taken.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

use crate::memory::mapping_check::{self, is_accessible};
use crate::memory::vma_query::Maps;
use dapl::provider::Region;
use dapl::runtime::mappings::{Found, Rights};

/// Ticks of a slot. A copy of memory that is in use all the time meets one check per slot, which takes 1 us: half a percent.
const SLOT_BITS: u32 = 19;
/// The table counts in pages of this size, which divides every page size of Linux.
const PAGE_BITS: u32 = 12;
/// Pages in the table, placed by the low bits of their numbers: 16 MiB of memory that is in use at a time.
const PLACE_BITS: u32 = 12;
const PLACES: usize = 1 << PLACE_BITS;
/// Longer pieces are checked each time they are copied: that takes little beside the copy.
const LONG: usize = 64 << 10;
/// Longer pieces are not copied by the kernel, which takes longer than to check and to copy.
const KERNEL_MOST: usize = 16 << 10;
/// Copies of a slot that the kernel makes if they meet pages that were not checked.
const EXACT: u64 = 2;
/// From then on so much of the registration is checked together.
const BLOCK: u64 = 256 << 10;
/// Up to so many bytes pages are asked about one by one, which also makes them present.
const FEW_PAGES: u64 = 2 << PAGE_BITS;

/// For each place, which page was found usable, in which slot, and whether for writing.
static SEEN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// The current slot, and how many copies have met pages that were not checked in it.
static MISSES: AtomicU64 = AtomicU64::new(0);

/// A word of the table: the upper bits of the page number (33, for addresses of 57 bits), a bit that is always set, the slot
/// (29 bits: it comes round after a day), and whether the page may be written.
const ALWAYS: u64 = 1 << 30;
const SLOT_MASK: u64 = ALWAYS - 1 - WRITABLE;
const WRITABLE: u64 = 1;

/// The registration that a piece lies in, and the process it belongs to. Built only when a piece has to be checked.
#[derive(Debug)]
pub struct Registration<'a> {
    /// All of the registration.
    pub region: Region,
    /// How this process answers questions about its memory.
    pub checker: &'a Checker,
}

/// What checks are made with. One per IA: it belongs to the process that opened it.
#[derive(Debug)]
pub struct Checker {
    pid: libc::pid_t,
    maps: Maps,
}

impl Default for Checker {
    fn default() -> Self {
        Checker { pid: std::process::id() as libc::pid_t, maps: Maps::default() }
    }
}

impl Checker {
    /// May a region be registered: read, all of it, and written if `write`? Anonymous memory is asked about in one call and not
    /// made present, since transfers check it again; for all other memory see [`mapping_check::is_usable`].
    pub fn may_register(&self, region: Region, write: bool) -> bool {
        if region.length == 0 {
            return true;
        }
        let has_file = Cell::new(false);
        let rights = Rights { read: true, write, shared: false };
        let found = self.maps.look(region, rights, |_| {
            has_file.set(true);
            true
        });
        match found {
            Found::Missing | Found::Lacking => false,
            Found::Whole if !has_file.get() => true,
            Found::Whole | Found::Unknown => mapping_check::is_usable(region, write),
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Direction {
    /// Out of the consumer's memory.
    Read,
    /// Into the consumer's memory.
    Write,
}

/// Copies `length` bytes of consumer memory at `address` to `to`. False: some of it is not there or may not be read, and
/// what is at `to` is undefined.
///
/// # Safety
/// What is mapped of the consumer's `length` bytes is this call's to read; as many at `to` are writable and do not overlap them.
#[inline]
pub unsafe fn read<'a>(
    address: u64,
    to: *mut u8,
    length: usize,
    registration: impl FnOnce() -> Registration<'a>,
) -> bool {
    let is_recent = is_recent(address, length, Direction::Read) || is_recent_piece(address, length, Direction::Read);
    if is_recent {
        // SAFETY: this function's own contract; the memory was usable a moment ago.
        unsafe { copy(address as *const u8, to, length) };
        return true;
    }
    // SAFETY: this function's own contract.
    unsafe { copy_checked(Direction::Read, address, to, length, &registration()) }
}

/// Copies `length` bytes from `from` to consumer memory at `address`, the last byte last. False: some of it is not there or
/// may not be written, and what is there is undefined.
///
/// # Safety
/// What is mapped of the consumer's `length` bytes is this call's to write; as many at `from` are readable and do not overlap them.
#[inline]
pub unsafe fn write<'a>(
    from: *const u8,
    address: u64,
    length: usize,
    registration: impl FnOnce() -> Registration<'a>,
) -> bool {
    let is_recent = is_recent(address, length, Direction::Write) || is_recent_piece(address, length, Direction::Write);
    if is_recent {
        // SAFETY: this function's own contract; the memory was usable a moment ago.
        unsafe { copy(from, address as *mut u8, length) };
        return true;
    }
    // SAFETY: this function's own contract.
    unsafe { copy_checked(Direction::Write, address, from.cast_mut(), length, &registration()) }
}

/// The current time slot, in the bits of a table word. Nothing about its length depends on the load of the machine.
#[inline]
fn slot() -> u64 {
    // 105 us at 5 GHz, 262 us at 2 GHz.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: reads a counter.
    let ticks = unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let ticks = {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the time there.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    };
    ticks >> (SLOT_BITS - 1) & SLOT_MASK
}

/// The word of a page that is usable for writing.
#[inline]
fn word(address: u64, slot: u64) -> u64 {
    address >> (PAGE_BITS + PLACE_BITS) << 31 | ALWAYS | slot | WRITABLE
}

#[inline]
fn place(address: u64) -> &'static AtomicU64 {
    &SEEN[(address >> PAGE_BITS) as usize % PLACES]
}

#[inline]
fn holds(address: u64, slot: u64, way: Direction) -> bool {
    place(address).load(Ordering::Relaxed) | u64::from(way == Direction::Read) == word(address, slot)
}

/// Was a piece within one page found usable in this slot?
#[inline]
fn is_recent(address: u64, length: usize, way: Direction) -> bool {
    let last = address.wrapping_add(length as u64).wrapping_sub(1);
    (address ^ last) >> PAGE_BITS == 0 && holds(address, slot(), way)
}

/// The same for a piece of any length up to `LONG`.
#[inline(never)]
fn is_recent_piece(address: u64, length: usize, way: Direction) -> bool {
    let slot = slot();
    length <= LONG && pages(Region { address, length: length as u64 }).all(|page| holds(page, slot, way))
}

/// An address in each page of a region.
fn pages(region: Region) -> impl Iterator<Item = u64> {
    let count = (region.address + region.length).div_ceil(1 << PAGE_BITS) - (region.address >> PAGE_BITS);
    let first = region.address >> PAGE_BITS;
    (first..first + if region.length == 0 { 0 } else { count }).map(|page| page << PAGE_BITS)
}

/// Remembers that a region was usable in a slot.
fn remember(region: Region, slot: u64, way: Direction) {
    for page in pages(region) {
        // A page that may be written stays so when it is read.
        if way == Direction::Write || !holds(page, slot, Direction::Write) {
            place(page).store(word(page, slot) & !u64::from(way == Direction::Read), Ordering::Relaxed);
        }
    }
}

/// Counts a copy that meets pages which were not checked. Are there still few in this slot?
fn is_rare(slot: u64) -> bool {
    let seen = MISSES.load(Ordering::Relaxed);
    let count = if seen >> 32 == slot { seen & 0xFFFF } else { 0 };
    MISSES.store(slot << 32 | (count + 1).min(0xFFFF), Ordering::Relaxed);
    count < EXACT
}

/// Copies a piece that was not used recently. Says why if it cannot be used.
///
/// # Safety
/// As [`read`] or [`write`].
#[cold]
unsafe fn copy_checked(
    way: Direction,
    address: u64,
    buffer: *mut u8,
    length: usize,
    registration: &Registration<'_>,
) -> bool {
    let piece = Region { address, length: length as u64 };
    let slot = slot();
    let is_short = length <= LONG;
    if is_short && is_rare(slot) {
        // SAFETY: this function's own contract.
        if length <= KERNEL_MOST && unsafe { copy_by_kernel(way, piece, buffer, registration.checker.pid) } {
            remember(piece, slot, way);
            return true;
        }
    } else if is_short {
        let block = around(piece, registration.region);
        if is_usable(block, way, &registration.checker.maps) {
            remember(block, slot, way);
            // SAFETY: this function's own contract, and the memory was usable just now.
            unsafe { copy_directly(way, address, buffer, length) };
            return true;
        }
    }
    if !is_usable(piece, way, &registration.checker.maps) {
        let done = if way == Direction::Write { "written" } else { "read" };
        log::warn!(
            "transfer fails: {length} bytes of registered memory at {address:#x} are no longer mapped, or may not be {done}"
        );
        return false;
    }
    if is_short {
        remember(piece, slot, way);
    }
    // SAFETY: as above.
    unsafe { copy_directly(way, address, buffer, length) };
    true
}

/// # Safety
/// As [`read`] or [`write`], and the memory can be touched.
unsafe fn copy_directly(way: Direction, address: u64, buffer: *mut u8, length: usize) {
    // SAFETY: this function's own contract.
    unsafe {
        match way {
            Direction::Read => copy(address as *const u8, buffer, length),
            Direction::Write => copy(buffer, address as *mut u8, length),
        }
    }
}

/// The blocks that a piece lies in, as far as they belong to its registration.
fn around(piece: Region, registration: Region) -> Region {
    let (last, end) = (piece.address + piece.length, registration.address.saturating_add(registration.length));
    if piece.address < registration.address || last > end {
        return piece; // the registration has ended
    }
    let from = (piece.address & !(BLOCK - 1)).max(registration.address);
    Region { address: from, length: last.next_multiple_of(BLOCK).min(end) - from }
}

/// May all of a region be read, or written, now?
fn is_usable(region: Region, way: Direction, maps: &Maps) -> bool {
    let write = way == Direction::Write;
    if region.length <= FEW_PAGES {
        return is_accessible(region, write);
    }
    match maps.look(region, Rights { read: true, write, shared: false }, |last| is_accessible(last, write)) {
        Found::Whole => true,
        Found::Missing | Found::Lacking => false,
        Found::Unknown => is_accessible(region, write),
    }
}

/// Has the kernel copy a piece, the last byte last. False: it may not or cannot, for whatever reason.
///
/// # Safety
/// As [`read`] or [`write`].
unsafe fn copy_by_kernel(way: Direction, piece: Region, buffer: *mut u8, pid: libc::pid_t) -> bool {
    /// A sandbox forbids the calls. A process may always reach its own memory otherwise.
    static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
    let Some(body) = (piece.length as usize).checked_sub(1) else { return true };
    if IS_FORBIDDEN.load(Ordering::Relaxed) {
        return false;
    }
    let vector = |base: *mut u8| {
        [
            libc::iovec { iov_base: base.cast(), iov_len: body },
            libc::iovec { iov_base: base.wrapping_add(body).cast(), iov_len: 1 },
        ]
    };
    let (ours, consumers) = (vector(buffer), vector(piece.address as *mut u8));
    // SAFETY: both vectors live during the call; the kernel checks the memory that they name, and by this function's own
    // contract it is this call's to use.
    let moved = unsafe {
        match way {
            Direction::Read => libc::process_vm_readv(pid, ours.as_ptr(), 2, consumers.as_ptr(), 2, 0),
            Direction::Write => libc::process_vm_writev(pid, ours.as_ptr(), 2, consumers.as_ptr(), 2, 0),
        }
    };
    if moved < 0 && matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        IS_FORBIDDEN.store(true, Ordering::Relaxed);
    }
    moved == piece.length as isize
}

/// Copies upwards, the last byte last: programs poll it.
///
/// # Safety
/// Both ranges are mapped. Either may be changed by somebody else meanwhile; then the bytes are whatever was there.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let Some(body) = length.checked_sub(1) else { return };
    // SAFETY: this function's own contract. The memory is shared with people who may not keep to rules, so it is copied
    // raw, and no reference to it exists.
    unsafe {
        std::ptr::copy(from, to, body);
        let last = AtomicU8::from_ptr(from.add(body).cast_mut()).load(Ordering::Relaxed);
        // Pairs with the consumer's own load of that byte.
        fence(Ordering::Release);
        AtomicU8::from_ptr(to.add(body)).store(last, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
