//! Communicators (DAT 2.0): the address family and socket type for the ports of common service points.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::provider::PeerAddress;
use crate::runtime::consumer_memory;

/// A communicator: the three arguments of `socket`. If all three are zero, no communicator was set, and both IPv4 and
/// IPv6 addresses are allowed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Communicator {
    pub domain: i32,
    pub kind: i32,
    pub protocol: i32,
}

impl Communicator {
    /// Checks that the communicator is supported.
    ///
    /// Errors: `CommNotSupported` for a family other than IPv4 and IPv6, or a type other than TCP streams, unless all
    /// three fields are zero.
    pub fn check(self) -> Result<()> {
        let is_known = matches!(self.domain, libc::AF_INET | libc::AF_INET6)
            && matches!(self.kind, 0 | libc::SOCK_STREAM)
            && matches!(self.protocol, 0 | libc::IPPROTO_TCP);
        if self == Communicator::default() || is_known { Ok(()) } else { Err(Error::CommNotSupported) }
    }

    /// Parses a socket address of this communicator into IP address and port. `n` is the number of the parameter that
    /// contains the address.
    ///
    /// Errors: `CommNotSupported` for a communicator that is not supported, or an address of another family;
    /// `InvalidParameter(n)` for port 0.
    pub fn parse_address(self, address: &[u8], n: u8) -> Result<(IpAddr, u16)> {
        self.check()?;
        let ip = match consumer_memory::parse_address(address) {
            Some(PeerAddress::Ip(ip @ IpAddr::V4(_))) if matches!(self.domain, 0 | libc::AF_INET) => ip,
            Some(PeerAddress::Ip(ip @ IpAddr::V6(_))) if matches!(self.domain, 0 | libc::AF_INET6) => ip,
            _ => return Err(Error::CommNotSupported),
        };
        match u16::from_be_bytes([address[2], address[3]]) {
            0 => Err(Error::InvalidParameter(n)),
            port => Ok((ip, port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::consumer_memory::socket_address;

    const TCP: Communicator = Communicator { domain: libc::AF_INET, kind: libc::SOCK_STREAM, protocol: 0 };

    #[test]
    fn communicator_parses_address_and_port() {
        let v4 = socket_address("192.0.2.1:7000".parse().unwrap());
        let v6 = socket_address("[2001:db8::1]:7".parse().unwrap());
        assert_eq!(TCP.parse_address(&v4[..16], 3), Ok(("192.0.2.1".parse().unwrap(), 7000)));
        assert_eq!(Communicator::default().parse_address(&v6, 3), Ok(("2001:db8::1".parse().unwrap(), 7)));
        assert_eq!(TCP.parse_address(&v6, 3), Err(Error::CommNotSupported));
        let no_port = socket_address("192.0.2.1:0".parse().unwrap());
        assert_eq!(TCP.parse_address(&no_port, 3), Err(Error::InvalidParameter(3)));
        assert_eq!(TCP.parse_address(&[1, 0, 47], 3), Err(Error::CommNotSupported), "AF_UNIX");
    }

    #[test]
    fn other_communicator_domains_and_socket_types_are_not_supported() {
        for bad in [
            Communicator { domain: libc::AF_UNIX, ..TCP },
            Communicator { kind: libc::SOCK_DGRAM, ..TCP },
            Communicator { protocol: libc::IPPROTO_UDP, ..TCP },
            Communicator { domain: 0, ..TCP },
        ] {
            assert_eq!(bad.check(), Err(Error::CommNotSupported), "{bad:?}");
        }
        assert_eq!(TCP.check(), Ok(()));
    }
}
