//! Connection requests (CRs): a CR is a request of a peer that the consumer has not accepted, rejected or handed off
//! yet.
//!
//! Service points create a CR for each request through `dapls_cr`; the entries in `dapl_cr` accept it, reject it or
//! hand it off. A call that consumes the request invalidates the handle. The accepting EP keeps the CR in memory,
//! because the consumer may still read its private data. A CR may outlive its service point and has no time limit.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ep::state::EpStep;
use crate::ep::{Ep, dapls_ep};
use crate::error::{Error, Handle, Result};
use crate::ia::{Child, Ia};
use crate::provider::{ConnRequest, Provider};
use crate::runtime::consumer_memory::{PrivateData, SocketAddress};
use crate::runtime::handle::{self, Kind, Object, ObjectId};

pub mod dapl_cr;
mod dapli_cr;
pub(crate) mod dapls_cr;

pub struct Cr<P: Provider> {
    id: ObjectId,
    /// IA of the service point at which the request arrived.
    pub(crate) ia: Arc<Ia<P>>,
    peer: SocketAddr,
    address: SocketAddress,
    private_data: PrivateData,
    private_data_size: usize,
    provided: Option<ProvidedEp>,
    /// The provider's request, until an accept, reject or handoff removes it. No other lock is acquired while this one
    /// is held.
    request: Mutex<Option<P::Request>>,
}

/// The EP that the service point has provided for the request.
#[derive(Clone, Copy, Debug)]
pub struct ProvidedEp {
    pub(crate) ep: ObjectId,
    /// Whether the EP was created for this request. Such an EP is freed if the request cannot be reported to the
    /// consumer, is rejected or handed off, or if an accept fails after it has consumed the request.
    pub(crate) created_for_request: bool,
}

impl<P: Provider> Cr<P> {
    /// Removes and returns the request, and invalidates the CR's handle. Errors: `InvalidHandle` if the request is
    /// already removed.
    fn take(&self) -> Result<P::Request> {
        let request = self.request.lock().take().ok_or(Error::InvalidHandle(Handle::Cr))?;
        handle::destroy(self.id);
        self.ia.remove_child(self);
        Ok(request)
    }

    /// Passes the request to another service point. After an error, the CR keeps the request.
    fn hand_off(&self, qual: u64) -> Result<()> {
        let request = self.request.lock().take().ok_or(Error::InvalidHandle(Handle::Cr))?;
        if let Err((request, error)) = request.hand_off(qual) {
            *self.request.lock() = Some(request);
            return Err(error);
        }
        handle::destroy(self.id);
        self.ia.remove_child(self);
        self.release_ep();
        Ok(())
    }

    /// Rejects the request, with private data for the requester.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.take()?.reject(private_data);
        self.ia.count(|events| events.rejects += 1);
        self.release_ep();
        Ok(())
    }

    /// Releases the EP that the service point has provided for a request that was not accepted. The EP of an RSP
    /// becomes usable again; an EP that was created for the request is freed.
    fn release_ep(&self) {
        let Some(provided) = self.provided else { return };
        let Some(ep) = handle::from_id::<Ep<P>>(provided.ep) else { return };
        if provided.created_for_request {
            dapls_ep::close(&*ep);
        } else {
            dapls_ep::end_request(&*ep, EpStep::Decline);
        }
    }
}

impl<P: Provider> Object for Cr<P> {
    const KIND: Kind = Kind::Cr;
}

impl<P: Provider> Child for Cr<P> {
    fn close(&self) {
        let _ = self.reject(&[]);
    }

    /// Returns false: a pending request alone does not prevent a graceful close of the IA, which then rejects the
    /// request (spec/registry 6.2).
    fn counts_as_open(&self) -> bool {
        false
    }
}
