//! Addresses of a provider that connects only processes of one host: the address that an IA reports to consumers, and
//! checks whether the address of a peer belongs to this host.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::PeerAddress;

/// Returns the address that this host reports to consumers: its source address on the default route, or 127.0.0.1 if it
/// has no default route.
///
/// Programs send this address to other hosts, on which 127.0.0.1 would be the address of the other host.
pub fn advertised_address() -> IpAddr {
    // Connecting a datagram socket looks up the route and sends no packet. 192.0.2.0/24 is reserved for documentation.
    let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    match routed {
        Ok(address) if !address.ip().is_unspecified() => address.ip(),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

/// Whether `ip` is an address of this host. Tries to bind a socket to the address, which needs a file descriptor.
///
/// Errors: `Exhausted(Device)` if no descriptor is free.
pub fn is_local(ip: IpAddr) -> Result<bool> {
    let ip = ip.to_canonical();
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Ok(false);
    }
    if ip.is_loopback() {
        return Ok(true);
    }
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            log::error!(
                "cannot determine whether {ip} is an address of this host: {error}; allow more open files (ulimit -n)"
            );
            Err(Error::Exhausted(Resource::Device))
        }
        Err(_) => Ok(false),
    }
}

/// Checks that `address` is an IP address of this host. Errors: `InvalidAddress(Unreachable)` if it is not, and those
/// of [`is_local`].
pub fn require_local(address: &PeerAddress) -> Result<()> {
    match address {
        PeerAddress::Ip(ip) if is_local(*ip)? => Ok(()),
        _ => Err(Error::InvalidAddress(AddressProblem::Unreachable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_host_are_local() {
        for local in ["127.0.0.1", "127.0.1.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(is_local(local.parse().unwrap()), Ok(true), "{local}");
        }
        for remote in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.77", "2001:db8::1"] {
            assert_eq!(is_local(remote.parse().unwrap()), Ok(false), "{remote}");
        }
        assert_eq!(is_local(advertised_address()), Ok(true));
    }
}
