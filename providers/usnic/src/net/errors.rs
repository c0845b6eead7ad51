//! Delivery errors of datagrams: ICMP messages and local errors, from the socket's error queue (`IP_RECVERR`).
//!
//! ICMP messages are not authenticated. The kernel only compares the addresses and ports of the quoted datagram with
//! those of the socket, and an attacker off the path can guess these (RFC 5927). So this module also returns the start
//! of the quoted payload, which the caller compares with the packets that it has sent.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::sockaddr::{self, RawSockAddr};
use super::socket::Socket;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DeliveryErrorKind {
    /// No socket is bound to the destination port. The ICMP message came from the destination address.
    PortClosed,
    /// Any other error: for example the host is unreachable, or another address than the destination reports a closed
    /// port.
    Unreachable,
    /// The path MTU is this number of bytes, including IP headers.
    TooLarge(u32),
}

/// A datagram that was not delivered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct DeliveryError {
    /// Destination of the datagram.
    pub(crate) to: SocketAddr,
    pub(crate) kind: DeliveryErrorKind,
    /// Whether the kernel of this host detected the error, without an ICMP message.
    pub(crate) is_local: bool,
    /// The quoted start of the datagram's payload, at most [`QUOTE`] bytes.
    pub(crate) quote: Vec<u8>,
}

/// Number of bytes of a quoted payload that are read. Linux quotes 500 bytes or more, as RFC 1812, 4.3.2.3 requires of
/// routers.
pub(crate) const QUOTE: usize = 128;

/// Maximum number of errors that one call reads. Without the limit, a flood of errors would delay other work.
const MAX_ERRORS: usize = 64;

