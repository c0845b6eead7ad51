//! Address ranges (arenas) in which this project's providers keep their handles. Providers add their arenas through the
//! hook, libdat's private interface for them (`dat_abi::hook`). A call reads the first word of a value passed as a
//! handle only if the value is in an arena or is the pointer of an open IA, or if a provider without the hook has been
//! registered: the handles of such a provider can be anywhere.
//!
//! `thunk` checks every handle except those of IAs against the arenas, so this check takes no lock. For the first
//! arena, the usual case, the check is two loads and a comparison. An arena stays mapped until the process ends.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dat_abi::hook::HandleArena;

/// Maximum number of arenas. A provider library has one arena, and a process loads only a few provider libraries.
const MAX_ARENAS: usize = 32;

/// Minimum stride in bytes. A handle is the address of a pointer, so handles are at least this far apart.
const ALIGN: usize = align_of::<usize>();

/// One arena; unused while its length is 0. `len` is written last and only grows afterwards.
struct Arena {
    base: AtomicUsize,
    len: AtomicUsize,
    /// The stride minus one. The stride is a power of two, since a division would cost as much as the rest of a thunk.
    mask: AtomicUsize,
}

impl Arena {
    const fn empty() -> Self {
        Self { base: AtomicUsize::new(0), len: AtomicUsize::new(0), mask: AtomicUsize::new(0) }
    }

    #[inline(always)]
    fn has(&self, address: usize) -> bool {
        // Pairs with the Release in `add`: if the length is not 0, the other fields are set.
        let len = self.len.load(Ordering::Acquire);
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        offset < len && offset & self.mask.load(Ordering::Relaxed) == 0
    }
}

/// Copy of the first arena, if its length is a power of two. One comparison then checks base, length and stride.
struct FirstArena {
    base: AtomicPtr<AtomicUsize>,
    /// Mask of the bits that are 0 in the offset of every handle. Written after `base`.
    refused: AtomicUsize,
}

/// `FirstArena::base` points to this word until the first arena has a length that is a power of two. The word is 0, so
/// its address counts as a handle without a table.
static NO_HANDLE: AtomicUsize = AtomicUsize::new(0);

/// A set of arenas; libdat has one.
pub(crate) struct Arenas {
    first: FirstArena,
    list: [Arena; MAX_ARENAS],
    /// Set when a provider without the hook is registered, and never cleared. The handles of such a provider may be
    /// outside all arenas.
    foreign: AtomicBool,
    /// Held while an arena is added or extended.
    writing: Mutex<()>,
}

/// The arenas of this process.
pub(crate) static ARENAS: Arenas = Arenas::new();

impl Arenas {
    const fn new() -> Self {
        let base = AtomicPtr::new((&raw const NO_HANDLE).cast_mut());
        let first = FirstArena { base, refused: AtomicUsize::new(usize::MAX) };
        Self {
            first,
            list: [const { Arena::empty() }; MAX_ARENAS],
            foreign: AtomicBool::new(false),
            writing: Mutex::new(()),
        }
    }

    /// Whether a value is in `first`, the copy of the first arena, so that its first word may be read even if it is not
    /// a handle. Most processes load one provider, so this check usually suffices.
    #[inline(always)]
    pub(crate) fn is_in_first(&self, address: usize) -> bool {
        // Pairs with the Release in `update_first`: the base stored before `refused` is visible.
        let refused = self.first.refused.load(Ordering::Acquire);
        address.wrapping_sub(self.first.base.load(Ordering::Relaxed) as usize) & refused == 0
    }

