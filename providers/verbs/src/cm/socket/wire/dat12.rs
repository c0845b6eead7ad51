//! The wire format of the C implementation for DAT 1.2: 64 bytes in network byte order, then private data
//! (spec/endpoints 10.7).
//!
//! Requests and accepts have the same layout. A consumer's reject is a message without private data. For other
//! rejections there is no message: the socket is closed.
#![forbid(unsafe_code)]

use super::{ConnectParams, DecodeError, Layout, Message, Role, address, read_u16, read_u32};

pub(super) const LAYOUT: Layout = Layout {
    version: 2,
    head: 64,
    most_in_request: 92,
    most_in_reply: 196,
    most_in_reject: 0,
    ready: &[0x0E, 0x0F],
    first_port: 0,
};
/// Reason code of a consumer's reject.
const REJECTED: u16 = 28;

/// Encodes a message. Empty for [`Message::NotServed`], which this format does not have.
pub(super) fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; LAYOUT.head];
    bytes[..2].copy_from_slice(&LAYOUT.version.to_be_bytes());
    match message {
        Message::NotServed => bytes.clear(),
        Message::Rejection(_) => bytes[2..4].copy_from_slice(&REJECTED.to_be_bytes()),
        Message::Request(params) | Message::Accept(params) => {
            bytes[4..6].copy_from_slice(&params.lid.to_be_bytes());
            bytes[6..8].copy_from_slice(&params.port.to_be_bytes());
            bytes[8..12].copy_from_slice(&params.number.to_be_bytes());
            bytes[12..16].copy_from_slice(&(params.private_data.len() as u32).to_be_bytes());
            bytes[16..16 + address::LENGTH].copy_from_slice(&address::encode(params.address));
            bytes[48..64].copy_from_slice(&params.gid);
            bytes.extend_from_slice(&params.private_data);
        }
    }
    bytes
}

/// Decodes the first `LAYOUT.head` bytes of a message. Also returns the length of its private data.
pub(super) fn decode(bytes: &[u8], role: Role) -> Result<(Message, usize), DecodeError> {
    if read_u16(bytes, 2) != 0 {
        // A nonzero reason marks a reject; its other fields are not used.
        return Ok((Message::Rejection(Vec::new()), 0));
    }
    let length = read_u32(bytes, 12);
    let most = match role {
        Role::Request => LAYOUT.most_in_request,
        Role::Reply(_) => LAYOUT.most_in_reply,
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(DecodeError::Length(length))?;
    let params = ConnectParams {
        lid: read_u16(bytes, 4),
        port: read_u16(bytes, 6),
        number: super::number(bytes, 8)?,
        address: address::decode(&bytes[16..16 + address::LENGTH]),
        gid: std::array::from_fn(|n| bytes[48 + n]),
        limits: None,
        private_data: Vec::new(),
    };
    let message = match role {
        Role::Request => Message::Request(params),
        Role::Reply(_) => Message::Accept(params),
    };
    Ok((message, length))
}
