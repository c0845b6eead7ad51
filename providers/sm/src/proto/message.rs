//! Words of the rings and of the FIFO, the headers of send and RMA fragments, and the body of an atomic operation.
//!
//! A ring word has its type in the low four bits (SM-11), then flags, then a length. A FIFO word consists of a type and
//! the receiver's id of the connection (SM-14).
#![forbid(unsafe_code)]

use dapl_software::memory::atomic::Atomic;
use zerocopy::TryFromBytes;

/// Size in bytes of a ring slot: two cache lines that the CPU fetches together.
pub(crate) const SLOT: usize = 128;
/// Number of payload bytes of a slot, which follow the header word and a word with two numbers of 32 bits.
pub(crate) const INLINE: usize = SLOT - 16;
/// A cache line: the unit of the message and RMA buffers (SM-12).
pub(crate) const LINE: usize = 64;

/// Types of ring words. No type has the value 0, so that zeroed memory contains no message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum MessageKind {
    /// A fragment of a send. Its bytes are in the slot or in the message buffer.
    Send = 1,
    /// The sender's RMA buffer contains a fragment. The target must copy the fragment to its memory.
    RmaWrite = 2,
    /// The sender's RMA buffer has space for a fragment. The target must copy its memory into that space.
    RmaRead = 3,
    /// Response to an RMA fragment or a part of an eager write. `aux` is the line number of the fragment, or the low half
    /// of the slot number. The length field is a status.
    RmaAck = 4,
    /// Negative response to a send that could not be delivered. The length field is a status.
    SendNak = 5,
    /// A rendezvous offer: a send whose bytes the receiver copies from the sender's memory. The length field is the
    /// number of segments.
    Offer = 6,
    /// Response to a rendezvous offer that the receiver cannot copy. The sender must copy the bytes, starting at byte
    /// `aux`, to its staging buffer. The length field is the low part of the offer's slot number.
    RequestStaging = 7,
    /// A fragment of a send with immediate data.
    SendImmediate = 8,
    /// A fragment of a send with the key of a window, which the receiver unbinds.
    SendInvalidate = 9,
    /// An RDMA write with immediate data is complete. `aux` is the immediate data. The first word of the body is the
    /// length of the write.
    WriteImmediate = 10,
    /// An atomic operation that the target must execute. The body describes it ([`AtomicRequest`]).
    Atomic = 11,
    /// Response to an atomic operation. The length field is a status, the first word of the body the previous value.
    AtomicAck = 12,
    /// A part of an RDMA write that the target copies, unless the initiator reclaims it ([`EagerWrite`]). The payload
    /// follows the body in the slot, or starts at line `aux` of the sender's RMA buffer. The length field is its length in
    /// bytes.
    EagerWrite = 13,
}

/// A ring word: type, flags, length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) kind: MessageKind,
    /// Whether this is the first fragment of a message.
    pub(crate) first: bool,
    pub(crate) last: bool,
    /// Whether the bytes of the send are in the slot.
    pub(crate) inline: bool,
    /// Whether the send, or the write with immediate data, has the flag SOLICITED_WAIT.
    pub(crate) solicited: bool,
    /// Number of bytes of this fragment, a status, or another number ([`MessageKind`]); less than 2^24.
    pub(crate) length: u32,
}

impl Header {
    /// Returns a word without flags.
    pub(crate) fn plain(kind: MessageKind, length: u32) -> Self {
        Header { kind, first: false, last: false, inline: false, solicited: false, length }
    }

    /// Returns the word of a send whose bytes are all in its slot.
    #[inline(always)]
    pub(crate) fn inline_send(length: u32, solicited: bool) -> Self {
        Header { kind: MessageKind::Send, first: true, last: true, inline: true, solicited, length }
    }

    /// Decodes the word of a send whose bytes are all in its slot. Returns the length, and whether the send is
    /// solicited. `None` for any other word, and for any that exceeds 32 bits.
    #[inline(always)]
    pub(crate) fn decode_inline_send(word: u64) -> Option<(u64, bool)> {
        const SOLICITED: u64 = 0x80;
        let kind_and_flags = u64::from(Header::inline_send(0, false).encode());
        let (low, length) = (word & 0xFF & !SOLICITED, word >> 8);
        (low == kind_and_flags && length <= INLINE as u64).then_some((length, word & SOLICITED != 0))
    }

    #[inline(always)]
    pub(crate) fn encode(self) -> u32 {
        self.kind as u32
            | u32::from(self.first) << 4
            | u32::from(self.last) << 5
            | u32::from(self.inline) << 6
            | u32::from(self.solicited) << 7
            | self.length << 8
    }

