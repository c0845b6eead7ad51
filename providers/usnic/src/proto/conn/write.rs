//! Encodes packet headers.
//!
//! Each transmission of a data packet carries the newest ack fields. `transmit` decides which packet is sent.

use zerocopy::IntoBytes;
use zerocopy::network_endian::U32;

use super::Conn;
use super::refragmented::SendingPieces;
use super::requests::{PayloadOwner, PostedRequest, SentPayload};
use super::types::{ConnCallbacks, Operation, OutgoingPacket, Payload, PostedData, SourceAddress, is_extension};
use crate::proto::psn::Psn;
use crate::proto::wire::{
    AckFields, CHUNK, EXTENSION, Extent, FLAG_ACK_NOW, FLAG_LAST, FRAGMENT, Kind, Message, Op, PacketHeader,
    PayloadOffset, RANGES, SOLICITED, SackFields, SackRange,
};

impl<D: PostedData> Conn<D> {
    fn head(&self, kind: Kind, flags: u16) -> PacketHeader {
        PacketHeader::new(kind, flags, self.terms.peer_conn, self.terms.peer_token)
    }

    /// Returns the message header and the payload location of a packet.
    fn message(&self, sent: &SentPayload) -> (Message, Payload) {
        let nothing = (Message { op: Op::Write as u8, ..Message::default() }, Payload::None);
        let SentPayload { slot, offset, length, .. } = *sent;
        match sent.what {
            PayloadOwner::Nothing => nothing,
            PayloadOwner::Request => {
                let Some(request) = self.requests.queue.get(slot) else { return nothing };
                let mut message = Message {
                    op: request.op() as u8,
                    id: request.id.into(),
                    length: request.length.into(),
                    ..Message::default()
                };
                if let Some(remote) = request.work.and_then(Operation::remote) {
                    (message.key, message.address) = (remote.key.into(), remote.address.into());
                }
                let is_solicited = match request.work {
                    Some(
                        Operation::SendImmediate { data: value, solicited }
                        | Operation::SendInvalidate { key: value, solicited },
                    ) => {
                        message.key = value.into();
                        solicited
                    }
                    Some(Operation::WriteImmediate { solicited, .. }) => solicited,
                    _ => false,
                };
                if is_solicited {
                    message.spare[0] = SOLICITED;
                }
                let payload = if length > 0 { Payload::Request { slot, offset, length } } else { Payload::None };
                (message, payload)
            }
            PayloadOwner::Response => {
                let Some(read) = self.peer_reads.request(slot) else { return nothing };
                let op = if read.is_atomic() { Op::AtomicResponse } else { Op::ReadResponse } as u8;
                let message = Message { op, id: slot.into(), length: read.length.into(), ..Message::default() };
                // The sum cannot overflow, because the range of the read was checked when its request arrived.
                let (key, address) = (read.key, read.address.wrapping_add(u64::from(offset)));
                let payload = if length > 0 { Payload::Remote { slot, key, address, length } } else { Payload::None };
                (message, payload)
            }
        }
    }

