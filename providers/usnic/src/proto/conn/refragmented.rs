//! Re-fragmented packets, which are retransmitted in pieces because the path MTU has decreased after their first
//! transmission.
//!
//! Messages are ordered by PSN, so a re-fragmented packet must keep its PSN. Each of its pieces is a datagram with this
//! PSN and a byte range of the payload. The packet counts as received when all pieces have arrived.
//!
//! The receiver places the payload of a piece on arrival, so it stores only the received ranges. At most
//! [`MAX_INCOMPLETE`] packets may be incomplete. Pieces of further packets are dropped, and the peer retransmits them.

use super::requests::SentPayload;
use super::types::{INVALID_REQUEST, NotAccepted};
use crate::proto::psn::Psn;
use crate::proto::ranges::Ranges;
use crate::proto::wire::{Data, Extent, Op};

/// Maximum number of incomplete packets: as many as a sender retransmits in a pass.
const MAX_INCOMPLETE: usize = 64;

/// A packet of which only some pieces have arrived.
#[derive(Debug)]
struct PartialPacket {
    psn: Psn,
    /// Fields of the first piece that has arrived. Those of later pieces must be equal.
    op: Op,
    id: u32,
    extent: Extent,
    /// Byte ranges of the packet that have arrived, relative to its first byte.
    have: Ranges,
}

/// The incomplete packets of the peer.
#[derive(Debug, Default)]
pub(super) struct Refragmented(Vec<PartialPacket>);

impl Refragmented {
    /// Checks whether a piece may be accepted.
    ///
    /// Errors: [`INVALID_REQUEST`] if the piece contradicts an earlier piece of the same packet; `Later` if
    /// [`MAX_INCOMPLETE`] other packets are incomplete.
    pub(super) fn check(&self, psn: Psn, data: &Data<'_>) -> Result<(), NotAccepted> {
        let Some(extent) = data.extent else { return Ok(()) };
        match self.0.iter().find(|it| it.psn == psn) {
            Some(it) if (it.op, it.id, it.extent) == (data.op, data.message.id.get(), extent) => Ok(()),
            Some(_) => Err(INVALID_REQUEST),
            None if self.0.len() < MAX_INCOMPLETE => Ok(()),
            None => Err(NotAccepted::Later),
        }
    }

    /// Records that the payload of a piece or of a whole packet was placed. Returns the payload length of the packet if
    /// it is complete.
    pub(super) fn mark_delivered(&mut self, psn: Psn, data: &Data<'_>) -> Option<usize> {
        let found = self.0.iter().position(|it| it.psn == psn);
        let Some(extent) = data.extent else {
            found.map(|at| self.0.swap_remove(at));
            return Some(data.payload.len());
        };
        let at = found.unwrap_or_else(|| {
            let (op, id, have) = (data.op, data.message.id.get(), Ranges::default());
            self.0.push(PartialPacket { psn, op, id, extent, have });
            self.0.len() - 1
        });
        let start = data.offset - extent.start.get();
        // If a piece cannot be recorded, the peer retransmits it.
        let is_recorded = self.0[at].have.add(start, start + data.payload.len() as u32);
        let is_whole = is_recorded && self.0[at].have.is_whole(extent.length());
        is_whole.then(|| {
            self.0.swap_remove(at);
            extent.length() as usize
        })
    }
}

/// A packet that is being sent in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendingPieces {
    pub(super) psn: Psn,
    pub(super) sent: SentPayload,
    /// Number of payload bytes that were sent.
    pub(super) sent_bytes: u32,
    /// Number of payload bytes per piece.
    pub(super) each: u32,
    pub(super) resend: bool,
}

impl SendingPieces {
    /// Splits a packet into the minimum number of pieces of at most `most` bytes. All but the last have equal length,
    /// so that they can be sent as a GSO batch.
    pub(super) fn new(psn: Psn, sent: SentPayload, most: u32, resend: bool) -> Self {
        let count = sent.length.div_ceil(most.max(1)).max(1);
        SendingPieces { psn, sent, sent_bytes: 0, each: sent.length.div_ceil(count).max(1), resend }
    }

    /// Returns the next piece, and whether it is the last piece.
    pub(super) fn next(&mut self) -> (SentPayload, bool) {
        let length = self.each.min(self.sent.length - self.sent_bytes);
        let piece = SentPayload { offset: self.sent.offset + self.sent_bytes, length, ..self.sent };
        self.sent_bytes += length;
        (piece, self.sent_bytes == self.sent.length)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::network_endian::U32;

    use super::*;
    use crate::proto::conn::requests::PayloadOwner;
    use crate::proto::wire::{DataFields, Message};

    fn piece(id: u32, offset: u32, extent: Option<(u32, u32)>, payload: &[u8]) -> Data<'_> {
        let message = Message { id: id.into(), length: U32::MAX_VALUE, ..Message::default() };
        let extent = extent.map(|(start, end)| Extent { start: start.into(), end: end.into() });
        Data { carried: DataFields::default(), op: Op::Send, message, extension: &[], offset, extent, payload }
    }

