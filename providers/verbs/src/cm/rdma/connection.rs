//! A connection or attempt of the connection manager `rdma`: handles the events of its rdma_cm id.
//!
//! An active attempt resolves address and route, sends the request, and confirms the accept. If the peer rejects the
//! request because it has no listener, or because it still knows an old connection of the queue pair, the request is
//! repeated for a limited time, each time with a new id. A passive attempt sends the accept, and waits for the
//! confirmation.
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
use super::{RdmaManager, is_end};
use crate::device::Device;
use crate::qp::state::PathToRts;
use crate::qp::{CmConnection, CmQueuePair, QpCore};
use crate::rdma_cm::{CmEvent, CmId, ConnParams};
use dapl_software::listener_retry::Retry;

/// Maximum length of an accept's private data that is reported to the consumer (spec/endpoints 9.2).
const MAX_ACCEPT_DATA: usize = 196;
/// Time for which a request is repeated while the peer rejects it as a stale connection: the peer has not yet detected
/// that the last connection of this queue pair has ended.
const STALE_RETRY_TIME: Duration = Duration::from_secs(10);
/// Limit of the wait for the peer's confirmation of a disconnect.
const DISCONNECT_WAIT: Duration = Duration::from_secs(30);
/// Time for which the id of an abandoned attempt is kept, because destroying the id makes the kernel send a REJ. The
/// peer's kernel handles messages on several processors. If it handled the REJ before the REQ, it would ignore the REJ,
/// and its REP would stay unanswered for a minute. The time is longer than a work item waits in a loaded kernel, and
/// shorter than the wait when an IA closes (`CLOSE_WAIT`).
const WITHDRAWAL: Duration = Duration::from_millis(200);

/// Maximum number of attempts to resolve an address, and to resolve a route. These are the C implementation's defaults
/// (`DAPL_CM_ARP_RETRY_COUNT`, `DAPL_CM_ROUTE_RETRY_COUNT`).
const TRIES: u32 = 15;

/// Progress of an attempt or connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ConnectionPhase {
    /// The address or route is being resolved, or the request waits for the end of the queue pair's last connection.
    Resolving,
    /// The request was sent.
    Requested,
    /// The peer has rejected the request because it has no listener. Another request will be sent, with another id.
    Refused,
    /// The consumer has accepted the request. The accept was sent, or waits for the end of the queue pair's last
    /// connection.
    Accepted,
    Established,
    Ended,
}

/// Parameters of an active attempt, which repeated requests share.
#[derive(Clone)]
pub(super) struct ConnectTarget {
    pub(super) peer: SocketAddr,
    pub(super) private_data: Vec<u8>,
    pub(super) began: Instant,
    /// Schedule of further requests while the peer has no listener.
    pub(super) retry: Retry,
}

/// A connection or attempt, with its rdma_cm id.
pub(super) struct RdmaConnection {
    manager: Weak<RdmaManager>,
    pub(super) number: usize,
    pub(super) id: Arc<CmId>,
    pub(super) core: Weak<QpCore>,
    /// Number that the queue pair has in this attempt. A reset of the queue pair may change it.
    pub(super) qp: u32,
    pub(super) target: ConnectTarget,
    /// Whether an event was received that ends the connection or attempt, such as a disconnect, a rejection or the
    /// removal of the device.
    pub(super) has_peer_ended: AtomicBool,
    /// Parameters and private data of the accept, until it is sent.
    answer: Mutex<Option<(ConnParams, Vec<u8>)>>,
    /// Remaining attempts to resolve the address, and to resolve the route.
    tries: [AtomicU32; 2],
    stage: Mutex<ConnectionPhase>,
}

impl RdmaConnection {
    /// A passive attempt has an answer, an active attempt has none.
    pub(super) fn new(
        manager: &RdmaManager,
        number: usize,
        id: Arc<CmId>,
        core: &Arc<QpCore>,
        target: ConnectTarget,
        answer: Option<(ConnParams, Vec<u8>)>,
    ) -> Arc<Self> {
        let stage = if answer.is_some() { ConnectionPhase::Accepted } else { ConnectionPhase::Resolving };
        Arc::new(RdmaConnection {
            manager: manager.me.clone(),
            number,
            id,
            core: Arc::downgrade(core),
            qp: core.number(),
            target,
            has_peer_ended: AtomicBool::new(false),
            answer: Mutex::new(answer),
            tries: [AtomicU32::new(TRIES), AtomicU32::new(TRIES)],
            stage: Mutex::new(stage),
        })
    }

