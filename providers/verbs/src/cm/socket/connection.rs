//! A connection of the manager `socket`: its TCP socket, its protocol state, and its queue pair. The engine's thread
//! transfers the bytes.
//!
//! Rejections and disconnects, which are the last bytes of a connection, are written by the thread that decides them.
//! The queue pair holds the connection as its link; the connection holds the queue pair weakly. No lock is held
//! during calls of a queue pair or a listener.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};

use crate::cm::name_service::Gid;
use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent};
use parking_lot::Mutex;

use super::path::{LocalEnd, RemoteEnd};
use super::protocol::{Protocol, ProtocolEvent};
use super::tcp;
use super::wire::{self, Hello, PathLimits};
use super::{SocketContext, TcpListening};
use crate::engine::{Interest, Source, Watch};
use crate::qp::{CmConnection, QpCore};

/// Calls to the queue pair; see [`QpCore`]. A trait, because the tests of this protocol run where there is no RDMA device, and
/// a queue pair cannot exist without one.
pub(in crate::cm) trait Pair: Send + Sync {
    fn number(&self) -> u32;
    /// Number of outstanding reads that the queue pair accepts from its peer.
    fn reads_in(&self) -> u8;
    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()>;
    fn raise(&self, link: &dyn CmConnection, local: &LocalEnd, remote: &RemoteEnd) -> io::Result<bool>;
    fn established(&self, link: &dyn CmConnection, private_data: &[u8]);
    /// Reports the end. `private_data`: those of a peer that has rejected.
    fn over(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]);
}

impl Pair for QpCore {
    fn number(&self) -> u32 {
        QpCore::number(self)
    }

    fn reads_in(&self) -> u8 {
        self.reads().incoming
    }

    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()> {
        QpCore::attach(self, conn, link)
    }

    fn raise(&self, link: &dyn CmConnection, local: &LocalEnd, remote: &RemoteEnd) -> io::Result<bool> {
        QpCore::raise(self, link, &mut local.path(remote, self.reads()))
    }

    fn established(&self, link: &dyn CmConnection, private_data: &[u8]) {
        QpCore::established(self, link, private_data);
    }

    fn over(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]) {
        QpCore::over_with(self, link, event, private_data);
    }
}

/// Parameters of a queue pair that its peer must know.
pub(super) struct QpParameters {
    pub(super) number: u32,
    pub(super) limits: PathLimits,
}

impl QpParameters {
    /// `remote`: the peer's limits, if they are known.
    pub(super) fn of(pair: &dyn Pair, local: &LocalEnd, remote: Option<PathLimits>) -> Self {
        QpParameters { number: pair.number(), limits: local.limits(remote, pair.reads_in()) }
    }
}

/// A connection or attempt.
pub(super) struct SocketConnection {
    me: Weak<SocketConnection>,
    context: Arc<SocketContext>,
    /// Address of the socket's other end.
    pub(super) peer: SocketAddr,
    listener: Option<Weak<TcpListening>>,
    pair: OnceLock<Weak<dyn Pair>>,
    inner: Mutex<ConnectionState>,
}

struct ConnectionState {
    protocol: Protocol,
    stream: Option<TcpStream>,
    watch: Option<Watch>,
    interest: Interest,
    /// The deadline that was scheduled last.
    turn: Option<u64>,
    /// The peer's parameters.
    hello: Option<Hello>,
    /// Private data of the accept.
    private_data: Vec<u8>,
}

