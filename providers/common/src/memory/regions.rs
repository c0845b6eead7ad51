//! The registered memory of an IA, by key. Accesses of peers and of local requests are checked with this table.
//!
//! A key is an index into the table and 16 unpredictable bits that change with each use of the index ([`KeyTable`],
//! which also delays the reuse of a freed index). Registrations and bound windows share the table, but local segments
//! cannot use the key of a window.
//!
//! A copy by this process holds a reference on its entry, or is part of an announced post (`SendWr::announced`). A
//! deregistration revokes the key, then waits for the announced posts, for the references, and for copies by peers, if
//! the provider's peers copy by themselves ([`RegionStore::end`]). So no transfer accesses the memory afterwards.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{Access, MemoryRegion, Region, Segment, Status};
use dapl::runtime::handle;
use dapl::runtime::sync::{AtomicU32, AtomicU64, Mutex, Ordering, fence, fence_behind_rmw, yield_now};

use super::keys::KeyTable;
use super::rights::{self, AccessRight, Domain, EXPORTED, KeyEntry, LOCAL, PeerIds, RegistrationGuard};
use super::scatter_gather::LocalMemory;
use super::user_copy::{MappingChecker, RegisteredRange};

/// Number of entries of the table. Index 0 is never used, so no key is 0, and one registration fewer is possible. Loom
/// models use a small table.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 1 << 16 };

/// The words of an entry: its valid key, or 0 if it has none; the address and the length of its range; and the access
/// rights ([`KeyEntry::word`]).
pub type EntryWords = [AtomicU64; 4];
pub const KEY: usize = 0;
pub const BASE: usize = 1;
pub const LEN: usize = 2;
pub const RIGHTS: usize = 3;

/// The memory of a provider's table, with [`SLOTS`] entries that are initially 0.
pub trait RegionStore: Send + Sync {
    /// Returns the entry at the index of a key, even if the key is invalid.
    fn words(&self, key: u32) -> &EntryWords;

    /// Returns the number of references on the entry at the index of a key.
    fn users(&self, key: u32) -> &AtomicU32;

    /// Called before a key becomes valid.
    fn begin(&self, _key: u32, _entry: KeyEntry) {}

    /// Called when a key is revoked and this process does not copy with it any longer. Waits for copies by peers, but
    /// at most a second.
    fn end(&self, _key: u32) {}

    /// Whether a peer has announced a copy with this key.
    fn is_in_use_by_peer(&self, _key: u32) -> bool {
        false
    }
}

/// Returns the entry of a key if these words belong to it. The words may change at any time, so each is read once, and
/// the key again at the end.
#[inline]
pub fn read_entry(words: &EntryWords, key: u32) -> Option<KeyEntry> {
    let entry = read_live_entry(words, key)?;
    // The fields belong to this key only if the entry still has the key after they were read.
    fence(Ordering::Acquire);
    (words[KEY].load(Ordering::Relaxed) == u64::from(key)).then_some(entry)
}

/// Returns the entry of a key without the second check of [`read_entry`]. The caller must ensure that a valid key is
/// not released while its entry is read.
#[inline(always)]
fn read_live_entry(words: &EntryWords, key: u32) -> Option<KeyEntry> {
    if words[KEY].load(Ordering::Acquire) != u64::from(key) {
        return None;
    }
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    Some(KeyEntry { region: Region { address: word(BASE), length: word(LEN) }, word: word(RIGHTS) })
}

/// The registrations and bound windows of an IA.
pub struct Regions<S> {
    pub store: S,
    keys: Mutex<KeyTable>,
    checker: MappingChecker,
}

impl<S: RegionStore> Regions<S> {
    /// Creates an empty table. `seed` must come from the system's random source.
    pub fn new(store: S, seed: u64) -> Self {
        Regions { store, keys: Mutex::new(KeyTable::new(SLOTS, seed | 1)), checker: MappingChecker::default() }
    }

