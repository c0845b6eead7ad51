//! Datagrams of connection set-up: request, reply, acknowledgement, reset (SM-4 to SM-8). On an established connection,
//! a datagram also requests a mapping of shared memory, and another one answers this request (spec/transports B2).
//!
//! Each datagram begins with a fixed header of eight bytes. A request and an accepting reply continue with the
//! connection parameters ([`ConnectParams`]) and private data. Numbers are little-endian. An unknown type or result, a
//! request of another version, an invalid length, or a size out of bounds is a [`DecodeError`].
#![forbid(unsafe_code)]

use super::message::SLOT;
use super::offer::STAGING_BYTES;

/// Major version of the protocol. A request of another version is rejected with `ReplyResult::NotUnderstood`.
pub(crate) const VERSION: u8 = 1;
/// Maximum length in bytes of the private data of a request or an accepting reply.
pub(crate) const MAX_PRIVATE: usize = 256;
/// Maximum length in bytes of the private data of a rejection.
pub(crate) const MAX_REJECT_DATA: usize = 144;
/// Maximum length of a datagram in bytes.
pub(crate) const MAX_DATAGRAM: usize = 8 + ConnectParams::LEN + MAX_PRIVATE;

/// The server's answer to a connection request, in [`Datagram::Reply`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ReplyResult {
    /// Accepted; connection parameters and private data follow.
    Accepted,
    /// The server's consumer has not decided yet. The client repeats its request later.
    Pending,
    /// The consumer rejected the request, with private data or without, freed it undecided, or failed to accept it.
    Rejected(Vec<u8>),
    /// There is no listener, the listener could not take the request (for example because its EVD is full), or the
    /// server's table of connections is full.
    NoListener,
    /// The request has another major version of this protocol or invalid content, or the server cannot map the client's
    /// memory.
    NotUnderstood,
    /// The consumer has handed the request off to the listener on this qualifier.
    HandedOff(u64),
}

impl ReplyResult {
    /// Returns the code of the result on the wire.
    fn code(&self) -> u8 {
        match self {
            ReplyResult::Accepted => 0,
            ReplyResult::Pending => 1,
            ReplyResult::Rejected(data) if data.is_empty() => 2,
            ReplyResult::NoListener => 3,
            ReplyResult::NotUnderstood => 4,
            ReplyResult::HandedOff(_) => 5,
            ReplyResult::Rejected(_) => 6,
        }
    }
}

/// Sizes of the rings and buffers of one process. Both processes compute offsets from them, so a peer's sizes are
/// checked before its segments are mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Geometry {
    /// Number of slots of the request ring; a power of two.
    pub(crate) requests: u32,
    /// Number of slots of the response ring; a power of two.
    pub(crate) responses: u32,
    /// Size of the message buffer in bytes; a multiple of 64.
    pub(crate) messages: u32,
    /// Size of the RMA buffer in bytes, without the staging buffer; a multiple of 64.
    pub(crate) rma: u32,
}

impl Geometry {
    /// The geometry of this version: 124 KiB for the control page, rings and messages, 128 KiB for RMA, and behind it a
    /// staging buffer of 4 KiB, which is allocated when it is first accessed.
    pub(crate) const LOCAL: Geometry = Geometry { requests: 256, responses: 64, messages: 80 << 10, rma: 128 << 10 };
    const CONTROL: usize = 4096;

    pub(crate) fn requests_at(&self) -> usize {
        Self::CONTROL
    }

    pub(crate) fn responses_at(&self) -> usize {
        self.requests_at() + self.requests as usize * SLOT
    }

    pub(crate) fn messages_at(&self) -> usize {
        self.responses_at() + self.responses as usize * SLOT
    }

    /// Offset of the staging buffer for rendezvous offers, which follows the RMA buffer in its segment.
    pub(crate) fn staging_at(&self) -> usize {
        self.rma as usize
    }

    /// Length in bytes of the segment with the RMA buffer and the staging buffer.
    pub(crate) fn rma_len(&self) -> usize {
        self.staging_at() + STAGING_BYTES
    }

    /// Length in bytes of the segment with the control page, the rings and the message buffer.
    pub(crate) fn area_len(&self) -> usize {
        self.messages_at() + self.messages as usize
    }

    /// Maximum number of RMA fragments and atomic operations to which the process with this geometry has not responded
    /// yet: half of the slots of its response ring, because the ring may also contain other responses.
    pub(crate) fn max_fragments(&self) -> u32 {
        self.responses / 2
    }

