//! IA numbers: the small integers that consumers use as handles of interface adapters, and the providers' pointers that
//! they stand for.
//!
//! `thunk` translates the number on every call whose first argument is an IA: one load, no lock. If a program passes
//! the provider's pointer instead, the lookup takes a lock. A number is reused only after all other numbers were used,
//! so a stale number stays invalid for a long time. The pointers are not dereferenced.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::registry::ProviderUse;

/// Handles below this value are IA numbers (1 to 65535) or null. All other handles are pointers.
const NUMBERS: usize = 1 << 16;

/// The provider's pointer by number; null if no IA with the number is open.
static OPEN: [AtomicPtr<c_void>; NUMBERS] = [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS];

/// The open IAs, by number and by the provider's pointer. Each open and close changes the table.
static TABLE: Mutex<IaTable> = Mutex::new(IaTable { last: 0, uses: BTreeMap::new(), by_pointer: BTreeMap::new() });

pub(crate) struct IaTable {
    /// The IA number that was assigned last; the search for a free number begins after it.
    last: usize,
    /// The registration and record that each open IA uses, by IA number.
    uses: BTreeMap<usize, ProviderUse>,
    /// Number by the provider's pointer.
    by_pointer: BTreeMap<usize, usize>,
}

/// Returns the provider's pointer for a number or for the pointer itself. `None` if no such IA is open.
#[inline]
pub(crate) fn translate(handle: *mut c_void) -> Option<*mut c_void> {
    match OPEN.get(handle as usize) {
        // Pairs with the Release in `add`: the provider's earlier writes into the IA are visible.
        Some(place) => Some(place.load(Ordering::Acquire)).filter(|ia| !ia.is_null()),
        None => number_of(handle).map(|_| handle),
    }
}

/// The number of an open IA, by the provider's pointer.
#[cold]
pub(crate) fn number_of(ia: *mut c_void) -> Option<usize> {
    lock().by_pointer.get(&(ia as usize)).copied()
}

/// Assigns a number to a newly opened IA. `None`: all numbers are in use.
pub(crate) fn add(ia: *mut c_void, provider_use: ProviderUse) -> Option<usize> {
    let mut table = lock();
    let free = |number: &usize| OPEN[*number].load(Ordering::Relaxed).is_null();
    let number = (table.last + 1..NUMBERS).chain(1..=table.last).find(free)?;
    table.last = number;
    table.uses.insert(number, provider_use);
    table.by_pointer.insert(ia as usize, number);
    // Pairs with the Acquire in `translate`: the provider's writes into the IA are visible before its number is valid.
    OPEN[number].store(ia, Ordering::Release);
    Some(number)
}

/// Removes a closed IA and returns its use of the provider. `None` if another thread closed it first.
pub(crate) fn remove(number: usize) -> Option<ProviderUse> {
    let mut table = lock();
    let provider_use = table.uses.remove(&number)?;
    let ia = OPEN[number].swap(ptr::null_mut(), Ordering::Relaxed);
    // If the provider has opened another IA at the same address meanwhile, the entry belongs to that IA and is kept.
    if table.by_pointer.get(&(ia as usize)) == Some(&number) {
        table.by_pointer.remove(&(ia as usize));
    }
    Some(provider_use)
}

/// Locks the table; also locked while the process forks.
pub(crate) fn lock() -> MutexGuard<'static, IaTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USE: ProviderUse = ProviderUse { registration: 1, entry: None };

    fn pointer(address: usize) -> *mut c_void {
        ptr::without_provenance_mut(address)
    }

    /// One test for all claims, because the table is global and tests run concurrently.
    #[test]
    fn ia_number_is_valid_from_open_to_close_and_reused_last() {
        let (one, two) = (pointer(0x7000_0000), pointer(0x7000_0100));
        let first = add(one, USE).unwrap();
        let second = add(two, USE).unwrap();
        assert_eq!((first, second), (1, 2));
        assert_eq!(translate(pointer(first)), Some(one));
        assert_eq!(translate(one), Some(one), "the pointer of an open IA is accepted");
        assert_eq!(number_of(two), Some(second));
        for unknown in [0, 3, 65535, 65536, 0x7000_0200, usize::MAX] {
            assert_eq!(translate(pointer(unknown)), None, "{unknown:#x}");
        }
        assert_eq!(remove(first), Some(USE));
        assert_eq!((remove(first), remove(0), remove(usize::MAX)), (None, None, None));
        assert_eq!((translate(pointer(first)), translate(one)), (None, None));
        assert_eq!(add(one, USE), Some(3), "a freed number is reused last");
        assert_eq!(remove(second), Some(USE));
        for _ in 4..NUMBERS {
            let number = add(two, USE).unwrap();
            assert!(number > 3);
            remove(number).unwrap();
        }
        assert_eq!(add(two, USE), Some(1), "the range wrapped");
        while let Some(number) = add(two, USE) {
            assert_ne!(number, 3, "still in use");
        }
    }
}
