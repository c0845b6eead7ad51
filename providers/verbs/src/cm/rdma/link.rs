//! A connection of the manager `rdma`, or an attempt: handles each event of its rdma_cm id.
//!
//! Active: address, route, request, confirmation. Passive: the answer to a request.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::ConnectionEvent;
use ibverbs_sys::{ibv_qp_attr_mask, ibv_qp_state};
use parking_lot::Mutex;
use rdma_cm_sys::*;

use super::waiting::REJECTION;
use super::{EventOwner, Rdma, is_end};
use crate::device::Device;
use crate::engine::Source;
use crate::qp::state::Path;
use crate::qp::{CmConnection, QpCore};
use crate::rdma_cm::{Event, Id, Terms};
use dapl_software::listener_retry::Retry;

/// Length of an accept's private data as reported to the consumer (spec/endpoints 9.2).
const ACCEPTED: usize = 196;
/// Time that a peer may need to detect that the last connection of a queue pair has ended.
const STALE: Duration = Duration::from_secs(10);
/// Time that an ended connection waits for the peer's confirmation.
const LINGER: Duration = Duration::from_secs(30);
/// How long the id of an abandoned attempt is kept. Destroying it makes the kernel send a REJ. The peer's kernel
/// handles messages on several processors, so it may handle the REJ before the REQ. It then ignores the REJ, and its
/// REP stays unanswered for a minute. The time is longer than a work item of a loaded kernel waits, and shorter than
/// the close of an IA (`CLOSE_WAIT`).
const WITHDRAWAL: Duration = Duration::from_millis(200);

/// Number of attempts to resolve an address, and a route: the C implementation's default (`DAPL_CM_ARP_RETRY_COUNT`,
/// `DAPL_CM_ROUTE_RETRY_COUNT`).
const TRIES: u32 = 15;

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ConnectionPhase {
    /// An address or route is being resolved.
    Resolving,
    /// The request was sent.
    Requested,
    /// The peer has no listener. The request is sent again later, with another id.
    Refused,
    /// The accept was sent.
    Accepted,
    Established,
    Ended,
}

/// Parameters of an attempt.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) peer: SocketAddr,
    pub(super) private_data: Vec<u8>,
    pub(super) began: Instant,
    /// Retries while there is no listener.
    pub(super) retry: Retry,
}

/// A connection or attempt.
pub(super) struct RdmaLink {
    pub(super) manager: Weak<Rdma>,
    pub(super) number: usize,
    pub(super) id: Arc<Id>,
    pub(super) core: Weak<QpCore>,
    /// The number of its queue pair.
    pub(super) qp: u32,
    pub(super) target: Target,
    /// Whether the peer has disconnected, so that no further event is expected.
    pub(super) has_left: AtomicBool,
    /// Parameters and private data of the accept.
    pub(super) answer: Mutex<Option<(Terms, Vec<u8>)>>,
    /// Number of attempts left for address and route.
    pub(super) tries: [AtomicU32; 2],
    pub(super) stage: Mutex<ConnectionPhase>,
}

impl RdmaLink {
    pub(super) fn active(manager: &Rdma, number: usize, id: Id, core: &Arc<QpCore>, target: Target) -> Self {
        RdmaLink {
            manager: manager.me.clone(),
            number,
            id: Arc::new(id),
            core: Arc::downgrade(core),
            qp: core.number(),
            target,
            has_left: AtomicBool::new(false),
            answer: Mutex::new(None),
            tries: [AtomicU32::new(TRIES), AtomicU32::new(TRIES)],
            stage: Mutex::new(ConnectionPhase::Resolving),
        }
    }

