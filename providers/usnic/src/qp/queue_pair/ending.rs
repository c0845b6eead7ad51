//! The end of a connection: acknowledges received packets, notifies the peer, flushes the posted work, and starts a
//! closing connection. Also cancels connection attempts.

use dapl::provider::Status;
use dapl::runtime::cancel;

use super::{QpCore, QpPhase, QpState};
use crate::proto::Nanos;
use crate::qp::closing::ClosingConnection;
use crate::{counters, device};

impl QpCore {
    /// Flushes all work. If there is a connection, also notifies the peer, and starts a closing connection for late
    /// packets.
    pub(super) fn end_connection(&self, state: &mut QpState, now: Nanos) {
        // Posts and polls call this function, and closing a socket is a cancellation point. Cancelling the thread would
        // leave the queue pair locked.
        let _deferral = cancel::defer();
        state.phase = QpPhase::Ended;
        if let Some(mut transport) = state.transport.take() {
            // The ack precedes the Reset, so that requests of the peer succeed if their messages have arrived.
            transport.conn.ack_all(now, &mut &self.context);
            transport.transmit(now, &mut &self.context);
            transport.conn.abort(now, &mut &self.context);
            transport.transmit(now, &mut &self.context);
            if let Some(pool) = &self.context.pool {
                pool.srq.cancel_wait(&pool.waiter);
            }
            let counters = transport.conn.counters();
            self.ia_counters.add_past(&counters);
            counters::log(self.context.ep, &counters);
            state.past = Some(Box::new(counters));
            ClosingConnection::start(&self.device, transport, now);
        }
        self.flush(state);
    }

    /// Flushes the work that was queued before the connection was established.
    fn flush(&self, state: &mut QpState) {
        for (_, mut request) in state.requests.drain(..) {
            self.context.complete_request(&mut request, Status::Flushed, 0);
        }
        self.flush_recvs(state);
    }

    pub(super) fn flush_recvs(&self, state: &mut QpState) {
        for recv in state.recvs.drain(..) {
            self.context.flush_recv(recv.token);
        }
    }

    /// Ends the connection or the attempt without an event.
    pub(crate) fn abort(&self) {
        let mut state = self.state.lock();
        let attempt = match state.phase {
            QpPhase::Connecting(number) => Some(number),
            _ => None,
        };
        self.end_connection(&mut state, device::now());
        drop(state);
        if let Some(number) = attempt {
            self.cm.cancel(number);
        }
    }
}
