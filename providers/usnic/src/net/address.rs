//! Finds the interface and address of an IA by the interface name or address in `ia_params`. Also answers questions
//! about a peer's address, for example whether it is local and whether there is a route to it.
//!
//! An interface name selects the interface's first IPv4 address, else its first IPv6 address that is not link-local,
//! else a link-local address. A link-local address that several interfaces have must be followed by `%` and the name or
//! number of the interface. The error texts for an unknown name and for an ambiguous address list the interfaces of
//! this host.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use dapl_software::interfaces::{self, InterfaceAddress};
use rustix::net::sockopt;

use super::route;

/// An address of this host, and its interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// The address with port 0, and with its scope if it is link-local.
    pub(crate) address: SocketAddr,
    /// MTU in bytes, IP header included.
    pub(crate) mtu: usize,
    pub(crate) is_loopback: bool,
    pub(crate) is_up: bool,
}

/// Size in bytes of the IP and UDP headers: for IPv4, and for IPv6.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];

impl Interface {
    /// Returns the maximum datagram payload in bytes for the IP version of this address, over a path with this MTU.
    pub(crate) fn payload_of(&self, mtu: usize) -> usize {
        let headers = HEADERS[usize::from(self.address.is_ipv6())];
        mtu.saturating_sub(headers).min(super::send::MAX_BYTES)
    }

    fn is_link_local(&self) -> bool {
        matches!(self.address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
    }
}

/// Finds the interface address that `requested` names. `None` or an empty text selects an interface that is up and not
/// loopback, or loopback if there is no other: the first with an IPv4 address, else the first with an IPv6 address that
/// is not link-local, else the first with a link-local address.
///
/// Outer error: the list of interfaces cannot be read. Inner error: a text that says why no interface was found.
pub(crate) fn find(requested: Option<&str>) -> io::Result<Result<Interface, String>> {
    Ok(choose(requested, &list()?))
}

fn choose(requested: Option<&str>, all: &[Interface]) -> Result<Interface, String> {
    let Some(requested) = requested.filter(|requested| !requested.is_empty()) else {
        let up = || all.iter().filter(|interface| interface.is_up);
        let elsewhere = up().filter(|interface| !interface.is_loopback).min_by_key(preference);
        let found = elsewhere.or_else(|| up().min_by_key(preference));
        return found.cloned().ok_or_else(|| "no interface with an address is up (ip address shows them)".to_owned());
    };
    let (text, scope) = requested.split_once('%').map_or((requested, None), |(text, scope)| (text, Some(scope)));
    let found = match text.parse::<IpAddr>() {
        Ok(ip) => by_address(ip.to_canonical(), scope, all)?,
        Err(_) => all.iter().filter(|interface| interface.name == requested).min_by_key(preference).cloned(),
    };
    match found {
        Some(found) if found.is_up => Ok(found),
        Some(found) => {
            Err(format!("{requested}: the interface {} is down (ip link set {} up)", found.name, found.name))
        }
        None => Err(format!(
            "{requested} is neither an interface with an address nor an address of this host; {}",
            list_text(all)
        )),
    }
}

/// Returns the rank of an address. Among the addresses that `find` may select, it selects one with the lowest rank.
fn preference(interface: &&Interface) -> u8 {
    match interface.address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(_) if !interface.is_link_local() => 1,
        SocketAddr::V6(_) => 2,
    }
}

fn by_address(ip: IpAddr, scope: Option<&str>, all: &[Interface]) -> Result<Option<Interface>, String> {
    let is_it =
        |interface: &&Interface| interface.address.ip() == ip && scope.is_none_or(|scope| is_scope(interface, scope));
    let mut found = all.iter().filter(is_it);
    let (first, others) = (found.next(), found.count());
    if first.is_some_and(Interface::is_link_local) && others > 0 {
        return Err(format!("{ip} is an address of several interfaces: add % and the name of one; {}", list_text(all)));
    }
    Ok(first.cloned().or_else(|| by_loopback(ip, all).filter(|_| scope.is_none())))
}

