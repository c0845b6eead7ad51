//! Tests on the soft-RoCE device rxe0: its attributes and names, messages and RDMA, keys, memory windows, shared
//! receive queues and registrations. Skipped without rxe0, which must have the address 192.0.2.1.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::{Error, Resource};
use dapl::provider::{Access, Bind, MemoryRegion, MemoryWindow, Op, Region, Remote, Status};
use ibverbs_sys::{
    IBV_MTU_1024, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap,
    ibv_qp_state, ibv_send_flags as sends, ibv_sge, ibv_wc,
};

use crate::ibv::{
    AsyncEvent, CompletionChannel, Context, Cq, DeviceSendWr, GidKind, Qp, QpAttributes, SendWrTemplate, Srq, SrqEvent,
};
use crate::memory::keys::LocalKeys;
use crate::memory::{Mr, Mw, Pd};
use crate::settings::VerbsSettings;
use crate::{cq::status, find, limits, qp::state};

const ADDRESS: &str = "192.0.2.1";
const TIMEOUT: Duration = Duration::from_secs(20);
const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };
const LOCAL: Access =
    Access { local_write: true, remote_read: false, remote_write: false, remote_atomic: false, zero_based: false };
const WRITE: Access =
    Access { local_write: false, remote_read: false, remote_write: true, remote_atomic: false, zero_based: false };

/// Opens the soft-RoCE device `rxe0`. If that fails, prints the reason and returns `None`: the test is skipped.
fn device() -> Option<Arc<Context>> {
    let opened = Context::open("rxe0");
    if let Err(error) = &opened {
        eprintln!("skipped: no RDMA device ({error})");
    }
    opened.ok()
}

/// Two queue pairs of one device that are connected to each other, their completion queue, and memory.
struct Pair {
    context: Arc<Context>,
    pd: Pd,
    keys: Arc<LocalKeys>,
    channel: Arc<CompletionChannel>,
    cq: Arc<Cq>,
    ends: [Qp; 2],
    bytes: Box<[u8; 4096]>,
}

impl Pair {
    fn new(context: Arc<Context>, srq: bool) -> (Self, Option<Arc<Srq>>) {
        let pd = Pd::new(&context).unwrap();
        let channel = CompletionChannel::new(&context).unwrap();
        let cq = Cq::new(&context, &channel, 64, 77).unwrap();
        let srq = srq.then(|| Srq::new(&pd.0, 16, 2, 88).unwrap());
        let attributes = QpAttributes {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: srq.clone(),
            caps: ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 },
        };
        let ends = [(); 2].map(|()| Qp::new(&pd.0, attributes.clone()).unwrap());
        let bytes = Box::new([0; 4096]);
        let pair = Pair { context, pd, keys: Arc::default(), channel, cq, ends, bytes };
        pair.connect();
        (pair, srq)
    }

    fn connect(&self) {
        let gids = self.context.gids(1).unwrap();
        let raw = crate::gid::raw(ADDRESS.parse().unwrap());
        let gid = gids.iter().find(|gid| gid.raw == raw && gid.kind == GidKind::RoceV2).unwrap();
        for (own, other) in [(0, 1), (1, 0)] {
            let (own, other) = (&self.ends[own], &self.ends[other]);
            state::to_reset(own);
            state::to_init(own, 1).unwrap();
            let grh = ibv_global_route {
                dgid: ibv_gid { raw },
                sgid_index: gid.index as u8,
                hop_limit: 64,
                ..Default::default()
            };
            let mut receive = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTR,
                path_mtu: IBV_MTU_1024,
                dest_qp_num: other.number,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 12,
                ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() },
                ..Default::default()
            };
            let path = mask::IBV_QP_STATE | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN;
            let path = path | mask::IBV_QP_RQ_PSN | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
            own.modify(&mut receive, path).unwrap();
            let mut send = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTS,
                timeout: 18,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 4,
                ..Default::default()
            };
            let ready = mask::IBV_QP_STATE | mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY;
            let ready = ready | mask::IBV_QP_SQ_PSN | mask::IBV_QP_MAX_QP_RD_ATOMIC;
            own.modify(&mut send, ready).unwrap();
        }
    }

    fn region(&self, at: usize, length: u64) -> Region {
        Region { address: self.bytes.as_ptr() as u64 + at as u64, length }
    }

    fn mr(&self, access: Access) -> Mr {
        Mr::new(&self.pd, self.region(0, 4096), access, true, &self.keys).unwrap()
    }

    fn sge(&self, mr: &Mr, at: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.region(at, 0).address, length, lkey: mr.local_key() }
    }

    /// Returns the byte at this offset, which the device may have written.
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: callers use offsets inside the buffer. Volatile, since the device writes the memory.
        unsafe { self.bytes.as_ptr().add(at).read_volatile() }
    }

    fn set(&mut self, at: usize, length: usize, value: u8) {
        self.bytes[at..at + length].fill(value);
        std::hint::black_box(&mut self.bytes);
    }

    /// Waits for the next completion, and returns its id, status and length.
    fn next(&self) -> (u64, Status, usize) {
        let wc = self.completion();
        (wc.wr_id, status::of(&wc), wc.len())
    }

    fn completion(&self) -> ibv_wc {
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut completions = [std::mem::MaybeUninit::uninit(); 1];
            if let [wc] = self.cq.poll_into(&mut completions).unwrap() {
                return *wc;
            }
            assert!(Instant::now() < until, "no completion");
            std::thread::yield_now();
        }
    }

    fn request(&self, end: usize, id: u64, op: Op, segments: &[ibv_sge]) {
        self.ends[end]
            .post_send(&mut SendWrTemplate::new(), &DeviceSendWr { id, op, segments, flags: sends::IBV_SEND_SIGNALED })
            .unwrap();
    }

    /// Writes ten bytes from the first queue pair through `key` to the offset `to`, and returns the status.
    fn write(&self, mr: &Mr, key: u32, to: usize) -> Status {
        let remote = Remote { key, address: self.region(to, 0).address };
        self.request(0, 5, Op::Write(remote), &[self.sge(mr, 0, 10)]);
        self.next().1
    }

    /// Binds a window on the second queue pair, or unbinds it for `None`. Waits for the completion, and returns the
    /// key.
    fn bind(&self, mw: &Mw, to: Option<(&Mr, Region)>, keep: &Arc<()>) -> u32 {
        let bind = to.map(|(mr, region)| Bind { mr, region, access: WRITE, kept: keep.clone() });
        let flags = sends::IBV_SEND_SIGNALED;
        let (pending, key) = mw.0.begin(bind, |mw, what| self.ends[1].bind(mw, 6, flags, what)).unwrap();
        let (id, status, _) = self.next();
        assert_eq!((id, status), (6, Status::Success));
        pending.completed(true);
        key
    }
}

