//! Asks the kernel by rtnetlink(7) whether an address belongs to this host. Sends no packet.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// Constants of linux/netlink.h and linux/rtnetlink.h.
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTN_LOCAL: u8 = 2;
/// Size in bytes of a `nlmsghdr`.
const HEADER: usize = 16;
/// Offset of the route type: byte 7 of the `rtmsg` after the header.
const ROUTE_TYPE: usize = HEADER + 7;

/// Whether the route to `peer` is local: `peer` is an address of an interface, or in a range that is routed locally.
/// Returns false if there is no route. Fails if rtnetlink is not usable.
pub(super) fn is_local(peer: SocketAddr) -> io::Result<bool> {
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, &request(peer), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    // The kernel has queued its response before `sendto` returns.
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    let answer = &answer[..length];
    let kind = answer.get(4..6).ok_or(ErrorKind::InvalidData)?;
    let is_route = kind == RTM_NEWROUTE.to_ne_bytes();
    Ok(is_route && answer.get(ROUTE_TYPE) == Some(&RTN_LOCAL))
}

/// Builds `RTM_GETROUTE` for one destination. For a link-local destination the message includes the interface.
fn request(peer: SocketAddr) -> Vec<u8> {
    let (family, address, interface) = match peer {
        SocketAddr::V4(v4) => (AddressFamily::INET, v4.ip().octets().to_vec(), 0),
        SocketAddr::V6(v6) => (AddressFamily::INET6, v6.ip().octets().to_vec(), v6.scope_id()),
    };
    let mut message = vec![0; HEADER];
    let bits = 8 * address.len() as u8;
    // An `rtmsg`: the family, the prefix length of the destination, then fields that are 0 in a request.
    message.extend([family.as_raw() as u8, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    attribute(&mut message, RTA_DST, &address);
    if interface != 0 {
        attribute(&mut message, RTA_OIF, &interface.to_ne_bytes());
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message
}

/// Appends an `rtattr`. The length of `data` must be a multiple of four.
fn attribute(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    message.extend((4 + data.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_addresses_for_documentation_are_not() {
        for here in ["127.0.0.1:9", "127.255.0.7:9", "[::1]:9"] {
            assert!(is_local(here.parse().unwrap()).unwrap(), "the route to {here} is local");
        }
        for elsewhere in ["203.0.113.77:9", "224.0.0.1:9", "255.255.255.255:9", "[2001:db8::77]:9", "[fe80::77%1]:9"] {
            assert!(!is_local(elsewhere.parse().unwrap()).unwrap(), "the route to {elsewhere} is not local");
        }
    }
}
