//! `libdaplloopback.so.1`: a uDAPL provider that connects endpoints of one process.
//!
//! `world` holds all state and moves the data, `memory` the registrations, `adapter` the thread that reports to the object
//! layer. This file implements the traits of the provider interface ([`dapl::provider`]) with them. Not supported: shared
//! receive queues, memory windows, shared memory. To make a transport of it, replace `world` by your protocol.

mod adapter;
mod memory;
mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use dapl::runtime::thread;
use dapl_software::cq::CompletionList;
use parking_lot::Mutex;

use adapter::{Adapter, Report};
use world::{QueuedRequest, Stage, WORLD, flushed};

// Unit tests do not link libdat.
#[cfg(not(test))]
dapl::export_provider!(Loopback);

/// The address of every adapter. Ports are not used.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The provider: one open interface adapter.
pub struct Loopback {
    adapter: Arc<Adapter>,
    limits: Limits,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Provider for Loopback {
    type Listener = Listener;
    type Request = Request;

    const NAME: &'static str = "loopback";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        static FORK: std::sync::Once = std::sync::Once::new();
        FORK.call_once(|| thread::at_fork(lock_for_fork, unlock_after_fork));
        let adapter = Arc::new(Adapter::new(sink));
        let reporter = adapter.clone();
        let thread = thread::spawn("dapl-loopback", move || reporter.run()).map_err(|error| {
            log::error!("{}: cannot start a thread: {error}", spec.name);
            Error::Exhausted(Resource::Device)
        })?;
        let limits = Limits {
            max_rmrs: 0,
            max_srqs: 0,
            private_data_reject: 0,
            extensions: Extensions::default(),
            ..dapl_software::limits::limits(65_535, 65_535)
        };
        Ok(Loopback { adapter, limits, thread: Mutex::new(Some(thread)) })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> SocketAddr {
        ADDRESS
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listener> {
        let mut world = WORLD.lock();
        if world.listeners.contains_key(&qual) {
            return Err(Error::ConnQualTaken);
        }
        world.listeners.insert(qual, (self.adapter.clone(), id));
        Ok(Listener(qual))
    }

    fn close(&self) {
        let mut world = WORLD.lock();
        let own = world.qps.iter().filter(|(_, qp)| Arc::ptr_eq(&qp.adapter, &self.adapter));
        for qp in own.map(|(number, _)| *number).collect::<Vec<_>>() {
            world.leave(qp, Stage::Error);
        }
        drop(world);
        // Requests among them lock the world to reject themselves.
        drop(self.adapter.close());
        if let Some(thread) = self.thread.lock().take() {
            // It does not panic: the object layer catches that.
            let _ = thread.join();
        }
    }
}

/// No lock may be held by a thread that does not exist in the child.
extern "C" fn lock_for_fork() {
    std::mem::forget(WORLD.lock());
}

extern "C" fn unlock_after_fork() {
    // SAFETY: `lock_for_fork` has locked it in this thread, and forgotten the guard.
    unsafe { WORLD.force_unlock() };
}

impl MemoryProvider for Loopback {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Unsupported;
    type Membership = Unsupported;

    fn alloc_pd(&self) -> Result<Pd> {
        Ok(Pd(WORLD.lock().number() as u32))
    }

    fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        let writable = access.local_write || access.remote_write;
        if !self.adapter.checker.may_register(region, writable) {
            return Err(Error::InvalidParameter(3));
        }
        let has_remote = access.remote_read || access.remote_write;
        Ok(Mr { key: WORLD.lock().regions.add(pd.0, region, access), has_remote })
    }

    fn join(&self, _: &SharedCookie, _: u64) -> Result<Unsupported> {
        Err(Error::ModelNotSupported)
    }

    fn alloc_mw(&self, _: &Pd) -> Result<Unsupported> {
        Err(Error::ModelNotSupported)
    }
}

impl QueueProvider for Loopback {
    type Cq = Cq;
    type Srq = Unsupported;
    type Qp = Qp;

