//! Wire format of the manager `socket`: the message that each side sends once, and the control words that follow it.
//!
//! The layout is that of the C implementation's `scm`, version 2: 64 bytes in network order, then private data.
//! [`MessageReader`] computes how many bytes to read next, and never reads beyond the message. Every message is
//! validated.
#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of private data with a request.
pub(crate) const MOST_IN_REQUEST: usize = 92;
/// Maximum length of private data with a reply.
pub(crate) const MOST_IN_REPLY: usize = 196;

/// The longest message.
pub(super) const LONGEST: usize = HEAD + MOST_IN_REPLY;

/// Sent by the active side when its queue pair is up.
pub(super) const READY: [u8; 2] = [0x0E, 0x0F];
/// Sent by either side when it ends a connection.
pub(super) const DISCONNECT: [u8; 4] = [0x00, 0x00, 0xDE, 0xAD];

/// The reason of a consumer's refusal.
const REFUSED: u16 = 28;

const VERSION: u16 = 2;
const HEAD: usize = 64;
const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Queue pair numbers have 24 bits.
const NUMBERS: u32 = 0xFF_FFFF;

/// Parameters of a side: the message of a request, or of an accept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Hello {
    pub(crate) lid: u16,
    /// Limit of its device; 0 to 255 in practice. Not used.
    pub(crate) port: u16,
    pub(crate) number: u32,
    /// Its IA address. `None`: of an unknown family.
    pub(crate) address: Option<IpAddr>,
    pub(crate) gid: [u8; 16],
    pub(crate) private_data: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Message {
    Hello(Hello),
    /// The consumer rejected it.
    Refusal,
}

/// The reason why a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wrong {
    Version(u16),
    /// Invalid length of private data.
    Length(u32),
    /// Invalid queue pair number.
    Number(u32),
}

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Version(version) => write!(f, "version {version} of the protocol, where {VERSION} is expected"),
            Wrong::Length(length) => write!(f, "{length} bytes of private data"),
            Wrong::Number(number) => write!(f, "queue pair {number:#x}"),
        }
    }
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        match self {
            Message::Refusal => bytes[2..4].copy_from_slice(&REFUSED.to_be_bytes()),
            Message::Hello(hello) => {
                bytes[4..6].copy_from_slice(&hello.lid.to_be_bytes());
                bytes[6..8].copy_from_slice(&hello.port.to_be_bytes());
                bytes[8..12].copy_from_slice(&hello.number.to_be_bytes());
                bytes[12..16].copy_from_slice(&(hello.private_data.len() as u32).to_be_bytes());
                bytes[16..44].copy_from_slice(&socket_address(hello.address));
                bytes[48..64].copy_from_slice(&hello.gid);
                bytes.extend_from_slice(&hello.private_data);
            }
        }
        bytes
    }
}

/// A message that is received in parts.
#[derive(Debug)]
pub(super) struct MessageReader {
    bytes: Vec<u8>,
    most: usize,
}

impl MessageReader {
    /// For a message with at most `most` bytes of private data.
    pub(super) fn new(most: usize) -> Self {
        MessageReader { bytes: Vec::new(), most }
    }

    /// Whether no byte was received.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Number of bytes to read next; never 0, and never beyond the message.
    pub(super) fn wanted(&self) -> usize {
        match self.bytes.len() {
            had if had < HEAD => HEAD - had,
            had => HEAD + self.length() as usize - had,
        }
    }

    /// Takes at most as many bytes as requested. `None`: the message is incomplete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Option<Message>, Wrong> {
        debug_assert!(bytes.len() <= self.wanted());
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < HEAD {
            return Ok(None);
        }
        let version = self.word(0);
        if version != VERSION {
            return Err(Wrong::Version(version));
        }
        if self.word(2) != 0 {
            // In a refusal the other fields have no meaning.
            return Ok(Some(Message::Refusal));
        }
        if self.length() as usize > self.most {
            return Err(Wrong::Length(self.length()));
        }
        let number = self.long(8);
        if number > NUMBERS {
            return Err(Wrong::Number(number));
        }
        if self.bytes.len() < HEAD + self.length() as usize {
            return Ok(None);
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&self.bytes[48..64]);
        Ok(Some(Message::Hello(Hello {
            lid: self.word(4),
            port: self.word(6),
            number,
            address: ip_address(&self.bytes[16..44]),
            gid,
            private_data: self.bytes[HEAD..].to_vec(),
        })))
    }

    fn length(&self) -> u32 {
        self.long(12)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn long(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

/// A socket address in the layout of the sender's machine: the family in its byte order, the rest in network byte
/// order.
fn socket_address(address: Option<IpAddr>) -> [u8; 28] {
    let mut bytes = [0; 28];
    match address {
        None => {}
        Some(IpAddr::V4(ip)) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&ip.octets());
        }
    }
    bytes
}