/// Whether `status` is the status `reason` of a failed receive, or `LocalEp`, which soft-RoCE may report instead.
fn is_local(status: Status, reason: Status) -> bool {
    status == reason || status == Status::LocalEp
}

/// Calls `poll` until it returns a value.
fn eventually<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match poll() {
            Some(value) => return value,
            None => assert!(Instant::now() < until, "the event did not arrive in time"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rxe_reports_its_attributes() {
    let Some(context) = device() else { return };
    let (limits, _) = limits::of(&context, 1, &VerbsSettings::read("rxe0 1", "")).unwrap();
    eprintln!("{limits:?}");
    assert!(limits.max_eps > 0 && limits.max_dtos >= 1000 && limits.max_evd_qlen >= 6000 && limits.max_iov >= 4);
    assert!(limits.max_rmrs > 0 && limits.max_srqs > 0 && limits.max_reads_in > 0 && limits.max_reads_out > 0);
    assert!(limits.max_message > 1 << 20 && limits.max_lmrs > 0 && limits.max_pzs > 0);
    assert!(!context.is_iwarp && Context::devices().unwrap().contains(&"rxe0".to_string()));
    let raw = crate::gid::raw(ADDRESS.parse().unwrap());
    let gids = context.gids(1).unwrap();
    let found = gids.iter().find(|gid| gid.raw == raw).unwrap();
    assert_eq!((found.kind, found.netdev.is_some()), (GidKind::RoceV2, true), "{gids:?}");
    assert_eq!(context.next_event().unwrap(), None, "the call does not block");
    assert_eq!(Context::open("rxe9").err().map(|error| error.kind()), Some(std::io::ErrorKind::NotFound));
}

#[test]
fn rxe_is_found_by_device_network_device_and_address() {
    let Some(context) = device() else { return };
    let netdev = context.gids(1).unwrap().into_iter().find_map(|gid| gid.netdev).unwrap();
    for params in ["rxe0 1".to_string(), format!("{netdev} 0"), format!("{ADDRESS} 0"), "rxe0 1 cm=socket".to_string()]
    {
        let found = find::open("ia", &VerbsSettings::read(&params, "")).unwrap();
        assert_eq!((found.context.name(), found.port, found.is_roce), ("rxe0", 1, true), "{params}");
        assert_eq!(found.address, Some(ADDRESS.parse::<IpAddr>().unwrap()), "{params}");
        assert_eq!(found.gid.raw, crate::gid::raw(ADDRESS.parse().unwrap()), "{params}");
    }
    assert_eq!(
        find::open("ia", &VerbsSettings::read("", "")).unwrap().context.name(),
        "rxe0",
        "empty params select the first device with an address"
    );
    for params in ["rxe0 2", "lo 0", "127.0.0.1", "rxe9 1"] {
        assert!(
            matches!(find::open("ia", &VerbsSettings::read(params, "")), Err(Error::InvalidAddress(_))),
            "{params}"
        );
    }
}

#[test]
fn rxe_carries_messages_writes_and_reads() {
    let Some(context) = device() else { return };
    let (mut pair, _) = Pair::new(context, false);
    let mr = pair.mr(ALL);
    pair.set(0, 100, 7);
    pair.cq.arm(false).unwrap();
    assert_eq!(pair.channel.next().unwrap(), None);
    pair.ends[1].post_recv(1, &[pair.sge(&mr, 1000, 50), pair.sge(&mr, 1100, 50)]).unwrap();
    pair.request(0, 2, Op::Send { solicited: false }, &[pair.sge(&mr, 0, 100)]);
    assert_eq!(eventually(|| pair.channel.next().unwrap()), 77, "the event carries the id of the queue");
    let mut both = [pair.next(), pair.next()];
    both.sort_unstable_by_key(|(id, ..)| *id);
    assert_eq!((both[0], both[1].0, both[1].1), ((1, Status::Success, 100), 2, Status::Success));
    assert_eq!([pair.byte(1049), pair.byte(1050), pair.byte(1149), pair.byte(1150)], [7, 0, 7, 0]);

    assert_eq!((pair.write(&mr, mr.remote_key(), 2000), pair.byte(2009), pair.byte(2010)), (Status::Success, 7, 0));
    let remote = Remote { key: mr.remote_key(), address: pair.region(0, 0).address };
    pair.request(0, 8, Op::Read(remote), &[pair.sge(&mr, 3000, 20)]);
    assert_eq!((pair.next().1, pair.byte(3019), pair.byte(3020)), (Status::Success, 7, 0));

    pair.ends[1].post_recv(3, &[pair.sge(&mr, 1000, 50)]).unwrap();
    let inline = sends::IBV_SEND_SIGNALED | sends::IBV_SEND_INLINE;
    let segments = [pair.sge(&mr, 0, pair.ends[0].max_inline.min(40))];
    pair.ends[0]
        .post_send(
            &mut SendWrTemplate::new(),
            &DeviceSendWr { id: 4, op: Op::Send { solicited: false }, segments: &segments, flags: inline },
        )
        .unwrap();
    assert_eq!([pair.next().1, pair.next().1], [Status::Success; 2]);

    pair.cq.resize(500).unwrap();
    assert!(pair.cq.capacity() >= 500);
    pair.request(0, 9, Op::Send { solicited: false }, &[pair.sge(&mr, 0, 100)]);
    pair.ends[1].post_recv(10, &[pair.sge(&mr, 1000, 99)]).unwrap();
    let mut both = [pair.next(), pair.next()].map(|(id, status, _)| (id, status));
    both.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(both[0], (9, Status::RemoteResponder));
    assert!(both[1].0 == 10 && is_local(both[1].1, Status::LocalLength), "{both:?}");
}

#[test]
fn rxe_refuses_access_that_the_key_does_not_grant() {
    let Some(context) = device() else { return };
    let (pair, _) = Pair::new(context, false);
    let (all, local) = (pair.mr(ALL), pair.mr(LOCAL));
    assert_eq!(local.remote_key(), 0);
    let reads = pair.mr(Access { remote_write: false, ..ALL });
    assert_eq!(pair.write(&all, reads.remote_key(), 2000), Status::RemoteAccess);
    pair.connect();
    assert_eq!(pair.write(&all, all.remote_key() ^ 0x55, 2000), Status::RemoteAccess);

    // `exported` permits remote but not local writes, so the provider registers it twice, with two keys.
    pair.connect();
    let exported = pair.mr(WRITE);
    assert_eq!((pair.write(&all, exported.remote_key(), 2000), pair.byte(2009)), (Status::Success, 0));
    pair.ends[1].post_recv(1, &[pair.sge(&exported, 1000, 50)]).unwrap();
    pair.request(0, 2, Op::Send { solicited: false }, &[pair.sge(&all, 0, 10)]);
    let mut both = [pair.next(), pair.next()].map(|(id, status, _)| (id, status));
    both.sort_unstable_by_key(|(id, _)| *id);
    assert!(both[0].0 == 1 && is_local(both[0].1, Status::LocalProtection), "{both:?}");
    assert_ne!(both[1].1, Status::Success);
}

#[test]
fn rxe_binds_and_unbinds_windows() {
    let Some(context) = device() else { return };
    let (mut pair, _) = Pair::new(context, false);
    let (all, local) = (pair.mr(ALL), pair.mr(LOCAL));
    pair.set(0, 10, 7);
    let (mw, keep) = (Mw::new(&pair.pd).unwrap(), Arc::new(()));
    let keeps = || Arc::strong_count(&keep) - 1;
    assert!(!mw.is_bound());
    let one = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);
    assert!(mw.is_bound() && keeps() == 1);
    assert_eq!((pair.write(&all, one, 2090), pair.byte(2099)), (Status::Success, 7));
    // Soft-RoCE does not check the bounds of the window, only those of its registration. So this access is beyond both.
    assert_eq!(pair.write(&all, one, 4090), Status::RemoteAccess, "beyond the registration");

    pair.connect();
    let two = pair.bind(&mw, Some((&local, pair.region(3000, 100))), &keep);
    assert!(one != two && keeps() == 1);
    assert_eq!(pair.write(&all, one, 2000), Status::RemoteAccess, "the previous key");
    pair.connect();
    assert_eq!(
        (pair.write(&all, two, 3000), pair.byte(3009)),
        (Status::Success, 7),
        "the bind outlives its connection"
    );

    assert_eq!((pair.bind(&mw, None, &keep), mw.is_bound(), keeps()), (0, false, 0));
    assert_eq!(pair.write(&all, two, 3000), Status::RemoteAccess, "unbound");
    pair.connect();
    assert_eq!(pair.bind(&mw, None, &keep), 0, "an unbound window can be unbound");
    let three = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);
    drop(mw);
    assert_eq!((pair.write(&all, three, 2000), keeps()), (Status::RemoteAccess, 0), "the window was dropped");
}