    /// Whether a region may be registered, for writing if `write` is set.
    pub fn may_register(&self, region: Region, write: bool) -> bool {
        self.checker.may_register(region, write)
    }

    /// Registers a range, and returns its key. Errors: `Exhausted` if the table is full.
    pub fn add(&self, region: Region, access: Access, pd: u32) -> Result<u32> {
        let key = self.reserve()?;
        self.set(key, region, rights::word(access, pd, LOCAL));
        Ok(key)
    }

    /// Registers a range that peers may map, and returns its key.
    pub fn export(&self, region: Region, access: Access, pd: u32) -> Result<u32> {
        let key = self.reserve()?;
        self.set(key, region, rights::word(access, pd, LOCAL | EXPORTED));
        Ok(key)
    }

    /// Reserves a key, which grants no access until `activate`.
    pub fn reserve(&self) -> Result<u32> {
        self.keys.lock().reserve()
    }

    /// Makes a reserved key valid for a window. Peers can use the key; local segments cannot.
    pub fn activate(&self, key: u32, region: Region, access: Access, domain: Domain) {
        self.set(key, region, rights::window_word(access, domain));
    }

    fn set(&self, key: u32, region: Region, word: u64) {
        let words = self.store.words(key);
        words[BASE].store(region.address, Ordering::Relaxed);
        words[LEN].store(region.length, Ordering::Relaxed);
        words[RIGHTS].store(word, Ordering::Relaxed);
        self.store.begin(key, KeyEntry { region, word });
        // Release, for the Acquire in `read_live_entry`: a thread or process that sees the key also sees the fields.
        words[KEY].store(u64::from(key), Ordering::Release);
    }

    /// Ends a registration: revokes the key, then waits for announced posts, which may use local memory without a
    /// reference, and for all other copies.
    ///
    /// Must not be called during a post of the same thread, because it would wait for that post.
    pub fn deregister(&self, key: u32) {
        self.revoke(key);
        handle::await_posts();
        self.remove(key);
    }

    /// Revokes the key, waits for copies with it, and releases the key.
    pub fn remove(&self, key: u32) {
        self.revoke(key);
        while self.is_in_use(key) {
            yield_now();
        }
        self.store.end(key);
        self.release_key(key);
    }

    /// Revokes a key. Copies that have begun may still be in progress afterwards.
    pub fn revoke(&self, key: u32) {
        self.store.words(key)[KEY].store(0, Ordering::Relaxed);
        // Pairs with the fence in `acquire`, and with that of a peer that announces a copy: either the copying thread
        // sees that the key is revoked, or this thread sees the copy's reference or announcement.
        fence(Ordering::SeqCst);
    }

    /// Whether a copy by this process with this key is in progress.
    pub fn is_in_use(&self, key: u32) -> bool {
        self.store.users(key).load(Ordering::Acquire) != 0
    }

    /// Releases the index of a key that was revoked or never activated.
    pub fn release_key(&self, key: u32) {
        self.keys.lock().release_key(key);
    }

    /// Returns the entry of a key; `None` if the key is invalid.
    pub fn entry(&self, key: u32) -> Option<KeyEntry> {
        read_entry(self.store.words(key), key).filter(|_| key != 0)
    }

    /// Whether the key grants this access right to the range, in protection domain `pd`.
    #[inline]
    pub fn allows(&self, key: u32, pd: u32, region: Region, right: AccessRight) -> bool {
        self.entry(key).is_some_and(|entry| entry.allows(pd, region, right))
    }

    /// Takes a reference on the entry of a key, and returns the entry if the key is valid. The entry of index 0 grants
    /// no access.
    #[inline(always)]
    fn hold(&self, key: u32) -> (RegistrationGuard<'_>, Option<KeyEntry>) {
        let guard = RegistrationGuard::new(self.store.users(key));
        // Pairs with the fence in `revoke`: either the revoking thread sees this reference, or this thread sees that
        // the key is revoked.
        fence_behind_rmw();
        // If the key is valid here, its entry does not change until the guard is dropped, because `remove` waits for
        // that.
        (guard, read_live_entry(self.store.words(key), key))
    }

