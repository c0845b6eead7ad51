//! Imported mappings of a peer's shared memory, by key. All connections to the peer share them.
//!
//! `exchange` requests mappings and maps regions on the engine thread. A transfer looks up its key when it starts, and
//! uses another copy method while there is no mapping. A mapping is removed with the peer's state, or when the engine
//! finds that its key is revoked. The region is unmapped after the last transfer that uses it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::mapped::{MAX_MAPPED_BYTES, PeerMapping};

/// Maximum number of keys per peer, mapped or not.
const MAX_KEYS: usize = 256;
/// Maximum number of outstanding requests. The limit leaves space for connection set-up in the peer's socket queue,
/// which is short.
const MAX_REQUESTS: usize = 4;
/// Number of heartbeat intervals after which a request without a reply counts as lost.
const REQUEST_TICKS: u8 = 2;
/// Number of heartbeat intervals after which a mapping that was refused is requested again. The owner may have had no
/// free file descriptor.
const REFUSAL_TICKS: u8 = 6;

/// State of the mapping of a key.
enum ImportState {
    /// A mapping was requested, this number of heartbeat intervals ago.
    Requested(u8),
    /// The owner did not grant the mapping, the reply was invalid, or the mapping exceeded the limit of mapped bytes,
    /// this number of heartbeat intervals ago.
    Refused(u8),
    Mapped(Arc<PeerMapping>),
}

/// Imported mappings of one peer, by key.
#[derive(Default)]
pub(crate) struct Imports(Mutex<HashMap<u32, ImportState>>);

/// Result of [`Imports::find`].
pub(crate) enum ImportLookup {
    Mapped(Arc<PeerMapping>),
    /// There is no mapping, and the key was marked as requested. The caller must send the request.
    MustRequest,
    /// There is no mapping, and none may be requested now: a request is outstanding or was refused, or a limit is
    /// reached.
    Unavailable,
}

impl Imports {
    /// Looks up the mapping of a key.
    pub(crate) fn find(&self, key: u32) -> ImportLookup {
        let mut imports = self.0.lock();
        match imports.get(&key) {
            Some(ImportState::Mapped(mapped)) => return ImportLookup::Mapped(mapped.clone()),
            Some(ImportState::Requested(_) | ImportState::Refused(_)) => return ImportLookup::Unavailable,
            None => {}
        }
        let requests = imports.values().filter(|export| matches!(export, ImportState::Requested(_))).count();
        if imports.len() >= MAX_KEYS || requests >= MAX_REQUESTS {
            return ImportLookup::Unavailable;
        }
        imports.insert(key, ImportState::Requested(0));
        ImportLookup::MustRequest
    }

    /// Forgets a request that could not be sent. The next lookup then requests the mapping again.
    pub(crate) fn cancel_request(&self, key: u32) {
        let mut imports = self.0.lock();
        if let Some(ImportState::Requested(_)) = imports.get(&key) {
            imports.remove(&key);
        }
    }

    /// Whether a request for this key is outstanding.
    pub(crate) fn is_requested(&self, key: u32) -> bool {
        matches!(self.0.lock().get(&key), Some(ImportState::Requested(_)))
    }

    /// Records the reply to a request; `None`: not granted, or invalid. A mapping that would exceed the limit of mapped
    /// bytes per peer is dropped, and the key is recorded as refused.
    pub(crate) fn record_reply(&self, key: u32, mapped: Option<PeerMapping>) {
        let mut imports = self.0.lock();
        let spans = |export: &ImportState| if let ImportState::Mapped(mapped) = export { mapped.span() } else { 0 };
        let space = MAX_MAPPED_BYTES - imports.values().map(spans).sum::<u64>();
        let (export, beyond) = match mapped {
            Some(mapped) if mapped.span() <= space => (ImportState::Mapped(Arc::new(mapped)), None),
            refused => (ImportState::Refused(0), refused),
        };
        imports.insert(key, export);
        drop(imports);
        drop(beyond); // Unmaps without the lock, because unmapping takes long.
    }

