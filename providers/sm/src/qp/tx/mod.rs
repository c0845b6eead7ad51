//! The send direction of a connection: the request queue, the request ring, and the peer's responses (SM-12, SM-17 to
//! SM-22).
//!
//! Requests start and complete in order. A send is complete when the peer has consumed its last slot. An RDMA operation
//! is complete when its bytes were copied, or when the target has responded to its last fragment. Requests that do not
//! fit in the ring wait in the request queue, so a full ring never ends the connection. The callers of all functions
//! hold the lock of this direction.

mod eager;
mod extensions;
mod fast_path;
mod issue;
mod offer;
mod request;
mod responses;
mod rma;
mod send;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Op, SendWr, Status, Token, Work};
use dapl::runtime::empty_check::AwaitedProgress;
use dapl::runtime::slot_queue::SlotQueue;

pub(crate) use fast_path::QuickWr;
pub(crate) use request::WorkRequest;
use request::{QuickRequest, RequestEntry, RequestPhase};
use responses::AwaitedResponse;

use crate::cq::CompletionWriter;
use crate::proto::message::INLINE;
use crate::proto::reassembly::Numbering;
use crate::qp::context::{ConnectionFault, QpContext};
use crate::qp::line_allocator::LineAllocator;
use crate::qp::link::{ConnectionMemory, WAKE_ON_REQUESTS};
use crate::qp::ring::{Peeked, Reader, SlotFields, Writer};

/// Number of outstanding requests from which [`Tx::post`] makes a pass, which reads the peer's count of consumed
/// requests. Also the maximum number of credits for quick posts that a pass grants.
const MAX_UNREAD_REQUESTS: usize = 32;

/// Maximum number of unused boxes that are stored for later requests.
const MAX_SPARE_BOXES: usize = 64;

/// State of the send direction.
#[derive(Default)]
pub(crate) struct Tx {
    queue: SlotQueue<RequestEntry>,
    /// Boxes of completed requests, which are reused.
    #[expect(clippy::vec_box, reason = "the boxes themselves are reused")]
    spare: Vec<Box<WorkRequest>>,
    /// Number of requests at the front of `queue` that were sent, copied or executed completely.
    issued: usize,
    /// Number of requests in `queue` whose successful completion is not suppressed.
    notifying: usize,
    pub(crate) rings: Option<TxRings>,
    /// Whether new requests are flushed when they are posted.
    pub(crate) broken: bool,
    /// Whether a graceful disconnect waits until the queue is empty.
    pub(crate) draining: bool,
    /// Whether a fault was found, and the flush of the queue is pending. No more requests start then.
    pub(crate) stopped: bool,
    /// Whether an RDMA request has failed after it was sent, and the failure is not reported yet. No more requests start
    /// then.
    halted: bool,
    /// Whether the next poll must report completions of requests that are already complete: they did not fit into the
    /// poller's array, or a quick post has executed an RDMA operation.
    has_retirable: bool,
}

/// The rings of this direction, while there is a connection.
pub(crate) struct TxRings {
    link: Arc<ConnectionMemory>,
    requests: Writer,
    responses: Reader,
    messages: LineAllocator,
    numbering: Numbering,
    /// Slot index of each fragment in the message buffer, and the mark of its lines. The lines up to the mark are
    /// released when the peer has consumed the slot.
    marks: VecDeque<(u64, u64)>,
    rma: LineAllocator,
    /// Minimum length in bytes of a send that is sent as a rendezvous offer.
    offer_from: u64,
    /// Maximum length in bytes of a send that a quick post writes to a slot.
    short_max: u64,
    /// Maximum length in bytes of a send that a quick post writes to the message buffer as one fragment.
    fragment_max: u64,
    /// Capacity of the request queue.
    max_requests: usize,
    /// Credits for quick posts, and data for them.
    quick: fast_path::QuickPostCredit,
    /// The last rendezvous offer is complete when the peer has consumed this number of slots.
    offered: u64,
    /// Number of staging copies since the start of the connection.
    staged: u64,
    /// Ticket of the last copy job that this process has seen.
    last_copy_job: u64,
    pending: VecDeque<AwaitedResponse>,
    /// Number of the request at the front of the queue, counted from the start of the connection.
    first: u64,
    /// Number of reads and atomic operations to which the target has not responded.
    reads: u32,
    /// Whether the peer supports extension operations.
    extensions: bool,
    mapped: rma::LastMapping,
    eager: eager::EagerWrites,
    /// Whether the last pass ended with work that needs no progress of the peer: a copy has reached the byte limit of a
    /// pass, or a bind waits for copies that use the window.
    unfinished: bool,
}

