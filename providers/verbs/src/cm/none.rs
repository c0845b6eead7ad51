//! The connection manager `none`: connects without messages, to bring up a fabric on which no connection manager works
//! yet (CM_BUSTED, spec/endpoints 12.2).
//!
//! Each process brings its queue pair up with assumed parameters of the peer. By default, the peer's queue pair has the
//! number of the local one; `DAPL_VERBS_PEER` can set a difference of +1 or -1, or a fixed number. The peer's LID is
//! the local one, and PSNs start at a fixed number. If packets have a global route header (always on Ethernet), the
//! peer's GID is needed too. The peer's IP address determines it: the destination of a connect or, for a listener, the
//! address in `DAPL_VERBS_PEER` (default: the local address). The local address has the local GID; the GIDs of other
//! addresses are looked up in `ibhosts`. On Ethernet, the GID of an address that is not listed is derived from the
//! address.
//!
//! Limits:
//! - A connection is established as soon as the local queue pair is in RTS, even without a peer. Data that are sent
//!   before the peer is ready are retransmitted. If they are not acknowledged in time (`DAPL_ACK_TIMER`,
//!   `DAPL_ACK_RETRY`), the connection breaks.
//! - The requests at a listener are synthetic. The first is delivered when the listener is created; the next when the
//!   connection has ended, or a second after a rejection. Qualifiers are ignored. Rejections and disconnects are not
//!   sent. An exit of the peer is detected only by a transfer that is not acknowledged.
//! - There is no private data. Both programs must create and connect their queue pairs in the same order, or the
//!   assumed numbers are wrong. All listeners assume the same peer.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cm::name_service::Gid;
use dapl::error::{AddressProblem, Error, Result};
use dapl::provider::{ConnId, ConnectSpec, ConnectionEvent, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::socket::SocketContext;
use super::socket::path::{LocalEnd, RemoteEnd};
use super::{IncomingRequest, ListenGuard, Manager, WaitingRequest};
use crate::device::Device;
use crate::engine::EventHandler;
use crate::qp::{CmConnection, CmQueuePair, QpCore};
use crate::settings::{AssumedPeer, PeerNumber};

/// Delay between a rejected request and the next one. Without it, a consumer that rejects all requests would cause a
/// busy loop.
const PAUSE: Duration = Duration::from_secs(1);

/// The connection manager of one IA.
pub(crate) struct NoMessages {
    context: Arc<SocketContext>,
    peer: AssumedPeer,
}

impl NoMessages {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        log::warn!(
            "{}: the connection manager \"none\" connects without a handshake, with assumed parameters of the peer; use it only to \
             bring up a fabric",
            device.name
        );
        Self::with_context(SocketContext::of(device), device.settings.peer)
    }

    fn with_context(context: SocketContext, peer: AssumedPeer) -> Arc<Self> {
        Arc::new(NoMessages { context: Arc::new(context), peer })
    }

    fn start_attempt(&self, pair: Arc<dyn CmQueuePair>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let PeerAddress::Ip(ip) = spec.address else {
            log::error!(
                "cannot connect to {:?}: the connection manager \"none\" needs an AF_INET or AF_INET6 address",
                spec.address
            );
            return Err(Error::InvalidAddress(AddressProblem::Malformed));
        };
        AssumedConnection::attach(&self.context, pair, conn, self.peer.number, ip.to_canonical(), None)
    }

    fn open(&self, id: ObjectId) -> Arc<SyntheticListener> {
        let listener = Arc::new_cyclic(|me| SyntheticListener {
            me: Weak::clone(me),
            context: self.context.clone(),
            id,
            number: self.peer.number,
            address: self.peer.address.or(self.context.address).unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            is_open: Mutex::new(true),
        });
        listener.deliver_soon();
        listener
    }
}

impl Manager for NoMessages {
    fn listen(&self, _: u64, id: ObjectId) -> Result<ListenGuard> {
        let listener = self.open(id);
        Ok(ListenGuard::new(move || listener.close()))
    }

    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        self.start_attempt(qp.clone(), spec, conn)
    }
}

/// Returns the assumed number of the peer's queue pair. `own`: the local number.
fn assumed_number(own: u32, number: PeerNumber) -> u32 {
    match number {
        PeerNumber::Fixed(number) => number,
        PeerNumber::Offset(offset) => own.wrapping_add_signed(offset) & 0xFF_FFFF,
    }
}

