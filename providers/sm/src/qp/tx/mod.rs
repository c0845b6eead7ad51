//! The send direction of a connection: the request queue, the request ring, and the peer's responses (SM-12, SM-17 to
//! SM-22).
//!
//! Requests start and complete in order. A send is complete when the peer has consumed its last slot. An RDMA operation
//! is complete when its bytes were copied, or when the target has responded to its last fragment. Requests that do not
//! fit in the ring wait in the request queue, so a full ring never ends the connection. The callers of all functions
//! hold the lock of this direction.

mod extensions;
mod fast_path;
mod offer;
mod rma;
mod send;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{BindWr, Completion, Op, Remote, SendWr, Status, Token, Work};
use dapl::runtime::empty_check::AwaitedProgress;
use dapl::runtime::slot_queue::SlotQueue;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::{Segments, scatter};

pub(crate) use fast_path::QuickWr;

use crate::cq::CompletionWriter;
use crate::memory::cma::{self, Direction};
use crate::memory::regions::AccessTarget;
use crate::memory::window::MwCore;
use crate::proto::message::{Header, INLINE, LINE, MessageKind};
use crate::proto::reassembly::Numbering;
use crate::qp::context::{ConnectionFault, NAK_ACCESS, NAK_SOURCE, QpContext};
use crate::qp::link::{ConnectionMemory, WAKE_ON_REQUESTS};
use crate::qp::ring::{LineAllocator, Peeked, Reader, SlotFields, Writer};

/// Maximum number of bytes that one pass copies directly. A longer pass would delay the other connections that the
/// thread serves.
const MAX_PASS_BYTES: u64 = cma::CHUNK as u64;

/// Number of outstanding requests from which each post makes a pass, which reads the peer's count of consumed requests.
/// Also the maximum number of quick posts between passes.
const MAX_UNREAD_REQUESTS: usize = 32;

/// Maximum number of unused boxes that are stored for later requests.
const MAX_SPARE_BOXES: usize = 64;

/// Progress of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RequestPhase {
    /// No bytes were sent or copied yet.
    Waiting,
    /// Some bytes were sent or copied.
    Running,
    /// All bytes are in the ring or in buffers. The request is complete when the peer has consumed this number of
    /// slots; `u64::MAX`: when the target has responded.
    Sent(u64),
    /// A rendezvous offer is in the ring. Its bytes stay in the consumer's memory until the receiver has copied them.
    /// The request is complete when the peer has consumed this number of slots.
    Offered(u64),
    /// The data of a write with immediate data was sent or copied. Its notification waits for a free slot.
    Written,
    Done,
    Failed(Status),
}

/// A posted request.
#[derive(Debug)]
enum Operation {
    Transfer(Op),
    /// A bind or unbind: the window, and the number under which the window has accepted it.
    Bind(Arc<MwCore>, u64),
}

/// A request in the request queue.
#[derive(Debug)]
pub(crate) struct WorkRequest {
    task: Operation,
    segments: Segments,
    token: Token,
    suppress: bool,
    fence: bool,
    phase: RequestPhase,
    /// Number of bytes that were sent or copied.
    issued: u64,
    /// Number of bytes of an RDMA operation that were copied, or for which the target has responded.
    answered: u64,
}

impl WorkRequest {
    pub(crate) fn new(wr: &SendWr<'_>) -> Self {
        let SendWr { token, suppress, fence, .. } = *wr;
        WorkRequest::of(Operation::Transfer(wr.op), Segments::new(wr.segments), BindWr { token, suppress, fence })
    }

    /// Creates a bind or unbind; `number`: the number under which the window has accepted it.
    pub(crate) fn of_window(window: Arc<MwCore>, number: u64, wr: &BindWr) -> Self {
        WorkRequest::of(Operation::Bind(window, number), Segments::default(), *wr)
    }

    fn of(task: Operation, segments: Segments, BindWr { token, suppress, fence }: BindWr) -> Self {
        WorkRequest { task, segments, token, suppress, fence, phase: RequestPhase::Waiting, issued: 0, answered: 0 }
    }

