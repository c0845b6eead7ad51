//! `libdaplloopback.so.1`: a uDAPL provider that connects endpoints of one process.
//!
//! `world` connects queue pairs and executes their requests. This file implements the traits of the provider interface
//! ([`dapl::provider`]) with it. What every such provider needs is in [`dapl_software::simple`]. Not supported: shared receive
//! queues, memory windows, shared memory. To make a transport of it, replace `world` by your protocol.

mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use dapl::runtime::thread;
use dapl_software::memory::user_copy::Checker;
use dapl_software::simple::{Report, ReportedCq, Reporter, WorkQueues};

use world::{Stage, WORLD};

// Unit tests do not link libdat.
#[cfg(not(test))]
dapl::export_provider!(Loopback);

/// The address of every adapter. Ports are not used.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The provider: one open interface adapter.
pub struct Loopback {
    reporter: Arc<Reporter<Loopback>>,
    checker: Arc<Checker>,
    limits: Limits,
}

impl Provider for Loopback {
    type Listener = Listener;
    type Request = Request;

    const NAME: &'static str = "loopback";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        static FORK: std::sync::Once = std::sync::Once::new();
        FORK.call_once(|| thread::at_fork(lock_for_fork, unlock_after_fork));
        let reporter = Reporter::start("dapl-loopback", sink).map_err(|error| {
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
        Ok(Loopback { reporter, checker: Arc::default(), limits })
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
        world.listeners.insert(qual, (self.reporter.clone(), id));
        Ok(Listener(qual))
    }

    fn close(&self) {
        let mut world = WORLD.lock();
        let own = world.qps.iter().filter(|(_, qp)| Arc::ptr_eq(&qp.reporter, &self.reporter));
        for qp in own.map(|(number, _)| *number).collect::<Vec<_>>() {
            world.leave(qp, Stage::Error);
        }
        drop(world);
        // Without the lock: a request that was not reported rejects itself.
        self.reporter.stop();
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
        if !self.checker.may_register(region, writable) {
            return Err(Error::InvalidParameter(3));
        }
        let has_remote = access.remote_read || access.remote_write;
        Ok(Mr { key: WORLD.lock().regions.add(pd.0, region, access), has_remote })
    }
}

impl QueueProvider for Loopback {
    type Cq = ReportedCq<Loopback>;
    type Srq = Unsupported;
    type Qp = Qp;

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq> {
        Ok(ReportedCq::new(self.reporter.clone(), sink))
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        Ok(Qp(WORLD.lock().add_qp(self.reporter.clone(), WorkQueues::new(spec, pd.0, self.checker.clone()))))
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

/// A queue pair: its number in the world.
pub struct Qp(u64);

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Unsupported;

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let mut world = WORLD.lock();
        let qp = world.qp(self.0);
        qp.queues.post_recv(segments, token)?;
        match qp.stage {
            Stage::Error => qp.queues.flush_recvs(),
            Stage::Connected { peer, .. } => world.progress(peer),
            _ => {}
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
        qp.queues.post_send(wr)?;
        match qp.stage {
            Stage::Error => world.leave(self.0, Stage::Error),
            _ => world.progress(self.0),
        }
        Ok(())
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let mut world = WORLD.lock();
        world.qp(self.0).queues.watch_recvs(soft, hard);
        world.check_recvs(self.0);
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        WORLD.lock().qp(self.0).queues.outstanding()
    }

    fn flush_recvs(&self) {
        WORLD.lock().qp(self.0).queues.flush_recvs();
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
        let Some((reporter, listener)) = listener else {
            qp.fail(conn, ConnectionEvent::Rejected);
            return Ok(());
        };
        let private_data = spec.private_data.to_vec();
        let info = RequestInfo { peer: ADDRESS, reported_len: private_data.len(), private_data };
        let request = Request { from: Some((self.0, conn)), info: info.clone() };
        reporter.report(Report::Request(listener, request, info));
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
        let Some((reporter, listener)) = WORLD.lock().listeners.get(&qual).cloned() else {
            return Err((self, Error::InvalidParameter(2)));
        };
        let request = Request { from: self.from.take(), info: self.info.clone() };
        reporter.report(Report::Request(listener, request, self.info.clone()));
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.refuse(ConnectionEvent::Rejected);
    }
}
