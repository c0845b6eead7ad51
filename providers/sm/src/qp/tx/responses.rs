//! Reads the progress that the peer reports to the sender: its count of consumed requests, and its responses to RMA
//! fragments, eager writes, atomic operations and sends.

use dapl::provider::{Remote, Status};
use dapl_software::memory::scatter_gather::scatter;

use super::Tx;
use super::eager::EagerPayload;
use super::request::{RequestEntry, RequestPhase};
use crate::proto::message::{Header, LINE, MessageKind};
use crate::qp::context::{ConnectionFault, NAK_ACCESS, NAK_SOURCE, QpContext};
use crate::qp::ring::{Peeked, SlotFields};

/// A fragment in the local RMA buffer, an eager write, or an atomic operation, to which the target has not responded
/// yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedResponse {
    /// Number of the request, counted from the start of the connection.
    pub(super) request: u64,
    pub(super) line: u32,
    pub(super) mark: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) kind: AwaitedKind,
}

/// The operation to which the target must respond.
#[derive(Clone, Copy, Debug)]
pub(super) enum AwaitedKind {
    Write,
    Read,
    Atomic,
    /// A part of an eager write, in this slot.
    Eager {
        slot: u64,
        payload: EagerPayload,
        remote: Remote,
    },
}

impl AwaitedResponse {
    /// Returns the slot of an eager write; `None` for other operations.
    pub(super) fn eager_slot(&self) -> Option<u64> {
        match self.kind {
            AwaitedKind::Eager { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// Returns the number that identifies the operation in its response.
    pub(super) fn id(&self) -> u32 {
        self.eager_slot().map_or(self.line, |slot| slot as u32)
    }
}

/// The decoded fields of an entry in the peer's response ring.
struct PeerResponse {
    kind: MessageKind,
    /// For a fragment, its line number; for a request of staged bytes, their offset in the message.
    aux: u32,
    /// 0 or the reason of a failure; for a request of staged bytes, the truncated slot number of the offer.
    status: u32,
    value: u64,
}

impl Tx {
    pub(super) fn read_peer_progress(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        let violation = ConnectionFault::InvalidData("a count of consumed requests beyond those in the ring");
        rings.requests.set_consumed_low(context.watch.carried_ack()).ok_or(violation)?;
        rings.requests.set_consumed(rings.link.consumed_requests()).ok_or(violation)?;
        while let Some((_, mark)) = rings.marks.front().copied().filter(|(slot, _)| *slot < rings.requests.consumed()) {
            rings.messages.release(mark);
            rings.marks.pop_front();
        }
        let before = rings.responses.consumed();
        while let Some(answer) = self.next_response()? {
            let PeerResponse { kind, aux, status, value } = answer;
            match kind {
                MessageKind::RmaAck => self.handle_rma_response(context, aux, status)?,
                MessageKind::AtomicAck => self.handle_atomic_response(context, status, value)?,
                MessageKind::RequestStaging => {
                    // The peer requests the next part as soon as this part is staged. Its request needs a free slot in
                    // the response ring, so the number of consumed responses is published first.
                    self.publish_consumed_responses();
                    self.copy_to_staging(context, status, u64::from(aux))?;
                }
                _ => self.handle_nak(status)?,
            }
        }
        if self.rings.as_ref().is_some_and(|rings| rings.responses.consumed() != before) {
            self.publish_consumed_responses();
        }
        Ok(())
    }

    fn publish_consumed_responses(&self) {
        self.rings.iter().for_each(|rings| rings.link.publish_consumed_responses(rings.responses.consumed()));
    }

    /// Consumes the next response in the ring; `None`: the ring is empty.
    fn next_response(&mut self) -> Result<Option<PeerResponse>, ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(None) };
        match rings.responses.peek() {
            Peeked::Empty => Ok(None),
            Peeked::Entry(Header { kind, length: status, .. })
                if matches!(
                    kind,
                    MessageKind::RmaAck | MessageKind::SendNak | MessageKind::RequestStaging | MessageKind::AtomicAck
                ) =>
            {
                let SlotFields { aux, total, .. } = rings.responses.fields();
                rings.responses.advance();
                Ok(Some(PeerResponse { kind, aux, status, value: total.unwrap_or(0) }))
            }
            _ => Err(ConnectionFault::InvalidData("an unknown message type in the response ring")),
        }
    }

    /// Handles the target's response to a fragment or an eager write. Responses arrive in the order of the operations.
    fn handle_rma_response(&mut self, context: &QpContext, id: u32, status: u32) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        let is_meant = |part: &AwaitedResponse| part.id() == id && !matches!(part.kind, AwaitedKind::Atomic);
        let Some(part) = rings.pending.pop_front().filter(is_meant) else {
            return Err(ConnectionFault::InvalidData("a response that matches no fragment in flight"));
        };
        if part.eager_slot().is_some() {
            rings.eager.count_response();
        }
        rings.rma.release(part.mark);
        let outcome = if status == 0 { Ok(()) } else { Err(Status::RemoteAccess) };
        self.finish_part(context, &part, outcome)
    }

