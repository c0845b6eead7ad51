//! A connection request that waits for the consumer's decision.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent};
use parking_lot::Mutex;

use super::connection::{ConnectTarget, RdmaConnection};
use super::{EventOwner, RdmaManager};
use crate::cm::IncomingRequest;
use crate::qp::{CmQueuePair, QpCore};
use crate::rdma_cm::{CmId, ConnParams};
use dapl_software::listener_retry::Retry;

/// First bytes of the private data of a consumer's reject: major and minor version of DAT, then of the provider. The
/// consumer's data follow (spec/endpoints 10.4).
pub(super) const REJECTION: [u8; 4] = [1, 2, 1, 2];

/// A connection request that waits for the consumer's decision.
pub(super) struct RdmaRequest {
    pub(super) manager: Arc<RdmaManager>,
    pub(super) number: usize,
    pub(super) id: Arc<CmId>,
    pub(super) params: ConnParams,
    pub(super) has_peer_ended: Arc<Mutex<bool>>,
}

impl IncomingRequest for RdmaRequest {
    fn accept(self: Arc<Self>, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()> {
        let device = self.manager.device.upgrade().ok_or(Error::Internal)?;
        let reads = qp.reads();
        let params = ConnParams {
            responder_resources: self.params.responder_resources.min(reads.incoming),
            initiator_depth: self.params.initiator_depth.min(reads.outgoing),
            srq: qp.has_shared_queue(),
            qp_number: qp.number(),
            ..self.params
        };
        let target = ConnectTarget {
            peer: self.id.peer().unwrap_or_else(|| SocketAddr::new(self.manager.address, 0)),
            private_data: Vec::new(),
            began: Instant::now(),
            retry: Retry::new(Duration::ZERO),
        };
        let answer = Some((params, private_data.to_vec()));
        let link = RdmaConnection::new(&self.manager, self.number, self.id.clone(), qp, target, answer);
        qp.attach(conn, link.clone()).inspect_err(|_| self.manager.release(self.number))?;
        self.manager.owners.lock().insert(self.number, EventOwner::Link(link.clone()));
        let accepted = match *self.has_peer_ended.lock() {
            true => Err(io::ErrorKind::NotConnected.into()),
            false if self.manager.defer_attempt(&device, &link) => Ok(()),
            false => link.accept(&device, qp),
        };
        if let Err(error) = accepted {
            // The error is reported by an event, not by the return code.
            link.cannot_accept(&error);
            let core = qp.clone();
            device.engine.run_on_engine(move || core.report_end(&*link, ConnectionEvent::AcceptFailed, &[]));
        }
        Ok(())
    }

    fn reject(&self, private_data: Option<&[u8]>) {
        let rejected = match private_data {
            Some(private_data) => self.id.reject(&[&REJECTION, private_data].concat()),
            None => self.id.reject_unserved().or_else(|_| self.id.reject(&REJECTION)),
        };
        if let Err(error) = rejected {
            log::debug!("cannot reject a connection request, which has probably ended: {error}");
        }
        self.manager.release(self.number);
    }
}