    pub(crate) fn is_valid(&self) -> bool {
        let ring = |slots: u32| slots.is_power_of_two() && (8..=65536).contains(&slots);
        let buffer = |bytes: u32| bytes.is_multiple_of(64) && (4096..=64 << 20).contains(&bytes);
        ring(self.requests) && ring(self.responses) && buffer(self.messages) && buffer(self.rma)
    }
}

/// Parameters that each process sends in the handshake, before the rings can be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ConnectParams {
    /// Generation of the sender's attempt. The data headers of its fragments contain it.
    pub(crate) generation: u16,
    /// Random number of the client's attempt, by which both processes recognise its later datagrams.
    pub(crate) token: u64,
    /// Number that distinguishes the sender's end point from earlier end points with the same path.
    pub(crate) endpoint: u64,
    /// Qualifier of the requested listener (requests only).
    pub(crate) qual: u64,
    pub(crate) geometry: Geometry,
    /// Protection domain of the sender's QP. RDMA by the receiver may access only memory of this domain.
    pub(crate) pd: u32,
    /// Maximum number of outstanding RDMA reads that the sender accepts.
    pub(crate) reads: u32,
    /// Number of entries of the sender's table of registrations.
    pub(crate) table_slots: u32,
    /// Address of two words in the sender's memory. The peer tests cross-memory attach: it reads `probe_value` from the
    /// first word, and writes this value to the second word. 0: cross-memory attach is disabled.
    pub(crate) probe_address: u64,
    pub(crate) probe_value: u64,
    /// Whether the sender is registered for `membarrier`. If both processes are, the process that sets wake-up flags
    /// executes the barrier for both, and the other publishes without a fence.
    pub(crate) barrier: bool,
    /// IP address of the sender's IA; an IPv4 address is mapped to IPv6.
    pub(crate) ip: [u8; 16],
}

impl ConnectParams {
    /// Length in bytes on the wire.
    pub(crate) const LEN: usize = 2 + 3 * 8 + 4 * 4 + 3 * 4 + 8 + 8 + 1 + 16;

    fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend(self.generation.to_le_bytes());
        for word in [self.token, self.endpoint, self.qual] {
            out.extend(word.to_le_bytes());
        }
        let g = &self.geometry;
        for word in [g.requests, g.responses, g.messages, g.rma, self.pd, self.reads, self.table_slots] {
            out.extend(word.to_le_bytes());
        }
        for word in [self.probe_address, self.probe_value] {
            out.extend(word.to_le_bytes());
        }
        out.push(u8::from(self.barrier));
        out.extend(self.ip);
    }

    fn decode_from(bytes: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let params = ConnectParams {
            generation: u16::from_le_bytes(bytes.array()?),
            token: u64::from_le_bytes(bytes.array()?),
            endpoint: u64::from_le_bytes(bytes.array()?),
            qual: u64::from_le_bytes(bytes.array()?),
            geometry: Geometry {
                requests: u32::from_le_bytes(bytes.array()?),
                responses: u32::from_le_bytes(bytes.array()?),
                messages: u32::from_le_bytes(bytes.array()?),
                rma: u32::from_le_bytes(bytes.array()?),
            },
            pd: u32::from_le_bytes(bytes.array()?),
            reads: u32::from_le_bytes(bytes.array()?),
            table_slots: u32::from_le_bytes(bytes.array()?),
            probe_address: u64::from_le_bytes(bytes.array()?),
            probe_value: u64::from_le_bytes(bytes.array()?),
            barrier: bytes.array::<1>()? == [1],
            ip: bytes.array()?,
        };
        if !params.geometry.is_valid() || !(1..=1 << 16).contains(&params.table_slots) {
            return Err(DecodeError::Geometry);
        }
        Ok(params)
    }
}

/// An exported region of the sender's shared memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ExportDescription {
    /// Address of the region in the sender's process.
    pub(crate) address: u64,
    /// Length of the region in bytes.
    pub(crate) length: u64,
    /// Offset in bytes of the region in the file or System V segment.
    pub(crate) offset: u64,
    pub(crate) object: ExportedObject,
}

/// The object of shared memory that contains an exported region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExportedObject {
    /// A file; its descriptor is sent with the datagram.
    Descriptor,
    /// The System V segment with this id, in the IPC namespace `space`.
    Segment { id: u32, space: u64 },
}

