//! The connection manager `socket`: exchanges queue pair parameters over TCP, with the wire formats of the C
//! implementation's socket providers (spec/endpoints 10.7, 10.8). It is for fabrics without rdma_cm, and for peers that
//! have only a socket provider.
//!
//! An IA has one wire format, which determines the TCP port of a qualifier and the format of requests. A request in the
//! other format gets a reply in that format. A listener is a TCP port (`tcp`). An attempt or a request is a TCP
//! connection (`connection`) with a protocol state machine (`protocol`) and messages (`wire`). The exchanged parameters
//! give the path with which the queue pair is brought up (`path`). `gid_lookup` looks up a GID that a message lacks.
//! The TCP connection stays open while the queue pairs are connected. If a peer closes it, the connection of the queue
//! pairs ends. A request to a port without a listener is repeated for `listener_wait_ms`, with a new socket each time.
//!
//! All sockets are non-blocking, and the engine thread serves them. A peer has a time limit for its request, for its
//! confirmation, and for the rest of a reply after its first byte. The number of TCP connections at a listener without
//! a complete request is limited; if there are more, the oldest is closed.
#![forbid(unsafe_code)]

mod connection;
#[cfg(test)]
pub(super) mod fake;
mod gid_lookup;
pub(super) mod path;
mod protocol;
mod tcp;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cm::name_service::{Gid, NameService};
use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::{IncomingRequest, ListenGuard, Manager, WaitingRequest, request};
use crate::device::Device;
use crate::engine::{Engine, EventHandler, READ, WatchedDescriptor};
use crate::qp::{CmConnection, CmQueuePair, QpCore};
use connection::SocketConnection;
use path::LocalEnd;
use protocol::Protocol;
use wire::{ConnectParams, Format, PathLimits};

/// Maximum number of TCP connections at a listener without a complete request.
const MAX_UNKNOWN_CLIENTS: usize = if cfg!(test) { 16 } else { 1024 };
/// Maximum number of TCP connections that a listener accepts before the engine does other work.
const MAX_ACCEPTS: usize = 64;
/// Pause of a listener after an accept has failed, usually because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type ChooseLocalEnd = dyn Fn(LocalEnd, &Gid) -> Option<LocalEnd> + Send + Sync;
type RequestSink = dyn Fn(ObjectId, WaitingRequest, RequestInfo) + Send + Sync;

/// State shared by all connections of an IA with the connection manager `socket` or `none`.
pub(super) struct SocketContext {
    pub(super) engine: Arc<Engine>,
    names: Arc<NameService>,
    /// The IA's address, as sent to peers.
    pub(super) address: Option<IpAddr>,
    /// Time for which a request that finds no listener is retried.
    pub(super) listener_wait: Duration,
    /// Returns the local end of a path, with the port's current attributes.
    local: Box<dyn Fn() -> Option<LocalEnd> + Send + Sync>,
    /// Finds a local GID that reaches a peer's GID, if the default GID does not.
    reaching: Box<ChooseLocalEnd>,
    /// Delivers a connection request to the listener with this id.
    pub(super) arrived: Box<RequestSink>,
}

impl SocketContext {
    /// Creates the context, which holds only weak references to the device.
    pub(super) fn of(device: &Arc<Device>) -> Self {
        let (at, of, to) = (Arc::downgrade(device), Arc::downgrade(device), Arc::downgrade(device));
        SocketContext {
            engine: device.engine.clone(),
            names: Arc::default(),
            address: device.address,
            listener_wait: device.settings.listener_wait,
            local: Box::new(move || at.upgrade().and_then(|device| path::local(&device))),
            reaching: Box::new(move |local, peer| path::other_end_reaching(&*of.upgrade()?, local, peer)),
            arrived: Box::new(move |listener, waiting, info| {
                if let Some(device) = to.upgrade() {
                    request::arrived(&device, listener, waiting, info);
                }
            }),
        }
    }

    pub(super) fn local(&self) -> Option<LocalEnd> {
        (self.local)()
    }