    fn is_send(&self) -> bool {
        matches!(self.task, Operation::Transfer(op) if op.work() == Work::Send)
    }

    /// Returns the completion, with status `Flushed`, of a request that is not executed. A bind then has no effect.
    pub(crate) fn flush(self) -> Completion {
        if let Operation::Bind(window, number) = &self.task {
            window.flush(*number);
        }
        flushed(self.token)
    }
}

fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}

/// A request that the post itself has executed: a send was written to the ring, or the data of an RDMA operation was
/// copied. Only the data for its completion is stored.
#[derive(Debug, Default)]
struct QuickRequest {
    cookie: u64,
    /// The request is complete when the peer has consumed this number of slots; 0: the request is complete.
    slot: u64,
    bytes: u32,
    post: u32,
    work: Work,
    suppress: bool,
    unsignalled: bool,
    failed: Option<Status>,
}

impl QuickRequest {
    fn token(&self, ep: usize) -> Token {
        let QuickRequest { cookie, post, work, unsignalled, .. } = *self;
        Token { cookie, ep, work, unsignalled, post, ..Token::default() }
    }

    fn is_complete(&self) -> bool {
        self.slot == 0 && self.failed.is_none()
    }
}

/// An entry of the request queue.
///
/// Full requests are boxed, so that the entry of a quick request is small. The boxes are reused.
#[derive(Debug)]
enum RequestEntry {
    Full(Box<WorkRequest>),
    Quick(QuickRequest),
}

impl Default for RequestEntry {
    fn default() -> Self {
        RequestEntry::Quick(QuickRequest::default())
    }
}

impl RequestEntry {
    fn phase(&self) -> RequestPhase {
        match self {
            RequestEntry::Full(request) => request.phase,
            RequestEntry::Quick(quick) => quick.failed.map_or(RequestPhase::Sent(quick.slot), RequestPhase::Failed),
        }
    }

    fn fail(&mut self, status: Status) {
        match self {
            RequestEntry::Full(request) => request.phase = RequestPhase::Failed(status),
            RequestEntry::Quick(quick) => quick.failed = Some(status),
        }
    }

    fn is_send(&self) -> bool {
        match self {
            RequestEntry::Full(request) => request.is_send(),
            RequestEntry::Quick(quick) => quick.work == Work::Send,
        }
    }

    /// Returns the token, the length in bytes, and whether a successful completion is suppressed. `ep`: handle of the
    /// EP.
    fn outcome(&self, ep: usize) -> (Token, u64, bool) {
        match self {
            RequestEntry::Full(request) => (request.token, request.segments.total(), request.suppress),
            RequestEntry::Quick(quick) => (quick.token(ep), quick.bytes.into(), quick.suppress),
        }
    }

    fn request(&self) -> Option<&WorkRequest> {
        match self {
            RequestEntry::Full(request) => Some(request),
            RequestEntry::Quick(_) => None,
        }
    }

    fn request_mut(&mut self) -> Option<&mut WorkRequest> {
        match self {
            RequestEntry::Full(request) => Some(request),
            RequestEntry::Quick(_) => None,
        }
    }

    /// Returns the completion of a request at the end of the connection. `may_succeed`: no earlier request has failed.
    /// `None`: the request succeeded, and its completion is suppressed.
    fn flush(self, ep: usize, may_succeed: bool) -> Option<Completion> {
        match self {
            RequestEntry::Full(request) => Some(request.flush()),
            RequestEntry::Quick(quick) if may_succeed => {
                let completion =
                    || Completion { token: quick.token(ep), bytes: quick.bytes.into(), ..Completion::default() };
                (!quick.suppress).then(completion)
            }
            RequestEntry::Quick(quick) => Some(flushed(quick.token(ep))),
        }
    }
}

/// A fragment in the local RMA buffer, or an atomic operation, to which the target has not responded yet.
#[derive(Debug)]
struct AwaitedResponse {
    /// Index of the fragment's request, counted from the start of the connection.
    request: u64,
    line: u32,
    mark: u64,
    offset: u64,
    length: u32,
    kind: AwaitedKind,
}

