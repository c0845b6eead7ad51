//! Closing connections (like TIME_WAIT): they retransmit the Reset or refusal of an ended connection, and reply to late
//! packets. They exist until the peer has confirmed the close or timed out, and for some time after that. The queue
//! pair may be destroyed meanwhile.
//!
//! All work of the connection is flushed when it ends. So a closing connection accesses no consumer memory and reports
//! no completion. At its end it frees the connection number.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::net::errors::DeliveryError;
use crate::net::receive::PacketRun;
use crate::proto::Nanos;
use crate::proto::conn::ConnConfig;
use crate::proto::schedule::PendingWork;
use crate::qp::context::ClosingCallbacks;
use crate::qp::handler::{ConnectionHandler, ConnectionParams};
use crate::qp::transport::Transport;

/// A connection that has ended locally.
pub(crate) struct ClosingConnection {
    device: std::sync::Weak<Device>,
    transport: Mutex<Transport>,
}

impl ClosingConnection {
    /// Replaces the queue pair by a closing connection in the connection table. If late packets need no reply, frees
    /// the connection number instead.
    pub(crate) fn start(device: &Arc<Device>, transport: Transport, now: Nanos) {
        let number = transport.number;
        if transport.conn.can_be_freed() {
            return device.free_number(number);
        }
        let pending_work = transport.pending_work(now);
        let closing = ClosingConnection { device: Arc::downgrade(device), transport: Mutex::new(transport) };
        device.replace_handler(number, Arc::new(closing), &pending_work);
    }

    /// Calls `work` with the transport if it has this connection number. Returns the pending work. Frees the number if
    /// the connection needs no further packets.
    fn with(&self, now: Nanos, number: u32, work: impl FnOnce(&mut Transport)) -> PendingWork {
        let mut transport = self.transport.lock();
        if transport.number != number {
            return PendingWork::default();
        }
        work(&mut transport);
        if !transport.conn.can_be_freed() {
            return transport.pending_work(now);
        }
        drop(transport);
        if let Some(device) = self.device.upgrade() {
            device.free_number(number);
        }
        PendingWork::default()
    }
}

/// Sends a Reset for a connection that the consumer ended between the handshake and `open`.
#[cold]
pub(crate) fn reset_new(device: &Arc<Device>, config: &ConnConfig, params: ConnectionParams, now: Nanos) {
    let mut transport = Transport::new(config, params, now);
    transport.conn.abort(now, &mut ClosingCallbacks(None));
    transport.transmit(now, &mut ClosingCallbacks(None));
    ClosingConnection::start(device, transport, now);
}

impl ConnectionHandler for ClosingConnection {
    /// Does nothing: the peer was notified when the connection ended.
    fn shut_down(&self) {}

    fn connecting(&self, _: u32) {}

    fn open(&self, _: Nanos, _: ConnectionParams) -> Option<PendingWork> {
        None
    }

    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: PacketRun<'_>) -> PendingWork {
        self.with(now, number, |transport| {
            let unmatched = transport.receive(now, from, packets, &mut ClosingCallbacks(None));
            if let Some(device) = self.device.upgrade() {
                device.count_unmatched(unmatched);
            }
        })
    }

    fn transmit(&self, now: Nanos, number: u32) -> PendingWork {
        self.with(now, number, |transport| transport.transmit(now, &mut ClosingCallbacks(None)))
    }

    fn on_time(&self, now: Nanos, number: u32) -> PendingWork {
        self.with(now, number, |transport| transport.conn.on_time(now, &mut ClosingCallbacks(None)))
    }

    fn sends_to(&self, peer: SocketAddr) -> bool {
        self.transport.lock().conn.peer() == peer
    }

    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> PendingWork {
        self.with(now, number, |transport| transport.on_delivery_error(now, error))
    }

    fn end(&self, _: u32) -> bool {
        false
    }
}
