//! Wire format of the packets of an established connection: fragments, chunks, pieces, acks and control packets (US-7).
//!
//! Numbers are in network byte order, and records have no padding. A datagram contains one packet. `setup::packets`
//! defines the packets that open and end connections.
//!
//! ```text
//! Fragment             PacketHeader  DataFields  Message  extension  payload                         whole message
//! Chunk                PacketHeader  DataFields  Message  extension  PayloadOffset  payload          part of a message
//! Piece                PacketHeader  DataFields  Message  extension  PayloadOffset  Extent  payload  part of a packet
//! Ack                  PacketHeader  AckFields   SackFields  SackRange ...
//! Probe                PacketHeader  padding
//! ProbeAck             PacketHeader  size of the probe (u32)
//! Challenge, Response  PacketHeader  nonce (u64)
//! ```

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Version of the protocol. Packets of another version are dropped, with two exceptions: a request gets a reject, and
/// the client reads this reject.
pub(crate) const VERSION: u8 = 2;

#[derive(Clone, Copy, Debug, Eq, PartialEq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum Kind {
    Fragment = 1,
    Chunk = 2,
    Ack = 3,
    Probe = 4,
    ProbeAck = 5,
    Challenge = 6,
    Response = 7,
    Request = 8,
    Cookie = 9,
    Accept = 10,
    Reject = 11,
    Confirm = 12,
    Fin = 13,
    FinAck = 14,
    Reset = 15,
    Piece = 16,
}

/// The header of every packet. The receiver of the packet has assigned `conn` and `token` to the connection, and drops
/// packets with other values. Both are 0 in a request and its withdrawal. A path probe of `datinfo` (`echo`) has the
/// number 0 and a token that its sender has chosen.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct PacketHeader {
    pub(crate) version: u8,
    pub(crate) kind: u8,
    pub(crate) flags: U16,
    pub(crate) conn: U32,
    pub(crate) token: U64,
}

/// Flag: requests an immediate ack.
pub(crate) const FLAG_ACK_NOW: u16 = 1;
/// Flag: the last packet of its message.
pub(crate) const FLAG_LAST: u16 = 2;
/// Flag: the packet ends with a CRC32C of all bytes before it.
pub(crate) const FLAG_CHECKED: u16 = 4;
/// Flag: the part after the header, or after the clear part of a request or withdrawal, is encrypted (`seal`).
pub(crate) const FLAG_SEALED: u16 = 8;
/// Flag of a Reset in reply to an Accept: the client does not know the connection attempt.
pub(crate) const FLAG_UNKNOWN: u16 = 16;

impl PacketHeader {
    pub(crate) fn new(kind: Kind, flags: u16, conn: u32, token: u64) -> Self {
        PacketHeader { version: VERSION, kind: kind as u8, flags: flags.into(), conn: conn.into(), token: token.into() }
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::try_read_from_bytes(&[self.kind]).ok().filter(|_| self.version == VERSION)
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }
}

/// Ack fields, which are in every data packet and in ack packets.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct AckFields {
    /// The first missing PSN.
    pub(crate) next: U32,
    /// Credit limit: the sender of the ack has a receive for each message whose number is below this value.
    pub(crate) credits: U32,
    /// Time between the arrival of the newest packet and this ack, in microseconds. The value 65,535 also stands for
    /// longer times.
    pub(crate) delay: U16,
    /// Serial number of the ack. The receiver ignores the credits of an ack that is older than the newest processed
    /// one.
    pub(crate) serial: U16,
}

/// The PSN of a data packet, and the ack that it carries.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct DataFields {
    pub(crate) psn: U32,
    pub(crate) ack: AckFields,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum Op {
    /// Untagged: the payload is placed in the receive with the same number.
    Send = 1,
    /// A send that causes a solicited event at the receiver.
    SendSolicited = 2,
    /// Tagged: the payload is placed in memory at `key` and `address`.
    Write = 3,
    /// Requests `length` bytes from `key` and `address`. It has no payload.
    ReadRequest = 4,
    /// The payload is placed in the local buffer of the read with the same number.
    ReadResponse = 5,
    /// A send with immediate data in `key`.
    SendImmediate = 6,
    /// A send with the key of a memory window in `key`. The receiver invalidates this window.
    SendInvalidate = 7,
    /// Tagged: the payload is placed in memory at `key` and `address`. The message has a number of a send, and
    /// completes the receive with this number. The extension is the immediate data.
    WriteImmediate = 8,
    /// An atomic fetch-and-add, which has a number of a read. The extension is the number to add.
    FetchAdd = 9,
    /// An atomic compare-and-swap, which has a number of a read. The extension is the expected value and the new value.
    CompareSwap = 10,
    /// Response to the atomic operation with the same number. The extension is the previous value.
    AtomicResponse = 11,
}