    /// Updates `first`, the copy of the first arena, if the arena's length is a power of two. Called after each change
    /// of an arena.
    fn update_first(&self) {
        let Arena { base, len, mask } = &self.list[0];
        let len = len.load(Ordering::Relaxed);
        if len.is_power_of_two() {
            self.first.base.store(base.load(Ordering::Relaxed) as *mut AtomicUsize, Ordering::Relaxed);
            self.first.refused.store(!(len - 1) | mask.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Whether the first word of a value passed as a handle may be read: the value is in an arena, or it may be a handle
    /// of a provider without the hook. Reading the first word is the only way to find that provider.
    pub(crate) fn may_be_handle(&self, address: usize) -> bool {
        let mut used = self.list.iter().take_while(|arena| arena.len.load(Ordering::Relaxed) > 0);
        if used.any(|arena| arena.has(address)) {
            return true;
        }
        let plausible = address > u16::MAX as usize && address.is_multiple_of(ALIGN) && (address as isize) > 0;
        // The flag is set before a provider without the hook returns its first handle. The program passes that handle
        // to other threads with its own synchronization, so a Relaxed load sees the flag.
        plausible && self.foreign.load(Ordering::Relaxed)
    }

    /// Allows handles outside all arenas, because a provider without the hook is being registered.
    pub(crate) fn expect_foreign(&self) {
        self.foreign.store(true, Ordering::Relaxed);
    }

    /// Adds an arena, or extends a known one. Returns false if the arena is malformed or overlaps another one, or if
    /// there are already [`MAX_ARENAS`] arenas. A known arena is compared only with the arenas added before it.
    pub(crate) fn add(&self, arena: HandleArena) -> bool {
        let HandleArena { base, len, stride } = arena;
        let Some(end) = base.checked_add(len) else { return false };
        if base == 0 || !base.is_multiple_of(ALIGN) || stride < ALIGN || !stride.is_power_of_two() || len < stride {
            return false;
        }
        let _writing = self.lock();
        for known in &self.list {
            let (from, length) = (known.base.load(Ordering::Relaxed), known.len.load(Ordering::Relaxed));
            if length == 0 {
                known.base.store(base, Ordering::Relaxed);
                known.mask.store(stride - 1, Ordering::Relaxed);
                // Pairs with the Acquire in `has`.
                known.len.store(len, Ordering::Release);
                self.update_first();
                return true;
            }
            if from == base && known.mask.load(Ordering::Relaxed) == stride - 1 {
                known.len.fetch_max(len, Ordering::Release);
                self.update_first();
                return true;
            }
            if base < from + length && from < end {
                return false;
            }
        }
        false
    }

    /// Locks the arenas for changes, also while the process forks.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: HandleArena = HandleArena { base: 0x10_0000, len: 0x1000, stride: 64 };

    #[test]
    fn only_multiples_of_the_stride_in_an_arena_are_handles() {
        let arenas = Arenas::new();
        assert!(arenas.add(ARENA));
        assert!(arenas.may_be_handle(0x10_0000));
        assert!(arenas.may_be_handle(0x10_0fc0));
        for address in [0, 1, 8, 0x10_0008, 0x10_0001, 0x0f_ffc0, 0x10_1000, usize::MAX, usize::MAX - 7] {
            assert!(!arenas.may_be_handle(address), "{address:#x}");
        }
    }

    #[test]
    fn is_in_first_accepts_only_handles_of_the_first_arena() {
        let arenas = Arenas::new();
        let found = |addresses: [usize; 6]| addresses.map(|address| arenas.is_in_first(address));
        assert_eq!(found([0, 1, 64, 0x10_0000, usize::MAX, usize::MAX - 63]), [false; 6], "there is none yet");
        assert!(arenas.add(ARENA));
        assert_eq!(found([0, 1, 0x0f_ffc0, 0x10_0001, 0x10_1000, usize::MAX]), [false; 6]);
        assert!(arenas.is_in_first(0x10_0000) && arenas.is_in_first(0x10_0fc0));
        assert!(arenas.add(HandleArena { len: 0x2000, ..ARENA }) && arenas.is_in_first(0x10_1fc0));
        assert!(arenas.add(HandleArena { base: 0x30_0000, ..ARENA }));
        assert_eq!((arenas.is_in_first(0x30_0000), arenas.may_be_handle(0x30_0000)), (false, true));
    }

    #[test]
    fn addresses_outside_arenas_may_be_handles_of_a_foreign_provider() {
        let arenas = Arenas::new();
        assert!(arenas.add(ARENA));
        arenas.expect_foreign();
        assert!(arenas.may_be_handle(0x20_0000));
        for address in [0, 2, 0xffff, 0x20_0004, usize::MAX - 7] {
            assert!(!arenas.may_be_handle(address), "{address:#x}");
        }
    }

    #[test]
    fn known_arena_is_not_duplicated_and_may_grow() {
        let arenas = Arenas::new();
        assert!(arenas.add(ARENA) && arenas.add(ARENA));
        assert!(arenas.add(HandleArena { len: 0x2000, ..ARENA }));
        assert_eq!((arenas.may_be_handle(0x10_1000), arenas.list[1].len.load(Ordering::Relaxed)), (true, 0));
    }

    #[test]
    fn malformed_and_overlapping_arenas_are_refused() {
        let arenas = Arenas::new();
        assert!(!arenas.add(HandleArena { base: 0, ..ARENA }));
        assert!(!arenas.add(HandleArena { stride: 0, ..ARENA }));
        assert!(!arenas.add(HandleArena { stride: 24, ..ARENA }));
        assert!(!arenas.add(HandleArena { stride: 4, ..ARENA }));
        assert!(!arenas.add(HandleArena { base: usize::MAX - 0xff, ..ARENA }));
        assert!(arenas.add(ARENA));
        assert!(!arenas.add(HandleArena { base: ARENA.base + 64, ..ARENA }), "overlap");
        for more in 1..MAX_ARENAS {
            assert!(arenas.add(HandleArena { base: ARENA.base + more * 0x1_0000, ..ARENA }));
        }
        assert!(!arenas.add(HandleArena { base: 0x4000_0000, ..ARENA }), "one too many");
    }
}
