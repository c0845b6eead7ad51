//! Tests of RDMA through a fake KNEM device: declaration and use of regions, the configured order of methods, checks of
//! rights, and the method used after the device has refused a copy.

use std::sync::atomic::Ordering;

use super::connection_ends::{pattern, without_cma};
use super::*;
use crate::memory::knem::fake::{DeviceCall, Failure, FakeKnem};

const READ: u32 = libc::PROT_READ as u32;
const WRITE: u32 = libc::PROT_WRITE as u32;

/// Returns two connected IAs that use the fake device.
fn over(device: &FakeKnem, base: &TestBase, settings: &str) -> (Side, Side, (Qp, Qp)) {
    let (a, b) = device.during(|| (requirements::set(base, settings), requirements::set(base, settings)));
    let pair = connected(&a, &b, 7, 10);
    (a, b, pair)
}

/// Writes a pattern to `target` except its first ten bytes, and reads it back.
fn there_and_back(a: &Side, active: &Qp, target: &[u8], key: u32) {
    let (out, back) = (pattern(target.len() - 10, 5), vec![0u8; target.len() - 10]);
    let (out_mr, back_mr) = (a.register(&out), a.register(&back));
    let remote = Remote { key, address: target.as_ptr() as u64 + 10 };
    active.post_send(&wr(Op::Write(remote), &[segment(&out_mr, &out)], 1)).unwrap();
    active.post_send(&wr(Op::Read(remote), &[segment(&back_mr, &back)], 2)).unwrap();
    assert_eq!((a.completion().status, a.completion().status), (Status::Success, Status::Success));
    assert!(target[10..] == out[..] && back == out);
}

fn copies(device: &FakeKnem) -> Vec<DeviceCall> {
    device.take_calls().into_iter().filter(|call| matches!(call, DeviceCall::Copy { .. })).collect()
}

#[test]
fn knem_registration_declares_memory_and_initiator_copies_by_cookie() {
    let (device, base) = (FakeKnem::new(13), TestBase::new("knem"));
    let (a, b, (active, _passive)) = over(&device, &base, "");
    without_cma(&active);
    assert_eq!(device.take_calls(), []);
    let target = vec![0u8; 600_010];
    let region = Region { address: target.as_ptr() as u64, length: target.len() as u64 };
    let local = Access { local_write: true, ..Access::default() };
    drop(b.ia.register(&b.pd, region, local).unwrap());
    assert_eq!(device.take_calls(), [], "memory without remote rights is not exported");
    for (access, protection) in [
        (Access { remote_read: true, ..local }, READ),
        (Access { remote_write: true, ..local }, WRITE),
        (Access { remote_read: true, remote_write: true, ..local }, READ | WRITE),
    ] {
        let mr = b.ia.register(&b.pd, region, access).unwrap();
        let [DeviceCall::Create { address, length, protection: found, cookie }] = device.take_calls()[..] else {
            panic!()
        };
        assert_eq!((address, length, found), (region.address, region.length, protection));
        drop(mr);
        assert_eq!(device.take_calls(), [DeviceCall::Destroy { cookie }]);
    }
    let mr = b.register(&target);
    let [DeviceCall::Create { cookie, .. }] = device.take_calls()[..] else { panic!() };
    there_and_back(&a, &active, &target, mr.remote_key());
    // The copy is split into parts, so that other connections are served meanwhile. Each part has its own offset.
    let (mut next, mut sum) = ([10, 10], [0, 0]);
    for call in copies(&device) {
        let DeviceCall::Copy { write, cookie: used, offset, length } = call else { continue };
        assert_eq!((used, offset), (cookie, next[usize::from(write)]));
        next[usize::from(write)] += length;
        sum[usize::from(write)] += length;
    }
    assert_eq!(sum, [600_000, 600_000]);
    drop((mr, a, b));
    assert_eq!(device.regions(), 0);
}

#[test]
fn copy_denied_by_knem_uses_another_method() {
    for (n, (failure, by_cma)) in [
        (Failure::Copies(libc::EINVAL), true),
        (Failure::Copies(libc::EINVAL), false),
        (Failure::Regions(libc::ENOMEM), true),
        (Failure::Regions(libc::ENOMEM), false),
    ]
    .into_iter()
    .enumerate()
    {
        let (device, base) = (FakeKnem::new(13), TestBase::new(&format!("knem-failure-{n}")));
        let (a, b, (active, _passive)) = over(&device, &base, "");
        device.set_failure(failure);
        if !by_cma {
            without_cma(&active);
        }
        let target = vec![0u8; 100_010];
        let mr = b.register(&target);
        there_and_back(&a, &active, &target, mr.remote_key());
        let link = active.0.link().unwrap();
        let peer = &link.peer_side().unwrap().peer;
        let is_given_up = matches!(failure, Failure::Copies(_));
        assert_eq!(peer.knem.load(Ordering::Relaxed), !is_given_up, "{failure:?}");
        device.set_failure(Failure::Nothing);
        device.take_calls();
        there_and_back(&a, &active, &target, mr.remote_key());
        assert_eq!(copies(&device), [], "the device is not used again");
    }
}

#[test]
fn configured_order_of_rma_methods_is_used() {
    for (n, (settings, by_knem)) in
        [("rma=knem,cma", true), ("rma=knem", true), ("rma=cma", false), ("rma=mmap", false)].into_iter().enumerate()
    {
        let (device, base) = (FakeKnem::new(13), TestBase::new(&format!("knem-order-{n}")));
        let (a, b, (active, _passive)) = over(&device, &base, settings);
        let target = vec![0u8; 1000];
        let mr = b.register(&target);
        there_and_back(&a, &active, &target, mr.remote_key());
        assert_eq!(!copies(&device).is_empty(), by_knem, "{settings}");
    }
    // Cross-memory attach is preferred. The device is used only if cross-memory attach does not work.
    let (device, base) = (FakeKnem::new(13), TestBase::new("knem-second"));
    let (_a, _b, (active, _passive)) = over(&device, &base, "rma=cma,knem");
    let link = active.0.link().unwrap();
    let peer = &link.peer_side().unwrap().peer;
    assert_ne!(peer.knem.load(Ordering::Relaxed), peer.cma.load(Ordering::Relaxed));
}

#[test]
fn write_outside_its_region_is_refused_without_a_knem_copy() {
    let (device, base) = (FakeKnem::new(13), TestBase::new("knem-rights"));
    let (a, b, (active, _passive)) = over(&device, &base, "");
    let (out, target) = (pattern(64, 1), vec![0u8; 64]);
    let (out_mr, mr) = (a.register(&out), b.register(&target));
    let remote = Remote { key: mr.remote_key(), address: target.as_ptr() as u64 + 1 };
    device.take_calls();
    active.post_send(&wr(Op::Write(remote), &[segment(&out_mr, &out)], 1)).unwrap();
    assert_eq!(a.completion().status, Status::RemoteAccess);
    assert_eq!((copies(&device), target), (vec![], vec![0; 64]));
}
