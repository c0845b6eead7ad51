//! Connection requests for the provider interface. Each request is accepted, rejected or handed off once. A request
//! that is dropped undecided is rejected.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest};

use crate::cm::setup;
use crate::device::Device;
use crate::proto::handshake::{MAX_REJECT_DATA, ReplyResult};
use crate::qp::Qp;

/// A connection request that dapl holds until the consumer decides.
pub struct ConnectionRequest {
    device: Arc<Device>,
    id: u32,
    is_decided: AtomicBool,
}

impl ConnectionRequest {
    pub(crate) fn new(device: Arc<Device>, id: u32) -> Self {
        ConnectionRequest { device, id, is_decided: AtomicBool::new(false) }
    }

    /// Rejects the request, or hands it off. Returns false, without effect, if the request was already decided.
    pub(crate) fn refuse(&self, result: ReplyResult) -> bool {
        if self.is_decided.swap(true, Ordering::AcqRel) {
            return false;
        }
        setup::refuse(&self.device, self.id, result);
        true
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        self.refuse(ReplyResult::Rejected(Vec::new()));
    }
}

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.is_decided.store(true, Ordering::Release);
        setup::accept(&self.device, self.id, qp.0.clone(), private_data, conn)
            .inspect_err(|_| setup::refuse(&self.device, self.id, ReplyResult::Rejected(Vec::new())))
    }

    /// Redirects the client to the listener on `qual`, which may be in another process.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        match self.device.endpoint.base.find_listener(qual) {
            Ok(Some(_)) => {}
            Ok(None) => return Err((self, Error::InvalidParameter(2))),
            Err(error) => return Err((self, error)),
        }
        self.refuse(ReplyResult::HandedOff(qual));
        Ok(())
    }

    fn reject(self, private_data: &[u8]) {
        let data = if private_data.len() > MAX_REJECT_DATA { &[] } else { private_data };
        self.refuse(ReplyResult::Rejected(data.to_vec()));
    }
}