    /// Records that a fragment or an eager write of a request has ended. The request is complete after its last part.
    pub(super) fn finish_part(
        &mut self,
        context: &QpContext,
        part: &AwaitedResponse,
        mut outcome: Result<(), Status>,
    ) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        // A malicious peer can let a write with immediate data complete before the responses to its parts.
        let index = part.request.checked_sub(rings.first).and_then(|index| usize::try_from(index).ok());
        let entry = index.and_then(|index| self.queue.get_mut(index));
        let unexpected = ConnectionFault::InvalidData("a response that matches no outstanding request");
        let Some(entry) = entry else { return Err(unexpected) };
        if entry.end_quick_write(outcome) {
            if let Err(status) = outcome {
                let cookie = entry.outcome(context.ep.handle).0.cookie;
                rings.report_refused_part(context, cookie, part, status);
                self.halted = true;
                self.withdraw_credit();
            }
            return Ok(());
        }
        let Some(request) = entry.request_mut() else { return Err(unexpected) };
        let is_read = matches!(part.kind, AwaitedKind::Read);
        if is_read && outcome.is_ok() {
            let from = rings.link.rma.bytes(part.line as usize * LINE + LINE, part.length as usize);
            let from = from.ok_or(ConnectionFault::InvalidData("a fragment outside its RMA buffer"))?;
            let (regions, length) = (&*context.regions, part.length as usize);
            // SAFETY: the `length` bytes are in the local RMA buffer. They were released, but no later operation has
            // reserved them yet.
            outcome = unsafe { scatter(regions, context.pd, &request.segments, part.offset, from, length) };
        }
        request.answered += u64::from(part.length);
        match outcome {
            Err(status) => {
                request.phase = RequestPhase::Failed(status);
                rings.report_refused(context, request, status);
                self.halted = true;
            }
            Ok(()) if request.answered == request.segments.total() && request.phase == RequestPhase::Sent(u64::MAX) => {
                request.phase = RequestPhase::Done;
            }
            Ok(()) => {}
        }
        if is_read && request.answered == request.segments.total() {
            rings.reads = rings.reads.saturating_sub(1);
        }
        if outcome.is_err() {
            self.withdraw_credit();
        }
        Ok(())
    }

    /// Handles a negative response to a send: the oldest incomplete send fails.
    fn handle_nak(&mut self, status: u32) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        // The peer has published its number of consumed requests before this response. The number known here may be
        // older, and a send that the peer has consumed must not fail.
        rings
            .requests
            .set_consumed(rings.link.consumed_requests())
            .ok_or(ConnectionFault::InvalidData("a count of consumed requests beyond those in the ring"))?;
        let consumed = rings.requests.consumed();
        let open = |r: &&mut RequestEntry| match r.phase() {
            RequestPhase::Sent(slot) | RequestPhase::Offered(slot) => slot > consumed && r.is_send(),
            RequestPhase::Running => r.is_send(),
            _ => false,
        };
        let request = self
            .queue
            .iter_mut()
            .find(open)
            .ok_or(ConnectionFault::InvalidData("a rejection that matches no outstanding send"))?;
        request.fail(match status {
            NAK_SOURCE => Status::LocalProtection,
            NAK_ACCESS => Status::RemoteAccess,
            _ => Status::RemoteResponder,
        });
        Ok(())
    }
}
