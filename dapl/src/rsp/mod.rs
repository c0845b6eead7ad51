//! Reserved service points (RSPs): an RSP listens for one request, and has an EP reserved for it.
//!
//! The entries in `dapl_rsp` create, query and free RSPs. After the event of the first request was queued, all further
//! requests are refused. The qualifier and the handle stay in use until the RSP is freed. What all service points share
//! is in `service_point`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cr::ProvidedEp;
use crate::ep::state::EpStep;
use crate::ep::{Ep, dapls_ep};
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::handle::{self, Kind, ObjectId, UseGuard};
use crate::service_point::{Role, ServicePoint};

pub mod dapl_rsp;

pub type Rsp<P> = ServicePoint<P, Reserved>;

/// The role of RSPs.
pub struct Reserved {
    ep: ObjectId,
    /// Whether the EP is reserved and the request has not arrived. Accessed with the state of the service point locked.
    is_waiting: AtomicBool,
}

impl<P: Provider> Role<P> for Reserved {
    const KIND: Kind = Kind::Rsp;
    const HANDLE: Handle = Handle::Rsp;
    const RANK: CloseRank = CloseRank::Rsp;

    /// Releases the EP if no request has arrived. Otherwise the EP keeps belonging to the request.
    fn stopped(&self, _: &Rsp<P>, _: bool) {
        if let (true, Some(ep)) = (self.is_waiting.load(Ordering::Relaxed), handle::from_id::<Ep<P>>(self.ep)) {
            let _ = dapls_ep::advance(&*ep, EpStep::Release);
        }
    }

    fn provide(&self, rsp: &Rsp<P>, info: &RequestInfo) -> Result<Option<ProvidedEp>> {
        let state = rsp.state.lock();
        if state.evd.is_none() || !self.is_waiting.load(Ordering::Relaxed) {
            return Err(Error::InvalidHandle(Handle::Rsp));
        }
        let ep = handle::from_id::<Ep<P>>(self.ep).ok_or(Error::InvalidHandle(Handle::Ep))?;
        dapls_ep::request(&*ep, info.peer)?;
        self.is_waiting.store(false, Ordering::Relaxed);
        Ok(Some(ProvidedEp { ep: self.ep, created_for_request: false }))
    }

    /// Waits for the next request, or releases the EP if the RSP was freed meanwhile.
    fn take_back(&self, rsp: &Rsp<P>, provided: ProvidedEp) {
        let state = rsp.state.lock();
        self.is_waiting.store(true, Ordering::Relaxed);
        if let Some(ep) = handle::from_id::<Ep<P>>(provided.ep) {
            dapls_ep::end_request(&*ep, EpStep::RequestLost);
            if state.evd.is_none() {
                let _ = dapls_ep::advance(&*ep, EpStep::Release);
            }
        }
    }
}

/// Creates an RSP that listens. The EP is reserved first, so that even the earliest request finds the EP in the state
/// `Reserved` (spec/endpoints 6.5).
fn open<P: Provider>(ia: &Arc<Ia<P>>, qual: u64, ep: &Ep<P>, evd: UseGuard<Evd<P>>) -> Result<Arc<Rsp<P>>> {
    Rsp::open(ia, Reserved { ep: ep.id, is_waiting: AtomicBool::new(false) }, evd, |rsp| {
        let state = rsp.state.lock();
        dapls_ep::advance(ep, EpStep::Reserve)?;
        rsp.role.is_waiting.store(true, Ordering::Relaxed);
        drop(state);
        rsp.listen(qual)
    })
}
