//! IA numbers: the small integers that consumers hold for interface adapters, and the provider's pointers behind them.
//!
//! `thunk` translates with it on every call that starts with an IA: one load, no lock. A number is not given out again
//! before the range wrapped, so a stale one stays invalid for long. Reads nothing that a pointer points to.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::registry::Lease;

/// Numbers are 1 to 65535: below every address that could be a pointer, above what programs make up by accident.
const NUMBERS: usize = 1 << 16;

/// Number -> the provider's IA; null where none is open.
static OPEN: [AtomicPtr<c_void>; NUMBERS] = [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS];

/// State outside the hot path.
static TABLE: Mutex<IaTable> = Mutex::new(IaTable { last: 0, lease: BTreeMap::new(), by_pointer: BTreeMap::new() });

pub(crate) struct IaTable {
    /// The number given out last.
    last: usize,
    /// Leases by IA number.
    lease: BTreeMap<usize, Lease>,
    /// The provider's pointer -> number.
    by_pointer: BTreeMap<usize, usize>,
}

/// The provider's pointer for a number, or for itself. `None`: no open IA.
#[inline]
pub(crate) fn translate(handle: *mut c_void) -> Option<*mut c_void> {
    match OPEN.get(handle as usize) {
        // Pairs with the Release in `admit`: what the provider wrote into the IA before is seen.
        Some(place) => Some(place.load(Ordering::Acquire)).filter(|ia| !ia.is_null()),
        None => number_of(handle).map(|_| handle),
    }
}

/// The number of an open IA, by the provider's pointer.
#[cold]
pub(crate) fn number_of(ia: *mut c_void) -> Option<usize> {
    hold().by_pointer.get(&(ia as usize)).copied()
}

/// Numbers a freshly opened IA. `None`: all numbers are in use.
pub(crate) fn admit(ia: *mut c_void, lease: Lease) -> Option<usize> {
    let mut book = hold();
    let free = |number: &usize| OPEN[*number].load(Ordering::Relaxed).is_null();
    let number = (book.last + 1..NUMBERS).chain(1..=book.last).find(free)?;
    book.last = number;
    book.lease.insert(number, lease);
    book.by_pointer.insert(ia as usize, number);
    // Pairs with the Acquire in `translate`.
    OPEN[number].store(ia, Ordering::Release);
    Some(number)
}

/// Removes a closed IA and returns its lease. `None` if another thread closed it first.
pub(crate) fn forget(number: usize) -> Option<Lease> {
    let mut book = hold();
    let lease = book.lease.remove(&number)?;
    let ia = OPEN[number].swap(ptr::null_mut(), Ordering::Relaxed);
    // The provider may have opened another IA at the same address meanwhile; that one keeps its entry.
    if book.by_pointer.get(&(ia as usize)) == Some(&number) {
        book.by_pointer.remove(&(ia as usize));
    }
    Some(lease)
}

/// Keeps others out, for `fork`.
pub(crate) fn hold() -> MutexGuard<'static, IaTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease { registration: 1, entry: None };

    fn pointer(address: usize) -> *mut c_void {
        ptr::without_provenance_mut(address)
    }

    /// A single test, since the table is global.
    #[test]
    fn a_number_lives_from_open_to_close_and_comes_back_late() {
        let (one, two) = (pointer(0x7000_0000), pointer(0x7000_0100));
        let first = admit(one, LEASE).unwrap();
        let second = admit(two, LEASE).unwrap();
        assert_eq!((first, second), (1, 2));
        assert_eq!(translate(pointer(first)), Some(one));
        assert_eq!(translate(one), Some(one), "the pointer of an open IA is as good");
        assert_eq!(number_of(two), Some(second));
        for unknown in [0, 3, 65535, 65536, 0x7000_0200, usize::MAX] {
            assert_eq!(translate(pointer(unknown)), None, "{unknown:#x}");
        }
        assert_eq!(forget(first), Some(LEASE));
        assert_eq!((forget(first), forget(0), forget(usize::MAX)), (None, None, None));
        assert_eq!((translate(pointer(first)), translate(one)), (None, None));
        assert_eq!(admit(one, LEASE), Some(3), "a freed number rests");
        assert_eq!(forget(second), Some(LEASE));
        for _ in 4..NUMBERS {
            let number = admit(two, LEASE).unwrap();
            assert!(number > 3);
            forget(number).unwrap();
        }
        assert_eq!(admit(two, LEASE), Some(1), "the range wrapped");
        while let Some(number) = admit(two, LEASE) {
            assert_ne!(number, 3, "still in use");
        }
    }
}
