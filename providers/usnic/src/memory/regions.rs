//! The table of registered memory, by key. Accesses of peers and of local requests are checked with this table.
//!
//! A key consists of an index into the table and 16 unpredictable bits that change with each use of the index
//! ([`KeyTable`], which also delays the reuse of a freed index). Registrations and bound windows share the table, but
//! local segments cannot use the key of a window.
//!
//! A copy holds a reference on its entry, except the copy of a short send during its post, if dapl has announced the
//! post (`SendWr::announced`). Deregistration revokes the key, then waits for the end of all announced posts, and then
//! until there are no references. So no transfer accesses the memory afterwards.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread::yield_now;

use dapl::error::Result;
use dapl::provider::{Access, Region, Segment, Status};
use dapl::runtime::handle;
use dapl_software::memory::keys::KeyTable;
use dapl_software::memory::rights::{self, AccessRight, Domain, KeyEntry, LOCAL, RegistrationGuard};
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::memory::user_copy::{MappingChecker, RegisteredRange};
use dapl_software::memory::window::WindowKeys;
use parking_lot::Mutex;

/// Number of entries of the table. Index 0 is unused, so no key is 0.
pub(crate) const SLOTS: usize = 1 << 16;
/// Number of entries that are allocated together.
const CHUNK: usize = 256;

#[derive(Debug, Default)]
struct RegionEntry {
    /// The valid key of this entry, or 0 if it has none.
    key: AtomicU32,
    /// Number of references: copies and sends that use the memory of this entry.
    users: AtomicU32,
    base: AtomicU64,
    length: AtomicU64,
    /// Access rights in the lower 32 bits ([`KeyEntry::word`]). The upper 32 bits are the protection domain. For a
    /// window that only the peer of one queue pair may use, they are the number of that queue pair.
    rights: AtomicU64,
}

impl RegionEntry {
    #[inline]
    fn values(&self) -> KeyEntry {
        let field = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let region = Region { address: field(&self.base), length: field(&self.length) };
        KeyEntry { region, word: field(&self.rights) }
    }

    /// Whether the key grants the access. Checks the key again after reading the other fields: if the key has changed,
    /// the fields may belong to another registration.
    #[inline(always)]
    fn opens(&self, key: u32, pd: u32, range: Region, right: AccessRight) -> bool {
        if key == 0 || self.key.load(Ordering::Acquire) != key {
            return false;
        }
        let entry = self.values();
        fence(Ordering::Acquire);
        entry.allows(pd, range, right) && self.key.load(Ordering::Relaxed) == key
    }

    /// Returns the address in this process if the key grants the access to the peer of the queue pair with these `ids`.
    fn address_for_peer(&self, key: u32, ids: PeerIds, range: Region, right: AccessRight) -> Option<u64> {
        if self.opens(key, ids.pd, range, right) {
            return Some(range.address);
        }
        if key == 0 || self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let entry = self.values();
        fence(Ordering::Acquire);
        entry.resolve(ids.pd, ids.qp, range, right).filter(|_| self.key.load(Ordering::Relaxed) == key)
    }
}

/// The identifiers of a queue pair for checks of its peer's accesses: its protection domain and its number
/// ([`dapl_software::memory::window::QpDomain`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerIds {
    pub(crate) pd: u32,
    pub(crate) qp: u32,
}

/// The registrations and bound windows of an IA.
pub(crate) struct Regions {
    /// The chunks of the table, which are allocated on demand. The sizes are constants, so that the compiler can omit
    /// index checks.
    chunks: Box<[OnceLock<Box<[RegionEntry; CHUNK]>>; SLOTS / CHUNK]>,
    keys: Mutex<KeyTable>,
    checker: MappingChecker,
}

impl Regions {
    /// Creates an empty table. `seed` must come from the system's random source.
    pub(crate) fn new(seed: u64) -> Self {
        let chunks = Box::new([const { OnceLock::new() }; SLOTS / CHUNK]);
        Regions { chunks, keys: Mutex::new(KeyTable::new(SLOTS, seed | 1)), checker: MappingChecker::default() }
    }

