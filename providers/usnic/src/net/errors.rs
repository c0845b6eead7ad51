//! What routers and hosts have answered to datagrams of ours (ICMP), as the kernel keeps it for a socket.
//!
//! Anybody on the way can make up such an answer: who reads this takes it for a hint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::name::{self, Room};
use super::socket::Socket;

/// What the network says of something that was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hint {
    /// Nobody has that port, or there is no way to that host.
    Unreachable,
    /// Packets of more than so many bytes, with all headers, do not get through.
    TooLarge(u32),
}

/// A datagram that did not arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Missed {
    /// Where it was sent.
    pub(crate) to: SocketAddr,
    pub(crate) hint: Hint,
}

/// Answers that are read in one go: more are left for the next time, and a flood of them keeps nobody from working.
const AT_ONCE: usize = 64;

/// Reads what there is.
pub(crate) fn read(socket: &Socket, mut each: impl FnMut(Missed)) {
    socket.note_errors(false);
    for _ in 0..AT_ONCE {
        match next(socket) {
            Ok(Some(missed)) => each(missed),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
    socket.note_errors(true);
}

/// Room for the record and the address of who answered.
type Control = [u64; 16];

fn next(socket: &Socket) -> io::Result<Option<Missed>> {
    let mut room = Room::EMPTY;
    let mut control: Control = [0; 16];
    // SAFETY: a plain C record, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut room).cast();
    message.msg_namelen = size_of::<Room>() as libc::socklen_t;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: every pointer of the record is to a local that lives beyond the call, with its length.
    let result = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled the record, and `control` lives.
    let hint = unsafe { hint(&message) };
    let to = name::read(&room, message.msg_namelen);
    Ok(to.zip(hint).map(|(to, hint)| Missed { to, hint }))
}

/// # Safety
/// The record is as `recvmsg` has left it, and its control data is there.
#[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
unsafe fn hint(message: &libc::msghdr) -> Option<Hint> {
    // SAFETY: this function's own contract; the headers lie in the buffer, and so does what they announce.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            let length = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let is_error = matches!(
                (part.cmsg_level, part.cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_error && length >= size_of::<libc::sock_extended_err>() {
                let error = libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned();
                return Some(match error.ee_errno as libc::c_int {
                    libc::EMSGSIZE => Hint::TooLarge(error.ee_info),
                    _ => Hint::Unreachable,
                });
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::send::{Batch, Destination};
    use crate::net::socket::plain;

    #[test]
    fn who_is_not_there_is_named() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let socket = Socket::open(&plain(own)).unwrap();
            let nobody = Socket::open(&plain(own)).unwrap().local();
            let mut batch = Batch::default();
            batch.own().extend(b"anybody?");
            batch.end_packet();
            let to = Destination::of(nobody);
            assert_eq!(batch.send(&socket, &to), Default::default());
            let mut missed = Vec::new();
            read(&socket, |one| missed.push(one));
            assert_eq!(missed, [Missed { to: nobody, hint: Hint::Unreachable }]);
            read(&socket, |one| missed.push(one));
            assert_eq!((missed.len(), socket.has_errors()), (1, false));
        }
    }

    #[test]
    fn an_answer_to_one_packet_does_not_stop_the_next() {
        let (socket, peer) =
            (Socket::open(&plain("127.0.0.1:0")).unwrap(), Socket::open(&plain("127.0.0.1:0")).unwrap());
        let nobody = Socket::open(&plain("127.0.0.1:0")).unwrap().local();
        let mut batch = Batch::default();
        let mut send = |to| {
            batch.own().extend(b"hello");
            batch.end_packet();
            batch.send(&socket, &Destination::of(to))
        };
        send(nobody);
        assert_eq!(send(peer.local()), Default::default());
        assert!(socket.has_errors(), "and it is noted that there was one");
        let mut inbox = crate::net::receive::Inbox::new();
        assert_eq!(inbox.receive(&peer).unwrap(), 1);
    }
}
