//! Connection requests, as dapl holds them: answered once, and refused when dropped unanswered.
#![forbid(unsafe_code)]

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnRequest};

use crate::cm::Incoming;
use crate::qp::Qp;

/// A connection request, as dapl holds it.
pub struct Request(pub(crate) Incoming);

impl ConnRequest for Request {
    type Qp = Qp;

    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()> {
        let wishes = qp.0.wishes();
        self.0.accept(qp.0.clone(), private_data, conn, wishes).map(drop)
    }

    fn reject(self) {
        self.0.reject();
    }

    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        self.0.hand_off(qual).map_err(|incoming| (Request(incoming), Error::InvalidParameter(2)))
    }
}