impl TxRings {
    /// Creates the rings of this direction. `None` before the peer's segments are attached.
    pub(crate) fn new(link: Arc<ConnectionMemory>, context: &QpContext, max_requests: u32) -> Option<Self> {
        let peer_side = link.peer_side()?;
        let geometry = &peer_side.geometry;
        let responses = Reader::new(peer_side.area.clone(), geometry.responses_at(), geometry.responses);
        let requests = Writer::new(link.area.clone(), link.geometry.requests_at(), link.geometry.requests);
        let (messages, rma) = (LineAllocator::new(link.geometry.messages), LineAllocator::new(link.geometry.rma));
        link.watch_consumed(&context.watch);
        let unoffered = peer_side.peer.offer_from.saturating_sub(1).min(context.max_message);
        Some(TxRings {
            requests,
            responses,
            messages,
            numbering: Numbering::new(link.route_out()?),
            marks: VecDeque::new(),
            rma,
            offer_from: peer_side.peer.offer_from,
            short_max: unoffered.min(INLINE as u64),
            fragment_max: unoffered.min(send::MAX_FRAGMENT_BYTES as u64),
            max_requests: max_requests as usize,
            quick: fast_path::QuickPostCredit::new(&peer_side.area, peer_side.membarrier),
            offered: 0,
            staged: 0,
            last_copy_job: 0,
            pending: VecDeque::new(),
            first: 0,
            reads: 0,
            extensions: link.has_extensions(),
            mapped: rma::LastMapping::default(),
            eager: eager::EagerWrites::new(link.has_eager_writes()),
            unfinished: false,
            link,
        })
    }

    pub(crate) fn link(&self) -> &ConnectionMemory {
        &self.link
    }

    /// Whether the peer has responded, or has consumed further requests, since the last pass.
    #[inline]
    pub(crate) fn has_work(&self, context: &QpContext) -> bool {
        let low = context.watch.carried_ack();
        self.responses.peek() != Peeked::Empty
            || self.link.consumed_requests() > self.requests.consumed()
            || (low.wrapping_sub(self.requests.consumed() as u32) as i32) > 0
    }
}

impl Tx {
    /// Reads the peer's progress, starts requests that fit, completes requests, and executes a copy job of the peer.
    /// Returns whether the pass made progress. If an earlier pass has found a fault, does nothing and returns false.
    pub(crate) fn pass(
        &mut self,
        context: &QpContext,
        out: &mut CompletionWriter<'_>,
    ) -> Result<bool, ConnectionFault> {
        if self.rings.is_none() || self.stopped {
            return Ok(false);
        }
        let outcome = self.run_pass(context, out).inspect_err(|_| self.stopped = true);
        self.renew_credit();
        self.renew_wait(context);
        outcome
    }

    /// Posts a send of one segment that fits in one slot, if no earlier request waits, the ring has space, and the
    /// memory was used recently. Otherwise, or if the send must wait for its fence, changes nothing and returns false.
    /// The caller then posts the send as a `WorkRequest`.
    #[inline(always)]
    pub(crate) fn post_short(&mut self, context: &QpContext, wr: &SendWr<'_>) -> bool {
        let (Op::Send { solicited }, [segment], Some(rings)) = (wr.op, wr.segments, self.rings.as_mut()) else {
            return false;
        };
        let may_start = !self.stopped && !self.halted;
        let is_next = self.issued == self.queue.len() && self.issued < rings.max_requests && may_start;
        if !is_next || !wr.announced || segment.length > rings.short_max || wr.fence && rings.reads > 0 {
            return false;
        }
        if !rings.send_short(context, segment, solicited) {
            return false;
        }
        let SendWr { token: Token { cookie, post, unsignalled, .. }, suppress, .. } = *wr;
        let (slot, bytes) = (rings.requests.next(), segment.length as u32);
        let send = QuickRequest { cookie, slot, bytes, post, work: Work::Send, suppress, unsignalled, failed: None };
        *self.queue.push() = RequestEntry::Quick(send);
        self.issued += 1;
        self.notifying += usize::from(!suppress);
        rings.quick.spend();
        rings.publish(context);
        context.watch.set_wait(self.waits_for());
        true
    }

