//! Conversion of socket addresses between the kernel's format and that of the standard library.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};

/// A socket address of IPv4 or IPv6, in the kernel's format.
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    raw: RawSockAddr,
    length: libc::socklen_t,
}

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

impl SockAddr {
    pub(crate) fn of(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all fields of `sockaddr_in` are integers, so all-zero bytes are valid.
                let mut raw: libc::sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                let mut storage = RawSockAddr::EMPTY;
                storage.v4 = raw;
                SockAddr { raw: storage, length: size_of_val(&raw) as libc::socklen_t }
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all fields of `sockaddr_in6` are integers, so all-zero bytes are valid.
                let mut raw: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_scope_id = v6.scope_id();
                SockAddr { raw: RawSockAddr { v6: raw }, length: size_of_val(&raw) as libc::socklen_t }
            }
        }
    }

    /// Returns a pointer for a system call, which is valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.raw).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.length
    }
}

// SAFETY: pointer and length are those of the address in `self`, which is in the kernel's format.
unsafe impl SocketAddrArg for SockAddr {
    #[inline(always)]
    unsafe fn with_sockaddr<R>(&self, call: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        call(self.as_ptr().cast(), self.len())
    }
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
    use super::*;

    #[test]
    fn address_conversion_round_trips() {
        for text in ["127.0.0.1:1", "192.0.2.255:65535", "[::1]:17471", "[2001:db8::1]:2"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = SockAddr::of(address);
            assert_eq!(read(&name.raw, name.length), Some(address));
        }
        let scoped: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3).into();
        assert_eq!(read(&SockAddr::of(scoped).raw, SockAddr::of(scoped).length), Some(scoped));
    }

    #[test]
    fn short_or_unknown_addresses_return_none() {
        let v6 = SockAddr::of("[::1]:1".parse().unwrap());
        assert_eq!(read(&v6.raw, v6.length - 1), None);
        assert_eq!(read(&RawSockAddr::EMPTY, v6.length), None);
        let v4 = SockAddr::of("1.2.3.4:1".parse().unwrap());
        assert_eq!(read(&v4.raw, v4.length - 1), None);
    }
}
