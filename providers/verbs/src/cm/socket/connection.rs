//! A connection of the connection manager `socket`: its TCP socket, its protocol state, and its queue pair.
//!
//! The engine thread transfers the bytes. Only a rejection or disconnect, the last message of a connection, is written
//! by the thread that ends the connection. The queue pair holds a reference to the connection as its link; the
//! connection refers to the queue pair weakly. No lock is held during calls of a queue pair or a listener.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};

use crate::cm::name_service::Gid;
use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent};
use parking_lot::Mutex;
use rustix::event::epoll::EventFlags;

use super::path::{LocalEnd, RemoteEnd};
use super::protocol::{Protocol, ProtocolEvent};
use super::tcp;
use super::wire::{self, ConnectParams};
use super::{SocketContext, TcpListening};
use crate::engine::{EventHandler, READ, READ_WRITE, WatchedDescriptor};
use crate::qp::{CmConnection, CmQueuePair};

/// A connection over a TCP socket: at first an attempt of this IA to connect, or a request of a peer.
pub(super) struct SocketConnection {
    me: Weak<SocketConnection>,
    context: Arc<SocketContext>,
    /// Remote address of the TCP socket.
    pub(super) peer: SocketAddr,
    /// The listener of a request; `None` for an attempt.
    listener: Option<Weak<TcpListening>>,
    pair: OnceLock<Weak<dyn CmQueuePair>>,
    inner: Mutex<ConnectionState>,
}