/// A listener that delivers synthetic requests.
struct SyntheticListener {
    me: Weak<SyntheticListener>,
    context: Arc<SocketContext>,
    id: ObjectId,
    number: PeerNumber,
    /// Assumed address of the peer.
    address: IpAddr,
    is_open: Mutex<bool>,
}

impl SyntheticListener {
    fn close(&self) {
        *self.is_open.lock() = false;
    }

    fn deliver_soon(&self) {
        self.context.engine.call_on_engine(&self.me, Self::deliver_synthetic);
    }

    /// Delivers a synthetic request, unless the listener was closed. Called by the engine thread only.
    fn deliver_synthetic(&self) {
        let Some(me) = self.me.upgrade().filter(|listener| *listener.is_open.lock()) else { return };
        let info = RequestInfo { peer: SocketAddr::new(self.address, 0), private_data: Vec::new(), reported_len: 0 };
        (self.context.arrived)(self.id, WaitingRequest::new(me), info);
    }

    /// Accepts a synthetic request of this listener.
    fn accept_into(self: Arc<Self>, pair: Arc<dyn CmQueuePair>, conn: ConnId) -> Result<()> {
        let (context, number, address) = (self.context.clone(), self.number, self.address);
        AssumedConnection::attach(&context, pair, conn, number, address, Some(self))
    }
}

impl EventHandler for SyntheticListener {
    fn expired(&self, _: u64) {
        self.deliver_synthetic();
    }
}

/// A synthetic request. It has no state of its own, so the listener represents it.
impl IncomingRequest for SyntheticListener {
    fn accept(self: Arc<Self>, qp: &Arc<QpCore>, _: &[u8], conn: ConnId) -> Result<()> {
        self.accept_into(qp.clone(), conn)
    }

    /// Sends no message. The listener delivers the next request after [`PAUSE`].
    fn reject(&self, _: Option<&[u8]>) {
        self.context.engine.schedule(PAUSE, &self.me, 0);
    }
}

/// A connection with assumed parameters of the peer.
struct AssumedConnection {
    me: Weak<AssumedConnection>,
    context: Arc<SocketContext>,
    pair: Weak<dyn CmQueuePair>,
    number: PeerNumber,
    address: IpAddr,
    /// The listener of an accepted request. It delivers the next request when this connection has ended.
    listener: Mutex<Option<Arc<SyntheticListener>>>,
    is_passive: bool,
}

impl AssumedConnection {
    fn attach(
        context: &Arc<SocketContext>,
        pair: Arc<dyn CmQueuePair>,
        conn: ConnId,
        number: PeerNumber,
        address: IpAddr,
        listener: Option<Arc<SyntheticListener>>,
    ) -> Result<()> {
        let connection = Arc::new_cyclic(|me| AssumedConnection {
            me: Weak::clone(me),
            context: context.clone(),
            pair: Arc::downgrade(&pair),
            number,
            address,
            is_passive: listener.is_some(),
            listener: Mutex::new(listener),
        });
        pair.attach(conn, connection.clone()).inspect_err(|_| connection.end())?;
        context.engine.call_on_engine(&connection.me, Self::find_peer);
        Ok(())
    }

    fn find_peer(&self) {
        let Some(local) = self.context.local() else { return self.report_end(ConnectionEvent::Unreachable) };
        if !local.is_global() {
            return self.bring_up(&local, Gid::default());
        }
        if self.context.address.is_some_and(|own| own.to_canonical() == self.address) {
            return self.bring_up(&local, local.gid);
        }
        let me = self.me.clone();
        self.context.find_gid(self.address, local.is_ethernet, move |gid| {
            let Some(connection) = me.upgrade() else { return };
            match gid {
                Some(gid) => connection.bring_up(&local, gid),
                None => connection.report_end(ConnectionEvent::Unreachable),
            }
        });
    }

    fn bring_up(&self, local: &LocalEnd, gid: Gid) {
        let Some(pair) = self.pair.upgrade() else { return };
        let remote =
            RemoteEnd { lid: local.lid, number: assumed_number(pair.number(), self.number), gid, limits: None };
        log::info!("queue pair {:#x}: the assumed peer is {remote}", pair.number());
        match pair.bring_up(self, &mut local.path(&remote, pair.reads())) {
            Ok(true) => pair.established(self, &[]),
            Ok(false) => {}
            Err(error) => {
                log::error!(
                    "queue pair {:#x}: cannot set the path from {local} to {remote}: {error}; the connection \
                     attempt fails",
                    pair.number()
                );
                self.report_end(ConnectionEvent::Rejected);
            }
        }
    }

