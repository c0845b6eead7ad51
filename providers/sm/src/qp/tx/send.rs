//! Sends: inside a slot, or in pieces through the message buffer (transports.md SM-12, B1).

use dapl::provider::Status;
use dapl_software::memory::scatter_gather::gather;

use super::{Request, Stage, Step, TxEnds};
use crate::proto::message::{Header, INLINE, Kind, LINE};
use crate::qp::shared::Shared;

/// Bytes of a piece of a send that is not inline.
const PIECE: usize = 16 << 10;

impl TxEnds {
    pub(super) fn send(&mut self, shared: &Shared, request: &mut Request, solicited: bool) -> Step {
        let total = request.segments.total();
        if total > shared.max_message {
            return Step::Failed(Status::LocalLength);
        }
        if let Some(step) = self.offer(shared, request, solicited) {
            return step;
        }
        let mut wrote = false;
        loop {
            if self.requests.is_full() {
                return Step::Part { wrote };
            }
            let left = total - request.issued;
            let first = request.issued == 0;
            let outcome = if total <= INLINE as u64 {
                self.send_inline(shared, request, solicited)
            } else {
                self.send_piece(shared, request, solicited, left.min(PIECE as u64) as usize, first)
            };
            match outcome {
                Ok(true) => wrote = true,
                Ok(false) => return Step::Part { wrote },
                Err(status) => return Step::Failed(status),
            }
            request.stage = Stage::Running;
            if request.issued == total {
                request.stage = Stage::Sent(self.requests.next());
                return Step::Whole { wrote };
            }
        }
    }

    fn send_inline(&mut self, shared: &Shared, request: &mut Request, solicited: bool) -> Result<bool, Status> {
        let total = request.segments.total() as usize;
        let mut bytes = [0u8; INLINE];
        fail_point!(SlotReserved);
        // SAFETY: `total` is at most INLINE, the length of `bytes`.
        unsafe { gather(&*shared.regions, shared.pd, &request.segments, 0, bytes.as_mut_ptr(), total) }?;
        let header =
            Header { kind: Kind::Send, first: true, last: true, inline: true, solicited, length: total as u32 };
        let payload = self.payload(shared);
        self.requests.push_inline(header, &payload, &bytes[..total]);
        request.issued = total as u64;
        Ok(true)
    }

    fn send_piece(
        &mut self,
        shared: &Shared,
        request: &mut Request,
        solicited: bool,
        length: usize,
        first: bool,
    ) -> Result<bool, Status> {
        let Some((line, mark)) = self.messages.reserve(length.div_ceil(LINE)) else { return Ok(false) };
        let at = self.link.geometry.messages_at() + line as usize * LINE;
        let to = self.link.area.bytes(at, length).ok_or(Status::LocalEp)?;
        fail_point!(LinesReserved);
        // SAFETY: the lines were reserved for this piece, in our own area.
        let gathered = unsafe { gather(&*shared.regions, shared.pd, &request.segments, request.issued, to, length) };
        fail_point!(LinesFilled);
        self.marks.push_back((self.requests.next(), mark));
        gathered?; // else nothing is published for these lines, and the connection ends with this request
        let total = request.segments.total();
        request.issued += length as u64;
        let mut payload = self.payload(shared);
        payload.aux = line;
        let words = self.numbering.next(first, total).encode();
        payload.total = Some(words[0]);
        words[1..].iter().enumerate().for_each(|(n, word)| self.requests.note(n, *word));
        let last = request.issued == total;
        let header = Header { kind: Kind::Send, first, last, inline: false, solicited, length: length as u32 };
        self.requests.push(header, &payload);
        Ok(true)
    }
}
