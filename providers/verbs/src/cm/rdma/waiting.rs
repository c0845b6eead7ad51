//! A request that waits for the consumer: accepted into a queue pair, refused, or dropped.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent};
use parking_lot::Mutex;

use super::link::{ConnectionPhase, RdmaLink, Target};
use super::{EventOwner, Rdma};
use crate::cm::{Refusal, Waiting};
use crate::qp::QpCore;
use crate::rdma_cm::{Id, Terms};
use dapl_software::listener_retry::Retry;

/// Begin of the private data of a consumer's reject: DAT's version and the provider's, one byte each. The consumer's data follow
/// (spec/endpoints 10.4).
pub(super) const REJECTION: [u8; 4] = [1, 2, 1, 2];

/// A request that waits for the consumer.
pub(super) struct RdmaRequest {
    pub(super) manager: Arc<Rdma>,
    pub(super) number: usize,
    pub(super) id: Option<Arc<Id>>,
    pub(super) terms: Terms,
    pub(super) has_left: Arc<Mutex<bool>>,
}

impl Waiting for RdmaRequest {
    fn accept(mut self: Box<Self>, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()> {
        let (Some(id), Some(device)) = (self.id.take(), self.manager.device.upgrade()) else {
            return Err(Error::Internal);
        };
        let reads = qp.reads();
        let terms = Terms {
            responder_resources: self.terms.responder_resources.min(reads.incoming),
            initiator_depth: self.terms.initiator_depth.min(reads.outgoing),
            srq: qp.has_shared_queue(),
            qp_number: qp.number(),
            ..self.terms
        };
        let link = Arc::new(RdmaLink {
            manager: Arc::downgrade(&self.manager),
            number: self.number,
            target: Target {
                peer: id.peer().unwrap_or_else(|| SocketAddr::new(self.manager.address, 0)),
                private_data: Vec::new(),
                began: Instant::now(),
                retry: Retry::new(Duration::ZERO),
            },
            id,
            core: Arc::downgrade(qp),
            qp: qp.number(),
            has_left: AtomicBool::new(false),
            answer: Mutex::new(Some((terms, private_data.to_vec()))),
            tries: Default::default(),
            stage: Mutex::new(ConnectionPhase::Accepted),
        });
        qp.attach(conn, link.clone()).inspect_err(|_| self.manager.forget(self.number))?;
        self.manager.known.lock().insert(self.number, EventOwner::Link(link.clone()));
        let accepted = match *self.has_left.lock() {
            true => Err(io::ErrorKind::NotConnected.into()),
            false if self.manager.park(&device, &link) => Ok(()),
            false => link.accept(&device, qp),
        };
        if let Err(error) = accepted {
            // An event reports the error to the consumer.
            link.cannot_accept(&error);
            let core = qp.clone();
            device.reactor.soon(move || core.over(&*link, ConnectionEvent::AcceptFailed));
        }
        Ok(())
    }

    fn refuse(mut self: Box<Self>, by: Refusal) {
        if let Some(id) = self.id.take() {
            self.say_no(&id, by, &[]);
        }
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        if let Some(id) = self.id.take() {
            self.say_no(&id, Refusal::Consumer, private_data);
        }
    }
}

impl RdmaRequest {
    fn say_no(&self, id: &Id, by: Refusal, private_data: &[u8]) {
        let said = match by {
            Refusal::Consumer => id.reject(&[&REJECTION, private_data].concat()),
            Refusal::NoListener => id.turn_away().or_else(|_| id.reject(&REJECTION)),
        };
        if let Err(error) = said {
            log::debug!("a request to be rejected has ended already: {error}");
        }
        self.manager.forget(self.number);
    }
}

impl Drop for RdmaRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.say_no(&id, Refusal::NoListener, &[]);
        }
    }
}