/// The operation to which the target must respond.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum AwaitedKind {
    Write,
    Read,
    Atomic,
}

/// A response from the peer's ring.
struct PeerResponse {
    kind: MessageKind,
    /// A line number of a buffer, or an offset.
    aux: u32,
    status: u32,
    value: u64,
}

/// State of the send direction.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    queue: SlotQueue<RequestEntry>,
    /// Boxes of completed requests, which are reused.
    #[expect(clippy::vec_box, reason = "the boxes themselves are reused")]
    spare: Vec<Box<WorkRequest>>,
    /// Number of requests at the front of `queue` whose bytes were all sent or copied.
    issued: usize,
    /// Number of requests in `queue` whose successful completion is not suppressed.
    notifying: usize,
    pub(crate) rings: Option<TxRings>,
    /// Whether new requests are flushed when they are posted.
    pub(crate) broken: bool,
    /// Whether a graceful disconnect waits until the queue is empty.
    pub(crate) draining: bool,
    /// Whether a fault was found, and the flush of the queue is pending. No more requests start then.
    stopped: bool,
    /// Whether requests are complete whose completions did not fit into the poller's array. Its next poll reports them.
    has_retirable: bool,
}

/// The rings of this direction, while there is a connection.
#[derive(Debug)]
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
    /// Credits for quick posts (see `fast_path`).
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
    /// Whether the last pass ended with work that needs no progress of the peer: a copy has reached the byte limit of a
    /// pass, or a bind waits for copies that use the window.
    unfinished: bool,
}

impl TxRings {
    /// Creates the rings of this direction. `None` before the peer's segments are attached.
    pub(crate) fn new(link: Arc<ConnectionMemory>, context: &QpContext, max_requests: u32) -> Option<Self> {
        let peer_side = link.peer_side()?;
        let responses = Reader::new(peer_side.area.clone(), ConnectionMemory::responses(&peer_side.geometry));
        let requests = Writer::new(link.area.clone(), ConnectionMemory::requests(&link.geometry));
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
            unfinished: false,
            link,
        })
    }

    pub(crate) fn link(&self) -> &ConnectionMemory {
        &self.link
    }

    /// Whether a pass would make progress.
    #[inline]
    pub(crate) fn has_work(&self, context: &QpContext) -> bool {
        let low = context.watch.carried_ack();
        self.responses.peek() != Peeked::Empty
            || self.link.consumed_requests() > self.requests.consumed()
            || (low.wrapping_sub(self.requests.consumed() as u32) as i32) > 0
    }
}

impl Tx {
    /// Reads the peer's progress, starts requests that fit, and completes requests. Returns whether the pass made
    /// progress. After a fault it does nothing and returns false.
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

    /// Posts a send that fits in one slot, if all earlier requests are in the ring. Otherwise changes nothing and
    /// returns false, and the caller posts the send as a `WorkRequest`.
    #[inline(always)]
    pub(crate) fn post_short(&mut self, context: &QpContext, wr: &SendWr<'_>) -> bool {
        let (Op::Send { solicited }, [segment], Some(rings)) = (wr.op, wr.segments, self.rings.as_mut()) else {
            return false;
        };
        let is_next = self.issued == self.queue.len() && self.issued < rings.max_requests && !self.stopped;
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

    /// Queues a request, and starts the requests that fit. The peer's count of consumed requests is read only if space
    /// runs out or many requests are outstanding, because reading it transfers a cache line.
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
        let published = self.start_requests(context);
        let retired = self.retire(context, out)?;
        self.publish(context, published);
        let helped = self.run_copy_job(context);
        Ok(published || retired || helped)
    }

    /// Whether a pass could make progress.
    #[inline(always)]
    pub(crate) fn needs_pass(&self, context: &QpContext) -> bool {
        let is_waiting = self.draining || self.issued < self.queue.len() || self.has_retirable;
        self.rings
            .as_ref()
            .is_some_and(|rings| is_waiting || rings.unfinished || rings.has_offers() || rings.has_work(context))
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

    /// Whether another pass is needed although the peer sends no wake-up for it (see `TxRings::unfinished`).
    pub(crate) fn needs_another_pass(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.unfinished)
    }

