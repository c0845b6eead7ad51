//! Wire formats of the connection manager `socket`: the message that each peer sends once, and the control bytes after
//! it.
//!
//! There are two formats: those of the C implementation's socket providers for DAT 1.2 (`dat12`) and 2.0 (`dat20`). The
//! first two bytes of a message distinguish the formats. [`MessageReader`] computes how many bytes to read next, so
//! that no byte after the message is read. Every message is validated.
#![forbid(unsafe_code)]

mod address;
mod dat12;
mod dat20;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub(crate) use crate::manager_kind::SocketFormat as Format;

/// Length of the longest message in bytes.
pub(super) const LONGEST: usize = dat12::LAYOUT.head + dat12::LAYOUT.most_in_reply;

/// Sent by a peer when it ends a connection, in both formats.
pub(super) const DISCONNECT: [u8; 4] = [0x00, 0x00, 0xDE, 0xAD];

/// The highest queue pair number, which has 24 bits.
const MAX_QP_NUMBER: u32 = 0xFF_FFFF;

/// Constants of a wire format.
pub(crate) struct Layout {
    /// First 16 bits of a message.
    version: u16,
    /// Length of a message without private data.
    head: usize,
    /// Maximum length of private data with a request.
    pub(crate) most_in_request: usize,
    /// Maximum length of private data with an accept.
    pub(crate) most_in_reply: usize,
    /// Maximum length of private data with a reject.
    pub(crate) most_in_reject: usize,
    /// The confirmation, which the active side sends when its queue pair is in RTS.
    pub(super) ready: &'static [u8],
    /// TCP port of qualifier 0.
    first_port: u64,
}

impl Format {
    fn of(version: u16) -> Option<Self> {
        [Format::Dat12, Format::Dat20].into_iter().find(|format| format.layout().version == version)
    }

    pub(crate) fn layout(self) -> &'static Layout {
        match self {
            Format::Dat12 => &dat12::LAYOUT,
            Format::Dat20 => &dat20::LAYOUT,
        }
    }

    /// Returns the TCP port of a qualifier.
    pub(super) fn port(self, qual: u64) -> u16 {
        qual.wrapping_add(self.layout().first_port) as u16
    }
}

/// Parameters of a peer: the content of a request or an accept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ConnectParams {
    pub(crate) lid: u16,
    /// Port number of the device. Sent only in the format of 1.2, and ignored by the receiver.
    pub(crate) port: u16,
    /// Queue pair number.
    pub(crate) number: u32,
    /// IA address. `None`: the sender's IA has none, or its family is neither IPv4 nor IPv6.
    pub(crate) address: Option<IpAddr>,
    pub(crate) gid: [u8; 16],
    /// The sender's limits. `None` in a message received in the format of 1.2, which does not carry them.
    pub(crate) limits: Option<PathLimits>,
    pub(crate) private_data: Vec<u8>,
}

/// Limits of a peer for the connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PathLimits {
    /// `ibv_mtu` code: in a request the sender's MTU, in an accept the smaller MTU of both peers.
    pub(crate) mtu: u8,
    /// Number of outstanding RDMA reads that the sender of the message accepts.
    pub(crate) reads: u8,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Message {
    Request(ConnectParams),
    Accept(ConnectParams),
    /// The consumer rejected the request, with private data.
    Rejection(Vec<u8>),
    /// The request is rejected for another reason.
    NotServed,
}

/// Which message a reader expects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// A request in any format.
    Request,
    /// The reply to a request, in the format of the request.
    Reply(Format),
}

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum DecodeError {
    #[error(
        "unknown protocol version {0}; {old} (DAT 1.2) and {new} (DAT 2.0) are supported",
        old = dat12::LAYOUT.version,
        new = dat20::LAYOUT.version
    )]
    Version(u16),
    #[error("operation {0} is not a request")]
    Operation(u16),
    /// The peer's queue pair is of the type UD.
    #[error("the peer's endpoint is for unreliable datagrams, which are not supported")]
    Datagram,
    #[error("{0} bytes of private data exceed the limit of the wire format")]
    Length(u32),
    #[error("queue pair number {0:#x} has more than 24 bits")]
    Number(u32),
}

impl Message {
    /// Encodes the message. Returns an empty vector if the format does not have this message.
    pub(super) fn encode(&self, format: Format) -> Vec<u8> {
        match format {
            Format::Dat12 => dat12::encode(self),
            Format::Dat20 => dat20::encode(self),
        }
    }

    fn with_private_data(mut self, bytes: &[u8]) -> Self {
        match &mut self {
            Message::Request(params) | Message::Accept(params) => params.private_data = bytes.to_vec(),
            Message::Rejection(private_data) => *private_data = bytes.to_vec(),
            Message::NotServed => {}
        }
        self
    }
}

/// Reads a message that arrives in parts.
#[derive(Debug)]
pub(super) struct MessageReader {
    bytes: Vec<u8>,
    role: Role,
    /// Known length of the message. It increases when the version and the length of the private data have arrived.
    length: usize,
}

impl MessageReader {
    pub(super) fn new(role: Role) -> Self {
        MessageReader { bytes: Vec::new(), role, length: dat12::LAYOUT.head.min(dat20::LAYOUT.head) }
    }

    /// Whether no byte was received yet.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the format of the message; `None` before its version has arrived, or if the version is unknown.
    pub(super) fn format(&self) -> Option<Format> {
        if self.bytes.len() < 2 { None } else { Format::of(read_u16(&self.bytes, 0)) }
    }

    /// Returns the number of bytes to read next. 0 if the message is complete.
    pub(super) fn wanted_bytes(&self) -> usize {
        self.length - self.bytes.len()
    }

    /// Adds received bytes, at most [`Self::wanted_bytes`]. Returns the message when it is complete.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) -> Result<Option<Message>, DecodeError> {
        debug_assert!(bytes.len() <= self.wanted_bytes());
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < 2 {
            return Ok(None);
        }
        let expected = match self.role {
            Role::Request => None,
            Role::Reply(format) => Some(format),
        };
        let format = self.format().filter(|format| expected.is_none_or(|expected| *format == expected));
        let format = format.ok_or(DecodeError::Version(read_u16(&self.bytes, 0)))?;
        let head = format.layout().head;
        if self.bytes.len() < head {
            self.length = head;
            return Ok(None);
        }
        let (message, length) = match format {
            Format::Dat12 => dat12::decode(&self.bytes[..head], self.role)?,
            Format::Dat20 => dat20::decode(&self.bytes[..head], self.role)?,
        };
        self.length = head + length;
        if self.bytes.len() < self.length {
            return Ok(None);
        }
        Ok(Some(message.with_private_data(&self.bytes[head..])))
    }
}

/// Reads a 16-bit number in network byte order.
fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a 32-bit number in network byte order.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a queue pair number.
fn number(bytes: &[u8], at: usize) -> Result<u32, DecodeError> {
    let number = read_u32(bytes, at);
    if number > MAX_QP_NUMBER { Err(DecodeError::Number(number)) } else { Ok(number) }
}
