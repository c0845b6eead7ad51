//! The interface between the device and the handler of a connection: a queue pair, or a closing connection.
//!
//! A pass calls the handler for received packets, for transmissions and for expired deadlines. The handler sends
//! packets itself, under its own lock, and returns its [`PendingWork`]. It acquires no lock of the device that its
//! caller may hold (see `device`).
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::ConnId;

pub(crate) use crate::net::errors::DeliveryError;
use crate::net::receive::PacketRun;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::schedule::{PendingWork, ServiceReason};
use crate::proto::setup::HandshakeResult;

/// The handler of a connection. Except for `connecting`, its functions are called only by a polling thread or the
/// engine, never during a post or another call of dapl.
pub(crate) trait ConnectionHandler: Send + Sync {
    /// Called when an attempt with this connection number begins, by `connect` or `accept`. The previous connection of
    /// the handler has ended.
    fn connecting(&self, number: u32, conn: ConnId);

    /// Called when the connection is established, before it is reported to dapl. Returns `None` if the consumer has
    /// already ended it.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<PendingWork>;

    /// Handles consecutive packets of one GRO batch with this connection number. The caller has validated nothing else.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: PacketRun<'_>) -> PendingWork;

    /// Sends at most one batch of the connection.
    fn transmit(&self, now: Nanos, number: u32, reason: ServiceReason) -> PendingWork;

    /// Called when the connection's deadline may have expired. The handler checks whether it has.
    fn on_time(&self, now: Nanos, number: u32) -> PendingWork;

    /// Whether the connection sends packets to this address.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// Handles a delivery error (ICMP) for a datagram to the peer's address. It may belong to another connection with
    /// the same address, and may be forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> PendingWork;

    /// Called when an attempt has failed: the peer has rejected or withdrawn it, or has not replied. Flushes all work.
    /// Returns false if the attempt had already ended, so that no event is reported.
    fn end(&self, number: u32) -> bool;

    /// Called when the IA is closed: ends the connection, and notifies the peer with at most one send call.
    fn shut_down(&self);
}

/// Parameters of an established connection.
pub(crate) struct ConnectionParams {
    pub(crate) number: u32,
    pub(crate) conn: ConnId,
    pub(crate) agreed: HandshakeResult,
    /// For [`Device::schedule`](crate::device::Device::schedule).
    pub(crate) next_service: Arc<NextService>,
    pub(crate) socket: Arc<Socket>,
    /// Maximum datagram payload in bytes for the search of the path MTU.
    pub(crate) ceiling: usize,
    /// Whether the peer is on this host.
    pub(crate) is_loopback: bool,
}

/// The time at which a pass will next call the handler of a connection. Only earlier work must be reported to the
/// device. 0: in the next pass.
#[derive(Debug)]
pub(crate) struct NextService(AtomicU64);

impl NextService {
    pub(crate) fn new() -> Self {
        NextService(AtomicU64::new(Nanos::MAX))
    }

    /// Lowers the time to `deadline`. Returns false if it is already earlier.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // A relaxed access is sufficient for the first check: an outdated value is later than the present one or equal,
        // and `fetch_min` decides.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// Whether the next pass will call the handler. The caller has the connection's lock, so the handler will see its
    /// changes.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether a pass will call the handler at `deadline` or earlier.
    #[inline]
    pub(crate) fn is_before(&self, deadline: Nanos) -> bool {
        self.0.load(Ordering::Acquire) <= deadline
    }

    /// Called by a pass before it handles the connection's pending work.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
