//! Connection requests, held by the object layer: the manager's request, and the data needed to hand it to another
//! listener.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest, RequestInfo};
use dapl::runtime::handle::ObjectId;

use crate::cm::{Refusal, Waiting};
use crate::device::Device;
use crate::qp::queue_pair::Qp;

/// A request.
pub struct ConnectionRequest {
    device: Arc<Device>,
    waiting: Box<dyn Waiting>,
    info: RequestInfo,
}

/// Delivers a request to the object layer for a listener; rejects it if the listener was freed. Engine only.
pub(super) fn arrived(device: &Arc<Device>, listener: ObjectId, waiting: Box<dyn Waiting>, info: RequestInfo) {
    let request = ConnectionRequest { device: device.clone(), waiting, info: info.clone() };
    if let Err(request) = device.sink.request(listener, request, info) {
        request.waiting.refuse(Refusal::NoListener);
    }
}

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(self, qp: &Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.waiting.accept(qp.core(), private_data, conn)
    }

    fn reject(self, private_data: &[u8]) {
        self.waiting.reject(private_data);
    }

    /// Only listeners of this IA can be the target: no manager can move a request between processes.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some(listener) = self.device.listeners.lock().get(&qual).copied() else {
            return Err((self, Error::InvalidParameter(2)));
        };
        let ConnectionRequest { device, waiting, info } = self;
        let reactor = device.reactor.clone();
        reactor.soon(move || arrived(&device, listener, waiting, info));
        Ok(())
    }
}