impl ExportDescription {
    fn encode_into(&self, out: &mut Vec<u8>) {
        let (id, space) = match self.object {
            ExportedObject::Descriptor => (u32::MAX, 0),
            ExportedObject::Segment { id, space } => (id, space),
        };
        for word in [self.address, self.length, self.offset, space] {
            out.extend(word.to_le_bytes());
        }
        out.extend(id.to_le_bytes());
    }

    fn decode_from(bytes: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let [address, length, offset, space] = [bytes.word()?, bytes.word()?, bytes.word()?, bytes.word()?];
        let object = match u32::from_le_bytes(bytes.array()?) {
            u32::MAX => ExportedObject::Descriptor,
            id => ExportedObject::Segment { id, space },
        };
        Ok(ExportDescription { address, length, offset, object })
    }
}

/// A datagram between the sockets of two IAs, for the handshake or for a mapping of shared memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Datagram {
    /// Requests a connection. The server uses `id`, the client's id of the connection, in the FIFO words that it sends.
    Request { id: u32, params: ConnectParams, private_data: Vec<u8> },
    /// Replies to a connection request. `client` and `server` are the ids of the connection at the two processes.
    /// `token` is the request's token, so that a reply to an earlier end point of the client matches no attempt. The
    /// datagram of `NotUnderstood` has no token, because the request may be undecodable. Decoding it gives token 0.
    Reply { client: u32, server: u32, token: u64, result: ReplyResult, accepted: Option<(ConnectParams, Vec<u8>)> },
    /// Acknowledges an accepting reply: the client has mapped the server's segments.
    Ack { client: u32, server: u32, token: u64 },
    /// Ends a connection attempt. `token` proves that the sender knows the attempt. `to` is the connection's id at the
    /// receiver; 0 if the sender does not know this id.
    Reset { from: u32, to: u32, token: u64 },
    /// Requests a mapping of the receiver's memory with this key. The ids and the token are those of an established
    /// connection.
    MappingRequest { from: u32, to: u32, token: u64, key: u32 },
    /// Replies to a request for a mapping. `None`: the region is not exported to this connection.
    MappingReply { from: u32, to: u32, token: u64, key: u32, export: Option<ExportDescription> },
}

/// The reason why a datagram is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("datagram too short, or not as long as its length field says")]
    Short,
    #[error("extra bytes at the end")]
    Trailing,
    #[error("unknown datagram type {0}")]
    Type(u8),
    #[error("protocol version {0} instead of {VERSION}; use the same library version in both processes")]
    Version(u8),
    #[error("ring or table sizes out of range")]
    Geometry,
    #[error("private data longer than {MAX_PRIVATE} bytes")]
    PrivateData,
    #[error("unknown result {0}")]
    Result(u8),
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ACK: u8 = 3;
const RESET: u8 = 4;
const MAPPING_REQUEST: u8 = 5;
const MAPPING_REPLY: u8 = 6;

