//! Extension operations at the initiator: RDMA writes with immediate data, and atomic operations.
//!
//! The notification of a write is a request in the ring. It follows the write's fragments, or is published after this
//! process has copied the data. It consumes a receive of the peer, so it waits for a posted receive like a send.
//!
//! If the target memory is mapped in this process, this process executes an atomic operation itself. Otherwise the
//! target executes the operation when it consumes the request, and returns the previous value in its response.

use dapl::provider::{ATOMIC_SIZE, Op, Remote, Status};
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::scatter;

use super::request::{Issue, IssueResult, RequestEntry, RequestPhase, WorkRequest};
use super::responses::{AwaitedKind, AwaitedResponse};
use super::{Tx, TxRings};
use crate::memory::cma::Direction;
use crate::proto::message::{AtomicRequest, Header, MessageKind};
use crate::qp::context::{ConnectionFault, QpContext};
use crate::qp::ring::SlotFields;
use crate::qp::single_copy::SingleCopy;

/// An RDMA write with its immediate data.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteImmediate {
    pub(super) remote: Remote,
    pub(super) data: u32,
    pub(super) solicited: bool,
}

/// Value of `AwaitedResponse::line` for an atomic operation, which uses no space in the RMA buffer.
const NO_LINE: u32 = u32::MAX;

impl TxRings {
    /// Whether the peer supports this operation.
    pub(crate) fn supports(&self, op: Op) -> bool {
        matches!(op, Op::Send { .. } | Op::Write(_) | Op::Read(_)) || self.extensions
    }

    pub(super) fn write_immediate(&mut self, issue: &mut Issue<'_>, write: WriteImmediate) -> IssueResult {
        let mut published = false;
        if issue.request.phase != RequestPhase::Written {
            match self.rma(issue, write.remote, Direction::Write) {
                IssueResult::Complete { published: fragments } => published = fragments,
                unfinished => return unfinished,
            }
            issue.request.phase = RequestPhase::Written;
        }
        if self.requests.is_full() {
            return IssueResult::Partial { published };
        }
        let WriteImmediate { data, solicited, .. } = write;
        let payload =
            SlotFields { aux: data, total: Some(issue.request.segments.total()), ..self.payload(issue.context) };
        self.requests.push(Header { solicited, ..Header::plain(MessageKind::WriteImmediate, 0) }, &payload);
        issue.request.phase = RequestPhase::Sent(self.requests.next());
        IssueResult::Complete { published: true }
    }

    pub(super) fn atomic(&mut self, issue: &mut Issue<'_>, operation: Atomic, remote: Remote) -> IssueResult {
        if let Err(status) = self.check_atomic(issue, remote) {
            return IssueResult::Failed(status);
        }
        if let Some(mapped) = self.mapped(issue.context, remote.key)
            && mapped.local_address(remote.address, ATOMIC_SIZE, true).is_some()
        {
            if !self.pending.is_empty() {
                self.wait_for_eager_writes();
                return IssueResult::Partial { published: false }; // The target must copy the fragments of earlier writes first.
            }
            let Some(copier) = SingleCopy::by_sender(&issue.context.regions, &self.link) else {
                return IssueResult::Failed(Status::Transport);
            };
            let target = copier.side.target(remote, ATOMIC_SIZE, AccessRight::RemoteAtomic);
            let found = copier.apply(&mapped, &target, operation);
            return match found.and_then(|found| store_previous_value(issue.context, issue.request, found)) {
                Ok(()) => {
                    issue.request.phase = RequestPhase::Done;
                    IssueResult::Complete { published: false }
                }
                Err(status) => IssueResult::Failed(status),
            };
        }
        self.request_atomic(issue, operation, remote)
    }

    /// Checks the local memory, the alignment of the address, and that the connection permits RDMA reads, whose limit
    /// includes atomic operations. The check comes before the execution, which cannot be undone.
    fn check_atomic(&self, issue: &Issue<'_>, remote: Remote) -> Result<(), Status> {
        if issue.request.segments.total() != ATOMIC_SIZE {
            return Err(Status::LocalLength);
        }
        if !Atomic::is_aligned(remote.address) || self.most_reads(issue.context) == 0 {
            return Err(Status::RemoteResponder);
        }
        let mut segments = issue.request.segments.slice(0, ATOMIC_SIZE);
        let is_allowed = segments.all(|segment| issue.allows(&segment, AccessRight::LocalWrite));
        if is_allowed { Ok(()) } else { Err(Status::LocalProtection) }
    }

    /// Sends the operation to the target, unless the ring is full or a limit of outstanding operations is reached.
    fn request_atomic(&mut self, issue: &mut Issue<'_>, operation: Atomic, remote: Remote) -> IssueResult {
        if !self.can_await_response() || self.reads >= self.most_reads(issue.context) {
            return IssueResult::Partial { published: false };
        }
        let [key, rest @ ..] = AtomicRequest { key: remote.key, address: remote.address, operation }.encode();
        rest.iter().enumerate().for_each(|(n, word)| self.requests.store_word(n, *word));
        let payload = SlotFields { total: Some(key), ..self.payload(issue.context) };
        self.requests.push(Header::plain(MessageKind::Atomic, 0), &payload);
        self.pending.push_back(AwaitedResponse {
            request: issue.number,
            line: NO_LINE,
            mark: 0,
            offset: 0,
            length: ATOMIC_SIZE as u32,
            kind: AwaitedKind::Atomic,
        });
        self.reads += 1;
        issue.request.issued = ATOMIC_SIZE;
        issue.request.phase = RequestPhase::Sent(u64::MAX); // The request is complete when the target has responded.
        IssueResult::Complete { published: true }
    }
}

impl Tx {
    /// For tests: treats the peer as one that does not support extension operations. Returns false while there is no
    /// connection.
    #[cfg(test)]
    pub(crate) fn forget_extensions(&mut self) -> bool {
        self.rings.as_mut().map(|rings| rings.extensions = false).is_some()
    }

    /// Handles the target's response to an atomic operation. `status`: 0 if the target has executed the operation;
    /// `found` is then the previous value.
    pub(super) fn handle_atomic_response(
        &mut self,
        context: &QpContext,
        status: u32,
        found: u64,
    ) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        let Some(pending) = rings.pending.pop_front().filter(|pending| matches!(pending.kind, AwaitedKind::Atomic))
        else {
            return Err(ConnectionFault::InvalidData("a response that matches no atomic operation in flight"));
        };
        rings.reads = rings.reads.saturating_sub(1);
        let index = pending.request.checked_sub(rings.first).and_then(|index| usize::try_from(index).ok());
        let request = index.and_then(|index| self.queue.get_mut(index)).and_then(RequestEntry::request_mut);
        let request = request.ok_or(ConnectionFault::InvalidData("a response that matches no outstanding request"))?;
        request.answered = ATOMIC_SIZE;
        let outcome =
            if status == 0 { store_previous_value(context, request, found) } else { Err(Status::RemoteAccess) };
        request.phase = outcome.map_or_else(RequestPhase::Failed, |()| RequestPhase::Done);
        if let Err(status) = outcome {
            rings.report_refused(context, request, status);
        }
        Ok(())
    }
}

/// Stores the previous value of an atomic operation in the request's local memory.
fn store_previous_value(context: &QpContext, request: &WorkRequest, found: u64) -> Result<(), Status> {
    let from = found.to_ne_bytes();
    // SAFETY: the source is the local array `from`, given with its length.
    unsafe { scatter(&*context.regions, context.pd, &request.segments, 0, from.as_ptr(), from.len()) }
}
