//! UDP sockets with do-not-fragment, large buffers, a count of dropped datagrams, and GSO and GRO if the kernel
//! supports them.
//!
//! This module opens sockets, and reports the options that the kernel has granted and the number of dropped datagrams.
//! The modules `send` and `receive` transfer the data.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

#[derive(Clone, Debug)]
pub(crate) struct SocketConfig {
    /// The address to bind. If its port is 0, the socket gets the first free port of `ports`, or one that the kernel
    /// selects if `ports` is `None`.
    pub(crate) address: SocketAddr,
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// Whether other sockets of this user may bind the same address and port.
    pub(crate) is_shared: bool,
    /// Size of the receive buffer in bytes.
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// Whether to use GSO and GRO, if the kernel supports them.
    pub(crate) gso: bool,
    pub(crate) gro: bool,
}

/// A UDP socket and its properties.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    pub(crate) local: SocketAddr,
    /// Whether GSO is used. Cleared after the kernel has rejected a GSO batch, but accepted its packets without GSO.
    gso: AtomicBool,
    pub(crate) gro: bool,
    /// Size in bytes of the receive buffer that the kernel has granted.
    pub(crate) receive_buffer: usize,
    send_buffer: usize,
    /// Number of datagrams that were dropped because the receive buffer was full.
    drops: AtomicU64,
    /// Whether the error queue may contain errors.
    errors: AtomicBool,
}

/// A socket buffer that is smaller than requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReducedBuffer {
    /// The sysctl that limits the size of the buffer.
    pub(crate) sysctl: &'static str,
    pub(crate) requested: usize,
    pub(crate) granted: usize,
}