impl Datagram {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_DATAGRAM);
        match self {
            Datagram::Request { id, params, private_data } => {
                out.extend([REQUEST, VERSION]);
                out.extend(((ConnectParams::LEN + private_data.len()) as u16).to_le_bytes());
                out.extend(id.to_le_bytes());
                params.encode_into(&mut out);
                out.extend(private_data);
            }
            Datagram::Reply { client, server, token, result, accepted } => {
                encode_header(&mut out, REPLY, *client, result.code(), *server);
                if let Some((params, private_data)) = accepted {
                    params.encode_into(&mut out);
                    out.extend(private_data);
                } else if *result != ReplyResult::NotUnderstood {
                    if let ReplyResult::HandedOff(qual) = result {
                        out.extend(qual.to_le_bytes());
                    }
                    out.extend(token.to_le_bytes());
                    if let ReplyResult::Rejected(data) = result {
                        out.extend(data);
                    }
                }
            }
            Datagram::Ack { client, server, token } => {
                encode_header(&mut out, ACK, *client, VERSION, *server);
                out.extend(token.to_le_bytes());
            }
            Datagram::Reset { from, to, token } => {
                encode_header(&mut out, RESET, *from, VERSION, *to);
                out.extend(token.to_le_bytes());
            }
            Datagram::MappingRequest { from, to, token, key } => {
                encode_header(&mut out, MAPPING_REQUEST, *from, VERSION, *to);
                out.extend(token.to_le_bytes());
                out.extend(key.to_le_bytes());
            }
            Datagram::MappingReply { from, to, token, key, export } => {
                encode_header(&mut out, MAPPING_REPLY, *from, VERSION, *to);
                out.extend(token.to_le_bytes());
                out.extend(key.to_le_bytes());
                if let Some(export) = export {
                    export.encode_into(&mut out);
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut bytes = FieldReader(bytes);
        let header: [u8; 8] = bytes.array()?;
        let first = u32::from_le_bytes([header[1], header[2], header[3], 0]);
        let second = u32::from_le_bytes([header[5], header[6], header[7], 0]);
        match header[0] {
            REQUEST => Self::request(header, bytes),
            REPLY => Self::reply(first, header[4], second, bytes),
            ACK => Ok(Datagram::Ack { client: first, server: second, token: bytes.last_u64()? }),
            RESET => Ok(Datagram::Reset { from: first, to: second, token: bytes.last_u64()? }),
            MAPPING_REQUEST | MAPPING_REPLY => Self::sharing(header[0], first, second, bytes),
            other => Err(DecodeError::Type(other)),
        }
    }

    fn sharing(kind: u8, from: u32, to: u32, mut bytes: FieldReader<'_>) -> Result<Self, DecodeError> {
        let token = bytes.word()?;
        let key = u32::from_le_bytes(bytes.array()?);
        let export = match kind {
            MAPPING_REPLY if !bytes.0.is_empty() => Some(ExportDescription::decode_from(&mut bytes)?),
            _ => None,
        };
        if !bytes.0.is_empty() {
            return Err(DecodeError::Trailing);
        }
        Ok(if kind == MAPPING_REQUEST {
            Datagram::MappingRequest { from, to, token, key }
        } else {
            Datagram::MappingReply { from, to, token, key, export }
        })
    }

    fn request(header: [u8; 8], mut bytes: FieldReader<'_>) -> Result<Self, DecodeError> {
        if header[1] != VERSION {
            return Err(DecodeError::Version(header[1]));
        }
        if usize::from(u16::from_le_bytes([header[2], header[3]])) != bytes.0.len() {
            return Err(DecodeError::Short);
        }
        let id = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let params = ConnectParams::decode_from(&mut bytes)?;
        Ok(Datagram::Request { id, params, private_data: bytes.private_data(MAX_PRIVATE)? })
    }

    fn reply(client: u32, result: u8, server: u32, mut bytes: FieldReader<'_>) -> Result<Self, DecodeError> {
        let result = match result {
            0 => ReplyResult::Accepted,
            1 => ReplyResult::Pending,
            2 => ReplyResult::Rejected(Vec::new()),
            3 => ReplyResult::NoListener,
            4 => ReplyResult::NotUnderstood,
            5 => ReplyResult::HandedOff(u64::from_le_bytes(bytes.array()?)),
            6 => {
                let token = bytes.word()?;
                let result = ReplyResult::Rejected(bytes.private_data(MAX_REJECT_DATA)?);
                return Ok(Datagram::Reply { client, server, token, result, accepted: None });
            }
            other => return Err(DecodeError::Result(other)),
        };
        let (token, accepted) = match result {
            ReplyResult::Accepted => {
                let params = ConnectParams::decode_from(&mut bytes)?;
                (params.token, Some((params, bytes.private_data(MAX_PRIVATE)?)))
            }
            ReplyResult::NotUnderstood if bytes.0.is_empty() => (0, None),
            _ => (bytes.last_u64()?, None),
        };
        Ok(Datagram::Reply { client, server, token, result, accepted })
    }
}

/// Encodes the eight-byte header of all datagrams except requests: the type, an id, the result (in replies) or the
/// version, and the other id.
fn encode_header(out: &mut Vec<u8>, kind: u8, first: u32, result_or_version: u8, second: u32) {
    let (first, second) = (first.to_le_bytes(), second.to_le_bytes());
    out.extend([kind, first[0], first[1], first[2], result_or_version, second[0], second[1], second[2]]);
}

struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = tail;
        Ok(*head)
    }

    fn word(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn last_u64(mut self) -> Result<u64, DecodeError> {
        let value = self.word()?;
        if self.0.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }

    fn private_data(self, max: usize) -> Result<Vec<u8>, DecodeError> {
        if self.0.len() > max { Err(DecodeError::PrivateData) } else { Ok(self.0.to_vec()) }
    }
}

#[cfg(test)]
mod tests;
