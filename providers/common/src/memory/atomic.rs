//! Atomic operations of peers on eight bytes of registered memory.
//!
//! Each operation is an atomic operation of the CPU on the registered memory. So operations are atomic with respect to
//! each other and to atomic instructions of every process that has mapped the memory.

use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::{ATOMIC_SIZE, Op, Remote};

use super::user_copy::{self, RegisteredRange};

/// An atomic operation with its operands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Atomic {
    /// Adds, and wraps on overflow.
    FetchAdd(u64),
    /// Replaces the value with `swap` if it equals `compare`.
    CompareSwap { compare: u64, swap: u64 },
}

const FETCH_ADD: u64 = 0;
const COMPARE_SWAP: u64 = 1;

impl Atomic {
    /// Returns the atomic operation of a request and its target, or `None` for other requests.
    pub fn of(op: Op) -> Option<(Atomic, Remote)> {
        match op {
            Op::FetchAdd { remote, add } => Some((Atomic::FetchAdd(add), remote)),
            Op::CompareSwap { remote, compare, swap } => Some((Atomic::CompareSwap { compare, swap }, remote)),
            _ => None,
        }
    }

    /// Encodes the operation for transmission: a number for the kind, and two operands.
    pub fn encode(self) -> [u64; 3] {
        match self {
            Atomic::FetchAdd(add) => [FETCH_ADD, add, 0],
            Atomic::CompareSwap { compare, swap } => [COMPARE_SWAP, compare, swap],
        }
    }

    /// Decodes an operation that `encode` encoded. Returns `None` for an unknown kind.
    pub fn decode([kind, first, second]: [u64; 3]) -> Option<Self> {
        match kind {
            FETCH_ADD => Some(Atomic::FetchAdd(first)),
            COMPARE_SWAP => Some(Atomic::CompareSwap { compare: first, swap: second }),
            _ => None,
        }
    }

    /// Whether an address has the alignment that atomic instructions need.
    pub fn is_aligned(address: u64) -> bool {
        address.is_multiple_of(ATOMIC_SIZE)
    }

    /// Executes the operation, and returns the previous value.
    ///
    /// # Safety
    /// Eight bytes at `word` are mapped, writable, and aligned. Other threads and processes may change them during the
    /// call.
    pub unsafe fn apply(self, word: *mut u8) -> u64 {
        // SAFETY: the caller guarantees that the eight bytes are mapped, writable and aligned.
        let word = unsafe { AtomicU64::from_ptr(word.cast()) };
        match self {
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
            Atomic::CompareSwap { compare, swap } => {
                word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
            }
        }
    }

    /// Executes the operation on consumer memory, and returns the previous value. Returns `None` if the address is not
    /// aligned, or the memory is no longer mapped or writable.
    ///
    /// # Safety
    /// The caller permits this call to write the memory, if it is mapped.
    pub unsafe fn apply_registered<'a>(
        self,
        address: u64,
        registration: impl FnOnce() -> RegisteredRange<'a>,
    ) -> Option<u64> {
        if !Self::is_aligned(address) || !user_copy::may_write(address, ATOMIC_SIZE as usize, registration) {
            return None;
        }
        // SAFETY: the address is aligned, `may_write` has found the memory writable, and the caller permits this call
        // to write it.
        Some(unsafe { self.apply(address as *mut u8) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use dapl::provider::Region;

    use super::*;
    use crate::memory::user_copy::MappingChecker;

    fn run(atomic: Atomic, word: &AtomicU64, checker: &MappingChecker) -> Option<u64> {
        let region = Region { address: word.as_ptr() as u64, length: 8 };
        // SAFETY: all accesses to `word` are atomic.
        unsafe { atomic.apply_registered(region.address, || RegisteredRange { region, checker }) }
    }

    #[test]
    fn atomic_operations_return_the_former_value_and_addition_wraps() {
        let (word, checker) = (AtomicU64::new(u64::MAX), MappingChecker::default());
        assert_eq!(run(Atomic::FetchAdd(2), &word, &checker), Some(u64::MAX));
        assert_eq!(word.load(Ordering::Relaxed), 1);
        let swap = Atomic::CompareSwap { compare: 1, swap: 7 };
        assert_eq!((run(swap, &word, &checker), word.load(Ordering::Relaxed)), (Some(1), 7));
        assert_eq!((run(swap, &word, &checker), word.load(Ordering::Relaxed)), (Some(7), 7), "nothing to swap");
    }

    #[test]
    fn concurrent_local_and_remote_additions_are_not_lost() {
        let (word, checker) = (AtomicU64::new(0), MappingChecker::default());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..10_000).fold(0, |_, _| word.fetch_add(1, Ordering::Relaxed)));
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| assert!(run(Atomic::FetchAdd(1), &word, &checker).is_some())));
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), 30_000);
    }

    #[test]
    fn memory_that_is_not_writable_or_not_aligned_is_refused() {
        let checker = MappingChecker::default();
        static CONSTANT: [u64; 2] = [5, 6];
        for address in [8, CONSTANT.as_ptr() as u64, CONSTANT.as_ptr() as u64 + 4] {
            let registration = || RegisteredRange { region: Region { address, length: 8 }, checker: &checker };
            // SAFETY: the memory is not mapped, or not writable.
            let found = unsafe { Atomic::FetchAdd(1).apply_registered(address, registration) };
            assert_eq!(found, None, "{address:#x}");
        }
    }

    #[test]
    fn atomic_operations_round_trip_and_unknown_kinds_are_not_decoded() {
        for atomic in [Atomic::FetchAdd(u64::MAX), Atomic::CompareSwap { compare: 1, swap: u64::MAX }] {
            assert_eq!(Atomic::decode(atomic.encode()), Some(atomic));
        }
        assert_eq!(Atomic::decode([2, 0, 0]), None);
    }
}