    /// Returns `local` if it reaches the peer's GID, else the local end with another GID that does. `None`: there is no
    /// such GID, or no other GID may be used (`path::other_end_reaching`).
    fn local_end_reaching(&self, local: LocalEnd, peer: &Gid) -> Option<LocalEnd> {
        if local.reaches(peer) { Some(local) } else { (self.reaching)(local, peer) }
    }

    /// Returns the content of a request or an accept. `remote`: the peer's limits, if they are known.
    fn params(
        &self,
        local: &LocalEnd,
        pair: &dyn CmQueuePair,
        remote: Option<PathLimits>,
        private_data: Vec<u8>,
    ) -> ConnectParams {
        ConnectParams {
            lid: local.lid,
            port: local.port.into(),
            number: pair.number(),
            address: self.address,
            gid: local.gid,
            limits: Some(local.limits(remote, pair.reads().incoming)),
            private_data,
        }
    }
}

/// The connection manager of one IA.
pub(crate) struct SocketManager {
    context: Arc<SocketContext>,
    format: Format,
}

impl SocketManager {
    pub(crate) fn new(device: &Arc<Device>, format: Format) -> Arc<Self> {
        Self::with_context(SocketContext::of(device), format)
    }

    fn with_context(context: SocketContext, format: Format) -> Arc<Self> {
        Arc::new(SocketManager { context: Arc::new(context), format })
    }

    fn connect_pair(&self, pair: Arc<dyn CmQueuePair>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let PeerAddress::Ip(ip) = spec.address else {
            log::error!(
                "cannot connect to {:?}: the connection manager needs an AF_INET or AF_INET6 address",
                spec.address
            );
            return Err(Error::InvalidAddress(AddressProblem::Malformed));
        };
        let peer = SocketAddr::new(ip.to_canonical(), self.format.port(spec.qual));
        let local = self.context.local().ok_or(Error::Internal)?;
        let params = self.context.params(&local, &*pair, None, spec.private_data.to_vec());
        let stream = tcp::start_connect(peer)?;
        let protocol = Protocol::active(params, self.format, self.context.listener_wait);
        SocketConnection::new(&self.context, stream, peer, protocol, None).connect(pair, conn)
    }

    fn open(&self, qual: u64, id: ObjectId) -> Result<Arc<TcpListening>> {
        let listener = tcp::listen(qual, self.format)?;
        let listener = Arc::new_cyclic(|me| TcpListening {
            me: Weak::clone(me),
            context: self.context.clone(),
            id,
            socket: Mutex::new(ListeningSocket { listener: Some(listener), watch: None, is_reported: false }),
            unknown_clients: Mutex::default(),
        });
        listener.watch().map_err(|error| {
            log::error!(
                "cannot listen on qualifier {qual}: {error}; raise the limits of open files (ulimit -n) and epoll watches (sysctl \
                 fs.epoll.max_user_watches)"
            );
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(listener)
    }
}

impl Manager for SocketManager {
    fn listen(&self, qual: u64, id: ObjectId) -> Result<ListenGuard> {
        self.open(qual, id).map(|listener| ListenGuard::new(move || listener.close()))
    }

    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        self.connect_pair(qp.clone(), spec, conn)
    }
}

/// A listening TCP port.
struct TcpListening {
    me: Weak<TcpListening>,
    context: Arc<SocketContext>,
    id: ObjectId,
    socket: Mutex<ListeningSocket>,
    /// TCP connections without a complete request, in order of arrival.
    unknown_clients: Mutex<VecDeque<Arc<SocketConnection>>>,
}

/// The socket of a listener, and its registration with the engine, which reports new TCP connections.
struct ListeningSocket {
    /// `None` after the close.
    listener: Option<TcpListener>,
    /// `None` after the close, and while accepting is paused.
    watch: Option<WatchedDescriptor>,
    /// Whether a failed accept was logged. Cleared by the next successful accept.
    is_reported: bool,
}

impl TcpListening {
    fn watch(&self) -> io::Result<()> {
        let mut socket = self.socket.lock();
        if let Some(listener) = &socket.listener {
            socket.watch = Some(self.context.engine.watch(listener.as_fd(), READ, &self.me)?);
        }
        Ok(())
    }