    pub(super) fn handle(self: &Arc<Self>, manager: &Rdma, event: &Event) {
        if is_end(event.kind) {
            self.has_left.store(true, Ordering::SeqCst);
        }
        let (Some(core), Some(device)) = (self.core.upgrade(), manager.device.upgrade()) else { return };
        if !core.has(&**self) {
            // The consumer may end the connection at the same time. Whichever of this function and `end` runs later
            // sees the other's effect.
            if is_end(event.kind) {
                manager.has_left(self.number);
            }
            return;
        }
        if event.kind == RDMA_CM_EVENT_REJECTED && event.status != IB_CM_REJ_STALE_CONN {
            core.set_unanswered(false);
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
            RDMA_CM_EVENT_REJECTED if event.status == IB_CM_REJ_STALE_CONN && self.may_retry() => {
                self.restart(manager, &device, &core, self.target.clone())
            }
            RDMA_CM_EVENT_REJECTED
                if event.status == IB_CM_REJ_INVALID_SERVICE_ID && self.retry_later(manager, &device) =>
            {
                Ok(())
            }
            kind if is_end(kind) => {
                if kind == RDMA_CM_EVENT_DISCONNECTED && *self.stage.lock() == ConnectionPhase::Accepted {
                    // A disconnect may overtake the confirmation; it shows that the peer was connected.
                    self.establish(&core, &[]);
                }
                Err(self.meaning_of(event))
            }
            _ => Ok(()),
        };
        match step {
            // The consumer's data follow the word that says both versions; on InfiniBand and RoCE there are always 148 bytes.
            Err(ConnectionEvent::PeerRejected) => {
                let data = event.private_data.get(REJECTION.len()..).unwrap_or_default();
                core.over_with(&**self, ConnectionEvent::PeerRejected, data);
            }
            Err(end) => core.over(&**self, end),
            Ok(()) => {}
        }
    }

    /// Continues an attempt that waited: the last connection of the queue pair is confirmed to have ended, or the
    /// waiting time has passed.
    pub(super) fn go_on(&self, device: &Device) {
        let Some(core) = self.core.upgrade().filter(|core| core.has(self)) else { return };
        let stage = *self.stage.lock();
        let gone_on = match stage {
            ConnectionPhase::Resolving => self.request(device, &core),
            ConnectionPhase::Accepted => self.accept(device, &core).map_err(|error| self.cannot_accept(&error)),
            _ => Ok(()),
        };
        if let Err(end) = gone_on {
            core.over(self, end);
        }
    }

    /// Brings the queue pair to RTS and answers the request.
    pub(super) fn accept(&self, device: &Device, core: &QpCore) -> io::Result<()> {
        let Some((terms, private_data)) = self.answer.lock().take() else { return Ok(()) };
        let mut path = path_of(&self.id, device, Some(&terms))?;
        core.raise(self, &mut path)?;
        core.set_unanswered(true);
        self.id.accept(&terms, &private_data)
    }

    /// Maps an accept that failed to its event. In most cases the peer has left.
    pub(super) fn cannot_accept(&self, error: &io::Error) -> ConnectionEvent {
        log::info!("the request of {} cannot be accepted: {error}", self.target.peer);
        ConnectionEvent::AcceptFailed
    }

    /// Whether the request may be retried.
    fn may_retry(&self) -> bool {
        *self.stage.lock() == ConnectionPhase::Requested && self.target.began.elapsed() < STALE
    }

    /// The peer has no listener: schedules the next request. Returns false if `listener_wait_ms` has passed.
    fn retry_later(&self, manager: &Rdma, device: &Device) -> bool {
        let mut stage = self.stage.lock();
        let mut retry = self.target.retry;
        let Some(wait) = retry.next_delay().filter(|_| *stage == ConnectionPhase::Requested) else { return false };
        *stage = ConnectionPhase::Refused;
        let source: Weak<dyn Source> = manager.me.clone();
        device.reactor.after(wait, source, self.number as u64);
        true
    }

    /// Whether the peer had no listener and the next request is scheduled.
    pub(super) fn is_refused(&self) -> bool {
        *self.stage.lock() == ConnectionPhase::Refused
    }