    fn read_peer_progress(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
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
                    // the response ring, so the consumed responses are published before.
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

    /// Handles the target's response to a fragment. Responses arrive in the order of the fragments.
    fn handle_rma_response(&mut self, context: &QpContext, line: u32, status: u32) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        let Some(pending) = rings.pending.pop_front().filter(|p| p.line == line && p.kind != AwaitedKind::Atomic)
        else {
            return Err(ConnectionFault::InvalidData("a response that matches no fragment in flight"));
        };
        let index = usize::try_from(pending.request - rings.first).unwrap_or(usize::MAX);
        let request = self.queue.get_mut(index).and_then(RequestEntry::request_mut);
        let Some(request) = request else {
            return Err(ConnectionFault::InvalidData("a response that matches no outstanding request"));
        };
        let mut outcome = if status == 0 { Ok(()) } else { Err(Status::RemoteAccess) };
        let is_read = pending.kind == AwaitedKind::Read;
        if is_read && outcome.is_ok() {
            let from = rings.link.rma.bytes(line as usize * LINE + LINE, pending.length as usize);
            let from = from.ok_or(ConnectionFault::InvalidData("a fragment outside its RMA buffer"))?;
            let (regions, length) = (&*context.regions, pending.length as usize);
            // SAFETY: the `length` bytes are in the local RMA buffer, and reserved for this fragment.
            outcome = unsafe { scatter(regions, context.pd, &request.segments, pending.offset, from, length) };
        }
        rings.rma.release(pending.mark);
        request.answered += u64::from(pending.length);
        match outcome {
            Err(status) => {
                request.phase = RequestPhase::Failed(status);
                rings.report_refused(context, request, status);
            }
            Ok(()) if request.answered == request.segments.total() && request.phase == RequestPhase::Sent(u64::MAX) => {
                request.phase = RequestPhase::Done;
            }
            Ok(()) => {}
        }
        if is_read && request.answered == request.segments.total() {
            rings.reads = rings.reads.saturating_sub(1);
        }
        Ok(())
    }

    /// Handles a negative response to a send: the oldest incomplete send fails.
    fn handle_nak(&mut self, status: u32) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        // The peer has published its number of consumed requests before this response. The number known here may be
        // older.
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

    /// Returns the number of the oldest request, if it is a send that the peer has not consumed.
    pub(crate) fn waiting_send(&self) -> Option<u64> {
        let is_send = self.queue.front()?.is_send();
        self.rings.as_ref().filter(|_| is_send).map(|rings| rings.first)
    }

    /// Starts requests in order until one does not fit or fails. Returns whether any ring entry was published.
    fn start_requests(&mut self, context: &QpContext) -> bool {
        let mut published = false;
        let mut budget = MAX_PASS_BYTES;
        while let (Some(rings), Some(entry)) = (self.rings.as_mut(), self.queue.get_mut(self.issued)) {
            let Some(request) = entry.request_mut() else {
                self.issued += 1; // The post itself has done the work of this request.
                continue;
            };
            if matches!(request.phase, RequestPhase::Failed(_)) || (request.fence && rings.reads > 0) {
                break;
            }
            let number = rings.first + self.issued as u64;
            let step = match request.task {
                Operation::Transfer(op) => rings.transfer(context, request, number, op, &mut budget),
                Operation::Bind(ref window, move_number) => {
                    let step = rings.bind_window(context, window, move_number);
                    if let IssueResult::Complete { .. } = step {
                        request.phase = RequestPhase::Done;
                    }
                    step
                }
            };
            match step {
                IssueResult::Complete { published: wrote_entry } => {
                    published |= wrote_entry;
                    self.issued += 1;
                }
                IssueResult::Partial { published: wrote_entry } => {
                    published |= wrote_entry;
                    break;
                }
                IssueResult::Failed(status) => {
                    request.phase = RequestPhase::Failed(status);
                    if let Some(target) = rings.report_refused(context, request, status) {
                        rings.link.publish_refused(&target);
                    }
                }
            }
        }
        published
    }

