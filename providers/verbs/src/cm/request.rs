//! Connection requests that the object layer holds: the manager's request, and the data for a hand-off to another
//! listener.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest, RequestInfo};
use dapl::runtime::handle::ObjectId;

use crate::cm::WaitingRequest;
use crate::device::Device;
use crate::qp::queue_pair::Qp;

/// A connection request of a peer, which the consumer has neither accepted nor rejected.
pub struct ConnectionRequest {
    device: Arc<Device>,
    waiting: WaitingRequest,
    info: RequestInfo,
}

/// Passes a request to the listener of the object layer. Rejects it if the listener was freed or its queue is full.
/// Called by the engine thread only.
pub(super) fn arrived(device: &Arc<Device>, listener: ObjectId, waiting: WaitingRequest, info: RequestInfo) {
    let request = ConnectionRequest { device: device.clone(), waiting, info: info.clone() };
    // The sink returns a request that it does not take. Its drop rejects it.
    drop(device.sink.request(listener, request, info));
}

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(self, qp: &Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.waiting.accept(qp.core(), private_data, conn)
    }

    fn reject(self, private_data: &[u8]) {
        self.waiting.reject(private_data);
    }

    /// Passes the request to another listener of this IA. No manager can move a request to another process.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some(listener) = self.device.listeners.lock().get(&qual).copied() else {
            return Err((self, Error::InvalidParameter(2)));
        };
        let ConnectionRequest { device, waiting, info } = self;
        let engine = device.engine.clone();
        engine.run_on_engine(move || arrived(&device, listener, waiting, info));
        Ok(())
    }
}
