//! Service points: the part that public, reserved and common service points (PSPs, RSPs, CSPs) share. A service point
//! listens on a qualifier, and turns each request into a CR and an event.
//!
//! The modules `psp`, `rsp` and `csp` define the roles. Requests arrive through `cm`. A free stops the listener before it
//! returns, and does not affect requests that have arrived or their connections. No lock is held while the provider
//! starts or stops listening, or while an event is posted.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::cr::ProvidedEp;
use crate::cr::dapls_cr::{self, Arrival};
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{Child, CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseGuard};

/// A service point of the kind that the role `R` defines.
pub struct ServicePoint<P: Provider, R> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// Set before each attempt to listen, since requests may arrive before that attempt returns.
    qual: AtomicU64,
    pub(crate) role: R,
    pub(crate) state: Mutex<ListenerState<P>>,
}

/// The listener and the EVD of a service point. A free removes both.
pub(crate) struct ListenerState<P: Provider> {
    listener: Option<P::Listener>,
    /// EVD for connection requests; `None` after the free.
    pub(crate) evd: Option<UseGuard<Evd<P>>>,
}

/// The part of a service point that depends on its kind.
pub trait Role<P: Provider>: Send + Sync + Sized + 'static {
    const KIND: Kind;
    /// The subtype of `INVALID_HANDLE` for this kind.
    const HANDLE: Handle;
    const RANK: CloseRank;

    /// Called with the state locked when the service point listens.
    fn listens(&self, _point: &ServicePoint<P, Self>) {}

    /// Called with the state locked when the service point is freed. `listened`: whether it has listened.
    fn stopped(&self, _point: &ServicePoint<P, Self>, _listened: bool) {}

    /// Provides the EP for a request. An error refuses the request.
    fn provide(&self, _point: &ServicePoint<P, Self>, _info: &RequestInfo) -> Result<Option<ProvidedEp>> {
        Ok(None)
    }

    /// Called if the request for which an EP was provided could not be reported to the consumer.
    fn take_back(&self, _point: &ServicePoint<P, Self>, _provided: ProvidedEp) {}
}

impl<P: Provider, R: Role<P>> ServicePoint<P, R> {
    /// Creates a service point, and makes it listen by `listen`, which calls [`Self::listen`]. Requests for its handle
    /// may arrive before this returns.
    pub(crate) fn open(
        ia: &Arc<Ia<P>>,
        role: R,
        evd: UseGuard<Evd<P>>,
        listen: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Arc<Self>> {
        let made = handle::create(ia.table(), |id| {
            let state = Mutex::new(ListenerState { listener: None, evd: Some(evd) });
            Ok(ServicePoint { id, ia: ia.clone(), qual: AtomicU64::new(0), role, state })
        })?;
        let point = made.object().clone();
        made.publish();
        if let Err(error) = listen(&point) {
            let _ = point.stop_listening();
            return Err(error);
        }
        ia.add_child(&point, R::RANK);
        Ok(point)
    }

    /// Listens on a qualifier. Errors: those of the provider; `InvalidHandle` if another thread has freed the service
    /// point through a guessed handle.
    pub(crate) fn listen(&self, qual: u64) -> Result<()> {
        self.qual.store(qual, Ordering::Relaxed);
        let listener = self.ia.provider.listen(qual, self.id)?;
        let mut state = self.state.lock();
        if state.evd.is_none() {
            drop(state);
            drop(listener);
            return Err(Error::InvalidHandle(R::HANDLE));
        }
        state.listener = Some(listener);
        self.role.listens(self);
        Ok(())
    }

    pub(crate) fn qual(&self) -> u64 {
        self.qual.load(Ordering::Relaxed)
    }

    /// Handle of the EVD that receives the connection requests. Errors: `InvalidHandle` if the service point was freed.
    pub(crate) fn evd_handle(&self) -> Result<usize> {
        self.state.lock().evd.as_ref().map(|evd| evd.id.handle).ok_or(Error::InvalidHandle(R::HANDLE))
    }

    /// Delivers a request. Returns it in `Err` if the service point was freed or its role refuses the request, if its
    /// event queue is full, or if the CR cannot be created.
    pub(crate) fn arrive(&self, request: P::Request, info: &RequestInfo) -> std::result::Result<(), P::Request> {
        let Some(evd) = self.state.lock().evd.as_ref().map(|evd| evd.arc().clone()) else { return Err(request) };
        let Ok(provided) = self.role.provide(self, info) else { return Err(request) };
        let arrival = Arrival { ia: &self.ia, evd: &evd, sp: self.id, qual: self.qual(), provided };
        dapls_cr::create_and_report(&arrival, request, info).inspect_err(|_| {
            if let Some(provided) = provided {
                self.role.take_back(self, provided);
            }
        })
    }

    /// Stops listening. Errors: `InvalidHandle` if the service point has already stopped listening.
    pub(crate) fn stop_listening(&self) -> Result<()> {
        handle::free(self.id, R::HANDLE)?;
        self.ia.remove_child(self);
        let mut state = self.state.lock();
        let (listener, evd) = (state.listener.take(), state.evd.take());
        self.role.stopped(self, listener.is_some());
        drop(state);
        drop(listener);
        drop(evd);
        Ok(())
    }
}

impl<P: Provider, R: Role<P>> Object for ServicePoint<P, R> {
    const KIND: Kind = R::KIND;
}

impl<P: Provider, R: Role<P>> Child for ServicePoint<P, R> {
    fn close(&self) {
        let _ = self.stop_listening();
    }
}
