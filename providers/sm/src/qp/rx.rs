//! The receive direction of a connection: processes the requests in the peer's ring, in order (SM-13, SM-20, SM-21).
//!
//! Sends are copied to receives in posting order, or each to a receive of the shared receive queue. A send without a
//! receive stays in the ring, without a time limit, and later requests wait behind it. The bytes of rendezvous offers
//! are copied from the sender's memory (`fetch`). RMA fragments are checked with the local registrations. Responses are
//! sent in a separate ring, which never waits for a receive. The callers of all functions hold the lock of this
//! direction.

mod deliver;
mod extensions;
mod fetch;
mod rma;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Segment, Token, Work};
use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::slot_queue::SlotQueue;
use dapl::stats::watermark::HighWatermark;
use dapl_software::memory::scatter_gather::{ScatterBatch, Segments};

use crate::cq::CompletionWriter;
use crate::engine::jobs::Job;
use crate::proto::message::{Header, MessageKind};
use crate::proto::reassembly::Reassembly;
use crate::qp::context::{ConnectionFault, QpContext, QpSrq};
use crate::qp::link::{ConnectionMemory, WAKE_ON_PROGRESS};
use crate::qp::ring::{Peeked, Reader, SlotFields, Writer};
use crate::srq::SrqRecv;

/// Maximum number of slots that one pass consumes. A longer pass would delay the other connections that the thread
/// serves.
const MAX_PASS_SLOTS: usize = 64;
/// Number of bytes of rendezvous offers after which a pass ends. The last part may exceed it.
const MAX_PASS_BYTES: u64 = 512 << 10;

/// A receive that was posted to the queue pair, or taken from the shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct RecvRequest {
    pub(crate) segments: Segments,
    pub(crate) token: Token,
}

impl RecvRequest {
    fn from_srq(pool: &QpSrq, buffer: SrqRecv) -> Self {
        let SrqRecv { segments, cookie } = buffer;
        RecvRequest { segments, token: Token { cookie, ..pool.token } }
    }
}

/// State of the receive direction.
#[derive(Default)]
pub(crate) struct Rx {
    /// Receives of the queue pair. With a shared receive queue: at most one receive, for the message in progress.
    pub(crate) queue: SlotQueue<RecvRequest>,
    /// Watermarks for the number of receives in `queue`.
    pub(crate) marks: HighWatermark,
    pub(crate) rings: Option<RxRings>,
    /// Whether new receives are flushed when they are posted.
    pub(crate) broken: bool,
    /// Whether a fault was found, and the flush of the queue is pending. No more requests are processed then.
    pub(crate) stopped: bool,
    /// Number of queued receives from which [`Rx::post_quickly`] returns false. Other posts update it.
    quick_limit: usize,
}

/// A request of the peer that uses a receive, and the state of the pass that delivers it.
struct Delivery<'a, 'o> {
    context: &'a QpContext,
    queue: &'a mut SlotQueue<RecvRequest>,
    marks: &'a mut HighWatermark,
    header: Header,
    /// Number of bytes of offers that the pass may still copy.
    budget: &'a mut u64,
    out: &'a mut CompletionWriter<'o>,
}

/// The rings of this direction, while there is a connection.
pub(crate) struct RxRings {
    link: Arc<ConnectionMemory>,
    requests: Reader,
    responses: Writer,
    /// State of the message whose fragments are arriving.
    message: Reassembly,
    /// The long message whose data is being copied from the sender.
    fetch: Option<fetch::Fetch>,
    /// Ticket of the last copy job that was published.
    tickets: u64,
    /// Number of staging copies that were requested.
    staged: u64,
    /// Whether the next message waits for a receive. With a shared queue, the connection is then in that queue's list
    /// of waiters.
    pub(crate) waits_for_receive: bool,
    /// Whether the next request is an eager write that the initiator has reclaimed and not copied yet.
    waits_for_initiator: bool,
    /// Number of consumed requests that was last published to the peer.
    reported: u64,
}