    /// Returns the header extension of a packet (immediate data, operands or result of an atomic operation), and its
    /// length.
    fn extension(&self, sent: &SentPayload) -> ([u8; EXTENSION], usize) {
        let (first, second) = match sent.what {
            PayloadOwner::Nothing => return Default::default(),
            PayloadOwner::Request => match self.requests.queue.get(sent.slot).and_then(|request| request.work) {
                Some(Operation::WriteImmediate { data, .. }) => {
                    let mut bytes = [0; EXTENSION];
                    bytes[..4].copy_from_slice(&data.to_be_bytes());
                    return (bytes, Op::WriteImmediate.extension());
                }
                Some(Operation::FetchAdd { add, .. }) => (add, None),
                Some(Operation::CompareSwap { compare, swap, .. }) => (compare, Some(swap)),
                _ => return Default::default(),
            },
            PayloadOwner::Response => match self.peer_reads.request(sent.slot).and_then(|read| read.previous_value) {
                Some(found) => (found, None),
                None => return Default::default(),
            },
        };
        let mut bytes = [0; EXTENSION];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.unwrap_or(0).to_be_bytes());
        (bytes, if second.is_some() { 16 } else { 8 })
    }

    /// Returns the length in bytes of the extension of a packet.
    pub(super) fn extension_length(&self, sent: &SentPayload) -> usize {
        let has_no_extension = match sent.what {
            PayloadOwner::Nothing => true,
            PayloadOwner::Request => {
                self.requests.queue.get(sent.slot).is_none_or(|request| !is_extension(request.work))
            }
            PayloadOwner::Response => self.peer_reads.request(sent.slot).is_none_or(|read| !read.is_atomic()),
        };
        if has_no_extension { 0 } else { self.extension(sent).1 }
    }

    /// Whether the packet contains the whole message.
    pub(super) fn is_whole(&self, sent: &SentPayload) -> bool {
        let length = match sent.what {
            PayloadOwner::Nothing => return true,
            PayloadOwner::Request => {
                let length = |request: &PostedRequest<_>| if request.is_answered() { 0 } else { request.length };
                self.requests.queue.get(sent.slot).map(length)
            }
            PayloadOwner::Response => self.peer_reads.request(sent.slot).map(|read| read.length),
        };
        sent.offset == 0 && length == Some(sent.length)
    }

    /// Returns the size in bytes of the packet's datagram.
    pub(super) fn size(&self, sent: &SentPayload) -> u64 {
        let header = if self.is_whole(sent) { FRAGMENT } else { CHUNK };
        (header + self.extension_length(sent) + sent.length as usize + self.send_path.extra) as u64
    }

    /// Encodes the headers of a fragment, chunk or piece, up to the payload offset.
    pub(super) fn write_data(
        &mut self,
        out: &mut Vec<u8>,
        kind: Kind,
        psn: Psn,
        sent: &SentPayload,
        mut flags: u16,
        host: &impl ConnCallbacks<D>,
    ) -> OutgoingPacket {
        let (message, payload) = self.message(sent);
        if kind == Kind::Fragment || sent.offset + sent.length == message.length.get() {
            flags |= FLAG_LAST;
        }
        let start = out.len();
        out.extend_from_slice(self.head(kind, flags).as_bytes());
        out.extend_from_slice(self.data_fields(psn, host).as_bytes());
        out.extend_from_slice(message.as_bytes());
        if self.extension_length(sent) > 0 {
            let (bytes, length) = self.extension(sent);
            out.extend_from_slice(&bytes[..length]);
        }
        if kind != Kind::Fragment {
            out.extend_from_slice(PayloadOffset::new(sent.offset).as_bytes());
        }
        OutgoingPacket { payload, ..outgoing(out.len() - start) }
    }

    /// Encodes the next piece of a packet. The last piece requests an ack. Stores `pieces` if there are further pieces.
    pub(super) fn write_piece(
        &mut self,
        out: &mut Vec<u8>,
        mut pieces: SendingPieces,
        host: &impl ConnCallbacks<D>,
    ) -> OutgoingPacket {
        let SendingPieces { psn, sent, resend, .. } = pieces;
        let (piece, is_last) = pieces.next();
        let (start, flags) = (out.len(), if is_last { FLAG_ACK_NOW } else { 0 });
        let packet = self.write_data(out, Kind::Piece, psn, &piece, flags, host);
        let end = sent.offset + sent.length;
        out.extend_from_slice(Extent { start: sent.offset.into(), end: end.into() }.as_bytes());
        self.sending_pieces = (!is_last).then_some(pieces);
        OutgoingPacket { header: out.len() - start, command: false, resend, ..packet }
    }

    /// Builds the ack fields of a packet: received packets and credits. If this ack reports a send that was not
    /// accepted, and there are receives again, requests a second ack with the new credit limit.
    #[inline(always)]
    pub(super) fn ack_fields(&mut self, delay: u16, host: &impl ConnCallbacks<D>) -> AckFields {
        let had_unaccepted_send = self.receives.not_accepted;
        let credits = self.receives.report(host).into();
        if had_unaccepted_send && self.receives.is_credit_due(host) {
            self.acks.request_ack();
        }
        self.ack_serial = self.ack_serial.wrapping_add(1);
        let next = self.received.next().0.into();
        AckFields { next, credits, delay: delay.into(), serial: self.ack_serial.into() }
    }

    /// Encodes an ack packet.
    pub(super) fn write_ack(&mut self, out: &mut Vec<u8>, flags: u16, host: &impl ConnCallbacks<D>) -> OutgoingPacket {
        let start = out.len();
        out.extend_from_slice(self.head(Kind::Ack, flags).as_bytes());
        let delay = self.acks.ack_packet_sent(self.now);
        out.extend_from_slice(self.ack_fields(delay, host).as_bytes());
        let mut ranges = [SackRange::default(); RANGES];
        let fixed = size_of::<PacketHeader>() + size_of::<AckFields>() + size_of::<SackFields>() + self.send_path.extra;
        let space = self.send_path.path.mtu.saturating_sub(fixed) / size_of::<SackRange>();
        let count = self.received.ranges(&mut ranges[..space.min(RANGES)]);
        let (refusal, refused) = self.ending.refusal().map_or((0, U32::ZERO), |(why, psn)| (why as u8, psn.0.into()));
        let selective = SackFields { ranges: count as u8, refusal, refused, ..SackFields::default() };
        out.extend_from_slice(selective.as_bytes());
        out.extend_from_slice(ranges[..count].as_bytes());
        self.counters.acks_sent += 1;
        outgoing(out.len() - start)
    }

    /// Encodes a packet with a header and a body of at most 64 bits.
    pub(super) fn write_small(
        &mut self,
        out: &mut Vec<u8>,
        kind: Kind,
        word: &[u8],
        to: Option<SourceAddress>,
    ) -> OutgoingPacket {
        let start = out.len();
        out.extend_from_slice(self.head(kind, 0).as_bytes());
        out.extend_from_slice(word);
        OutgoingPacket { to, ..outgoing(out.len() - start) }
    }
}

/// Creates a packet without payload, with a header of `header` bytes.
pub(super) fn outgoing(header: usize) -> OutgoingPacket {
    OutgoingPacket { header, payload: Payload::None, command: true, resend: false, to: None }
}
