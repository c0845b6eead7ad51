//! The manager `rdma`: connections by rdma_cm, with the ports, parameters and private data of the C reference's.
//!
//! Active: address, route, request; the answer brings the queue pair to RTS, and is confirmed. Passive: a request waits for
//! the consumer; accepting brings the queue pair to RTS before the answer goes. An id that has ended lives on until the
//! peer has confirmed that, or for a while, since a goodbye may be lost. Everything is answered by events, which the engine
//! reads; ids have numbers, so that an event of one that is gone finds nobody. (endpoints-connections.md 8, 9, 10.)
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use dapl::error::{Address, Error, Resource, Result};
use dapl::handle::ObjectId;
use dapl::provider::{CmEvent, ConnId, ConnectSpec, PeerAddress, RequestInfo};
use ibverbs_sys::{ibv_qp_attr_mask, ibv_qp_state};
use parking_lot::{Condvar, Mutex};
use rdma_cm_sys::*;

use super::{Link, Listening, Manager, Path, Refusal, Waiting};
use crate::device::Device;
use crate::qp::Core;
use crate::rdma_cm::{Event, EventChannel, Id, Terms};
use crate::reactor::{Interest, Source, Watch};

/// What the consumer is told of a request's private data, where the transport always carries more (9.2).
const TOLD: usize = 48;
/// Of an accept's.
const ACCEPTED: usize = 196;
/// An answer that says no as the consumer's decision: DAT's version and ours, one byte each (10.4).
const REJECTION: [u8; 4] = [1, 2, 1, 2];
/// How long a peer may take to hear that the last connection of a queue pair is over.
const STALE: Duration = Duration::from_secs(10);
/// How long an ended connection waits for the peer's confirmation.
const LINGER: Duration = Duration::from_secs(30);
/// The same when the IA closes.
const FAREWELL: Duration = Duration::from_millis(300);
/// The same when its queue pair has another peer to ask already.
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
    known: Mutex<HashMap<usize, Known>>,
    /// Attempts that wait until the last connection of their queue pair has been confirmed to be over, by its number. The
    /// peer, or the kernel here, would take the request or the answer for one of that connection. Taken after `known`.
    parked: Mutex<HashMap<u32, Arc<RdmaLink>>>,
    /// Somebody is not known any more.
    gone: Condvar,
}

/// Whose events these are.
#[derive(Clone)]
enum Known {
    Listener(ObjectId),
    Link(Arc<RdmaLink>),
    /// A request that waits for the consumer; true when its peer has left.
    Waiting(Arc<Mutex<bool>>),
    /// Ended here; the peer is to confirm it. Its id must live.
    Ended(Arc<RdmaLink>),
}

impl Rdma {
    /// Errors: no rdma_cm here, which is logged with the remedy.
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

    /// An id of ours to reach `peer` by.
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
            Some(Known::Ended(link)) => self.unpark(link.qp),
            Some(Known::Link(link)) => {
                let mut parked = self.parked.lock();
                if parked.get(&link.qp).is_some_and(|other| Arc::ptr_eq(other, link)) {
                    parked.remove(&link.qp);
                }
            }
            _ => {}
        }
        drop(gone);
    }

    /// The peer has confirmed the end.
    fn has_left(&self, number: usize) {
        let is_ended = matches!(self.known.lock().get(&number), Some(Known::Ended(_)));
        if is_ended {
            self.forget(number);
        }
    }

    /// A connection has ended here, and its peer was told.
    fn let_leave(&self, number: usize) {
        if let Some(known) = self.known.lock().get_mut(&number)
            && let Known::Link(link) = known
        {
            *known = Known::Ended(link.clone());
        }
    }

    /// Lets an attempt wait, if its queue pair has a connection that is not confirmed to be over.
    fn park(&self, device: &Device, link: &Arc<RdmaLink>) -> bool {
        let known = self.known.lock();
        let is_leaving = known.values().any(|known| matches!(known, Known::Ended(old) if old.qp == link.qp));
        if is_leaving {
            self.parked.lock().insert(link.qp, link.clone());
            let source: Weak<dyn Source> = self.me.clone();
            device.reactor.after(TURN, source, link.number as u64);
        }
        is_leaving
    }

    /// It need not wait any longer.
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
            (_, Some(Known::Link(link))) => link.handle(self, &event),
            (kind, Some(Known::Waiting(has_left))) if is_end(kind) => *has_left.lock() = true,
            (kind, Some(Known::Ended(_))) if is_end(kind) => self.has_left(event.number),
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => log::error!("{}: the device is being removed", device.name),
            _ => {}
        }
    }

    fn request(&self, device: &Arc<Device>, known: Option<Known>, event: Event) {
        let (Some((id, number)), Some(manager)) = (event.new, self.me.upgrade()) else { return };
        let id = Arc::new(id);
        let has_left = Arc::new(Mutex::new(false));
        let peer = id.peer().unwrap_or_else(|| SocketAddr::new(self.address, 0));
        let told = if self.is_iwarp { event.private_data.len() } else { event.private_data.len().min(TOLD) };
        self.known.lock().insert(number, Known::Waiting(has_left.clone()));
        let request = RdmaRequest { manager, number, id: Some(id), terms: event.terms, has_left };
        match known {
            Some(Known::Listener(listener)) => {
                let info = RequestInfo { peer, private_data: event.private_data, told };
                device.arrived(listener, Box::new(request), info);
            }
            // It was freed meanwhile.
            _ => Box::new(request).refuse(Refusal::Nobody),
        }
    }
}

