//! Registered providers, found by key, by name, by id, and by the record whose library registered them.
//!
//! Lookups take logarithmic time, so the number of registrations is not limited.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use dat_abi::DAT_IA_OPEN_FUNC;

use crate::conf::Key;

/// One name that a provider has registered.
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) key: Key,
    /// A copy of the table's function, so that the table passed to the registration need not stay valid.
    pub(super) open: DAT_IA_OPEN_FUNC,
    /// Number of open IAs and of opens in progress.
    pub(super) uses: usize,
    /// Index of the record whose library made the registration. `None` if the program itself made it, or a thread that
    /// an init has started; in the second case `adopt` sets the owner after the init.
    pub(super) owner: Option<usize>,
    /// Whether the key declares thread safety, or the provider is one of this project.
    pub(super) is_thread_safe: bool,
}

/// All registrations, with indexes by key and by owner.
pub(super) struct Registrations {
    by_id: BTreeMap<u64, Registration>,
    by_key: BTreeMap<Key, u64>,
    /// Pairs of record and registration id.
    by_owner: BTreeSet<(usize, u64)>,
    last_id: u64,
}

impl Registrations {
    pub(super) const fn new() -> Self {
        Self { by_id: BTreeMap::new(), by_key: BTreeMap::new(), by_owner: BTreeSet::new(), last_id: 0 }
    }

    /// Adds a registration. Returns false if the key exists.
    pub(super) fn add(&mut self, key: Key, open: DAT_IA_OPEN_FUNC, owner: Option<usize>, is_thread_safe: bool) -> bool {
        if self.by_key.contains_key(&key) {
            return false;
        }
        self.last_id += 1;
        let id = self.last_id;
        self.by_key.insert(key.clone(), id);
        self.by_owner.extend(owner.map(|owner| (owner, id)));
        self.by_id.insert(id, Registration { id, key, open, uses: 0, owner, is_thread_safe });
        true
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Registration> {
        self.by_id.get(self.by_key.get(key)?)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Registration> {
        self.by_id.get_mut(self.by_key.get(key)?)
    }

    pub(super) fn with_id(&mut self, id: u64) -> Option<&mut Registration> {
        self.by_id.get_mut(&id)
    }

    /// Sets the owner of the registration with this key, unless it has one. Returns false if there is no such
    /// registration.
    pub(super) fn adopt(&mut self, key: &Key, owner: usize) -> bool {
        let Some(registration) = self.get_mut(key) else { return false };
        let (id, owner) = (registration.id, *registration.owner.get_or_insert(owner));
        self.by_owner.insert((owner, id));
        true
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(registration) = self.by_key.remove(key).and_then(|id| self.by_id.remove(&id)) else { return };
        if let Some(owner) = registration.owner {
            self.by_owner.remove(&(owner, registration.id));
        }
    }

    /// Registrations made by the library of a record, oldest first.
    pub(super) fn of_owner(&self, owner: usize) -> impl Iterator<Item = &Registration> {
        self.by_owner.range((owner, 0)..=(owner, u64::MAX)).filter_map(|(_, id)| self.by_id.get(id))
    }

    /// Registrations of a name.
    pub(super) fn named(&self, name: &[u8]) -> impl Iterator<Item = &Registration> {
        let first = Key { name: name.to_vec(), major: 0, minor: 0, thread_safe: false };
        let ids = self.by_key.range(first..).take_while(move |(key, _)| key.name == name);
        ids.filter_map(|(_, id)| self.by_id.get(id))
    }

    /// All keys, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn open(
        _: dat_abi::DAT_NAME_PTR,
        _: i32,
        _: *mut dat_abi::DAT_EVD_HANDLE,
        _: *mut dat_abi::DAT_IA_HANDLE,
    ) -> dat_abi::DAT_RETURN {
        0
    }

    fn key(name: &str, minor: u32) -> Key {
        Key { name: name.into(), major: 1, minor, thread_safe: false }
    }

    #[test]
    fn a_registration_is_found_by_key_name_id_and_owner() {
        let mut all = Registrations::new();
        for (name, minor, owner) in [("a", 2, Some(7)), ("a", 1, None), ("aa", 2, Some(7)), ("b", 2, Some(8))] {
            assert!(all.add(key(name, minor), open, owner, false));
        }
        assert!(!all.add(key("a", 2), open, None, true), "the key is taken");
        let minors = |all: &Registrations, name: &[u8]| all.named(name).map(|one| one.key.minor).collect::<Vec<_>>();
        assert_eq!((minors(&all, b"a"), minors(&all, b"c")), (vec![1, 2], vec![]));
        assert!(all.adopt(&key("a", 1), 9) && all.adopt(&key("b", 2), 9) && !all.adopt(&key("c", 2), 9));
        let owned = |all: &Registrations, owner| all.of_owner(owner).map(|one| one.id).collect::<Vec<_>>();
        assert_eq!((owned(&all, 7), owned(&all, 8), owned(&all, 9)), (vec![1, 3], vec![4], vec![2]));
        all.remove(&key("a", 2));
        assert_eq!((owned(&all, 7), minors(&all, b"a"), all.with_id(1).is_none()), (vec![3], vec![1], true));
        assert!(all.get(&key("a", 2)).is_none() && all.keys().count() == 3);
    }
}
