//! The table of local keys. It checks inline data, which the CPU reads instead of the device, and finds why a device
//! has refused a segment.
//!
//! A post calls [`Keys::allow`] and keeps the result until the data are read; the end of a registration waits for that.
//! The device checks everything else.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use dapl::provider::{Region, Segment};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::ibv::Pd;

/// The local keys of an IA.
#[derive(Debug, Default)]
pub(crate) struct Keys(RwLock<KeyTable>);

#[derive(Debug, Default)]
struct KeyTable {
    keys: HashMap<u32, KeyRange, BuildHasherDefault<KeyHasher>>,
    /// Number of changes of the table.
    changes: u64,
}

/// The key of the last lookup, which is usually also the next one.
#[derive(Debug, Default)]
pub(crate) struct Hint {
    /// Number of changes at that lookup; 0 means no key, since a table with a key has been changed.
    changes: u64,
    key: u32,
    known: KeyRange,
}

/// The registration of a key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyRange {
    /// Address of the protection domain, which lives as long as the registration.
    pd: usize,
    region: Region,
    writable: bool,
}

/// While this exists, the memory may be read.
pub(crate) struct Allowed<'a> {
    _table: RwLockReadGuard<'a, KeyTable>,
}

impl Keys {
    /// Adds a key. `writable`: also for data written by this side.
    pub(crate) fn add(&self, key: u32, pd: &Arc<Pd>, region: Region, writable: bool) {
        self.insert(key, KeyRange { pd: place(pd), region, writable });
    }

    /// Removes a key. Waits for threads that read through it.
    pub(crate) fn remove(&self, key: u32) {
        let mut table = self.0.write();
        table.changes += 1;
        table.keys.remove(&key);
    }

    /// Checks that each segment has a key of the protection domain and lies inside its registration, and permits
    /// reading all of them.
    #[inline(always)]
    pub(crate) fn allow(&self, hint: &mut Hint, pd: &Arc<Pd>, segments: &[Segment]) -> Option<Allowed<'_>> {
        self.look(hint, place(pd), segments, false)
    }

    /// Whether all segments are valid at this moment. `written`: for writing.
    pub(crate) fn are_right(&self, pd: &Arc<Pd>, segments: &[Segment], written: bool) -> bool {
        self.look(&mut Hint::default(), place(pd), segments, written).is_some()
    }

    fn insert(&self, key: u32, known: KeyRange) {
        let mut table = self.0.write();
        table.changes += 1;
        table.keys.insert(key, known);
    }

    #[inline(always)]
    fn look(&self, hint: &mut Hint, pd: usize, segments: &[Segment], written: bool) -> Option<Allowed<'_>> {
        // A thread that ends a registration may wait for this thread, which may be reading already, so readers have
        // priority.
        let table = self.0.read_recursive();
        let mut allows = |segment: &Segment| {
            if hint.changes != table.changes || hint.key != segment.key {
                let Some(known) = table.keys.get(&segment.key) else { return false };
                *hint = Hint { changes: table.changes, key: segment.key, known: *known };
            }
            let KeyRange { pd: owner, region, writable } = &hint.known;
            let offset = segment.address.wrapping_sub(region.address);
            *owner == pd
                && (*writable || !written)
                && segment.address >= region.address
                && offset <= region.length
                && segment.length <= region.length - offset
        };
        let all = segments.iter().all(|segment| segment.length == 0 || allows(segment));
        all.then_some(Allowed { _table: table })
    }
}

fn place(pd: &Arc<Pd>) -> usize {
    Arc::as_ptr(pd) as usize
}

/// A hash for keys, which the device assigns.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, key: u32) {
        // The golden ratio in 64 bits: similar keys get very different hashes, in the high bits as well.
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn segment(key: u32, address: u64, length: u64) -> Segment {
        Segment { key, pad: 0, address, length }
    }

    fn known(pd: usize, writable: bool) -> KeyRange {
        KeyRange { pd, region: Region { address: 4096, length: 100 }, writable }
    }

    #[test]
    fn only_memory_of_a_live_key_may_be_read() {
        let keys = Keys::default();
        keys.insert(0x500, known(1, false));
        keys.insert(0x501, known(2, true));
        keys.insert(0x503, known(1, true));
        let hint = RefCell::new(Hint::default());
        let allows = |segments: &[Segment]| keys.look(&mut hint.borrow_mut(), 1, segments, false).is_some();
        assert!(allows(&[segment(0x500, 4096, 100)]) && allows(&[segment(0x500, 4195, 1)]) && allows(&[]));
        assert!(allows(&[segment(0x500, 4096, 1), segment(0x500, 4100, 90)]));
        let wrong = [
            ("before", segment(0x500, 4095, 1)),
            ("beyond", segment(0x500, 4096, 101)),
            ("wraps", segment(0x500, 4097, u64::MAX)),
            ("after", segment(0x500, 4197, 1)),
            ("another domain", segment(0x501, 4096, 1)),
            ("unknown", segment(0x502, 4096, 1)),
        ];
        for (what, wrong) in wrong {
            assert!(!allows(&[wrong]), "{what}");
            assert!(!allows(&[segment(0x500, 4096, 1), wrong]), "{what}, as the second");
        }
        assert!(allows(&[segment(7, 1, 0)]), "without length nothing else is looked at");
        let writes = |key| keys.look(&mut Hint::default(), 1, &[segment(key, 4096, 1)], true).is_some();
        assert_eq!([0x500, 0x503].map(writes), [false, true], "to be written to");
        keys.remove(0x500);
        assert!(!allows(&[segment(0x500, 4096, 1)]));
    }

    #[test]
    fn key_removal_waits_for_readers() {
        let keys = Keys::default();
        keys.insert(1, known(1, false));
        let mut hint = Hint::default();
        let held = keys.look(&mut hint, 1, &[segment(1, 4096, 1)], false).unwrap();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| keys.remove(1));
            // Until the removing thread waits for the lock, other readers can take it.
            while keys.0.try_read().is_some() && !removing.is_finished() {
                std::thread::yield_now();
            }
            assert!(!removing.is_finished());
            drop(held);
        });
        assert!(keys.look(&mut hint, 1, &[segment(1, 4096, 1)], false).is_none(), "a hint is of a table that stands");
    }

    #[test]
    fn keys_that_follow_each_other_do_not_collide() {
        let mut seen = std::collections::HashSet::new();
        for key in (0..100_000u32).map(|index| index << 8 | 0x17) {
            let mut hasher = KeyHasher::default();
            hasher.write_u32(key);
            assert!(seen.insert(hasher.finish()));
        }
    }
}
