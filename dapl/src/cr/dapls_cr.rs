//! CR operations for service points: creates a CR for a request, and reports it to the consumer.
#![forbid(unsafe_code)]

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Cr, ProvidedEp};
use crate::evd::{Evd, Event, dapls_evd};
use crate::ia::{CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::consumer_memory::{self, PrivateData, SocketAddress};
use crate::runtime::handle::{self, ObjectId};

/// A request's arrival at a service point.
pub(crate) struct Arrival<'a, P: Provider> {
    pub(crate) ia: &'a Arc<Ia<P>>,
    pub(crate) evd: &'a Arc<Evd<P>>,
    /// Id of the service point.
    pub(crate) sp: ObjectId,
    pub(crate) qual: u64,
    pub(crate) provided: Option<ProvidedEp>,
}

/// Creates a CR in its IA and queues its event. If the CR cannot be created or the event queue is full, returns the
/// request in `Err`, and the consumer gets no event.
pub(crate) fn create_and_report<P: Provider>(
    arrival: &Arrival<'_, P>,
    request: P::Request,
    info: &RequestInfo,
) -> Result<(), P::Request> {
    let Arrival { ia, evd, sp, qual, provided } = arrival;
    let made = handle::create(ia.table(), |id| {
        Ok(Cr {
            id,
            ia: Arc::clone(ia),
            peer: info.peer,
            address: SocketAddress::new(&consumer_memory::socket_address(info.peer)),
            private_data: PrivateData::new(&info.private_data),
            private_data_size: info.reported_len.min(PrivateData::SIZE).min(ia.private_data_connect()),
            provided: *provided,
            request: Mutex::new(None),
        })
    });
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            log::error!(
                "connection request of {} at qualifier {qual} rejected: cannot create a CR: {error}; free objects that are not in use",
                info.peer
            );
            return Err(request);
        }
    };
    let cr: Arc<Cr<P>> = made.object().clone();
    *cr.request.lock() = Some(request);
    made.publish();
    let child = ia.add_child(&cr, CloseRank::Cr);

    let address = ia.address_ptr() as usize;
    let event = Event::Request { sp: sp.handle, address, qual: *qual, cr: cr.id.handle, child };
    let Err(error) = dapls_evd::post(evd, event) else {
        ia.count(|events| events.requests += 1);
        return Ok(());
    };
    log::warn!(
        "connection request of {} at qualifier {qual} rejected: cannot queue its event: {error}; create the EVD with a larger length",
        info.peer
    );
    // If the IA was closed meanwhile, its close has rejected the request and removed the CR.
    cr.take().map_or(Ok(()), Err)
}
