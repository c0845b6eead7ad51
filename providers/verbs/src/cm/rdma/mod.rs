//! The manager `rdma`: connections by rdma_cm, with the ports, parameters and private data of the C reference
//! (spec/endpoints 8, 9, 10).
//!
//! Active side: address, route, request. The answer brings the queue pair to RTS, and is confirmed. Passive side: a
//! request waits for the consumer; accepting brings the queue pair to RTS before the answer is sent. The id of an
//! ended connection is kept until the peer has confirmed the end, or for a limited time, because a DREQ may be lost.
//! The engine reads all events. Ids have numbers, so that an event of a released id is dropped.
#![forbid(unsafe_code)]

mod link;
mod waiting;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::{Condvar, Mutex};
use rdma_cm_sys::*;

use self::link::{RdmaLink, Target};
use self::waiting::RdmaRequest;
use super::{Listening, Manager, Refusal, Waiting, request};
use crate::device::Device;
use crate::engine::{Interest, Source, Watch};
use crate::qp::QpCore;
use crate::rdma_cm::{Event, EventChannel, Id};
use dapl_software::listener_retry::Retry;

/// Length of a request's private data as reported to the consumer, where the transport always carries more (spec/endpoints
/// 9.2).
const REPORTED: usize = 56;
/// Time that ended connections wait for the peer's confirmation when the IA closes. An id that is destroyed does not
/// repeat its DREQ, and a peer without traffic would never detect the end. The kernel repeats the DREQ after 4.1 s
/// (rdma_cm's `CMA_CM_RESPONSE_TIMEOUT`) plus the path's timeout, at most 2 s over Ethernet.
const CLOSE_WAIT: Duration = Duration::from_secs(7);
/// The same time for a queue pair that is already used to connect to another peer.
const TURN: Duration = Duration::from_millis(500);

/// The manager of one IA.
pub(crate) struct Rdma {
    me: Weak<Rdma>,
    device: Weak<Device>,
    address: IpAddr,
    is_iwarp: bool,
    channel: Arc<EventChannel>,
    watch: OnceLock<Watch>,
    numbers: AtomicUsize,
    known: Mutex<HashMap<usize, EventOwner>>,
    /// Attempts that wait until the end of their queue pair's last connection is confirmed, by queue pair number.
    /// Without the wait, the peer or the local kernel would assign the request or the answer to that connection.
    /// Locked after `known`.
    parked: Mutex<HashMap<u32, Arc<RdmaLink>>>,
    /// Notified when an id is released.
    gone: Condvar,
}

/// The object that handles an id's events.
#[derive(Clone)]
enum EventOwner {
    Listener(ObjectId),
    Link(Arc<RdmaLink>),
    /// A request that waits for the consumer; true if its requester has left.
    Waiting(Arc<Mutex<bool>>),
    /// A connection that was ended here and not confirmed by the peer. Its id must be kept.
    Ended(Arc<RdmaLink>),
}

impl Rdma {
    /// Errors: rdma_cm is not available, which is logged with the remedy.
    pub(crate) fn new(device: &Arc<Device>, address: IpAddr) -> Result<Arc<Self>> {
        let failed = |what: &str, error: io::Error| {
            log::error!(
                "{}: {what}: {error}; is the kernel module rdma_ucm loaded, and may /dev/infiniband/rdma_cm be opened?",
                device.name
            );
            Error::Exhausted(Resource::Device)
        };
        let channel = EventChannel::new().map_err(|error| failed("no rdma_cm event channel", error))?;
        let manager = Arc::new_cyclic(|me| Rdma {
            me: Weak::clone(me),
            device: Arc::downgrade(device),
            address,
            is_iwarp: device.context.is_iwarp(),
            channel,
            watch: OnceLock::new(),
            numbers: AtomicUsize::new(1),
            known: Mutex::default(),
            parked: Mutex::default(),
            gone: Condvar::new(),
        });
        let source: Weak<dyn Source> = manager.me.clone();
        let watch = device.reactor.watch(manager.channel.fd(), Interest::Read, source);
        let _ = manager.watch.set(watch.map_err(|error| failed("the rdma_cm event channel cannot be watched", error))?);
        Ok(manager)
    }

