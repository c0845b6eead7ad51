//! The functions of a queue pair that are called by passes, the connection manager, the engine (after ICMP errors), the
//! close of the IA, the counters, the exit handler and the shared receive queue.

use std::net::SocketAddr;

use super::{QpCore, QpPhase};
use crate::counters;
use crate::device;
use crate::net::errors::DeliveryError;
use crate::net::receive::PacketRun;
use crate::proto::Nanos;
use crate::proto::counters::Counters;
use crate::proto::schedule::PendingWork;
use crate::qp::closing;
use crate::qp::context::ClosingCallbacks;
use crate::qp::handler::{ConnectionHandler, ConnectionParams};
use crate::qp::transport::Transport;
use crate::srq::SrqWaiter;

impl ConnectionHandler for QpCore {
    fn shut_down(&self) {
        self.abort();
    }

    fn connecting(&self, number: u32) {
        let mut state = self.state.lock();
        (state.phase, state.drains) = (QpPhase::Connecting(number), false);
    }

    /// Opens the connection, and posts the queued receives and requests to it in order.
    fn open(&self, now: Nanos, params: ConnectionParams) -> Option<PendingWork> {
        let mut state = self.state.lock();
        if state.phase != QpPhase::Connecting(params.number) {
            drop(state);
            closing::reset_new(&self.device, &self.config, params, now);
            return None;
        }
        let mut transport = Transport::new(&self.config, params, now);
        for recv in state.recvs.drain(..) {
            let length = recv.segments.total();
            transport.conn.post_recv(length, |own| *own = recv, &mut &self.context);
        }
        for (post, request) in state.requests.drain(..) {
            transport.conn.post(now, post, |own| *own = request, &mut &self.context);
        }
        if std::mem::take(&mut state.drains) {
            transport.conn.drain(now);
        }
        state.phase = QpPhase::Connected;
        state.transport = Some(transport);
        Some(self.update(&mut state, now))
    }

    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: PacketRun<'_>) -> PendingWork {
        self.with(now, number, |transport| {
            let unmatched = transport.receive(now, from, packets, &mut &self.context);
            if unmatched > 0 {
                self.device.count_unmatched(unmatched);
            }
        })
    }

    fn transmit(&self, now: Nanos, number: u32) -> PendingWork {
        self.with(now, number, |transport| transport.transmit(now, &mut &self.context))
    }

    fn on_time(&self, now: Nanos, number: u32) -> PendingWork {
        self.with(now, number, |transport| transport.conn.on_time(now, &mut &self.context))
    }

    fn sends_to(&self, peer: SocketAddr) -> bool {
        self.state.lock().transport.as_ref().is_some_and(|transport| transport.conn.peer() == peer)
    }

    fn on_delivery_error(&self, now: Nanos, number: u32, error: &DeliveryError) -> PendingWork {
        self.with(now, number, |transport| transport.on_delivery_error(now, error))
    }

    fn end(&self, number: u32) -> bool {
        let mut state = self.state.lock();
        let is_it = state.phase == QpPhase::Connecting(number) || state.transport(number).is_some();
        if is_it {
            self.end_connection(&mut state, device::now());
        }
        is_it
    }
}

impl QpCore {
    /// Calls `work` with the transport if it has this connection number. Returns the pending work.
    #[inline(always)]
    fn with(&self, now: Nanos, number: u32, work: impl FnOnce(&mut Transport)) -> PendingWork {
        let mut state = self.state.lock();
        let Some(transport) = state.transport(number) else { return PendingWork::default() };
        work(transport);
        self.update(&mut state, now)
    }

    /// Returns the counters of the current connection.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.state.lock().transport.as_ref().map(|transport| transport.conn.counters())
    }

    /// Acknowledges received data and resets the connection when the process exits. Does nothing if another thread
    /// holds the lock for longer than [`counters::EXIT_LOCK_TIMEOUT`].
    pub(crate) fn exit(&self) {
        let Some(mut state) = self.state.try_lock_for(counters::EXIT_LOCK_TIMEOUT) else { return };
        if let Some(transport) = &mut state.transport {
            let now = device::now();
            let mut host = ClosingCallbacks(Some(&self.context));
            transport.conn.ack_all(now, &mut host);
            transport.transmit(now, &mut host);
            transport.conn.abort(now, &mut host);
            transport.transmit(now, &mut host);
        }
    }
}

impl SrqWaiter for QpCore {
    fn on_receive_posted(&self) -> bool {
        let mut state = self.state.lock();
        let Some(transport) = &mut state.transport else { return false };
        let now = device::now();
        let is_reported = transport.conn.check_credits(&mut &self.context);
        transport.transmit(now, &mut &self.context);
        self.schedule(state, now);
        is_reported
    }
}
