//! Shared memory that peers map: memory that can be exported, transfers through mappings, the end of mappings, and
//! malicious peers (also `invalid_replies`).

mod invalid_replies;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::connection_ends::{pattern, without_cma};
use super::invalid_data::{TestClient, params};
use super::*;
use crate::memory::map::SharedMapping;
use crate::proto::handshake::{Datagram, ExportDescription, ExportedObject, Geometry, ReplyResult};
use crate::qp::link::PeerEndpoint;

const PAGE: usize = 4096;
pub(super) const LENGTH: usize = 16 * PAGE;

/// Maps the file, or anonymous memory if there is none, with these flags. The memory stays mapped until the tests end.
pub(super) fn mapping(file: Option<&OwnedFd>, length: usize, flags: MapFlags) -> &'static [u8] {
    let (nowhere, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: creates a new mapping at an address that the kernel chooses; it is never unmapped. Tests read the memory
    // after the transfers that write it are complete.
    unsafe {
        let at = match file {
            Some(file) => rustix::mm::mmap(nowhere, length, rights, flags, file, 0),
            None => rustix::mm::mmap_anonymous(nowhere, length, rights, flags),
        };
        std::slice::from_raw_parts(at.unwrap().cast(), length)
    }
}

fn memory(seals: SealFlags, flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("lending", flags)?;
    rustix::fs::ftruncate(&file, LENGTH as u64)?;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

pub(super) fn sealed() -> OwnedFd {
    memory(SealFlags::SHRINK | SealFlags::GROW, MemfdFlags::empty()).unwrap()
}

/// Creates a System V segment, which is removed when the process ends.
fn segment_of(length: usize) -> (i32, &'static [u8]) {
    // SAFETY: creates a new segment, attaches it until the process ends, and marks it for removal.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, length, 0o600);
        let at = libc::shmat(id, std::ptr::null(), 0);
        assert_eq!(libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()), 0);
        (id, std::slice::from_raw_parts(at.cast(), length))
    }
}

fn region(memory: &[u8]) -> Region {
    Region { address: memory.as_ptr() as u64, length: memory.len() as u64 }
}

impl Side {
    pub(super) fn share(&self, memory: &[u8]) -> Mr {
        self.ia.register_shared(&self.pd, region(memory), ALL).unwrap()
    }
}

fn peer(qp: &Qp) -> Arc<PeerEndpoint> {
    qp.0.link().unwrap().peer_side().unwrap().peer.clone()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never {what}");
        std::thread::yield_now();
    }
}

/// Waits until this number of keys is mapped.
pub(super) fn has_mapped(qp: &Qp, count: usize) {
    let peer = peer(qp);
    until("mapped", || peer.imports.as_ref().unwrap().mapped() == count);
}

pub(super) fn transfer(side: &Side, qp: &Qp, op: Op, mr: &Mr, memory: &[u8]) -> Status {
    qp.post_send(&wr(op, &[segment(mr, memory)], 1)).unwrap();
    side.completion().status
}

/// Clears the RMA buffer, so that `has_fragments` finds only later fragments.
fn clear(qp: &Qp) {
    let rma = qp.0.link().unwrap().rma.clone();
    (0..rma.len()).step_by(8).for_each(|at| rma.word(at).store(0, Ordering::Relaxed));
}

fn has_fragments(qp: &Qp) -> bool {
    let rma = qp.0.link().unwrap().rma.clone();
    (0..rma.len()).step_by(8).any(|at| rma.word(at).load(Ordering::Relaxed) != 0)
}

