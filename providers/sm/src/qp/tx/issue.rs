//! Starts queued requests in order: calls the function of each operation (send, RDMA, atomic), and executes binds of
//! windows. Reports accesses that the peer's table of registrations does not permit.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{Op, Status};
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::rights::AccessRight;

use super::request::{Issue, IssueResult, Operation, RequestPhase, WorkRequest};
use super::responses::{AwaitedKind, AwaitedResponse};
use super::{Tx, TxRings, extensions, send};
use crate::memory::cma::{self, Direction};
use crate::memory::regions::AccessTarget;
use crate::memory::window::MwCore;
use crate::qp::context::QpContext;

/// Maximum number of bytes that one pass copies directly. A longer pass would delay the other connections that the
/// thread serves.
const MAX_PASS_BYTES: u64 = cma::CHUNK as u64;

impl Tx {
    /// Starts requests in order. Stops at a request that has failed, that must wait (for example for space in the ring
    /// or for its fence), or whose copy has used up the budget. Returns whether any ring entry was published.
    pub(super) fn start_requests(&mut self, context: &QpContext) -> bool {
        if self.halted {
            return false;
        }
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
                Operation::Transfer(op) => {
                    let (request, budget) = (&mut *request, &mut budget);
                    rings.transfer(&mut Issue { context, request, number, budget }, op)
                }
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
}

impl TxRings {
    /// If an RDMA or atomic operation has failed with `RemoteAccess`, queues the refused access for the engine, which
    /// logs it, and returns this access. Returns `None` for other operations and statuses.
    #[cold]
    pub(super) fn report_refused(
        &self,
        context: &QpContext,
        request: &WorkRequest,
        status: Status,
    ) -> Option<AccessTarget> {
        let (Operation::Transfer(op), peer_side) = (&request.task, self.link.peer_side()?) else { return None };
        let remote = op.remote().filter(|_| status == Status::RemoteAccess)?;
        let right = match op {
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => AccessRight::RemoteAtomic,
            Op::Read(_) => AccessRight::RemoteRead,
            _ => AccessRight::RemoteWrite,
        };
        let target = peer_side.target(remote, request.segments.total(), right);
        context.report_refused(Some(request.token.cookie), peer_side.peer.regions.entry(remote.key), target);
        Some(target)
    }

    /// As [`Self::report_refused`], for a part of an eager write.
    #[cold]
    pub(super) fn report_refused_part(&self, context: &QpContext, cookie: u64, part: &AwaitedResponse, status: Status) {
        if let (AwaitedKind::Eager { remote, .. }, Some(peer_side)) = (part.kind, self.link.peer_side())
            && status == Status::RemoteAccess
        {
            let target = peer_side.target(remote, part.length.into(), AccessRight::RemoteWrite);
            context.report_refused(Some(cookie), peer_side.peer.regions.entry(remote.key), target);
        }
    }

    fn transfer(&mut self, issue: &mut Issue<'_>, op: Op) -> IssueResult {
        if !self.supports(op) {
            // The request was posted before the connection was established, so the post could not check whether the
            // peer supports the operation.
            return IssueResult::Failed(Status::RemoteResponder);
        }
        match op {
            Op::Write(remote) => self.rma(issue, remote, Direction::Write),
            Op::Read(remote) => self.rma(issue, remote, Direction::Read),
            Op::WriteImmediate { remote, data, solicited } => {
                let write = extensions::WriteImmediate { remote, data, solicited };
                self.write_immediate(issue, write)
            }
            Op::Send { .. } | Op::SendImmediate { .. } | Op::SendInvalidate { .. } => {
                self.send(issue, send::Message::of(op))
            }
            Op::FetchAdd { remote, add } => self.atomic(issue, Atomic::FetchAdd(add), remote),
            Op::CompareSwap { remote, compare, swap } => {
                self.atomic(issue, Atomic::CompareSwap { compare, swap }, remote)
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
}
