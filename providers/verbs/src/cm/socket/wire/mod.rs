//! Wire formats of the manager `socket`: the message that each side sends once, and the control bytes that follow it.
//!
//! There are two formats, those of the C implementation's socket providers for DAT 1.2 (`dat12`) and 2.0 (`dat20`). The
//! first two bytes of a message distinguish them. [`MessageReader`] computes how many bytes to read next, and never reads
//! beyond the message. Every message is validated.
#![forbid(unsafe_code)]

mod address;
mod dat12;
mod dat20;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

pub(crate) use crate::manager_kind::SocketFormat as Format;

/// The longest message.
pub(super) const LONGEST: usize = dat12::HEAD + dat12::MOST_IN_REPLY;

/// Sent by either side when it ends a connection, in both formats.
pub(super) const DISCONNECT: [u8; 4] = [0x00, 0x00, 0xDE, 0xAD];

/// Queue pair numbers have 24 bits.
const NUMBERS: u32 = 0xFF_FFFF;

impl Format {
    fn of(version: u16) -> Option<Self> {
        match version {
            dat12::VERSION => Some(Format::Dat12),
            dat20::VERSION => Some(Format::Dat20),
            _ => None,
        }
    }

    /// Length of a message without private data.
    fn head(self) -> usize {
        match self {
            Format::Dat12 => dat12::HEAD,
            Format::Dat20 => dat20::HEAD,
        }
    }

    /// Maximum length of private data with a request.
    pub(crate) fn most_in_request(self) -> usize {
        match self {
            Format::Dat12 => dat12::MOST_IN_REQUEST,
            Format::Dat20 => dat20::MOST,
        }
    }

    /// Maximum length of private data with an accept.
    pub(crate) fn most_in_reply(self) -> usize {
        match self {
            Format::Dat12 => dat12::MOST_IN_REPLY,
            Format::Dat20 => dat20::MOST,
        }
    }

    /// Maximum length of private data with a reject.
    pub(crate) fn most_in_reject(self) -> usize {
        match self {
            Format::Dat12 => 0,
            Format::Dat20 => dat20::MOST,
        }
    }

    /// Sent by the active side when its queue pair is up.
    pub(super) fn ready(self) -> &'static [u8] {
        match self {
            Format::Dat12 => &dat12::READY,
            Format::Dat20 => &dat20::READY,
        }
    }

    /// The TCP port of a qualifier.
    pub(super) fn port(self, qual: u64) -> u16 {
        match self {
            Format::Dat12 => qual as u16,
            Format::Dat20 => qual.wrapping_add(1000) as u16,
        }
    }
}

/// Parameters of a side: the content of a request, or of an accept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Hello {
    pub(crate) lid: u16,
    /// Port of its device; 0 to 255 in practice. Not used, and only in the format of 1.2.
    pub(crate) port: u16,
    pub(crate) number: u32,
    /// Its IA address. `None`: of an unknown family.
    pub(crate) address: Option<IpAddr>,
    pub(crate) gid: [u8; 16],
    /// Only in the format of 2.0.
    pub(crate) limits: Option<PathLimits>,
    pub(crate) private_data: Vec<u8>,
}

/// Limits of a side for the connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PathLimits {
    /// The `ibv_mtu` code of its MTU; in an accept that of the smaller one of both sides.
    pub(crate) mtu: u8,
    /// Number of outstanding reads that it accepts from its peer.
    pub(crate) reads: u8,
}

/// A message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Message {
    Request(Hello),
    Accept(Hello),
    /// The consumer rejected the request, with private data.
    Rejection(Vec<u8>),
    /// The request is rejected for another reason.
    NotServed,
}

/// The message that a reader expects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// A request in any format.
    Request,
    /// The answer to a request, in the request's format.
    Reply(Format),
}

/// A decoded message without its private data, and their length.
struct Content {
    message: Message,
    length: usize,
}

/// The reason why a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wrong {
    Version(u16),
    /// Not the operation of a request.
    Operation(u16),
    /// The peer's endpoint is one for unreliable datagrams.
    Datagram,
    /// Invalid length of private data.
    Length(u32),
    /// Invalid queue pair number.
    Number(u32),
}

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (old, new) = (dat12::VERSION, dat20::VERSION);
        match self {
            Wrong::Version(version) => {
                write!(f, "version {version} of the protocol; {old} (DAT 1.2) and {new} (DAT 2.0) are supported")
            }
            Wrong::Operation(operation) => write!(f, "operation {operation} in place of a request"),
            Wrong::Datagram => write!(f, "an endpoint for unreliable datagrams, which is not supported"),
            Wrong::Length(length) => write!(f, "{length} bytes of private data"),
            Wrong::Number(number) => write!(f, "queue pair {number:#x}"),
        }
    }
}

impl Message {
    /// Encodes the message; empty if the format has none for it.
    pub(super) fn encode(&self, format: Format) -> Vec<u8> {
        match format {
            Format::Dat12 => dat12::encode(self),
            Format::Dat20 => dat20::encode(self),
        }
    }

    fn with_private_data(mut self, bytes: &[u8]) -> Self {
        match &mut self {
            Message::Request(hello) | Message::Accept(hello) => hello.private_data = bytes.to_vec(),
            Message::Rejection(private_data) => *private_data = bytes.to_vec(),
            Message::NotServed => {}
        }
        self
    }
}

/// A message that is received in parts.
#[derive(Debug)]
pub(super) struct MessageReader {
    bytes: Vec<u8>,
    role: Role,
    /// Length of the message, as far as it is known: without private data before their length has arrived.
    length: usize,
}

impl MessageReader {
    pub(super) fn new(role: Role) -> Self {
        MessageReader { bytes: Vec::new(), role, length: dat12::HEAD.min(dat20::HEAD) }
    }

    /// Whether no byte was received.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The format of the message, once its version has arrived.
    pub(super) fn format(&self) -> Option<Format> {
        if self.bytes.len() < 2 { None } else { Format::of(word(&self.bytes, 0)) }
    }

    /// Number of bytes to read next; never 0 before the message is complete, and never beyond it.
    pub(super) fn wanted(&self) -> usize {
        self.length - self.bytes.len()
    }

    /// Takes at most as many bytes as requested. `None`: the message is incomplete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Option<Message>, Wrong> {
        debug_assert!(bytes.len() <= self.wanted());
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < 2 {
            return Ok(None);
        }
        let expected = match self.role {
            Role::Request => None,
            Role::Reply(format) => Some(format),
        };
        let format = self.format().filter(|format| expected.is_none_or(|expected| *format == expected));
        let format = format.ok_or(Wrong::Version(word(&self.bytes, 0)))?;
        let head = format.head();
        if self.bytes.len() < head {
            self.length = head;
            return Ok(None);
        }
        let Content { message, length } = match format {
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

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A queue pair number.
fn number(bytes: &[u8], at: usize) -> Result<u32, Wrong> {
    let number = long(bytes, at);
    if number > NUMBERS { Err(Wrong::Number(number)) } else { Ok(number) }
}
