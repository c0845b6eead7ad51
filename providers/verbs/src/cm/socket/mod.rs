//! The manager `socket`: queue pairs find each other by messages over TCP, with the bytes of the C references' `scm`.
//!
//! For fabrics without rdma_cm between the two hosts, or hosts that speak `scm` only. A listener is a TCP port (`tcp`), an
//! attempt or a request a `line`, which leads a conversation (`talk`) of messages (`wire`) and brings its queue pair up by
//! the path that follows from them (`path`; `guide` says a GID that no message has said). The socket stays for the life of
//! the connection: what comes on it then, or its end, is the end of the connection. (endpoints-connections.md 10.7)
//!
//! A request to a port without a listener is retried for `listener_wait_ms`, each time with a socket of its own.
//!
//! All sockets are the engine's, and none blocks. A peer that owes us bytes has a bounded time; so many strangers may stand
//! at a listener at once, and who came first leaves when there are more.
#![forbid(unsafe_code)]

#[cfg(test)]
pub(super) mod double;
pub(super) mod guide;
mod line;
pub(super) mod path;
mod talk;
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

use crate::cm::name_service::Gid;
use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use super::{Link, Listening, Manager, Refusal, Waiting};
use crate::device::Device;
use crate::engine::{Interest, Reactor, Source, Watch};
use crate::qp::Core;
use guide::Guide;
pub(super) use line::Pair;
use line::{Host, Line};
use path::Ours;
use talk::Talk;
use wire::Hello;

/// Strangers at a listener whose request is not whole.
const STRANGERS: usize = if cfg!(test) { 16 } else { 1024 };
/// Those taken in at a time, so that others have their turn.
const AT_ONCE: usize = 64;
/// How long a listener rests when the process has no more descriptors.
const REST: Duration = Duration::from_millis(100);

type Reaching = dyn Fn(Ours, &Gid) -> Option<Ours> + Send + Sync;
type Arrived = dyn Fn(ObjectId, Box<dyn Waiting>, RequestInfo) + Send + Sync;

/// What all connections of an IA stand on, where no rdma_cm resolves their paths.
pub(super) struct Place {
    pub(super) reactor: Arc<Reactor>,
    pub(super) guide: Guide,
    /// The IA's, as peers are told.
    pub(super) address: Option<IpAddr>,
    /// For how long a request that finds no listener is retried.
    pub(super) listener_wait: Duration,
    /// Our end of a path, as it is now.
    ours: Box<dyn Fn() -> Option<Ours> + Send + Sync>,
    /// The same with a GID that reaches a peer's, where ours does not.
    reaching: Box<Reaching>,
    pub(super) arrived: Box<Arrived>,
}

impl Place {
    /// It does not keep the device, which keeps its manager.
    pub(super) fn of(device: &Arc<Device>) -> Self {
        let (at, of, to) = (Arc::downgrade(device), Arc::downgrade(device), Arc::downgrade(device));
        Place {
            reactor: device.reactor.clone(),
            guide: Guide::new(&device.reactor),
            address: device.address,
            listener_wait: device.knobs.listener_wait,
            ours: Box::new(move || at.upgrade().and_then(|device| path::ours(&device))),
            reaching: Box::new(move |ours, peer| path::reaching(&*of.upgrade()?, ours, peer)),
            arrived: Box::new(move |listener, waiting, info| {
                if let Some(device) = to.upgrade() {
                    device.arrived(listener, waiting, info);
                }
            }),
        }
    }

    pub(super) fn ours(&self) -> Option<Ours> {
        (self.ours)()
    }

    /// `ours` if it reaches the peer's GID, else our end with another GID.
    fn reaching(&self, ours: Ours, peer: &Gid) -> Option<Ours> {
        if ours.reaches(peer) { Some(ours) } else { (self.reaching)(ours, peer) }
    }

    fn hello(&self, ours: &Ours, number: u32, private_data: Vec<u8>) -> Hello {
        Hello { lid: ours.lid, port: ours.port.into(), number, address: self.address, gid: ours.gid, private_data }
    }
}

/// The manager of one IA.
pub(crate) struct Socket {
    place: Arc<Place>,
    doors: Mutex<Vec<Weak<Door>>>,
}

impl Socket {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        Self::over(Place::of(device))
    }

    fn over(place: Place) -> Arc<Self> {
        Arc::new(Socket { place: Arc::new(place), doors: Mutex::default() })
    }

    fn dial(&self, pair: Arc<dyn Pair>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let PeerAddress::Ip(ip) = spec.address else {
            log::error!("{:?} is no address of a host", spec.address);
            return Err(Error::InvalidAddress(Address::Malformed));
        };
        let peer = SocketAddr::new(ip.to_canonical(), tcp::port(spec.qual));
        let ours = self.place.ours().ok_or(Error::Internal)?;
        let hello = self.place.hello(&ours, pair.number(), spec.private_data.to_vec());
        let stream = tcp::dial(peer)?;
        Line::new(&self.place, stream, peer, Talk::active(hello, self.place.listener_wait), None).connect(pair, conn)
    }

    fn open(&self, qual: u64, id: ObjectId) -> Result<Arc<Door>> {
        let listener = tcp::listen(qual)?;
        let door = Arc::new_cyclic(|me| Door {
            me: Weak::clone(me),
            place: self.place.clone(),
            id,
            at: Mutex::new(At { listener: Some(listener), watch: None, is_told: false }),
            strangers: Mutex::default(),
        });
        door.watch().map_err(|error| {
            log::error!("a listener cannot be watched: {error}");
            Error::Exhausted(Resource::Memory)
        })?;
        let mut doors = self.doors.lock();
        doors.retain(|door| door.strong_count() > 0);
        doors.push(Arc::downgrade(&door));
        Ok(door)
    }
}