    /// Queues a request, and starts the requests that fit. Makes a pass, which reads the peer's count of consumed
    /// requests, only if the oldest request is complete, a request must wait, or many requests are outstanding: reading
    /// the count transfers a cache line.
    pub(crate) fn post(&mut self, context: &QpContext, request: WorkRequest) -> Result<(), ConnectionFault> {
        self.notifying += usize::from(!request.suppress);
        let request = match self.spare.pop() {
            Some(mut used) => {
                *used = request;
                used
            }
            None => Box::new(request),
        };
        *self.queue.push() = RequestEntry::Full(request);
        self.withdraw_credit();
        if self.rings.is_none() || self.stopped {
            return Ok(());
        }
        let published = self.start_requests(context);
        self.publish(context, published);
        let done =
            self.queue.front().is_some_and(|r| matches!(r.phase(), RequestPhase::Done | RequestPhase::Failed(_)));
        if done || self.issued < self.queue.len() || self.queue.len() >= MAX_UNREAD_REQUESTS {
            return self.pass(context, &mut CompletionWriter::default()).map(|_| ());
        }
        self.renew_credit();
        context.watch.set_wait(self.waits_for());
        Ok(())
    }

    fn run_pass(&mut self, context: &QpContext, out: &mut CompletionWriter<'_>) -> Result<bool, ConnectionFault> {
        self.read_peer_progress(context)?;
        self.copy_reclaimed_writes(context)?;
        if self.has_late_eager_write() {
            self.reclaim_eager_writes(context)?;
        }
        let mut published = self.start_requests(context);
        if self.is_blocked_by_eager_writes() {
            self.reclaim_eager_writes(context)?;
            published |= self.start_requests(context);
        }
        let retired = self.retire(context, out)?;
        self.publish(context, published);
        let helped = self.run_copy_job(context);
        Ok(published || retired || helped)
    }

    /// Whether a pass could make progress.
    #[inline(always)]
    pub(crate) fn needs_pass(&self, context: &QpContext) -> bool {
        let is_waiting = self.draining || self.issued < self.queue.len() || self.has_retirable;
        self.rings.as_ref().is_some_and(|rings| {
            let is_late = rings.count_poll_of_eager_writes();
            is_waiting || rings.unfinished || rings.has_offers() || rings.has_work(context) || is_late
        })
    }

    fn publish(&self, context: &QpContext, published: bool) {
        if let (Some(rings), true) = (&self.rings, published) {
            rings.publish(context);
        }
    }

    /// Whether the queue is empty and no request was published on this connection.
    pub(crate) fn is_new(&self) -> bool {
        self.queue.is_empty() && self.rings.as_ref().is_some_and(|rings| rings.requests.next() == 0)
    }

    /// Whether a pass would find progress that a notifying or waiting request needs.
    pub(crate) fn has_work(&self, context: &QpContext) -> bool {
        self.has_retirable
            || self.needs_peer_progress() && self.rings.as_ref().is_some_and(|rings| rings.has_work(context))
    }

