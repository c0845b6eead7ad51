//! Forwards connection requests between processes of one user that share the well-known port.
//!
//! A listener has a Unix datagram socket in a directory of its user (`listener_dir`); if the socket cannot be created,
//! no other process forwards requests to this listener. Only processes of that user and of the superuser can access the
//! directory, so a request is never forwarded to another user.
//!
//! The receiver also checks the sender's user (SCM_CREDENTIALS), and drops datagrams of other users, including the
//! superuser. This loses no request, because the kernel shares a UDP port only between sockets of one effective user. A
//! datagram consists of the source address of the request, and the request.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use dapl_software::base_dir::{self, BaseDir};
use dapl_software::unix_datagram::{self, ReceivedDatagram};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Maximum size of a request in bytes.
pub(crate) const MAX_REQUEST: usize = 2048;
/// Size in bytes of the source address in a datagram: IPv6 or mapped IPv4 address, port, scope.
const SOURCE_LEN: usize = 16 + 2 + 4;

/// The Unix socket of a listener. Dropping it removes the socket's name.
#[derive(Debug)]
pub(crate) struct HandoverSocket {
    fd: OwnedFd,
    base: BaseDir,
    path: PathBuf,
    /// Device and inode of the socket's file, to detect that another process has replaced the file.
    id: (u64, u64),
    /// Id of the process that bound the socket.
    pid: u32,
    /// Effective user of the process that bound the socket.
    uid: u32,
}

/// A request that another process of this user has forwarded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ForwardedRequest {
    pub(crate) from: SocketAddr,
    pub(crate) request: Vec<u8>,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

impl HandoverSocket {
    /// Binds a socket in the base directory `base`. The file `path` must not exist, and `name` is its socket address.
    pub(super) fn bind(name: &SocketAddrUnix, base: &BaseDir, path: PathBuf) -> io::Result<HandoverSocket> {
        let fd = socket()?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        rustix::net::bind(&fd, name)?;
        base.remove_at_exit(&path);
        let made = fs::symlink_metadata(&path)?;
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        Ok(HandoverSocket { fd, base: base.clone(), path, id: (made.dev(), made.ino()), pid, uid })
    }

    /// Receives the next request of this user. Drops requests of other users, and datagrams that are too short or too
    /// long. Returns `None` if no request is queued, or if the socket reports an error.
    pub(crate) fn receive(&self) -> Option<ForwardedRequest> {
        loop {
            let mut bytes = [0; SOURCE_LEN + MAX_REQUEST];
            let received = unix_datagram::receive(self.fd.as_fd(), &mut bytes).ok()?;
            let ReceivedDatagram { length, is_whole, uid, .. } = received;
            if uid != self.uid {
                let sender = if uid == u32::MAX { "an unknown user".to_owned() } else { format!("uid {uid}") };
                log::warn!(
                    "{}: dropped a connection request that {sender} forwarded: this listener accepts only requests of processes of uid {}",
                    self.path.display(),
                    self.uid
                );
                continue;
            }
            if let Some(forwarded) = decode(&bytes[..length]).filter(|_| is_whole) {
                return Some(forwarded);
            }
        }
    }
}

impl AsFd for HandoverSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        // In a forked child this object is a copy. The parent still listens, so the name stays.
        if self.pid != std::process::id() {
            return;
        }
        // Processes of this user do not replace the name, because the socket is still open. But an administrator may
        // have replaced the file, and such a file stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
        base_dir::cancel_exit_removal(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
        self.base.remove_if_empty();
    }
}

/// Sends a request to the listener with this name. The error `WouldBlock` means that the listener's queue is full.
pub(super) fn send(to: &SocketAddrUnix, forwarded: &ForwardedRequest) -> io::Result<()> {
    rustix::net::sendto(socket()?, &encode(forwarded), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, to)?;
    Ok(())
}

/// Checks whether a running process has bound this name.
///
/// The errors `ConnectionRefused` and `NotFound` mean that there is no such process. Other errors mean that this is
/// unknown.
pub(super) fn probe(name: &SocketAddrUnix) -> io::Result<()> {
    Ok(rustix::net::connect(socket()?, name)?)
}

fn encode(forwarded: &ForwardedRequest) -> Vec<u8> {
    let (ip, scope) = match forwarded.from {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let mut bytes = ip.octets().to_vec();
    bytes.extend(forwarded.from.port().to_be_bytes());
    bytes.extend(scope.to_be_bytes());
    bytes.extend(&forwarded.request);
    bytes
}

fn decode(bytes: &[u8]) -> Option<ForwardedRequest> {
    let (source, request) = bytes.split_at_checked(SOURCE_LEN)?;
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&source[..16]).ok()?);
    let port = u16::from_be_bytes([source[16], source[17]]);
    let scope = u32::from_be_bytes([source[18], source[19], source[20], source[21]]);
    let from = match ip.to_ipv4_mapped() {
        Some(v4) => SocketAddr::from((v4, port)),
        None => SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    Some(ForwardedRequest { from, request: request.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_other_users_are_dropped() {
        const KIND: base_dir::BaseDirKind =
            base_dir::BaseDirKind { provider: "test", variable: "DAPL_DIR", default: "/tmp" };
        let dir = std::env::temp_dir().join(format!("dapl-handover-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("socket");
        let name = SocketAddrUnix::new(&path).unwrap();
        let mut socket = HandoverSocket::bind(&name, &BaseDir::new(&KIND, Some("/nowhere")), path).unwrap();
        let forwarded = ForwardedRequest { from: "1.2.3.4:5".parse().unwrap(), request: b"please".to_vec() };
        send(&name, &forwarded).unwrap();
        assert_eq!(socket.receive(), Some(forwarded.clone()));
        send(&name, &forwarded).unwrap();
        // The socket now accepts only datagrams of another user, so it drops the request.
        socket.uid += 1;
        assert_eq!(socket.receive(), None);
        drop(socket);
        assert!(!dir.exists());
    }

    #[test]
    fn forwarded_source_address_round_trips_for_ipv4_and_ipv6() {
        for from in ["192.0.2.7:5", "[2001:db8::1]:65535", "[fe80::1%4]:9"] {
            let forwarded = ForwardedRequest { from: from.parse().unwrap(), request: b"please".to_vec() };
            assert_eq!(decode(&encode(&forwarded)), Some(forwarded));
        }
        assert_eq!(decode(&[0; SOURCE_LEN - 1]), None);
    }
}