impl Socket {
    pub(crate) fn open(config: &SocketConfig) -> io::Result<Socket> {
        let family = if config.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        let set = |level, name, value| set(fd.as_fd(), level, name, value);
        if config.address.is_ipv4() {
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        } else {
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            // Old kernels reject this option, and do not need it, because IPV6_MTU_DISCOVER above is sufficient for
            // them.
            let _ = set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1);
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        }
        if config.is_shared {
            set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if kernel_drops(fd.as_fd()).is_none() {
            // Without SO_MEMINFO, the kernel must report its count of drops with each packet, which costs time. With
            // SO_MEMINFO, the count is queried only when it is needed.
            let _ = set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
        }
        let gro = config.gro && set(libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        set_buffer_sizes(fd.as_fd(), config)?;
        // A kernel without GSO rejects this option. Size 0 disables GSO for messages that do not request it.
        let gso = config.gso && set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let local = bind(fd.as_fd(), config)?;
        Ok(Socket {
            local,
            gso: gso.into(),
            gro,
            // The kernel doubles the requested size to make space for its overhead.
            receive_buffer: sockopt::socket_recv_buffer_size(&fd)? / 2,
            send_buffer: sockopt::socket_send_buffer_size(&fd)? / 2,
            fd,
            drops: AtomicU64::new(0),
            errors: AtomicBool::new(false),
        })
    }

    pub(crate) fn has_gso(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    /// Disables GSO on this socket, because a GSO send has failed.
    #[cold]
    pub(super) fn disable_gso(&self, why: &io::Error) {
        if self.gso.swap(false, Ordering::Relaxed) {
            log::info!("{}: a GSO send has failed ({why}); packets are sent one by one", self.local);
        }
    }

    /// Returns the buffers that are smaller than requested.
    pub(crate) fn reduced_buffers(&self, config: &SocketConfig) -> impl Iterator<Item = ReducedBuffer> {
        let reduced =
            |sysctl, requested, granted| (granted < requested).then_some(ReducedBuffer { sysctl, requested, granted });
        [
            reduced("net.core.rmem_max", config.receive_buffer, self.receive_buffer),
            reduced("net.core.wmem_max", config.send_buffer, self.send_buffer),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the number of datagrams that were dropped because the receive buffer was full. On a kernel without
    /// SO_MEMINFO, the number grows only when a later packet arrives.
    pub(crate) fn drops(&self) -> u64 {
        if let Some(count) = kernel_drops(self.fd.as_fd()) {
            self.record_drops(count);
        }
        self.drops.load(Ordering::Relaxed)
    }

    /// Adds the increase of the kernel's 32-bit counter, which wraps, to the 64-bit counter.
    pub(super) fn record_drops(&self, count: u32) {
        let known = self.drops.load(Ordering::Relaxed);
        let more = count.wrapping_sub(known as u32);
        // A difference of 2^31 or more means that another thread has already recorded a newer value.
        if more != 0 && more < 1 << 31 {
            self.drops.store(known + u64::from(more), Ordering::Relaxed);
        }
    }

    /// Whether a call has reported an error, so that the error queue must be read.
    pub(crate) fn has_errors(&self) -> bool {
        self.errors.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_errors(&self, are_there: bool) {
        self.errors.store(are_there, Ordering::Relaxed);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind(fd: BorrowedFd<'_>, config: &SocketConfig) -> io::Result<SocketAddr> {
    let mut address = config.address;
    match config.ports.clone().filter(|_| address.port() == 0) {
        None => rustix::net::bind(fd, &address)?,
        Some(ports) => {
            let is_bound = ports.clone().any(|port| {
                address.set_port(port);
                rustix::net::bind(fd, &address).is_ok()
            });
            if !is_bound {
                let why = format!("no port from {} to {} is free", ports.start(), ports.end());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
        }
    }
    let local: SocketAddr = rustix::net::getsockname(fd)?.try_into()?;
    Ok(local)
}

/// Requests the sizes of both buffers. In a privileged process they may exceed the system's limits.
fn set_buffer_sizes(fd: BorrowedFd<'_>, config: &SocketConfig) -> io::Result<()> {
    let [receive, send] = [config.receive_buffer, config.send_buffer].map(|bytes| bytes.min(i32::MAX as usize / 2));
    sockopt::set_socket_recv_buffer_size_force(fd, receive)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, receive))?;
    sockopt::set_socket_send_buffer_size_force(fd, send).or_else(|_| sockopt::set_socket_send_buffer_size(fd, send))?;
    Ok(())
}

fn set(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` outlives the call, and `length` is its size.
    let failed = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the kernel's count of dropped datagrams from SO_MEMINFO, or `None` if the kernel does not support it.
fn kernel_drops(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut numbers = [0u32; libc::SK_MEMINFO_DROPS as usize + 1];
    let mut length = size_of_val(&numbers) as libc::socklen_t;
    let at = (&raw mut numbers).cast();
    // SAFETY: the kernel writes at most `length` bytes to `numbers`, and their number to `length`. Both outlive the
    // call.
    let failed = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, at, &raw mut length) };
    let is_whole = length as usize == size_of_val(&numbers);
    (failed == 0 && is_whole).then_some(numbers[libc::SK_MEMINFO_DROPS as usize])
}

#[cfg(test)]
pub(crate) fn test_config(address: &str) -> SocketConfig {
    SocketConfig {
        address: address.parse().unwrap(),
        ports: None,
        is_shared: false,
        receive_buffer: 100_000,
        send_buffer: 100_000,
        gso: true,
        gro: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_range_is_bound_when_free() {
        let first = Socket::open(&test_config("127.0.0.1:0")).unwrap();
        let port = first.local.port();
        assert_ne!(port, 0);
        let within = |ports| Socket::open(&SocketConfig { ports: Some(ports), ..test_config("127.0.0.1:0") });
        assert_eq!(within(port..=port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(within(port..=port).unwrap().local.port(), port);
    }

    #[test]
    fn only_shared_ports_can_be_bound_twice() {
        let shared = |address: &str| Socket::open(&SocketConfig { is_shared: true, ..test_config(address) });
        let first = shared("127.0.0.1:0").unwrap();
        let again = first.local.to_string();
        assert!(shared(&again).is_ok());
        assert_eq!(Socket::open(&test_config(&again)).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn reduced_buffer_names_its_sysctl() {
        let config = SocketConfig { receive_buffer: 4096, send_buffer: usize::MAX, ..test_config("127.0.0.1:0") };
        let socket = Socket::open(&config).unwrap();
        let reduced: Vec<ReducedBuffer> = socket.reduced_buffers(&config).collect();
        assert_eq!((reduced.len(), reduced[0].sysctl, reduced[0].requested), (1, "net.core.wmem_max", usize::MAX));
        assert!(reduced[0].granted >= 4096 && socket.receive_buffer >= 4096);
    }

    #[test]
    fn drop_count_continues_across_the_counter_wrap() {
        let socket = Socket::open(&test_config("[::1]:0")).unwrap();
        let drops = || socket.drops.load(Ordering::Relaxed);
        socket.record_drops(7);
        socket.record_drops(5);
        assert_eq!(drops(), 7, "a smaller drop count is older, and is ignored");
        socket.drops.store(u64::from(u32::MAX), Ordering::Relaxed);
        socket.record_drops(2);
        assert_eq!(drops(), (1 << 32) + 2);
    }
}