    fn number(&self) -> usize {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns an id bound to the local address from which `peer` can be reached.
    fn bound_id(&self, number: usize, peer: IpAddr) -> io::Result<Id> {
        let id = Id::new(&self.channel, number)?;
        if peer.is_ipv4() == self.address.is_ipv4() {
            id.bind(SocketAddr::new(self.address, 0))?;
        }
        Ok(id)
    }

    fn forget(&self, number: usize) {
        let gone = self.known.lock().remove(&number);
        self.gone.notify_all();
        match &gone {
            Some(EventOwner::Ended(link)) => self.unpark(link.qp),
            Some(EventOwner::Link(link)) => {
                let mut parked = self.parked.lock();
                if parked.get(&link.qp).is_some_and(|other| Arc::ptr_eq(other, link)) {
                    parked.remove(&link.qp);
                }
            }
            _ => {}
        }
        drop(gone);
    }

    /// Handles the peer's confirmation of the end.
    fn has_left(&self, number: usize) {
        let is_ended = matches!(self.known.lock().get(&number), Some(EventOwner::Ended(_)));
        if is_ended {
            self.forget(number);
        }
    }

    /// Keeps the id of a connection that this side has ended, until the peer confirms the end.
    fn await_confirmation(&self, number: usize) {
        if let Some(known) = self.known.lock().get_mut(&number)
            && let EventOwner::Link(link) = known
        {
            *known = EventOwner::Ended(link.clone());
        }
    }

    /// Makes an attempt wait if its queue pair has a connection whose end is not confirmed. Returns whether it waits.
    fn park(&self, device: &Device, link: &Arc<RdmaLink>) -> bool {
        let known = self.known.lock();
        let is_leaving = known.values().any(|known| matches!(known, EventOwner::Ended(old) if old.qp == link.qp));
        if is_leaving {
            self.parked.lock().insert(link.qp, link.clone());
            let source: Weak<dyn Source> = self.me.clone();
            device.reactor.after(TURN, source, link.number as u64);
        }
        is_leaving
    }

    /// Continues the attempt that waits for this queue pair, if any.
    fn unpark(&self, qp: u32) {
        let parked = self.parked.lock().remove(&qp);
        if let (Some(link), Some(device)) = (parked, self.device.upgrade()) {
            let reactor = device.reactor.clone();
            reactor.soon(move || link.go_on(&device));
        }
    }

    fn handle(&self, device: &Arc<Device>, event: Event) {
        let known = self.known.lock().get(&event.number).cloned();
        log::debug!("{}: event {} (status {}) of id {}", device.name, event.kind, event.status, event.number);
        match (event.kind, known) {
            (RDMA_CM_EVENT_CONNECT_REQUEST, known) => self.request(device, known, event),
            (_, Some(EventOwner::Link(link))) => link.handle(self, &event),
            (kind, Some(EventOwner::Waiting(has_left))) if is_end(kind) => *has_left.lock() = true,
            (kind, Some(EventOwner::Ended(_))) if is_end(kind) => self.has_left(event.number),
            // The peer has accepted an attempt that was abandoned. Destroying its id rejects the answer.
            (RDMA_CM_EVENT_CONNECT_RESPONSE, Some(EventOwner::Ended(_))) => self.has_left(event.number),
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => log::error!("{}: the device is being removed", device.name),
            _ => {}
        }
    }

    fn request(&self, device: &Arc<Device>, known: Option<EventOwner>, event: Event) {
        let (Some((id, number)), Some(manager)) = (event.new, self.me.upgrade()) else { return };
        let id = Arc::new(id);
        let has_left = Arc::new(Mutex::new(false));
        let peer = id.peer().unwrap_or_else(|| SocketAddr::new(self.address, 0));
        let reported_len =
            if self.is_iwarp { event.private_data.len() } else { event.private_data.len().min(REPORTED) };
        self.known.lock().insert(number, EventOwner::Waiting(has_left.clone()));
        let request = RdmaRequest { manager, number, id: Some(id), terms: event.terms, has_left };
        match known {
            Some(EventOwner::Listener(listener)) => {
                let info = RequestInfo { peer, private_data: event.private_data, reported_len };
                request::arrived(device, listener, Box::new(request), info);
            }
            // The id was released meanwhile.
            _ => Box::new(request).refuse(Refusal::NoListener),
        }
    }
}

/// Whether an event of this kind is the last one of its id.
fn is_end(kind: rdma_cm_event_type) -> bool {
    matches!(
        kind,
        RDMA_CM_EVENT_DISCONNECTED
            | RDMA_CM_EVENT_REJECTED
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_TIMEWAIT_EXIT
            | RDMA_CM_EVENT_DEVICE_REMOVAL
    )
}

impl Source for Rdma {
    fn ready(&self) {
        let Some(device) = self.device.upgrade() else { return };
        loop {
            match self.channel.next(|| self.number()) {
                Ok(Some(event)) => self.handle(&device, event),
                Ok(None) => return,
                Err(error) => {
                    log::error!("{}: rdma_cm events cannot be read: {error}", device.name);
                    return;
                }
            }
        }
    }

