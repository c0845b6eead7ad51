//! Imported mappings of a peer's shared memory, by key. All connections to the peer share them.
//!
//! `exchange` requests mappings and maps regions on the engine thread. A transfer looks up its key when it starts, and
//! uses another method if there is no mapping yet. A mapping is removed with the peer's state, or when the engine finds
//! that its key is revoked. The region is unmapped after the last transfer that uses it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::mapped::{LONGEST, Mapped};

/// Maximum number of keys per peer.
const MOST: usize = 256;
/// Maximum number of unanswered requests. The queue of a set-up socket is short, and is needed for connection set-up
/// too.
const MOST_ASKED: usize = 4;
/// Number of engine ticks after which a request or its answer counts as lost.
const PATIENCE: u8 = 2;
/// Number of engine ticks after which a refused key is requested again. The owner may have had no free file descriptor.
const FORGIVEN: u8 = 6;

/// State of a key.
#[derive(Debug)]
enum ImportState {
    /// The mapping was requested, this number of engine ticks ago.
    Asked(u8),
    /// The mapping was refused, or the answer was invalid, this number of engine ticks ago.
    Refused(u8),
    Here(Arc<Mapped>),
}

/// Imported mappings of one peer.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<u32, ImportState>>);

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum ImportLookup {
    Here(Arc<Mapped>),
    /// The mapping was not requested yet. The caller must request it.
    Ask,
    Nothing,
}

impl Imports {
    /// Looks up the mapping of a key. The result `Ask` also marks the key as requested.
    pub(crate) fn find(&self, key: u32) -> ImportLookup {
        let mut imports = self.0.lock();
        match imports.get(&key) {
            Some(ImportState::Here(mapped)) => return ImportLookup::Here(mapped.clone()),
            Some(ImportState::Asked(_) | ImportState::Refused(_)) => return ImportLookup::Nothing,
            None => {}
        }
        let asked = imports.values().filter(|export| matches!(export, ImportState::Asked(_))).count();
        if imports.len() >= MOST || asked >= MOST_ASKED {
            return ImportLookup::Nothing;
        }
        imports.insert(key, ImportState::Asked(0));
        ImportLookup::Ask
    }

    /// Resets the state of a key whose request could not be sent.
    pub(crate) fn withdraw(&self, key: u32) {
        let mut imports = self.0.lock();
        if let Some(ImportState::Asked(_)) = imports.get(&key) {
            imports.remove(&key);
        }
    }

    /// Whether a request for this key waits for its answer.
    pub(crate) fn is_asked(&self, key: u32) -> bool {
        matches!(self.0.lock().get(&key), Some(ImportState::Asked(_)))
    }

    /// Records the answer to a request; `None` means refused. A mapping beyond the limit per peer is treated as
    /// refused.
    pub(crate) fn settle(&self, key: u32, mapped: Option<Mapped>) {
        let mut imports = self.0.lock();
        let spans = |export: &ImportState| if let ImportState::Here(mapped) = export { mapped.span() } else { 0 };
        let space = LONGEST - imports.values().map(spans).sum::<u64>();
        let (export, beyond) = match mapped {
            Some(mapped) if mapped.span() <= space => (ImportState::Here(Arc::new(mapped)), None),
            refused => (ImportState::Refused(0), refused),
        };
        imports.insert(key, export);
        drop(imports);
        drop(beyond); // A mapping beyond the limit is unmapped after the lock was released.
    }

    /// Removes mappings of revoked keys.
    pub(crate) fn forget_revoked(&self, is_live: impl Fn(u32) -> bool) {
        let gone: Vec<_> = self.0.lock().extract_if(|key, _| !is_live(*key)).collect();
        drop(gone); // Revoked mappings are unmapped after the lock was released.
    }

    /// Called at each engine tick. After some ticks, unanswered requests and refused keys may be requested again.
    pub(crate) fn grow_older(&self) {
        self.0.lock().retain(|_, export| {
            let (rounds, most) = match export {
                ImportState::Asked(rounds) => (rounds, PATIENCE),
                ImportState::Refused(rounds) => (rounds, FORGIVEN),
                ImportState::Here(_) => return true,
            };
            *rounds += 1;
            *rounds < most
        });
    }

    /// Number of mapped keys.
    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        self.0.lock().values().filter(|export| matches!(export, ImportState::Here(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::Region;
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn mapped(length: u64) -> Mapped {
        let file = rustix::fs::memfd_create("imports", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, length).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        Mapped::of_file(&file, 0, Region { address: 4096, length }, true).unwrap()
    }

    #[test]
    fn a_key_is_asked_for_once_unless_the_question_got_lost() {
        let imports = Imports::default();
        let asks = |key| matches!(imports.find(key), ImportLookup::Ask);
        assert!(!imports.is_asked(1) && asks(1) && imports.is_asked(1) && !asks(1));
        imports.withdraw(1);
        assert!(asks(1));
        imports.settle(1, None);
        assert!(!asks(1) && !imports.is_asked(1), "no is no");
        imports.withdraw(1);
        assert!(!asks(1));
        (1..FORGIVEN).for_each(|_| imports.grow_older());
        assert!(!asks(1));
        imports.grow_older();
        assert!(asks(1), "for a time");
        imports.settle(1, None);
        assert!(asks(2));
        (0..PATIENCE).for_each(|_| imports.grow_older());
        assert!(asks(2) && !asks(1));
        imports.settle(2, Some(mapped(4096)));
        (0..PATIENCE).for_each(|_| imports.grow_older());
        assert!(matches!(imports.find(2), ImportLookup::Here(_)));
    }

    #[test]
    fn questions_and_mappings_per_peer_are_bounded() {
        let imports = Imports::default();
        let asks = |key| matches!(imports.find(key), ImportLookup::Ask);
        assert_eq!((0..100).filter(|key| asks(*key)).count(), MOST_ASKED);
        imports.forget_revoked(|_| false);
        assert_eq!(
            (0..1000)
                .filter(|key| asks(*key) && {
                    imports.settle(*key, None);
                    true
                })
                .count(),
            MOST
        );
        imports.forget_revoked(|key| key == 7);
        assert!(!asks(7) && asks(8));
        for (key, expected) in [(1, 1), (2, 1), (3, 2)] {
            imports.settle(key, Some(mapped(if key == 3 { 4096 } else { LONGEST - 4096 })));
            assert_eq!(imports.mapped(), expected, "{key}");
        }
    }

    #[test]
    fn revoked_mapping_is_removed_after_its_last_copy() {
        let imports = Imports::default();
        assert!(matches!(imports.find(1), ImportLookup::Ask));
        imports.settle(1, Some(mapped(4096)));
        let ImportLookup::Here(held) = imports.find(1) else { panic!() };
        let watched = Arc::downgrade(&held);
        imports.forget_revoked(|_| false);
        assert!(imports.mapped() == 0 && watched.upgrade().is_some());
        drop(held);
        assert!(watched.upgrade().is_none());
    }
}
