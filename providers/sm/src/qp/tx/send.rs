//! Sends whose bytes fit in a slot, and sends in fragments through the message buffer (SM-12, spec/transports B1).

use dapl::provider::{Op, Region, Segment, Status};
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::{gather, gather_recent};

use super::TxRings;
use super::request::{Issue, IssueResult, RequestPhase};
use crate::proto::message::{Header, INLINE, LINE, MessageKind};
use crate::qp::context::QpContext;
use crate::qp::ring::SlotFields;

/// Maximum length in bytes of a fragment: the part of a send that one slot announces in the message buffer.
pub(super) const MAX_FRAGMENT_BYTES: usize = 16 << 10;

/// Properties of a send besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    kind: MessageKind,
    /// Immediate data, or the key of the window that the peer must unbind.
    value: u32,
    solicited: bool,
}

impl Message {
    /// Returns the properties of a send operation.
    pub(super) fn of(op: Op) -> Self {
        match op {
            Op::SendImmediate { data, solicited } => {
                Message { kind: MessageKind::SendImmediate, value: data, solicited }
            }
            Op::SendInvalidate { key, solicited } => {
                Message { kind: MessageKind::SendInvalidate, value: key, solicited }
            }
            other => {
                let solicited = matches!(other, Op::Send { solicited: true });
                Message { kind: MessageKind::Send, value: 0, solicited }
            }
        }
    }
}

impl Issue<'_> {
    /// Whether the registration of a segment of the request grants this right.
    pub(super) fn allows(&self, segment: &Segment, right: AccessRight) -> bool {
        let region = Region { address: segment.address, length: segment.length };
        self.context.regions.allows(segment.key, self.context.pd, region, right)
    }

    /// Copies `length` bytes of the request's memory, from `offset` on, to `to`. Errors: those of [`gather`].
    ///
    /// # Safety
    ///
    /// `length` bytes at `to` are writable and belong to this call.
    pub(super) unsafe fn gather(&self, offset: u64, to: *mut u8, length: usize) -> Result<(), Status> {
        let QpContext { regions, pd, .. } = self.context;
        // SAFETY: the caller guarantees the space at `to` (# Safety).
        unsafe { gather(&**regions, *pd, &self.request.segments, offset, to, length) }
    }
}

impl TxRings {
    pub(super) fn send(&mut self, issue: &mut Issue<'_>, message: Message) -> IssueResult {
        let total = issue.request.segments.total();
        if total > issue.context.max_message {
            return IssueResult::Failed(Status::LocalLength);
        }
        // The slot of a rendezvous offer has no space for immediate data or a key.
        if message.kind == MessageKind::Send
            && let Some(step) = self.offer(issue, message.solicited)
        {
            return step;
        }
        let mut published = false;
        loop {
            if self.requests.is_full() {
                return IssueResult::Partial { published };
            }
            let left = total - issue.request.issued;
            let first = issue.request.issued == 0;
            let outcome = if total <= INLINE as u64 {
                self.send_inline(issue, message)
            } else {
                self.send_fragment(issue, message, left.min(MAX_FRAGMENT_BYTES as u64) as usize, first)
            };
            match outcome {
                Ok(true) => published = true,
                Ok(false) => return IssueResult::Partial { published },
                Err(status) => return IssueResult::Failed(status),
            }
            issue.request.phase = RequestPhase::Running;
            if issue.request.issued == total {
                issue.request.phase = RequestPhase::Sent(self.requests.next());
                return IssueResult::Complete { published };
            }
        }
    }

    fn send_inline(&mut self, issue: &mut Issue<'_>, message: Message) -> Result<bool, Status> {
        let total = issue.request.segments.total() as usize;
        let mut words = [0u64; INLINE / 8];
        fail_point!(SlotReserved);
        // SAFETY: `total` is at most INLINE, which is the size of `words`.
        unsafe { issue.gather(0, words.as_mut_ptr().cast(), total) }?;
        let Message { kind, value, solicited } = message;
        let header = Header { kind, ..Header::inline_send(total as u32, solicited) };
        let payload = SlotFields { aux: value, ..self.payload(issue.context) };
        self.requests.push_inline(header, &payload, &words);
        issue.request.issued = total as u64;
        Ok(true)
    }

    /// Writes a send of one short segment to the next slot. Returns false if the ring is full, or if the segment's
    /// memory must be checked first.
    #[inline(always)]
    pub(super) fn send_short(&mut self, context: &QpContext, segment: &Segment, solicited: bool) -> bool {
        if self.requests.is_full() {
            return false;
        }
        fail_point!(SlotReserved);
        // SAFETY: the caller has checked that the post is announced, so a deregistration waits for it, and that the
        // segment has at most INLINE bytes, for which the slot has space. No other process reads an unpublished slot.
        let is_gathered = unsafe { gather_recent(&*context.regions, context.pd, segment, self.requests.payload()) };
        if is_gathered {
            let header = Header::inline_send(segment.length as u32, solicited);
            self.requests.publish(header, &self.payload(context));
        }
        is_gathered
    }

    fn send_fragment(
        &mut self,
        issue: &mut Issue<'_>,
        message: Message,
        length: usize,
        first: bool,
    ) -> Result<bool, Status> {
        let Some((line, mark)) = self.messages.reserve(length.div_ceil(LINE)) else { return Ok(false) };
        let at = self.link.geometry.messages_at() + line as usize * LINE;
        let to = self.link.area.bytes(at, length).ok_or(Status::LocalEp)?;
        fail_point!(LinesReserved);
        // SAFETY: the `length` bytes are lines of the local area that were reserved for this fragment above.
        let gathered = unsafe { issue.gather(issue.request.issued, to, length) };
        fail_point!(LinesFilled);
        self.marks.push_back((self.requests.next(), mark));
        gathered?; // On failure the lines stay reserved; the connection ends with this request.
        let total = issue.request.segments.total();
        issue.request.issued += length as u64;
        let mut payload = self.payload(issue.context);
        payload.aux = line;
        let words = self.numbering.next(first, total).encode();
        payload.total = Some(words[0]);
        words[1..].iter().enumerate().for_each(|(n, word)| self.requests.store_word(n, *word));
        self.requests.set_value(message.value);
        let last = issue.request.issued == total;
        let Message { kind, solicited, .. } = message;
        let header = Header { kind, first, last, inline: false, solicited, length: length as u32 };
        self.requests.push(header, &payload);
        Ok(true)
    }
}