/// Finds the loopback interface for any address of 127.0.0.0/8. The kernel's list has only one of these addresses.
fn by_loopback(ip: IpAddr, all: &[Interface]) -> Option<Interface> {
    let interface = all.iter().find(|interface| interface.is_loopback && interface.address.is_ipv4())?;
    let is_loopback_v4 = ip.is_loopback() && ip.is_ipv4();
    is_loopback_v4.then(|| Interface { address: (ip, 0).into(), ..interface.clone() })
}

/// Whether `scope` is the interface's name or number.
fn is_scope(interface: &Interface, scope: &str) -> bool {
    let number = match interface.address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    interface.name == scope || number != 0 && scope.parse() == Ok(number)
}

fn list_text(all: &[Interface]) -> String {
    let each = |interface: &Interface| {
        let state = if interface.is_up { "" } else { ", down" };
        match interface.address {
            SocketAddr::V6(v6) if interface.is_link_local() => {
                format!("{}%{} ({}{state})", v6.ip(), interface.name, interface.name)
            }
            address => format!("{} ({}{state})", address.ip(), interface.name),
        }
    };
    format!("this host has {}", all.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// Lists all addresses of all interfaces.
fn list() -> io::Result<Vec<Interface>> {
    let of = |InterfaceAddress { interface, address, flags }| Interface {
        mtu: mtu(&interface),
        name: interface,
        address,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_up: flags & libc::IFF_UP != 0,
    };
    Ok(interfaces::addresses()?.into_iter().map(of).collect())
}

/// Returns the MTU of an interface in bytes, or 1280, the minimum MTU of IPv6, if the kernel does not report the MTU.
fn mtu(name: &str) -> usize {
    const SMALLEST: usize = 1280;
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| mtu_by_ioctl(name).unwrap_or(SMALLEST))
}

/// Returns the MTU from `SIOCGIFMTU`, for systems without `/sys`.
fn mtu_by_ioctl(name: &str) -> Option<usize> {
    // SAFETY: all fields of `ifreq` are integers, arrays or nullable pointers, so all-zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte as libc::c_char);
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: `request` is initialized, its name ends with a zero byte, and it outlives the call.
    let failed = unsafe { libc::ioctl(fd, libc::SIOCGIFMTU as _, &raw mut request) };
    // SAFETY: SIOCGIFMTU sets this member of the union, and the other members were initialized to zero.
    (failed == 0).then(|| usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()).flatten()
}

/// Whether `peer` is a unicast address of the same family as `own`.
pub(crate) fn is_reachable(own: &SocketAddr, peer: IpAddr) -> bool {
    !peer.is_unspecified() && !peer.is_multicast() && own.is_ipv4() == peer.is_ipv4() && peer != Ipv4Addr::BROADCAST
}

/// Whether the kernel has a route from `own` to `peer`. Sends no packet. Returns true if this cannot be determined.
pub(crate) fn has_route(mut own: SocketAddr, peer: SocketAddr) -> bool {
    own.set_port(0);
    let Ok(socket) = UdpSocket::bind(own) else { return true };
    let Err(error) = socket.connect(peer) else { return true };
    // The kernel returns EINVAL (InvalidInput) for another host if `own` is a loopback address, and EACCES
    // (PermissionDenied) if `peer` is a broadcast address.
    use ErrorKind::{AddrNotAvailable, HostUnreachable, InvalidInput, NetworkUnreachable, PermissionDenied};
    let bad = [AddrNotAvailable, HostUnreachable, InvalidInput, NetworkUnreachable, PermissionDenied];
    !bad.contains(&error.kind())
}

/// Whether `peer` is an address of this host: an address of 127.0.0.0/8, or an address that the kernel routes locally.
/// Sends no packet.
pub(crate) fn is_local_address(own: &SocketAddr, peer: IpAddr) -> bool {
    if peer == own.ip() || peer.is_loopback() {
        return true;
    }
    if peer.is_unspecified() || peer.is_multicast() {
        return false;
    }
    if let Ok(is_local) = route::is_local(with_port(own, peer, 9)) {
        return is_local;
    }
    // If rtnetlink is not usable, a socket is connected to `peer`. For a local peer, the kernel selects the peer's
    // address as source address. This does not detect secondary addresses of this host.
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Binding a socket to `peer` would prove nothing, because Linux may allow binding to non-local addresses
    // (`ip_nonlocal_bind`).
    let chosen = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(with_port(own, peer, 9))?;
        socket.local_addr()
    });
    chosen.is_ok_and(|chosen| chosen.ip() == peer)
}

