//! Conversion of socket addresses that the kernel has written. `rustix::net::SocketAddrAny` is for the other direction.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A buffer for a socket address. All fields of the address types are integers, so any bytes are valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawSockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    bytes: [u8; size_of::<libc::sockaddr_in6>()],
}

impl RawSockAddr {
    /// An all-zero buffer.
    pub(crate) const EMPTY: RawSockAddr = RawSockAddr { bytes: [0; size_of::<libc::sockaddr_in6>()] };
}

/// Converts an address that the kernel has written. Returns `None` for another address family or too few bytes.
pub(crate) fn read(raw: &RawSockAddr, length: libc::socklen_t) -> Option<SocketAddr> {
    // SAFETY: both address formats begin with the family field, and all bytes of the union are initialized.
    let family = libc::c_int::from(unsafe { raw.v4.sin_family });
    if family == libc::AF_INET && length as usize >= size_of::<libc::sockaddr_in>() {
        // SAFETY: all bytes of the union are initialized.
        let raw = unsafe { raw.v4 };
        let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
        Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
    } else if family == libc::AF_INET6 && length as usize >= size_of::<libc::sockaddr_in6>() {
        // SAFETY: all bytes of the union are initialized.
        let raw = unsafe { raw.v6 };
        let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
        Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketAddrAny;

    use super::*;

    fn raw(address: SocketAddr) -> (RawSockAddr, libc::socklen_t) {
        let (address, mut raw) = (SocketAddrAny::from(address), RawSockAddr::EMPTY);
        let length = address.addr_len();
        // SAFETY: this number of bytes of the address is initialized, and the buffer has space for an IPv6 address.
        unsafe { (&raw mut raw).cast::<u8>().copy_from(address.as_ptr().cast(), length as usize) };
        (raw, length)
    }

    #[test]
    fn address_conversion_round_trips() {
        for text in ["127.0.0.1:1", "192.0.2.255:65535", "[::1]:17471", "[2001:db8::1]:2"] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, length) = raw(address);
            assert_eq!(read(&raw, length), Some(address));
        }
        let scoped: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3).into();
        let (raw, length) = raw(scoped);
        assert_eq!(read(&raw, length), Some(scoped));
    }

    #[test]
    fn short_or_unknown_addresses_return_none() {
        let (v6, length) = raw("[::1]:1".parse().unwrap());
        assert_eq!(read(&v6, length - 1), None);
        assert_eq!(read(&RawSockAddr::EMPTY, length), None);
        let (v4, length) = raw("1.2.3.4:1".parse().unwrap());
        assert_eq!(read(&v4, length - 1), None);
    }
}
