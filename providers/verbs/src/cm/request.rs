//! Connection requests as dapl holds them: a manager's, with what it takes to hand it to another listener.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest, RequestInfo};

use crate::cm::{Refusal, Waiting};
use crate::device::Device;
use crate::qp::Qp;

/// A request.
pub struct ConnectionRequest {
    pub(crate) device: Arc<Device>,
    pub(crate) waiting: Box<dyn Waiting>,
    pub(crate) info: RequestInfo,
}

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(self, qp: &Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.waiting.accept(&qp.0, private_data, conn)
    }

    fn reject(self) {
        self.waiting.refuse(Refusal::Consumer);
    }

    /// Only to listeners of this IA: no manager can move a request between processes.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some(listener) = self.device.listeners.lock().get(&qual).copied() else {
            return Err((self, Error::InvalidParameter(2)));
        };
        let ConnectionRequest { device, waiting, info } = self;
        let reactor = device.reactor.clone();
        reactor.soon(move || device.arrived(listener, waiting, info));
        Ok(())
    }
}