    fn report_end(&self, event: ConnectionEvent) {
        let event = if self.is_passive { ConnectionEvent::AcceptFailed } else { event };
        self.pair.upgrade().into_iter().for_each(|pair| pair.report_end(self, event, &[]));
    }
}

impl CmConnection for AssumedConnection {
    fn end(&self) {
        let listener = self.listener.lock().take();
        listener.into_iter().for_each(|listener| listener.deliver_soon());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::socket::fake::{FakeQp, QpReport, TestEngine, conn};

    fn alone(stage: &TestEngine, number: PeerNumber) -> Arc<NoMessages> {
        NoMessages::with_context(stage.context(), AssumedPeer { address: None, number })
    }

    fn spec(address: &PeerAddress) -> ConnectSpec<'_> {
        ConnectSpec { address, qual: 5, private_data: &[] }
    }

    #[test]
    fn assumed_peer_qp_number_is_an_offset_of_the_local_one_or_fixed() {
        let all = [PeerNumber::Offset(0), PeerNumber::Offset(1), PeerNumber::Offset(-1), PeerNumber::Fixed(9)];
        assert_eq!(all.map(|number| assumed_number(0x11, number)), [0x11, 0x12, 0x10, 9]);
        assert_eq!(assumed_number(0xFF_FFFF, PeerNumber::Offset(1)), 0, "24 bits");
    }

    #[test]
    fn connect_is_established_without_a_peer() {
        let stage = TestEngine::new();
        let manager = alone(&stage, PeerNumber::Offset(-1));
        let pair = FakeQp::new(0x12);
        let address = PeerAddress::Ip("192.0.2.9".parse().unwrap());
        manager.start_attempt(pair.clone(), &spec(&address), conn(1)).unwrap();
        assert_eq!(
            pair.next(),
            QpReport::BroughtUp { number: 0x11, gid: crate::gid::raw("192.0.2.9".parse().unwrap()) }
        );
        assert_eq!(pair.next(), QpReport::Established(vec![]));
        pair.end();
        let address = PeerAddress::Ip(stage.address());
        manager.start_attempt(pair.clone(), &spec(&address), conn(2)).unwrap();
        assert_eq!(pair.next(), QpReport::BroughtUp { number: 0x11, gid: stage.gid() });
        assert_eq!(pair.next(), QpReport::Established(vec![]));
        let path = PeerAddress::Path("/nowhere".into());
        let refused = manager.start_attempt(FakeQp::new(1), &spec(&path), conn(3));
        assert_eq!(refused, Err(Error::InvalidAddress(AddressProblem::Malformed)));
    }

    #[test]
    fn listener_delivers_the_next_request_when_the_connection_has_ended() {
        let stage = TestEngine::new();
        let manager = alone(&stage, PeerNumber::Offset(1));
        let listener = manager.open(conn(7).ep);
        let pair = FakeQp::new(0x20);
        for _ in 0..3 {
            let (id, waiting, info) = stage.request();
            assert_eq!((id, info.peer.ip(), info.reported_len), (conn(7).ep, stage.address(), 0));
            assert!(stage.is_silent(), "a second request was delivered before the first was answered");
            waiting.into_inner::<SyntheticListener>().accept_into(pair.clone(), conn(8)).unwrap();
            assert_eq!(pair.next(), QpReport::BroughtUp { number: 0x21, gid: stage.gid() });
            assert_eq!(pair.next(), QpReport::Established(vec![]));
            assert!(stage.is_silent(), "a request was delivered while the connection is established");
            pair.end();
        }
        drop(stage.request());
        let (_, waiting, _) = stage.request();
        listener.close();
        drop(waiting);
        std::thread::sleep(PAUSE);
        assert!(stage.is_silent(), "a closed listener delivered a request");
    }

    #[test]
    fn attempt_fails_if_the_device_does_not_accept_the_path() {
        let stage = TestEngine::new();
        let manager = alone(&stage, PeerNumber::Offset(0));
        let pair = FakeQp::new(1);
        pair.refuse_paths();
        manager.start_attempt(pair.clone(), &spec(&PeerAddress::Ip(stage.address())), conn(1)).unwrap();
        assert_eq!(pair.next(), QpReport::Ended("rejected"));
        let listener = manager.open(conn(7).ep);
        listener.accept_into(pair.clone(), conn(2)).unwrap();
        assert_eq!(pair.next(), QpReport::Ended("accept failed"));
    }
}