impl Op {
    /// Length in bytes of the extension, which follows the message fields in every packet.
    pub(crate) fn extension(self) -> usize {
        match self {
            Op::WriteImmediate => 4,
            Op::FetchAdd | Op::AtomicResponse => 8,
            Op::CompareSwap => 16,
            _ => 0,
        }
    }

    /// Whether packets of this operation have no payload, whatever the length of the message.
    fn is_bare(self) -> bool {
        matches!(self, Op::ReadRequest | Op::FetchAdd | Op::CompareSwap | Op::AtomicResponse)
    }
}

/// Length in bytes of the longest extension.
pub(crate) const EXTENSION: usize = 16;

/// Flag in the first spare byte of an extension operation: it causes a solicited event (SOLICITED_WAIT).
pub(crate) const SOLICITED: u8 = 1;

/// Message fields of a data packet. All packets of a message have the same values.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct Message {
    pub(crate) op: u8,
    pub(crate) spare: [u8; 3],
    /// Number of the send, write or read. Sends, writes and reads are numbered separately, from 0. A response has the
    /// number of its request.
    pub(crate) id: U32,
    /// Length of the whole message, in bytes.
    pub(crate) length: U32,
    /// Key and address of the receiver's memory, for writes, read requests and atomic operations. In a send, `key` is
    /// the immediate data or the key of the window to invalidate.
    pub(crate) key: U32,
    pub(crate) address: U64,
}

impl Message {
    pub(crate) fn op(&self) -> Option<Op> {
        Op::try_read_from_bytes(&[self.op]).ok()
    }
}

/// Offset in bytes of the payload in its message. The payload extends to the end of the packet.
pub(crate) type PayloadOffset = U32;

/// Field of a piece: the byte range of the message that the whole re-fragmented packet contains.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct Extent {
    pub(crate) start: U32,
    pub(crate) end: U32,
}

impl Extent {
    pub(crate) fn length(&self) -> u32 {
        self.end.get().saturating_sub(self.start.get())
    }
}

/// Fields of an ack packet: the number of selective ranges, and the refusal of a packet.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct SackFields {
    /// Number of ranges that follow.
    pub(crate) ranges: u8,
    /// Code of the [`Refusal`], or 0 without a refusal.
    pub(crate) refusal: u8,
    /// Always 0.
    pub(crate) spare: U16,
    /// PSN of the refused packet, if there is a refusal.
    pub(crate) refused: U32,
}

/// The reason why the receiver of a packet has refused it. A refusal ends the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// The key is invalid, access rights are missing, or the access is out of bounds.
    Access = 1,
    /// The receive is too short, or its memory is no longer accessible.
    Receive = 2,
    /// The memory of a read or an atomic operation has become inaccessible.
    Source = 3,
    /// The message violates the protocol or the agreed parameters.
    Invalid = 4,
}

/// PSNs of packets received after a missing packet: from `first` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct SackRange {
    pub(crate) first: U32,
    pub(crate) end: U32,
}

/// Maximum number of ranges in an ack packet. An ack packet with this number fits into the minimum MTU.
pub(crate) const RANGES: usize = 64;

/// Length in bytes of the header of a fragment.
pub(crate) const FRAGMENT: usize = size_of::<PacketHeader>() + size_of::<DataFields>() + size_of::<Message>();
/// Length in bytes of the header of a chunk.
pub(crate) const CHUNK: usize = FRAGMENT + size_of::<PayloadOffset>();
/// Length in bytes of the header of a piece.
pub(crate) const PIECE: usize = CHUNK + size_of::<Extent>();

/// A decoded fragment, chunk or piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Data<'a> {
    pub(crate) carried: DataFields,
    pub(crate) op: Op,
    pub(crate) message: Message,
    /// The extension, whose length depends on the operation.
    pub(crate) extension: &'a [u8],
    /// Offset in bytes of the payload in the message.
    pub(crate) offset: u32,
    /// Only in a piece: byte range of the message that the whole re-fragmented packet contains.
    pub(crate) extent: Option<Extent>,
    pub(crate) payload: &'a [u8],
}

