//! The memory of the table of registrations, and the references of a batch of packets on registrations.
#![forbid(unsafe_code)]

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Region, Segment, Status};
use dapl::runtime::sync::AtomicU32;
use dapl_software::memory::keys::KeyTable;
use dapl_software::memory::regions::{EntryWords, RegionStore, SLOTS};
use dapl_software::memory::rights::{AccessRight, PeerIds, RegistrationGuard};
use dapl_software::memory::scatter_gather::LocalMemory;
use zerocopy::FromZeros;

/// The registrations and bound windows of an IA.
pub(crate) type Regions = dapl_software::memory::regions::Regions<RegionTable>;

/// The entries of the table. A page of them uses memory only after its first use. Only this process copies with their
/// keys, so after a revocation there is no copy by another process to wait for.
pub struct RegionTable(Box<[RegionEntry; SLOTS]>);

#[derive(FromZeros)]
struct RegionEntry {
    words: EntryWords,
    /// Number of references: copies and sends that use the memory of this entry.
    users: AtomicU32,
}

impl RegionTable {
    pub(crate) fn new() -> Result<Self> {
        let entries = FromZeros::new_box_zeroed().map_err(|_| Error::Exhausted(Resource::Memory))?;
        Ok(RegionTable(entries))
    }
}

impl RegionStore for RegionTable {
    #[inline(always)]
    fn words(&self, key: u32) -> &EntryWords {
        &self.0[KeyTable::index(key)].words
    }

    #[inline(always)]
    fn users(&self, key: u32) -> &AtomicU32 {
        &self.0[KeyTable::index(key)].users
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
            drop(RegistrationGuard::resume(regions.store.users(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::yield_now;

    use dapl::provider::Access;
    use dapl::runtime::sync::AtomicU64;
    use dapl_software::memory::rights::Domain;

    use super::*;

    const ALL: Access =
        Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

    fn regions(seed: u64) -> Regions {
        Regions::new(RegionTable::new().unwrap(), seed)
    }

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
        let regions = regions(1);
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
        let regions = regions(1);
        let key = regions.add(memory(10), Access { remote_read: true, ..Access::default() }, 1).unwrap();
        let refused = |right| regions.acquire(key, 1, memory(1), right).err();
        assert_eq!((refused(AccessRight::LocalRead), refused(AccessRight::RemoteRead)), (None, None));
        assert_eq!(refused(AccessRight::LocalWrite), Some(Status::LocalProtection));
        assert_eq!(refused(AccessRight::RemoteWrite), Some(Status::RemoteAccess));
    }

    #[test]
    fn region_removal_waits_for_copies_and_kernel_reads() {
        let regions = regions(1);
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
        let regions = regions(1);
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
        let regions = regions(5);
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
