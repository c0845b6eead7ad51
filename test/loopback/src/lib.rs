//! `libdaplloopback.so.1`: a uDAPL provider that connects endpoints within one process.
//!
//! `world` connects queue pairs and executes their requests. This file implements the provider traits
//! ([`dapl::provider`]) with it. Code that every such provider needs is in [`dapl_software::simple`]. Not supported:
//! shared receive queues, memory windows. To write a transport, replace `world` by a protocol.

mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Result};
use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use dapl_software::base_dir::BaseDirKind;
use dapl_software::host_address;
use dapl_software::shared_names::Membership;
use dapl_software::simple::{Listener, Memory, Mr, Pd, ReportedCq, Reporter};

use world::{LISTENERS, QpState, WORLD};

// Unit tests do not link libdat.
#[cfg(not(test))]
dapl::export_provider!(Loopback);

/// Address of every adapter. The port is not used.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Directory for the names of shared memory.
const DIRECTORY: BaseDirKind =
    BaseDirKind { provider: "loopback", variable: "DAPL_DIR", default: "/dev/shm/dapl-loopback" };

/// The provider: one open interface adapter.
pub struct Loopback {
    reporter: Arc<Reporter<Loopback>>,
    memory: Memory,
    limits: Limits,
}

impl Provider for Loopback {
    type Listener = Listener<Loopback>;
    type Request = ConnectionRequest;

    const NAME: &'static str = "loopback";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let reporter = Reporter::start("dapl-loopback", spec, sink)?;
        let limits = Limits { max_rmrs: 0, max_srqs: 0, ..dapl_software::limits::limits(65_535, 65_535) };
        Ok(Loopback { reporter, memory: Memory::new(&DIRECTORY), limits })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> SocketAddr {
        ADDRESS
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<Self::Listener> {
        LISTENERS.listen(qual, self.reporter.clone(), id)
    }

    fn close(&self) {
        let mut world = WORLD.lock();
        let own = world.qps.iter().filter(|(_, qp)| Arc::ptr_eq(&qp.reporter, &self.reporter));
        for qp in own.map(|(number, _)| *number).collect::<Vec<_>>() {
            world.leave(qp);
        }
        drop(world);
        // Must not hold the lock: dropping an unreported request rejects the request, which takes the lock.
        self.reporter.stop();
    }
}

impl MemoryProvider for Loopback {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Unsupported;
    type Membership = Membership;

    fn alloc_pd(&self) -> Result<Pd> {
        Ok(self.memory.alloc_pd())
    }

    fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        self.memory.register(pd, region, access)
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        self.memory.join(cookie, length)
    }
}

impl QueueProvider for Loopback {
    type Cq = ReportedCq<Loopback>;
    type Srq = Unsupported;
    type Qp = Qp;

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<Self::Cq> {
        // A poll of an empty queue takes the lock once. So it waits for a transfer in progress, whose completion is
        // added under this lock.
        Ok(ReportedCq::new(self.reporter.clone(), sink, || drop(WORLD.lock())))
    }

    fn create_qp(&self, pd: &Pd, spec: QpSpec<Self>) -> Result<Qp> {
        Ok(Qp(WORLD.lock().add(QpState::new(self.reporter.clone(), spec, pd))))
    }
}

/// A queue pair, by its number in `world`.
pub struct Qp(u64);

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Unsupported;

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let mut world = WORLD.lock();
        let qp = world.qp(self.0);
        qp.post_recv(segments, token)?;
        if let Some(peer) = qp.peer() {
            world.progress(peer);
        }
        world.check_recvs(self.0);
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let mut world = WORLD.lock();
        world.qp(self.0).post_send(wr)?;
        world.progress(self.0);
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
        host_address::require_local(spec.address)?;
        WORLD.lock().qp(self.0).begin(conn);
        let private_data = spec.private_data.to_vec();
        let info = RequestInfo { peer: ADDRESS, reported_len: private_data.len(), private_data };
        let request = ConnectionRequest { from: Some((self.0, conn)), info: info.clone() };
        // Without a listener the request is returned, and its drop rejects it.
        drop(LISTENERS.request(spec.qual, request, info));
        Ok(())
    }

    fn drain(&self) {
        let mut world = WORLD.lock();
        world.qp(self.0).drain();
        world.progress(self.0);
    }

    fn abort(&self) {
        WORLD.lock().leave(self.0);
    }

    fn reset(&self) -> Result<()> {
        let mut world = WORLD.lock();
        world.leave(self.0);
        world.qp(self.0).reset();
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let mut world = WORLD.lock();
        world.leave(self.0);
        world.qps.remove(&self.0);
    }
}

pub struct ConnectionRequest {
    /// The requester; `None` after the accept or reject.
    from: Option<(u64, ConnId)>,
    info: RequestInfo,
}

impl ConnectionRequest {
    /// Ends the connection attempt, unless the requester has disconnected.
    fn refuse(&mut self, event: ConnectionEvent, private_data: &[u8]) {
        let Some((number, conn)) = self.from.take() else { return };
        if let Some(qp) = WORLD.lock().qps.get_mut(&number).filter(|qp| qp.is_connecting(conn)) {
            qp.fail(conn, event, private_data);
        }
    }
}

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(mut self, qp: &Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        let requester = self.from.take().ok_or(Error::Internal)?;
        WORLD.lock().pair(requester, (qp.0, conn), private_data);
        Ok(())
    }

    fn reject(mut self, private_data: &[u8]) {
        self.refuse(ConnectionEvent::PeerRejected, private_data);
    }

    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let info = self.info.clone();
        LISTENERS.request(qual, self, info).map_err(|request| (request, Error::InvalidParameter(2)))
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        self.refuse(ConnectionEvent::Rejected, &[]);
    }
}