    #[test]
    fn packet_is_complete_with_all_pieces_in_any_order() {
        let (mut pieces, bytes) = (Refragmented::default(), [0; 40]);
        let extent = Some((100, 200));
        for offset in [160, 100, 100] {
            assert_eq!(pieces.mark_delivered(Psn(7), &piece(1, offset, extent, &bytes)), None);
        }
        assert_eq!(
            pieces.mark_delivered(Psn(8), &piece(1, 200, Some((200, 240)), &bytes)),
            Some(40),
            "a packet with one piece is complete"
        );
        assert_eq!(pieces.mark_delivered(Psn(7), &piece(1, 139, extent, &bytes)), Some(100));
        assert!(pieces.0.is_empty());
    }

    #[test]
    fn whole_packet_replaces_its_pieces() {
        let (mut pieces, bytes) = (Refragmented::default(), [0; 100]);
        assert_eq!(pieces.mark_delivered(Psn(7), &piece(1, 0, Some((0, 100)), &bytes[..30])), None);
        assert_eq!(pieces.mark_delivered(Psn(7), &piece(1, 0, None, &bytes)), Some(100));
        assert!(pieces.0.is_empty());
    }

    #[test]
    fn inconsistent_pieces_are_refused() {
        let (mut pieces, bytes) = (Refragmented::default(), [0; 10]);
        pieces.mark_delivered(Psn(7), &piece(1, 0, Some((0, 100)), &bytes));
        let meets = |it: Data<'_>| pieces.check(Psn(7), &it);
        assert_eq!(meets(piece(1, 50, Some((0, 100)), &bytes)), Ok(()));
        assert_eq!(
            meets(piece(2, 50, Some((0, 100)), &bytes)),
            Err(INVALID_REQUEST),
            "a piece of another message contradicts"
        );
        assert_eq!(
            meets(piece(1, 50, Some((0, 101)), &bytes)),
            Err(INVALID_REQUEST),
            "a piece of a longer packet contradicts"
        );
        assert_eq!(meets(Data { op: Op::Write, ..piece(1, 50, Some((0, 100)), &bytes) }), Err(INVALID_REQUEST));
        assert_eq!(meets(piece(2, 50, None, &bytes)), Ok(()), "a complete packet is checked elsewhere");
    }

    #[test]
    fn number_of_incomplete_packets_is_limited() {
        let (mut pieces, bytes) = (Refragmented::default(), [0; 10]);
        let it = |offset| piece(1, offset, Some((0, 20)), &bytes);
        for psn in 0..MAX_INCOMPLETE as u32 {
            assert_eq!(pieces.check(Psn(psn), &it(0)), Ok(()));
            assert_eq!(pieces.mark_delivered(Psn(psn), &it(0)), None);
        }
        assert_eq!((pieces.check(Psn(99), &it(0)), pieces.check(Psn(0), &it(10))), (Err(NotAccepted::Later), Ok(())));
        assert_eq!(pieces.mark_delivered(Psn(0), &it(10)), Some(20));
        assert_eq!(pieces.check(Psn(99), &it(0)), Ok(()));
    }

    #[test]
    fn packet_is_split_into_equal_pieces() {
        let sent = SentPayload {
            what: PayloadOwner::Request,
            command: false,
            slot: 3,
            offset: 1000,
            length: 8000,
            is_refragmented: true,
        };
        for (most, count, each) in [(1100, 8, 1000), (8000, 1, 8000), (1, 8000, 1), (0, 8000, 1), (7999, 2, 4000)] {
            let mut sending_pieces = SendingPieces::new(Psn(1), sent, most, true);
            let (mut at, mut seen) = (1000, 0);
            loop {
                let (piece, is_last) = sending_pieces.next();
                assert!((piece.offset, piece.slot) == (at, 3) && (is_last || piece.length == each));
                (at, seen) = (at + piece.length, seen + 1);
                if is_last {
                    break;
                }
            }
            assert_eq!((at, seen), (9000, count), "pieces of at most {most} bytes");
        }
        let nothing = SentPayload { length: 0, ..sent };
        assert_eq!(
            SendingPieces::new(Psn(1), nothing, 10, true).next(),
            (SentPayload { offset: 1000, ..nothing }, true)
        );
    }
}
