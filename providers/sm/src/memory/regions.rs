//! Registered memory of an IA: a table that this process writes and its peers map read-only.
//!
//! `dapl_software::memory::regions` contains the operations on the table of this process. The table makes RDMA
//! one-sided: the initiator checks key, bounds, rights and protection domain in it before it copies, and the key again
//! afterwards. Such a copy by a peer announces the key on the peer's control page. A deregistration waits for it, but
//! at most a second.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::{Error, Result};
use dapl::provider::{Region, Status};
use dapl::runtime::sync::{AtomicU32, AtomicU64, Ordering, fence, yield_now};
use dapl_software::memory::regions::{BASE, EntryWords, RIGHTS, RegionStore, SLOTS, read_entry};
use dapl_software::memory::rights::{AccessRight, EXPORTED, KeyEntry};

use crate::memory::backing::ExportedRegions;
use crate::memory::knem::{ExportedRegion, Knem};
use crate::memory::map::{EngineTicks, RingSlots, SharedMapping};

const ENTRY: usize = 64;

/// The word of the entry that contains the cookie of the KNEM region. A cookie of 0 means that the memory has no KNEM
/// region.
const COOKIE: usize = 4;

/// The registrations and the keys of windows of an IA.
pub(crate) type Regions = dapl_software::memory::regions::Regions<RegionTable>;

/// The table of registrations of this process.
pub struct RegionTable {
    table: Arc<SharedMapping>,
    /// The entries of `table` as words.
    entries: RingSlots<{ ENTRY / 8 }>,
    /// Descriptor of the table, for peers.
    pub(crate) fd: OwnedFd,
    /// For each entry: number of copies by this process that are in progress.
    users: Box<[AtomicU32; SLOTS]>,
    /// Returns whether a peer is copying with a key.
    announced: Box<dyn Fn(u32) -> bool + Send + Sync>,
    /// The KNEM device, if it is used. Registrations that peers may access are then also declared to this device.
    pub(crate) knem: Option<Knem>,
    /// Files and System V segments of the registrations that peers may map.
    pub(crate) backings: ExportedRegions,
    /// Counter of engine ticks, for checks that are made once per tick.
    pub(crate) ticker: EngineTicks,
}

impl RegionTable {
    /// Creates an empty table. `announced` returns whether a peer is copying with a key.
    pub(crate) fn new(knem: Option<Knem>, announced: impl Fn(u32) -> bool + Send + Sync + 'static) -> Result<Self> {
        let (table, fd) = SharedMapping::create("dapl-sm-regions", SLOTS * ENTRY, true)?;
        let table = Arc::new(table);
        let entries = RingSlots::new(table.clone(), 0, SLOTS as u32);
        let users: Box<[AtomicU32]> = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Ok(RegionTable {
            table,
            entries,
            fd,
            users: users.try_into().map_err(|_| Error::Internal)?,
            announced: Box::new(announced),
            knem,
            backings: ExportedRegions::default(),
            ticker: EngineTicks::default(),
        })
    }

    fn cookie(&self, key: u32) -> &AtomicU64 {
        self.table.word((key >> 16) as usize * ENTRY + COOKIE * 8)
    }
}

impl RegionStore for RegionTable {
    #[inline(always)]
    fn words(&self, key: u32) -> &EntryWords {
        let words = self.entries.words((key >> 16).into());
        words.first_chunk().expect("an entry has more words")
    }

    #[inline(always)]
    fn users(&self, key: u32) -> &AtomicU32 {
        &self.users[(key >> 16) as usize]
    }

    fn begin(&self, key: u32, entry: KeyEntry) {
        // Windows are not declared to KNEM: their memory is declared under the key of its registration.
        let knem = self.knem.as_ref().filter(|_| entry.grants(AccessRight::LocalRead));
        let (read, write) = (entry.grants(AccessRight::RemoteRead), entry.grants(AccessRight::RemoteWrite));
        let cookie = knem.map_or(0, |knem| knem.export(entry.region, read, write));
        self.cookie(key).store(cookie, Ordering::Relaxed);
    }

    fn end(&self, key: u32) {
        wait_while(|| self.is_in_use_by_peer(key));
        if let Some(knem) = &self.knem {
            knem.unexport(self.cookie(key).swap(0, Ordering::Relaxed));
        }
        if self.words(key)[RIGHTS].load(Ordering::Relaxed) & EXPORTED != 0 {
            self.backings.unexport(key);
        }
    }

    fn is_in_use_by_peer(&self, key: u32) -> bool {
        (self.announced)(key)
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
        ExportedRegion::of(self.words::<{ COOKIE + 1 }>(key)?[COOKIE].load(Ordering::Relaxed))
    }

    /// Returns the offset of a range from the start of its registration.
    pub(crate) fn offset(&self, target: &AccessTarget) -> Option<u64> {
        target.address.checked_sub(self.words::<{ BASE + 1 }>(target.key)?[BASE].load(Ordering::Relaxed))
    }

    /// Returns the first words of the entry at the index of a key.
    #[inline(always)]
    fn words<const N: usize>(&self, key: u32) -> Option<&[AtomicU64; N]> {
        (key >> 16 < self.slots).then(|| self.table.words((key >> 16) as usize * ENTRY))
    }

    /// Returns the peer's entry of a key, if the key is valid.
    pub(crate) fn entry(&self, key: u32) -> Option<KeyEntry> {
        read_entry(self.words(key)?, key).filter(|_| key >> 16 != 0)
    }

    /// Whether the peer's key is still valid. This check suffices after a copy that [`PeerRegions::allows`] has
    /// permitted, because the access rights of a valid key do not change.
    #[inline(always)]
    pub(crate) fn is_live(&self, key: u32) -> bool {
        // The copy must come before this check.
        fence(Ordering::Acquire);
        self.words::<1>(key).is_some_and(|[word]| word.load(Ordering::Relaxed) == u64::from(key))
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

    use dapl::provider::Access;
    use dapl_software::memory::rights::Domain;

    const ALL: Access =
        Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

    /// Returns the address of 128 bytes of mapped memory.
    fn base() -> u64 {
        static MEMORY: [std::sync::atomic::AtomicU64; 16] = [const { std::sync::atomic::AtomicU64::new(0) }; 16];
        MEMORY.as_ptr() as u64
    }

    fn regions() -> Regions {
        Regions::new(RegionTable::new(None, |_| false).unwrap(), 1)
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
        let of_peer = PeerRegions::map(&regions.store.fd, SLOTS as u32).unwrap();
        let key = regions.add(memory(64), ALL, 1).unwrap();
        let target = AccessTarget { key, pd: 1, address: base(), length: 64, right: AccessRight::RemoteWrite };
        let announcement = AtomicU64::new(0);
        drop(of_peer.announce(&announcement, &target).unwrap());
        regions.deregister(key);
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
            let remover = scope.spawn(|| regions.deregister(key));
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