impl SocketConnection {
    pub(super) fn new(
        context: &Arc<SocketContext>,
        stream: TcpStream,
        peer: SocketAddr,
        protocol: Protocol,
        listener: Option<Weak<TcpListening>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| SocketConnection {
            me: Weak::clone(me),
            context: context.clone(),
            peer,
            listener,
            pair: OnceLock::new(),
            inner: Mutex::new(ConnectionState {
                protocol,
                stream: Some(stream),
                watch: None,
                interest: Interest::Read,
                turn: None,
                hello: None,
                private_data: Vec::new(),
            }),
        })
    }

    /// Address of the peer's IA as sent by the peer, or the source address of its socket.
    pub(super) fn address(&self, hello: &Hello) -> IpAddr {
        hello.address.filter(|ip| !ip.is_unspecified()).unwrap_or(self.peer.ip())
    }

    /// Attaches this connection to a queue pair as its link.
    fn attach(self: &Arc<Self>, pair: &Arc<dyn Pair>, conn: ConnId) -> Result<()> {
        let _ = self.pair.set(Arc::downgrade(pair));
        pair.attach(conn, self.clone())
    }

    /// Becomes the connection of a queue pair, on the engine's thread, and starts the exchange of messages.
    pub(super) fn connect(self: &Arc<Self>, pair: Arc<dyn Pair>, conn: ConnId) -> Result<()> {
        self.attach(&pair, conn)?;
        let me = self.me.clone();
        self.context.reactor.soon(move || me.upgrade().into_iter().for_each(|line| line.begin()));
        Ok(())
    }

    /// Like `start`, for a request that the consumer accepts. On an error the connection ends.
    pub(super) fn accept(self: &Arc<Self>, pair: Arc<dyn Pair>, private_data: &[u8], conn: ConnId) -> Result<()> {
        let most = {
            let mut inner = self.inner.lock();
            inner.private_data = private_data.to_vec();
            inner.protocol.format().most_in_reply()
        };
        if private_data.len() > most {
            log::error!(
                "{}: {} bytes of private data with an accept, but at most {most} fit into the requester's wire format",
                self.peer,
                private_data.len()
            );
            self.end();
            return Err(Error::InvalidParameter(3));
        }
        self.attach(&pair, conn).inspect_err(|_| self.end())?;
        let me = self.me.clone();
        self.context.reactor.soon(move || me.upgrade().into_iter().for_each(|line| line.find_peer()));
        Ok(())
    }

    /// Sends the consumer's rejection, with private data as far as the format carries them, and closes the socket.
    pub(super) fn refuse(&self, private_data: &[u8]) {
        let mut inner = self.inner.lock();
        let most = inner.protocol.format().most_in_reject();
        inner.protocol.refuse(&private_data[..private_data.len().min(most)]);
        inner.close();
    }

    /// Duplicates the descriptor of its socket.
    #[cfg(test)]
    pub(super) fn socket(&self) -> TcpStream {
        self.inner.lock().stream.as_ref().unwrap().try_clone().unwrap()
    }

    /// Registers the socket for polling. Called by the engine only.
    pub(super) fn begin(&self) {
        let me: Weak<dyn Source> = self.me.clone();
        let failed = {
            let mut inner = self.inner.lock();
            let Some(stream) = &inner.stream else { return };
            let interest = if inner.protocol.is_dialling() { Interest::ReadWrite } else { Interest::Read };
            match self.context.reactor.watch(stream.as_fd(), interest, me) {
                Ok(watch) => {
                    (inner.watch, inner.interest) = (Some(watch), interest);
                    None
                }
                Err(error) => {
                    log::error!("{}: its socket cannot be watched: {error}", self.peer);
                    inner.protocol.closed(Some(error.kind()))
                }
            }
        };
        match failed {
            Some(event) => self.report(event),
            None => self.ready(),
        }
    }

    /// Transfers bytes until there is an event. The socket is closed before the last event.
    fn step(&self) -> Option<ProtocolEvent> {
        let mut inner = self.inner.lock();
        let was_asked = inner.protocol.is_asked();
        let event = inner.step();
        if was_asked && event == Some(ProtocolEvent::Over(ConnectionEvent::Rejected)) {
            self.explain_hang_up();
        }
        if inner.protocol.is_over() {
            inner.close();
        } else if inner.protocol.is_refused() {
            inner.stop();
        }
        inner.adjust();
        if let Some((time, turn)) = inner.protocol.patience().filter(|(_, turn)| inner.turn != Some(*turn)) {
            inner.turn = Some(turn);
            let me: Weak<dyn Source> = self.me.clone();
            self.context.reactor.after(time, me, turn);
        }
        event
    }

    /// Logs why a peer closed the socket instead of answering, which it does if it finds no path to the local GID.
    fn explain_hang_up(&self) {
        if let Some(local) = self.context.local().filter(LocalEnd::is_global) {
            log::warn!(
                "{}: the peer closed the connection without an answer; if it reports no path to our {local}, set \
                 DAPL_VERBS_GID_INDEX here to the index that it uses (by default 0 in the C implementation)",
                self.peer
            );
        }
    }

    fn report(&self, event: ProtocolEvent) {
        let Some(me) = self.me.upgrade() else { return };
        match event {
            ProtocolEvent::Request(hello) => {
                self.inner.lock().hello = Some(hello.clone());
                if let Some(listener) = self.listener.as_ref().and_then(Weak::upgrade) {
                    listener.request_complete(&me, &hello);
                }
            }
            ProtocolEvent::Reply(hello) => {
                self.inner.lock().hello = Some(hello);
                self.find_peer();
            }
            ProtocolEvent::Established => {
                self.with_pair(|pair| pair.established(self, &[]));
            }
            ProtocolEvent::Dial => self.dial_again(),
            ProtocolEvent::PeerRejected(private_data) => {
                self.with_pair(|pair| pair.over(self, ConnectionEvent::PeerRejected, &private_data));
            }
            ProtocolEvent::Over(event) => {
                self.over(event);
                if let Some(listener) = self.listener.as_ref().and_then(Weak::upgrade) {
                    listener.forget(&me);
                }
            }
        }
    }

    /// Connects another socket after one that found no listener, unless the consumer has ended the attempt in the
    /// meantime.
    fn dial_again(&self) {
        let failed = {
            let mut inner = self.inner.lock();
            if !inner.protocol.is_dialling() {
                return;
            }
            match tcp::dial(self.peer) {
                Ok(stream) => {
                    inner.stream = Some(stream);
                    None
                }
                Err(_) => inner.protocol.closed(None),
            }
        };
        match failed {
            Some(event) => self.report(event),
            None => self.begin(),
        }
    }

    fn with_pair<T>(&self, then: impl FnOnce(&dyn Pair) -> T) -> Option<T> {
        self.pair.get().and_then(Weak::upgrade).map(|pair| then(&*pair))
    }

    fn over(&self, event: ConnectionEvent) {
        self.with_pair(|pair| pair.over(self, event, &[]));
    }

    /// Handles the peer's parameters. If they lack its GID, continues when the GID is known.
    fn find_peer(&self) {
        let (Some(local), Some(hello)) = (self.context.local(), self.inner.lock().hello.clone()) else {
            return self.fail();
        };
        let is_known = hello.gid != Gid::default() || !local.is_global();
        if is_known {
            return self.raise(&local, &hello);
        }
        let me = self.me.clone();
        let address = self.address(&hello);
        self.context.gid_lookup.find(address, local.is_ethernet, move |gid| {
            let Some(line) = me.upgrade() else { return };
            match gid {
                Some(gid) => line.raise(&local, &Hello { gid, ..hello }),
                None => line.fail(),
            }
        });
    }

    /// Returns the local end of the path to the peer's GID. The requester has already sent its own GID and cannot use
    /// another one.
    fn local_end(&self, local: &LocalEnd, peer: &Gid) -> Option<LocalEnd> {
        let is_passive = self.listener.is_some();
        let found = if is_passive {
            self.context.reaching(*local, peer)
        } else {
            Some(*local).filter(|local| local.reaches(peer))
        };
        let peer_gid = Ipv6Addr::from(*peer);
        match &found {
            Some(used) if used.gid != local.gid => log::info!("{}: using {used} to reach GID {peer_gid}", self.peer),
            Some(_) => {}
            None => log::error!(
                "{}: no path from {local} to GID {peer_gid}: one is an IPv4 address, the other is not; set \
                 DAPL_VERBS_GID_INDEX on one side so that both are of the same kind (ibv_devinfo -v lists GIDs)",
                self.peer
            ),
        }
        found
    }

    /// Brings the queue pair to RTS and notifies the peer.
    fn raise(&self, local: &LocalEnd, hello: &Hello) {
        let Some(local) = &self.local_end(local, &hello.gid) else { return self.fail() };
        let remote = RemoteEnd { lid: hello.lid, number: hello.number, gid: hello.gid, limits: hello.limits };
        let raised = self.with_pair(|pair| pair.raise(self, local, &remote));
        match raised {
            None | Some(Ok(false)) => {}
            Some(Ok(true)) => self.go_on(local, hello),
            Some(Err(error)) => {
                log::error!("{}: no path from {local} to {remote}: {error}", self.peer);
                self.fail();
            }
        }
    }

    fn go_on(&self, local: &LocalEnd, hello: &Hello) {
        let Some(parameters) = self.with_pair(|pair| QpParameters::of(pair, local, hello.limits)) else { return };
        let mut inner = self.inner.lock();
        if inner.protocol.confirm() {
            let confirmed = inner.flush();
            inner.adjust();
            drop(inner);
            return match confirmed {
                Ok(()) => {
                    self.with_pair(|pair| pair.established(self, &hello.private_data));
                    self.ready();
                }
                Err(_) => self.over(ConnectionEvent::Rejected),
            };
        }
        let private_data = std::mem::take(&mut inner.private_data);
        let is_answered = inner.protocol.answer(self.context.hello(local, parameters, private_data));
        drop(inner);
        match is_answered {
            true => self.ready(),
            // The requester has left before the answer, or the acceptor before the confirmation. In the latter case the
            // consumer has been notified.
            false => self.over(ConnectionEvent::AcceptFailed),
        }
    }

    /// Handles a local failure. The peer detects that the socket is closed.
    fn fail(&self) {
        let is_passive = self.listener.is_some();
        let mut inner = self.inner.lock();
        inner.protocol.end();
        inner.close();
        drop(inner);
        self.over(if is_passive { ConnectionEvent::AcceptFailed } else { ConnectionEvent::Rejected });
    }
}

