//! The table of local keys. It checks inline data, which the CPU reads instead of the device, and finds why a device
//! has refused a segment.
//!
//! A post calls [`Keys::allow`] and keeps the result until the data are read; the end of a registration waits for that. A post
//! that a hazard slot announces ([`Keys::allows_announced`]) need not, because the end of a registration waits for such posts too.
//! The device checks everything else.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::{Region, Segment};
use dapl::runtime::handle;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::ibv::Pd;

/// The local keys of an IA.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    table: RwLock<KeyTable>,
    /// `KeyTable::changes`, readable without the lock.
    changes: AtomicU64,
}

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

    /// Removes a key. Waits for threads that read through it. Must not be called during a post.
    pub(crate) fn remove(&self, key: u32) {
        let mut table = self.table.write();
        table.keys.remove(&key);
        self.changed(&mut table);
        drop(table);
        // Posts that are announced have read the number of changes before, or find that it has changed.
        handle::await_posts();
    }

    /// Called before the lock is released.
    fn changed(&self, table: &mut KeyTable) {
        table.changes += 1;
        self.changes.store(table.changes, Ordering::Release);
    }

    /// As [`Self::allow`], for one segment of a post that a hazard slot of this thread announces: the end of a registration waits
    /// for such posts, so the memory may be read until the post returns.
    #[inline(always)]
    pub(crate) fn allows_announced(&self, hint: &mut Hint, pd: &Arc<Pd>, segment: &Segment) -> bool {
        self.look_announced(hint, place(pd), segment)
    }

    #[inline(always)]
    fn look_announced(&self, hint: &mut Hint, pd: usize, segment: &Segment) -> bool {
        let is_known = hint.changes == self.changes.load(Ordering::Acquire) && hint.key == segment.key;
        (is_known || self.find(hint, segment.key)) && hint.known.covers(pd, segment)
    }

    /// Looks a key up.
    #[cold]
    fn find(&self, hint: &mut Hint, key: u32) -> bool {
        self.table.read_recursive().find(hint, key)
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
        let mut table = self.table.write();
        table.keys.insert(key, known);
        self.changed(&mut table);
    }

    #[inline(always)]
    fn look(&self, hint: &mut Hint, pd: usize, segments: &[Segment], written: bool) -> Option<Allowed<'_>> {
        // A thread that ends a registration may wait for this thread, which may be reading already, so readers have
        // priority.
        let table = self.table.read_recursive();
        let mut allows = |segment: &Segment| {
            let is_known = hint.changes == table.changes && hint.key == segment.key;
            (is_known || table.find(hint, segment.key))
                && hint.known.covers(pd, segment)
                && (hint.known.writable || !written)
        };
        let all = segments.iter().all(|segment| segment.length == 0 || allows(segment));
        all.then_some(Allowed { _table: table })
    }
}

impl KeyTable {
    /// Looks a key up.
    fn find(&self, hint: &mut Hint, key: u32) -> bool {
        let known = self.keys.get(&key);
        if let Some(known) = known {
            *hint = Hint { changes: self.changes, key, known: *known };
        }
        known.is_some()
    }
}

impl KeyRange {
    /// Whether a segment is of this domain and inside the registration.
    #[inline(always)]
    fn covers(&self, pd: usize, segment: &Segment) -> bool {
        let KeyRange { pd: owner, region, .. } = self;
        // The offset is beyond the length if the address is below.
        let offset = segment.address.wrapping_sub(region.address);
        *owner == pd && offset <= region.length && segment.length <= region.length - offset
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
    fn announced_posts_find_each_change_of_the_table() {
        let (keys, hint) = (Keys::default(), RefCell::new(Hint::default()));
        let allows = |key| keys.look_announced(&mut hint.borrow_mut(), 1, &segment(key, 4096, 100));
        assert!(!allows(0), "an empty hint allows nothing");
        keys.insert(0x500, known(1, false));
        assert!(allows(0x500) && allows(0x500));
        assert!(!keys.look_announced(&mut hint.borrow_mut(), 1, &segment(0x500, 4095, 1)));
        keys.insert(0x501, known(2, true));
        assert!(!allows(0x501), "of another domain");
        assert!(allows(0x500));
        keys.remove(0x500);
        assert!(!allows(0x500));
        keys.insert(0x500, known(2, true));
        assert!(!allows(0x500), "reused in another domain");
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
            while keys.table.try_read().is_some() && !removing.is_finished() {
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