    /// Returns the entry at the index of a key, even if the key is invalid. Returns `None` if its chunk is not
    /// allocated.
    #[inline(always)]
    fn entry(&self, key: u32) -> Option<&RegionEntry> {
        let index = KeyTable::index(key);
        self.chunks[index / CHUNK].get().map(|chunk| &chunk[index % CHUNK])
    }

    /// Ends a registration: revokes the key, then waits for announced posts, which may use local memory without a
    /// reference, and for all references.
    ///
    /// Must not be called during a post of the same thread, because it would wait for that post.
    pub(crate) fn deregister(&self, key: u32) {
        self.revoke(key);
        handle::await_posts();
        self.remove(key);
    }

    /// Whether a region may be registered, for writing if `write` is true.
    pub(crate) fn may_register(&self, region: Region, write: bool) -> bool {
        self.checker.may_register(region, write)
    }

    /// Registers a range and returns its key.
    pub(crate) fn add(&self, region: Region, access: Access, pd: u32) -> Result<u32> {
        let key = self.reserve()?;
        self.set(key, region, rights::word(access, pd, LOCAL));
        Ok(key)
    }

    fn set(&self, key: u32, region: Region, word: u64) {
        let index = KeyTable::index(key);
        let chunk =
            self.chunks[index / CHUNK].get_or_init(|| Box::new(std::array::from_fn(|_| RegionEntry::default())));
        let entry = &chunk[index % CHUNK];
        entry.base.store(region.address, Ordering::Relaxed);
        entry.length.store(region.length, Ordering::Relaxed);
        entry.rights.store(word, Ordering::Relaxed);
        // Release pairs with the Acquire in `opens`: the fields are written before the key that makes them valid.
        entry.key.store(key, Ordering::Release);
    }

    /// Whether the key grants this access right on the range.
    #[inline]
    pub(crate) fn allows(&self, key: u32, pd: u32, region: Region, right: AccessRight) -> bool {
        self.entry(key).is_some_and(|entry| entry.opens(key, pd, region, right))
    }

    /// Returns the entry of a key for log messages, or `None` if the key is invalid.
    pub(crate) fn key_entry(&self, key: u32) -> Option<KeyEntry> {
        self.entry(key).filter(|entry| key != 0 && entry.key.load(Ordering::Acquire) == key).map(RegionEntry::values)
    }

    /// Checks an access, and takes a reference on the entry for a copy.
    pub(crate) fn acquire(
        &self,
        key: u32,
        pd: u32,
        region: Region,
        right: AccessRight,
    ) -> std::result::Result<RegistrationGuard<'_>, Status> {
        let entry = self.entry(key).ok_or(right.refusal())?;
        let guard = RegistrationGuard::new(&entry.users);
        // The barrier pairs with that in `revoke`: either deregistration sees this reference, or `opens` sees that the
        // key is revoked.
        dapl::runtime::sync::fence_behind_rmw();
        if entry.opens(key, pd, region, right) { Ok(guard) } else { Err(right.refusal()) }
    }
}

/// Accesses of peers. For zero-based memory, the peer's addresses are offsets, and these functions translate them.
impl Regions {
    /// Checks an access of a peer, and returns the address in this process.
    #[inline]
    pub(crate) fn address_for_peer(&self, key: u32, ids: PeerIds, range: Region, right: AccessRight) -> Option<u64> {
        self.entry(key)?.address_for_peer(key, ids, range, right)
    }

    /// Checks an access of a peer, and takes a reference for the copy. Returns the address in this process.
    pub(crate) fn acquire_for_peer(
        &self,
        key: u32,
        ids: PeerIds,
        range: Region,
        right: AccessRight,
    ) -> std::result::Result<(RegistrationGuard<'_>, u64), Status> {
        let entry = self.entry(key).ok_or(right.refusal())?;
        let guard = RegistrationGuard::new(&entry.users);
        dapl::runtime::sync::fence_behind_rmw(); // Pairs with `revoke`, as in `acquire`.
        let address = entry.address_for_peer(key, ids, range, right).ok_or(right.refusal())?;
        Ok((guard, address))
    }
}

/// Key operations for memory windows. Only this process accesses its memory, so after a revocation there is no access
/// of another process to wait for.
impl WindowKeys for Regions {
    fn reserve(&self) -> Result<u32> {
        self.keys.lock().reserve()
    }

