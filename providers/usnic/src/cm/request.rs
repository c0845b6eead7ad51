//! A connection request of a peer: the object with which dapl accepts, rejects or redirects it.

use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ConnId, ConnectionEvent};

use super::Cm;
use super::action::{LocalConnection, QpCaps};
use crate::device;
use crate::engine::jobs::Job;
use crate::proto::setup::accept::RequestId;
use crate::proto::setup::packets::RejectReason;
use crate::qp::handler::ConnectionHandler;

/// A connection request, which dapl accepts, rejects or redirects once. Dropping the object rejects the request.
pub struct ConnectionRequest {
    cm: Arc<Cm>,
    id: Option<RequestId>,
}

impl ConnectionRequest {
    pub(super) fn new(cm: Arc<Cm>, id: RequestId) -> Self {
        ConnectionRequest { cm, id: Some(id) }
    }

    pub(crate) fn send_result(&mut self, reason: RejectReason) {
        self.send_result_with(reason, &[]);
    }

    pub(crate) fn send_result_with(&mut self, reason: RejectReason, private_data: &[u8]) {
        if let Some(id) = self.id.take() {
            self.cm.state.lock().passive.reject(id, reason, private_data);
            // The engine sends the reply.
            self.cm.wake();
        }
    }

    /// Redirects the peer to the listener on `qual` in this process or another process of this user. Returns the
    /// request if there is no such listener.
    pub(crate) fn redirect(mut self, qual: u64) -> std::result::Result<(), Self> {
        if !self.cm.has_listener(qual) {
            return Err(self);
        }
        self.send_result(RejectReason::HandedOff(qual));
        Ok(())
    }

    /// Accepts the request into an unconnected queue pair. If the peer has withdrawn the request or has stopped
    /// retransmitting it, the call succeeds, and an event reports the failure.
    pub(crate) fn accept_into(
        mut self,
        handler: Arc<dyn ConnectionHandler>,
        private_data: &[u8],
        conn: ConnId,
        caps: QpCaps,
    ) -> Result<u32> {
        let (cm, device) = (self.cm.clone(), &self.cm.device);
        // An error here drops `self`, which rejects the request.
        let number = device.table.reserve(device::now()).ok_or(Error::Exhausted(Resource::Memory))?;
        let Some(id) = self.id.take() else { return Err(Error::Internal) };
        handler.connecting(number);
        device.table.insert(number, handler.clone());
        let local = LocalConnection { number, conn, handler: handler.clone() };
        let is_pending = cm.state.lock().passive.accept(device, id, private_data, caps, local);
        if is_pending {
            cm.wake();
        } else {
            device.free_number(number);
            if handler.end(number) {
                device.jobs.push(Job::Event(conn, ConnectionEvent::AcceptFailed));
            }
        }
        Ok(number)
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        self.send_result(RejectReason::Refused);
    }
}
