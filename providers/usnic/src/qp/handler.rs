//! A queue handler as the device sees it.
//!
//! A queue handler is reached by the number of its connection. The device brings it packets, turns and deadlines; it answers with
//! its [`Outlook`], and sends by itself, under its own lock and no lock of the device's that it could want: see `device`.
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

/// A queue handler, as the device sees it. Every call comes from a poller, or from the engine; never from a down-call, but for
/// `connecting`.
pub(crate) trait ConnectionHandler: Send + Sync {
    /// It is on its way to a connection of this number, by `connect` or `accept`: what it had before is over.
    fn connecting(&self, number: u32, conn: ConnId);

    /// The connection stands, and the layer above has heard of it. `None`: it is not this one's any more.
    fn open(&self, now: Nanos, opened: ConnectionParams) -> Option<Outlook>;

    /// Packets of its connection, from one sender, as they came in one train. Their head names this connection; nothing else
    /// of them was looked at.
    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> Outlook;

    /// Its turn: it sends what the turn is for, one batch at most.
    fn transmit(&self, now: Nanos, number: u32, turn: Turn) -> Outlook;

    /// Its deadline may have come: it knows.
    fn on_time(&self, now: Nanos, number: u32) -> Outlook;

    /// Its packets go there.
    fn sends_to(&self, peer: SocketAddr) -> bool;

    /// An ICMP message about a datagram to where it sends to, perhaps of another connection, and perhaps forged.
    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> Outlook;

    /// The attempt, or the connection, is over: the peer ended it, refused it, or never answered. All is flushed. False: it
    /// was over before, and there is nothing to report.
    fn end(&self, number: u32) -> bool;

    /// The IA closes: whatever there is ends, and the peer is told as far as that goes at once.
    fn shut_down(&self);
}

/// A connection that is established. On the active side (`agreed.terms.active`), `Conn` confirms it.
pub(crate) struct ConnectionParams {
    pub(crate) number: u32,
    pub(crate) conn: ConnId,
    pub(crate) agreed: Agreed,
    /// For [`Device::schedule`](crate::device::Device::schedule).
    pub(crate) next_turn: Arc<NextTurn>,
    /// What its packets leave by.
    pub(crate) socket: Arc<Socket>,
    /// The largest payload of a datagram that is tried.
    pub(crate) ceiling: usize,
    /// The kernel delivers to the peer on this host.
    pub(crate) is_loopback: bool,
}

/// When the device will next look at a connection by itself. Only an earlier deadline has to be reported to it.
#[derive(Debug)]
pub(crate) struct NextTurn(AtomicU64);

impl NextTurn {
    pub(crate) fn new() -> Self {
        NextTurn(AtomicU64::new(Nanos::MAX))
    }

    /// Is this earlier than what is planned? Then it is planned from now on.
    pub(crate) fn move_forward(&self, deadline: Nanos) -> bool {
        // Only a hint: the device's own list decides.
        deadline < self.0.load(Ordering::Relaxed) && deadline < self.0.fetch_min(deadline, Ordering::AcqRel)
    }

    /// A turn is planned that the device has not seen yet. For a caller with the connection's lock, which that turn will take.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// The device looks now.
    pub(crate) fn clear(&self) {
        self.0.store(Nanos::MAX, Ordering::Release);
    }
}
