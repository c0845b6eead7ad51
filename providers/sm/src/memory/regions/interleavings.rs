//! Loom models of a deregistration that runs concurrently with copies by this process and by a peer, and of an old key
//! whose index is reused. Loom reports a copy that overlaps with the owner's use of the memory after the
//! deregistration. Copies by the kernel and through mappings of a peer are not modelled.
#![forbid(unsafe_code)]

use dapl::provider::{Access, Segment};
use dapl::runtime::handle::{self, Kind, Object};
use dapl::runtime::sync::access_check::AccessCheck;
use dapl_software::memory::scatter_gather::LocalMemory;
use loom::thread;

use super::*;

const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };
const RANGE: Region = Region { address: 64, length: 64 };

fn scene() -> (Arc<Regions>, Arc<AccessCheck>, u32) {
    scene_with(|_| false)
}

/// `announced` returns whether a peer is copying with a key.
fn scene_with(announced: impl Fn(u32) -> bool + Send + Sync + 'static) -> (Arc<Regions>, Arc<AccessCheck>, u32) {
    let regions = Arc::new(Regions::new(RegionTable::new(None, announced).unwrap(), 1));
    let key = regions.add(RANGE, ALL, 1).unwrap();
    (regions, Arc::default(), key)
}

#[test]
fn no_local_copy_accesses_memory_after_its_deregistration() {
    loom::model(|| {
        let (regions, memory, key) = scene();
        let copiers: Vec<_> = (0..2)
            .map(|_| {
                let (regions, memory) = (regions.clone(), memory.clone());
                thread::spawn(move || {
                    if let Ok(_guard) = regions.acquire(key, 1, RANGE, AccessRight::LocalRead) {
                        memory.read();
                    }
                })
            })
            .collect();
        regions.deregister(key);
        memory.write();
        copiers.into_iter().for_each(|copier| copier.join().unwrap());
    });
}

/// Takes the place of an EP. A post is announced while it has a reference to this object.
struct Announceable;

impl Object for Announceable {
    const KIND: Kind = Kind::Ep;
}

#[test]
fn no_announced_post_accesses_memory_after_its_deregistration() {
    loom::model(|| {
        let (regions, memory, key) = scene();
        let ep = handle::create(std::ptr::null(), |_| Ok(Announceable)).unwrap().publish() as usize;
        let poster = {
            let (regions, memory) = (regions.clone(), memory.clone());
            thread::spawn(move || {
                let announced = handle::from_handle_for_post::<Announceable>(ep as *mut _).unwrap();
                let segment = Segment { key, pad: 0, address: 64, length: 64 };
                if regions.allows_segment(1, &segment, false) {
                    memory.read();
                }
                announced.release();
            })
        };
        regions.deregister(key);
        memory.write();
        poster.join().unwrap();
    });
}

#[test]
fn no_copy_by_a_peer_accesses_memory_after_its_deregistration() {
    loom::model(|| {
        let announcement = Arc::new(AtomicU64::new(0));
        let announced = announcement.clone();
        let (regions, memory, key) = scene_with(move |key| announced.load(Ordering::Acquire) == u64::from(key));
        let of_peer = PeerRegions { table: (*regions.store.table).clone(), slots: SLOTS as u32 };
        let peer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let target = AccessTarget { key, pd: 1, address: 64, length: 64, right: AccessRight::RemoteWrite };
                if let Ok(_announced) = of_peer.announce(&announcement, &target) {
                    memory.read();
                }
            })
        };
        regions.deregister(key);
        memory.write();
        peer.join().unwrap();
    });
}

#[test]
fn old_key_grants_no_access_to_the_next_registration_of_its_index() {
    loom::model(|| {
        let (regions, _, old) = scene();
        let of_peer = PeerRegions { table: (*regions.store.table).clone(), slots: SLOTS as u32 };
        let peer = thread::spawn(move || {
            let of = |address| AccessTarget { key: old, pd: 1, address, length: 64, right: AccessRight::RemoteRead };
            assert!(!of_peer.allows(&of(128)), "the successor's range");
        });
        regions.deregister(old);
        let new = regions.add(Region { address: 128, length: 64 }, ALL, 1).unwrap();
        assert_eq!((new >> 16, new == old), (old >> 16, false), "the successor has the same index");
        peer.join().unwrap();
    });
}