#[test]
fn only_memory_that_cannot_fault_is_exported() {
    let base = TestBase::new("exported");
    let a = base.open();
    let is_exported = |memory: &[u8]| {
        let mr = a.share(memory);
        a.ia.device.regions.entry(mr.local_key()).unwrap().is_exported()
    };
    let file = sealed();
    assert!(is_exported(mapping(Some(&file), LENGTH, MapFlags::SHARED)));
    let part = &mapping(Some(&file), LENGTH, MapFlags::SHARED)[5000..5100];
    assert!(is_exported(part));
    assert!(is_exported(segment_of(LENGTH).1));
    assert!(!is_exported(mapping(Some(&file), LENGTH, MapFlags::PRIVATE)), "a private mapping");
    let loose = memory(SealFlags::GROW, MemfdFlags::empty()).unwrap();
    assert!(!is_exported(mapping(Some(&loose), LENGTH, MapFlags::SHARED)), "the file may shrink");
    assert!(!is_exported(mapping(None, LENGTH, MapFlags::SHARED)), "anonymous memory has no file");
    let closed = mapping(Some(&sealed()), LENGTH, MapFlags::SHARED);
    assert!(!is_exported(closed), "no descriptor is left");
    let path = format!("{}/file", base.0);
    let disk = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    disk.set_len(LENGTH as u64).unwrap();
    assert!(!is_exported(mapping(Some(&disk.into()), LENGTH, MapFlags::SHARED)), "any process may truncate the file");
    if let Ok(huge) = memory(SealFlags::SHRINK, MemfdFlags::HUGETLB) {
        assert!(!is_exported(mapping(Some(&huge), LENGTH, MapFlags::SHARED)), "huge pages may run out");
    }
    let fixed = memory(SealFlags::SHRINK, MemfdFlags::empty()).unwrap();
    let written = mapping(Some(&fixed), LENGTH, MapFlags::SHARED);
    rustix::fs::fcntl_add_seals(&fixed, SealFlags::FUTURE_WRITE).unwrap();
    assert!(!is_exported(written), "peers could not map the file for writing");
    let reads = Access { remote_write: false, ..ALL };
    let mr = a.ia.register_shared(&a.pd, region(written), reads).unwrap();
    assert!(a.ia.device.regions.entry(mr.local_key()).unwrap().is_exported());
    // Memory is not exported if its registration has local access only, or if the setting `rma` selects the bounce
    // buffer.
    let memory = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let mr = a.ia.register_shared(&a.pd, region(memory), Access { local_write: true, ..Access::default() }).unwrap();
    assert!(!a.ia.device.regions.entry(mr.local_key()).unwrap().is_exported());
    assert!(!a.ia.device.regions.entry(a.register(memory).local_key()).unwrap().is_exported());
    let spec = IaSpec { name: "sm0", params: &format!("{} rma=mmap", base.0), library: "" };
    let bounces = Sm::open(&spec, Arc::<Recorder>::default()).unwrap();
    let mr = bounces.register_shared(&bounces.alloc_pd().unwrap(), region(memory), ALL).unwrap();
    assert!(!bounces.device.regions.entry(mr.local_key()).unwrap().is_exported());
}

#[test]
fn registrations_of_one_file_share_a_descriptor_until_the_last_ends() {
    let base = TestBase::new("exported-once");
    let a = base.open();
    let file = sealed();
    let name = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
    let inode = rustix::fs::fstat(&file).unwrap().st_ino;
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
        let ours = all.filter(|path| std::fs::read_link(path).is_ok_and(|found| found == name));
        ours.filter_map(|path| std::fs::metadata(path).ok())
            .filter(|found| std::os::unix::fs::MetadataExt::ino(found) == inode)
            .count()
    };
    let memory = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let mrs: Vec<_> = (0..3).map(|n| a.share(&memory[n..])).collect();
    assert_eq!(open(), 2);
    drop(file);
    assert!(a.ia.device.regions.entry(a.share(memory).local_key()).unwrap().is_exported());
    drop(mrs);
    assert_eq!(open(), 0);
}

/// Writes and reads ranges of several sizes through a mapping, and checks that no fragment was used.
fn goes_directly(name: &str, target: &'static [u8]) {
    let base = TestBase::new(name);
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    let target_mr = b.share(target);
    let at = |offset: usize| Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 + offset as u64 };
    let first = [1u8; 8];
    let first_mr = a.register(&first);
    assert_eq!(transfer(&a, &active, Op::Write(at(0)), &first_mr, &first), Status::Success, "before it is mapped");
    has_mapped(&active, 1);
    without_cma(&active);
    clear(&active);
    for (offset, length) in [(0, 1), (1, 8), (4095, 2), (77, 4096), (3, target.len() - 3), (0, target.len())] {
        let (out, back) = (pattern(length, (offset % 200) as u8 + 5), vec![0u8; length]);
        let (out_mr, back_mr) = (a.register(&out), a.register(&back));
        assert_eq!(transfer(&a, &active, Op::Write(at(offset)), &out_mr, &out), Status::Success);
        assert!(target[offset..][..length] == out, "{length} bytes written");
        assert_eq!(transfer(&a, &active, Op::Read(at(offset)), &back_mr, &back), Status::Success);
        assert!(back == out, "{length} bytes read");
    }
    assert!(!has_fragments(&active));
    // An access outside of the registration fails, although the mapping contains the page.
    let status = transfer(&a, &active, Op::Write(at(target.len() - 7)), &first_mr, &first);
    assert_eq!(status, Status::RemoteAccess);
}

