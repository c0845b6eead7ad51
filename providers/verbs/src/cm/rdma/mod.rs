//! The connection manager `rdma`: connections by rdma_cm, with the ports, parameters and private data of the C
//! implementation (spec/endpoints 8, 9, 10).
//!
//! The active side resolves address and route, and sends a request. On the accept, it brings its queue pair to RTS and
//! sends a confirmation. On the passive side, a request waits for the consumer. The passive side brings its queue pair
//! to RTS before it sends the accept.
//!
//! After this process has ended a connection, or an attempt whose request was sent, its rdma_cm id is kept until the
//! peer has confirmed the disconnect or has replied to the attempt, or for a limited time. As long as the id exists,
//! the kernel repeats a DREQ that was lost. The engine thread reads all events. Each id has a number. An unknown number
//! means that the id was released: a request to a freed listener is rejected, and other events are at most logged.
#![forbid(unsafe_code)]

mod connection;
mod waiting;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use parking_lot::{Condvar, Mutex};
use rdma_cm_sys::*;

use self::connection::{ConnectTarget, RdmaConnection};
use self::waiting::RdmaRequest;
use super::{ListenGuard, Manager, WaitingRequest, request};
use crate::device::Device;
use crate::engine::{EventHandler, READ, WatchedDescriptor};
use crate::qp::{CmQueuePair, QpCore};
use crate::rdma_cm::{CmEvent, CmId, EventChannel};
use dapl_software::listener_retry::Retry;

/// Maximum length of a request's private data that is reported to the consumer on InfiniBand and RoCE, which always
/// deliver a longer, padded field (spec/endpoints 9.2). On iWARP the received length is reported.
const MAX_REQUEST_DATA: usize = 56;
/// Limit of the wait for confirmed disconnects when the IA closes. If an id is destroyed, a lost DREQ is not repeated,
/// and a peer that sends nothing never detects the disconnect. The kernel repeats the DREQ after 4.1 s (rdma_cm's
/// `CMA_CM_RESPONSE_TIMEOUT`) plus the path's timeout, at most 2 s over Ethernet.
const CLOSE_WAIT: Duration = Duration::from_secs(7);
/// Limit of the wait for a confirmed disconnect before the queue pair is used for a new attempt.
const REUSE_WAIT: Duration = Duration::from_millis(500);

/// The connection manager of one IA.
pub(crate) struct RdmaManager {
    me: Weak<RdmaManager>,
    device: Weak<Device>,
    address: IpAddr,
    is_iwarp: bool,
    channel: Arc<EventChannel>,
    watch: OnceLock<WatchedDescriptor>,
    numbers: AtomicUsize,
    owners: Mutex<HashMap<usize, EventOwner>>,
    /// Attempts that wait until the peer has confirmed the disconnect of their queue pair's last connection, by queue
    /// pair number. Without the wait, the peer or the local kernel would match a request or accept with this number to
    /// the last connection. Locked after `owners`.
    parked: Mutex<HashMap<u32, Arc<RdmaConnection>>>,
    /// Notified when an id is released.
    released: Condvar,
}

/// The object that handles an id's events.
#[derive(Clone)]
enum EventOwner {
    Listener(ObjectId),
    Link(Arc<RdmaConnection>),
    /// A request that waits for the consumer's decision. The flag is true if the requester has given up.
    Request(Arc<Mutex<bool>>),
    /// A connection or attempt that this process has ended. Its id is kept until the peer has confirmed the end of the
    /// connection or has replied to the attempt, until rdma_cm reports another end (`is_end`), or until a time limit
    /// (`DISCONNECT_WAIT`, `WITHDRAWAL`).
    Ended(Arc<RdmaConnection>),
}

impl RdmaManager {
    /// Creates the connection manager. Errors: `Exhausted(Device)` if the rdma_cm event channel cannot be created or
    /// watched. Logs the remedy.
    pub(crate) fn new(device: &Arc<Device>, address: IpAddr) -> Result<Arc<Self>> {
        let failed = |what: &str, error: io::Error| {
            log::error!(
                "{}: {what}: {error}; check that the kernel module rdma_ucm is loaded, that the user may open \
                 /dev/infiniband/rdma_cm, and the limit of open files (ulimit -n)",
                device.name
            );
            Error::Exhausted(Resource::Device)
        };
        let channel = EventChannel::new().map_err(|error| failed("cannot create an rdma_cm event channel", error))?;
        let manager = Arc::new_cyclic(|me| RdmaManager {
            me: Weak::clone(me),
            device: Arc::downgrade(device),
            address,
            is_iwarp: device.context.is_iwarp,
            channel,
            watch: OnceLock::new(),
            numbers: AtomicUsize::new(1),
            owners: Mutex::default(),
            parked: Mutex::default(),
            released: Condvar::new(),
        });
        let watch = device.engine.watch(manager.channel.fd(), READ, &manager.me);
        let _ = manager.watch.set(watch.map_err(|error| failed("cannot wait for rdma_cm events", error))?);
        Ok(manager)
    }