    fn activate(&self, key: u32, region: Region, access: Access, domain: Domain) {
        self.set(key, region, rights::window_word(access, domain));
    }

    fn revoke(&self, key: u32) {
        if let Some(entry) = self.entry(key) {
            // The exchange fails for a key that is reserved but not active, because its entry does not contain the key.
            let _ = entry.key.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        // The barrier pairs with that in `acquire`: either `acquire` sees that the key is revoked, or `is_in_use` sees
        // its reference.
        fence(Ordering::SeqCst);
    }

    fn is_in_use(&self, key: u32) -> bool {
        self.entry(key).is_some_and(|entry| entry.users.load(Ordering::Acquire) != 0)
    }

    fn is_in_use_by_peer(&self, _: u32) -> bool {
        false
    }

    fn remove(&self, key: u32) {
        self.revoke(key);
        while self.is_in_use(key) {
            yield_now();
        }
        self.release_key(key);
    }

    fn release_key(&self, key: u32) {
        self.keys.lock().release_key(key);
    }

    fn covers(&self, source: u32, pd: u32, region: Region, write: bool) -> bool {
        self.allows(source, pd, region, AccessRight::local(write))
    }
}

impl LocalMemory for Regions {
    type Guard<'a> = RegistrationGuard<'a>;

    #[inline]
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
        self.allows(segment.key, pd, region, AccessRight::local(write))
    }

    /// Returns the range of a key, with the checker of mappings. The caller holds a reference on the entry, or is in an
    /// announced post, for which deregistration waits.
    fn registration(&self, key: u32) -> RegisteredRange<'_> {
        let region = self.entry(key).map(|entry| entry.values().region);
        RegisteredRange { region: region.unwrap_or_default(), checker: &self.checker }
    }
}

/// References on the registrations of a batch of packets, released together. Reused to avoid allocations.
#[derive(Debug, Default)]
pub(crate) struct RegistrationGuards {
    /// Keys with one reference each.
    keys: Vec<u32>,
}

impl RegistrationGuards {
    /// Checks an access to local memory that the kernel will read, and takes a reference.
    pub(crate) fn acquire(&mut self, regions: &Regions, pd: u32, segment: &Segment) -> std::result::Result<(), Status> {
        if self.keys.last() == Some(&segment.key) {
            // This object already holds a reference on the registration.
            let is_allowed = regions.allows_segment(pd, segment, false);
            return if is_allowed { Ok(()) } else { Err(AccessRight::LocalRead.refusal()) };
        }
        regions.acquire_segment(pd, segment, false)?.suspend();
        self.keys.push(segment.key);
        Ok(())
    }

    /// Checks an RDMA read of the peer, and takes a reference. Returns the address in this process.
    pub(crate) fn acquire_for_peer(
        &mut self,
        regions: &Regions,
        ids: PeerIds,
        segment: &Segment,
    ) -> std::result::Result<u64, Status> {
        let (key, right) = (segment.key, AccessRight::RemoteRead);
        let range = Region { address: segment.address, length: segment.length };
        if self.keys.last() == Some(&key) {
            return regions.address_for_peer(key, ids, range, right).ok_or(right.refusal());
        }
        let (guard, address) = regions.acquire_for_peer(key, ids, range, right)?;
        guard.suspend();
        self.keys.push(key);
        Ok(address)
    }