/// Splits the header from the packet. Returns `None` if the packet is too short.
pub(crate) fn head(packet: &[u8]) -> Option<(PacketHeader, &[u8])> {
    PacketHeader::read_from_prefix(packet).ok()
}

/// Decodes the body of a fragment, chunk or piece. Returns `None` if the body is too short, the operation is unknown,
/// or the length or offset of the payload does not fit the kind of packet, the message or the re-fragmented packet.
pub(crate) fn data(kind: Kind, body: &[u8]) -> Option<Data<'_>> {
    let (carried, rest) = DataFields::read_from_prefix(body).ok()?;
    let (message, rest) = Message::read_from_prefix(rest).ok()?;
    let op = message.op()?;
    let (extension, rest) = rest.split_at_checked(op.extension())?;
    let length = message.length.get();
    let (offset, extent, payload) = match kind {
        Kind::Fragment => (0, None, rest),
        Kind::Chunk => {
            let (offset, rest) = PayloadOffset::read_from_prefix(rest).ok()?;
            (offset.get(), None, rest)
        }
        Kind::Piece => {
            let (offset, rest) = PayloadOffset::read_from_prefix(rest).ok()?;
            let (extent, rest) = Extent::read_from_prefix(rest).ok()?;
            (offset.get(), Some(extent), rest)
        }
        _ => return None,
    };
    let carries = u32::try_from(payload.len()).ok()?;
    let is_whole = kind == Kind::Fragment;
    let fits = match op {
        _ if op.is_bare() => is_whole && carries == 0,
        _ if is_whole => carries == length,
        // Only a fragment may have an empty payload.
        _ => carries > 0 && offset.checked_add(carries)? <= length,
    };
    let is_within = extent.is_none_or(|extent| {
        let (start, end) = (extent.start.get(), extent.end.get());
        // The re-fragmented packet was first sent as one datagram, so its range is at most 64 KiB.
        let is_inside = start <= offset && offset.checked_add(carries).is_some_and(|behind| behind <= end);
        is_inside && end <= length && end - start <= u32::from(u16::MAX)
    });
    (fits && is_within).then_some(Data { carried, op, message, extension, offset, extent, payload })
}

