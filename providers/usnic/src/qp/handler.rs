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
    /// An attempt with this number begins, by `connect` or `accept`. The previous connection is over.
    fn connecting(&self, number: u32, conn: ConnId);

    /// The connection is established, and was reported to dapl. `None`: the consumer has ended it already.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<Outlook>;

    /// Packets of the connection, from one sender and in one GRO batch. Their header names this connection; nothing else of
    /// them is validated.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> Outlook;

    /// Sends one batch of the connection at most.
    fn transmit(&self, now: Nanos, number: u32, turn: Turn) -> Outlook;

    /// The connection's deadline may have expired; the handler checks that.
    fn on_time(&self, now: Nanos, number: u32) -> Outlook;

    /// Whether packets of the connection go to this address.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// A delivery error for a datagram to the address of the peer. It may concern another connection, and may be forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> Outlook;

    /// The attempt or the connection is over: the peer ended it, refused it, or never answered. All work is flushed. Returns
    /// false if it was over before, so that there is nothing to report.
    fn end(&self, number: u32) -> bool;

    /// The IA closes: ends the connection, and notifies the peer with one send at most.
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
    /// The peer is on this host.
    pub(crate) is_loopback: bool,
}

/// When the device will next serve a connection on its own. Only an earlier deadline has to be reported to it.
#[derive(Debug)]
pub(crate) struct NextTurn(AtomicU64);

impl NextTurn {
    pub(crate) fn new() -> Self {
        NextTurn(AtomicU64::new(Nanos::MAX))
    }

    /// Lowers the time to `deadline`. Returns false if the device serves the connection before that anyway.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // Only a hint: the device's own list decides.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// A turn is planned that the device has not started yet. The caller holds the connection's lock, which that turn will
    /// take.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// The device serves the connection now.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
