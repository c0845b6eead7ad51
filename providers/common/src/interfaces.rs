//! The IP addresses of this host, each with its network interface.

use std::ffi::CStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

/// An IP address of this host.
pub struct InterfaceAddress {
    /// Name of the interface, or of an alias of it, such as `eth0:1`.
    pub interface: String,
    /// The address with port 0, and with its scope if it is link-local.
    pub address: SocketAddr,
    /// Flags of the interface (`IFF_*`).
    pub flags: libc::c_int,
}

/// Returns all IP addresses of this host, in the order of the kernel.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `first` is a valid out parameter. `freeifaddrs` below frees the list.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = Vec::new();
    let mut next = first;
    // SAFETY: `next` is an entry of the list or null, and the list is freed only after the loop.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: `getifaddrs` sets `ifa_addr` to null, or to an address with all bytes of its family.
        let Some(address) = (unsafe { read(entry.ifa_addr) }) else { continue };
        // SAFETY: `getifaddrs` sets `ifa_name` to a C string, which is valid until the list is freed.
        let interface = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        all.push(InterfaceAddress { interface, address, flags: entry.ifa_flags as libc::c_int });
    }
    // SAFETY: `getifaddrs` has returned `first`, and no reference to the list exists any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// Reads a socket address.
///
/// # Safety
/// `address` is null, or points to an address that has all bytes of its address family.
unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: by the contract, `address` is null or valid.
    let family = unsafe { address.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: by the contract, an address of this family has all bytes of `sockaddr_in`.
            let raw = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some((Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes()), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: by the contract, an address of this family has all bytes of `sockaddr_in6`.
            let raw = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let scope = if ip.is_unicast_link_local() { raw.sin6_scope_id } else { 0 };
            Some(SocketAddrV6::new(ip, 0, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_include_loopback() {
        let all = addresses().unwrap();
        let loopback = all.iter().find(|one| one.address.ip() == Ipv4Addr::LOCALHOST);
        assert!(loopback.is_some_and(|one| one.interface == "lo" && one.flags & libc::IFF_LOOPBACK != 0));
    }
}