/// Whether an event of this kind is the last that matters.
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

    /// An ended id has waited long enough, or an attempt for one.
    fn expired(&self, number: u64) {
        let known = self.known.lock().get(&(number as usize)).cloned();
        match known {
            Some(Known::Ended(_)) => self.forget(number as usize),
            Some(Known::Link(link)) => self.unpark(link.qp),
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
        self.known.lock().insert(number, Known::Listener(id));
        let listening = RdmaListener { manager: self.me.clone(), number, _id: listener };
        listening._id.listen(0).map_err(failed)?;
        Ok(Box::new(listening))
    }

    fn connect(&self, qp: &Arc<Core>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        let unreachable = Error::InvalidAddress(Address::Unreachable);
        let PeerAddress::Ip(ip) = *spec.address else { return Err(unreachable) };
        // A host's own address by another name.
        let ip = if ip.is_loopback() { self.address } else { ip };
        let Some(device) = self.device.upgrade() else { return Err(Error::Internal) };
        let number = self.number();
        let failed = |error: io::Error| failure_of_connect(ip, &error);
        let id = self.bound_id(number, ip).map_err(failed)?;
        let resolving = device.knobs.resolving;
        let target = Target {
            peer: SocketAddr::new(ip, port_of(spec.qual)),
            private_data: spec.private_data.to_vec(),
            began: Instant::now(),
        };
        let link = Arc::new(RdmaLink::active(self, &device, number, id, qp, target));
        self.known.lock().insert(number, Known::Link(link.clone()));
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
        let deadline = Instant::now() + FAREWELL;
        while known.values().any(|known| matches!(known, Known::Ended(_))) {
            if self.gone.wait_until(&mut known, deadline).timed_out() {
                break;
            }
        }
        let all = std::mem::take(&mut *known);
        drop(known);
        drop(all);
    }
}

/// What the caller of connect hears of what can be seen at once (10.6).
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

/// Where a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// Address or route.
    Resolving,
    /// The request is out.
    Requested,
    /// The answer is out.
    Accepted,
    Established,
    Ended,
}

/// What an attempt is for.
#[derive(Clone)]
struct Target {
    peer: SocketAddr,
    private_data: Vec<u8>,
    began: Instant,
}

/// A connection or attempt.
struct RdmaLink {
    manager: Weak<Rdma>,
    number: usize,
    id: Arc<Id>,
    core: Weak<Core>,
    /// The number of its queue pair.
    qp: u32,
    target: Target,
    /// The peer has said goodbye: there is nothing to wait for.
    has_left: AtomicBool,
    /// What the request that it accepts is to be told.
    answer: Mutex<Option<(Terms, Vec<u8>)>>,
    /// Left of address and route.
    tries: [AtomicU32; 2],
    stage: Mutex<Stage>,
}

impl RdmaLink {
    fn active(manager: &Rdma, device: &Device, number: usize, id: Id, core: &Arc<Core>, target: Target) -> Self {
        let resolving = device.knobs.resolving;
        RdmaLink {
            manager: manager.me.clone(),
            number,
            id: Arc::new(id),
            core: Arc::downgrade(core),
            qp: core.number(),
            target,
            has_left: AtomicBool::new(false),
            answer: Mutex::new(None),
            tries: [AtomicU32::new(resolving.address_tries), AtomicU32::new(resolving.route_tries)],
            stage: Mutex::new(Stage::Resolving),
        }
    }