    /// Removes the mapping, the request or the refusal of each revoked key.
    pub(crate) fn forget_revoked(&self, is_live: impl Fn(u32) -> bool) {
        let revoked: Vec<_> = self.0.lock().extract_if(|key, _| !is_live(*key)).collect();
        drop(revoked); // Unmaps without the lock, because unmapping takes long.
    }

    /// Called once per heartbeat interval. Removes requests and refusals that are old enough, so that the next lookup
    /// of the key requests a mapping again.
    pub(crate) fn tick(&self) {
        self.0.lock().retain(|_, export| {
            let (rounds, most) = match export {
                ImportState::Requested(rounds) => (rounds, REQUEST_TICKS),
                ImportState::Refused(rounds) => (rounds, REFUSAL_TICKS),
                ImportState::Mapped(_) => return true,
            };
            *rounds += 1;
            *rounds < most
        });
    }

    /// Number of mapped keys.
    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        self.0.lock().values().filter(|export| matches!(export, ImportState::Mapped(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::Region;
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn mapped(length: u64) -> PeerMapping {
        let file = rustix::fs::memfd_create("imports", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, length).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        PeerMapping::of_file(&file, 0, Region { address: 4096, length }, true).unwrap()
    }

    #[test]
    fn key_is_requested_once_until_its_request_or_refusal_expires() {
        let imports = Imports::default();
        let must_request = |key| matches!(imports.find(key), ImportLookup::MustRequest);
        assert!(!imports.is_requested(1) && must_request(1) && imports.is_requested(1) && !must_request(1));
        imports.cancel_request(1);
        assert!(must_request(1));
        imports.record_reply(1, None);
        assert!(!must_request(1) && !imports.is_requested(1), "a refused key is not requested again immediately");
        imports.cancel_request(1);
        assert!(!must_request(1));
        (1..REFUSAL_TICKS).for_each(|_| imports.tick());
        assert!(!must_request(1));
        imports.tick();
        assert!(must_request(1), "the refusal has expired");
        imports.record_reply(1, None);
        assert!(must_request(2));
        (0..REQUEST_TICKS).for_each(|_| imports.tick());
        assert!(must_request(2) && !must_request(1));
        imports.record_reply(2, Some(mapped(4096)));
        (0..REQUEST_TICKS).for_each(|_| imports.tick());
        assert!(matches!(imports.find(2), ImportLookup::Mapped(_)));
    }

    #[test]
    fn requests_keys_and_mapped_bytes_per_peer_are_bounded() {
        let imports = Imports::default();
        let must_request = |key| matches!(imports.find(key), ImportLookup::MustRequest);
        assert_eq!((0..100).filter(|key| must_request(*key)).count(), MAX_REQUESTS);
        imports.forget_revoked(|_| false);
        assert_eq!(
            (0..1000)
                .filter(|key| must_request(*key) && {
                    imports.record_reply(*key, None);
                    true
                })
                .count(),
            MAX_KEYS
        );
        imports.forget_revoked(|key| key == 7);
        assert!(!must_request(7) && must_request(8));
        for (key, expected) in [(1, 1), (2, 1), (3, 2)] {
            imports.record_reply(key, Some(mapped(if key == 3 { 4096 } else { MAX_MAPPED_BYTES - 4096 })));
            assert_eq!(imports.mapped(), expected, "{key}");
        }
    }

    #[test]
    fn revoked_mapping_is_removed_after_its_last_copy() {
        let imports = Imports::default();
        assert!(matches!(imports.find(1), ImportLookup::MustRequest));
        imports.record_reply(1, Some(mapped(4096)));
        let ImportLookup::Mapped(held) = imports.find(1) else { panic!() };
        let watched = Arc::downgrade(&held);
        imports.forget_revoked(|_| false);
        assert!(imports.mapped() == 0 && watched.upgrade().is_some());
        drop(held);
        assert!(watched.upgrade().is_none());
    }
}
