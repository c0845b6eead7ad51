//! Reserved service points (RSPs): an RSP listens for one request, and has an EP reserved for it.
//!
//! The entries in `dapl_rsp` create, query and free RSPs; the request arrives through `cm`. After the event of the
//! first request was queued, all further requests are refused. The qualifier and the handle stay in use until the RSP
//! is freed. The free does not affect the request or its connection. No lock is held while the provider starts or stops
//! listening, or while an event is posted.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::cr::ProvidedEp;
use crate::cr::dapls_cr::{self, ServicePoint};
use crate::ep::state::EpStep;
use crate::ep::{Ep, dapls_ep};
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{Child, CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseGuard};

pub mod dapl_rsp;

pub struct Rsp<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    qual: u64,
    ep: ObjectId,
    state: Mutex<ListenerState<P>>,
}

/// The listener and the EVD of a service point, which a free removes, and whether the request has arrived.
struct ListenerState<P: Provider> {
    listener: Option<P::Listener>,
    /// EVD for the connection request; `None` after the free.
    evd: Option<UseGuard<Evd<P>>>,
    /// Whether the RSP has received its one request.
    is_spent: bool,
}

impl<P: Provider> Rsp<P> {
    /// Creates an RSP that listens. The EP is reserved first, so that even the earliest request finds the EP in the
    /// state `Reserved` (spec/endpoints 6.5).
    fn open(ia: &Arc<Ia<P>>, qual: u64, ep: &Ep<P>, evd: UseGuard<Evd<P>>) -> Result<Arc<Self>> {
        let made = handle::create(ia.table(), |id| {
            let state = Mutex::new(ListenerState { listener: None, evd: Some(evd), is_spent: false });
            Ok(Rsp { id, ia: ia.clone(), qual, ep: ep.id, state })
        })?;
        dapls_ep::advance(ep, EpStep::Reserve)?;
        let rsp = made.object().clone();
        made.publish();
        match ia.provider.listen(qual, rsp.id) {
            Ok(listener) => rsp.keep(listener)?,
            Err(error) => {
                let _ = rsp.stop_listening();
                return Err(error);
            }
        }
        ia.add_child(&rsp, CloseRank::Rsp);
        Ok(rsp)
    }

    /// Stores the listener. Errors: `InvalidHandle` if another thread has freed the RSP through a guessed handle.
    fn keep(&self, listener: P::Listener) -> Result<()> {
        let mut state = self.state.lock();
        if state.evd.is_none() {
            drop(state);
            drop(listener);
            return Err(Error::InvalidHandle(Handle::Rsp));
        }
        state.listener = Some(listener);
        Ok(())
    }

    /// Delivers a request. Returns it in `Err` if the RSP or its EP was freed, or the RSP already has a request. Also
    /// returns it if the CR cannot be created or the event queue is full; the RSP then waits for the next request.
    pub(crate) fn arrive(&self, request: P::Request, info: &RequestInfo) -> std::result::Result<(), P::Request> {
        let mut state = self.state.lock();
        let evd = state.evd.as_ref().filter(|_| !state.is_spent).map(|evd| evd.arc().clone());
        let (Some(evd), Some(ep)) = (evd, handle::from_id::<Ep<P>>(self.ep)) else { return Err(request) };
        if dapls_ep::request(&*ep, info.peer).is_err() {
            return Err(request);
        }
        state.is_spent = true;
        drop(state);
        let provided = Some(ProvidedEp { ep: self.ep, created_for_request: false });
        let arrival = ServicePoint { ia: &self.ia, evd: &evd, sp: self.id, qual: self.qual, provided };
        dapls_cr::create_and_report(&arrival, request, info).inspect_err(|_| {
            let mut state = self.state.lock();
            dapls_ep::end_request(&*ep, EpStep::RequestLost);
            state.is_spent = false;
            if state.evd.is_none() {
                let _ = dapls_ep::advance(&*ep, EpStep::Release);
            }
        })
    }

    /// Stops listening, and releases the EP if no request has arrived. Errors: `InvalidHandle` if the RSP has already
    /// stopped listening.
    fn stop_listening(&self) -> Result<()> {
        handle::free(self.id, Handle::Rsp)?;
        self.ia.remove_child(self);
        let mut state = self.state.lock();
        let (listener, evd) = (state.listener.take(), state.evd.take());
        if let (false, Some(ep)) = (state.is_spent, handle::from_id::<Ep<P>>(self.ep)) {
            // If a request has arrived, the EP keeps belonging to that request.
            let _ = dapls_ep::advance(&*ep, EpStep::Release);
        }
        drop(state);
        drop(listener);
        drop(evd);
        Ok(())
    }
}

impl<P: Provider> Object for Rsp<P> {
    const KIND: Kind = Kind::Rsp;
}

impl<P: Provider> Child for Rsp<P> {
    fn close(&self) {
        let _ = self.stop_listening();
    }
}
