//! Connection requests: what a peer asked for, until the consumer says yes or no.
//!
//! `psp` and `rsp` make one per request through `dapls_cr`; the entries in `dapl_cr` decide it. Its handle dies with the
//! decision; its memory, with the private data that the consumer may still read, stays with the EP that accepted. It does
//! not depend on the service point, which may go first. There is no time limit.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ep::{Ep, dapls_ep};
use crate::error::{Error, Handle, Result};
use crate::ia::{Child, Ia};
use crate::provider::{ConnRequest, Provider};
use crate::runtime::consumer_memory::{Address, PrivateData};
use crate::runtime::handle::{self, Kind, Object, ObjectId};

pub mod dapl_cr;
mod dapli_cr;
pub(crate) mod dapls_cr;

/// A connection request.
pub struct Cr<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    peer: SocketAddr,
    address: Address,
    private_data: PrivateData,
    private_data_size: usize,
    own: Option<Own>,
    /// Taken by the first decision; never locked together with another lock.
    request: Mutex<Option<P::Request>>,
}

/// The EP that the service point brought along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) ep: ObjectId,
    /// Made for this request, so it goes with a refusal.
    pub(crate) was_made: bool,
}

impl<P: Provider> Cr<P> {
    /// Takes the request, once: from here on it is decided, and the handle is invalid.
    fn take(&self) -> Result<P::Request> {
        let request = self.request.lock().take().ok_or(Error::InvalidHandle(Handle::Cr))?;
        handle::destroy(self.id);
        self.ia.forget(self);
        Ok(request)
    }

    /// Gives it to another service point. If that cannot be had, it stays with the consumer.
    fn hand_off(&self, qual: u64) -> Result<()> {
        let request = self.request.lock().take().ok_or(Error::InvalidHandle(Handle::Cr))?;
        if let Err((request, error)) = request.hand_off(qual) {
            *self.request.lock() = Some(request);
            return Err(error);
        }
        handle::destroy(self.id);
        self.ia.forget(self);
        self.let_go();
        Ok(())
    }

    /// Rejects the request.
    fn reject(&self) -> Result<()> {
        self.take()?.reject();
        self.ia.count(|events| &events.rejects);
        self.let_go();
        Ok(())
    }

    /// The EP of a request that came to nothing: the RSP's goes back to its consumer, a made one ends.
    fn let_go(&self) {
        let Some(own) = self.own else { return };
        let Some(ep) = handle::from_id::<Ep<P>>(own.ep) else { return };
        if own.was_made {
            dapls_ep::close(&*ep);
        } else {
            dapls_ep::decline(&*ep);
        }
    }
}

impl<P: Provider> Object for Cr<P> {
    const KIND: Kind = Kind::Cr;
}

impl<P: Provider> Child for Cr<P> {
    fn close(&self) {
        let _ = self.reject();
    }

    /// A graceful close checks service points (spec/registry 6.2); it rejects their undecided requests.
    fn counts_as_open(&self) -> bool {
        false
    }
}