struct ConnectionState {
    protocol: Protocol,
    stream: Option<TcpStream>,
    watch: Option<WatchedDescriptor>,
    interest: EventFlags,
    /// Number of the deadline that was scheduled last.
    turn: Option<u64>,
    /// The peer's parameters; `None` before they have arrived.
    params: Option<ConnectParams>,
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
                interest: READ,
                turn: None,
                params: None,
                private_data: Vec::new(),
            }),
        })
    }

    /// Returns the IA address that the peer has sent. If the peer has sent none, or an unspecified one, returns the
    /// remote address of the TCP socket.
    pub(super) fn address(&self, params: &ConnectParams) -> IpAddr {
        params.address.filter(|ip| !ip.is_unspecified()).unwrap_or(self.peer.ip())
    }

    /// Attaches this connection to a queue pair as its link.
    fn attach(self: &Arc<Self>, pair: &Arc<dyn CmQueuePair>, conn: ConnId) -> Result<()> {
        let _ = self.pair.set(Arc::downgrade(pair));
        pair.attach(conn, self.clone())
    }

    /// Attaches the connection to a queue pair, and starts the exchange of messages on the engine thread.
    pub(super) fn connect(self: &Arc<Self>, pair: Arc<dyn CmQueuePair>, conn: ConnId) -> Result<()> {
        self.attach(&pair, conn)?;
        self.context.engine.call_on_engine(&self.me, Self::register);
        Ok(())
    }

    /// Attaches a request that the consumer accepts to a queue pair; the engine thread sends the accept. On an error,
    /// the request is rejected.
    pub(super) fn accept_into(
        self: &Arc<Self>,
        pair: Arc<dyn CmQueuePair>,
        private_data: &[u8],
        conn: ConnId,
    ) -> Result<()> {
        let most = {
            let mut inner = self.inner.lock();
            inner.private_data = private_data.to_vec();
            inner.protocol.format().layout().most_in_reply
        };
        if private_data.len() > most {
            log::error!(
                "cannot accept the request of {}: {} bytes of private data exceed the {most} bytes of the requester's wire format; \
                 pass fewer bytes to dat_cr_accept",
                self.peer,
                private_data.len()
            );
            self.end();
            return Err(Error::InvalidParameter(3));
        }
        self.attach(&pair, conn).inspect_err(|_| self.end())?;
        self.context.engine.call_on_engine(&self.me, Self::find_peer);
        Ok(())
    }

    /// Sends the consumer's rejection and closes the socket. Private data beyond the limit of the format are not sent.
    pub(super) fn refuse(&self, private_data: &[u8]) {
        let mut inner = self.inner.lock();
        let most = inner.protocol.format().layout().most_in_reject;
        inner.protocol.refuse(&private_data[..private_data.len().min(most)]);
        inner.close();
    }

    /// Duplicates the descriptor of the connection's socket.
    #[cfg(test)]
    pub(super) fn socket(&self) -> TcpStream {
        self.inner.lock().stream.as_ref().unwrap().try_clone().unwrap()
    }

    /// Registers the socket for events, and starts to transfer bytes. Called by the engine thread only.
    pub(super) fn register(&self) {
        let failed = {
            let mut inner = self.inner.lock();
            let Some(stream) = &inner.stream else { return };
            let interest = if inner.protocol.is_connecting() { READ_WRITE } else { READ };
            match self.context.engine.watch(stream.as_fd(), interest, &self.me) {
                Ok(watch) => {
                    (inner.watch, inner.interest) = (Some(watch), interest);
                    None
                }
                Err(error) => {
                    log::error!(
                        "connection with {}: cannot wait for events of its socket: {error}; the connection attempt fails; raise \
                         the limits of open files (ulimit -n) and epoll watches (sysctl fs.epoll.max_user_watches)",
                        self.peer
                    );
                    inner.protocol.handle_close(Some(error.kind()))
                }
            }
        };
        match failed {
            Some(event) => self.report(event),
            None => self.ready(),
        }
    }

    /// Transfers bytes until there is an event, the socket blocks or the protocol wants no more bytes. Closes the
    /// socket before it returns the last event.
    fn step(&self) -> Option<ProtocolEvent> {
        let mut inner = self.inner.lock();
        let was_asked = inner.protocol.awaits_reply();
        let event = inner.step();
        if let Some(fault) = inner.protocol.take_fault() {
            let level = if was_asked { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "connection with {}: {fault}; check that the peer uses uDAPL on this port", self.peer);
        } else if was_asked && matches!(event, Some(ProtocolEvent::Ended(ConnectionEvent::Rejected, _))) {
            self.explain_missing_reply();
        }
        if inner.protocol.is_ended() {
            inner.close();
        } else if inner.protocol.is_refused() {
            inner.stop();
        }
        inner.update_awaited_events();
        if let Some((time, turn)) = inner.protocol.deadline().filter(|(_, turn)| inner.turn != Some(*turn)) {
            inner.turn = Some(turn);
            self.context.engine.schedule(time, &self.me, turn);
        }
        event
    }

    /// Logs the usual reason why a peer closes the socket without a reply: it has no path to the local GID.
    fn explain_missing_reply(&self) {
        if let Some(local) = self.context.local().filter(LocalEnd::is_global) {
            log::warn!(
                "connection with {}: the peer closed the connection without a reply; if it reports no path to the local {local}, set \
                 DAPL_VERBS_GID_INDEX on this host to the index that the peer uses (by default 0 in the C implementation)",
                self.peer
            );
        }
    }

    fn report(&self, event: ProtocolEvent) {
        let Some(me) = self.me.upgrade() else { return };
        match event {
            ProtocolEvent::Request(params) => {
                self.inner.lock().params = Some(params.clone());
                if let Some(listener) = self.listener.as_ref().and_then(Weak::upgrade) {
                    listener.request_complete(&me, &params);
                }
            }
            ProtocolEvent::Reply(params) => {
                self.inner.lock().params = Some(params);
                self.find_peer();
            }
            ProtocolEvent::Established => {
                self.with_pair(|pair| pair.established(self, &[]));
            }
            ProtocolEvent::Reconnect => self.reconnect(),
            ProtocolEvent::Ended(event, private_data) => {
                self.with_pair(|pair| pair.report_end(self, event, &private_data));
                if let Some(listener) = self.listener.as_ref().and_then(Weak::upgrade) {
                    listener.remove_unknown(&me);
                }
            }
        }
    }

    /// Connects another socket, because the last one found no listener. Does nothing if the consumer has ended the
    /// attempt.
    fn reconnect(&self) {
        let failed = {
            let mut inner = self.inner.lock();
            if !inner.protocol.is_connecting() {
                return;
            }
            match tcp::start_connect(self.peer) {
                Ok(stream) => {
                    inner.stream = Some(stream);
                    None
                }
                Err(_) => inner.protocol.handle_close(None),
            }
        };
        match failed {
            Some(event) => self.report(event),
            None => self.register(),
        }
    }

    fn with_pair<T>(&self, then: impl FnOnce(&dyn CmQueuePair) -> T) -> Option<T> {
        self.pair.get().and_then(Weak::upgrade).map(|pair| then(&*pair))
    }

    fn report_end(&self, event: ConnectionEvent) {
        self.with_pair(|pair| pair.report_end(self, event, &[]));
    }

    /// Brings the queue pair up with the peer's parameters. If these lack a GID that is needed, looks the GID up first.
    fn find_peer(&self) {
        let (Some(local), Some(params)) = (self.context.local(), self.inner.lock().params.clone()) else {
            return self.fail();
        };
        let is_known = params.gid != Gid::default() || !local.is_global();
        if is_known {
            return self.bring_up(&local, &params);
        }
        let me = self.me.clone();
        let address = self.address(&params);
        self.context.find_gid(address, local.is_ethernet, move |gid| {
            let Some(connection) = me.upgrade() else { return };
            match gid {
                Some(gid) => connection.bring_up(&local, &ConnectParams { gid, ..params.clone() }),
                None => connection.fail(),
            }
        });
    }

    /// Returns the local end of the path to the peer's GID. Only the acceptor may choose another local GID: the
    /// requester has already sent the default one.
    fn local_end(&self, local: &LocalEnd, peer: &Gid) -> Option<LocalEnd> {
        let is_passive = self.listener.is_some();
        let found = if is_passive {
            self.context.local_end_reaching(*local, peer)
        } else {
            Some(*local).filter(|local| local.reaches(peer))
        };
        let peer_gid = Ipv6Addr::from(*peer);
        match &found {
            Some(used) if used.gid != local.gid => {
                log::info!("connection with {}: using local {used} to reach GID {peer_gid}", self.peer)
            }
            Some(_) => {}
            None => log::error!(
                "connection with {}: no path from {local} to GID {peer_gid}: only one of them is an IPv4 address; set \
                 DAPL_VERBS_GID_INDEX on one host so that both or none are IPv4 addresses (ibv_devinfo -v lists GIDs)",
                self.peer
            ),
        }
        found
    }

    /// Brings the queue pair to RTS, and sends the accept or the confirmation.
    fn bring_up(&self, local: &LocalEnd, params: &ConnectParams) {
        let Some(local) = &self.local_end(local, &params.gid) else { return self.fail() };
        let remote = RemoteEnd { lid: params.lid, number: params.number, gid: params.gid, limits: params.limits };
        let brought_up = self.with_pair(|pair| pair.bring_up(self, &mut local.path(&remote, pair.reads())));
        match brought_up {
            None | Some(Ok(false)) => {}
            Some(Ok(true)) => self.send_accept_or_confirmation(local, params),
            Some(Err(error)) => {
                log::error!(
                    "connection with {}: cannot connect the queue pair with {local} to {remote}: {error}; the connection \
                     attempt fails; check that both ports are active and reach each other (ibv_devinfo -v)",
                    self.peer
                );
                self.fail();
            }
        }
    }

    fn send_accept_or_confirmation(&self, local: &LocalEnd, params: &ConnectParams) {
        let private_data = std::mem::take(&mut self.inner.lock().private_data);
        let answer = self.with_pair(|pair| self.context.params(local, pair, params.limits, private_data));
        let Some(answer) = answer else { return };
        let mut inner = self.inner.lock();
        if inner.protocol.queue_confirmation() {
            let confirmed = inner.flush();
            inner.update_awaited_events();
            drop(inner);
            return match confirmed {
                Ok(()) => {
                    self.with_pair(|pair| pair.established(self, &params.private_data));
                    self.ready();
                }
                Err(_) => self.report_end(ConnectionEvent::Rejected),
            };
        }
        let is_answered = inner.protocol.queue_accept(answer);
        drop(inner);
        match is_answered {
            true => self.ready(),
            // On the passive side, the requester has given up before the accept. On the active side, the connection has
            // ended before the confirmation, usually because the acceptor has disconnected. This end was already
            // reported, so the call has no effect.
            false => self.report_end(ConnectionEvent::AcceptFailed),
        }
    }

    /// Ends the connection after a local failure. The peer detects the end by the last message or the closed socket.
    fn fail(&self) {
        let is_passive = self.listener.is_some();
        let mut inner = self.inner.lock();
        inner.protocol.end();
        inner.close();
        drop(inner);
        self.report_end(if is_passive { ConnectionEvent::AcceptFailed } else { ConnectionEvent::Rejected });
    }
}