    /// Decodes a word; `None` if it is invalid.
    pub(crate) fn decode(word: u32) -> Option<Self> {
        let kind = MessageKind::try_read_from_bytes(&[word as u8 & 0xF]).ok()?;
        Some(Header {
            kind,
            first: word & 0x10 != 0,
            last: word & 0x20 != 0,
            inline: word & 0x40 != 0,
            solicited: word & 0x80 != 0,
            length: word >> 8,
        })
    }
}

/// The data header of a fragment of a send (CM-2), at the start of its slot's payload. A message that fits in its slot
/// has no data header, because it is not reassembled, and its ring belongs to one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Data {
    /// Generation of the sender, which differs for each connection attempt.
    pub(crate) generation: u16,
    /// Number of the message; equal in all fragments of a message.
    pub(crate) message: u16,
    /// Id of the connection at the sender.
    pub(crate) source: u32,
    /// Id of the connection at the receiver.
    pub(crate) destination: u32,
    /// Length of the whole message in bytes.
    pub(crate) size: u64,
}

impl Data {
    pub(crate) const WORDS: usize = 4;

    /// Encodes the header as eight-byte words of the payload. The last word and half of the third word are reserved.
    pub(crate) fn encode(&self) -> [u64; Self::WORDS] {
        let ids = u64::from(self.generation) | u64::from(self.message) << 16 | u64::from(self.source) << 32;
        [self.size, ids, u64::from(self.destination), 0]
    }

    /// Decodes the header; `None` if reserved bits are set.
    pub(crate) fn decode(words: [u64; Self::WORDS]) -> Option<Self> {
        let [size, ids, destination, reserved] = words;
        let data = Data {
            generation: ids as u16,
            message: (ids >> 16) as u16,
            source: (ids >> 32) as u32,
            destination: u32::try_from(destination).ok()?,
            size,
        };
        (reserved == 0).then_some(data)
    }
}

/// The header of an RMA fragment, in the first cache line of the fragment (SM-19). The target may overwrite it, so the
/// initiator identifies a fragment by the line number in the response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fragment {
    /// Remote key at the target.
    pub(crate) key: u32,
    /// Number of payload bytes. The payload starts on the next line.
    pub(crate) length: u32,
    /// Address at the target.
    pub(crate) address: u64,
    /// Offset of the first byte in the initiator's request, for debugging.
    pub(crate) origin: u64,
    /// Cookie of the initiator, for debugging.
    pub(crate) cookie: u64,
}

impl Fragment {
    /// Encodes the header as the eight-byte words of line 0.
    pub(crate) fn encode(&self) -> [u64; 4] {
        [u64::from(self.key) | u64::from(self.length) << 32, self.address, self.origin, self.cookie]
    }

    pub(crate) fn decode(words: [u64; 4]) -> Self {
        Fragment {
            key: words[0] as u32,
            length: (words[0] >> 32) as u32,
            address: words[1],
            origin: words[2],
            cookie: words[3],
        }
    }
}

/// Body of a slot that contains an atomic operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AtomicRequest {
    /// Remote key at the target.
    pub(crate) key: u32,
    /// Address at the target, a multiple of 8.
    pub(crate) address: u64,
    pub(crate) operation: Atomic,
}

impl AtomicRequest {
    pub(crate) const WORDS: usize = 5;

    pub(crate) fn encode(&self) -> [u64; Self::WORDS] {
        let [kind, first, second] = self.operation.encode();
        [u64::from(self.key), self.address, kind, first, second]
    }

    /// Decodes the body; `None` for an unknown operation, a key of more than 32 bits, or an unaligned address.
    pub(crate) fn decode([key, address, kind, first, second]: [u64; Self::WORDS]) -> Option<Self> {
        let operation = Atomic::decode([kind, first, second])?;
        let request = AtomicRequest { key: u32::try_from(key).ok()?, address, operation };
        Atomic::is_aligned(address).then_some(request)
    }
}

/// Body of a slot that contains a part of an eager write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct EagerWrite {
    /// Address at the target.
    pub(crate) address: u64,
    /// Remote key at the target.
    pub(crate) key: u32,
}

impl EagerWrite {
    pub(crate) const WORDS: usize = 2;
    /// Number of bytes of the body. The payload follows if it is in the slot.
    pub(crate) const BYTES: usize = Self::WORDS * 8;
    /// Maximum number of payload bytes in the slot.
    pub(crate) const INLINE: usize = INLINE - Self::BYTES;

    pub(crate) fn encode(&self) -> [u64; Self::WORDS] {
        [self.address, u64::from(self.key)]
    }

    /// Decodes the body; `None` for a key of more than 32 bits.
    pub(crate) fn decode([address, key]: [u64; Self::WORDS]) -> Option<Self> {
        Some(EagerWrite { address, key: u32::try_from(key).ok()? })
    }
}