    /// Checks the access to a range, and takes a reference on the registration. Does not check that the memory is still
    /// mapped; the copy itself detects that.
    #[inline(always)]
    pub fn acquire(
        &self,
        key: u32,
        pd: u32,
        region: Region,
        right: AccessRight,
    ) -> std::result::Result<RegistrationGuard<'_>, Status> {
        let (guard, entry) = self.hold(key);
        let is_allowed = entry.is_some_and(|entry| entry.allows(pd, region, right));
        if is_allowed { Ok(guard) } else { Err(right.refusal()) }
    }

    /// Checks an access of a peer, and takes a reference, as [`Regions::acquire`] does. Returns the address in this
    /// process, which differs from the peer's for zero-based memory.
    pub fn acquire_for_peer(
        &self,
        key: u32,
        ids: PeerIds,
        range: Region,
        right: AccessRight,
    ) -> std::result::Result<(RegistrationGuard<'_>, u64), Status> {
        let (guard, entry) = self.hold(key);
        let address = entry.and_then(|entry| entry.address_for_peer(ids, range, right)).ok_or(right.refusal())?;
        Ok((guard, address))
    }

    /// Checks an access of a peer, and returns the address in this process.
    #[inline]
    pub fn address_for_peer(&self, key: u32, ids: PeerIds, range: Region, right: AccessRight) -> Option<u64> {
        self.entry(key)?.address_for_peer(ids, range, right)
    }
}

impl<S: RegionStore> LocalMemory for Regions<S> {
    type Guard<'a>
        = RegistrationGuard<'a>
    where
        S: 'a;

    #[inline(always)]
    fn acquire_segment(
        &self,
        pd: u32,
        segment: &Segment,
        write: bool,
    ) -> std::result::Result<RegistrationGuard<'_>, Status> {
        let region = Region { address: segment.address, length: segment.length };
        self.acquire(segment.key, pd, region, AccessRight::local(write))
    }

    #[inline(always)]
    fn allows_segment(&self, pd: u32, segment: &Segment, write: bool) -> bool {
        let region = Region { address: segment.address, length: segment.length };
        let entry = read_live_entry(self.store.words(segment.key), segment.key);
        entry.is_some_and(|entry| entry.allows(pd, region, AccessRight::local(write)))
    }

    fn registration(&self, key: u32) -> RegisteredRange<'_> {
        let field = |index: usize| self.store.words(key)[index].load(Ordering::Relaxed);
        RegisteredRange { region: Region { address: field(BASE), length: field(LEN) }, checker: &self.checker }
    }
}

/// A registration of memory. Dropping it deregisters the memory.
pub struct Mr<S: RegionStore> {
    regions: Arc<Regions<S>>,
    key: u32,
    remote: bool,
}

impl<S: RegionStore> Mr<S> {
    /// Registers a region. Errors: `InvalidParameter(3)` if it is not mapped with the access rights.
    pub fn register(regions: &Arc<Regions<S>>, region: Region, access: Access, pd: u32) -> Result<Self> {
        if !regions.may_register(region, access.writes()) {
            return Err(Error::InvalidParameter(3));
        }
        Ok(Mr::new(regions, regions.add(region, access, pd)?, access))
    }

    /// Returns the registration with this key and access.
    pub fn new(regions: &Arc<Regions<S>>, key: u32, access: Access) -> Self {
        Mr { regions: regions.clone(), key, remote: access.is_remote() }
    }
}

impl<S: RegionStore + 'static> MemoryRegion for Mr<S> {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.remote { self.key } else { 0 }
    }
}

impl<S: RegionStore> Drop for Mr<S> {
    fn drop(&mut self) {
        self.regions.deregister(self.key);
    }
}
