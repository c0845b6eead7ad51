//! The manager `none`: no messages at all, for bringing up a fabric on which no connection manager works yet (CM_BUSTED,
//! spec/endpoints 12.2).
//!
//! Each side brings its queue pair up alone and assumes the peer's parameters: the number of the peer's queue pair is
//! the local one, one more or less, or a fixed one (`DAPL_VERBS_PEER`); LIDs are equal; PSNs start at a fixed number.
//! If packets have a global header (always on Ethernet), the peer's GID is that of the destination address; for a
//! listener that of `DAPL_VERBS_PEER`, or else the local one. It is looked up in `ibhosts`; on Ethernet an address that
//! is not listed is its own GID.
//!
//! Limits:
//! - A connection is established as soon as the local queue pair is up, whether or not there is a peer. Data sent too
//!   early are retransmitted; without an acknowledgement in time (`DAPL_ACK_TIMER`, `DAPL_ACK_RETRY`) the connection
//!   breaks.
//! - A listener's requests are synthetic: one at once, the next when its connection has ended, or a while after the
//!   consumer rejected it. Qualifiers are ignored. Rejections and disconnects are not sent. A peer's death is detected
//!   by the next request without an acknowledgement.
//! - There is no private data. Both programs must create and connect their queue pairs in step, or the numbers do not
//!   match. There is only one peer.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cm::name_service::Gid;
use dapl::error::{Address, Error, Result};
use dapl::provider::{ConnId, ConnectSpec, ConnectionEvent, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::socket::path::{LocalEnd, RemoteEnd};
use super::socket::{Pair, SocketContext};
use super::{Listening, Manager, Refusal, Waiting};
use crate::device::Device;
use crate::engine::Source;
use crate::qp::{CmConnection, QpCore};
use crate::settings::{Peer, PeerNumber};

/// Delay after a rejected request, so that a consumer that rejects all requests does not cause a busy loop.
const PAUSE: Duration = Duration::from_secs(1);

/// The manager of one IA.
pub(crate) struct NoMessages {
    context: Arc<SocketContext>,
    peer: Peer,
    listeners: Mutex<Vec<Weak<SyntheticListener>>>,
}

impl NoMessages {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        log::warn!("{}: connections are guessed (connection manager \"none\"): for bring-up only", device.name);
        Self::over(SocketContext::of(device), device.settings.peer)
    }

    fn over(context: SocketContext, peer: Peer) -> Arc<Self> {
        Arc::new(NoMessages { context: Arc::new(context), peer, listeners: Mutex::default() })
    }

    fn begin(&self, pair: Arc<dyn Pair>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let PeerAddress::Ip(ip) = spec.address else {
            log::error!(
                "cannot connect: the address is not an IPv4 or IPv6 address, which this connection manager needs"
            );
            return Err(Error::InvalidAddress(Address::Malformed));
        };
        Guess::attach(&self.context, pair, conn, self.peer.number, ip.to_canonical(), None)
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
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&listener));
        listener.make_up_soon();
        listener
    }
}

impl Manager for NoMessages {
    fn listen(&self, _: u64, id: ObjectId) -> Result<Listening> {
        Ok(Box::new(OpenListener(self.open(id))))
    }

    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        self.begin(qp.clone(), spec, conn)
    }

    fn close(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| *listener.is_open.lock() = false);
    }
}

/// Guesses the number of the peer's queue pair from the local one.
fn guess(own: u32, number: PeerNumber) -> u32 {
    match number {
        PeerNumber::Fixed(number) => number,
        PeerNumber::Offset(offset) => own.wrapping_add_signed(offset) & 0xFF_FFFF,
    }
}

/// A listener with synthetic requests.
struct SyntheticListener {
    me: Weak<SyntheticListener>,
    context: Arc<SocketContext>,
    id: ObjectId,
    number: PeerNumber,
    /// Address of the only peer.
    address: IpAddr,
    is_open: Mutex<bool>,
}

/// Stops listening when dropped.
struct OpenListener(Arc<SyntheticListener>);

impl Drop for OpenListener {
    fn drop(&mut self) {
        *self.0.is_open.lock() = false;
    }
}

impl SyntheticListener {
    fn make_up_soon(&self) {
        let me = self.me.clone();
        self.context.reactor.soon(move || me.upgrade().into_iter().for_each(|listener| listener.deliver_synthetic()));
    }

