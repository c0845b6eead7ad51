//! Dispatches the connection events of a provider. A connection request is passed to its service point, which creates a
//! CR. A connection event is passed to its EP, if the EP's current attempt has the number in the event. The report that
//! an EP has too many receives is passed to the EP without this check.
//!
//! Runs on the provider's threads. An event for an object or attempt that no longer exists is dropped. A request for a
//! service point that no longer exists is returned to the provider.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;

use crate::csp::Csp;
use crate::ep::{Ep, dapls_ep};
use crate::provider::{CmSink, ConnId, ConnectionEvent, Provider, RequestInfo};
use crate::psp::Psp;
use crate::rsp::Rsp;
use crate::runtime::handle::{ObjectId, from_id};

/// The sink that providers report connection events to. One sink serves any number of IAs.
pub fn sink<P: Provider>() -> Arc<dyn CmSink<P>> {
    Arc::new(EventDispatcher(PhantomData))
}

struct EventDispatcher<P>(PhantomData<fn() -> P>);

impl<P: Provider> CmSink<P> for EventDispatcher<P> {
    fn request(&self, listener: ObjectId, request: P::Request, info: RequestInfo) -> Result<(), P::Request> {
        if let Some(psp) = from_id::<Psp<P>>(listener) {
            psp.arrive(request, &info)
        } else if let Some(rsp) = from_id::<Rsp<P>>(listener) {
            rsp.arrive(request, &info)
        } else if let Some(csp) = from_id::<Csp<P>>(listener) {
            csp.arrive(request, &info)
        } else {
            log::debug!("connection request of {} rejected: its service point was freed", info.peer);
            Err(request)
        }
    }

    fn many_recvs(&self, ep: ObjectId) {
        if let Some(ep) = from_id::<Ep<P>>(ep) {
            dapls_ep::many_recvs(&ep);
        }
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        match from_id::<Ep<P>>(conn.ep) {
            Some(ep) => dapls_ep::connection_event(&ep, conn.attempt, event, private_data),
            None => log::trace!("ep {:#x}: {event:?} dropped, because the EP was freed", conn.ep.handle),
        }
    }
}