    fn number(&self) -> usize {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates a connection to `target`, and its id, which is bound to the IA's address if that is of the address family
    /// of the peer.
    fn new_link(&self, core: &Arc<QpCore>, target: ConnectTarget) -> io::Result<Arc<RdmaConnection>> {
        let number = self.number();
        let id = CmId::new(&self.channel, number)?;
        if target.peer.is_ipv4() == self.address.is_ipv4() {
            id.bind(SocketAddr::new(self.address, 0))?;
        }
        let link = RdmaConnection::new(self, number, Arc::new(id), core, target, None);
        self.owners.lock().insert(number, EventOwner::Link(link.clone()));
        Ok(link)
    }

    fn release(&self, number: usize) {
        let owner = self.owners.lock().remove(&number);
        self.released.notify_all();
        match &owner {
            Some(EventOwner::Ended(link)) => self.resume_attempt(link.qp),
            Some(EventOwner::Link(link)) => {
                let mut parked = self.parked.lock();
                if parked.get(&link.qp).is_some_and(|other| Arc::ptr_eq(other, link)) {
                    parked.remove(&link.qp);
                }
            }
            _ => {}
        }
        drop(owner);
    }

    /// Releases the id if this process has ended its connection or attempt. Called after an event that shows that the
    /// id need not be kept any longer: the peer has confirmed the disconnect, has accepted or rejected an abandoned
    /// attempt, or rdma_cm has reported another end (`is_end`).
    fn release_if_ended(&self, number: usize) {
        let is_ended = matches!(self.owners.lock().get(&number), Some(EventOwner::Ended(_)));
        if is_ended {
            self.release(number);
        }
    }

    /// Keeps the id of a connection or attempt that this process has ended, until [`Self::release_if_ended`] or a
    /// timeout releases the id.
    fn await_confirmation(&self, number: usize) {
        if let Some(owner) = self.owners.lock().get_mut(&number)
            && let EventOwner::Link(link) = owner
        {
            *owner = EventOwner::Ended(link.clone());
        }
    }

    /// Makes an attempt wait if the disconnect of its queue pair's last connection is not confirmed. Returns whether it
    /// waits.
    fn defer_attempt(&self, device: &Device, link: &Arc<RdmaConnection>) -> bool {
        let owners = self.owners.lock();
        let is_leaving = owners.values().any(|owner| matches!(owner, EventOwner::Ended(old) if old.qp == link.qp));
        if is_leaving {
            self.parked.lock().insert(link.qp, link.clone());
            device.engine.schedule(REUSE_WAIT, &self.me, link.number as u64);
        }
        is_leaving
    }

    /// Continues the attempt that waits for this queue pair, if any.
    fn resume_attempt(&self, qp: u32) {
        let parked = self.parked.lock().remove(&qp);
        if let (Some(link), Some(device)) = (parked, self.device.upgrade()) {
            let engine = device.engine.clone();
            engine.run_on_engine(move || link.continue_attempt(&device));
        }
    }

    fn handle(&self, device: &Arc<Device>, event: CmEvent) {
        let owner = self.owners.lock().get(&event.number).cloned();
        log::debug!("{}: event {} (status {}) of id {}", device.name, event.kind, event.status, event.number);
        match (event.kind, owner) {
            (RDMA_CM_EVENT_CONNECT_REQUEST, owner) => self.request(device, owner, event),
            (_, Some(EventOwner::Link(link))) => link.handle(self, &event),
            (kind, Some(EventOwner::Request(has_peer_ended))) if is_end(kind) => *has_peer_ended.lock() = true,
            (kind, Some(EventOwner::Ended(_))) if is_end(kind) => self.release_if_ended(event.number),
            // The peer has accepted an abandoned attempt. Destroying the id rejects the accept.
            (RDMA_CM_EVENT_CONNECT_RESPONSE, Some(EventOwner::Ended(_))) => self.release_if_ended(event.number),
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => {
                log::error!(
                    "{}: device {} is being removed; its connections end; close the IA",
                    device.name,
                    device.context.name()
                )
            }
            _ => {}
        }
    }

    fn request(&self, device: &Arc<Device>, owner: Option<EventOwner>, event: CmEvent) {
        let (Some((id, number)), Some(manager)) = (event.new, self.me.upgrade()) else { return };
        let id = Arc::new(id);
        let has_peer_ended = Arc::new(Mutex::new(false));
        let peer = id.peer().unwrap_or_else(|| SocketAddr::new(self.address, 0));
        let reported_len =
            if self.is_iwarp { event.private_data.len() } else { event.private_data.len().min(MAX_REQUEST_DATA) };
        self.owners.lock().insert(number, EventOwner::Request(has_peer_ended.clone()));
        let request = RdmaRequest { manager, number, id, params: event.params, has_peer_ended };
        let request = WaitingRequest::new(Arc::new(request));
        match owner {
            Some(EventOwner::Listener(listener)) => {
                let info = RequestInfo { peer, private_data: event.private_data, reported_len };
                request::arrived(device, listener, request, info);
            }
            // The listener was freed before this event was handled.
            _ => drop(request), // The drop rejects the request.
        }
    }
}

/// Whether an event of this kind ends the connection or attempt.
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

impl EventHandler for RdmaManager {
    fn ready(&self) {
        let Some(device) = self.device.upgrade() else { return };
        loop {
            match self.channel.next(|| self.number()) {
                Ok(Some(event)) => self.handle(&device, event),
                Ok(None) => return,
                Err(error) => {
                    log::error!(
                        "{}: cannot read rdma_cm events: {error}; connection events may not be reported until the IA is opened again",
                        device.name
                    );
                    return;
                }
            }
        }
    }