#[test]
fn rdma_to_a_sealed_file_is_one_copy_by_the_initiator() {
    // The range starts and ends inside pages, and is longer than one pass copies.
    let long = rustix::fs::memfd_create("long", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&long, 3 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&long, SealFlags::SHRINK).unwrap();
    goes_directly("direct-file", &mapping(Some(&long), 3 << 20, MapFlags::SHARED)[100..2_000_000]);
}

#[test]
fn rdma_to_a_system_v_segment_is_one_copy_by_the_initiator() {
    goes_directly("direct-segment", &segment_of(1 << 20).1[5000..900_000]);
}

#[test]
fn mapping_enforces_the_rights_of_its_registration() {
    let base = TestBase::new("direct-rights");
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    let file = sealed();
    let target = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let reads = Access { remote_write: false, ..ALL };
    let mr = b.ia.register_shared(&b.pd, region(target), reads).unwrap();
    let remote = Remote { key: mr.remote_key(), address: target.as_ptr() as u64 };
    let local = [3u8; 64];
    let local_mr = a.register(&local);
    assert_eq!(transfer(&a, &active, Op::Read(remote), &local_mr, &local), Status::Success);
    has_mapped(&active, 1);
    without_cma(&active);
    clear(&active);
    assert_eq!(transfer(&a, &active, Op::Read(remote), &local_mr, &local), Status::Success);
    assert!(!has_fragments(&active));
    assert_eq!(transfer(&a, &active, Op::Write(remote), &local_mr, &local), Status::RemoteAccess);
    assert_eq!(target[..64], [0; 64]);
}

#[test]
fn fragments_in_flight_are_copied_before_the_first_direct_copy() {
    let base = TestBase::new("direct-order");
    let (a, b) = (base.open(), base.open());
    let file = sealed();
    let target = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    for round in 0..20 {
        let (active, _passive) = connected(&a, &b, 7, 10 + 2 * round);
        without_cma(&active);
        let target_mr = b.share(target);
        let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
        let out: Vec<_> = (0..40).map(|n| pattern(LENGTH, n)).collect();
        let mrs: Vec<_> = out.iter().map(|out| a.register(out)).collect();
        for (out, mr) in out.iter().zip(&mrs) {
            active.post_send(&wr(Op::Write(remote), &[segment(mr, out)], 0)).unwrap();
        }
        let back = vec![0u8; LENGTH];
        let back_mr = a.register(&back);
        active.post_send(&wr(Op::Read(remote), &[segment(&back_mr, &back)], 1)).unwrap();
        for _ in 0..=out.len() {
            assert_eq!(a.completion().status, Status::Success);
        }
        assert!(back == out[39] && target == out[39]);
        has_mapped(&active, 1);
    }
}

#[test]
fn deregistration_ends_direct_copies_and_removes_the_mapping() {
    let base = TestBase::new("direct-end");
    let (a, b) = (base.open(), base.open());
    let (active, _passive) = connected(&a, &b, 7, 10);
    let file = sealed();
    let target = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let inode = rustix::fs::fstat(&file).unwrap().st_ino.to_string();
    let times_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.split_ascii_whitespace().nth(4) == Some(&inode)).count()
    };
    let local = [3u8; 64];
    let local_mr = a.register(&local);
    let target_mr = b.share(target);
    let write = |mr: &Mr| Op::Write(Remote { key: mr.remote_key(), address: target.as_ptr() as u64 });
    assert_eq!(transfer(&a, &active, write(&target_mr), &local_mr, &local), Status::Success);
    has_mapped(&active, 1);
    assert_eq!((times_mapped(), transfer(&a, &active, write(&target_mr), &local_mr, &local)), (2, Status::Success));
    let old = write(&target_mr);
    drop(target_mr);
    // The request for a mapping of the next registration removes the mapping of the previous key, which is revoked.
    let next = b.share(target);
    assert_eq!(transfer(&a, &active, write(&next), &local_mr, &local), Status::Success);
    until("unmapped", || times_mapped() == 2);
    has_mapped(&active, 1);
    assert_eq!(transfer(&a, &active, old, &local_mr, &local), Status::RemoteAccess);
    drop(next);
    let (active, _passive) = connected(&a, &b, 7, 20);
    // Without a further transfer, the sweep at each heartbeat removes the mapping of a revoked key.
    crate::memory::exchange::sweep(&a.ia.device);
    assert_eq!(times_mapped(), 1);
    assert_eq!(peer(&active).imports.as_ref().unwrap().mapped(), 0);
}