    /// Retries the request.
    pub(super) fn retry(&self, manager: &Rdma, device: &Device) {
        let Some(core) = self.core.upgrade().filter(|core| core.has(self)) else { return };
        let mut target = self.target.clone();
        target.retry.next_delay();
        if let Err(end) = self.restart(manager, device, &core, target) {
            core.over(self, end);
        }
    }

    /// Replaces this attempt by another one, because the peer has no listener yet, or has not detected that the last
    /// connection of this queue pair has ended.
    fn restart(
        &self,
        manager: &Rdma,
        device: &Device,
        core: &Arc<QpCore>,
        target: Target,
    ) -> std::result::Result<(), ConnectionEvent> {
        let number = manager.number();
        let id = manager.bound_id(number, self.target.peer.ip());
        let id = id.map_err(|error| self.broken("cannot ask again", &error))?;
        let link = Arc::new(RdmaLink::active(manager, number, id, core, target));
        manager.known.lock().insert(number, EventOwner::Link(link.clone()));
        if !core.relink(self, link.clone()) {
            manager.forget(number);
            return Ok(());
        }
        manager.forget(self.number);
        let resolved = link.id.resolve_address(link.target.peer, device.settings.resolving.address_timeout);
        if let Err(error) = resolved {
            core.over(&*link, self.broken("cannot ask again", &error));
        }
        Ok(())
    }

    /// Maps an rdma_cm event to the connection event (spec/endpoints 8.1, 8.2).
    fn meaning_of(&self, event: &Event) -> ConnectionEvent {
        let stage = *self.stage.lock();
        match (stage, event.kind) {
            (ConnectionPhase::Accepted, _) => ConnectionEvent::AcceptFailed,
            (_, RDMA_CM_EVENT_REJECTED) if event.status == IB_CM_REJ_CONSUMER_DEFINED => ConnectionEvent::PeerRejected,
            (_, RDMA_CM_EVENT_REJECTED) => {
                log::debug!("{} refuses: reason {}", self.target.peer, event.status);
                ConnectionEvent::Rejected
            }
            (_, RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR) => ConnectionEvent::Unreachable,
            (_, RDMA_CM_EVENT_DEVICE_REMOVAL) => ConnectionEvent::Broken,
            _ => ConnectionEvent::Disconnected,
        }
    }

    fn resolve_route(&self, device: &Device) -> std::result::Result<(), ConnectionEvent> {
        self.id.resolve_route(device.settings.resolving.route_timeout).map_err(|error| self.broken("no route", &error))
    }

    /// Handles a failed resolution of an address or route: retries if that may help.
    fn again(&self, device: &Device, event: &Event, which: usize) -> std::result::Result<(), ConnectionEvent> {
        let left = self.tries[which].load(Ordering::Relaxed).saturating_sub(1);
        self.tries[which].store(left, Ordering::Relaxed);
        if event.status != -libc::ETIMEDOUT || left == 0 {
            let what = ["address", "route"][which];
            log::info!(
                "{}: no {what} found: {}",
                self.target.peer,
                io::Error::from_raw_os_error(event.status.saturating_abs())
            );
            return Err(ConnectionEvent::Unreachable);
        }
        let resolving = device.settings.resolving;
        let started = match which {
            0 => self.id.resolve_address(self.target.peer, resolving.address_timeout),
            _ => self.id.resolve_route(resolving.route_timeout),
        };
        started.map_err(|error| self.broken("cannot ask again", &error))
    }

    fn request(&self, device: &Device, core: &QpCore) -> std::result::Result<(), ConnectionEvent> {
        if self.id.port() != device.port {
            log::warn!(
                "{}: the route to {} uses port {} of the device, this adapter port {}; check the routes of this host",
                device.name,
                self.target.peer,
                self.id.port(),
                device.port
            );
        }
        let (reads, path) = (core.reads(), device.settings.path);
        let terms = Terms {
            responder_resources: reads.incoming,
            initiator_depth: reads.outgoing,
            flow_control: 1,
            retry_count: path.ack_retry,
            rnr_retry_count: path.rnr_retry,
            srq: core.has_shared_queue(),
            qp_number: core.number(),
        };
        *self.stage.lock() = ConnectionPhase::Requested;
        core.set_unanswered(true);
        self.id
            .connect(&terms, &self.target.private_data)
            .map_err(|error| self.broken("the request cannot be sent", &error))
    }