#[test]
fn rxe_windows_can_be_bound_after_a_failed_bind() {
    let Some(context) = device() else { return };
    let (pair, _) = Pair::new(context, false);
    let (all, local) = (pair.mr(ALL), pair.mr(LOCAL));
    let (mw, keep) = (Mw::new(&pair.pd).unwrap(), Arc::new(()));
    let one = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);

    // A bind that the device flushes.
    state::to_error(&pair.ends[1]);
    let bind = Bind { mr: &local, region: pair.region(3000, 100), access: WRITE, kept: keep.clone() as _ };
    let flags = sends::IBV_SEND_SIGNALED;
    let (flushed, key) = mw.0.begin(Some(bind), |mw, what| pair.ends[1].bind(mw, 6, flags, what)).unwrap();
    assert_eq!((pair.next().1, mw.is_bound()), (Status::Flushed, true));
    drop(flushed);
    assert!(!mw.is_bound() && Arc::strong_count(&keep) == 1);
    for revoked in [one, key] {
        pair.connect();
        assert_eq!(pair.write(&all, revoked, 2000), Status::RemoteAccess, "the flush ends the earlier bind too");
    }
    // A bind that fails, because the range is outside the registration.
    pair.connect();
    let two = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);
    let bind = Bind { mr: &local, region: pair.region(4000, 100), access: WRITE, kept: keep.clone() as _ };
    let (failed, _) = mw.0.begin(Some(bind), |mw, what| pair.ends[1].bind(mw, 6, flags, what)).unwrap();
    assert_eq!(pair.next().1, Status::BindFailed);
    failed.completed(false);
    pair.connect();
    assert_eq!(pair.write(&all, two, 2000), Status::RemoteAccess);
    // A bind that is flushed without being posted to the device.
    pair.connect();
    let three = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);
    assert_ne!(mw.0.flush_unposted(true), three);
    assert!(!mw.is_bound() && Arc::strong_count(&keep) == 1);
    assert_eq!(pair.write(&all, three, 2000), Status::RemoteAccess);
    // More binds than a window of the device has keys.
    pair.connect();
    let mut keys = std::collections::HashSet::new();
    for _ in 0..600 {
        assert!(keys.insert(pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep)));
    }
    let last = pair.bind(&mw, Some((&local, pair.region(2000, 100))), &keep);
    assert_eq!(pair.write(&all, last, 2000), Status::Success);
}

