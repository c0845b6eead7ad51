//! The entries of the request queue: a posted request with its progress, and the short form of a request that its post
//! has already executed.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{BindWr, Completion, Op, SendWr, Status, Token, Work};
use dapl_software::memory::scatter_gather::Segments;

use crate::memory::window::MwCore;
use crate::qp::context::QpContext;

/// Progress of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RequestPhase {
    /// No bytes were sent or copied yet.
    Waiting,
    /// Some bytes were sent or copied.
    Running,
    /// All bytes were written to the ring or to buffers, or were copied. The request is complete when the peer has
    /// consumed this number of slots; `u64::MAX`: when the target has responded.
    Sent(u64),
    /// A rendezvous offer is in the ring. Its bytes stay in the consumer's memory until the receiver has copied them.
    /// The request is complete when the peer has consumed this number of slots.
    Offered(u64),
    /// The data of a write with immediate data was sent or copied. Its notification waits for a free slot.
    Written,
    Done,
    Failed(Status),
}

/// Result of sending or copying the bytes of a request. `published`: a ring entry was published.
pub(super) enum IssueResult {
    Complete { published: bool },
    Partial { published: bool },
    Failed(Status),
}

/// The operation of a posted request.
pub(super) enum Operation {
    Transfer(Op),
    /// A bind or unbind: the window, and the number under which the window has accepted it.
    Bind(Arc<MwCore>, u64),
}

/// A posted request with its progress.
pub(crate) struct WorkRequest {
    pub(super) task: Operation,
    pub(super) segments: Segments,
    pub(super) token: Token,
    pub(super) suppress: bool,
    pub(super) fence: bool,
    pub(super) phase: RequestPhase,
    /// Number of bytes that were sent or copied.
    pub(super) issued: u64,
    /// Number of bytes of an RDMA operation that were copied, or for which the target has responded.
    pub(super) answered: u64,
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

    /// Returns the completion, with status `Flushed`, of a request that the end of the connection has interrupted, or
    /// that was posted afterwards. A flushed bind leaves the window unbound, unless a later bind was posted.
    pub(crate) fn flush(self) -> Completion {
        if let Operation::Bind(window, number) = &self.task {
            window.flush(*number);
        }
        flushed(self.token)
    }
}

/// A request that a pass starts or continues.
pub(super) struct Issue<'a> {
    pub(super) context: &'a QpContext,
    pub(super) request: &'a mut WorkRequest,
    /// Number of the request, counted from the start of the connection.
    pub(super) number: u64,
    /// Number of bytes that the pass may still copy directly.
    pub(super) budget: &'a mut u64,
}

fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}

/// A request that the post itself has executed: a send or an eager write was written to the ring, or the data of an RDMA
/// operation was copied. Only the data for its completion is stored.
#[derive(Debug, Default)]
pub(super) struct QuickRequest {
    pub(super) cookie: u64,
    /// The request is complete when the peer has consumed this number of slots. 0: the request is complete;
    /// [`Self::AWAITS_RESPONSE`]: it is complete when the target has responded.
    pub(super) slot: u64,
    pub(super) bytes: u32,
    pub(super) post: u32,
    pub(super) work: Work,
    pub(super) suppress: bool,
    pub(super) unsignalled: bool,
    pub(super) failed: Option<Status>,
}

impl QuickRequest {
    pub(super) const AWAITS_RESPONSE: u64 = u64::MAX;

    pub(super) fn token(&self, ep: usize) -> Token {
        let QuickRequest { cookie, post, work, unsignalled, .. } = *self;
        Token { cookie, ep, work, unsignalled, post, ..Token::default() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.slot == 0 && self.failed.is_none()
    }
}

/// An entry of the request queue.
///
/// Full requests are boxed, so that the entry of a quick request is small. The boxes are reused.
pub(super) enum RequestEntry {
    Full(Box<WorkRequest>),
    Quick(QuickRequest),
}

impl Default for RequestEntry {
    fn default() -> Self {
        RequestEntry::Quick(QuickRequest::default())
    }
}

impl RequestEntry {
    pub(super) fn phase(&self) -> RequestPhase {
        match self {
            RequestEntry::Full(request) => request.phase,
            RequestEntry::Quick(quick) => quick.failed.map_or(RequestPhase::Sent(quick.slot), RequestPhase::Failed),
        }
    }

    pub(super) fn fail(&mut self, status: Status) {
        match self {
            RequestEntry::Full(request) => request.phase = RequestPhase::Failed(status),
            RequestEntry::Quick(quick) => quick.failed = Some(status),
        }
    }

    pub(super) fn is_send(&self) -> bool {
        match self {
            RequestEntry::Full(request) => request.is_send(),
            RequestEntry::Quick(quick) => quick.work == Work::Send,
        }
    }

    /// Returns the token, the length in bytes, and whether a successful completion is suppressed. `ep`: handle of the
    /// EP.
    pub(super) fn outcome(&self, ep: usize) -> (Token, u64, bool) {
        match self {
            RequestEntry::Full(request) => (request.token, request.segments.total(), request.suppress),
            RequestEntry::Quick(quick) => (quick.token(ep), quick.bytes.into(), quick.suppress),
        }
    }

    pub(super) fn request(&self) -> Option<&WorkRequest> {
        match self {
            RequestEntry::Full(request) => Some(request),
            RequestEntry::Quick(_) => None,
        }
    }

    /// Records the target's response to a quick eager write. Returns false for any other request.
    pub(super) fn end_quick_write(&mut self, outcome: Result<(), Status>) -> bool {
        match self {
            RequestEntry::Quick(quick) if quick.slot == QuickRequest::AWAITS_RESPONSE => {
                (quick.slot, quick.failed) = (0, outcome.err());
                true
            }
            _ => false,
        }
    }

    pub(super) fn request_mut(&mut self) -> Option<&mut WorkRequest> {
        match self {
            RequestEntry::Full(request) => Some(request),
            RequestEntry::Quick(_) => None,
        }
    }

    /// Returns the completion of a request at the end of the connection. `may_succeed`: the request and all earlier
    /// ones are complete. `None`: the request succeeded, and its completion is suppressed.
    pub(super) fn flush(self, ep: usize, may_succeed: bool) -> Option<Completion> {
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
