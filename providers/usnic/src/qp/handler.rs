//! The interface between the device and whatever handles the packets of a connection: a queue pair, or its closing state.
//!
//! The device calls the handler with packets, turns and expired deadlines. The handler returns its [`Outlook`], and sends on
//! its own, under its own lock. It takes no lock of the device that the caller may hold: see `device`.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dapl::provider::ConnId;

pub(crate) use crate::net::errors::DeliveryError;
use crate::net::receive::Packets;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::schedule::{Outlook, Turn};
use crate::proto::setup::Agreed;

/// A handler of a connection's packets. All calls come from a polling thread or the engine, never from a down-call, but for
/// `connecting`.
pub(crate) trait ConnectionHandler: Send + Sync {
    /// Called when an attempt with this number begins, by `connect` or `accept`. The previous connection has ended.
    fn connecting(&self, number: u32, conn: ConnId);

    /// Called when the connection is established; it is reported to dapl next. `None`: the consumer has ended it already.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<Outlook>;

    /// Handles packets of the connection, from one sender and in one GRO batch. Their headers name this connection;
    /// nothing else in them is validated.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> Outlook;

    /// Sends one batch of the connection at most.
    fn transmit(&self, now: Nanos, number: u32, turn: Turn) -> Outlook;

    /// Called when the connection's deadline may have expired; the handler checks that.
    fn on_time(&self, now: Nanos, number: u32) -> Outlook;

    /// Whether packets of the connection go to this address.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// Handles a delivery error for a datagram to the address of the peer. The error may belong to another connection,
    /// and may be forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> Outlook;

    /// Called when the attempt or connection has ended: the peer ended it, refused it, or never answered. All work is
    /// flushed. Returns false if it had ended before, so that there is nothing to report.
    fn end(&self, number: u32) -> bool;

    /// Called when the IA closes: ends the connection, and notifies the peer with one send at most.
    fn shut_down(&self);
}

/// Parameters of an established connection. On the active side (`agreed.terms.active`), `Conn` sends the confirmation.
pub(crate) struct ConnectionParams {
    pub(crate) number: u32,
    pub(crate) conn: ConnId,
    pub(crate) agreed: Agreed,
    /// See [`Device::schedule`](crate::device::Device::schedule).
    pub(crate) next_turn: Arc<NextTurn>,
    pub(crate) socket: Arc<Socket>,
    /// The largest datagram payload that the search for the path MTU tries.
    pub(crate) ceiling: usize,
    /// Whether the peer is on this host.
    pub(crate) is_loopback: bool,
}

/// Time at which the device will next serve a connection on its own. Only an earlier deadline has to be reported to it.
#[derive(Debug)]
pub(crate) struct NextTurn(AtomicU64);

impl NextTurn {
    pub(crate) fn new() -> Self {
        NextTurn(AtomicU64::new(Nanos::MAX))
    }

    /// Lowers the time to `deadline`. Returns false if the device serves the connection before that anyway.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // This value is only a hint: the device's own list decides.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// Whether a turn is planned that the device has not started yet. The caller holds the connection's lock, which
    /// that turn will acquire.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether the device serves the connection before `deadline` anyway.
    #[inline]
    pub(crate) fn is_before(&self, deadline: Nanos) -> bool {
        self.0.load(Ordering::Acquire) <= deadline
    }

    /// Called when the device serves the connection.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
