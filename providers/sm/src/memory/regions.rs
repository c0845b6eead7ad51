//! Registered memory of an IA: a table that this process writes and its peers map read-only.
//!
//! A key is an index into the table and 16 bits that change with each use of the index ([`KeyTable`], which also delays
//! the reuse of a freed index). Registrations and bound windows share the table, but local segments cannot use the key
//! of a window. The table makes RDMA one-sided: the initiator checks key, bounds, rights and protection domain in it
//! before it copies, and the key again afterwards.
//!
//! A copy by this process increments the entry's user count, or is part of an announced post. A copy by a peer
//! announces the key on the peer's control page. A deregistration revokes the key and then waits for these copies, so
//! no later transfer accesses the memory. It waits at most a second for a peer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::{Error, Result};
use dapl::provider::{Access, Region, Segment, Status};
use dapl::runtime::handle;
use dapl::runtime::sync::{AtomicU32, AtomicU64, Mutex, Ordering, fence, fence_behind_rmw, yield_now};
use dapl_software::memory::keys::KeyTable;
use dapl_software::memory::rights::{self, AccessRight, Domain, EXPORTED, KeyEntry, LOCAL, PeerIds, RegistrationGuard};
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::memory::user_copy::{MappingChecker, RegisteredRange};

use crate::memory::backing::ExportedRegions;
use crate::memory::knem::{ExportedRegion, Knem};
use crate::memory::map::{EngineTicks, RingSlots, SharedMapping};

/// Number of entries of the table. Index 0 is never used, so no key is 0, and one registration fewer is possible. Loom
/// models use a small table.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 1 << 16 };
const ENTRY: usize = 64;

const KEY: usize = 0;
const BASE: usize = 8;
const LEN: usize = 16;
const RIGHTS: usize = 24;
/// Offset in the entry of the cookie of the KNEM region. A cookie of 0 means that the memory has no KNEM region.
const COOKIE: usize = 32;

/// Reads the entry of a key in the table of this process or of a peer; `None` if the key is invalid. A peer may change
/// its table at any time, so each field is read once.
#[inline]
fn entry(table: &SharedMapping, slots: u32, key: u32) -> Option<KeyEntry> {
    let entry = live_entry(table, slots, key)?;
    // The fields belong to this key only if the entry still has the key after they were read.
    fence(Ordering::Acquire);
    let key_word = table.word((key >> 16) as usize * ENTRY + KEY);
    (key_word.load(Ordering::Relaxed) == u64::from(key)).then_some(entry)
}

/// Reads the entry of a key without the second check of [`entry`]. The caller must ensure that a valid key is not
/// released while its entry is read.
#[inline(always)]
fn live_entry(table: &SharedMapping, slots: u32, key: u32) -> Option<KeyEntry> {
    let index = key >> 16;
    if index == 0 || index >= slots {
        return None;
    }
    read_entry(table.words::<4>(index as usize * ENTRY), key)
}

/// Returns the fields of an entry, if the entry has this key.
#[inline(always)]
fn read_entry<const N: usize>(fields: &[AtomicU64; N], key: u32) -> Option<KeyEntry> {
    const { assert!(N >= 4) };
    if fields[KEY / 8].load(Ordering::Acquire) != u64::from(key) {
        return None;
    }
    let field = |at: usize| fields[at / 8].load(Ordering::Relaxed);
    Some(KeyEntry { region: Region { address: field(BASE), length: field(LEN) }, word: field(RIGHTS) })
}

/// The registrations and the keys of windows of an IA.
pub(crate) struct Regions {
    table: Arc<SharedMapping>,
    /// The entries of `table` as words.
    entries: RingSlots<{ ENTRY / 8 }>,
    /// Descriptor of the table, for peers.
    pub(crate) fd: OwnedFd,
    /// For each entry: number of copies by this process that are in progress.
    users: Box<[AtomicU32; SLOTS]>,
    keys: Mutex<KeyTable>,
    /// Returns whether a peer is copying with a key.
    announced: Box<dyn Fn(u32) -> bool + Send + Sync>,
    /// The KNEM device, if it is used. Registrations that peers may access are then also declared to this device.
    pub(crate) knem: Option<Knem>,
    /// Files and System V segments of the registrations that peers may map.
    pub(crate) backings: ExportedRegions,
    /// Counter of engine ticks, for checks that are made once per tick.
    pub(crate) ticker: EngineTicks,
    checker: MappingChecker,
}

