//! Memory of objects that the consumer reads through a plain pointer: socket addresses, private data, communicators,
//! and the names and values of counters.
//!
//! The memory keeps its address for the life of the object and is aligned to 8 bytes. The bytes after the last written
//! ones are zero. The memory consists of atomics, because a consumer may read while a later event writes. The module
//! also converts socket addresses to and from their C form.
#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::provider::PeerAddress;

/// Memory of `8 * WORDS` bytes that the consumer may read at any time.
#[derive(Debug)]
pub struct ConsumerVisible<const WORDS: usize>([AtomicU64; WORDS]);

/// Private data that the consumer may read. Programs read up to 48 bytes, even if fewer were sent; the buffer has 256
/// bytes (spec/endpoints 9.2).
pub type PrivateData = ConsumerVisible<32>;

/// A socket address; the longest family is `AF_UNIX` with 110 bytes.
pub type SocketAddress = ConsumerVisible<14>;

impl<const WORDS: usize> ConsumerVisible<WORDS> {
    /// Capacity in bytes.
    pub const SIZE: usize = 8 * WORDS;

    /// Stores `bytes`, truncated to `SIZE`, followed by zeros.
    pub fn new(bytes: &[u8]) -> Self {
        let visible = ConsumerVisible([const { AtomicU64::new(0) }; WORDS]);
        visible.write(bytes);
        visible
    }

    /// Writes like `new`, at the same address.
    pub fn write(&self, bytes: &[u8]) {
        for (n, word) in self.0.iter().enumerate() {
            let mut value = [0; 8];
            let rest = bytes.get(8 * n..).unwrap_or(&[]);
            let taken = rest.len().min(8);
            value[..taken].copy_from_slice(&rest[..taken]);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    /// The address given to the consumer.
    pub fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr().cast_mut().cast()
    }

    /// The content up to the first zero byte.
    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).expect("the text ends with a zero byte");
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

impl<const WORDS: usize> Default for ConsumerVisible<WORDS> {
    fn default() -> Self {
        Self::new(&[])
    }
}

/// Converts `address` to the bytes of a `sockaddr_in` or `sockaddr_in6`.
pub fn socket_address(address: SocketAddr) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let family = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            libc::AF_INET
        }
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            libc::AF_INET6
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes
}

/// Converts `address` to the bytes of a socket address of its family, with port 0.
pub fn peer_address(address: &PeerAddress) -> Vec<u8> {
    match address {
        PeerAddress::Ip(ip) => socket_address(SocketAddr::new(*ip, 0)).to_vec(),
        PeerAddress::Path(path) => {
            let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
            bytes.extend_from_slice(path.as_os_str().as_bytes());
            bytes
        }
    }
}

/// Parses the socket address at the start of `bytes`. Returns `None` for families other than IPv4, IPv6 and `AF_UNIX`,
/// or if `bytes` is too short for its family.
pub fn parse_address(bytes: &[u8]) -> Option<PeerAddress> {
    let family = i32::from(u16::from_ne_bytes(bytes.first_chunk::<2>().copied()?));
    match family {
        libc::AF_INET => Some(PeerAddress::Ip(IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?))),
        libc::AF_INET6 => Some(PeerAddress::Ip(IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?))),
        libc::AF_UNIX => {
            let path = bytes.get(2..)?;
            let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
            Some(PeerAddress::Path(Path::new(std::ffi::OsStr::from_bytes(&path[..end])).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const WORDS: usize>(visible: &ConsumerVisible<WORDS>) -> Vec<u8> {
        visible.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn private_data_is_padded_with_zeros_and_truncated_to_its_size() {
        let visible = PrivateData::new(&[7; 256]);
        assert_eq!(words(&visible), [7; 256]);
        visible.write(b"hello, world");
        let bytes = words(&visible);
        assert_eq!(&bytes[..12], b"hello, world");
        assert_eq!(bytes[12..], [0; 244]);
        visible.write(&[1; 300]);
        assert_eq!(words(&visible), [1; 256], "truncated");
        assert!(visible.as_ptr().cast::<u64>().is_aligned());
    }

    #[test]
    fn addresses_survive_conversion_to_c_and_back() {
        let there_and_back = |address: PeerAddress| {
            let visible = SocketAddress::new(&peer_address(&address));
            assert_eq!(parse_address(&words(&visible)), Some(address));
        };
        there_and_back(PeerAddress::Ip("192.0.2.1".parse().unwrap()));
        there_and_back(PeerAddress::Ip("2001:db8::7".parse().unwrap()));
        there_and_back(PeerAddress::Path("/dev/shm/somewhere".into()));
    }

    #[test]
    fn unknown_address_families_are_refused() {
        let of_family = |family: u16| [&family.to_ne_bytes()[..], &[9, 9, 10, 0, 0, 1]].concat();
        assert_eq!(parse_address(&of_family(2)), Some(PeerAddress::Ip("10.0.0.1".parse().unwrap())));
        for family in [0, 16, 77, u16::MAX] {
            assert_eq!(parse_address(&of_family(family)), None);
        }
        assert_eq!(parse_address(&[10, 0, 0]), None);
    }
}
