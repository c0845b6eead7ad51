//! The receive direction of a connection: processes the requests in the peer's ring, in order (SM-13, SM-20, SM-21).
//!
//! Sends are copied to receives in posting order, or each to a receive of the shared receive queue. A send without a
//! receive stays in the ring, without a time limit, and later requests wait behind it. The bytes of rendezvous offers
//! are copied from the sender's memory (`fetch`). RMA fragments are checked with the local registrations. Responses are
//! sent in a separate ring, which never waits for a receive. The callers of all functions hold the lock of this
//! direction.

mod extensions;
mod fetch;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Segment, Status, Token, Work};
use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::slot_queue::SlotQueue;
use dapl::stats::watermark::HighWatermark;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::{ScatterBatch, Segments, scatter};
use dapl_software::memory::user_copy;

use crate::cq::CompletionWriter;
use crate::engine::jobs::Job;
use crate::memory::regions::{AccessTarget, Regions};
use crate::proto::message::{Fragment, Header, INLINE, LINE, MessageKind};
use crate::proto::reassembly::Reassembly;
use crate::qp::context::{ConnectionFault, NAK_ACCESS, NAK_RESPONDER, QpContext, QpSrq};
use crate::qp::link::{ConnectionMemory, WAKE_ON_PROGRESS};
use crate::qp::ring::{Peeked, Reader, SlotFields, SlotRun, Writer};
use crate::srq::SrqRecv;

/// Maximum number of slots that one pass consumes. A longer pass would delay the other connections that the thread
/// serves.
const MAX_PASS_SLOTS: usize = 64;
/// Maximum number of bytes of rendezvous offers that one pass copies.
const MAX_PASS_BYTES: u64 = 512 << 10;

/// A posted receive.
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
#[derive(Debug, Default)]
pub(crate) struct Rx {
    /// Receives of the queue pair. With a shared receive queue: at most one receive, for the message in progress.
    pub(crate) queue: SlotQueue<RecvRequest>,
    /// Watermarks for the number of receives in `queue`.
    pub(crate) marks: HighWatermark,
    pub(crate) rings: Option<RxRings>,
    /// Whether new receives are flushed when they are posted.
    broken: bool,
    /// Whether a fault was found, and the flush of the queue is pending. No more requests are processed then.
    pub(crate) stopped: bool,
    /// Number of queued receives from which [`Rx::post_quickly`] returns false. Other posts update it.
    quick_limit: usize,
}

/// The rings of this direction, while there is a connection.
#[derive(Debug)]
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
    waits_for_receive: bool,
    /// Number of consumed requests that was last published to the peer.
    reported: u64,
}

