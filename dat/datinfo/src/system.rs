//! Socket options, and reads of another process's memory. Each function makes one system call.

use std::io;
use std::net::UdpSocket;

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

/// How the kernel handles a datagram that is larger than the known path MTU (ip(7), `IP_MTU_DISCOVER`).
#[derive(Clone, Copy)]
pub(crate) enum Fragments {
    /// The kernel refuses the datagram with `EMSGSIZE`.
    ByPathMtu,
    /// The kernel sends the datagram, unless it exceeds the interface's MTU.
    Ignored,
}

/// Sets "do not fragment" on the packets that this socket sends over IPv4, or on those over IPv6.
pub(crate) fn forbid_fragments(socket: &UdpSocket, is_v4: bool, path_mtu: Fragments) -> io::Result<()> {
    Ok(match (is_v4, path_mtu) {
        (true, Fragments::ByPathMtu) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO),
        (true, Fragments::Ignored) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE),
        (false, Fragments::ByPathMtu) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO),
        (false, Fragments::Ignored) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE),
    }?)
}

/// Path MTU of a connected socket as known to the kernel, including headers; initially the MTU of the interface.
pub(crate) fn path_mtu(socket: &UdpSocket, is_v4: bool) -> Option<usize> {
    let mtu = if is_v4 { sockopt::ip_mtu(socket) } else { sockopt::ipv6_mtu(socket) };
    mtu.ok().map(|mtu| mtu as usize)
}

/// Copies eight bytes from `address` in another process with process_vm_readv, which sm uses for RDMA.
pub(crate) fn read_process_memory(process: i32, address: usize) -> io::Result<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: size_of::<u64>() };
    // SAFETY: the local range is writable; the kernel checks the remote range.
    let copied = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    if copied == size_of::<u64>() as isize { Ok(word) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_memory_is_read_and_unmapped_memory_is_an_error() {
        let word = 0x0123_4567_89ab_cdef_u64;
        let own = std::process::id() as i32;
        // A sandbox may forbid the call.
        if let Ok(read) = read_process_memory(own, (&raw const word) as usize) {
            assert_eq!(read, word);
        }
        assert!(read_process_memory(own, 8).is_err() && read_process_memory(i32::MAX, 8).is_err());
    }
}