    /// Delivers a synthetic request. Engine only.
    fn deliver_synthetic(&self) {
        let Some(me) = self.me.upgrade().filter(|listener| *listener.is_open.lock()) else { return };
        let info = RequestInfo { peer: SocketAddr::new(self.address, 0), private_data: Vec::new(), reported_len: 0 };
        (self.context.arrived)(self.id, Box::new(SyntheticRequest(Some(me))), info);
    }

    fn pause(&self) {
        let me: Weak<dyn Source> = self.me.clone();
        self.context.reactor.after(PAUSE, me, 0);
    }
}

impl Source for SyntheticListener {
    fn expired(&self, _: u64) {
        self.deliver_synthetic();
    }
}

/// A synthetic request.
struct SyntheticRequest(Option<Arc<SyntheticListener>>);

impl SyntheticRequest {
    fn accept_into(mut self, pair: Arc<dyn Pair>, conn: ConnId) -> Result<()> {
        let Some(listener) = self.0.take() else { return Err(Error::Internal) };
        let (context, number, address) = (listener.context.clone(), listener.number, listener.address);
        Guess::attach(&context, pair, conn, number, address, Some(listener))
    }
}

impl Waiting for SyntheticRequest {
    fn accept(self: Box<Self>, qp: &Arc<QpCore>, _: &[u8], conn: ConnId) -> Result<()> {
        self.accept_into(qp.clone(), conn)
    }

    fn refuse(self: Box<Self>, _: Refusal) {
        drop(self);
    }
}

impl Drop for SyntheticRequest {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|listener| listener.pause());
    }
}

/// A connection with assumed parameters.
struct Guess {
    me: Weak<Guess>,
    context: Arc<SocketContext>,
    pair: Weak<dyn Pair>,
    number: PeerNumber,
    address: IpAddr,
    /// The listener of the request, which delivers another request when this connection has ended.
    listener: Mutex<Option<Arc<SyntheticListener>>>,
    is_passive: bool,
}

impl Guess {
    fn attach(
        context: &Arc<SocketContext>,
        pair: Arc<dyn Pair>,
        conn: ConnId,
        number: PeerNumber,
        address: IpAddr,
        listener: Option<Arc<SyntheticListener>>,
    ) -> Result<()> {
        let guess = Arc::new_cyclic(|me| Guess {
            me: Weak::clone(me),
            context: context.clone(),
            pair: Arc::downgrade(&pair),
            number,
            address,
            is_passive: listener.is_some(),
            listener: Mutex::new(listener),
        });
        pair.attach(conn, guess.clone()).inspect_err(|_| guess.end())?;
        let me = guess.me.clone();
        context.reactor.soon(move || me.upgrade().into_iter().for_each(|guess| guess.find_peer()));
        Ok(())
    }

    fn find_peer(&self) {
        let Some(local) = self.context.local() else { return self.over(ConnectionEvent::Unreachable) };
        if !local.is_global() {
            return self.raise(&local, Gid::default());
        }
        if self.context.address.is_some_and(|own| own.to_canonical() == self.address) {
            return self.raise(&local, local.gid);
        }
        let me = self.me.clone();
        self.context.gid_lookup.find(self.address, local.is_ethernet, move |gid| {
            let Some(guess) = me.upgrade() else { return };
            match gid {
                Some(gid) => guess.raise(&local, gid),
                None => guess.over(ConnectionEvent::Unreachable),
            }
        });
    }

    fn raise(&self, local: &LocalEnd, gid: Gid) {
        let Some(pair) = self.pair.upgrade() else { return };
        let remote = RemoteEnd { lid: local.lid, number: guess(pair.number(), self.number), gid, limits: None };
        log::info!("queue pair {:#x} uses {remote} as its peer", pair.number());
        match pair.raise(self, local, &remote) {
            Ok(true) => pair.established(self, &[]),
            Ok(false) => {}
            Err(error) => {
                log::error!("queue pair {:#x} does not take the path from {local} to {remote}: {error}", pair.number());
                self.over(ConnectionEvent::Rejected);
            }
        }
    }

