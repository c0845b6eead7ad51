//! The two files of an end point through which other processes send to it: the set-up socket (datagrams with
//! descriptors and credentials) and the FIFO (four-byte words). Also the check that a peer's end point directory is
//! private to this user. This module does not interpret the bytes.
#![forbid(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dapl_software::unix_datagram::{self, ReceivedDatagram};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::proto::handshake::MAX_DATAGRAM;

/// Maximum number of descriptors in a datagram: those of the rings, of the RMA buffer, and of the table of
/// registrations.
pub(crate) const MAX_FDS: usize = 3;

/// A received datagram, not decoded yet.
pub(crate) struct SetupDatagram {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// End point directory of the sender: the path of its socket without `/sock` (SM-6).
    pub(crate) from: PathBuf,
    /// Process id of the sender, reported by the kernel; 0: not visible in this pid namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// Datagram socket of an IA for the handshake of connections, and for requests and replies of mappings. The kernel adds
/// the sender's credentials.
pub(crate) struct SetupSocket(OwnedFd);

impl SetupSocket {
    pub(crate) fn bind(endpoint: &Path) -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(endpoint.join("sock"))?)?;
        Ok(SetupSocket(fd))
    }

    /// Sends a datagram to the end point `to`. `AGAIN`: its queue is full, and the caller should retry later.
    pub(crate) fn send(&self, to: &Path, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        if !to.is_absolute() {
            return Err(Errno::NOENT); // The path is empty until the end point of the listener is found.
        }
        let address = SocketAddrUnix::new(to.join("sock"))?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg_addr(&self.0, &address, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
    }

    /// Receives the next datagram. `None`: no datagram is queued, or `recvmsg` has failed. Drops datagrams of sockets
    /// that do not have the path of an end point.
    pub(crate) fn receive(&self) -> Option<SetupDatagram> {
        loop {
            let mut bytes = vec![0; MAX_DATAGRAM + 1];
            let received = unix_datagram::receive(self.0.as_fd(), &mut bytes).ok()?;
            let ReceivedDatagram { length, fds, pid, uid, from, .. } = received;
            bytes.truncate(length);
            let Some(from) = endpoint_of(&from) else { continue };
            return Some(SetupDatagram { bytes, fds, from, pid, uid });
        }
    }
}

impl AsFd for SetupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn endpoint_of(path: &[u8]) -> Option<PathBuf> {
    let dir = path.strip_suffix(b"/sock")?;
    crate::dir::endpoint_path(std::str::from_utf8(dir).ok()?)
}

/// Opens the local end point's FIFO for reading. It is opened for writing too, so that reads never return end of file.
pub(crate) fn open_own_fifo(endpoint: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(
        endpoint.join("fifo"),
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}

/// Checks that a directory belongs to `uid` and gives no access to other users. `PERM`: it has another owner, gives
/// access, or is no directory. `NOENT`: it does not exist.
pub(crate) fn check_directory(endpoint: &Path, uid: u32) -> rustix::io::Result<()> {
    let folder = std::fs::symlink_metadata(endpoint).map_err(|_| Errno::NOENT)?;
    if !folder.is_dir() || folder.uid() != uid || folder.mode() & 0o077 != 0 {
        log::warn!(
            "{} is not a directory of uid {uid} with mode 0700, so the process there is not contacted; use one user and one \
             DAPL_DIR in both processes",
            endpoint.display()
        );
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Opens a peer's FIFO for writing. Errors: those of [`check_directory`], those of `open` (`NXIO`: the FIFO has no
/// reader), and `PERM` if the file is not a FIFO of `uid` with one link.
pub(crate) fn open_peer_fifo(endpoint: &Path, uid: u32) -> rustix::io::Result<OwnedFd> {
    check_directory(endpoint, uid)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(endpoint.join("fifo"), flags, Mode::empty())?;
    let found = rustix::fs::fstat(&fd)?;
    let is_fifo = rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Fifo;
    if !is_fifo || found.st_uid != uid || found.st_nlink != 1 {
        return Err(Errno::PERM);
    }
    Ok(fd)
}
