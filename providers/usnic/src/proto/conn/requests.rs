//! Posted requests, which start and complete in posting order, and are segmented when their packets are sent.
//!
//! This module decides which requests may start (fences, outstanding reads, credits) and which are complete. It sends
//! no packets and accesses no memory.

use std::collections::VecDeque;

use dapl::provider::Status;

use super::types::{Operation, Post, is_extension};
use crate::proto::psn::Psn;
use crate::proto::queue::OrderedQueue;
use crate::proto::ranges::Ranges;
use crate::proto::wire::Op;

/// Location of a data packet's payload, from which the packet can be retransmitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SentPayload {
    pub(super) what: PayloadOwner,
    /// Whether the packet is sent on the command channel.
    pub(super) command: bool,
    /// Slot of the request, or number of the peer's read.
    pub(super) slot: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
    /// Whether the packet was last sent in pieces (`refragmented`).
    pub(super) is_refragmented: bool,
}

impl SentPayload {
    /// Describes a packet of the data channel that is sent as one datagram.
    #[inline(always)]
    pub(super) fn new(what: PayloadOwner, slot: u32, offset: u32, length: u32) -> Self {
        SentPayload { what, command: false, slot, offset, length, is_refragmented: false }
    }
}

/// The object to which a packet's payload belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PayloadOwner {
    Request,
    Response,
    /// The packet has no payload. It only delivers its PSN.
    Nothing,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum SendPhase {
    /// Some packets of the request were not sent yet.
    #[default]
    Segmenting,
    /// All packets were sent. Acks or the response are outstanding.
    Out,
    Done,
    Failed(Status),
}

#[derive(Debug, Default)]
pub(super) struct PostedRequest<Q> {
    pub(super) driver_data: Q,
    /// The operation, or `None` for a request that sends no packet ([`Post::work`]).
    pub(super) work: Option<Operation>,
    pub(super) length: u32,
    fence: bool,
    pub(super) phase: SendPhase,
    /// Number of the request in the sequence of its kind ([`NextNumbers`]).
    pub(super) id: u32,
    /// Number of payload bytes that were sent.
    sent_bytes: u32,
    /// Number of packets that were sent and not acked.
    unacked: u32,
    /// For a read or atomic operation that was sent, the PSN of its packet.
    psn: Option<Psn>,
    /// For a read or atomic operation, the byte ranges of the response that have arrived.
    received: Ranges,
    /// For a read or atomic operation, whether any packet of the response has arrived.
    answered: bool,
}

/// Message numbers of the next send, write and read. Each of the three kinds has its own sequence. A write with
/// immediate data counts as a send, an atomic operation as a read, and a bind, which sends no packet, as a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextNumbers {
    pub(super) sends: u32,
    pub(super) writes: u32,
    pub(super) reads: u32,
}

/// The reason why no new packet of a request can be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlockedReason {
    /// There is no request, or a request has failed, or the next request waits: for earlier requests, for acks that
    /// make space in the window, or for the next attempt to execute a bind.
    Idle,
    /// As far as this side knows, the peer has no receive for the next send.
    Credit,
    /// The first waiting request is a bind that can be executed now.
    BindReady,
    /// The first waiting request can never be sent: a read or atomic operation although the peer accepts none (`ord`
    /// 0), or an extension operation that the peer does not support.
    Unsupported,
}

/// Limits from the handshake and from the peer's last ack.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendLimits {
    pub(super) ord: u32,
    /// Whether the peer supports extension operations.
    pub(super) extensions: bool,
    /// Credit limit: the peer has a receive for each send whose number is below this value.
    pub(super) credits: u32,
}

pub(super) struct SendQueue<Q> {
    pub(super) queue: OrderedQueue<PostedRequest<Q>>,
    /// Slots of the active reads and atomic operations. The last one has the number before `NextNumbers::reads`.
    reads: VecDeque<u32>,
    pub(super) numbers: NextNumbers,
    /// Slot of the request of which some but not all packets were sent.
    segmenting: Option<u32>,
    /// Number of started reads and atomic operations whose response is incomplete.
    pub(super) reads_outstanding: u32,
    /// Whether a request has failed, so that no other request may start.
    pub(super) stopped: bool,
    /// Packets of withdrawn sends, in message order. Their payload is sent again with new PSNs.
    pub(super) withdrawn: VecDeque<SentPayload>,
    /// PSN of the last packet sent for any request.
    pub(super) latest: Option<Psn>,
}