    pub(super) fn handle(self: &Arc<Self>, manager: &RdmaManager, event: &CmEvent) {
        if is_end(event.kind) {
            self.has_peer_ended.store(true, Ordering::SeqCst);
        }
        let (Some(core), Some(device)) = (self.core.upgrade(), manager.device.upgrade()) else { return };
        if !core.is_current(&**self) {
            // This process has ended the connection. If `end` has not yet set the owner to `Ended`, it later sees
            // `has_peer_ended` and releases the id itself.
            if is_end(event.kind) {
                manager.release_if_ended(self.number);
            }
            return;
        }
        if event.kind == RDMA_CM_EVENT_REJECTED && event.status != IB_CM_REJ_STALE_CONN {
            core.set_unanswered(false);
        }
        let step = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => self.resolve_route(&device),
            RDMA_CM_EVENT_ROUTE_RESOLVED if manager.defer_attempt(&device, self) => Ok(()),
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.request(&device, &core),
            RDMA_CM_EVENT_ADDR_ERROR => self.retry_resolution(&device, event, 0),
            RDMA_CM_EVENT_ROUTE_ERROR => self.retry_resolution(&device, event, 1),
            RDMA_CM_EVENT_CONNECT_RESPONSE => self.confirm(&device, &core, event),
            RDMA_CM_EVENT_ESTABLISHED => {
                self.establish(&core, &[]);
                Ok(())
            }
            RDMA_CM_EVENT_REJECTED if event.status == IB_CM_REJ_STALE_CONN && self.may_retry_stale() => {
                self.restart(manager, &device, &core, self.target.clone())
            }
            RDMA_CM_EVENT_REJECTED
                if event.status == IB_CM_REJ_INVALID_SERVICE_ID && self.retry_later(manager, &device) =>
            {
                Ok(())
            }
            kind if is_end(kind) => {
                if kind == RDMA_CM_EVENT_DISCONNECTED && *self.stage.lock() == ConnectionPhase::Accepted {
                    // The disconnect was received before the confirmation. It proves that the peer was connected, so
                    // ESTABLISHED is reported first.
                    self.establish(&core, &[]);
                }
                Err(self.connection_event(event))
            }
            _ => Ok(()),
        };
        match step {
            // The consumer's data follow four version bytes. On InfiniBand and RoCE the data are padded with zeros: the
            // received private data of a reject always have 148 bytes.
            Err(ConnectionEvent::PeerRejected) => {
                let data = event.private_data.get(REJECTION.len()..).unwrap_or_default();
                core.report_end(&**self, ConnectionEvent::PeerRejected, data);
            }
            Err(end) => core.report_end(&**self, end, &[]),
            Ok(()) => {}
        }
    }

    /// Continues an attempt that waited for the disconnect of its queue pair's last connection: the peer has confirmed
    /// it, or the wait has timed out.
    pub(super) fn continue_attempt(&self, device: &Device) {
        let Some(core) = self.core.upgrade().filter(|core| core.is_current(self)) else { return };
        let stage = *self.stage.lock();
        let result = match stage {
            ConnectionPhase::Resolving => self.request(device, &core),
            ConnectionPhase::Accepted => self.accept(device, &core).map_err(|error| self.cannot_accept(&error)),
            _ => Ok(()),
        };
        if let Err(end) = result {
            core.report_end(self, end, &[]);
        }
    }

    /// Brings the queue pair to RTS, and sends the accept. Does nothing if the accept was sent already, or if the
    /// consumer has ended the attempt.
    pub(super) fn accept(&self, device: &Device, core: &QpCore) -> io::Result<()> {
        let Some((params, private_data)) = self.answer.lock().take() else { return Ok(()) };
        let mut path = path_of(&self.id, device, Some(&params))?;
        if !core.bring_up(self, &mut path)? {
            return Ok(()); // The consumer has ended the attempt. Destroying the id rejects the request.
        }
        core.set_unanswered(true);
        self.id.accept(&params, &private_data)
    }

    /// Logs why the accept failed, and returns its event. In most cases the requester has given up.
    pub(super) fn cannot_accept(&self, error: &io::Error) -> ConnectionEvent {
        log::info!(
            "cannot accept the connection request of {}: {error}; the accept ends with ACCEPT_COMPLETION_ERROR; the requester has \
             probably given up",
            self.target.peer
        );
        ConnectionEvent::AcceptFailed
    }

    /// Whether a request that was rejected as a stale connection is repeated.
    fn may_retry_stale(&self) -> bool {
        *self.stage.lock() == ConnectionPhase::Requested && self.target.began.elapsed() < STALE_RETRY_TIME
    }

    /// Schedules another request, because the peer has no listener. Returns false if `listener_wait_ms` has passed or
    /// the attempt has ended.
    fn retry_later(&self, manager: &RdmaManager, device: &Device) -> bool {
        let mut stage = self.stage.lock();
        let mut retry = self.target.retry;
        let Some(wait) = retry.next_delay().filter(|_| *stage == ConnectionPhase::Requested) else { return false };
        *stage = ConnectionPhase::Refused;
        device.engine.schedule(wait, &manager.me, self.number as u64);
        true
    }

    /// Whether another request is scheduled, because the peer had no listener.
    pub(super) fn is_refused(&self) -> bool {
        *self.stage.lock() == ConnectionPhase::Refused
    }

    /// Starts the scheduled request, unless the consumer has ended the attempt.
    pub(super) fn retry(&self, manager: &RdmaManager, device: &Device) {
        let Some(core) = self.core.upgrade().filter(|core| core.is_current(self)) else { return };
        let mut target = self.target.clone();
        target.retry.next_delay();
        if let Err(end) = self.restart(manager, device, &core, target) {
            core.report_end(self, end, &[]);
        }
    }

    /// Replaces this attempt by a new one with another id, because an id can send only one request.
    fn restart(
        &self,
        manager: &RdmaManager,
        device: &Device,
        core: &Arc<QpCore>,
        target: ConnectTarget,
    ) -> Result<(), ConnectionEvent> {
        let link = manager.new_link(core, target);
        let link =
            link.map_err(|error| self.setup_failed("cannot create an rdma_cm id to repeat the request", &error))?;
        if !core.replace_link(self, link.clone()) {
            manager.release(link.number);
            return Ok(());
        }
        manager.release(self.number);
        let resolved = link.id.resolve_address(link.target.peer, device.settings.address_timeout);
        if let Err(error) = resolved {
            let end = self.setup_failed("cannot resolve the address to repeat the request", &error);
            core.report_end(&*link, end, &[]);
        }
        Ok(())
    }

    /// Maps an rdma_cm event that ends the attempt or connection to a connection event (spec/endpoints 8.1, 8.2).
    fn connection_event(&self, event: &CmEvent) -> ConnectionEvent {
        let stage = *self.stage.lock();
        match (stage, event.kind) {
            (ConnectionPhase::Accepted, _) => ConnectionEvent::AcceptFailed,
            (_, RDMA_CM_EVENT_REJECTED) if event.status == IB_CM_REJ_CONSUMER_DEFINED => ConnectionEvent::PeerRejected,
            (_, RDMA_CM_EVENT_REJECTED) => {
                log::debug!("{} has rejected the connection request: reason {}", self.target.peer, event.status);
                ConnectionEvent::Rejected
            }
            (_, RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR) => ConnectionEvent::Unreachable,
            (_, RDMA_CM_EVENT_DEVICE_REMOVAL) => ConnectionEvent::Broken,
            _ => ConnectionEvent::Disconnected,
        }
    }

    fn resolve_route(&self, device: &Device) -> Result<(), ConnectionEvent> {
        self.id
            .resolve_route(device.settings.route_timeout)
            .map_err(|error| self.setup_failed("cannot start to resolve the route", &error))
    }

    /// Handles a failed resolution of the address (`which` 0) or route (`which` 1). Repeats the resolution if it has
    /// timed out and attempts remain.
    fn retry_resolution(&self, device: &Device, event: &CmEvent, which: usize) -> Result<(), ConnectionEvent> {
        let remaining = self.tries[which].load(Ordering::Relaxed).saturating_sub(1);
        self.tries[which].store(remaining, Ordering::Relaxed);
        if event.status != -libc::ETIMEDOUT || remaining == 0 {
            let what = ["address", "route"][which];
            log::info!(
                "cannot resolve the {what} of {0}: {1}; the connect ends with UNREACHABLE; check that the peer is up and the route \
                 to it (ip route get {2})",
                self.target.peer,
                io::Error::from_raw_os_error(event.status.saturating_abs()),
                self.target.peer.ip()
            );
            return Err(ConnectionEvent::Unreachable);
        }
        let started = match which {
            0 => self.id.resolve_address(self.target.peer, device.settings.address_timeout),
            _ => self.id.resolve_route(device.settings.route_timeout),
        };
        started.map_err(|error| self.setup_failed("cannot repeat the resolution", &error))
    }

    fn request(&self, device: &Device, core: &QpCore) -> Result<(), ConnectionEvent> {
        if self.id.port() != device.port {
            log::warn!(
                "{}: the route to {} uses port {} of the device, but the IA uses port {}; check the routes of this host (ip route)",
                device.name,
                self.target.peer,
                self.id.port(),
                device.port
            );
        }
        let (reads, path) = (core.reads(), device.settings.path);
        let params = ConnParams {
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
            .connect(&params, &self.target.private_data)
            .map_err(|error| self.setup_failed("cannot send the connection request", &error))
    }

    /// Handles the peer's accept: brings the queue pair to RTS, and sends the confirmation.
    fn confirm(&self, device: &Device, core: &QpCore, event: &CmEvent) -> Result<(), ConnectionEvent> {
        let brought_up = path_of(&self.id, device, None).and_then(|mut path| core.bring_up(self, &mut path));
        match brought_up.and_then(|is_current| if is_current { self.id.establish() } else { Ok(()) }) {
            Ok(()) => {
                self.establish(core, &event.private_data);
                Ok(())
            }
            Err(error) => {
                log::error!(
                    "{} has accepted, but the queue pair cannot change to RTS: {error}; the connect ends with UNREACHABLE",
                    self.target.peer
                );
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
        core.established(self, &private_data[..private_data.len().min(MAX_ACCEPT_DATA)]);
    }

    fn setup_failed(&self, what: &str, error: &io::Error) -> ConnectionEvent {
        log::error!("connection to {}: {what}: {error}; the connection ends with BROKEN", self.target.peer);
        ConnectionEvent::Broken
    }
}

/// Returns the transitions from INIT to RTS for the route of an id. `params`: the limits of RDMA reads on the passive
/// side, whose id gets them only with the accept.
fn path_of(id: &CmId, device: &Device, params: Option<&ConnParams>) -> io::Result<PathToRts> {
    let init = id.change(ibv_qp_state::IBV_QPS_INIT)?;
    let mut to_receive = id.change(ibv_qp_state::IBV_QPS_RTR)?;
    let mut to_send = id.change(ibv_qp_state::IBV_QPS_RTS)?;
    let settings = device.settings.path;
    to_receive.attributes.min_rnr_timer = settings.rnr_timer;
    to_receive.mask |= ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
    if let Some(params) = params {
        to_receive.attributes.max_dest_rd_atomic = params.responder_resources;
        to_send.attributes.max_rd_atomic = params.initiator_depth;
    }
    // rdma_cm's ACK timeout for Ethernet is several seconds, so the retransmission of a lost packet would be late.
    if device.is_roce {
        to_send.attributes.timeout = to_send.attributes.timeout.min(settings.ack_timer);
    }
    Ok(PathToRts { init: Some(init), to_receive, to_send })
}

impl CmConnection for RdmaConnection {
    fn end(&self) {
        let stage = std::mem::replace(&mut *self.stage.lock(), ConnectionPhase::Ended);
        let Some(manager) = self.manager.upgrade() else { return };
        let is_disconnect_sent = stage == ConnectionPhase::Established && self.id.disconnect().is_ok();
        let wait = match stage {
            ConnectionPhase::Established if is_disconnect_sent => DISCONNECT_WAIT,
            ConnectionPhase::Requested => WITHDRAWAL,
            _ => Duration::ZERO,
        };
        if wait.is_zero() || self.has_peer_ended.load(Ordering::SeqCst) {
            // Destroying the id cancels its operations, and sends a rejection to a peer that waits for a reply.
            return manager.release(self.number);
        }
        manager.await_confirmation(self.number);
        if self.has_peer_ended.load(Ordering::SeqCst) {
            return manager.release_if_ended(self.number);
        }
        if let Some(device) = manager.device.upgrade() {
            device.engine.schedule(wait, &manager.me, self.number as u64);
        }
    }

    fn data_before_confirmation(&self) {
        if *self.stage.lock() == ConnectionPhase::Accepted
            && let Err(error) = self.id.notify()
        {
            log::debug!(
                "{}: cannot report data before the confirmation to rdma_cm: {error}; it has probably arrived already",
                self.target.peer
            );
        }
    }
}
