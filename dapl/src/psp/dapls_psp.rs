//! PSP operations for `cm`: delivers a connection request.
#![forbid(unsafe_code)]

use super::Psp;
use crate::cr::ProvidedEp;
use crate::cr::dapls_cr::{self, Arrival};
use crate::ep::{Ep, dapls_ep};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::handle;

/// Delivers a request. Returns it in `Err` if the PSP was freed, its event queue is full, or the CR or EP cannot be
/// created.
pub(crate) fn arrive<P: Provider>(psp: &Psp<P>, request: P::Request, info: &RequestInfo) -> Result<(), P::Request> {
    let Some(evd) = psp.state.lock().evd.as_ref().map(|evd| evd.arc().clone()) else { return Err(request) };
    let provided = match psp.creates_eps.then(|| dapls_ep::create_tentative(&psp.ia, info.peer)).transpose() {
        Ok(ep) => ep.map(|ep| ProvidedEp { ep: ep.id, created_for_request: true }),
        Err(error) => {
            log::error!(
                "psp {:#x}: cannot create an EP for the connection request of {}, which is rejected: {error}; free EPs that are not \
                 in use",
                psp.id.handle,
                info.peer
            );
            return Err(request);
        }
    };
    let arrival = Arrival { ia: &psp.ia, evd: &evd, sp: psp.id, qual: psp.qual(), provided };
    dapls_cr::create_and_report(&arrival, request, info).inspect_err(|_| {
        if let Some(ep) = provided.and_then(|provided| handle::from_id::<Ep<P>>(provided.ep)) {
            dapls_ep::close(&*ep);
        }
    })
}