/// Whether the peer has a receive for the send with this number.
pub(super) fn is_below(number: u32, credits: u32) -> bool {
    (number.wrapping_sub(credits) as i32) < 0
}

impl<Q: Default> SendQueue<Q> {
    pub(super) fn new(capacity: u32) -> Self {
        SendQueue {
            queue: OrderedQueue::new(capacity),
            reads: VecDeque::new(),
            numbers: NextNumbers::default(),
            segmenting: None,
            reads_outstanding: 0,
            stopped: false,
            withdrawn: VecDeque::new(),
            latest: None,
        }
    }

    /// Queues a request. Returns the driver's data in it, which the caller must write, or `None` if the queue is full.
    #[inline(always)]
    pub(super) fn push(&mut self, post: Post) -> Option<&mut Q> {
        let Post { work, length, fence } = post;
        let request = self.queue.push()?;
        request.received.clear();
        (request.work, request.length, request.fence) = (work, length, fence);
        (request.phase, request.psn, request.answered) = (SendPhase::Segmenting, None, false);
        (request.id, request.sent_bytes, request.unacked) = (0, 0, 0);
        Some(&mut request.driver_data)
    }

    /// Whether a send posted now could be sent immediately, because no request waits and the peer has a receive for it.
    #[inline(always)]
    pub(super) fn may_start_send(&self, credits: u32) -> bool {
        self.all_sent() && !self.stopped && is_below(self.numbers.sends, credits)
    }

    /// Adds a send without flags whose only packet has this PSN and is about to be sent. No request may be waiting.
    /// Returns its slot, its number, and the driver's data in it, which the caller must write. Returns `None` if the
    /// queue is full.
    #[inline(always)]
    pub(super) fn push_sent(&mut self, length: u32, psn: Psn) -> Option<(u32, u32, &mut Q)> {
        let (slot, request) = self.queue.push_active()?;
        request.received.clear();
        let id = self.numbers.sends;
        self.numbers.sends = id.wrapping_add(1);
        self.latest = Some(psn);
        (request.work, request.length, request.fence) = (Some(Operation::Send { solicited: false }), length, false);
        (request.phase, request.psn, request.answered) = (SendPhase::Out, None, false);
        (request.id, request.sent_bytes, request.unacked) = (id, length, 1);
        Some((slot, id, &mut request.driver_data))
    }

    /// Returns the next packet of a request: the first withdrawn packet, or else a new one. The extension and payload
    /// of a new packet together have at most `fragment` bytes if the packet is a whole message, else at most `chunk`.
    pub(super) fn next(&self, bounds: SendLimits, fragment: u32, chunk: u32) -> Result<SentPayload, BlockedReason> {
        if self.stopped {
            return Err(BlockedReason::Idle);
        }
        if let Some(sent) = self.withdrawn.front() {
            let number = self.queue.get(sent.slot).map_or(bounds.credits, |request| request.id);
            return if is_below(number, bounds.credits) { Ok(*sent) } else { Err(BlockedReason::Credit) };
        }
        let slot = match self.segmenting {
            Some(slot) => slot,
            None => self.startable(bounds)?,
        };
        let request = self.queue.get(slot).ok_or(BlockedReason::Idle)?;
        let left = request.length - request.sent_bytes;
        let extension = request.op().extension() as u32;
        let (fragment, chunk) = (fragment.saturating_sub(extension), chunk.saturating_sub(extension));
        let length = match request.sent_bytes {
            _ if request.is_answered() => 0,
            0 if left <= fragment => left,
            _ => left.min(chunk),
        };
        Ok(SentPayload::new(PayloadOwner::Request, slot, request.sent_bytes, length))
    }

    /// Whether all packets of all posted requests were sent.
    pub(super) fn all_sent(&self) -> bool {
        self.withdrawn.is_empty() && self.segmenting.is_none() && self.queue.next().is_none()
    }