/// Decodes a socket address. The peer may have the other byte order, which is detected: no family number equals another
/// one with swapped bytes.
fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let octets = |at: usize, length: usize| bytes.get(at..at + length);
    match family {
        _ if family == AF_INET || family.swap_bytes() == AF_INET => {
            let octets: [u8; 4] = octets(4, 4)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        _ if family == AF_INET6 || family.swap_bytes() == AF_INET6 => {
            let octets: [u8; 16] = octets(8, 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            lid: 0x0102,
            port: 3,
            number: 0x0A_0B0C,
            address: Some("192.0.2.7".parse().unwrap()),
            gid: std::array::from_fn(|n| 0xF0 | n as u8),
            private_data: b"hello".to_vec(),
        }
    }

    /// Feeds it `step` bytes at a time; also returns the number of bytes left over.
    fn read(bytes: &[u8], most: usize, step: usize) -> (Result<Option<Message>, Wrong>, usize) {
        let (mut inbox, mut at) = (MessageReader::new(most), 0);
        loop {
            let length = inbox.wanted().min(step).min(bytes.len() - at);
            let taken = inbox.take(&bytes[at..at + length]);
            at += length;
            if length == 0 || !matches!(taken, Ok(None)) {
                return (taken, bytes.len() - at);
            }
        }
    }

    #[test]
    fn message_layout_matches_the_reference() {
        let bytes = Message::Hello(hello()).encode();
        let family = AF_INET.to_ne_bytes();
        let mut expected = vec![0, 2, 0, 0, 1, 2, 0, 3, 0, 0x0A, 0x0B, 0x0C, 0, 0, 0, 5];
        expected.extend([family[0], family[1], 0, 0, 192, 0, 2, 7]);
        expected.extend([0; 24]);
        expected.extend(0xF0..=0xFF);
        expected.extend(b"hello");
        assert_eq!(bytes, expected);
        let mut refusal = [0; 64];
        refusal[..4].copy_from_slice(&[0, 2, 0, 28]);
        assert_eq!(Message::Refusal.encode(), refusal);
    }

    #[test]
    fn messages_are_read_in_pieces_of_any_size() {
        let long = Hello {
            private_data: (0..MOST_IN_REQUEST as u8).collect(),
            address: Some("2001:db8::7".parse().unwrap()),
            ..hello()
        };
        for hello in [hello(), long, Hello { private_data: Vec::new(), address: None, ..hello() }] {
            let mut bytes = Message::Hello(hello.clone()).encode();
            bytes.extend(READY);
            for step in [1, 7, 63, 64, 1000] {
                let read = read(&bytes, MOST_IN_REQUEST, step);
                assert_eq!(read, (Ok(Some(Message::Hello(hello.clone()))), READY.len()), "{step}");
            }
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_message() {
        let bytes = Message::Hello(hello()).encode();
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], MOST_IN_REQUEST, 1000).0, Ok(None), "{length}");
        }
    }

    #[test]
    fn any_reason_is_a_refusal_and_ends_the_message() {
        let mut bytes = vec![0xFF; 64];
        bytes[..4].copy_from_slice(&[0, 2, 0, 1]);
        assert_eq!(read(&bytes, MOST_IN_REPLY, 9), (Ok(Some(Message::Refusal)), 0));
    }

    #[test]
    fn errors_name_the_field() {
        let with = |at: usize, bytes: &[u8]| {
            let mut message = Message::Hello(hello()).encode();
            message[at..at + bytes.len()].copy_from_slice(bytes);
            message
        };
        let wrong = |bytes: Vec<u8>| read(&bytes, MOST_IN_REQUEST, 1000).0.unwrap_err();
        assert_eq!(wrong(with(0, &[0, 1])), Wrong::Version(1));
        assert_eq!(wrong(with(0, &[2, 0])), Wrong::Version(0x200), "of the other byte order");
        assert_eq!(wrong(with(12, &[0, 0, 0, 93])), Wrong::Length(93));
        assert_eq!(wrong(with(12, &[0xFF; 4])), Wrong::Length(u32::MAX));
        assert_eq!(wrong(with(8, &[1, 0, 0, 0])), Wrong::Number(0x100_0000));
    }

    #[test]
    fn garbage_never_reads_beyond_a_message_or_panics() {
        let mut seed = 1u64;
        for round in 0..2000 {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            };
            let mut bytes: Vec<u8> = (0..400).map(|_| next()).collect();
            if round % 2 == 0 {
                bytes[..4].copy_from_slice(&[0, 2, 0, 0]);
                bytes[12..15].fill(0);
            }
            let (read, left) = read(&bytes, MOST_IN_REPLY, 1 + round % 70);
            assert!(400 - left <= HEAD + MOST_IN_REPLY, "{read:?} took {}", 400 - left);
        }
    }

    #[test]
    fn addresses_of_the_other_byte_order_and_of_no_family() {
        let mut bytes = socket_address(Some("192.0.2.7".parse().unwrap()));
        bytes[..2].reverse();
        assert_eq!(ip_address(&bytes), Some("192.0.2.7".parse().unwrap()));
        bytes[..2].copy_from_slice(&[7, 7]);
        assert_eq!(ip_address(&bytes), None);
    }
}