    fn handle(self: &Arc<Self>, manager: &Rdma, event: &Event) {
        if is_end(event.kind) {
            self.has_left.store(true, Ordering::SeqCst);
        }
        let (Some(core), Some(device)) = (self.core.upgrade(), manager.device.upgrade()) else { return };
        if !core.has(&**self) {
            // Ended here in this moment; whichever is later, this or `end`, sees the other.
            if is_end(event.kind) {
                manager.has_left(self.number);
            }
            return;
        }
        let step = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => self.resolve_route(&device),
            RDMA_CM_EVENT_ROUTE_RESOLVED if manager.park(&device, self) => Ok(()),
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.request(&device, &core),
            RDMA_CM_EVENT_ADDR_ERROR => self.again(&device, event, 0),
            RDMA_CM_EVENT_ROUTE_ERROR => self.again(&device, event, 1),
            RDMA_CM_EVENT_CONNECT_RESPONSE => self.confirm(&device, &core, event),
            RDMA_CM_EVENT_ESTABLISHED => {
                self.establish(&core, &[]);
                Ok(())
            }
            RDMA_CM_EVENT_REJECTED if event.status == IB_CM_REJ_STALE_CONN && self.may_ask_again() => {
                self.once_more(manager, &device, &core)
            }
            kind if is_end(kind) => {
                if kind == RDMA_CM_EVENT_DISCONNECTED && *self.stage.lock() == Stage::Accepted {
                    // A goodbye may overtake the confirmation: who sends one has been connected.
                    self.establish(&core, &[]);
                }
                Err(self.meaning_of(event))
            }
            _ => Ok(()),
        };
        if let Err(end) = step {
            core.over(&**self, end);
        }
    }

    /// The last connection of the queue pair is confirmed to be over, or has had its time.
    fn go_on(&self, device: &Device) {
        let Some(core) = self.core.upgrade().filter(|core| core.has(self)) else { return };
        let stage = *self.stage.lock();
        let gone_on = match stage {
            Stage::Resolving => self.request(device, &core),
            Stage::Accepted => self.accept(device, &core).map_err(|error| self.cannot_accept(&error)),
            _ => Ok(()),
        };
        if let Err(end) = gone_on {
            core.over(self, end);
        }
    }

    /// Brings the queue pair to RTS and answers the request.
    fn accept(&self, device: &Device, core: &Core) -> io::Result<()> {
        let Some((terms, private_data)) = self.answer.lock().take() else { return Ok(()) };
        let mut path = path_of(&self.id, device, Some(&terms))?;
        core.raise(self, &mut path)?;
        self.id.accept(&terms, &private_data)
    }

    /// Mostly the peer has left.
    fn cannot_accept(&self, error: &io::Error) -> CmEvent<'static> {
        log::info!("the request of {} cannot be accepted: {error}", self.target.peer);
        CmEvent::AcceptFailed
    }

    /// Who asked may ask again for a while.
    fn may_ask_again(&self) -> bool {
        *self.stage.lock() == Stage::Requested && self.target.began.elapsed() < STALE
    }

    /// The peer has not heard yet that the last connection of this queue pair is over. It has now, so it is asked again.
    fn once_more(
        &self,
        manager: &Rdma,
        device: &Device,
        core: &Arc<Core>,
    ) -> std::result::Result<(), CmEvent<'static>> {
        let number = manager.number();
        let id = manager.bound_id(number, self.target.peer.ip());
        let id = id.map_err(|error| self.broken("cannot ask again", &error))?;
        let link = Arc::new(RdmaLink::active(manager, device, number, id, core, self.target.clone()));
        manager.known.lock().insert(number, Known::Link(link.clone()));
        if !core.relink(self, link.clone()) {
            manager.forget(number);
            return Ok(());
        }
        manager.forget(self.number);
        let resolved = link.id.resolve_address(link.target.peer, device.knobs.resolving.address_timeout);
        if let Err(error) = resolved {
            core.over(&*link, self.broken("cannot ask again", &error));
        }
        Ok(())
    }

    /// Why it is over (8.1, 8.2).
    fn meaning_of(&self, event: &Event) -> CmEvent<'static> {
        let stage = *self.stage.lock();
        match (stage, event.kind) {
            (Stage::Accepted, _) => CmEvent::AcceptFailed,
            (_, RDMA_CM_EVENT_REJECTED) if event.status == IB_CM_REJ_CONSUMER_DEFINED => CmEvent::PeerRejected,
            (_, RDMA_CM_EVENT_REJECTED) => {
                log::debug!("{} refuses: reason {}", self.target.peer, event.status);
                CmEvent::Rejected
            }
            (_, RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR) => CmEvent::Unreachable,
            (_, RDMA_CM_EVENT_DEVICE_REMOVAL) => CmEvent::Broken,
            _ => CmEvent::Disconnected,
        }
    }

    fn resolve_route(&self, device: &Device) -> std::result::Result<(), CmEvent<'static>> {
        if let Some(tos) = device.knobs.resolving.type_of_service
            && let Err(error) = self.id.set_type_of_service(tos)
        {
            log::warn!("type of service {tos} cannot be set: {error}");
        }
        self.id.resolve_route(device.knobs.resolving.route_timeout).map_err(|error| self.broken("no route", &error))
    }

    /// Address or route did not answer: once more, if that is why.
    fn again(&self, device: &Device, event: &Event, which: usize) -> std::result::Result<(), CmEvent<'static>> {
        let left = self.tries[which].load(Ordering::Relaxed).saturating_sub(1);
        self.tries[which].store(left, Ordering::Relaxed);
        if event.status != -libc::ETIMEDOUT || left == 0 {
            let what = ["address", "route"][which];
            log::info!(
                "{}: no {what} found: {}",
                self.target.peer,
                io::Error::from_raw_os_error(event.status.saturating_abs())
            );
            return Err(CmEvent::Unreachable);
        }
        let resolving = device.knobs.resolving;
        let started = match which {
            0 => self.id.resolve_address(self.target.peer, resolving.address_timeout),
            _ => self.id.resolve_route(resolving.route_timeout),
        };
        started.map_err(|error| self.broken("cannot ask again", &error))
    }

    fn request(&self, device: &Device, core: &Core) -> std::result::Result<(), CmEvent<'static>> {
        if self.id.port() != device.port {
            log::warn!("{}: the way to {} leads through port {}", device.name, self.target.peer, self.id.port());
        }
        let (reads, path) = (core.reads(), device.knobs.path);
        let terms = Terms {
            responder_resources: reads.incoming,
            initiator_depth: reads.outgoing,
            flow_control: 1,
            retry_count: path.ack_retry,
            rnr_retry_count: path.rnr_retry,
            srq: core.has_shared_queue(),
            qp_number: core.number(),
        };
        *self.stage.lock() = Stage::Requested;
        self.id
            .connect(&terms, &self.target.private_data)
            .map_err(|error| self.broken("the request cannot be sent", &error))
    }

    /// The peer has accepted.
    fn confirm(&self, device: &Device, core: &Core, event: &Event) -> std::result::Result<(), CmEvent<'static>> {
        let raised = path_of(&self.id, device, None).and_then(|mut path| core.raise(self, &mut path));
        match raised.and_then(|is_ours| if is_ours { self.id.establish() } else { Ok(()) }) {
            Ok(()) => {
                self.establish(core, &event.private_data);
                Ok(())
            }
            Err(error) => {
                log::error!("{} has accepted, but the queue pair cannot be connected: {error}", self.target.peer);
                Err(CmEvent::Unreachable)
            }
        }
    }

    fn establish(&self, core: &Core, private_data: &[u8]) {
        {
            let mut stage = self.stage.lock();
            if !matches!(*stage, Stage::Requested | Stage::Accepted) {
                return;
            }
            *stage = Stage::Established;
        }
        core.established(self, &private_data[..private_data.len().min(ACCEPTED)]);
    }

    fn broken(&self, what: &str, error: &io::Error) -> CmEvent<'static> {
        log::error!("connection to {}: {what}: {error}", self.target.peer);
        CmEvent::Broken
    }
}

