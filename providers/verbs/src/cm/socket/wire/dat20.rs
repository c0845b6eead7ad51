//! The wire format of the C implementation for DAT 2.0: 148 bytes with integers in network byte order, then private
//! data (spec/endpoints 10.8).
//!
//! The layout was found by observation of `libdaploscm.so.2` (decision 034). Fields that it always sends as zero are
//! sent as zero, and ignored when received.
#![forbid(unsafe_code)]

use super::{ConnectParams, DecodeError, Layout, Message, PathLimits, Role, address, read_u16};

/// Maximum length of private data in any message.
const MOST: usize = 68;

pub(super) const LAYOUT: Layout = Layout {
    version: 9,
    head: 148,
    most_in_request: MOST,
    most_in_reply: MOST,
    most_in_reject: MOST,
    ready: &[0, 9, 0, 5],
    first_port: 1000,
};

const REQUEST: u16 = 1;
const ACCEPT: u16 = 2;
const REJECTED: u16 = 3;
/// Rejection for another reason than the consumer's decision. A reply with an unknown operation is treated like this
/// one, as in the C implementation.
const NOT_SERVED: u16 = 4;

/// Type of queue pair: reliable connection.
const CONNECTED: u8 = 2;
/// Type of queue pair: unreliable datagram.
const DATAGRAM: u8 = 4;

pub(super) fn encode(message: &Message) -> Vec<u8> {
    let (operation, params, private_data) = match message {
        Message::Request(params) => (REQUEST, Some(params), &params.private_data),
        Message::Accept(params) => (ACCEPT, Some(params), &params.private_data),
        Message::Rejection(private_data) => (REJECTED, None, private_data),
        Message::NotServed => (NOT_SERVED, None, &Vec::new()),
    };
    let mut bytes = vec![0; LAYOUT.head];
    bytes[..2].copy_from_slice(&LAYOUT.version.to_be_bytes());
    bytes[2..4].copy_from_slice(&operation.to_be_bytes());
    bytes[16..18].copy_from_slice(&(private_data.len() as u16).to_be_bytes());
    if let Some(params) = params {
        let limits = params.limits.unwrap_or_default();
        bytes[28] = limits.reads;
        bytes[32] = limits.mtu;
        bytes[38..40].copy_from_slice(&params.lid.to_be_bytes());
        bytes[40..44].copy_from_slice(&params.number.to_be_bytes());
        bytes[44..60].copy_from_slice(&params.gid);
        bytes[63] = CONNECTED;
        bytes[64..64 + address::LENGTH].copy_from_slice(&address::encode(params.address));
    }
    bytes.extend_from_slice(private_data);
    bytes
}

/// Decodes the first `LAYOUT.head` bytes of a message. Also returns the length of its private data.
pub(super) fn decode(bytes: &[u8], role: Role) -> Result<(Message, usize), DecodeError> {
    let length = usize::from(read_u16(bytes, 16));
    if length > MOST {
        return Err(DecodeError::Length(length as u32));
    }
    let message = match (role, read_u16(bytes, 2)) {
        (Role::Request, REQUEST) => Message::Request(params(bytes)?),
        (Role::Request, operation) => return Err(DecodeError::Operation(operation)),
        (Role::Reply(_), ACCEPT) => Message::Accept(params(bytes)?),
        (Role::Reply(_), REJECTED) => Message::Rejection(Vec::new()),
        (Role::Reply(_), _) => Message::NotServed,
    };
    Ok((message, length))
}

fn params(bytes: &[u8]) -> Result<ConnectParams, DecodeError> {
    if bytes[63] == DATAGRAM {
        return Err(DecodeError::Datagram);
    }
    Ok(ConnectParams {
        lid: read_u16(bytes, 38),
        port: 0,
        number: super::number(bytes, 40)?,
        address: address::decode(&bytes[64..64 + address::LENGTH]),
        gid: std::array::from_fn(|n| bytes[44 + n]),
        limits: Some(PathLimits { mtu: bytes[32], reads: bytes[28] }),
        private_data: Vec::new(),
    })
}