/// Reads the queued errors of the socket, and calls `each` for them.
pub(crate) fn read(socket: &Socket, mut each: impl FnMut(DeliveryError)) {
    socket.set_has_errors(false);
    for _ in 0..MAX_ERRORS {
        match next(socket) {
            Ok(Some(missed)) => each(missed),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
    socket.set_has_errors(true);
}

fn next(socket: &Socket) -> io::Result<Option<DeliveryError>> {
    let mut raw = RawSockAddr::EMPTY;
    // For the error record and the address of the ICMP sender.
    let mut control = [0u64; 16];
    let mut quote = vec![0; QUOTE];
    let mut piece = libc::iovec { iov_base: quote.as_mut_ptr().cast(), iov_len: quote.len() };
    // SAFETY: all fields of `msghdr` are integers or nullable pointers, so all-zero bytes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut raw).cast();
    message.msg_namelen = size_of::<RawSockAddr>() as libc::socklen_t;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: each pointer in `message` is to a local buffer that outlives the call, with the length of that buffer.
    let result = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // `recvmsg` truncates a longer payload, so its result is at most the length of the buffer.
    quote.truncate(result.unsigned_abs());
    // SAFETY: `recvmsg` has filled `message`, and its buffer `control` still exists.
    let error = unsafe { error(&message) };
    let to = sockaddr::read(&raw, message.msg_namelen);
    Ok(to.zip(error).map(|(to, (error, by))| {
        let is_local = error.ee_origin == libc::SO_EE_ORIGIN_LOCAL;
        DeliveryError { to, kind: classify(&error, by, to), is_local, quote }
    }))
}

/// Classifies an error of a datagram to `to`. `by` is the sender of the ICMP message.
fn classify(error: &libc::sock_extended_err, by: Option<SocketAddr>, to: SocketAddr) -> DeliveryErrorKind {
    // Origin, type and code of "destination unreachable, port unreachable" (RFC 792 and RFC 4443).
    const PORT_UNREACHABLE: [(u8, u8, u8); 2] = [(libc::SO_EE_ORIGIN_ICMP, 3, 3), (libc::SO_EE_ORIGIN_ICMP6, 1, 4)];
    let is_port = PORT_UNREACHABLE.contains(&(error.ee_origin, error.ee_type, error.ee_code));
    match error.ee_errno as libc::c_int {
        libc::EMSGSIZE => DeliveryErrorKind::TooLarge(error.ee_info),
        _ if is_port && by.is_some_and(|by| by.ip() == to.ip()) => DeliveryErrorKind::PortClosed,
        _ => DeliveryErrorKind::Unreachable,
    }
}

/// Returns the error record of a message, and the sender of the ICMP message.
///
/// # Safety
/// `recvmsg` has filled `message`, and its control data still exists.
#[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
unsafe fn error(message: &libc::msghdr) -> Option<(libc::sock_extended_err, Option<SocketAddr>)> {
    // SAFETY: by the contract, `message` is filled and its control data exists. The `CMSG` functions return only
    // headers within the control data, and the kernel has written the data behind each header.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            let length = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let is_error = matches!(
                (part.cmsg_level, part.cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_error && length >= size_of::<libc::sock_extended_err>() {
                let data = libc::CMSG_DATA(header);
                let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                let mut by = RawSockAddr::EMPTY;
                let rest = (length - size_of_val(&error)).min(size_of::<RawSockAddr>());
                std::ptr::copy_nonoverlapping(data.add(size_of_val(&error)), (&raw mut by).cast(), rest);
                return Some((error, sockaddr::read(&by, rest as libc::socklen_t)));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::send::SendBatch;
    use crate::net::socket::test_config;

    #[test]
    fn closed_port_is_reported_with_a_quote_of_the_packet() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let socket = Socket::open(&test_config(own)).unwrap();
            let closed = Socket::open(&test_config(own)).unwrap().local;
            let mut batch = SendBatch::default();
            batch.header_buffer().extend(b"hello");
            batch.end_packet();
            let to = closed;
            assert_eq!(batch.send(&socket, to), Default::default());
            let mut missed = Vec::new();
            read(&socket, |one| missed.push(one));
            let quote = b"hello".to_vec();
            assert_eq!(
                missed,
                [DeliveryError { to: closed, kind: DeliveryErrorKind::PortClosed, is_local: false, quote }]
            );
            read(&socket, |one| missed.push(one));
            assert_eq!((missed.len(), socket.has_errors()), (1, false));
        }
    }

    #[test]
    fn port_unreachable_of_another_address_is_no_closed_port() {
        let to: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let error = |errno: libc::c_int, origin, kind, code| libc::sock_extended_err {
            ee_errno: errno as u32,
            ee_origin: origin,
            ee_type: kind,
            ee_code: code,
            ee_pad: 0,
            ee_info: 1400,
            ee_data: 0,
        };
        let port = error(libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP, 3, 3);
        assert_eq!(classify(&port, "192.0.2.1:0".parse().ok(), to), DeliveryErrorKind::PortClosed);
        assert_eq!(
            classify(&port, "192.0.2.9:0".parse().ok(), to),
            DeliveryErrorKind::Unreachable,
            "a port-unreachable error from another host does not mean that the port is closed"
        );
        assert_eq!(classify(&port, None, to), DeliveryErrorKind::Unreachable);
        for code in [0, 1, 2, 9, 10, 13] {
            let other = error(libc::EHOSTUNREACH, libc::SO_EE_ORIGIN_ICMP, 3, code);
            assert_eq!(
                classify(&other, Some(to), to),
                DeliveryErrorKind::Unreachable,
                "ICMP code {code} means unreachable"
            );
        }
        let long = error(libc::EMSGSIZE, libc::SO_EE_ORIGIN_ICMP, 3, 4);
        assert_eq!(classify(&long, None, to), DeliveryErrorKind::TooLarge(1400));
        let six: SocketAddr = "[2001:db8::1]:7".parse().unwrap();
        let port = error(libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP6, 1, 4);
        assert_eq!(classify(&port, Some(six), six), DeliveryErrorKind::PortClosed);
        let local = error(libc::ECONNREFUSED, libc::SO_EE_ORIGIN_LOCAL, 3, 3);
        assert_eq!(classify(&local, Some(to), to), DeliveryErrorKind::Unreachable);
    }

    #[test]
    fn send_succeeds_after_the_error_of_an_earlier_packet() {
        let (socket, peer) =
            (Socket::open(&test_config("127.0.0.1:0")).unwrap(), Socket::open(&test_config("127.0.0.1:0")).unwrap());
        let closed = Socket::open(&test_config("127.0.0.1:0")).unwrap().local;
        let mut batch = SendBatch::default();
        let mut send = |to| {
            batch.header_buffer().extend(b"hello");
            batch.end_packet();
            batch.send(&socket, to)
        };
        send(closed);
        assert_eq!(send(peer.local), Default::default());
        assert!(socket.has_errors(), "the socket records the error of the earlier packet");
        let mut batch = crate::net::receive::ReceiveBatch::new();
        assert_eq!(batch.receive(&peer).unwrap(), 1);
    }
}