impl ConnectionState {
    fn step(&mut self) -> Option<ProtocolEvent> {
        let Some(stream) = &self.stream else { return None };
        if self.protocol.is_connecting() {
            match tcp::is_connected(stream) {
                Ok(()) => self.protocol.connected(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => return self.protocol.handle_close(Some(error.kind())),
            }
        }
        if let Err(error) = self.flush() {
            return self.protocol.handle_close(Some(error.kind()));
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
                Ok(bytes) => match self.protocol.receive(bytes) {
                    None => {}
                    event => return event,
                },
                Err(error) => return self.protocol.handle_close(Some(error.kind())),
            }
        }
    }

    /// Sends queued bytes until the socket blocks.
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

    /// Updates the events for which the socket is registered.
    fn update_awaited_events(&mut self) {
        let (Some(stream), Some(watch)) = (&self.stream, &self.watch) else { return };
        let busy = self.protocol.is_connecting() || !self.protocol.outbox().is_empty();
        let interest = if busy { READ_WRITE } else { READ };
        if interest != self.interest && watch.change(stream.as_fd(), interest).is_ok() {
            self.interest = interest;
        }
    }

    /// Sends the remaining bytes if the socket does not block, and closes the socket.
    fn close(&mut self) {
        if let Some(stream) = &self.stream {
            // If the last message cannot be sent, the peer detects the end by the closed socket.
            let _ = tcp::write(stream, self.protocol.outbox());
        }
        self.stop();
    }

    fn stop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        if let Some(watch) = self.watch.take() {
            watch.end(stream.as_fd());
        }
        // A close is not sufficient: a forked child may have inherited the socket, and the peer would not see the end.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl EventHandler for SocketConnection {
    fn ready(&self) {
        while let Some(event) = self.step() {
            self.report(event);
        }
    }

    fn expired(&self, turn: u64) {
        let event = {
            let mut inner = self.inner.lock();
            let event = inner.protocol.handle_deadline(turn);
            if inner.protocol.is_ended() && event.is_some() {
                log::debug!("{}: connection setup has timed out without a complete message of the peer", self.peer);
                inner.stop();
            }
            event
        };
        event.into_iter().for_each(|event| self.report(event));
    }
}

impl CmConnection for SocketConnection {
    fn end(&self) {
        let mut inner = self.inner.lock();
        inner.protocol.end();
        inner.close();
    }
}