#[test]
fn mapping_is_requested_again_from_a_restarted_peer() {
    let base = TestBase::new("direct-again");
    let a = base.open();
    let file = sealed();
    let target = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let local = [3u8; 64];
    let local_mr = a.register(&local);
    let mut last = std::sync::Weak::<PeerEndpoint>::new();
    for round in 0..3 {
        let b = base.open();
        let (active, passive) = connected(&a, &b, 7, 10 + 2 * round);
        let target_mr = b.share(target);
        let remote = Remote { key: target_mr.remote_key(), address: target.as_ptr() as u64 };
        assert_eq!(transfer(&a, &active, Op::Write(remote), &local_mr, &local), Status::Success);
        has_mapped(&active, 1);
        // Connections to the same end point share its mappings.
        let (other, _passive) = connected(&a, &b, 8, 110 + 2 * round);
        assert!(Arc::ptr_eq(&peer(&active), &peer(&other)));
        assert!(last.upgrade().is_none(), "the state of the exited peer, with its mappings, is dropped");
        last = Arc::downgrade(&peer(&active));
        drop((target_mr, other, passive));
        drop(active);
    }
}

#[test]
fn region_is_not_exported_without_rights() {
    let base = TestBase::new("export-whom");
    let b = base.open();
    let _listener = b.ia.listen(7, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let path = b.ia.device.endpoint.path().to_path_buf();
    let client = TestClient::new(&base);
    let geometry = Geometry::LOCAL;
    let area = |len| SharedMapping::create("area", len, false).unwrap().1;
    let fds = [area(geometry.area_len()), area(geometry.rma_len()), area(16 * 64)];
    let request = Datagram::Request { id: 5, params: params(99, geometry), private_data: vec![] };
    client.socket.send(&path, &request.encode(), &fds.each_ref().map(|fd| fd.as_fd())).unwrap();
    let passive = b.qp();
    b.sink.request().0.accept(&passive, &[], conn(1)).unwrap();
    let Datagram::Reply { server, token: 99, result: ReplyResult::Accepted, .. } = client.answer() else { panic!() };
    client.socket.send(&path, &Datagram::Ack { client: 5, server, token: 99 }.encode(), &[]).unwrap();
    assert_eq!(b.sink.next(conn(1)), SinkEvent::Established(vec![]));
    // On a busy machine the acceptor may repeat its reply before it receives the acknowledgement.
    while client.socket.receive().is_some() {}
    let file = sealed();
    let memory = mapping(Some(&file), LENGTH, MapFlags::SHARED);
    let part = &memory[5000..6000];
    let other_pd = b.ia.alloc_pd().unwrap();
    let exported = b.share(part);
    let (plain, other) = (b.register(part), b.ia.register_shared(&other_pd, region(part), ALL).unwrap());
    let local = b.ia.register_shared(&b.pd, region(part), Access { local_write: true, ..Access::default() }).unwrap();
    let over = b.share(part).local_key();
    let ask = |from, to, token, key| {
        client.socket.send(&path, &Datagram::MappingRequest { from, to, token, key }.encode(), &[]).unwrap();
    };
    let no = |key| Datagram::MappingReply { from: server, to: 5, token: 99, key, export: None };
    for mr in [plain.local_key(), other.local_key(), local.local_key(), over, exported.local_key() ^ 1, 0, u32::MAX] {
        ask(5, server, 99, mr);
        let received = client.received();
        assert_eq!((Datagram::decode(&received.bytes), received.fds.len()), (Ok(no(mr)), 0), "{mr:#x}");
    }
    // A request for an unknown connection gets no reply. The next reply belongs to the request that follows.
    let key = exported.local_key();
    ask(5, server, 98, key);
    ask(6, server, 99, key);
    ask(5, server + 1, 99, key);
    ask(5, server, 99, key);
    let received = client.received();
    let Region { address, length } = region(part);
    let export = Some(ExportDescription { address, length, offset: 5000, object: ExportedObject::Descriptor });
    assert_eq!(
        Datagram::decode(&received.bytes),
        Ok(Datagram::MappingReply { from: server, to: 5, token: 99, key, export })
    );
    let [given] = &received.fds[..] else { panic!("one descriptor") };
    assert_eq!(rustix::fs::fstat(given).unwrap().st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
}
