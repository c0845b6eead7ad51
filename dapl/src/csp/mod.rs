//! Common service points (CSPs, DAT 2.0): a CSP listens at a port, for the EPs of a communicator.
//!
//! A port is the connection qualifier with the same number. So providers need not know about communicators, and all
//! kinds of service points share one number space. No EP is provided for the requests. What all service points share is
//! in `service_point`.
#![forbid(unsafe_code)]

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use crate::ep::Communicator;
use crate::error::{Error, Handle, Result};
use crate::evd::Evd;
use crate::ia::{CloseRank, Ia};
use crate::provider::Provider;
use crate::runtime::consumer_memory::{ConsumerVisible, SocketAddress};
use crate::runtime::handle::{Kind, UseGuard};
use crate::service_point::{Role, ServicePoint};

pub type Csp<P> = ServicePoint<P, Common>;

/// The role of CSPs: the communicator and the address as the consumer passed them, for queries. Pointers to both stay
/// valid as long as the CSP exists.
pub struct Common {
    pub(crate) communicator: ConsumerVisible<2>,
    pub(crate) address: SocketAddress,
}

impl<P: Provider> Role<P> for Common {
    const KIND: Kind = Kind::Csp;
    const HANDLE: Handle = Handle::Csp;
    const RANK: CloseRank = CloseRank::Psp;
}

/// Creates a CSP that listens at a socket address of the communicator. Requests may arrive before this returns.
///
/// Errors: those of [`Communicator::parse_address`]; `InvalidParameter(3)` for an address that is neither a unicast
/// address of this host nor the wildcard address; `PortInUse` if another service point of any kind listens on this
/// port.
pub(crate) fn open<P: Provider>(
    ia: &Arc<Ia<P>>,
    communicator: Communicator,
    address: &[u8],
    evd: UseGuard<Evd<P>>,
) -> Result<Arc<Csp<P>>> {
    let (ip, port) = communicator.parse_address(address, 3)?;
    if !is_local(ip) {
        return Err(Error::InvalidParameter(3));
    }
    let Communicator { domain, kind, protocol } = communicator;
    let words = [domain, kind, protocol].map(i32::to_ne_bytes);
    let role =
        Common { communicator: ConsumerVisible::new(words.as_flattened()), address: SocketAddress::new(address) };
    Csp::open(ia, role, evd, |csp| csp.listen(port.into())).map_err(|error| match error {
        Error::ConnQualTaken => Error::PortInUse,
        error => error,
    })
}

/// Whether `ip` is a unicast address of this host, or the wildcard address. Linux also binds sockets to multicast and
/// broadcast addresses, but connects no socket to a broadcast address.
fn is_local(ip: IpAddr) -> bool {
    let connects_to_itself = |socket: UdpSocket| socket.connect(socket.local_addr()?);
    !ip.is_multicast() && UdpSocket::bind((ip, 0)).and_then(connects_to_itself).is_ok()
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
