//! Fakes for tests of the connection managers `socket` and `none`: a queue pair that records what is reported to it,
//! and a running engine.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::cm::name_service::Gid;
use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent, RequestInfo};
use dapl::runtime::handle::ObjectId;
use ibverbs_sys::IBV_LINK_LAYER_ETHERNET;
use parking_lot::Mutex;

use super::SocketContext;
use super::path::LocalEnd;
use crate::cm::WaitingRequest;
use crate::engine::Engine;
use crate::qp::state::PathToRts;
use crate::qp::{CmConnection, CmQueuePair, ReadLimits};

/// Time limit of a wait for a report that must arrive.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Duration of a wait for a report that must not arrive.
const SILENCE: Duration = Duration::from_millis(50);

/// A running engine, and the connection requests that were delivered.
pub(in crate::cm) struct TestEngine {
    pub(in crate::cm) engine: Arc<Engine>,
    requests: (Sender<DeliveredRequest>, Mutex<Receiver<DeliveredRequest>>),
}

type DeliveredRequest = (ObjectId, WaitingRequest, RequestInfo);

impl TestEngine {
    pub(in crate::cm) fn new() -> Self {
        let engine = Engine::new().unwrap();
        let (sender, receiver) = channel();
        let running = engine.clone();
        std::thread::spawn(move || running.run());
        TestEngine { engine, requests: (sender, Mutex::new(receiver)) }
    }

    pub(in crate::cm) fn address(&self) -> IpAddr {
        "127.0.0.1".parse().unwrap()
    }

    pub(in crate::cm) fn gid(&self) -> Gid {
        local().gid
    }

    pub(in crate::cm) fn context(&self) -> SocketContext {
        let sender = self.requests.0.clone();
        SocketContext {
            engine: self.engine.clone(),
            names: Arc::default(),
            address: Some(self.address()),
            listener_wait: Duration::ZERO,
            local: Box::new(|| Some(local())),
            reaching: Box::new(|local, _| Some(LocalEnd { gid: V4_GID, gid_index: 3, ..local })),
            arrived: Box::new(move |id, waiting, info| drop(sender.send((id, waiting, info)))),
        }
    }

    /// Waits for the next request.
    pub(in crate::cm) fn request(&self) -> DeliveredRequest {
        self.requests.1.lock().recv_timeout(TIMEOUT).expect("a connection request arrives in time")
    }

    /// Waits a short time, and returns whether no request has arrived.
    pub(in crate::cm) fn is_silent(&self) -> bool {
        self.requests.1.lock().recv_timeout(SILENCE).is_err()
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// A GID of the port that represents an IPv4 address. The GID of [`local`] does not.
pub(in crate::cm) const V4_GID: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1];

fn local() -> LocalEnd {
    super::path::tests::port(IBV_LINK_LAYER_ETHERNET)
}

/// Returns the id of an attempt.
pub(in crate::cm) fn conn(number: u32) -> ConnId {
    ConnId { ep: ObjectId { handle: number as usize * 64, generation: 1 }, attempt: number }
}

/// A report to the queue pair.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::cm) enum QpReport {
    BroughtUp {
        number: u32,
        gid: Gid,
    },
    Established(Vec<u8>),
    /// The peer's consumer has rejected the request with these private data.
    Rejected(Vec<u8>),
    Ended(&'static str),
}

/// A queue pair without a device.
pub(in crate::cm) struct FakeQp {
    number: u32,
    link: Mutex<Option<Arc<dyn CmConnection>>>,
    refuses_paths: AtomicBool,
    recorded: (Sender<QpReport>, Mutex<Receiver<QpReport>>),
}

impl FakeQp {
    pub(in crate::cm) fn new(number: u32) -> Arc<Self> {
        let (sender, receiver) = channel();
        Arc::new(FakeQp {
            number,
            link: Mutex::new(None),
            refuses_paths: AtomicBool::new(false),
            recorded: (sender, Mutex::new(receiver)),
        })
    }

    pub(in crate::cm) fn refuse_paths(&self) {
        self.refuses_paths.store(true, Ordering::Relaxed);
    }

    pub(in crate::cm) fn next(&self) -> QpReport {
        self.recorded.1.lock().recv_timeout(TIMEOUT).expect("a report arrives in time")
    }

    pub(in crate::cm) fn is_silent(&self) -> bool {
        self.recorded.1.lock().recv_timeout(SILENCE).is_err()
    }

    /// Ends the connection, as a consumer does.
    pub(in crate::cm) fn end(&self) {
        let link = self.link.lock().take();
        link.into_iter().for_each(|link| link.end());
    }

    fn has(&self, link: &dyn CmConnection) -> bool {
        self.link.lock().as_ref().is_some_and(|known| std::ptr::addr_eq(Arc::as_ptr(known), link))
    }

    fn record(&self, recorded: QpReport) {
        let _ = self.recorded.0.send(recorded);
    }
}

impl CmQueuePair for FakeQp {
    fn number(&self) -> u32 {
        self.number
    }

    fn reads(&self) -> ReadLimits {
        ReadLimits { incoming: 4, outgoing: 4 }
    }

    fn attach(&self, _: ConnId, link: Arc<dyn CmConnection>) -> Result<()> {
        let mut place = self.link.lock();
        if place.is_some() {
            return Err(Error::Internal);
        }
        *place = Some(link);
        Ok(())
    }

    fn bring_up(&self, link: &dyn CmConnection, path: &mut PathToRts) -> io::Result<bool> {
        if !self.has(link) {
            return Ok(false);
        }
        if self.refuses_paths.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let peer = path.to_receive.attributes;
        self.record(QpReport::BroughtUp { number: peer.dest_qp_num, gid: peer.ah_attr.grh.dgid.raw() });
        Ok(true)
    }

    fn established(&self, link: &dyn CmConnection, private_data: &[u8]) {
        if self.has(link) {
            self.record(QpReport::Established(private_data.to_vec()));
        }
    }

    fn report_end(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]) {
        if !self.has(link) {
            return;
        }
        self.end();
        if !private_data.is_empty() {
            return self.record(QpReport::Rejected(private_data.to_vec()));
        }
        self.record(QpReport::Ended(match event {
            ConnectionEvent::Established => "established",
            ConnectionEvent::PeerRejected => "peer rejected",
            ConnectionEvent::Rejected => "rejected",
            ConnectionEvent::Unreachable => "unreachable",
            ConnectionEvent::AcceptFailed => "accept failed",
            ConnectionEvent::Disconnected => "disconnected",
            ConnectionEvent::Broken => "broken",
            ConnectionEvent::TimedOut => "timed out",
        }));
    }
}