#[test]
fn rxe_reports_the_low_watermark_of_a_shared_receive_queue() {
    let Some(context) = device() else { return };
    let (pair, srq) = Pair::new(context.clone(), true);
    let (mr, srq) = (pair.mr(ALL), srq.unwrap());
    for id in 1..=4 {
        srq.post_recv(id, &[pair.sge(&mr, 1000, 100)]).unwrap();
    }
    srq.limit(4).unwrap();
    assert_eq!(srq.attributes().unwrap().srq_limit, 4);
    for (sender, recv) in [(0, 1), (1, 2)] {
        pair.request(sender, 9, Op::Send { solicited: false }, &[pair.sge(&mr, 0, 10)]);
        let mut both = [pair.completion(), pair.completion()];
        both.sort_unstable_by_key(|wc| wc.wr_id);
        assert_eq!((both[0].wr_id, both[0].qp_num), (recv, pair.ends[1 - sender].number));
    }
    let event = eventually(|| context.next_event().unwrap());
    assert_eq!(event, AsyncEvent::Srq { id: 88, kind: SrqEvent::Limit });
    assert_eq!(srq.attributes().unwrap().srq_limit, 0, "the device clears the limit when it reports it");
    let before = srq.capacity;
    srq.resize(before * 4).unwrap();
    assert!(srq.attributes().unwrap().max_wr >= before * 4);
    for id in 10..10 + u64::from(before) * 3 {
        srq.post_recv(id, &[pair.sge(&mr, 1000, 100)]).unwrap();
    }
    pair.request(0, 9, Op::Send { solicited: false }, &[pair.sge(&mr, 0, 10)]);
    let ids = [pair.next().0, pair.next().0];
    assert!(ids.contains(&3), "receives that were posted before the resize come first: {ids:?}");
}