impl Manager for Socket {
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listening> {
        self.open(qual, id).map(|door| Box::new(Open(door)) as Listening)
    }

    fn connect(&self, qp: &Arc<Core>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        self.dial(qp.clone(), spec, conn)
    }

    fn close(&self) {
        let doors = std::mem::take(&mut *self.doors.lock());
        doors.iter().filter_map(Weak::upgrade).for_each(|door| door.close());
    }
}

/// A listener.
struct Door {
    me: Weak<Door>,
    place: Arc<Place>,
    id: ObjectId,
    at: Mutex<At>,
    /// Whose request is not whole, first come first.
    strangers: Mutex<VecDeque<Arc<Line>>>,
}

struct At {
    listener: Option<TcpListener>,
    watch: Option<Watch>,
    /// It was said that nobody can be let in.
    is_told: bool,
}

/// Stops listening when dropped.
struct Open(Arc<Door>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Door {
    fn watch(&self) -> io::Result<()> {
        let me: Weak<dyn Source> = self.me.clone();
        let mut at = self.at.lock();
        if let Some(listener) = &at.listener {
            at.watch = Some(self.place.reactor.watch(listener.as_fd(), Interest::Read, me)?);
        }
        Ok(())
    }

    fn close(&self) {
        {
            let mut at = self.at.lock();
            let (listener, watch) = (at.listener.take(), at.watch.take());
            if let Some(listener) = listener {
                watch.into_iter().for_each(|watch| watch.end(listener.as_fd()));
                // Nobody listens any more, even if a process that was forked off has the socket too.
                let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            }
        }
        let strangers = std::mem::take(&mut *self.strangers.lock());
        strangers.iter().for_each(|line| line.end());
    }

    /// Takes one in. `false`: nobody is there.
    fn let_in(&self) -> io::Result<bool> {
        let accepted = match &self.at.lock().listener {
            Some(listener) => tcp::accept(listener)?,
            None => None,
        };
        let Some((stream, peer)) = accepted else { return Ok(false) };
        self.at.lock().is_told = false;
        let host: Weak<dyn Host> = self.me.clone();
        let line = Line::new(&self.place, stream, peer, Talk::passive(), Some(host));
        let first = {
            let mut strangers = self.strangers.lock();
            strangers.push_back(line.clone());
            if strangers.len() > STRANGERS { strangers.pop_front() } else { None }
        };
        if let Some(first) = first {
            log::info!("{} has sent no whole request, and {STRANGERS} others wait: it must leave", first.peer);
            first.end();
        }
        line.begin();
        Ok(true)
    }

    fn forget(&self, line: &Arc<Line>) {
        self.strangers.lock().retain(|known| !Arc::ptr_eq(known, line));
    }

    /// Until there may be descriptors again: a listener that cannot accept would wake the engine without end.
    fn rest(&self, error: &io::Error) {
        let mut at = self.at.lock();
        if !std::mem::replace(&mut at.is_told, true) {
            log::error!("requests wait, but cannot be taken in: {error}");
        }
        let watch = at.watch.take();
        if let (Some(listener), Some(watch)) = (&at.listener, watch) {
            watch.end(listener.as_fd());
        }
        let me: Weak<dyn Source> = self.me.clone();
        self.place.reactor.after(REST, me, 0);
    }
}

impl Source for Door {
    fn ready(&self) {
        for _ in 0..AT_ONCE {
            match self.let_in() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.rest(&error),
            }
        }
    }

    fn expired(&self, _: u64) {
        if let Err(error) = self.watch() {
            self.rest(&error);
        }
    }
}

impl Host for Door {
    fn asked(&self, line: &Arc<Line>, hello: &Hello) {
        self.forget(line);
        let peer = SocketAddr::new(line.address(hello), line.peer.port());
        let private_data = hello.private_data.clone();
        let info = RequestInfo { peer, reported_len: private_data.len(), private_data };
        (self.place.arrived)(self.id, Box::new(Caller(Some(line.clone()))), info);
    }

    fn vanished(&self, line: &Arc<Line>) {
        self.forget(line);
    }
}

/// A request that waits for the consumer. Who refuses it for another reason just hangs up.
struct Caller(Option<Arc<Line>>);

impl Caller {
    fn accept_into(mut self, pair: Arc<dyn Pair>, private_data: &[u8], conn: ConnId) -> Result<()> {
        let line = self.0.take().ok_or(Error::Internal)?;
        line.accept(pair, private_data, conn)
    }
}

impl Waiting for Caller {
    fn accept(self: Box<Self>, qp: &Arc<Core>, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.accept_into(qp.clone(), private_data, conn)
    }

    fn refuse(mut self: Box<Self>, by: Refusal) {
        if by == Refusal::Consumer {
            self.0.take().into_iter().for_each(|line| line.refuse());
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|line| line.end());
    }
}