    /// Returns the slot of the first waiting request, if it may start.
    fn startable(&self, bounds: SendLimits) -> Result<u32, BlockedReason> {
        let slot = self.queue.next().ok_or(BlockedReason::Idle)?;
        let request = self.queue.get(slot).ok_or(BlockedReason::Idle)?;
        if request.fence && self.reads_outstanding > 0 {
            return Err(BlockedReason::Idle);
        }
        match request.work {
            None => Err(BlockedReason::BindReady),
            work if is_extension(work) && !bounds.extensions => Err(BlockedReason::Unsupported),
            _ if request.takes_receive() && !is_below(self.numbers.sends, bounds.credits) => Err(BlockedReason::Credit),
            _ if request.is_answered() && bounds.ord == 0 => Err(BlockedReason::Unsupported),
            _ if request.is_answered() && self.reads_outstanding >= bounds.ord => Err(BlockedReason::Idle),
            _ => Ok(slot),
        }
    }

    /// Starts the first waiting request.
    pub(super) fn start(&mut self) -> Option<&mut PostedRequest<Q>> {
        let slot = self.queue.start()?;
        let request = self.queue.get_mut(slot)?;
        let number = if request.takes_receive() {
            &mut self.numbers.sends
        } else if request.is_answered() {
            &mut self.numbers.reads
        } else {
            &mut self.numbers.writes
        };
        request.id = *number;
        *number = number.wrapping_add(1);
        if request.is_answered() {
            self.reads_outstanding += 1;
            self.reads.push_back(slot);
        }
        Some(request)
    }

    /// Records that a packet returned by `next` was sent.
    pub(super) fn record_sent(&mut self, sent: &SentPayload, psn: Psn) {
        self.latest = Some(psn);
        if self.withdrawn.pop_front().is_some() {
            return; // If there are withdrawn packets, `next` has returned the first of them.
        }
        if self.segmenting.is_none() {
            self.start();
        }
        let Some(request) = self.queue.get_mut(sent.slot) else { return };
        request.sent_bytes += sent.length;
        request.unacked += 1;
        request.psn = request.is_answered().then_some(psn);
        let is_all = request.sent_bytes == request.length || request.is_answered();
        if is_all && request.phase == SendPhase::Segmenting {
            request.phase = SendPhase::Out;
        }
        self.segmenting = (!is_all).then_some(sent.slot);
    }

    /// Records that a packet of the request was acked.
    pub(super) fn acked(&mut self, slot: u32) {
        let Some(request) = self.queue.get_mut(slot) else { return };
        request.unacked = request.unacked.saturating_sub(1);
        request.update_phase();
    }

    /// Queues the payload of a send's packet to be sent again with a new PSN. The caller delivers the old PSN without
    /// payload.
    ///
    /// The queue is in message order, because the peer may have a receive for only the first of these messages, and
    /// accepts no later message before it.
    pub(super) fn withdraw(&mut self, sent: SentPayload) {
        let number = |sent: &SentPayload| self.queue.get(sent.slot).map_or(self.numbers.sends, |request| request.id);
        let id = number(&sent);
        let behind = self.withdrawn.iter().rev().take_while(|other| is_below(id, number(other))).count();
        self.withdrawn.insert(self.withdrawn.len() - behind, sent);
    }

    /// Returns the slot of the outstanding read or atomic operation with this number.
    pub(super) fn read(&self, id: u32) -> Option<u32> {
        let oldest = self.numbers.reads.wrapping_sub(self.reads.len() as u32);
        self.reads.get(id.wrapping_sub(oldest) as usize).copied()
    }

    /// Records received bytes of a response. Returns false if there is no space to record the range. The bytes must
    /// then arrive again.
    pub(super) fn record_received(&mut self, slot: u32, offset: u32, length: u32) -> bool {
        let Some(request) = self.queue.get_mut(slot) else { return false };
        if request.has_all_data() {
            return true;
        }
        request.answered = true;
        if length > 0 && !request.received.add(offset, offset + length) {
            return false;
        }
        if request.has_all_data() {
            self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
        }
        request.update_phase();
        true
    }

    /// Fails a request with `status`. The request completes after all earlier requests, and no further request starts.
    pub(super) fn fail(&mut self, slot: u32, status: Status) {
        self.stopped = true;
        if let Some(request) = self.queue.get_mut(slot) {
            request.phase = SendPhase::Failed(status);
        }
    }