#[test]
fn rxe_registers_only_mapped_memory() {
    let Some(context) = device() else { return };
    let (pair, _) = Pair::new(context, false);
    let map = |prot| {
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 8192, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    };
    let register = |at: *mut libc::c_void, access| {
        Mr::new(&pair.pd, Region { address: at as u64, length: 8192 }, access, true, &pair.keys)
    };
    let read_only = map(libc::PROT_READ);
    let mr = register(read_only, Access { remote_read: true, ..Access::default() }).unwrap();
    assert_ne!(mr.remote_key(), 0);
    let mw = Mw::new(&pair.pd).unwrap();
    let bind =
        Bind { mr: &mr, region: Region { address: read_only as u64, length: 10 }, access: WRITE, kept: Arc::new(()) };
    let refused = mw.0.begin(Some(bind), |_, _| panic!("a bind to read-only memory must not be posted"));
    assert!(matches!(refused, Err(Error::Privileges(_))));
    for access in [LOCAL, ALL, WRITE] {
        assert_eq!(register(read_only, access).map(|_| ()), Err(Error::InvalidParameter(3)), "{access:?}");
    }
    let gone = map(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the test has created the mapping, and does not access it any more.
    unsafe { libc::munmap(gone, 8192) };
    for access in [Access::default(), ALL] {
        assert_eq!(register(gone, access).map(|_| ()), Err(Error::InvalidParameter(3)));
    }
}

#[test]
fn rxe_registration_beyond_the_limit_of_locked_memory_fails() {
    let Some(context) = device() else { return };
    let (pair, _) = Pair::new(context, false);
    let held = vec![1u8; 4 << 20];
    let region = Region { address: held.as_ptr() as u64, length: held.len() as u64 };
    let register = || Mr::new(&pair.pd, region, ALL, true, &pair.keys).map(|_| ());
    register().unwrap();
    let limit = |bytes| rustix::process::Rlimit { current: Some(bytes), maximum: None };
    let before = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    // Capabilities are per thread. They are dropped in a new thread, so that other tests keep them.
    let refused = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(rustix::thread::CapabilitySet::IPC_LOCK);
            rustix::thread::set_capabilities(None, sets).unwrap();
            rustix::process::setrlimit(rustix::process::Resource::Memlock, limit(64 << 10)).unwrap();
            let small = register();
            rustix::process::setrlimit(rustix::process::Resource::Memlock, limit(0)).unwrap();
            (small, register())
        });
        unprivileged.join().unwrap()
    });
    rustix::process::setrlimit(rustix::process::Resource::Memlock, before).unwrap();
    assert_eq!(refused, (Err(Error::Exhausted(Resource::Memory)), Err(Error::Exhausted(Resource::Memory))));
    register().unwrap();
}