/// From INIT to RTS, as the id knows the way; `terms` on the passive side, where it does not know the depths yet.
fn path_of(id: &Id, device: &Device, terms: Option<&Terms>) -> io::Result<Path> {
    let init = id.change(ibv_qp_state::IBV_QPS_INIT)?;
    let mut to_receive = id.change(ibv_qp_state::IBV_QPS_RTR)?;
    let mut to_send = id.change(ibv_qp_state::IBV_QPS_RTS)?;
    let knobs = device.knobs.path;
    to_receive.attributes.min_rnr_timer = knobs.rnr_timer;
    to_receive.mask |= ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
    if let Some(terms) = terms {
        to_receive.attributes.max_dest_rd_atomic = terms.responder_resources;
        to_send.attributes.max_rd_atomic = terms.initiator_depth;
    }
    // What the kernel takes for Ethernet is seconds: a lost packet would be noticed as late.
    if device.is_ethernet() {
        to_send.attributes.timeout = to_send.attributes.timeout.min(knobs.ack_timer);
    }
    Ok(Path { init: Some(init), to_receive, to_send })
}

impl Link for RdmaLink {
    fn end(&self) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Ended);
        let Some(manager) = self.manager.upgrade() else { return };
        let said = stage == Stage::Established && self.id.disconnect().is_ok();
        if !said || self.has_left.load(Ordering::SeqCst) {
            // Whatever is under way ends with the id, and a peer that waits for us is told.
            return manager.forget(self.number);
        }
        manager.let_leave(self.number);
        if self.has_left.load(Ordering::SeqCst) {
            return manager.has_left(self.number);
        }
        if let Some(device) = manager.device.upgrade() {
            let source: Weak<dyn Source> = manager.me.clone();
            device.reactor.after(LINGER, source, self.number as u64);
        }
    }

    fn peer_is_there(&self) {
        if *self.stage.lock() == Stage::Accepted
            && let Err(error) = self.id.notify()
        {
            log::debug!("{}: the connection stands already: {error}", self.target.peer);
        }
    }
}