    fn over(&self, event: ConnectionEvent) {
        let event = if self.is_passive { ConnectionEvent::AcceptFailed } else { event };
        self.pair.upgrade().into_iter().for_each(|pair| pair.over(self, event, &[]));
    }
}

impl CmConnection for Guess {
    fn end(&self) {
        let listener = self.listener.lock().take();
        listener.into_iter().for_each(|listener| listener.make_up_soon());
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use super::*;
    use crate::cm::socket::fake::{FakeQp, QpReport, Stage, conn};

    fn alone(stage: &Stage, number: PeerNumber) -> Arc<NoMessages> {
        NoMessages::over(stage.context(), Peer { address: None, number })
    }

    fn spec(address: &PeerAddress) -> ConnectSpec<'_> {
        ConnectSpec { address, qual: 5, private_data: &[] }
    }

    #[test]
    fn numbers_are_guessed_by_our_own() {
        let all = [PeerNumber::Offset(0), PeerNumber::Offset(1), PeerNumber::Offset(-1), PeerNumber::Fixed(9)];
        assert_eq!(all.map(|number| guess(0x11, number)), [0x11, 0x12, 0x10, 9]);
        assert_eq!(guess(0xFF_FFFF, PeerNumber::Offset(1)), 0, "24 bits");
    }

    #[test]
    fn connect_is_established_at_once() {
        let stage = Stage::new();
        let manager = alone(&stage, PeerNumber::Offset(-1));
        let pair = FakeQp::new(0x12);
        let address = PeerAddress::Ip("192.0.2.9".parse().unwrap());
        manager.begin(pair.clone(), &spec(&address), conn(1)).unwrap();
        assert_eq!(
            pair.next(),
            QpReport::Raised {
                number: 0x11,
                gid: crate::cm::socket::gid_lookup::by_address("192.0.2.9".parse().unwrap())
            }
        );
        assert_eq!(pair.next(), QpReport::Established(vec![]));
        pair.end();
        let address = PeerAddress::Ip(stage.address());
        manager.begin(pair.clone(), &spec(&address), conn(2)).unwrap();
        assert_eq!(pair.next(), QpReport::Raised { number: 0x11, gid: stage.gid() });
        assert_eq!(pair.next(), QpReport::Established(vec![]));
        let path = PeerAddress::Path("/nowhere".into());
        let refused = manager.begin(FakeQp::new(1), &spec(&path), conn(3));
        assert_eq!(refused, Err(Error::InvalidAddress(Address::Malformed)));
    }

    #[test]
    fn a_listener_has_one_request_and_another_when_its_connection_is_over() {
        let stage = Stage::new();
        let manager = alone(&stage, PeerNumber::Offset(1));
        let listener = manager.open(conn(7).ep);
        let pair = FakeQp::new(0x20);
        for _ in 0..3 {
            let (id, waiting, info) = stage.request();
            assert_eq!((id, info.peer.ip(), info.reported_len), (conn(7).ep, stage.address(), 0));
            assert!(stage.is_silent(), "one at a time");
            let waiting: Box<dyn Any> = waiting;
            waiting.downcast::<SyntheticRequest>().unwrap().accept_into(pair.clone(), conn(8)).unwrap();
            assert_eq!(pair.next(), QpReport::Raised { number: 0x21, gid: stage.gid() });
            assert_eq!(pair.next(), QpReport::Established(vec![]));
            assert!(stage.is_silent(), "while it stands");
            pair.end();
        }
        drop(stage.request());
        let (_, waiting, _) = stage.request();
        drop(OpenListener(listener));
        drop(waiting);
        std::thread::sleep(PAUSE);
        assert!(stage.is_silent(), "no listener is left");
    }

    #[test]
    fn a_path_that_the_device_does_not_take_is_a_failure() {
        let stage = Stage::new();
        let manager = alone(&stage, PeerNumber::Offset(0));
        let pair = FakeQp::new(1);
        pair.refuse_paths();
        manager.begin(pair.clone(), &spec(&PeerAddress::Ip(stage.address())), conn(1)).unwrap();
        assert_eq!(pair.next(), QpReport::Over("rejected"));
        let listener = manager.open(conn(7).ep);
        SyntheticRequest(Some(listener)).accept_into(pair.clone(), conn(2)).unwrap();
        assert_eq!(pair.next(), QpReport::Over("accept failed"));
    }
}