impl RxRings {
    /// Creates the rings of this direction. `None` before the peer's segments are attached.
    pub(crate) fn new(link: Arc<ConnectionMemory>) -> Option<Self> {
        let peer_side = link.peer_side()?;
        let geometry = &peer_side.geometry;
        let requests = Reader::new(peer_side.area.clone(), geometry.requests_at(), geometry.requests);
        let responses = Writer::new(link.area.clone(), link.geometry.responses_at(), link.geometry.responses);
        let message = Reassembly::new(link.route_in()?);
        let (tickets, staged) = (0, 0);
        Some(RxRings {
            requests,
            responses,
            message,
            fetch: None,
            tickets,
            staged,
            waits_for_receive: false,
            waits_for_initiator: false,
            reported: 0,
            link,
        })
    }

    /// Whether a pass would make progress.
    pub(crate) fn has_work(&self, receives: usize) -> bool {
        self.requests.peek() != Peeked::Empty
            && !(self.waits_for_receive && receives == 0)
            && self.can_continue_fetch()
            && !self.must_wait_for_initiator()
    }

    /// Whether the next request is an eager write that the initiator is still copying.
    fn must_wait_for_initiator(&self) -> bool {
        let is_pending = || self.link.eager_claims().is_some_and(|claims| claims.is_pending(self.requests.consumed()));
        self.waits_for_initiator && is_pending()
    }

    /// Called when the connection ends: withdraws the copy job, and publishes the final number of consumed requests.
    /// The caller then flushes the receives.
    pub(crate) fn publish_last(&self) {
        self.withdraw_copy_job();
        self.link.publish_consumed(self.requests.consumed());
    }

    /// Makes dequeues watch the next slot of the peer's requests.
    pub(crate) fn watch_next(&self, watch: &RingWatch) {
        self.requests.watch_next(watch);
    }

    fn send_response(&mut self, header: Header, aux: u32) -> Result<(), ConnectionFault> {
        self.send_response_fields(header, &SlotFields { aux, ..SlotFields::default() })
    }

    fn send_response_fields(&mut self, header: Header, fields: &SlotFields) -> Result<(), ConnectionFault> {
        if self.responses.is_full() {
            self.responses
                .set_consumed(self.link.consumed_responses())
                .ok_or(ConnectionFault::InvalidData("a count of consumed responses beyond those in the ring"))?;
            if self.responses.is_full() {
                return Err(ConnectionFault::InvalidData("more fragments than the agreed number in flight"));
            }
        }
        self.responses.push(header, fields);
        Ok(())
    }
}

