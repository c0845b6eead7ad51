//! How processes of one host pass requests on: one well-known port, many who listen.
//!
//! Who listens on a qualifier binds a local datagram socket whose abstract name says address, port and qualifier. So the name
//! is taken by one, is seen within one network name space, and is free again when its owner dies. A request comes with the
//! address it was sent from, and the kernel says of which user the process is that passed it on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Bytes of a request at most.
pub(crate) const MAX: usize = 2048;
/// Before the request: where it came from.
const SOURCE: usize = 16 + 2 + 4;

/// A listener's end.
#[derive(Debug)]
pub(crate) struct Door {
    fd: OwnedFd,
}

/// A request that somebody has passed on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Passed {
    pub(crate) from: SocketAddr,
    pub(crate) request: Vec<u8>,
}

fn name(own: IpAddr, port: u16, qual: u64) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("dapl-usnic/{own}/{port}/{qual}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

impl Door {
    /// `AddrInUse`: somebody listens there.
    pub(crate) fn open(own: IpAddr, port: u16, qual: u64) -> io::Result<Door> {
        let fd = socket()?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        rustix::net::bind(&fd, &name(own, port, qual)?)?;
        Ok(Door { fd })
    }

    /// The next request; what another user sent is dropped. `None`: there is none.
    pub(crate) fn receive(&self) -> Option<Passed> {
        let ours = rustix::process::geteuid().as_raw();
        loop {
            let mut bytes = [0; SOURCE + MAX];
            let (length, uid) = match self.take(&mut bytes) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return None,
            };
            if !is_trusted(uid, ours) {
                log::warn!("a request that uid {uid:?} passed on is dropped: this process is of uid {ours}");
                continue;
            }
            if let Some(passed) = length.and_then(|length| decode(&bytes[..length])) {
                return Some(passed);
            }
        }
    }

    /// Its length, unless it was cut, and the user of who sent it. By hand, since a sender of another pid namespace has the
    /// process id 0, which well-kept wrappers hold to be impossible.
    fn take(&self, bytes: &mut [u8]) -> io::Result<(Option<usize>, Option<u32>)> {
        let mut control: Control = [0; 8];
        // SAFETY: a plain C record, for which zeros are a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: every pointer of the record is to a local that lives beyond the call, with its length.
        let length = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, flags) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        let is_whole = message.msg_flags & libc::MSG_TRUNC == 0;
        // SAFETY: the kernel has filled the record, and `control` lives.
        Ok((is_whole.then_some(length), unsafe { sender(&message) }))
    }
}

/// Room for credentials, and for a descriptor that somebody slips in; aligned as the headers want it.
type Control = [u64; 8];

/// The user that the kernel says the message is of.
///
/// # Safety
/// The record is as `recvmsg` has left it, and its control data is there. Its descriptors are closed.
#[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
unsafe fn sender(message: &libc::msghdr) -> Option<u32> {
    let mut uid = None;
    // SAFETY: this function's own contract; the headers lie in the buffer, and so does what they announce.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            let length = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => (0..length / size_of::<RawFd>())
                    .for_each(|at| drop(OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned()))),
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                    uid = Some(data.cast::<libc::ucred>().read_unaligned().uid);
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    uid
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Who may pass requests on: this user, and the superuser, who may do anything anyway.
fn is_trusted(uid: Option<u32>, ours: u32) -> bool {
    uid.is_some_and(|uid| uid == ours || uid == 0)
}