impl RxRings {
    /// Creates the rings of this direction. `None` before the peer's segments are attached.
    pub(crate) fn new(link: Arc<ConnectionMemory>) -> Option<Self> {
        let peer_side = link.peer_side()?;
        let requests = Reader::new(peer_side.area.clone(), ConnectionMemory::requests(&peer_side.geometry));
        let responses = Writer::new(link.area.clone(), ConnectionMemory::responses(&link.geometry));
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
            reported: 0,
            link,
        })
    }

    /// Whether a pass would make progress.
    pub(crate) fn has_work(&self, receives: usize) -> bool {
        self.requests.peek() != Peeked::Empty && !(self.waits_for_receive && receives == 0) && self.can_continue_fetch()
    }

    /// Whether the next message waits for a receive.
    pub(crate) fn waits_for_receive(&self) -> bool {
        self.waits_for_receive
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

    /// Processes requests in the ring, up to a limit. Returns whether the pass made progress. After a fault it
    /// processes no request and returns false.
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
            let step = match header.kind {
                MessageKind::Send if rings.deliver_fragment(context, &mut batch, &mut self.queue, header, out) => {
                    Ok(true)
                }
                MessageKind::Send | MessageKind::SendImmediate | MessageKind::SendInvalidate => {
                    rings.deliver(context, &mut self.queue, &mut self.marks, header, out)
                }
                MessageKind::RmaWrite | MessageKind::RmaRead => {
                    rings.process_fragment(context, header).inspect(|_| answered = true)
                }
                MessageKind::Offer => rings.fetch(context, &mut self.queue, &mut self.marks, header, &mut budget, out),
                MessageKind::WriteImmediate => rings.notify(context, &mut self.queue, &mut self.marks, header, out),
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

    /// Queues a notifying receive of one segment. Returns false and changes nothing if the receive must be posted by
    /// [`Rx::post`].
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

    /// Whether new receives are flushed when they are posted.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sets whether new receives are flushed when they are posted.
    pub(crate) fn set_broken(&mut self, is_broken: bool) {
        self.broken = is_broken;
        self.quick_limit = 0;
    }

    /// Sets the limit of `post_quickly`: at most `max` receives, and few enough that no watermark is crossed.
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

    /// Stores a receive of the shared receive queue for the waiting message. Returns the receive if no message waits.
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

/// Moves a receive from the shared receive queue to `queue`. Returns false if there is no shared receive queue, or if
/// it is empty; in the latter case the connection is added to its list of waiters.
fn move_srq_receive(context: &QpContext, queue: &mut SlotQueue<RecvRequest>) -> bool {
    let Some(pool) = &context.pool else { return false };
    let Some(buffer) = pool.srq.take_or_wait(&pool.waiter) else { return false };
    *queue.push() = RecvRequest::from_srq(pool, buffer);
    true
}

impl RxRings {
    /// Ends a pass: publishes the number of consumed requests, which completes the peer's sends. Wakes the peer if it
    /// waits for progress.
    fn publish_progress(&mut self, context: &QpContext, consumed: u64, answered: bool) {
        // Local requests contain the number too, so the peer may already know it.
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

    /// Delivers consecutive messages that fit in their slots, to receives of one segment in recently used memory. This
    /// is the common case of `deliver`, with fewer steps.
    #[inline(always)]
    fn deliver_inline(
        &mut self,
        context: &QpContext,
        batch: &mut ScatterBatch<'_, Regions>,
        queue: &mut SlotQueue<RecvRequest>,
        out: &mut CompletionWriter<'_>,
        end: u64,
    ) {
        let Some(cq) = context.recv_cq.as_ref().filter(|_| self.message.is_between()) else { return };
        let mut entries = out.free_entries(cq);
        let mut left = entries.max_completions().min((end - self.requests.consumed()) as usize);
        let mut ack = None;
        loop {
            let (run, receives) = (self.requests.next_run(), queue.front_run());
            let most = run.slots().len().min(receives.len());
            let mut consumed = 0;
            for (slot, receive) in run.slots().iter().zip(receives).take(left) {
                let Some((payload, length, is_solicited)) = run.inline_send(slot) else { break };
                // SAFETY: the payload of the slot is in the peer's mapped area, and `inline_send` has checked that
                // `length` is at most the length of the payload.
                if !unsafe { batch.scatter_recent(&receive.segments, payload, length) } {
                    batch.forget_time(); // The general path takes longer, so the stored time would be stale.
                    break;
                }
                fail_point!(FragmentCopied);
                entries.put(&receive.token, length, is_solicited);
                consumed += 1;
                if consumed > 1 {
                    SlotRun::prefetch_ahead(slot); // Messages usually arrive in sequence.
                }
            }
            if consumed == 0 {
                break;
            }
            ack = Some(self.requests.advance_run(consumed));
            queue.drop_run(consumed);
            left -= consumed;
            // If all receives or slots of the run were used, the next run may contain more.
            if consumed < most {
                break;
            }
        }
        let used = entries.used();
        out.add_filled(used);
        if let Some(ack) = ack {
            context.watch.set_carried_ack(ack);
            self.waits_for_receive = false;
        }
    }

    /// Delivers a message that is one fragment in the message buffer, to a receive of one segment. This is the common
    /// case of `deliver`, with fewer steps. Returns false and changes nothing if `deliver` must handle the message.
    fn deliver_fragment(
        &mut self,
        context: &QpContext,
        batch: &mut ScatterBatch<'_, Regions>,
        queue: &mut SlotQueue<RecvRequest>,
        header: Header,
        out: &mut CompletionWriter<'_>,
    ) -> bool {
        let (Some(cq), Some(receive)) = (&context.recv_cq, queue.front()) else { return false };
        if header.inline || !header.first || !header.last {
            return false;
        }
        let Ok(part) = self.message.check_fragment(&header, || self.requests.payload_words()) else { return false };
        let fields = self.requests.fields();
        let Ok(from) = self.fragment_address(header, &fields) else { return false };
        // SAFETY: `fragment_address` has checked that this number of bytes is in the peer's mapped area.
        if !unsafe { batch.scatter(&receive.segments, from, part.size) } {
            return false;
        }
        fail_point!(FragmentCopied);
        context.watch.set_carried_ack(fields.ack);
        self.message.advance(&header, part);
        let mut entries = out.free_entries(cq);
        entries.put(&receive.token, part.size, header.solicited);
        let used = entries.used();
        out.add_filled(used);
        queue.drop_front();
        self.waits_for_receive = false;
        true
    }

    /// Delivers a fragment of a send. Returns false if the message waits for a receive.
    fn deliver(
        &mut self,
        context: &QpContext,
        queue: &mut SlotQueue<RecvRequest>,
        marks: &mut HighWatermark,
        header: Header,
        out: &mut CompletionWriter<'_>,
    ) -> Result<bool, ConnectionFault> {
        let fields = self.requests.fields();
        context.watch.set_carried_ack(fields.ack);
        let part = self
            .message
            .check_fragment(&header, || self.requests.payload_words())
            .map_err(ConnectionFault::InvalidData)?;
        if header.first && !self.find_receive(context, queue, marks, part.size, out)? {
            return Ok(false);
        }
        if header.kind == MessageKind::SendInvalidate && header.last {
            match context.windows.invalidate(self.value(header, &fields), context.pd, &context.domain) {
                Ok(true) => {}
                Ok(false) => return Ok(false), // Copies with the key are in progress, so a later pass tries again.
                Err(_) => return Err(self.fail_receive_by(context, queue, Status::LocalProtection, NAK_ACCESS, out)),
            }
        }
        let placed = self.copy_to_receive(context, queue, header, &fields, part.offset);
        fail_point!(FragmentCopied);
        if let Err(status) = placed? {
            return Err(self.fail_receive(context, queue, status, out));
        }
        self.message.advance(&header, part);
        if header.last {
            let token =
                queue.front().ok_or(ConnectionFault::InvalidData("a fragment for which no receive is posted"))?.token;
            queue.drop_front();
            let (arrival, value) = (extensions::arrival(header.kind), self.value(header, &fields));
            let (status, solicited, bytes) = (Status::Success, header.solicited, part.size);
            context.complete_recv(out, Completion { token, status, bytes, solicited, arrival, value });
        }
        Ok(true)
    }

    /// Finds a receive for a new message. Returns false if the message waits for a receive.
    #[inline]
    fn find_receive(
        &mut self,
        context: &QpContext,
        queue: &mut SlotQueue<RecvRequest>,
        marks: &mut HighWatermark,
        total: u64,
        out: &mut CompletionWriter<'_>,
    ) -> Result<bool, ConnectionFault> {
        if queue.is_empty() {
            if self.waits_for_receive {
                return Ok(false);
            }
            if !move_srq_receive(context, queue) {
                self.waits_for_receive = true;
                // A load and a store are enough, because the lock of this direction excludes other writers.
                let count = context.not_ready.load(Ordering::Relaxed) + 1;
                context.not_ready.store(count, Ordering::Relaxed);
                return Ok(false);
            }
            if exceeds_hard_watermark(marks, context, queue.len()) {
                return Err(ConnectionFault::Watermark);
            }
        }
        let Some(receive) = queue.front() else { return Ok(false) };
        self.waits_for_receive = false;
        if total > receive.segments.total() {
            return Err(self.fail_receive(context, queue, Status::LocalLength, out));
        }
        Ok(true)
    }

    /// Copies one fragment to its receive. The outer error is a fault of the peer, the inner error a fault of local
    /// memory.
    fn copy_to_receive(
        &self,
        context: &QpContext,
        queue: &SlotQueue<RecvRequest>,
        header: Header,
        fields: &SlotFields,
        offset: u64,
    ) -> Result<Result<(), Status>, ConnectionFault> {
        let length = header.length as usize;
        let Some(receive) = queue.front() else {
            return Err(ConnectionFault::InvalidData("a message for which no receive is posted"));
        };
        let from = if header.inline {
            if length > INLINE {
                return Err(ConnectionFault::InvalidData("an inline message longer than a slot"));
            }
            self.requests.payload()
        } else {
            self.fragment_address(header, fields)?
        };
        // SAFETY: the `length` bytes are in the slot or in the message buffer of the peer's mapped area, as was checked
        // above.
        Ok(unsafe { scatter(&*context.regions, context.recv_pd, &receive.segments, offset, from, length) })
    }

    /// Returns the address of a fragment in the peer's message buffer.
    fn fragment_address(&self, header: Header, fields: &SlotFields) -> Result<*const u8, ConnectionFault> {
        let peer_side =
            self.link.peer_side().ok_or(ConnectionFault::InvalidData("data before the set-up was complete"))?;
        let (start, size) = (peer_side.geometry.messages_at(), peer_side.geometry.messages as usize);
        let (at, length) = (fields.aux as usize * LINE, header.length as usize);
        if at > size || length > size - at {
            return Err(ConnectionFault::InvalidData("a message outside its message buffer"));
        }
        peer_side
            .area
            .bytes(start + at, length)
            .map(<*mut u8>::cast_const)
            .ok_or(ConnectionFault::InvalidData("a message outside the shared area"))
    }

    /// Fails the current receive with `status`, because the message is too long or the receive's memory is not mapped.
    /// Sends a negative response, so that the peer's send fails too. Returns the fault that ends the connection.
    #[cold]
    fn fail_receive(
        &mut self,
        context: &QpContext,
        queue: &mut SlotQueue<RecvRequest>,
        status: Status,
        out: &mut CompletionWriter<'_>,
    ) -> ConnectionFault {
        self.fail_receive_by(context, queue, status, NAK_RESPONDER, out)
    }

    /// Fails the current receive as `fail_receive` does, with the status `nak` for the sender.
    #[cold]
    fn fail_receive_by(
        &mut self,
        context: &QpContext,
        queue: &mut SlotQueue<RecvRequest>,
        status: Status,
        nak: u32,
        out: &mut CompletionWriter<'_>,
    ) -> ConnectionFault {
        self.withdraw_copy_job();
        if let Some(receive) = queue.pop_front() {
            context.complete_recv(out, Completion { token: receive.token, status, ..Completion::default() });
        }
        let _ = self.send_response(Header::plain(MessageKind::SendNak, nak), 0);
        context.rx_consumed.store(self.requests.consumed(), Ordering::Release);
        self.link.publish_consumed(self.requests.consumed());
        ConnectionFault::Receive
    }

    /// Processes an RMA fragment in the peer's RMA buffer: copies between this buffer and local memory, and sends the
    /// response.
    fn process_fragment(&mut self, context: &QpContext, header: Header) -> Result<bool, ConnectionFault> {
        let fields = self.requests.fields();
        context.watch.set_carried_ack(fields.ack);
        let peer_side =
            self.link.peer_side().ok_or(ConnectionFault::InvalidData("data before the set-up was complete"))?;
        let line = fields.aux as usize * LINE;
        if line + 2 * LINE > peer_side.rma.len() {
            return Err(ConnectionFault::InvalidData("a fragment outside its RMA buffer"));
        }
        // The peer may change the header at any time, so each word is read once, and only the copy is used.
        let fragment =
            Fragment::decode(std::array::from_fn(|n| peer_side.rma.word(line + n * 8).load(Ordering::Relaxed)));
        let length = fragment.length as usize;
        let payload = peer_side
            .rma
            .bytes(line + LINE, length)
            .ok_or(ConnectionFault::InvalidData("a fragment outside its RMA buffer"))?;
        let right = AccessRight::remote(header.kind == MessageKind::RmaWrite);
        let Fragment { key, address, .. } = fragment;
        let ids = (context.pd, context.domain.number());
        let held = context.regions.acquire_for_peer(key, ids, address, length as u64, right);
        let is_copied = held.is_ok_and(|(_hold, address)| {
            fail_point!(TargetHeld);
            let registration = || context.regions.registration(key);
            // SAFETY: the bytes at `address` are in registered memory that `_hold` marks in use. The bytes at `payload`
            // are in the peer's mapped RMA buffer, as was checked above.
            unsafe {
                match right {
                    AccessRight::RemoteWrite => user_copy::write(payload, address, length, registration),
                    _ => user_copy::read(address, payload, length, registration),
                }
            }
        });
        let status = if is_copied { 0 } else { NAK_ACCESS };
        fail_point!(TargetCopied);
        self.send_response(Header::plain(MessageKind::RmaAck, status), fields.aux)?;
        // If the access was denied, the connection ends, and later requests are not executed.
        if status == 0 {
            return Ok(true);
        }
        context.report_refused(
            None,
            context.regions.entry(key),
            AccessTarget { key, pd: context.pd, address, length: length as u64, right },
        );
        Err(ConnectionFault::Access)
    }
}