impl Rx {
    /// Whether a pass would make progress.
    pub(crate) fn has_work(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.has_work(self.queue.len()))
    }

    /// Number of staging copies that were requested on this connection.
    #[cfg(test)]
    pub(crate) fn staging_requests(&self) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.staged)
    }

    /// Whether the peer has not published any request on this connection.
    pub(crate) fn is_new(&self) -> bool {
        self.rings
            .as_ref()
            .is_some_and(|rings| rings.requests.consumed() == 0 && rings.requests.peek() == Peeked::Empty)
    }

    /// Whether the peer's ring contains a request that was not consumed.
    #[inline(always)]
    pub(crate) fn has_unread(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.requests.peek() != Peeked::Empty)
    }

    /// Processes requests in the ring, up to a limit. Returns whether the pass made progress. If an earlier pass has
    /// found a fault, processes no request and returns false.
    pub(crate) fn pass(
        &mut self,
        context: &QpContext,
        out: &mut CompletionWriter<'_>,
    ) -> Result<bool, ConnectionFault> {
        if self.stopped {
            return Ok(false);
        }
        self.process_requests(context, out).inspect_err(|_| self.stopped = true)
    }

    fn process_requests(
        &mut self,
        context: &QpContext,
        out: &mut CompletionWriter<'_>,
    ) -> Result<bool, ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(false) };
        let begin = rings.requests.consumed();
        let (mut answered, mut result, mut budget) = (false, Ok(()), MAX_PASS_BYTES);
        let mut batch = ScatterBatch::new(&*context.regions, context.recv_pd);
        while rings.requests.consumed() - begin < MAX_PASS_SLOTS as u64 && !out.is_full() {
            rings.deliver_inline(context, &mut batch, &mut self.queue, out, begin + MAX_PASS_SLOTS as u64);
            if out.is_full() {
                break;
            }
            let header = match rings.requests.peek() {
                Peeked::Empty => break,
                Peeked::Invalid => {
                    result = Err(ConnectionFault::InvalidData("an unknown message type in the request ring"));
                    break;
                }
                Peeked::Entry(header) => header,
            };
            rings.requests.prefetch_rest(header);
            let (queue, marks, budget) = (&mut self.queue, &mut self.marks, &mut budget);
            let mut delivery = Delivery { context, queue, marks, header, budget, out };
            let step = match header.kind {
                MessageKind::Send if rings.deliver_fragment(&mut batch, &mut delivery) => Ok(true),
                MessageKind::Send | MessageKind::SendImmediate | MessageKind::SendInvalidate => {
                    rings.deliver(&mut delivery)
                }
                MessageKind::RmaWrite | MessageKind::RmaRead => {
                    rings.process_fragment(context, header).inspect(|_| answered = true)
                }
                MessageKind::EagerWrite => rings.process_eager_write(context, header).inspect(|done| answered |= *done),
                MessageKind::Offer => rings.fetch(&mut delivery),
                MessageKind::WriteImmediate => rings.notify(&mut delivery),
                MessageKind::Atomic => rings.execute(context).inspect(|_| answered = true),
                MessageKind::RmaAck | MessageKind::SendNak | MessageKind::RequestStaging | MessageKind::AtomicAck => {
                    Err(ConnectionFault::InvalidData("a response in the request ring"))
                }
            };
            match step {
                Ok(true) => {
                    rings.requests.advance();
                    if rings.requests.consumed() - begin > 1 {
                        rings.requests.prefetch_ahead(); // Requests usually arrive in sequence.
                    }
                }
                Ok(false) => break,
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
        }
        let consumed = rings.requests.consumed();
        if consumed != begin {
            context.rx_consumed.store(consumed, Ordering::Release);
            rings.requests.watch_next(&context.watch);
        }
        rings.publish_progress(context, consumed, answered);
        result.map(|()| consumed != begin || budget < MAX_PASS_BYTES)
    }

    /// Queues a receive of one segment that notifies and is not traced. Returns false and changes nothing if the
    /// receive must be posted by [`Rx::post`].
    #[inline(always)]
    pub(crate) fn post_quickly(&mut self, segment: &Segment, cookie: u64, ep: usize) -> bool {
        // A message can wait for a receive only while the queue is empty.
        if self.queue.len() >= self.quick_limit || self.queue.is_empty() && self.waits_for_receive() {
            return false;
        }
        let receive = self.queue.push_within();
        receive.segments.set_one(segment);
        receive.token = Token { cookie, ep, work: Work::Recv, ..Token::default() };
        true
    }

    /// Sets whether new receives are flushed when they are posted.
    pub(crate) fn set_broken(&mut self, is_broken: bool) {
        self.broken = is_broken;
        self.quick_limit = 0;
    }

    /// Sets the limit of `post_quickly`: at most `max` receives, and few enough that the queue need not grow and no
    /// watermark is crossed. The limit is 0 while new receives are flushed.
    pub(crate) fn renew_quick_limit(&mut self, max: u32) {
        let most = (max.min(self.marks.max_unchecked()) as usize).min(self.queue.slots());
        self.quick_limit = if self.broken { 0 } else { most };
    }

    /// Queues a receive. The caller has checked the capacity. Returns whether the caller must call
    /// [`Self::after_post`].
    #[inline(always)]
    pub(crate) fn post(&mut self, list: &[Segment], token: Token) -> bool {
        let receive = self.queue.push();
        receive.segments.set(list);
        receive.token = token;
        self.waits_for_receive() || self.marks.is_crossed(self.queue.len() as u32)
    }

    #[inline(always)]
    fn waits_for_receive(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.waits_for_receive)
    }

    /// Delivers the message that waits for the receive that was just posted, if any, and checks the watermarks. Returns
    /// whether there is more work.
    pub(crate) fn after_post(&mut self, context: &QpContext) -> Result<bool, ConnectionFault> {
        let more = self.waits_for_receive() && self.resume(context)?;
        if self.marks.is_crossed(self.queue.len() as u32) {
            self.check_watermarks(context)?;
        }
        Ok(more)
    }

    /// Stores a receive of the shared receive queue for the waiting message. Returns the receive if no message waits
    /// for it, or if a fault was found.
    pub(crate) fn accept(&mut self, context: &QpContext, buffer: SrqRecv) -> Option<SrqRecv> {
        let waits =
            !self.stopped && self.queue.is_empty() && self.rings.as_ref().is_some_and(|rings| rings.waits_for_receive);
        match &context.pool {
            Some(pool) if waits => *self.queue.push() = RecvRequest::from_srq(pool, buffer),
            _ => return Some(buffer),
        }
        None
    }

    /// Delivers the message that waits for a receive, and processes later requests. Returns whether there is more work.
    pub(crate) fn resume(&mut self, context: &QpContext) -> Result<bool, ConnectionFault> {
        self.pass(context, &mut CompletionWriter::default())?;
        Ok(self.rings.as_ref().is_some_and(|rings| rings.has_work(self.queue.len())))
    }

    /// Sets the watermarks, and compares the number of receives with them.
    pub(crate) fn watch(&mut self, context: &QpContext, marks: HighWatermark) -> Result<(), ConnectionFault> {
        self.marks = marks;
        self.quick_limit = 0;
        self.check_watermarks(context)
    }

    /// Compares the number of receives with the watermarks. Reports an excess of the soft watermark. An excess of the
    /// hard watermark ends the connection.
    #[cold]
    pub(crate) fn check_watermarks(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
        if self.marks.is_crossed(self.queue.len() as u32) {
            self.pass(context, &mut CompletionWriter::default())?; // Receives whose messages have arrived must not be counted.
        }
        let exceeds_hard_watermark = exceeds_hard_watermark(&mut self.marks, context, self.queue.len());
        if exceeds_hard_watermark && self.rings.is_some() {
            self.stopped = true;
            return Err(ConnectionFault::Watermark);
        }
        Ok(())
    }
}

/// Reports an excess of the soft watermark. Returns whether the hard watermark is exceeded.
fn exceeds_hard_watermark(marks: &mut HighWatermark, context: &QpContext, receives: usize) -> bool {
    let crossed = marks.check(receives as u32);
    if crossed.soft {
        context.jobs.push(Job::ManyRecvs(context.ep));
    }
    crossed.hard
}

impl RxRings {
    /// Ends a pass: publishes the number of consumed requests, which completes the peer's sends. Wakes the peer if it
    /// waits for progress.
    fn publish_progress(&mut self, context: &QpContext, consumed: u64, answered: bool) {
        // Requests of this side carry the number of consumed requests too, so the peer may already know it.
        self.reported = self.reported.max(context.reported_consumed.load(Ordering::Relaxed));
        fail_point!(BeforeTelling);
        let has_changed = consumed != self.reported;
        if has_changed {
            self.link.publish_consumed(consumed);
            self.reported = consumed;
        }
        if has_changed || answered {
            self.link.wake_if_flagged(WAKE_ON_PROGRESS);
        }
    }
}