/// A request that waits for the consumer.
struct RdmaRequest {
    manager: Arc<Rdma>,
    number: usize,
    id: Option<Arc<Id>>,
    terms: Terms,
    has_left: Arc<Mutex<bool>>,
}

impl Waiting for RdmaRequest {
    fn accept(mut self: Box<Self>, qp: &Arc<Core>, private_data: &[u8], conn: ConnId) -> Result<()> {
        let (Some(id), Some(device)) = (self.id.take(), self.manager.device.upgrade()) else {
            return Err(Error::Internal);
        };
        let reads = qp.reads();
        let terms = Terms {
            responder_resources: self.terms.responder_resources.min(reads.incoming),
            initiator_depth: self.terms.initiator_depth.min(reads.outgoing),
            srq: qp.has_shared_queue(),
            qp_number: qp.number(),
            ..self.terms
        };
        let link = Arc::new(RdmaLink {
            manager: Arc::downgrade(&self.manager),
            number: self.number,
            target: Target {
                peer: id.peer().unwrap_or_else(|| SocketAddr::new(self.manager.address, 0)),
                private_data: Vec::new(),
                began: Instant::now(),
            },
            id,
            core: Arc::downgrade(qp),
            qp: qp.number(),
            has_left: AtomicBool::new(false),
            answer: Mutex::new(Some((terms, private_data.to_vec()))),
            tries: Default::default(),
            stage: Mutex::new(Stage::Accepted),
        });
        qp.attach(conn, link.clone()).inspect_err(|_| self.manager.forget(self.number))?;
        self.manager.known.lock().insert(self.number, Known::Link(link.clone()));
        let accepted = match *self.has_left.lock() {
            true => Err(io::ErrorKind::NotConnected.into()),
            false if self.manager.park(&device, &link) => Ok(()),
            false => link.accept(&device, qp),
        };
        if let Err(error) = accepted {
            // The consumer hears of that as of everything else: by an event.
            link.cannot_accept(&error);
            let core = qp.clone();
            device.reactor.soon(move || core.over(&*link, CmEvent::AcceptFailed));
        }
        Ok(())
    }

    fn refuse(mut self: Box<Self>, by: Refusal) {
        if let Some(id) = self.id.take() {
            self.say_no(&id, by);
        }
    }
}

impl RdmaRequest {
    fn say_no(&self, id: &Id, by: Refusal) {
        let said = match by {
            Refusal::Consumer => id.reject(&REJECTION),
            Refusal::Nobody => id.turn_away().or_else(|_| id.reject(&REJECTION)),
        };
        if let Err(error) = said {
            log::debug!("a request that is refused has left already: {error}");
        }
        self.manager.forget(self.number);
    }
}

impl Drop for RdmaRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.say_no(&id, Refusal::Nobody);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_the_references() {
        assert_eq!([45248, 0xFFFF, 0x10000, 70000, 35068].map(port_of), [45248, 65535, 35068, 39532, 35068]);
        assert!((0xFFFF..200_000).chain([u64::MAX]).all(|qual| port_of(qual) >= 33534));
    }
}