impl ConnectionState {
    fn step(&mut self) -> Option<ProtocolEvent> {
        let Some(stream) = &self.stream else { return None };
        if self.protocol.is_dialling() {
            match tcp::is_connected(stream) {
                Ok(()) => self.protocol.connected(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => return self.protocol.closed(Some(error.kind())),
            }
        }
        if let Err(error) = self.flush() {
            return self.protocol.closed(Some(error.kind()));
        }
        let stream = self.stream.as_ref()?;
        let mut buffer = [0; wire::LONGEST];
        loop {
            let wanted = self.protocol.wanted().min(buffer.len());
            if wanted == 0 {
                return None;
            }
            match tcp::read(stream, &mut buffer[..wanted]) {
                Ok([]) => return None,
                Ok(bytes) => match self.protocol.take(bytes) {
                    None => {}
                    event => return event,
                },
                Err(error) => return self.protocol.closed(Some(error.kind())),
            }
        }
    }

    /// Sends queued bytes as far as possible.
    fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        while !self.protocol.outbox().is_empty() {
            match tcp::write(stream, self.protocol.outbox())? {
                0 => break,
                length => self.protocol.sent(length),
            }
        }
        Ok(())
    }

    /// Updates the events that the socket is watched for.
    fn adjust(&mut self) {
        let (Some(stream), Some(watch)) = (&self.stream, &self.watch) else { return };
        let busy = self.protocol.is_dialling() || !self.protocol.outbox().is_empty();
        let interest = if busy { Interest::ReadWrite } else { Interest::Read };
        if interest != self.interest && watch.change(stream.as_fd(), interest).is_ok() {
            self.interest = interest;
        }
    }

    /// Sends the remaining bytes, as far as possible without blocking, and closes the socket.
    fn close(&mut self) {
        if let Some(stream) = &self.stream {
            // A peer that does not accept a few bytes detects that the socket is closed.
            let _ = tcp::write(stream, self.protocol.outbox());
        }
        self.stop();
    }

    fn stop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        if let Some(watch) = self.watch.take() {
            watch.end(stream.as_fd());
        }
        // A forked process may share the socket, so it is shut down to let the peer see the end.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl Source for SocketConnection {
    fn ready(&self) {
        while let Some(event) = self.step() {
            self.report(event);
        }
    }

    fn expired(&self, turn: u64) {
        let late = {
            let mut inner = self.inner.lock();
            let late = inner.protocol.late(turn);
            if inner.protocol.is_over() && late.is_some() {
                log::debug!("{}: no message of the peer before the deadline", self.peer);
                inner.stop();
            }
            late
        };
        late.into_iter().for_each(|event| self.report(event));
    }
}

impl CmConnection for SocketConnection {
    fn end(&self) {
        let mut inner = self.inner.lock();
        inner.protocol.end();
        inner.close();
    }
}