/// Passes a request on to whoever listens there. False: nobody does, or they have no room; the asker will ask again.
pub(crate) fn pass(own: IpAddr, port: u16, qual: u64, passed: &Passed) -> bool {
    let send = || -> io::Result<usize> {
        let bytes = encode(passed);
        Ok(rustix::net::sendto(socket()?, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &name(own, port, qual)?)?)
    };
    match send() {
        Ok(_) => true,
        // Its queue is full: somebody is there.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Somebody listens there, or nobody does; `None`: this process may not ask.
pub(crate) fn look(own: IpAddr, port: u16, qual: u64) -> Option<bool> {
    let connect = || -> io::Result<()> { Ok(rustix::net::connect(socket()?, &name(own, port, qual)?)?) };
    match connect() {
        Ok(()) => Some(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Some(false),
        Err(_) => None,
    }
}

/// Somebody listens there, as far as this process may ask.
pub(crate) fn is_open(own: IpAddr, port: u16, qual: u64) -> bool {
    look(own, port, qual) == Some(true)
}

fn encode(passed: &Passed) -> Vec<u8> {
    let (ip, scope) = match passed.from {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let mut bytes = ip.octets().to_vec();
    bytes.extend(passed.from.port().to_be_bytes());
    bytes.extend(scope.to_be_bytes());
    bytes.extend(&passed.request);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Passed> {
    let (source, request) = bytes.split_at_checked(SOURCE)?;
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&source[..16]).ok()?);
    let port = u16::from_be_bytes([source[16], source[17]]);
    let scope = u32::from_be_bytes([source[18], source[19], source[20], source[21]]);
    let from = match ip.to_ipv4_mapped() {
        Some(v4) => SocketAddr::from((v4, port)),
        None => SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    Some(Passed { from, request: request.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this process alone.
    fn own() -> (IpAddr, u16) {
        let pid = std::process::id().to_be_bytes();
        (IpAddr::from([127, pid[1], pid[2], pid[3]]), 17_471)
    }

    fn passed(from: &str, request: &[u8]) -> Passed {
        Passed { from: from.parse().unwrap(), request: request.to_vec() }
    }

    #[test]
    fn a_request_arrives_with_its_source() {
        let (ip, port) = own();
        let door = Door::open(ip, port, 1).unwrap();
        assert_eq!(door.receive(), None);
        for from in ["192.0.2.7:5", "[2001:db8::1]:65535", "[fe80::1%4]:9"] {
            let request = passed(from, b"please");
            assert!(pass(ip, port, 1, &request));
            assert_eq!(door.receive(), Some(request));
        }
        assert!(pass(ip, port, 1, &passed("1.2.3.4:5", &[7; MAX])));
        assert_eq!(door.receive().map(|passed| passed.request.len()), Some(MAX));
    }

    #[test]
    fn a_qualifier_has_one_owner_and_is_free_after_it() {
        let (ip, port) = own();
        assert!(!is_open(ip, port, 2));
        let door = Door::open(ip, port, 2).unwrap();
        assert!(is_open(ip, port, 2) && !is_open(ip, port, 3));
        assert_eq!((look(ip, port, 2), look(ip, port, 3)), (Some(true), Some(false)));
        assert_eq!(Door::open(ip, port, 2).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(Door::open(ip, port, 3).is_ok() && Door::open(ip, port + 1, 2).is_ok());
        drop(door);
        assert!(!pass(ip, port, 2, &passed("1.2.3.4:5", b"anybody?")), "nobody is there");
        assert!(Door::open(ip, port, 2).is_ok());
    }

    #[test]
    fn a_full_door_is_no_closed_one() {
        let (ip, port) = own();
        let door = Door::open(ip, port, 4).unwrap();
        (0..10_000).for_each(|_| assert!(pass(ip, port, 4, &passed("1.2.3.4:5", b"again"))));
        let came = std::iter::from_fn(|| door.receive()).count();
        assert!((1..10_000).contains(&came), "{came}");
    }

    #[test]
    fn what_is_too_short_or_too_long_is_dropped() {
        let (ip, port) = own();
        let door = Door::open(ip, port, 5).unwrap();
        let send = |bytes: &[u8]| {
            let to = name(ip, port, 5).unwrap();
            rustix::net::sendto(socket().unwrap(), bytes, SendFlags::DONTWAIT, &to).unwrap();
        };
        send(&[0; SOURCE - 1]);
        send(&[0; SOURCE + MAX + 1]);
        send(b"");
        assert!(pass(ip, port, 5, &passed("1.2.3.4:5", b"")));
        assert_eq!(door.receive(), Some(passed("1.2.3.4:5", b"")));
        assert_eq!(door.receive(), None);
    }

    #[test]
    fn only_this_user_and_the_superuser_pass_requests_on() {
        assert!(is_trusted(Some(1000), 1000) && is_trusted(Some(0), 1000) && is_trusted(Some(0), 0));
        assert!(!is_trusted(Some(1000), 0) && !is_trusted(Some(1001), 1000) && !is_trusted(None, 0));
    }
}
