//! Local sockets with abstract names, and the credentials of the peer process as the kernel reports them.
//!
//! All sockets are non-blocking.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Prefix of all socket names.
const PREFIX: &str = "dapl-counters/";

/// User, process and library of a socket, parsed from its name: `dapl-counters/1000/4711/0`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SocketName {
    /// User id of the process.
    pub uid: u32,
    /// Process id, in the PID namespace of the process.
    pub pid: u32,
    /// Number of the socket: each provider library of a process has a socket of its own.
    pub number: u32,
}

impl SocketName {
    /// Parses a socket name; `None` if it is not of this form.
    pub fn read(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix(PREFIX)?.split('/').map(|word| word.parse().ok());
        let name = SocketName { uid: numbers.next()??, pid: numbers.next()??, number: numbers.next()?? };
        numbers.next().is_none().then_some(name)
    }

    fn address(self) -> io::Result<SocketAddrUnix> {
        let SocketName { uid, pid, number } = self;
        Ok(SocketAddrUnix::new_abstract_name(format!("{PREFIX}{uid}/{pid}/{number}").as_bytes())?)
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Creates a listening socket with this name.
///
/// Errors: `AddrInUse` if another socket has that name; other errors of the operating system.
pub fn listen(name: SocketName) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::bind(&fd, &name.address()?)?;
    rustix::net::listen(&fd, 16)?;
    Ok(fd)
}

/// Connects to the socket of a process.
///
/// Errors: `ConnectionRefused` without a listener, `WouldBlock` if the accept queue is full; other errors of the
/// operating system.
pub fn connect(name: SocketName) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::connect(&fd, &name.address()?)?;
    Ok(fd)
}

/// The peer process of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub struct PeerCredentials {
    /// User id of the peer.
    pub uid: u32,
    /// Process id of the peer in the PID namespace of the caller; `None` if that namespace does not contain the peer.
    pub pid: Option<u32>,
}

/// Returns the credentials of a connection's peer. Calls `getsockopt` directly, because for a process of another PID
/// namespace the kernel reports process id 0, which the wrapper in `rustix` cannot represent.
///
/// Errors: the socket is not a connected local socket.
pub fn peer(socket: &OwnedFd) -> io::Result<PeerCredentials> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the record is writable and has the length passed.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut length) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { uid: who.uid, pid: u32::try_from(who.pid).ok().filter(|pid| *pid != 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_contain_three_numbers() {
        assert_eq!(SocketName::read("dapl-counters/1000/4711/2"), Some(SocketName { uid: 1000, pid: 4711, number: 2 }));
        for other in
            ["dapl-counters/1/2", "dapl-counters/1/2/3/4", "dapl-counters/x/1/2", "dapl-counters/-1/1/2", "a/1/2/3"]
        {
            assert_eq!(SocketName::read(other), None, "{other}");
        }
        assert_eq!(SocketName::read("dapl-counters/1000/99999999999/1"), None);
    }
}