    fn create_srq(&self, _: &Pd, _: SrqSpec) -> Result<Unsupported> {
        Err(Error::ModelNotSupported)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Cq> {
        Ok(Cq { list: CompletionList::default(), sink, adapter: self.adapter.clone() })
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        Ok(Qp(WORLD.lock().add_qp(self.adapter.clone(), pd.0, spec)))
    }
}

/// A protection domain.
pub struct Pd(u32);

/// Registered memory.
pub struct Mr {
    key: u32,
    has_remote: bool,
}

impl MemoryRegion for Mr {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.has_remote { self.key } else { 0 }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        WORLD.lock().regions.remove(self.key);
    }
}

/// A completion queue.
pub struct Cq {
    list: CompletionList,
    sink: Weak<dyn CqSink>,
    adapter: Arc<Adapter>,
}

impl Cq {
    /// Adds a completion, and has the thread notify the consumer if the queue is armed.
    fn push(&self, completion: Completion) {
        if self.list.push(completion) {
            self.adapter.report(Report::Notify(self.sink.clone()));
        }
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, out: &mut [Completion]) -> usize {
        self.list.take(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.list.take(out)
    }

    fn disarm(&self) {
        self.list.disarm();
    }

    fn arm(&self, _: bool) -> Result<bool> {
        Ok(self.list.arm(|| ()))
    }
}

/// A queue pair: its number in the world.
pub struct Qp(u64);

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Unsupported;

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let mut world = WORLD.lock();
        let qp = world.qp(self.0);
        if qp.is_full(true) {
            return Err(Error::Exhausted(Resource::Memory));
        }
        match qp.stage {
            Stage::Error => qp.complete_recv(flushed(token)),
            _ => qp.recvs.push_back((token, segments.to_vec())),
        }
        if let Stage::Connected { peer, .. } = qp.stage {
            world.progress(peer);
        }
        world.check_recvs(self.0);
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        if !Extensions::default().support(wr.op) {
            return Err(Error::ModelNotSupported);
        }
        let mut world = WORLD.lock();
        let qp = world.qp(self.0);
        if qp.is_full(false) {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let (op, segments, token, suppress) = (wr.op, wr.segments.to_vec(), wr.token, wr.suppress);
        qp.requests.push_back(QueuedRequest { op, segments, token, suppress });
        match qp.stage {
            Stage::Error => world.leave(self.0, Stage::Error),
            _ => world.progress(self.0),
        }
        Ok(())
    }

    fn post_bind(&self, window: &Unsupported, _: Option<Bind<'_, Mr>>, _: &BindWr) -> Result<u32> {
        match *window {}
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let mut world = WORLD.lock();
        world.qp(self.0).marks = dapl::stats::watermark::HighWatermark::new(soft, hard);
        world.check_recvs(self.0);
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        let mut world = WORLD.lock();
        let qp = world.qp(self.0);
        Outstanding { recvs: qp.recvs.len() as u32, requests: qp.requests.len() as u32 }
    }

    fn flush_recvs(&self) {
        WORLD.lock().qp(self.0).flush_recvs();
    }
}

impl Connection for Qp {
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if !matches!(spec.address, PeerAddress::Ip(ip) if ip.is_loopback()) {
            return Err(Error::InvalidAddress(Address::Unreachable));
        }
        let mut world = WORLD.lock();
        let listener = world.listeners.get(&spec.qual).cloned();
        let qp = world.qp(self.0);
        qp.stage = Stage::Connecting(conn);
        let Some((adapter, listener)) = listener else {
            qp.fail(conn, ConnectionEvent::Rejected);
            return Ok(());
        };
        let private_data = spec.private_data.to_vec();
        let info = RequestInfo { peer: ADDRESS, reported_len: private_data.len(), private_data };
        let request = Request { from: Some((self.0, conn)), info: info.clone() };
        adapter.report(Report::Request(listener, request, info));
        Ok(())
    }

    fn drain(&self) {
        WORLD.lock().drain(self.0);
    }

    fn abort(&self) {
        WORLD.lock().leave(self.0, Stage::Error);
    }

    fn reset(&self) -> Result<()> {
        WORLD.lock().leave(self.0, Stage::Unconnected);
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let mut world = WORLD.lock();
        world.leave(self.0, Stage::Error);
        world.qps.remove(&self.0);
    }
}

/// A listener on a connection qualifier.
pub struct Listener(u64);

impl Drop for Listener {
    fn drop(&mut self) {
        WORLD.lock().listeners.remove(&self.0);
    }
}

/// A connection request.
pub struct Request {
    /// The requester; taken by the answer.
    from: Option<(u64, ConnId)>,
    info: RequestInfo,
}

impl Request {
    fn refuse(&mut self, event: ConnectionEvent) {
        let Some((qp, conn)) = self.from.take() else { return };
        let mut world = WORLD.lock();
        if let Some(qp) = world.qps.get_mut(&qp).filter(|qp| qp.stage == Stage::Connecting(conn)) {
            qp.fail(conn, event);
        }
    }
}

impl ConnRequest for Request {
    type Qp = Qp;

    fn accept(mut self, qp: &Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        let from = self.from.take().ok_or(Error::Internal)?;
        let mut world = WORLD.lock();
        if !world.pair(from, (qp.0, conn), private_data) {
            world.qp(qp.0).fail(conn, ConnectionEvent::AcceptFailed);
        }
        Ok(())
    }

    fn reject(mut self, _: &[u8]) {
        self.refuse(ConnectionEvent::PeerRejected);
    }

    fn hand_off(mut self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some((adapter, listener)) = WORLD.lock().listeners.get(&qual).cloned() else {
            return Err((self, Error::InvalidParameter(2)));
        };
        let request = Request { from: self.from.take(), info: self.info.clone() };
        adapter.report(Report::Request(listener, request, self.info.clone()));
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.refuse(ConnectionEvent::Rejected);
    }
}
