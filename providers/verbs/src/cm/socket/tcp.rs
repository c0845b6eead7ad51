//! TCP sockets of the connection manager `socket`: non-blocking and close-on-exec.
//!
//! Qualifier and wire format determine the port. If the peer's host fails, TCP keepalive ends the connection.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::wire::Format;
use dapl::error::{AddressProblem, Error, Resource, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

/// Length of the kernel's accept queue, as in the C implementation.
const BACKLOG: i32 = 128;
/// Idle time after which TCP keepalive probes a connection.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of keepalive probes.
const PROBE: Duration = Duration::from_secs(10);
/// Number of keepalive probes without a reply after which the connection ends. [`IDLE`] plus the intervals of all
/// probes is also the limit for the time that sent data may stay unacknowledged.
const PROBES: u32 = 6;

/// Starts to connect. Errors: `InvalidAddress(Unreachable)`, `Exhausted(Memory)`. A refusal by the peer is not an error
/// of this call: [`is_connected`] returns it.
pub(super) fn start_connect(peer: SocketAddr) -> Result<TcpStream> {
    let failed = |operation: &str, error: Errno| {
        log::error!(
            "cannot {operation} {peer}: {error}; dat_ep_connect fails; check the route to the peer (ip route get {}) and the \
             limit of open files (ulimit -n)",
            peer.ip()
        );
        match error {
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN => {
                Error::Exhausted(Resource::Memory)
            }
            _ => Error::InvalidAddress(AddressProblem::Unreachable),
        }
    };
    let socket = socket(family(peer.ip())).map_err(|error| failed("create a socket to connect to", error))?;
    match rustix::net::connect(&socket, &peer) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        // The peer has refused already. `is_connected` reports it.
        Err(Errno::CONNREFUSED) => {}
        Err(error) => return Err(failed("connect to", error)),
    }
    Ok(TcpStream::from(socket))
}

/// Returns the result of a connect. Errors: `WouldBlock` while it is in progress; else the reason of its failure.
pub(super) fn is_connected(stream: &TcpStream) -> io::Result<()> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        // Without a listener, a socket to a port of this host may get this port as its local port, and connect to
        // itself.
        Ok(peer) if stream.local_addr()? == peer => Err(ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotConnected => Err(match has_hung_up(stream) {
            // `connect` has already returned the error, so `SO_ERROR` is not set.
            true => ErrorKind::ConnectionRefused.into(),
            false => ErrorKind::WouldBlock.into(),
        }),
        Err(error) => Err(error),
    }
}

fn has_hung_up(stream: &TcpStream) -> bool {
    let mut socket = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut socket, Some(&Timespec::default())).is_ok() && socket[0].revents().contains(PollFlags::HUP)
}

/// Listens on all addresses. Errors: `ConnQualTaken` if the port is in use; `Exhausted(Memory)`;
/// `ConnQualUnavailable` if the port is 0, or cannot be bound for another reason.
pub(super) fn listen(qual: u64, format: Format) -> Result<TcpListener> {
    let port = format.port(qual);
    if port == 0 {
        log::error!("cannot listen on qualifier {qual}: its TCP port would be 0; choose another qualifier");
        return Err(Error::ConnQualUnavailable);
    }
    let both = listen_on(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    let listening = both.or_else(|error| match error {
        Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => listen_on(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
        error => Err(error),
    });
    listening.map_err(|error| match error {
        Errno::ADDRINUSE => Error::ConnQualTaken,
        error => {
            log::error!(
                "cannot listen on TCP port {port} (qualifier {qual}): {error}; ports below 1024 need the capability \
                 CAP_NET_BIND_SERVICE; otherwise check the limit of open files (ulimit -n)"
            );
            match error {
                Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Error::Exhausted(Resource::Memory),
                _ => Error::ConnQualUnavailable,
            }
        }
    })
}

fn listen_on(address: SocketAddr) -> std::result::Result<TcpListener, Errno> {
    let socket = rustix::net::socket_with(family(address.ip()), SocketType::STREAM, flags(), None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Accepts the next connection; `None` if none is pending.
pub(super) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                prepare(&stream)?;
                return Ok(Some((stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()))));
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(None),
                // EINTR, or a client has aborted its connection in the accept queue. Another connection may be pending.
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                _ => return Err(error),
            },
        }
    }
}

/// Reads available bytes, at most the size of `buffer`. Empty: no byte is available. Errors: `UnexpectedEof` if the
/// peer has closed the connection.
pub(super) fn read<'a>(stream: &TcpStream, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    match retry_on_intr(|| rustix::io::read(stream, &mut *buffer)) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(length) => Ok(&buffer[..length]),
        Err(Errno::WOULDBLOCK) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

/// Writes bytes without blocking, and returns their number. 0: the socket would block.
pub(super) fn write(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match retry_on_intr(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL)) {
        Err(Errno::WOULDBLOCK) => Ok(0),
        result => Ok(result?),
    }
}

fn socket(family: AddressFamily) -> std::result::Result<std::os::fd::OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags(), None)?;
    prepare(&socket)?;
    Ok(socket)
}

fn prepare(socket: impl std::os::fd::AsFd) -> std::result::Result<(), Errno> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, PROBE)?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    sockopt::set_tcp_user_timeout(&socket, (IDLE + PROBE * PROBES).as_millis() as u32)
}

fn flags() -> SocketFlags {
    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualifier_of_port_0_is_unavailable() {
        assert_eq!(listen(0x1_0000, Format::Dat12).err(), Some(Error::ConnQualUnavailable));
        assert_eq!(listen(64_536, Format::Dat20).err(), Some(Error::ConnQualUnavailable));
    }

    #[test]
    fn port_of_another_socket_or_listener_is_in_use() {
        let plain = TcpListener::bind("0.0.0.0:0").unwrap();
        let qual = u64::from(plain.local_addr().unwrap().port());
        assert_eq!(listen(qual, Format::Dat12).err(), Some(Error::ConnQualTaken));
        drop(plain);
        let listener = listen(qual, Format::Dat12).unwrap();
        assert_eq!(listen(qual + 0x1_0000, Format::Dat12).err(), Some(Error::ConnQualTaken));
        for local in ["127.0.0.1", "::1"] {
            assert!(TcpStream::connect((local, qual as u16)).is_ok(), "{local}");
        }
        let (_, peer) = accept(&listener).unwrap().unwrap();
        assert_eq!(peer.ip(), "127.0.0.1".parse::<IpAddr>().unwrap(), "an IPv4-mapped address is converted to IPv4");
        assert!(accept(&listener).unwrap().is_some());
        assert!(accept(&listener).unwrap().is_none());
    }

    #[test]
    fn connect_to_the_broadcast_address_fails_at_the_call() {
        let unreachable = Some(Error::InvalidAddress(AddressProblem::Unreachable));
        assert_eq!(start_connect("255.255.255.255:5".parse().unwrap()).err(), unreachable);
    }

    #[test]
    fn refused_socket_returns_its_error_repeatedly() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stream = start_connect(free).unwrap();
        for _ in 0..3 {
            let until = std::time::Instant::now() + Duration::from_secs(10);
            let refused = std::iter::repeat_with(|| is_connected(&stream).unwrap_err().kind())
                .take_while(|_| std::time::Instant::now() < until)
                .find(|kind| *kind != ErrorKind::WouldBlock);
            assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
        }
    }
}
