//! The table of local keys. It has two uses. The provider checks the keys of inline data, because the CPU reads these
//! data; the device checks all other keys. After a local failure, the table shows whether a segment was invalid.
//!
//! Deregistration waits until no post reads the memory any more. A post calls [`LocalKeys::lock_if_valid`] and holds
//! the result until the data were read. A post that a hazard slot announces calls [`LocalKeys::allows_announced`]
//! instead; deregistration waits for all announced posts.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::{Region, Segment};
use dapl::runtime::handle;
use parking_lot::{RwLock, RwLockReadGuard};

/// The local keys of an IA.
#[derive(Debug, Default)]
pub(crate) struct LocalKeys {
    table: RwLock<KeyTable>,
    /// Incremented when a key is added or removed, with `table` locked. A hint with another value is outdated.
    changes: AtomicU64,
}

type KeyTable = HashMap<u32, KeyRange, BuildHasherDefault<KeyHasher>>;

/// The key that a send queue has looked up last. The next request usually has the same key.
#[derive(Debug, Default)]
pub(crate) struct KeyHint {
    /// `LocalKeys::changes` at that lookup. 0: the hint is empty, since a table that has keys was changed at least once.
    changes: u64,
    key: u32,
    known: KeyRange,
}

/// Identifies a protection domain by its address. The domain lives as long as its registrations.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PdId(pub(crate) usize);

/// The memory and the rights of a key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyRange {
    pd: PdId,
    region: Region,
    writable: bool,
}

/// Permission to read the memory of checked segments. Deregistration waits while it exists.
pub(crate) struct ReadPermission<'a> {
    _table: RwLockReadGuard<'a, KeyTable>,
}

impl LocalKeys {
    /// Adds a key. `writable`: local segments may also be written.
    pub(crate) fn add(&self, key: u32, pd: PdId, region: Region, writable: bool) {
        let mut table = self.table.write();
        table.insert(key, KeyRange { pd, region, writable });
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Removes a key. Waits for posts that may read its memory, so it must not be called during a post.
    pub(crate) fn remove(&self, key: u32) {
        let mut table = self.table.write();
        table.remove(&key);
        self.changes.fetch_add(1, Ordering::Release);
        drop(table);
        // An announced post that read `changes` before this removal may still use the key, so `await_posts` waits for
        // it. A later post reads the new value, and looks the key up again.
        handle::await_posts();
    }

    /// Checks one segment of a post that a hazard slot of this thread announces. Deregistration waits for such posts,
    /// so the memory may be read without a [`ReadPermission`] until the post returns.
    #[inline(always)]
    pub(crate) fn allows_announced(&self, hint: &mut KeyHint, pd: PdId, segment: &Segment) -> bool {
        let is_known = hint.changes == self.changes.load(Ordering::Acquire) && hint.key == segment.key;
        (is_known || self.lock_and_find(hint, segment.key)) && hint.known.covers(pd, segment)
    }

    #[cold]
    fn lock_and_find(&self, hint: &mut KeyHint, key: u32) -> bool {
        self.find(&self.table.read_recursive(), hint, key)
    }

    /// Looks a key up, and stores it in `hint`. Returns false if the table does not have the key.
    fn find(&self, table: &KeyTable, hint: &mut KeyHint, key: u32) -> bool {
        let known = table.get(&key);
        if let Some(known) = known {
            *hint = KeyHint { changes: self.changes.load(Ordering::Relaxed), key, known: *known };
        }
        known.is_some()
    }

    /// Checks that each segment is inside the registration of its key, and that the registration is of the protection
    /// domain `pd`. Empty segments are not checked. On success, the segments may be read while the result exists.
    #[inline(always)]
    pub(crate) fn lock_if_valid(
        &self,
        hint: &mut KeyHint,
        pd: PdId,
        segments: &[Segment],
    ) -> Option<ReadPermission<'_>> {
        self.check(hint, pd, segments, false)
    }

    /// Whether all segments are valid at the moment. `written`: the work writes to the segments.
    pub(crate) fn are_valid(&self, pd: PdId, segments: &[Segment], written: bool) -> bool {
        self.check(&mut KeyHint::default(), pd, segments, written).is_some()
    }