    /// Called when the waiting time of an ended id, or of an attempt, has passed.
    fn expired(&self, number: u64) {
        let known = self.known.lock().get(&(number as usize)).cloned();
        match known {
            Some(EventOwner::Ended(_)) => self.forget(number as usize),
            Some(EventOwner::Link(link)) if link.is_refused() => {
                let device = self.device.upgrade();
                device.into_iter().for_each(|device| link.retry(self, &device));
            }
            Some(EventOwner::Link(link)) => self.unpark(link.qp),
            _ => {}
        }
    }
}

/// The service port of a qualifier (10.1).
fn port_of(qual: u64) -> u16 {
    u16::try_from(qual).unwrap_or_else(|_| (qual % 32001 + 33534) as u16)
}

impl Manager for Rdma {
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listening> {
        let number = self.number();
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EADDRINUSE | libc::EBUSY | libc::EADDRNOTAVAIL) => Error::ConnQualTaken,
            Some(libc::EACCES | libc::EPERM) => Error::PermissionDenied,
            _ => {
                log::error!("cannot listen on {}, port {}: {error}", self.address, port_of(qual));
                Error::Exhausted(Resource::Device)
            }
        };
        let listener = Id::new(&self.channel, number).map_err(failed)?;
        listener.bind(SocketAddr::new(self.address, port_of(qual))).map_err(failed)?;
        self.known.lock().insert(number, EventOwner::Listener(id));
        let listening = RdmaListener { manager: self.me.clone(), number, _id: listener };
        listening._id.listen(0).map_err(failed)?;
        Ok(Box::new(listening))
    }

    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let unreachable = Error::InvalidAddress(Address::Unreachable);
        let PeerAddress::Ip(ip) = *spec.address else { return Err(unreachable) };
        // Another address of this host.
        let ip = if ip.is_loopback() { self.address } else { ip };
        let Some(device) = self.device.upgrade() else { return Err(Error::Internal) };
        let number = self.number();
        let failed = |error: io::Error| failure_of_connect(ip, &error);
        let id = self.bound_id(number, ip).map_err(failed)?;
        let resolving = device.settings.resolving;
        let target = Target {
            peer: SocketAddr::new(ip, port_of(spec.qual)),
            private_data: spec.private_data.to_vec(),
            began: Instant::now(),
            retry: Retry::new(device.settings.listener_wait),
        };
        let link = Arc::new(RdmaLink::active(self, number, id, qp, target));
        self.known.lock().insert(number, EventOwner::Link(link.clone()));
        let started = qp.attach(conn, link.clone()).and_then(|()| {
            let resolved = link.id.resolve_address(link.target.peer, resolving.address_timeout);
            resolved.map_err(|error| {
                qp.detach(&*link);
                failed(error)
            })
        });
        started.inspect_err(|_| self.forget(number))
    }

    fn close(&self) {
        let mut known = self.known.lock();
        let deadline = Instant::now() + CLOSE_WAIT;
        while known.values().any(|known| matches!(known, EventOwner::Ended(_))) {
            if self.gone.wait_until(&mut known, deadline).timed_out() {
                break;
            }
        }
        let all = std::mem::take(&mut *known);
        drop(known);
        drop(all);
    }
}

/// The return code of a connect that fails at once (spec/endpoints 10.6).
fn failure_of_connect(peer: IpAddr, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
        Some(libc::EACCES) => Error::PermissionDenied,
        Some(libc::EAFNOSUPPORT) => Error::InvalidAddress(Address::Malformed),
        _ => {
            log::warn!("{peer} cannot be reached: {error}");
            Error::InvalidAddress(Address::Unreachable)
        }
    }
}

/// A listening id.
struct RdmaListener {
    manager: Weak<Rdma>,
    number: usize,
    _id: Id,
}

impl Drop for RdmaListener {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.upgrade() {
            manager.forget(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_equal_those_of_the_c_implementation() {
        assert_eq!([45248, 0xFFFF, 0x10000, 70000, 35068].map(port_of), [45248, 65535, 35068, 39532, 35068]);
        assert!((0xFFFF..200_000).chain([u64::MAX]).all(|qual| port_of(qual) >= 33534));
    }
}