    /// Reports the completions of requests at the front of the queue that have ended. A failed request is completed,
    /// and then ends the connection.
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

    /// Removes the connection. Returns the completions of all queued requests.
    pub(crate) fn flush(&mut self, ep: usize) -> impl Iterator<Item = Completion> + '_ {
        if let Some(rings) = self.rings.take() {
            rings.link.recall();
        }
        // After a failure, no later request is reported as successful.
        let mut may_succeed = !self.stopped;
        self.issued = 0;
        self.notifying = 0;
        self.draining = false;
        self.stopped = false;
        self.has_retirable = false;
        self.queue.drain().filter_map(move |entry| {
            may_succeed &= matches!(&entry, RequestEntry::Quick(quick) if quick.is_complete());
            entry.flush(ep, may_succeed)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
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
        let offers = self.rings.as_ref().is_some_and(TxRings::has_offers);
        self.draining || self.notifying > 0 || self.queue.len() > self.issued || offers
    }
}

/// Result of sending or copying the bytes of a request. `published`: a ring entry was published.
enum IssueResult {
    Complete { published: bool },
    Partial { published: bool },
    Failed(Status),
}

impl TxRings {
    /// If an RDMA operation has failed because the peer's table of registrations grants no access, queues it for the
    /// engine, which logs it, and returns the access. `None`: the status has another cause.
    #[cold]
    fn report_refused(&self, context: &QpContext, request: &WorkRequest, status: Status) -> Option<AccessTarget> {
        let (Operation::Transfer(op), peer_side) = (&request.task, self.link.peer_side()?) else { return None };
        let Remote { key, address } = op.remote().filter(|_| status == Status::RemoteAccess)?;
        let right = match op {
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => AccessRight::RemoteAtomic,
            Op::Read(_) => AccessRight::RemoteRead,
            _ => AccessRight::RemoteWrite,
        };
        let target = AccessTarget { key, pd: peer_side.pd, address, length: request.segments.total(), right };
        context.report_refused(Some(request.token.cookie), peer_side.peer.regions.entry(key), target);
        Some(target)
    }

    fn transfer(
        &mut self,
        context: &QpContext,
        request: &mut WorkRequest,
        number: u64,
        op: Op,
        budget: &mut u64,
    ) -> IssueResult {
        if !self.supports(op) {
            // The request was posted before the connection was established, so the post could not check this.
            return IssueResult::Failed(Status::RemoteResponder);
        }
        match op {
            Op::Write(remote) => self.rma(context, request, number, remote, Direction::Write, budget),
            Op::Read(remote) => self.rma(context, request, number, remote, Direction::Read, budget),
            Op::WriteImmediate { remote, data, solicited } => {
                let write = extensions::WriteImmediate { remote, data, solicited };
                self.write_immediate(context, request, number, write, budget)
            }
            Op::Send { .. } | Op::SendImmediate { .. } | Op::SendInvalidate { .. } => {
                self.send(context, request, send::Message::of(op))
            }
            Op::FetchAdd { remote, add } => self.atomic(context, request, number, Atomic::FetchAdd(add), remote),
            Op::CompareSwap { remote, compare, swap } => {
                self.atomic(context, request, number, Atomic::CompareSwap { compare, swap }, remote)
            }
        }
    }

    /// Executes a bind or unbind of a window. Later requests wait until it is executed.
    fn bind_window(&mut self, context: &QpContext, window: &Arc<MwCore>, number: u64) -> IssueResult {
        let turned = window.execute(number, context.pd, &context.domain);
        self.unfinished = turned == Ok(false);
        match turned {
            Ok(true) => IssueResult::Complete { published: false },
            Ok(false) => IssueResult::Partial { published: false },
            Err(status) => IssueResult::Failed(status),
        }
    }

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
