//! Implements dapl's interface [`ConnRequest`]: accepts, rejects or hands off a connection request.
#![forbid(unsafe_code)]

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest};

use super::Qp;
use crate::cm::ConnectionRequest;
use crate::proto::setup::packets::RejectReason;

impl ConnRequest for ConnectionRequest {
    type Qp = Qp;

    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.accept_into(qp.0.clone(), private_data, conn, qp.0.caps()).map(drop)
    }

    fn reject(mut self, private_data: &[u8]) {
        self.send_result_with(RejectReason::Refused, private_data);
    }

    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        self.redirect(qual).map_err(|request| (request, Error::InvalidParameter(2)))
    }
}