impl Regions {
    /// Creates an empty table. `announced` returns whether a peer is copying with a key.
    pub(crate) fn new(
        seed: u64,
        knem: Option<Knem>,
        announced: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        let (table, fd) = SharedMapping::create("dapl-sm-regions", SLOTS * ENTRY, true)?;
        let table = Arc::new(table);
        let entries = RingSlots::new(table.clone(), 0, SLOTS as u32);
        let users: Box<[AtomicU32]> = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let users = users.try_into().map_err(|_| Error::Internal)?;
        let keys = Mutex::new(KeyTable::new(SLOTS, seed));
        Ok(Regions {
            table,
            entries,
            fd,
            users,
            keys,
            announced: Box::new(announced),
            knem,
            backings: ExportedRegions::default(),
            ticker: EngineTicks::default(),
            checker: MappingChecker::default(),
        })
    }

    /// Whether a region may be registered, for writing if `write` is set.
    pub(crate) fn may_register(&self, region: Region, write: bool) -> bool {
        self.checker.may_register(region, write)
    }

    /// Returns the table and the offsets of an entry's fields (key, base, length, rights), for tests that act as a
    /// malicious peer.
    #[cfg(test)]
    pub(crate) fn entry_fields(&self, key: u32) -> (&SharedMapping, [usize; 4]) {
        (&self.table, [KEY, BASE, LEN, RIGHTS].map(|field| (key >> 16) as usize * ENTRY + field))
    }

    /// Registers a range, and returns its key. Errors: `Exhausted` if the table is full.
    pub(crate) fn add(&self, region: Region, access: Access, pd: u32) -> Result<u32> {
        let key = self.reserve()?;
        self.set(key, region, rights::word(access, pd, LOCAL));
        Ok(key)
    }

    /// Registers a range that peers may map, and returns its key.
    pub(crate) fn export(&self, region: Region, access: Access, pd: u32) -> Result<u32> {
        let key = self.reserve()?;
        self.set(key, region, rights::word(access, pd, LOCAL | EXPORTED));
        Ok(key)
    }

    /// Returns the entry of a key; `None` if the key is invalid.
    pub(crate) fn entry(&self, key: u32) -> Option<KeyEntry> {
        entry(&self.table, SLOTS as u32, key)
    }

    /// Reserves a key that grants no access yet.
    pub(crate) fn reserve(&self) -> Result<u32> {
        self.keys.lock().reserve()
    }

    /// Makes a reserved key valid for a window. Peers can use the key; local segments cannot.
    pub(crate) fn activate(&self, key: u32, region: Region, access: Access, domain: Domain) {
        self.set(key, region, rights::window_word(access, domain));
    }

    fn set(&self, key: u32, region: Region, word: u64) {
        let entry = (key >> 16) as usize * ENTRY;
        self.table.word(entry + BASE).store(region.address, Ordering::Relaxed);
        self.table.word(entry + LEN).store(region.length, Ordering::Relaxed);
        self.table.word(entry + RIGHTS).store(word, Ordering::Relaxed);
        // Windows are not declared to KNEM: their memory is declared under the key of its registration.
        let grants = |right| KeyEntry { region, word }.grants(right);
        let knem = self.knem.as_ref().filter(|_| grants(AccessRight::LocalRead));
        let (read, write) = (grants(AccessRight::RemoteRead), grants(AccessRight::RemoteWrite));
        let cookie = knem.map_or(0, |knem| knem.export(region, read, write));
        self.table.word(entry + COOKIE).store(cookie, Ordering::Relaxed);
        // Release, for the Acquire in `read_entry`: a process that sees the key also sees the fields.
        self.table.word(entry + KEY).store(u64::from(key), Ordering::Release);
    }

    /// Ends a registration, and waits until no copy uses it, but at most a second for copies by peers.
    pub(crate) fn remove(&self, key: u32) {
        self.revoke(key);
        while self.is_in_use(key) {
            yield_now();
        }
        handle::await_posts();
        wait_while(|| self.is_in_use_by_peer(key));
        if let Some(knem) = &self.knem {
            knem.unexport(self.table.word((key >> 16) as usize * ENTRY + COOKIE).swap(0, Ordering::Relaxed));
        }
        self.backings.unexport(key);
        self.release_key(key);
    }