    #[inline(always)]
    fn check(&self, hint: &mut KeyHint, pd: PdId, segments: &[Segment], written: bool) -> Option<ReadPermission<'_>> {
        // Recursive, because this thread may already hold a `ReadPermission`. A waiting writer would block a
        // non-recursive lock, while the writer itself waits for that permission.
        let table = self.table.read_recursive();
        let changes = self.changes.load(Ordering::Relaxed);
        let mut allows = |segment: &Segment| {
            let is_known = hint.changes == changes && hint.key == segment.key;
            (is_known || self.find(&table, hint, segment.key))
                && hint.known.covers(pd, segment)
                && (hint.known.writable || !written)
        };
        let all = segments.iter().all(|segment| segment.length == 0 || allows(segment));
        all.then_some(ReadPermission { _table: table })
    }
}

impl KeyRange {
    /// Whether the key is of this protection domain, and the segment is inside the registration.
    #[inline(always)]
    fn covers(&self, pd: PdId, segment: &Segment) -> bool {
        let KeyRange { pd: owner, region, .. } = self;
        // For an address below the region, the offset wraps to a large number.
        let offset = segment.address.wrapping_sub(region.address);
        *owner == pd && offset <= region.length && segment.length <= region.length - offset
    }
}

/// A fast hash for keys and queue pair numbers. It need not resist chosen keys, because the device assigns them.
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
        // Fibonacci hashing: multiplies by 2^64 / golden ratio, so that consecutive keys differ in the high bits too.
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

    fn add(keys: &LocalKeys, key: u32, pd: usize, writable: bool) {
        keys.add(key, PdId(pd), Region { address: 4096, length: 100 }, writable);
    }

    #[test]
    fn only_memory_of_a_registered_key_may_be_read() {
        let keys = LocalKeys::default();
        add(&keys, 0x500, 1, false);
        add(&keys, 0x501, 2, true);
        add(&keys, 0x503, 1, true);
        let hint = RefCell::new(KeyHint::default());
        let allows = |segments: &[Segment]| keys.check(&mut hint.borrow_mut(), PdId(1), segments, false).is_some();
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
        for (case, wrong) in wrong {
            assert!(!allows(&[wrong]), "{case}");
            assert!(!allows(&[segment(0x500, 4096, 1), wrong]), "{case}, as the second segment");
        }
        assert!(allows(&[segment(7, 1, 0)]), "an empty segment is not checked");
        let writes = |key| keys.check(&mut KeyHint::default(), PdId(1), &[segment(key, 4096, 1)], true).is_some();
        assert_eq!([0x500, 0x503].map(writes), [false, true], "only a writable key allows writes");
        keys.remove(0x500);
        assert!(!allows(&[segment(0x500, 4096, 1)]));
    }

    #[test]
    fn announced_posts_see_each_change_of_the_key_table() {
        let (keys, hint) = (LocalKeys::default(), RefCell::new(KeyHint::default()));
        let allows = |key| keys.allows_announced(&mut hint.borrow_mut(), PdId(1), &segment(key, 4096, 100));
        assert!(!allows(0), "an empty hint allows nothing");
        add(&keys, 0x500, 1, false);
        assert!(allows(0x500) && allows(0x500));
        assert!(!keys.allows_announced(&mut hint.borrow_mut(), PdId(1), &segment(0x500, 4095, 1)));
        add(&keys, 0x501, 2, true);
        assert!(!allows(0x501), "the key is of another protection domain");
        assert!(allows(0x500));
        keys.remove(0x500);
        assert!(!allows(0x500));
        add(&keys, 0x500, 2, true);
        assert!(!allows(0x500), "the key was reused in another protection domain");
    }

    #[test]
    fn key_removal_waits_for_readers() {
        let keys = LocalKeys::default();
        add(&keys, 1, 1, false);
        let mut hint = KeyHint::default();
        let permission = keys.check(&mut hint, PdId(1), &[segment(1, 4096, 1)], false).unwrap();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| keys.remove(1));
            // Other readers can take the lock until the removing thread waits for it.
            while keys.table.try_read().is_some() && !removing.is_finished() {
                std::thread::yield_now();
            }
            assert!(!removing.is_finished());
            drop(permission);
        });
        assert!(
            keys.check(&mut hint, PdId(1), &[segment(1, 4096, 1)], false).is_none(),
            "a hint is not used after the table has changed"
        );
    }

    #[test]
    fn hashes_of_consecutive_keys_do_not_collide() {
        let mut seen = std::collections::HashSet::new();
        for key in (0..100_000u32).map(|index| index << 8 | 0x17) {
            let mut hasher = KeyHasher::default();
            hasher.write_u32(key);
            assert!(seen.insert(hasher.finish()));
        }
    }
}