    /// Handles the peer's acceptance.
    fn confirm(&self, device: &Device, core: &QpCore, event: &Event) -> std::result::Result<(), ConnectionEvent> {
        let raised = path_of(&self.id, device, None).and_then(|mut path| core.raise(self, &mut path));
        match raised.and_then(|is_ours| if is_ours { self.id.establish() } else { Ok(()) }) {
            Ok(()) => {
                self.establish(core, &event.private_data);
                Ok(())
            }
            Err(error) => {
                log::error!("{} has accepted, but the queue pair cannot be connected: {error}", self.target.peer);
                Err(ConnectionEvent::Unreachable)
            }
        }
    }

    fn establish(&self, core: &QpCore, private_data: &[u8]) {
        {
            let mut stage = self.stage.lock();
            if !matches!(*stage, ConnectionPhase::Requested | ConnectionPhase::Accepted) {
                return;
            }
            *stage = ConnectionPhase::Established;
        }
        core.set_unanswered(false);
        core.established(self, &private_data[..private_data.len().min(ACCEPTED)]);
    }

    fn broken(&self, what: &str, error: &io::Error) -> ConnectionEvent {
        log::error!("connection to {}: {what}: {error}", self.target.peer);
        ConnectionEvent::Broken
    }
}

/// Parameters from INIT to RTS, from the id's route. `terms`: depths on the passive side, whose id does not have them
/// yet.
fn path_of(id: &Id, device: &Device, terms: Option<&Terms>) -> io::Result<Path> {
    let init = id.change(ibv_qp_state::IBV_QPS_INIT)?;
    let mut to_receive = id.change(ibv_qp_state::IBV_QPS_RTR)?;
    let mut to_send = id.change(ibv_qp_state::IBV_QPS_RTS)?;
    let settings = device.settings.path;
    to_receive.attributes.min_rnr_timer = settings.rnr_timer;
    to_receive.mask |= ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
    if let Some(terms) = terms {
        to_receive.attributes.max_dest_rd_atomic = terms.responder_resources;
        to_send.attributes.max_rd_atomic = terms.initiator_depth;
    }
    // The kernel's timeout for Ethernet is several seconds, so a lost packet would be detected late.
    if device.is_ethernet() {
        to_send.attributes.timeout = to_send.attributes.timeout.min(settings.ack_timer);
    }
    Ok(Path { init: Some(init), to_receive, to_send })
}

impl CmConnection for RdmaLink {
    fn end(&self) {
        let stage = std::mem::replace(&mut *self.stage.lock(), ConnectionPhase::Ended);
        let Some(manager) = self.manager.upgrade() else { return };
        let said = stage == ConnectionPhase::Established && self.id.disconnect().is_ok();
        let wait = match stage {
            ConnectionPhase::Established if said => LINGER,
            ConnectionPhase::Requested => WITHDRAWAL,
            _ => Duration::ZERO,
        };
        if wait.is_zero() || self.has_left.load(Ordering::SeqCst) {
            // Destroying the id ends its pending operations and notifies a waiting peer.
            return manager.forget(self.number);
        }
        manager.await_confirmation(self.number);
        if self.has_left.load(Ordering::SeqCst) {
            return manager.has_left(self.number);
        }
        if let Some(device) = manager.device.upgrade() {
            let source: Weak<dyn Source> = manager.me.clone();
            device.reactor.after(wait, source, self.number as u64);
        }
    }

    fn peer_is_there(&self) {
        if *self.stage.lock() == ConnectionPhase::Accepted
            && let Err(error) = self.id.notify()
        {
            log::debug!("{}: the connection stands already: {error}", self.target.peer);
        }
    }
}