/// Returns the MTU in bytes of the route from `own` to `peer`, if `peer` is an address of this host.
pub(crate) fn local_mtu(mut own: SocketAddr, peer: SocketAddr) -> Option<usize> {
    if !is_local_address(&own, peer.ip()) {
        return None;
    }
    own.set_port(0);
    let socket = UdpSocket::bind(own).ok()?;
    socket.connect(peer).ok()?;
    let mtu = if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    mtu.ok().filter(|mtu| *mtu > 0).map(|mtu| mtu as usize)
}

/// Whether no socket is bound to the UDP port `server` of this host. Sends an empty datagram to the port, which causes
/// an error on the sending socket if the port is closed. Returns false if the kernel reports the error only later.
pub(crate) fn is_port_closed(mut own: SocketAddr, server: SocketAddr) -> bool {
    own.set_port(0);
    let refused = UdpSocket::bind(own).and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.connect(server)?;
        socket.send(&[])?;
        socket.take_error()
    });
    refused.is_ok_and(|error| error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

/// Returns `peer` with a port, and with the scope of `own` if `peer` is link-local.
pub(crate) fn with_port(own: &SocketAddr, peer: IpAddr, port: u16) -> SocketAddr {
    match (own, peer) {
        (SocketAddr::V6(own), IpAddr::V6(ip)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, port, 0, own.scope_id()).into()
        }
        _ => (peer, port).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, is_up: bool) -> Interface {
        let address: SocketAddr = address.parse().unwrap();
        Interface { name: name.into(), address, mtu: 1500, is_loopback: name == "lo", is_up }
    }

    fn some_address() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1:0", true),
            interface("lo", "[::1]:0", true),
            interface("a", "[fe80::1%2]:0", true),
            interface("a", "[2001:db8::1]:0", true),
            interface("a", "192.0.2.1:0", true),
            interface("b", "[fe80::1%3]:0", true),
            interface("c", "192.0.2.9:0", false),
        ]
    }

    #[test]
    fn finds_interface_by_name_or_address() {
        let all = some_address();
        let find = |text: &str| choose(Some(text), &all).map(|found| found.address.to_string());
        assert_eq!(find("a").unwrap(), "192.0.2.1:0");
        assert_eq!(find("b").unwrap(), "[fe80::1%3]:0");
        assert_eq!(find("2001:db8::1").unwrap(), "[2001:db8::1]:0");
        assert_eq!(find("::ffff:192.0.2.1").unwrap(), "192.0.2.1:0");
        assert_eq!(
            (find("fe80::1%b").unwrap(), find("fe80::1%2").unwrap()),
            ("[fe80::1%3]:0".into(), "[fe80::1%2]:0".into())
        );
        assert_eq!(find("127.1.2.3").unwrap(), "127.1.2.3:0");
        assert_eq!(
            choose(None, &all).unwrap().address.to_string(),
            "192.0.2.1:0",
            "the default is the first interface that is not loopback"
        );
        assert_eq!(choose(None, &all[..2]).unwrap().name, "lo", "loopback is the default if no other interface is up");
    }

    #[test]
    fn error_texts_list_the_interfaces_of_this_host() {
        let all = some_address();
        let error = |text: &str| choose(Some(text), &all).unwrap_err();
        assert!(error("fe80::1").contains("several interfaces"));
        assert!(error("c").contains("c is down"));
        for absent in ["d", "192.0.2.77", "fe80::1%lo", "::2"] {
            let text = error(absent);
            assert!(
                text.starts_with(absent) && text.contains("192.0.2.1 (a), fe80::1%b (b), 192.0.2.9 (c, down)"),
                "the error must list the interfaces of this host: {text}"
            );
        }
        assert!(choose(None, &[]).is_err());
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let found = find(Some("127.0.0.1")).unwrap().unwrap();
        assert!(
            found.is_loopback && found.mtu >= 16_384 && found.payload_of(found.mtu) <= 65_507,
            "the loopback interface has an MTU of 16384 or more: {found:?}"
        );
        assert_eq!(mtu_by_ioctl(&found.name), Some(found.mtu));
        assert_eq!(mtu_by_ioctl("an-interface-with-a-long-name"), None);
        assert_eq!(interface("e", "[::1]:0", true).payload_of(1500), 1452);
        assert_eq!(interface("e", "1.1.1.1:0", true).payload_of(1500), 1472);
    }

    #[test]
    fn local_addresses_have_the_loopback_mtu() {
        // An IPv4 packet is limited to 65,535 bytes, whatever the MTU.
        let loopback = find(Some("127.0.0.1")).unwrap().unwrap().mtu.min(65_535);
        let of = |own: &str, peer: &str| local_mtu(own.parse().unwrap(), peer.parse().unwrap());
        assert_eq!((of("127.0.0.1:5", "127.0.0.9:7"), of("127.0.0.1:5", "203.0.113.77:7")), (Some(loopback), None));
        assert_eq!(of("192.0.2.1:5", "203.0.113.77:7"), None);
        for interface in list().unwrap().into_iter().filter(|interface| interface.is_up) {
            let peer = SocketAddr::new(interface.address.ip(), 7);
            let peer = if interface.is_link_local() { with_port(&interface.address, peer.ip(), 7) } else { peer };
            assert!(
                local_mtu(interface.address, peer).is_some_and(|mtu| mtu >= loopback),
                "an address of this host has the loopback MTU: {interface:?}"
            );
        }
    }

    #[test]
    fn loopback_has_no_route_to_other_hosts() {
        let from = |own: &str, to: &str| has_route(own.parse().unwrap(), to.parse().unwrap());
        assert!(from("127.0.0.1:0", "127.0.0.9:5") && !from("127.0.0.1:0", "203.0.113.77:5"));
        assert!(
            from("192.0.2.1:0", "203.0.113.77:5"),
            "routes from an address of another host cannot be checked, so a route is assumed"
        );
    }

    #[test]
    fn only_addresses_of_this_host_are_local() {
        let own: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let all = list().unwrap().into_iter().filter(|interface| interface.is_up && !interface.is_link_local());
        let listed = all.map(|interface| interface.address.ip().to_string());
        for here in listed.chain(["127.0.0.1", "127.0.1.1", "127.255.255.254", "::1"].map(str::to_owned)) {
            assert!(is_local_address(&own, here.parse().unwrap()), "{here} is an address of this host");
        }
        for elsewhere in ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "203.0.113.77", "2001:db8::77", "fe80::77"] {
            assert!(!is_local_address(&own, elsewhere.parse().unwrap()), "{elsewhere} is not an address of this host");
        }
    }

    #[test]
    fn closed_port_is_detected_and_bound_port_is_not() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let own = own.parse().unwrap();
            let socket = UdpSocket::bind(own).unwrap();
            let taken = socket.local_addr().unwrap();
            assert!(!is_port_closed(own, taken));
            drop(socket);
            // The kernel may deliver the datagram only after the send has returned, so some attempts report an open
            // port.
            assert!(
                (0..1000).any(|_| is_port_closed(own, taken)),
                "the closed port was not detected from {own} in 1000 attempts"
            );
        }
    }

    #[test]
    fn only_unicast_addresses_of_the_same_family_are_reachable() {
        let (v4, v6): (SocketAddr, SocketAddr) = ("192.0.2.1:9".parse().unwrap(), "[fe80::1%7]:9".parse().unwrap());
        let may = |own, peer: &str| is_reachable(own, peer.parse().unwrap());
        assert!(may(&v4, "192.0.2.2") && may(&v6, "fe80::2") && may(&v6, "2001:db8::1"));
        for (own, bad) in [(&v4, "::1"), (&v6, "1.2.3.4"), (&v4, "0.0.0.0"), (&v4, "255.255.255.255"), (&v6, "ff02::1")]
        {
            assert!(!may(own, bad), "{bad} must be unreachable from this address");
        }
        assert_eq!(with_port(&v6, "fe80::2".parse().unwrap(), 5).to_string(), "[fe80::2%7]:5");
        assert_eq!(with_port(&v6, "2001:db8::2".parse().unwrap(), 5).to_string(), "[2001:db8::2]:5");
    }
}
