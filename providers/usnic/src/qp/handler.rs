//! The interface through which the handler of a connection is called. The handler is a queue pair or a closing
//! connection.
//!
//! A pass calls the handler for received packets, for transmissions and for expired deadlines. The handler sends
//! packets itself, under its own lock, and returns its [`PendingWork`]. `device` describes the order of locks.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::ConnId;

pub(crate) use crate::net::errors::DeliveryError;
use crate::net::receive::PacketRun;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::schedule::PendingWork;
use crate::proto::setup::HandshakeResult;

/// The handler of a connection. Passes, connection set-up, ICMP errors and the close of the IA cause calls of its
/// functions, in the engine thread or within a call of dapl. The caller holds neither the lock of a queue pair nor that
/// of the connection manager.
pub(crate) trait ConnectionHandler: Send + Sync {
    /// Called at the start of `connect` or `accept`, with the connection number of the new attempt. The previous
    /// connection of the handler has ended.
    fn connecting(&self, number: u32);

    /// Called when the connection is established, before the event is reported to dapl. Returns `None` if the consumer
    /// has already ended the connection.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<PendingWork>;

    /// Handles consecutive packets of one GRO batch. The caller has checked only their connection number.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: PacketRun<'_>) -> PendingWork;

    /// Sends at most one batch of the connection.
    fn transmit(&self, now: Nanos, number: u32) -> PendingWork;

    /// Called when a deadline of the connection may have expired. The handler checks its deadlines itself.
    fn on_time(&self, now: Nanos, number: u32) -> PendingWork;

    /// Whether the connection sends packets to this address.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// Handles an ICMP message or a local error about a datagram to the peer's address. The datagram may belong to
    /// another connection to that address, and an ICMP message may be forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> PendingWork;

    /// Called when an attempt has failed, for example because the peer has rejected it or has not replied. Flushes all
    /// work. Returns false if the attempt had already ended. The caller then reports no event.
    fn end(&self, number: u32) -> bool;

    /// Called when the IA is closed. Ends the connection, and notifies the peer if it was established.
    fn shut_down(&self);
}

/// Parameters of an established connection.
pub(crate) struct ConnectionParams {
    pub(crate) number: u32,
    pub(crate) conn: ConnId,
    pub(crate) agreed: HandshakeResult,
    /// The planned time of the next call by a pass, which the connection's entry in the connection table also has.
    /// For [`Device::schedule`](crate::device::Device::schedule).
    pub(crate) next_service: Arc<NextService>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) path: PathProperties,
}

/// Properties of the path to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PathProperties {
    /// Upper limit of the path MTU search: datagram payload in bytes.
    pub(crate) ceiling: usize,
    /// Whether the peer is on this host.
    pub(crate) is_local: bool,
}

/// The time at which a pass will next call the handler of a connection, 0 for the next pass, or `Nanos::MAX` if no call
/// is planned. Work is reported to the device only if it is due before this time.
#[derive(Debug)]
pub(crate) struct NextService(AtomicU64);

impl NextService {
    pub(crate) fn new() -> Self {
        NextService(AtomicU64::new(Nanos::MAX))
    }

    /// Lowers the time to `deadline`. Returns false, without effect, if the time is not later than `deadline`.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // A relaxed load is sufficient. If it misses the `clear` of a pass, that pass has not yet acquired the lock of
        // the handler, and will find the work that the caller has added under this lock.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// Whether the next pass will call the handler. The caller holds the handler's lock, so that call will find the
    /// caller's changes.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether a pass will call the handler at `deadline` or earlier.
    #[inline]
    pub(crate) fn is_before(&self, deadline: Nanos) -> bool {
        self.0.load(Ordering::Acquire) <= deadline
    }

    /// Removes the planned time. A pass calls this function before it handles the connection's pending work.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
