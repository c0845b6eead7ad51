//! The arena: the memory of the handle table. Its address space is reserved once and never unmapped; entries are
//! assigned one by one.
//!
//! The arena's lock is held only while the address space is reserved or its address is returned, while an entry is
//! assigned or quarantined, while entries are counted, and across a fork. [`arena`] returns the address range, for
//! libdat.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use dat_abi::hook::HandleArena;

use super::{HandleEntry, STRIDE};
use crate::error::{Error, Resource, Result};
use crate::runtime::sync::StaticMutex;

/// Number of table entries of one library. All but entry 0 can be live handles. The arena reserves 64 MiB of address
/// space. A page occupies memory only after an entry in it was used.
const CAPACITY: usize = 1 << 20;
/// Number of freed entries that stay quarantined, so that a stale handle stays invalid for a long time. The oldest is
/// reused when there are more, or when no unused entry is left.
const QUARANTINE: usize = 4096;
const ARENA_LEN: usize = CAPACITY * STRIDE;

/// Returns the address range of this library's handles. The first call reserves it.
pub fn arena() -> Result<HandleArena> {
    let base = ARENA.lock().base()?;
    Ok(HandleArena { base, len: ARENA_LEN, stride: STRIDE })
}

/// Number of table entries in use.
pub fn alive() -> usize {
    let arena = ARENA.lock();
    arena.used.saturating_sub(1 + arena.quarantined.len())
}

/// Returns the table entry at this address; `None` if no entry starts at the address.
#[inline(always)]
pub(super) fn at(handle: usize) -> Option<&'static HandleEntry> {
    let base = ARENA_BASE.load(Ordering::Acquire);
    let offset = handle.wrapping_sub(base);
    if base == 0 || offset >= ARENA_LEN || !offset.is_multiple_of(STRIDE) {
        return None;
    }
    // SAFETY: the address is in the arena and at the start of an entry. The arena is never unmapped and all its bytes
    // are readable. Every field is an atomic, so zeros and concurrent changes are valid.
    Some(unsafe { &*(handle as *const HandleEntry) })
}

/// Assigns a table entry to a new handle and returns its address. The entry is an unused one, or the one that has been
/// quarantined longest.
pub(super) fn allocate_entry() -> Result<usize> {
    ARENA.lock().allocate_entry()
}

/// Locks the arena while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    ARENA.lock()
}

/// Quarantines the freed table entry at this address.
pub(super) fn quarantine(handle: usize) {
    ARENA.lock().quarantined.push_back(handle);
}

/// Base address of the arena, 0 until it is reserved; written once.
static ARENA_BASE: AtomicUsize = AtomicUsize::new(0);
static ARENA: StaticMutex<Arena> = StaticMutex::new(Arena { used: 0, quarantined: VecDeque::new() });

struct Arena {
    /// Number of table entries that were used at least once. Entry 0 never becomes a handle; its futex word is cleared
    /// in a forked child (see `mark`).
    used: usize,
    quarantined: VecDeque<usize>,
}

impl Arena {
    fn base(&mut self) -> Result<usize> {
        match ARENA_BASE.load(Ordering::Acquire) {
            0 => self.reserve(),
            base => Ok(base),
        }
    }

    fn reserve(&mut self) -> Result<usize> {
        // SAFETY: the call creates an anonymous mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ARENA_LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            log::error!(
                "cannot reserve {ARENA_LEN} bytes of address space for handles: {}; raise the limit of address space (ulimit -v)",
                std::io::Error::last_os_error()
            );
            return Err(Error::Exhausted(Resource::Memory));
        }
        // SAFETY: the range was mapped above. On a kernel without this advice, inherited handles stay valid in a child,
        // as with other DAT libraries.
        unsafe { libc::madvise(base, ARENA_LEN, libc::MADV_WIPEONFORK) };
        ARENA_BASE.store(base as usize, Ordering::Release);
        self.used = 1;
        self.mark();
        Ok(base as usize)
    }

    /// Marks the arena as belonging to this process. A forked child assigns only entries after those that the parent
    /// has used, so that a handle of the parent is never a handle of the child.
    fn mark(&mut self) {
        self.quarantined.clear();
        if let Some(entry) = at(ARENA_BASE.load(Ordering::Acquire)) {
            entry.futex.store(1, Ordering::Relaxed);
        }
    }

    fn allocate_entry(&mut self) -> Result<usize> {
        let base = self.base()?;
        if at(base).is_some_and(|entry| entry.futex.load(Ordering::Relaxed) == 0) {
            self.mark(); // in a forked child the kernel has cleared the arena
        }
        if self.quarantined.len() > QUARANTINE || self.used == CAPACITY {
            return self.quarantined.pop_front().ok_or(Error::Exhausted(Resource::Memory));
        }
        self.used += 1;
        Ok(base + (self.used - 1) * STRIDE)
    }
}