    /// Revokes a key. Copies that have begun may still be in progress afterwards.
    pub(crate) fn revoke(&self, key: u32) {
        self.table.word((key >> 16) as usize * ENTRY + KEY).store(0, Ordering::Relaxed);
        // Pairs with the fences in `acquire` and `announce`: either the copying thread sees that the key is revoked, or
        // this thread sees the copy's user count or announcement.
        fence(Ordering::SeqCst);
    }

    /// Whether a copy by this process with this key is in progress.
    pub(crate) fn is_in_use(&self, key: u32) -> bool {
        self.users[(key >> 16) as usize].load(Ordering::Acquire) != 0
    }

    /// Whether a peer has announced a copy with this key.
    pub(crate) fn is_in_use_by_peer(&self, key: u32) -> bool {
        (self.announced)(key)
    }

    /// Releases the index of a key that was revoked or never activated.
    pub(crate) fn release_key(&self, key: u32) {
        self.keys.lock().release_key(key);
    }

    /// Reads an entry of the local table, as the function [`live_entry`] does. Every index is in bounds, and the entry
    /// of index 0 grants no access.
    #[inline(always)]
    fn live_entry(&self, key: u32) -> Option<KeyEntry> {
        read_entry(self.entries.words(u64::from(key >> 16)), key)
    }

    /// Whether the key grants this access right to the range, in protection domain `pd`.
    pub(crate) fn allows(&self, key: u32, pd: u32, region: Region, right: AccessRight) -> bool {
        self.entry(key).is_some_and(|entry| entry.allows(pd, region, right))
    }

    /// Returns the registration of a key. A copy with the key must be in progress, so that the key stays valid.
    pub(crate) fn registration(&self, key: u32) -> RegisteredRange<'_> {
        let entry = (key >> 16) as usize * ENTRY;
        let field = |offset| self.table.word(entry + offset).load(Ordering::Relaxed);
        RegisteredRange { region: Region { address: field(BASE), length: field(LEN) }, checker: &self.checker }
    }

    /// Checks the access to a range, and marks the registration in use until the guard is dropped. Does not check that
    /// the memory is still mapped; the copy itself detects that.
    #[inline(always)]
    pub(crate) fn acquire(
        &self,
        key: u32,
        pd: u32,
        range: Region,
        right: AccessRight,
    ) -> std::result::Result<RegistrationGuard<'_>, Status> {
        let hold = RegistrationGuard::new(&self.users[(key >> 16) as usize]);
        // Pairs with the fence in `revoke`: either the revoking thread sees this user, or `live_entry` sees that the
        // key is revoked.
        fence_behind_rmw();
        // If the key is valid here, its entry does not change until the guard is dropped, because `remove` waits for
        // that.
        let entry = self.live_entry(key);
        let is_allowed = entry.is_some_and(|entry| entry.allows(pd, range, right));
        if is_allowed { Ok(hold) } else { Err(right.refusal()) }
    }
}

impl Regions {
    /// Checks and marks an access, as [`Regions::acquire`] does, for the peer of the queue pair with these `ids`. Also
    /// returns the address in this process, which differs from the peer's for zero-based memory.
    pub(crate) fn acquire_for_peer(
        &self,
        key: u32,
        ids: PeerIds,
        range: Region,
        right: AccessRight,
    ) -> std::result::Result<(RegistrationGuard<'_>, u64), Status> {
        let hold = RegistrationGuard::new(&self.users[(key >> 16) as usize]);
        fence_behind_rmw(); // Pairs with the fence in `revoke`, as in `acquire`.
        let address = self.live_entry(key).and_then(|entry| entry.address_for_peer(ids, range, right));
        address.map(|address| (hold, address)).ok_or(right.refusal())
    }
}

impl LocalMemory for Regions {
    type Guard<'a> = RegistrationGuard<'a>;

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
        let entry = self.live_entry(segment.key);
        entry.is_some_and(|entry| entry.allows(pd, region, AccessRight::local(write)))
    }

    fn registration(&self, key: u32) -> RegisteredRange<'_> {
        Regions::registration(self, key)
    }
}