    /// Whether another pass is needed for which the peer sends no wake-up: a copy has reached the byte limit of a pass,
    /// or a bind waits for copies.
    pub(crate) fn needs_another_pass(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.unfinished)
    }

    pub(crate) fn waiting_send(&self) -> Option<u64> {
        let is_send = self.queue.front()?.is_send();
        self.rings.as_ref().filter(|_| is_send).map(|rings| rings.first)
    }

    /// Completes and removes the requests at the front of the queue that are done. Returns whether any was removed. A
    /// request that has failed is completed too, and its failure is returned as the fault that ends the connection.
    fn retire(&mut self, context: &QpContext, out: &mut CompletionWriter<'_>) -> Result<bool, ConnectionFault> {
        let mut moved = self.retire_quick(context, out);
        if self.has_retirable {
            return Ok(moved);
        }
        while let (Some(rings), Some(request)) = (self.rings.as_mut(), self.queue.front()) {
            let status = match request.phase() {
                RequestPhase::Done => Status::Success,
                RequestPhase::Sent(slot) | RequestPhase::Offered(slot) if slot <= rings.requests.consumed() => {
                    Status::Success
                }
                RequestPhase::Failed(status) => status,
                _ => break,
            };
            let (token, bytes, suppress) = request.outcome(context.ep.handle);
            if status != Status::Success || !suppress {
                let bytes = if status == Status::Success { bytes } else { 0 };
                context.complete_request(out, Completion { token, status, bytes, ..Completion::default() });
            }
            fail_point!(Completed);
            self.notifying -= usize::from(!suppress);
            if matches!(request, RequestEntry::Quick(_)) {
                self.queue.drop_front();
            } else if let Some(RequestEntry::Full(used)) = self.queue.pop_front()
                && self.spare.len() < MAX_SPARE_BOXES
            {
                self.spare.push(used);
            }
            self.issued = self.issued.saturating_sub(1);
            rings.first += 1;
            moved = true;
            if status != Status::Success {
                return Err(ConnectionFault::Request);
            }
        }
        if let (true, true, Some(rings)) = (self.draining, self.queue.is_empty(), &self.rings) {
            self.draining = false;
            context.drained(&rings.link);
        }
        Ok(moved)
    }

    /// Removes the connection. Returns the completions of the queued requests, except those of suppressed requests that
    /// have succeeded.
    pub(crate) fn flush(&mut self, ep: usize) -> impl Iterator<Item = Completion> + '_ {
        if let Some(rings) = self.rings.take() {
            rings.link.recall();
        }
        // After a request that has failed or is flushed, no later request is reported as successful.
        let mut may_succeed = !self.stopped;
        self.issued = 0;
        self.notifying = 0;
        self.draining = false;
        self.stopped = false;
        self.halted = false;
        self.has_retirable = false;
        self.queue.drain().filter_map(move |entry| {
            may_succeed &= matches!(&entry, RequestEntry::Quick(quick) if quick.is_complete());
            entry.flush(ep, may_succeed)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Begins a graceful disconnect, which ends when the queue is empty.
    pub(crate) fn begin_drain(&mut self, context: &QpContext) {
        self.draining = true;
        self.withdraw_credit();
        context.watch.set_wait(AwaitedProgress::Other);
    }

    /// Publishes what this direction waits for, so that a dequeue can skip the poll. Has no effect without a
    /// connection.
    #[inline]
    pub(crate) fn renew_wait(&self, context: &QpContext) {
        if let Some(rings) = &self.rings {
            context.watch.set_known(rings.requests.consumed());
            context.watch.set_wait(self.waits_for());
        }
    }

    /// Returns what the next completion or start of a request depends on.
    fn waits_for(&self) -> AwaitedProgress {
        if !self.needs_peer_progress() {
            return AwaitedProgress::Nothing;
        }
        let counts = self.issued == self.queue.len() && !self.draining && !self.has_retirable && !self.stopped;
        let is_simple = |rings: &TxRings| rings.pending.is_empty() && !rings.unfinished && !rings.has_offers();
        if counts && self.rings.as_ref().is_some_and(is_simple) {
            AwaitedProgress::Count
        } else {
            AwaitedProgress::Other
        }
    }

    /// Whether progress of the peer would complete notifying requests, or free space for waiting requests.
    pub(crate) fn needs_peer_progress(&self) -> bool {
        // The receiver of a rendezvous offer may publish a copy job, or request staged bytes.
        let is_awaited = |rings: &TxRings| rings.has_offers() || rings.eager.outstanding > 0;
        let is_awaited = self.rings.as_ref().is_some_and(is_awaited);
        self.draining || self.notifying > 0 || self.queue.len() > self.issued || is_awaited
    }
}

impl TxRings {
    /// Called after requests were published: records the number of consumed requests that they contain, and wakes the
    /// peer if it sleeps.
    #[inline(always)]
    fn publish(&self, context: &QpContext) {
        context.reported_consumed.store(context.rx_consumed.load(Ordering::Acquire), Ordering::Relaxed);
        self.link.wake_if_flagged(WAKE_ON_REQUESTS);
    }

    #[inline(always)]
    fn payload(&self, context: &QpContext) -> SlotFields {
        SlotFields { ack: context.rx_consumed.load(Ordering::Acquire) as u32, ..SlotFields::default() }
    }
}
