//! The interface between the device and the handler of a connection's packets: a queue pair, or a closing connection.
//!
//! The device calls the handler with packets, services and expired deadlines. The handler returns its [`PendingWork`], and
//! sends packets itself, under its own lock. It acquires no lock of the device that the caller may hold (see `device`).
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::ConnId;

pub(crate) use crate::net::errors::DeliveryError;
use crate::net::receive::Packets;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::schedule::{PendingWork, ServiceReason};
use crate::proto::setup::Agreed;

/// A handler of a connection's packets. Except for `connecting`, it is called only by a polling thread or the engine,
/// never during a post or another call of dapl.
pub(crate) trait ConnectionHandler: Send + Sync {
    /// Called by `connect` or `accept` when an attempt with this connection number begins. The previous connection has
    /// ended.
    fn connecting(&self, number: u32, conn: ConnId);

    /// Called when the connection is established, before it is reported to dapl. `None`: the consumer has ended the
    /// connection already.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<PendingWork>;

    /// Handles packets of the connection, from one sender and in one GRO batch. The packet headers contain this
    /// connection number; the caller has validated nothing else.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> PendingWork;

    /// Sends at most one batch of the connection.
    fn transmit(&self, now: Nanos, number: u32, reason: ServiceReason) -> PendingWork;

    /// Called when the connection's deadline may have expired. The handler checks whether it has.
    fn on_time(&self, now: Nanos, number: u32) -> PendingWork;

    /// Whether the connection sends packets to this address.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// Handles a delivery error for a datagram to the peer's address. The error may belong to another connection, and
    /// may be forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> PendingWork;

    /// Called when the attempt or connection has ended because the peer ended it, refused it, or did not answer.
    /// Flushes all work. Returns false if it had ended before, so that no event is due.
    fn end(&self, number: u32) -> bool;

    /// Called when the IA is closed: ends the connection, and notifies the peer with at most one send.
    fn shut_down(&self);
}

/// Parameters of an established connection. On the active side (`agreed.terms.active`), `Conn` sends the confirmation.
pub(crate) struct ConnectionParams {
    pub(crate) number: u32,
    pub(crate) conn: ConnId,
    pub(crate) agreed: Agreed,
    /// Time of the device's next service for this connection, for [`Device::schedule`](crate::device::Device::schedule).
    pub(crate) next_service: Arc<NextService>,
    pub(crate) socket: Arc<Socket>,
    /// The largest datagram payload in bytes that the search for the path MTU tries.
    pub(crate) ceiling: usize,
    /// Whether the peer is on this host.
    pub(crate) is_loopback: bool,
}

/// Time at which the device will next serve a connection without a further call. Only an earlier deadline must be
/// reported to the device.
#[derive(Debug)]
pub(crate) struct NextService(AtomicU64);

impl NextService {
    pub(crate) fn new() -> Self {
        NextService(AtomicU64::new(Nanos::MAX))
    }

    /// Lowers the time to `deadline`. Returns false if the device serves the connection earlier anyway.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // A relaxed access is sufficient, because the device's own list decides.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// Whether a service is planned that the device has not started yet. The caller has the connection's lock, which the
    /// service will acquire.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether the device serves the connection before `deadline` anyway.
    #[inline]
    pub(crate) fn is_before(&self, deadline: Nanos) -> bool {
        self.0.load(Ordering::Acquire) <= deadline
    }

    /// Called when the device begins to serve the connection.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
