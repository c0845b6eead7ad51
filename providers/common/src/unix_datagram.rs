//! Receives a datagram of a Unix socket, with descriptors and the sender's credentials.
//!
//! Calls `recvmsg` directly, because a sender in another pid namespace has process id 0, which wrapper crates reject.
//! This module does not interpret the bytes.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

#[derive(Debug)]
pub struct ReceivedDatagram {
    /// Number of bytes that were stored in the caller's buffer.
    pub length: usize,
    /// Whether these are all bytes of the datagram.
    pub is_whole: bool,
    pub fds: Vec<OwnedFd>,
    /// Process id of the sender; 0: not visible in this pid namespace, or no credentials.
    pub pid: i32,
    /// User id of the sender; `u32::MAX`: no credentials.
    pub uid: u32,
    /// Path of the sender's socket; empty if the socket is not bound to a path.
    pub from: Vec<u8>,
}

/// Buffer for control messages: credentials and descriptors. It is aligned for the headers of control messages. The
/// kernel closes descriptors that do not fit.
type Control = [u64; 16];

/// Receives the next datagram, without blocking. A datagram longer than `space` is truncated. Errors: those of
/// `recvmsg`, usually `AGAIN` (no datagram is queued).
pub fn receive(socket: BorrowedFd<'_>, space: &mut [u8]) -> rustix::io::Result<ReceivedDatagram> {
    let mut control: Control = [0; 16];
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let (mut name, mut message): (libc::sockaddr_un, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let length = rustix::io::retry_on_intr(|| {
        // SAFETY: every pointer in `message` points to a local buffer that outlives the call, and is given with its
        // length.
        let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        usize::try_from(length).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    })?;
    let from = path(&name, message.msg_namelen as usize);
    let is_whole = message.msg_flags & libc::MSG_TRUNC == 0;
    let mut datagram = ReceivedDatagram { length, is_whole, fds: Vec::new(), pid: 0, uid: u32::MAX, from };
    // SAFETY: `recvmsg` has filled `message` above, its buffer `control` exists, and no other object owns the received
    // descriptors.
    unsafe { datagram.read_control(&message) };
    Ok(datagram)
}

impl ReceivedDatagram {
    /// Stores the descriptors and credentials of the control messages.
    ///
    /// # Safety
    ///
    /// `recvmsg` must have filled `message`, whose control buffer must still exist. No other object may own the
    /// received descriptors.
    #[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
    unsafe fn read_control(&mut self, message: &libc::msghdr) {
        // SAFETY: the caller guarantees that `recvmsg` has filled the control buffer (# Safety), so all headers and
        // their data are inside the buffer, and each descriptor is open and has no other owner.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(message);
            while let Some(part) = header.as_ref() {
                let data = libc::CMSG_DATA(header);
                let length = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                match (part.cmsg_level, part.cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                        let fds = (0..length / size_of::<RawFd>())
                            .map(|at| OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned()));
                        self.fds.extend(fds);
                    }
                    (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                        let mut who = MaybeUninit::<libc::ucred>::uninit();
                        who.as_mut_ptr().copy_from(data.cast(), 1);
                        let who = who.assume_init();
                        (self.pid, self.uid) = (who.pid, who.uid);
                    }
                    _ => {}
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
    }
}

/// Returns the path in an address of `length` bytes.
fn path(name: &libc::sockaddr_un, length: usize) -> Vec<u8> {
    let length = length.saturating_sub(offset_of!(libc::sockaddr_un, sun_path)).min(name.sun_path.len());
    name.sun_path[..length].iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn datagram_is_received_with_credentials_and_sender_path() {
        let dir = std::env::temp_dir().join(format!("dapl-datagram-{}", std::process::id()));
        let _ = std::fs::remove_file(&dir);
        let (here, there) = (UnixDatagram::bind(&dir).unwrap(), UnixDatagram::unbound().unwrap());
        rustix::net::sockopt::set_socket_passcred(&there, true).unwrap();
        let (one, other) = UnixDatagram::pair().unwrap();
        rustix::net::sockopt::set_socket_passcred(&one, true).unwrap();
        other.send(b"hello").unwrap();
        let mut space = [0; 8];
        let got = receive(one.as_fd(), &mut space).unwrap();
        assert_eq!((got.length, got.is_whole, &space[..5]), (5, true, &b"hello"[..]));
        assert_eq!((got.pid, got.uid), (std::process::id() as i32, rustix::process::geteuid().as_raw()));
        assert!(got.from.is_empty() && got.fds.is_empty());
        assert_eq!(receive(one.as_fd(), &mut space).unwrap_err(), Errno::AGAIN);
        here.connect(&dir).unwrap();
        here.send(b"a long word").unwrap();
        let got = receive(here.as_fd(), &mut space).unwrap();
        assert_eq!(
            (got.length, got.is_whole, got.from),
            (8, false, dir.as_os_str().as_encoded_bytes().to_vec()),
            "truncated, with a name, without credentials"
        );
        assert_eq!((got.pid, got.uid), (0, u32::MAX));
        std::fs::remove_file(dir).unwrap();
    }
}