    fn close(&self) {
        {
            let mut socket = self.socket.lock();
            let (listener, watch) = (socket.listener.take(), socket.watch.take());
            if let Some(listener) = listener {
                watch.into_iter().for_each(|watch| watch.end(listener.as_fd()));
                // A close is not sufficient: a forked child may have inherited the socket, which would keep listening.
                let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            }
        }
        let unknown_clients = std::mem::take(&mut *self.unknown_clients.lock());
        unknown_clients.iter().for_each(|connection| connection.end());
    }

    /// Accepts the next TCP connection. Returns false if none is pending.
    fn accept_client(&self) -> io::Result<bool> {
        let accepted = match &self.socket.lock().listener {
            Some(listener) => tcp::accept(listener)?,
            None => None,
        };
        let Some((stream, peer)) = accepted else { return Ok(false) };
        self.socket.lock().is_reported = false;
        let connection = SocketConnection::new(&self.context, stream, peer, Protocol::passive(), Some(self.me.clone()));
        let first = {
            let mut unknown_clients = self.unknown_clients.lock();
            unknown_clients.push_back(connection.clone());
            if unknown_clients.len() > MAX_UNKNOWN_CLIENTS { unknown_clients.pop_front() } else { None }
        };
        if let Some(first) = first {
            log::info!(
                "connection from {} closed: its request is not complete, and {MAX_UNKNOWN_CLIENTS} later connections (the limit) \
                 also wait for their requests; the client can connect again",
                first.peer
            );
            first.end();
        }
        connection.register();
        Ok(true)
    }

    /// Called when a TCP connection has received a complete request. Called by the engine thread only.
    fn request_complete(&self, connection: &Arc<SocketConnection>, params: &ConnectParams) {
        self.remove_unknown(connection);
        let peer = SocketAddr::new(connection.address(params), connection.peer.port());
        let private_data = params.private_data.clone();
        let info = RequestInfo { peer, reported_len: private_data.len(), private_data };
        (self.context.arrived)(self.id, WaitingRequest::new(connection.clone()), info);
    }

    /// Removes a TCP connection from those without a complete request.
    fn remove_unknown(&self, connection: &Arc<SocketConnection>) {
        self.unknown_clients.lock().retain(|known| !Arc::ptr_eq(known, connection));
    }

    /// Pauses accepting after `error`, which usually means that no file descriptor is free. Without a pause, the
    /// pending connection would wake the engine continuously.
    fn pause_accepts(&self, error: &io::Error) {
        let mut socket = self.socket.lock();
        if !std::mem::replace(&mut socket.is_reported, true) {
            let address = socket.listener.as_ref().and_then(|listener| listener.local_addr().ok());
            log::error!(
                "cannot accept connection requests on TCP port {}: {error}; they wait in the backlog of the socket; allow more open files \
                 (ulimit -n)",
                address.map_or(0, |address| address.port())
            );
        }
        let watch = socket.watch.take();
        if let (Some(listener), Some(watch)) = (&socket.listener, watch) {
            watch.end(listener.as_fd());
        }
        self.context.engine.schedule(ACCEPT_PAUSE, &self.me, 0);
    }
}

impl EventHandler for TcpListening {
    fn ready(&self) {
        for _ in 0..MAX_ACCEPTS {
            match self.accept_client() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.pause_accepts(&error),
            }
        }
    }

    fn expired(&self, _: u64) {
        if let Err(error) = self.watch() {
            self.pause_accepts(&error);
        }
    }
}

impl IncomingRequest for SocketConnection {
    fn accept(self: Arc<Self>, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.accept_into(qp.clone(), private_data, conn)
    }

    /// Without private data, rejects the request as not served: in the format of 2.0 by a message, in that of 1.2 by
    /// closing the TCP connection.
    fn reject(&self, private_data: Option<&[u8]>) {
        match private_data {
            Some(private_data) => self.refuse(private_data),
            None => self.end(),
        }
    }
}