    /// Handles the end of a wait. Releases the id of an ended connection or attempt, repeats a request that found no
    /// listener, or continues an attempt that waits for the last connection of its queue pair.
    fn expired(&self, number: u64) {
        let owner = self.owners.lock().get(&(number as usize)).cloned();
        match owner {
            Some(EventOwner::Ended(_)) => self.release(number as usize),
            Some(EventOwner::Link(link)) if link.is_refused() => {
                let device = self.device.upgrade();
                device.into_iter().for_each(|device| link.retry(self, &device));
            }
            Some(EventOwner::Link(link)) => self.resume_attempt(link.qp),
            _ => {}
        }
    }
}

/// Returns the rdma_cm service port of a qualifier (spec/endpoints 10.1).
fn port_of(qual: u64) -> u16 {
    u16::try_from(qual).unwrap_or_else(|_| (qual % 32001 + 33534) as u16)
}

impl Manager for RdmaManager {
    fn listen(&self, qual: u64, id: ObjectId) -> Result<ListenGuard> {
        let number = self.number();
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EADDRINUSE | libc::EBUSY | libc::EADDRNOTAVAIL) => Error::ConnQualTaken,
            Some(libc::EACCES | libc::EPERM) => Error::PermissionDenied,
            _ => {
                log::error!(
                    "cannot listen on {}, port {} (qualifier {qual}): {error}; the call fails with DAT_INSUFFICIENT_RESOURCES",
                    self.address,
                    port_of(qual)
                );
                Error::Exhausted(Resource::Device)
            }
        };
        let listener = CmId::new(&self.channel, number).map_err(failed)?;
        listener.bind(SocketAddr::new(self.address, port_of(qual))).map_err(failed)?;
        self.owners.lock().insert(number, EventOwner::Listener(id));
        listener.listen(0).inspect_err(|_| self.release(number)).map_err(failed)?;
        let manager = self.me.clone();
        Ok(ListenGuard::new(move || {
            manager.upgrade().into_iter().for_each(|manager| manager.release(number));
            drop(listener);
        }))
    }

    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let unreachable = Error::InvalidAddress(AddressProblem::Unreachable);
        let PeerAddress::Ip(ip) = *spec.address else { return Err(unreachable) };
        // rdma_cm has no device for a loopback address, so the IA's own address is used.
        let ip = if ip.is_loopback() { self.address } else { ip };
        let Some(device) = self.device.upgrade() else { return Err(Error::Internal) };
        let failed = |error: io::Error| failure_of_connect(ip, &error);
        let target = ConnectTarget {
            peer: SocketAddr::new(ip, port_of(spec.qual)),
            private_data: spec.private_data.to_vec(),
            began: Instant::now(),
            retry: Retry::new(device.settings.listener_wait),
        };
        let link = self.new_link(qp, target).map_err(failed)?;
        let started = qp.attach(conn, link.clone()).and_then(|()| {
            let resolved = link.id.resolve_address(link.target.peer, device.settings.address_timeout);
            resolved.map_err(|error| {
                qp.detach(&*link);
                failed(error)
            })
        });
        started.inspect_err(|_| self.release(link.number))
    }

    fn close(&self) {
        let mut owners = self.owners.lock();
        let deadline = Instant::now() + CLOSE_WAIT;
        while owners.values().any(|owner| matches!(owner, EventOwner::Ended(_))) {
            if self.released.wait_until(&mut owners, deadline).timed_out() {
                break;
            }
        }
        let all = std::mem::take(&mut *owners);
        drop(owners);
        drop(all);
    }
}

/// Returns the error of a connect whose id cannot be created or bound, or whose address resolution cannot be started
/// (spec/endpoints 10.6).
fn failure_of_connect(peer: IpAddr, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
        Some(libc::EACCES) => Error::PermissionDenied,
        Some(libc::EAFNOSUPPORT) => Error::InvalidAddress(AddressProblem::Malformed),
        _ => {
            log::warn!("cannot resolve the address {peer}: {error}; check the routes of this host (ip route)");
            Error::InvalidAddress(AddressProblem::Unreachable)
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