/// Waits while `announcement` returns true, because a peer is copying. A copy takes a short time, unless the peer's
/// thread is preempted. The wait ends after a second, because the peer may be stopped or malicious.
pub(crate) fn wait_while(announcement: impl Fn() -> bool) {
    const MIN_ROUNDS: u32 = 1000;
    let (mut rounds, mut since) = (0, None);
    while announcement() {
        rounds += 1;
        // Loom models have no clock, so the number of attempts is limited.
        let over =
            |since: &mut Option<Instant>| since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1);
        if rounds > MIN_ROUNDS && (cfg!(loom) || over(&mut since)) {
            return;
        }
        yield_now();
    }
}

/// The table of registrations of a peer.
pub(crate) struct PeerRegions {
    table: SharedMapping,
    slots: u32,
}

impl PeerRegions {
    /// Maps the table of a peer, which has `slots` entries. `None`: the file is not sealed, has another size or huge
    /// pages, or cannot be mapped.
    pub(crate) fn map(fd: &OwnedFd, slots: u32) -> Option<Arc<Self>> {
        let table = SharedMapping::of_peer(fd, slots as usize * ENTRY, false)?;
        Some(Arc::new(PeerRegions { table, slots }))
    }

    /// Announces a copy to or from the peer's memory, if the peer's table grants the access. `announcement` is the word
    /// on the local control page that the peer reads. It contains the key until [`CopyAnnouncement`] is dropped.
    #[inline(always)]
    pub(crate) fn announce<'a>(
        &self,
        announcement: &'a AtomicU64,
        target: &AccessTarget,
    ) -> std::result::Result<CopyAnnouncement<'a>, Status> {
        announcement.store(u64::from(target.key), Ordering::Relaxed);
        let announced = CopyAnnouncement(announcement);
        // Pairs with the fence in `revoke`: either the owner of the memory sees the announcement, or this process sees
        // that the key is revoked.
        fence(Ordering::SeqCst);
        if self.allows(target) { Ok(announced) } else { Err(Status::RemoteAccess) }
    }

    /// Returns the KNEM cookie of a key, if there is one. The cookie is valid only while the key is valid.
    pub(crate) fn exported(&self, key: u32) -> Option<ExportedRegion> {
        let offset = self.entry_offset(key)?;
        ExportedRegion::of(self.table.word(offset + COOKIE).load(Ordering::Relaxed))
    }

    /// Returns the offset of a range from the start of its registration.
    pub(crate) fn offset(&self, target: &AccessTarget) -> Option<u64> {
        let offset = self.entry_offset(target.key)?;
        target.address.checked_sub(self.table.word(offset + BASE).load(Ordering::Relaxed))
    }

    /// Returns the offset of a key's entry in the table.
    fn entry_offset(&self, key: u32) -> Option<usize> {
        (key >> 16 < self.slots).then_some((key >> 16) as usize * ENTRY)
    }

    /// Returns the peer's entry of a key, if the key is valid.
    pub(crate) fn entry(&self, key: u32) -> Option<KeyEntry> {
        entry(&self.table, self.slots, key)
    }

    /// Whether the peer's key is still valid. This check suffices after a copy that [`PeerRegions::allows`] has
    /// permitted, because the access rights of a valid key do not change.
    #[inline(always)]
    pub(crate) fn is_live(&self, key: u32) -> bool {
        // The copy must come before this check.
        fence(Ordering::Acquire);
        self.entry_offset(key)
            .is_some_and(|offset| self.table.word(offset + KEY).load(Ordering::Relaxed) == u64::from(key))
    }

    /// Whether the peer's key grants the access.
    #[inline(always)]
    pub(crate) fn allows(&self, target: &AccessTarget) -> bool {
        let range = Region { address: target.address, length: target.length };
        self.entry(target.key).is_some_and(|entry| entry.allows(target.pd, range, target.right))
    }
}

/// A range of a peer's memory, and the kind of access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessTarget {
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) right: AccessRight,
}

/// Announcement of a copy to or from a peer's memory. Dropping it withdraws the announcement.
pub(crate) struct CopyAnnouncement<'a>(&'a AtomicU64);

