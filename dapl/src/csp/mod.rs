//! Common service points (CSPs, DAT 2.0): a CSP listens at a port, for the EPs of a communicator.
//!
//! A port is the connection qualifier with the same number. So providers need not know about communicators, and all
//! kinds of service points share one number space. Requests arrive through `cm`, like the requests at a PSP, and no EP
//! is provided for them. No lock is held while the provider starts or stops listening, or while an event is posted.
#![forbid(unsafe_code)]

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cr::dapls_cr::{self, ServicePoint};
use crate::ep::Communicator;
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{Child, CloseRank, Ia};
use crate::provider::{Provider, RequestInfo};
use crate::runtime::consumer_memory::{ConsumerVisible, SocketAddress};
use crate::runtime::handle::{self, Kind, Object, ObjectId, UseGuard};

pub struct Csp<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    port: u16,
    /// The communicator as the consumer passed it, for queries.
    communicator: ConsumerVisible<2>,
    address: SocketAddress,
    state: Mutex<ListenerState<P>>,
}

/// The listener and the EVD of a service point. A free removes both.
struct ListenerState<P: Provider> {
    listener: Option<P::Listener>,
    /// EVD for connection requests; `None` after the free.
    evd: Option<UseGuard<Evd<P>>>,
}

/// The communicator and the address at which a new CSP listens.
pub(crate) struct CspAddress<'a> {
    pub(crate) communicator: Communicator,
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    /// The socket address as the consumer passes it.
    pub(crate) bytes: &'a [u8],
}

impl<P: Provider> Csp<P> {
    /// Creates a CSP that listens. Requests may arrive before this returns.
    ///
    /// Errors: `InvalidParameter(3)` for an address that is neither a unicast address of this host nor the wildcard
    /// address; `PortInUse` if another service point of any kind listens on this port.
    pub(crate) fn open(ia: &Arc<Ia<P>>, place: &CspAddress<'_>, evd: UseGuard<Evd<P>>) -> Result<Arc<Self>> {
        if !is_local(place.ip) {
            return Err(Error::InvalidParameter(3));
        }
        let made = handle::create(ia.table(), |id| {
            let Communicator { domain, kind, protocol } = place.communicator;
            let words = [domain, kind, protocol].map(i32::to_ne_bytes);
            Ok(Csp {
                id,
                ia: ia.clone(),
                port: place.port,
                communicator: ConsumerVisible::new(words.as_flattened()),
                address: SocketAddress::new(place.bytes),
                state: Mutex::new(ListenerState { listener: None, evd: Some(evd) }),
            })
        })?;
        let csp = made.object().clone();
        made.publish();
        if let Err(error) = csp.listen() {
            let _ = csp.stop_listening();
            return Err(if error == Error::ConnQualTaken { Error::PortInUse } else { error });
        }
        ia.add_child(&csp, CloseRank::Psp);
        Ok(csp)
    }

    fn listen(&self) -> Result<()> {
        let listener = self.ia.provider.listen(self.port.into(), self.id)?;
        let mut state = self.state.lock();
        if state.evd.is_none() {
            drop(state);
            drop(listener);
            return Err(Error::InvalidHandle(Handle::Csp)); // another thread freed the CSP through a guessed handle
        }
        state.listener = Some(listener);
        Ok(())
    }

    /// Delivers a request. Returns it in `Err` if the CSP was freed, its event queue is full, or the CR cannot be
    /// created.
    pub(crate) fn arrive(&self, request: P::Request, info: &RequestInfo) -> std::result::Result<(), P::Request> {
        let Some(evd) = self.state.lock().evd.as_ref().map(|evd| evd.arc().clone()) else { return Err(request) };
        let arrival = ServicePoint { ia: &self.ia, evd: &evd, sp: self.id, qual: self.port.into(), provided: None };
        dapls_cr::create_and_report(&arrival, request, info)
    }

    /// Stops listening. Errors: `InvalidHandle` if the CSP has already stopped listening.
    pub(crate) fn stop_listening(&self) -> Result<()> {
        handle::free(self.id, Handle::Csp)?;
        self.ia.remove_child(self);
        let mut state = self.state.lock();
        let (listener, evd) = (state.listener.take(), state.evd.take());
        drop(state);
        drop(listener);
        drop(evd);
        Ok(())
    }

    /// Returns the communicator and the address in the layout of the consumer. Pointers to both stay valid as long as
    /// the CSP exists.
    pub(crate) fn communicator_and_address(&self) -> (&ConsumerVisible<2>, &SocketAddress) {
        (&self.communicator, &self.address)
    }

    /// Handle of the EVD that receives the connection requests.
    ///
    /// Errors: `InvalidHandle` if the CSP was freed.
    pub(crate) fn evd(&self) -> Result<usize> {
        self.state.lock().evd.as_ref().map(|evd| evd.id.handle).ok_or(Error::InvalidHandle(Handle::Csp))
    }
}

/// Whether `ip` is a unicast address of this host, or the wildcard address. Linux also binds sockets to multicast and
/// broadcast addresses, but connects no socket to a broadcast address.
fn is_local(ip: IpAddr) -> bool {
    let connects_to_itself = |socket: UdpSocket| socket.connect(socket.local_addr()?);
    !ip.is_multicast() && UdpSocket::bind((ip, 0)).and_then(connects_to_itself).is_ok()
}

impl<P: Provider> Object for Csp<P> {
    const KIND: Kind = Kind::Csp;
}

impl<P: Provider> Child for Csp<P> {
    fn close(&self) {
        let _ = self.stop_listening();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_or_multicast_or_broadcast_address_is_not_local() {
        let is_local = |ip: &str| is_local(ip.parse().unwrap());
        assert!(is_local("127.0.0.1") && is_local("0.0.0.0"));
        for elsewhere in
            ["192.0.2.1", "224.0.0.1", "239.1.2.3", "255.255.255.255", "127.255.255.255", "ff02::1", "ff0e::1"]
        {
            assert!(!is_local(elsewhere), "{elsewhere}");
        }
    }
}
