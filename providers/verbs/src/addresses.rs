//! The IP addresses of this host except link-local IPv6 addresses, each with its network device.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Returns all addresses of this host except link-local IPv6 addresses, each with its network device, in the system's
/// order.
pub(crate) fn of_this_host() -> io::Result<Vec<(String, IpAddr)>> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is a valid pointer to write the result to.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is not null and points to an entry of the list, which is freed only after the loop.
        let entry = unsafe { &*next };
        // SAFETY: `ifa_addr` is null, or points to a socket address of its family that is valid until the list is
        // freed.
        if let Some(address) = unsafe { ip(entry.ifa_addr) } {
            // SAFETY: `ifa_name` of every entry points to a NUL-terminated string.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
            found.push((device(&name).to_string(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: `list` was returned by `getifaddrs`, and no reference to it remains.
    unsafe { libc::freeifaddrs(list) };
    found.retain(|(_, address)| !is_link_local(*address));
    Ok(found)
}

/// Removes the suffix of an alias: `eth0:1` is an alias of the device `eth0`.
fn device(name: &str) -> &str {
    name.split_once(':').map_or(name, |(device, _)| device)
}

/// Whether an IPv6 address is link-local: valid only together with the name of a device.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns the IP address of a socket address; `None` for null and for other families.
///
/// # Safety
/// `address` is null, or points to a socket address of the length that its family requires.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: `address` is not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family guarantees that `address` points to this structure.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes())))
        }
        libc::AF_INET6 => {
            // SAFETY: the family guarantees that `address` points to this structure.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_include_the_loopback_address() {
        let found = of_this_host().unwrap();
        assert!(found.contains(&("lo".to_string(), IpAddr::V4(Ipv4Addr::LOCALHOST))), "{found:?}");
    }

    #[test]
    fn alias_suffix_is_removed_and_ipv6_link_local_is_recognized() {
        assert_eq!([device("eth0:1"), device("eth0.100"), device("ib0")], ["eth0", "eth0.100", "ib0"]);
        assert!(is_link_local("fe80::1".parse().unwrap()));
        assert!(!is_link_local("2001:db8::1".parse().unwrap()) && !is_link_local("169.254.0.1".parse().unwrap()));
    }
}