    pub(crate) fn release(&mut self, regions: &Regions) {
        for key in self.keys.drain(..) {
            if let Some(entry) = regions.entry(key) {
                drop(RegistrationGuard::resume(&entry.users));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Access =
        Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

    /// Returns the address of mapped memory.
    fn base() -> u64 {
        static MEMORY: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
        MEMORY.as_ptr() as u64
    }

    fn memory(length: u64) -> Region {
        Region { address: base(), length }
    }

    #[test]
    fn region_key_allows_access_only_to_its_range() {
        let regions = Regions::new(1);
        let key = regions.add(memory(100), ALL, 7).unwrap();
        let at = base();
        for right in
            [AccessRight::LocalRead, AccessRight::LocalWrite, AccessRight::RemoteRead, AccessRight::RemoteWrite]
        {
            let ok = |address, length| regions.acquire(key, 7, Region { address, length }, right).is_ok();
            assert!(ok(at, 100) && ok(at + 99, 1) && ok(at + 100, 0));
            assert!(!ok(at - 1, 1) && !ok(at, 101) && !ok(at + 101, 0) && !ok(u64::MAX, 2) && !ok(at + 50, u64::MAX));
            assert!(
                regions.acquire(key, 8, memory(1), right).is_err(),
                "a key is invalid in another protection domain"
            );
            for garbage in [0, 1, key ^ 1, key ^ 1 << 16, u32::MAX, 0xFFFF_0000] {
                assert!(regions.acquire(garbage, 7, memory(1), right).is_err(), "the key {garbage:#x} is invalid");
            }
        }
        assert!(!regions.is_in_use(key), "a rejected access leaves no reference");
    }

    #[test]
    fn registration_for_remote_read_denies_local_and_remote_writes() {
        let regions = Regions::new(1);
        let key = regions.add(memory(10), Access { remote_read: true, ..Access::default() }, 1).unwrap();
        let refused = |right| regions.acquire(key, 1, memory(1), right).err();
        assert_eq!((refused(AccessRight::LocalRead), refused(AccessRight::RemoteRead)), (None, None));
        assert_eq!(refused(AccessRight::LocalWrite), Some(Status::LocalProtection));
        assert_eq!(refused(AccessRight::RemoteWrite), Some(Status::RemoteAccess));
    }

    #[test]
    fn region_removal_waits_for_copies_and_kernel_reads() {
        let regions = Regions::new(1);
        let mut guards = RegistrationGuards::default();
        for by_kernel in [false, true] {
            let key = regions.add(memory(64), ALL, 1).unwrap();
            let segment = Segment { key, pad: 0, address: base(), length: 8 };
            let guard = (!by_kernel).then(|| regions.acquire_segment(1, &segment, true).unwrap());
            if by_kernel {
                guards.acquire(&regions, 1, &segment).unwrap();
                guards.acquire(&regions, 1, &segment).unwrap();
            }
            std::thread::scope(|scope| {
                let remover = scope.spawn(|| regions.remove(key));
                while regions.allows(key, 1, memory(1), AccessRight::LocalRead) {
                    yield_now();
                }
                assert!(!remover.is_finished());
                assert!(
                    guards.acquire(&regions, 1, &segment).is_err(),
                    "a revoked key is rejected, even while its memory is referenced"
                );
                drop(guard);
                guards.release(&regions);
            });
            assert!(!regions.is_in_use(key));
        }
    }

    #[test]
    fn window_key_is_valid_for_peers_and_not_for_local_segments() {
        let regions = Regions::new(1);
        let key = regions.reserve().unwrap();
        let access = |right| regions.acquire(key, 1, memory(8), right).is_ok();
        assert!(!access(AccessRight::RemoteRead), "a reserved key grants no access");
        regions.activate(key, memory(8), Access { remote_read: true, ..Access::default() }, Domain::Pd(1));
        assert!(access(AccessRight::RemoteRead) && !access(AccessRight::RemoteWrite));
        assert!(!access(AccessRight::LocalRead) && !access(AccessRight::LocalWrite));
        regions.revoke(key);
        assert!(!access(AccessRight::RemoteRead) && !regions.is_in_use(key));
    }

    #[test]
    fn reused_index_rejects_old_keys() {
        let regions = Regions::new(5);
        let mut old = Vec::new();
        for _ in 0..SLOTS - 1 {
            old.push(regions.add(memory(8), ALL, 1).unwrap());
        }
        assert!(regions.add(memory(8), ALL, 1).is_err(), "a registration fails while all keys are in use");
        old.iter().for_each(|key| regions.remove(*key));
        let new: Vec<_> = (0..100).map(|_| regions.add(memory(8), ALL, 1).unwrap()).collect();
        assert!(old.iter().all(|key| !regions.allows(*key, 1, memory(8), AccessRight::RemoteRead)));
        assert!(new.iter().all(|key| regions.allows(*key, 1, memory(8), AccessRight::RemoteRead)));
    }
}