/// Decodes the body of an ack packet.
pub(crate) fn ack(body: &[u8]) -> Option<(AckFields, SackFields, &[SackRange])> {
    let (ack, rest) = AckFields::read_from_prefix(body).ok()?;
    let (selective, rest) = SackFields::read_from_prefix(rest).ok()?;
    let ranges = <[SackRange]>::ref_from_bytes(rest).ok()?;
    (ranges.len() == usize::from(selective.ranges) && ranges.len() <= RANGES).then_some((ack, selective, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_records_have_no_padding() {
        assert_eq!((size_of::<PacketHeader>(), size_of::<AckFields>(), size_of::<DataFields>()), (16, 12, 16));
        assert_eq!((size_of::<Message>(), size_of::<PayloadOffset>(), size_of::<SackFields>()), (24, 4, 8));
        assert_eq!((FRAGMENT, CHUNK, PIECE, size_of::<SackRange>()), (56, 60, 68, 8));
    }

    fn packet(length: u32, op: u8, offset: Option<u32>, payload: usize) -> Vec<u8> {
        let message = Message { op, length: length.into(), ..Message::default() };
        let mut bytes = [DataFields::default().as_bytes(), message.as_bytes()].concat();
        bytes.extend(offset.iter().flat_map(|offset| offset.to_be_bytes()));
        bytes.resize(bytes.len() + payload, 7);
        bytes
    }

    #[test]
    fn payload_must_be_within_its_message() {
        let is_data = |kind, bytes: &[u8]| data(kind, bytes).is_some();
        assert!(is_data(Kind::Fragment, &packet(5, 1, None, 5)));
        assert!(is_data(Kind::Fragment, &packet(0, 3, None, 0)), "an empty message is valid");
        assert!(!is_data(Kind::Fragment, &packet(6, 1, None, 5)) && !is_data(Kind::Fragment, &packet(4, 1, None, 5)));
        assert!(is_data(Kind::Fragment, &packet(6, 4, None, 0)) && !is_data(Kind::Fragment, &packet(6, 4, None, 6)));
        assert!(is_data(Kind::Chunk, &packet(10, 1, Some(5), 5)));
        assert!(!is_data(Kind::Chunk, &packet(10, 1, Some(6), 5)) && !is_data(Kind::Chunk, &packet(10, 1, Some(5), 0)));
        assert!(!is_data(Kind::Chunk, &packet(u32::MAX, 1, Some(u32::MAX), 5)), "offset plus length must not wrap");
        assert!(!is_data(Kind::Fragment, &packet(5, 0, None, 5)) && !is_data(Kind::Fragment, &packet(5, 12, None, 5)));
        assert!(!is_data(Kind::Ack, &packet(5, 1, None, 5)) && !is_data(Kind::Fragment, &[0; 39]));
    }

    #[test]
    fn extension_length_depends_on_the_operation_and_is_no_payload() {
        for (op, length, payload) in [(8, 5, 5), (9, 8, 0), (10, 8, 0), (11, 0, 0)] {
            let extension = Op::try_read_from_bytes(&[op]).unwrap().extension();
            let bytes = packet(length, op, None, extension + payload);
            let data = data(Kind::Fragment, &bytes).unwrap();
            assert_eq!((data.extension.len(), data.payload.len()), (extension, payload), "operation {op}");
            for wrong in [extension - 1, extension + payload + 1] {
                assert!(super::data(Kind::Fragment, &packet(length, op, None, wrong)).is_none(), "operation {op}");
            }
        }
        assert!(data(Kind::Fragment, &packet(3, 6, None, 3)).is_some_and(|data| data.extension.is_empty()));
    }

    #[test]
    fn piece_must_be_within_packet_and_message() {
        let is_piece = |length: u32, offset: u32, extent: (u32, u32), payload: usize| {
            let mut bytes = packet(length, 3, Some(offset), 0);
            bytes.extend(Extent { start: extent.0.into(), end: extent.1.into() }.as_bytes());
            bytes.resize(bytes.len() + payload, 7);
            let found = data(Kind::Piece, &bytes);
            found.is_some_and(|data| data.extent.is_some_and(|it| it.length() == extent.1 - extent.0))
        };
        assert!(is_piece(100, 20, (10, 90), 70) && is_piece(100, 0, (0, 100), 1) && is_piece(100, 99, (0, 100), 1));
        assert!(!is_piece(100, 20, (10, 90), 71), "a piece must end within its packet");
        assert!(!is_piece(100, 9, (10, 90), 5), "a piece must begin within its packet");
        assert!(!is_piece(100, 20, (10, 101), 5), "the packet must end within the message");
        assert!(!is_piece(100, 20, (10, 90), 0), "a piece has at least one byte");
        assert!(
            !is_piece(100, 20, (90, 10), 5) && !is_piece(u32::MAX, u32::MAX, (0, u32::MAX), 5),
            "offset plus length must not wrap"
        );
        assert!(
            is_piece(1 << 20, 5, (5, 65_540), 5) && !is_piece(1 << 20, 5, (4, 65_540), 5),
            "a packet is not longer than a datagram"
        );
        assert!(data(Kind::Piece, &packet(10, 1, Some(5), 5)).is_none(), "a piece needs the extent field");
        let mut asks = packet(5, 4, Some(u32::MAX), 0);
        asks.extend(Extent { start: 0.into(), end: u32::MAX.into() }.as_bytes());
        asks.extend([7; 5]);
        assert!(data(Kind::Piece, &asks).is_none(), "a request is not split into pieces");
    }

    #[test]
    fn ack_with_a_wrong_range_count_is_rejected() {
        let with = |count: u8, ranges: usize| {
            let selective = SackFields { ranges: count, ..SackFields::default() };
            let mut bytes = [AckFields::default().as_bytes(), selective.as_bytes()].concat();
            bytes.resize(bytes.len() + ranges * size_of::<SackRange>(), 0);
            bytes
        };
        assert_eq!(ack(&with(2, 2)).map(|(_, _, ranges)| ranges.len()), Some(2));
        assert!(ack(&with(0, 0)).is_some() && ack(&with(2, 1)).is_none() && ack(&with(1, 2)).is_none());
        assert!(ack(&with(65, 65)).is_none() && ack(&with(1, 1)[..27]).is_none());
    }

    #[test]
    fn packets_of_another_version_or_unknown_kind_are_rejected() {
        let head = PacketHeader::new(Kind::Reset, FLAG_LAST, 3, 4);
        assert_eq!((head.kind(), head.has(FLAG_LAST), head.has(FLAG_ACK_NOW)), (Some(Kind::Reset), true, false));
        assert_eq!(PacketHeader { version: VERSION + 1, ..head }.kind(), None);
        assert_eq!(PacketHeader { kind: 17, ..head }.kind(), None);
        assert_eq!(PacketHeader { kind: 0, ..head }.kind(), None);
    }
}
