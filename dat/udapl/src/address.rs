//! IP addresses of adapters, converted between Rust and C.

use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use dat_abi::{DAT_IA_ADDRESS_PTR, DAT_SOCK_ADDR};

/// Address of an adapter: IPv4 or IPv6, with a scope if link-local. DAT does not use a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Address(SocketAddr);

impl Address {
    /// Returns the IP address, without the scope.
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the C representation.
    pub fn to_c(self) -> SockAddr {
        let mut raw = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        match self.0 {
            SocketAddr::V4(address) => {
                // SAFETY: the storage is long enough and aligned for every family, and all-zero bytes are a valid
                // address.
                let v4 = unsafe { &mut *raw.as_mut_ptr().cast::<libc::sockaddr_in>() };
                v4.sin_family = libc::AF_INET as libc::sa_family_t;
                v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            }
            SocketAddr::V6(address) => {
                // SAFETY: the storage is long enough and aligned for every family, and all-zero bytes are a valid
                // address.
                let v6 = unsafe { &mut *raw.as_mut_ptr().cast::<libc::sockaddr_in6>() };
                v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                v6.sin6_addr.s6_addr = address.ip().octets();
                v6.sin6_scope_id = address.scope_id();
            }
        }
        // SAFETY: the whole storage was zeroed, and part of it was then written.
        SockAddr(unsafe { raw.assume_init() })
    }

    /// Converts a C address. Returns `None` for a null pointer and for families other than IPv4 and IPv6.
    ///
    /// # Safety
    /// `at` is null, or a socket address of the length that its family requires.
    pub unsafe fn from_c(at: DAT_IA_ADDRESS_PTR) -> Option<Self> {
        if at.is_null() {
            return None;
        }
        // SAFETY: `at` is not null, so the caller guarantees that it is a socket address. It may be unaligned.
        let family = i32::from(unsafe { at.read_unaligned() }.sa_family);
        match family {
            libc::AF_INET => {
                // SAFETY: the family guarantees this length.
                let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
                Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family guarantees this length.
                let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
                Some(SocketAddrV6::new(Ipv6Addr::from(v6.sin6_addr.s6_addr), 0, 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// A socket address for C.
#[derive(Clone, Copy)]
pub struct SockAddr(libc::sockaddr_storage);

impl SockAddr {
    /// Pointer for a call that only reads the address.
    pub fn as_ptr(&self) -> DAT_IA_ADDRESS_PTR {
        const { assert!(size_of::<DAT_SOCK_ADDR>() <= size_of::<libc::sockaddr_storage>()) };
        (&raw const self.0).cast::<DAT_SOCK_ADDR>().cast_mut()
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Address(SocketAddr::new(ip, 0))
    }
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Self {
        IpAddr::from(ip).into()
    }
}

impl From<Ipv6Addr> for Address {
    fn from(ip: Ipv6Addr) -> Self {
        IpAddr::from(ip).into()
    }
}

impl fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SockAddr")
    }
}

impl From<SocketAddrV6> for Address {
    fn from(address: SocketAddrV6) -> Self {
        Address(SocketAddrV6::new(*address.ip(), 0, 0, address.scope_id()).into())
    }
}

/// Keeps the IP address, and the scope of an IPv6 address. Drops the port.
impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => (*v4.ip()).into(),
            SocketAddr::V6(v6) => v6.into(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => write!(f, "{}%{}", v6.ip(), v6.scope_id()),
            other => write!(f, "{}", other.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_to_c_and_back() {
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 9, 3);
        for address in [Address::from(Ipv4Addr::new(127, 0, 1, 1)), Ipv6Addr::LOCALHOST.into(), scoped.into()] {
            // SAFETY: the address was created above and is complete.
            assert_eq!(unsafe { Address::from_c(address.to_c().as_ptr()) }, Some(address));
        }
        assert_eq!(Address::from(scoped).to_string(), "fe80::1%3");
    }

    #[test]
    fn addresses_that_are_not_ip_are_refused() {
        // SAFETY: the function accepts a null pointer.
        assert_eq!(unsafe { Address::from_c(std::ptr::null_mut()) }, None);
        let mut raw = Address::from(Ipv4Addr::LOCALHOST).to_c();
        raw.0.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: the pointer refers to a complete local address.
        assert_eq!(unsafe { Address::from_c(raw.as_ptr()) }, None);
    }
}
