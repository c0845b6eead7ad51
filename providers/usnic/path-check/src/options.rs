//! Options of sockets that the standard library does not know.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// What leaves is never cut, here or on the way; what something on the way says of its size is heeded.
pub(crate) fn never_fragment(socket: &UdpSocket, is_v4: bool) -> io::Result<()> {
    let (level, name, value) = if is_v4 {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    };
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is a number that lives beyond the call, as long as is said.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the system holds the path of a connected socket to carry, headers included: at first what the interface does.
pub(crate) fn mtu(socket: &UdpSocket, is_v4: bool) -> Option<usize> {
    let (level, name) = if is_v4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is writable, and as long as is said.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if done == 0 { usize::try_from(value).ok() } else { None }
}