/// A word in the FIFO of an IA: four bytes with its type and the receiver's id of the connection (docs/sm.md, FIFO).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FifoWord {
    /// On the connection with this id, the sender of the word has published ring entries, has consumed entries, or has
    /// written to the words of a copy job or the staging buffer.
    Wake(u32),
    /// A heartbeat of the connection with this id.
    Alive(u32),
    /// The connection with this id was ended. The sender has marked the end on its control page.
    Reset(u32),
}

/// Mask of a connection id: 16 bits of table index and 8 bits of generation.
pub(crate) const ID_MASK: u32 = 0xFF_FFFF;

impl FifoWord {
    pub(crate) fn encode(self) -> [u8; 4] {
        let (kind, id) = match self {
            FifoWord::Wake(id) => (1, id),
            FifoWord::Alive(id) => (2, id),
            FifoWord::Reset(id) => (3, id),
        };
        (kind | (id & ID_MASK) << 8).to_ne_bytes()
    }

    pub(crate) fn decode(bytes: [u8; 4]) -> Option<Self> {
        let word = u32::from_ne_bytes(bytes);
        let id = word >> 8;
        match word & 0xFF {
            1 => Some(FifoWord::Wake(id)),
            2 => Some(FifoWord::Alive(id)),
            3 => Some(FifoWord::Reset(id)),
            _ => None,
        }
    }

    /// Decodes the words of one read. `None`: a word is incomplete or invalid, so another process has read or written
    /// the FIFO, and words may be lost.
    pub(crate) fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let (words, rest) = bytes.as_chunks::<4>();
        let notes = words.iter().map(|word| FifoWord::decode(*word)).collect();
        if rest.is_empty() { notes } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_and_fifo_words_round_trip() {
        for word in 0..=0xFFFFu32 {
            if let Some(header) = Header::decode(word) {
                assert_eq!(header.encode(), word);
            }
        }
        assert_eq!(Header::decode(0), None, "zeroed memory contains no message");
        let long = Header {
            kind: MessageKind::Send,
            first: true,
            last: false,
            inline: false,
            solicited: true,
            length: 0xFF_FFFF,
        };
        assert_eq!(Header::decode(long.encode()), Some(long));
        for note in [FifoWord::Wake(0), FifoWord::Alive(ID_MASK), FifoWord::Reset(77)] {
            assert_eq!(FifoWord::decode(note.encode()), Some(note));
        }
        assert_eq!(FifoWord::decode([0; 4]), None);
        let (two, cut) = ([FifoWord::Wake(1).encode(), FifoWord::Reset(2).encode()].concat(), [9].as_slice());
        assert_eq!(FifoWord::decode_all(&two), Some(vec![FifoWord::Wake(1), FifoWord::Reset(2)]));
        assert_eq!(FifoWord::decode_all(&[&two, cut].concat()), None);
        assert_eq!(FifoWord::decode_all(&[cut, &two, &[0; 3]].concat()), None);
    }

    #[test]
    fn data_headers_round_trip_and_reserved_bits_are_not_decoded() {
        let all =
            Data { generation: 0xFFFF, message: 0xFFFE, source: u32::MAX, destination: 0x8000_0001, size: u64::MAX };
        let small = Data { generation: 1, message: 2, source: 3, destination: 4, size: 5 };
        for data in [all, small] {
            assert_eq!(Data::decode(data.encode()), Some(data));
            for bit in 0..64 {
                let mut words = data.encode();
                words[3] = 1 << bit;
                assert_eq!(Data::decode(words), None, "reserved bit {bit}");
            }
            for bit in 32..64 {
                let mut words = data.encode();
                words[2] |= 1 << bit;
                assert_eq!(Data::decode(words), None, "reserved bit {bit} beside the destination");
            }
        }
    }

    #[test]
    fn atomic_requests_round_trip_and_invalid_ones_are_not_decoded() {
        for operation in [Atomic::FetchAdd(3), Atomic::CompareSwap { compare: 1, swap: u64::MAX }] {
            let request = AtomicRequest { key: u32::MAX, address: u64::MAX - 7, operation };
            assert_eq!(AtomicRequest::decode(request.encode()), Some(request));
            for (n, wrong) in [(0, 1 << 32), (1, 4), (2, 2)] {
                let mut words = request.encode();
                words[n] = wrong;
                assert_eq!(AtomicRequest::decode(words), None, "word {n}");
            }
        }
    }

    #[test]
    fn eager_writes_round_trip_and_invalid_keys_are_not_decoded() {
        let write = EagerWrite { address: u64::MAX, key: u32::MAX };
        assert_eq!(EagerWrite::decode(write.encode()), Some(write));
        assert_eq!(EagerWrite::decode([0, 1 << 32]), None);
    }

    #[test]
    fn fragment_header_round_trips() {
        let fragment = Fragment { key: 5, length: 6, address: u64::MAX, origin: 1, cookie: 2 };
        assert_eq!(Fragment::decode(fragment.encode()), fragment);
    }
}