    /// Removes the oldest request if it is done or has failed. Returns its driver data, and its length in bytes or its
    /// error status.
    pub(super) fn take_ended(&mut self) -> Option<(&mut Q, Result<u64, Status>)> {
        let request = self.queue.get(self.queue.first()?)?;
        let outcome = match request.phase {
            SendPhase::Done => Ok(u64::from(request.length)),
            SendPhase::Failed(status) => Err(status),
            SendPhase::Segmenting | SendPhase::Out => return None,
        };
        if request.is_answered() {
            self.reads.pop_front();
        }
        self.queue.pop().map(|request| (&mut request.driver_data, outcome))
    }

    /// Returns the slot of the active read or atomic operation whose packet had this PSN.
    pub(super) fn answered_request_of(&self, psn: Psn) -> Option<u32> {
        self.queue.active().find(|slot| self.queue.get(*slot).is_some_and(|request| request.psn == Some(psn)))
    }
}

impl<Q> PostedRequest<Q> {
    /// Returns the operation code in the request's packets.
    pub(super) fn op(&self) -> Op {
        match self.work {
            Some(Operation::Send { solicited: false }) => Op::Send,
            Some(Operation::Send { solicited: true }) => Op::SendSolicited,
            Some(Operation::Read(_)) => Op::ReadRequest,
            Some(Operation::Write(_)) | None => Op::Write,
            Some(Operation::SendInvalidate { .. }) => Op::SendInvalidate,
            Some(Operation::SendImmediate { .. }) => Op::SendImmediate,
            Some(Operation::WriteImmediate { .. }) => Op::WriteImmediate,
            Some(Operation::FetchAdd { .. }) => Op::FetchAdd,
            Some(Operation::CompareSwap { .. }) => Op::CompareSwap,
        }
    }

    /// Whether the request consumes a receive of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        use Operation::{Send, SendImmediate, SendInvalidate, WriteImmediate};
        matches!(self.work, Some(Send { .. } | SendImmediate { .. } | SendInvalidate { .. } | WriteImmediate { .. }))
    }

    /// Whether the peer responds to the request: a read, or an atomic operation.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.work, Some(Operation::Read(_) | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }))
    }

    /// Whether the response has arrived completely. Returns true if the request has no response.
    fn has_all_data(&self) -> bool {
        let is_whole = || self.answered && (self.length == 0 || self.received.is_whole(self.length));
        !self.is_answered() || is_whole()
    }

    fn update_phase(&mut self) {
        if self.phase == SendPhase::Out && self.unacked == 0 && self.has_all_data() {
            self.phase = SendPhase::Done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: u32 = 100;

    /// Returns three sends without flags, each sent as one packet.
    fn sent(requests: &mut SendQueue<()>) -> Vec<SentPayload> {
        let send = |number| {
            requests
                .push(Post { work: Some(Operation::Send { solicited: false }), length: 8, fence: false })
                .expect("the queue is not full");
            let sent = requests.next(bounds(number + 1), SPACE, SPACE).expect("the credit limit includes this send");
            requests.record_sent(&sent, Psn(number));
            sent
        };
        (0..3).map(send).collect()
    }

    fn bounds(credits: u32) -> SendLimits {
        SendLimits { ord: 0, extensions: false, credits }
    }

    #[test]
    fn withdrawn_sends_are_sent_again_in_the_order_of_their_posts() {
        let mut requests = SendQueue::new(8);
        let packets = sent(&mut requests);
        [2, 0, 1].into_iter().for_each(|number: usize| requests.withdraw(packets[number]));
        // With a credit limit of 2, the first two messages are sent, and the third waits.
        for number in [0, 1] {
            assert_eq!(requests.next(bounds(2), SPACE, SPACE), Ok(packets[number as usize]));
            requests.record_sent(&packets[number as usize], Psn(10 + number));
        }
        assert_eq!(requests.next(bounds(2), SPACE, SPACE), Err(BlockedReason::Credit));
        assert_eq!(requests.next(bounds(3), SPACE, SPACE), Ok(packets[2]));
    }
}