impl Drop for CopyAnnouncement<'_> {
    fn drop(&mut self) {
        // Release: the owner of the memory may reuse it when the word is 0, so the copy comes before the store.
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Access =
        Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

    /// Returns the address of 128 bytes of mapped memory.
    fn base() -> u64 {
        static MEMORY: [std::sync::atomic::AtomicU64; 16] = [const { std::sync::atomic::AtomicU64::new(0) }; 16];
        MEMORY.as_ptr() as u64
    }

    fn regions() -> Regions {
        Regions::new(1, None, |_| false).unwrap()
    }

    fn memory(length: u64) -> Region {
        Region { address: base(), length }
    }

    #[test]
    fn region_key_allows_access_only_to_its_range() {
        let regions = regions();
        let key = regions.add(memory(100), ALL, 7).unwrap();
        let ok = |address, length| regions.acquire(key, 7, Region { address, length }, AccessRight::LocalWrite).is_ok();
        let at = base();
        assert!(ok(at, 100) && ok(at + 99, 1) && ok(at + 100, 0));
        assert!(!ok(at - 1, 1) && !ok(at, 101) && !ok(at + 101, 0) && !ok(u64::MAX, 2) && !ok(at + 50, u64::MAX));
        assert!(regions.acquire(key, 8, memory(1), AccessRight::LocalRead).is_err(), "another domain");
        assert!(regions.acquire(key ^ 1, 7, memory(1), AccessRight::LocalRead).is_err(), "a guessed key");
        for garbage in [0, 1, u32::MAX, 0xFFFF_0000] {
            assert!(regions.acquire(garbage, 7, memory(1), AccessRight::LocalRead).is_err());
        }
    }

    #[test]
    fn registration_for_remote_read_denies_local_and_remote_writes() {
        let regions = regions();
        let key = regions.add(memory(10), Access { remote_read: true, ..Access::default() }, 1).unwrap();
        assert!(regions.acquire(key, 1, memory(1), AccessRight::LocalRead).is_ok());
        assert!(regions.acquire(key, 1, memory(1), AccessRight::RemoteRead).is_ok());
        assert_eq!(regions.acquire(key, 1, memory(1), AccessRight::LocalWrite).err(), Some(Status::LocalProtection));
        assert_eq!(regions.acquire(key, 1, memory(1), AccessRight::RemoteWrite).err(), Some(Status::RemoteAccess));
    }

    #[test]
    fn removed_key_is_invalid_in_local_table_and_at_peer() {
        let regions = regions();
        let of_peer = PeerRegions::map(&regions.fd, SLOTS as u32).unwrap();
        let key = regions.add(memory(64), ALL, 1).unwrap();
        let target = AccessTarget { key, pd: 1, address: base(), length: 64, right: AccessRight::RemoteWrite };
        let announcement = AtomicU64::new(0);
        drop(of_peer.announce(&announcement, &target).unwrap());
        regions.remove(key);
        assert!(regions.acquire(key, 1, memory(1), AccessRight::LocalRead).is_err());
        assert!(of_peer.announce(&announcement, &target).is_err());
        assert_eq!(announcement.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn region_removal_waits_for_copies() {
        let regions = regions();
        let key = regions.add(memory(64), ALL, 1).unwrap();
        let hold = regions.acquire(key, 1, memory(64), AccessRight::LocalRead).unwrap();
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| regions.remove(key));
            while regions.acquire(key, 1, memory(1), AccessRight::LocalRead).is_ok() {
                std::thread::yield_now();
            }
            assert!(!remover.is_finished());
            drop(hold);
        });
    }

    #[test]
    fn window_key_grants_its_remote_rights_from_the_bind_to_the_revocation() {
        let regions = regions();
        let key = regions.reserve().unwrap();
        let access = |right| regions.acquire(key, 1, memory(8), right).is_ok();
        assert!(!access(AccessRight::RemoteRead), "a reserved key grants no access");
        regions.activate(key, memory(8), Access { remote_read: true, ..Access::default() }, Domain::Pd(1));
        assert!(access(AccessRight::RemoteRead) && !access(AccessRight::RemoteWrite));
        assert!(!access(AccessRight::LocalRead) && !access(AccessRight::LocalWrite));
        regions.revoke(key);
        assert!(!access(AccessRight::RemoteRead) && !regions.is_in_use(key));
    }
}

#[cfg(all(test, loom))]
mod interleavings;
