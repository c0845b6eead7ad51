//! RDMA operations. This process copies their data directly, by the kernel or through a mapping of the target's memory.
//! While both processes poll, the target copies the data of writes (`eager`). If no other method is possible, this
//! process sends fragments: the target copies between this process's RMA buffer and its own memory, and responds.
//! For a read, this process then copies the data out of the buffer (SM-17 to SM-22).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use dapl::provider::{Remote, Status};
use dapl_software::memory::rights::AccessRight;

use super::TxRings;
use super::request::{Issue, IssueResult, RequestPhase};
use super::responses::{AwaitedKind, AwaitedResponse};
use crate::engine::jobs::Job;
use crate::memory::cma::{self, CopyError, Direction};
use crate::memory::imports::ImportLookup;
use crate::memory::kernel_copy;
use crate::memory::mapped::PeerMapping;
use crate::proto::message::{Fragment, Header, LINE, MessageKind};
use crate::qp::context::QpContext;
use crate::qp::ring::SlotFields;
use crate::qp::single_copy::{CopyMethod, SingleCopy};

/// Maximum number of payload bytes of an RMA fragment.
const MAX_FRAGMENT_BYTES: usize = 32 << 10;

/// The mapping that was used last, as a weak reference, so that the memory is unmapped after its key was revoked.
#[derive(Debug, Default)]
pub(super) struct LastMapping {
    key: u32,
    mapped: Weak<PeerMapping>,
    /// Number of the last request that was copied through a mapping.
    request: Option<u64>,
}

impl TxRings {
    pub(super) fn rma(&mut self, issue: &mut Issue<'_>, remote: Remote, direction: Direction) -> IssueResult {
        let total = issue.request.segments.total();
        if total > issue.context.max_rdma || remote.address.checked_add(total).is_none() {
            return IssueResult::Failed(if total > issue.context.max_rdma {
                Status::LocalLength
            } else {
                Status::RemoteAccess
            });
        }
        if direction == Direction::Read && self.most_reads(issue.context) == 0 {
            return IssueResult::Failed(Status::RemoteResponder);
        }
        if total == 0 {
            issue.request.phase = RequestPhase::Done;
            return IssueResult::Complete { published: false };
        }
        // A request that has begun with another method does not change to the mapping. Otherwise bytes copied through
        // the mapping could overtake fragments of the same request.
        let begins = issue.request.phase == RequestPhase::Waiting;
        if (begins || self.mapped.request == Some(issue.number))
            && let Some(mapped) = self.mapped(issue.context, remote.key)
            && mapped.local_address(remote.address, total, direction == Direction::Write).is_some()
        {
            if !self.pending.is_empty() {
                self.wait_for_eager_writes();
                return IssueResult::Partial { published: false };
            }
            self.mapped.request = Some(issue.number);
            return match self.copy_directly(issue, remote, direction, CopyMethod::Mapping(&mapped)) {
                Ok(true) => IssueResult::Complete { published: false },
                Ok(false) => IssueResult::Partial { published: false },
                Err(status) => IssueResult::Failed(status.unwrap_or(Status::RemoteAccess)),
            };
        }
        if direction == Direction::Write && self.is_eager(remote.key) {
            return self.write_eagerly(issue, remote);
        }
        let by_kernel = self.link.peer_side().is_some_and(|t| kernel_copy::reaches(&t.peer, remote.key));
        if by_kernel && self.wait_for_eager_writes() {
            return IssueResult::Partial { published: false };
        }
        if by_kernel && issue.request.issued == issue.request.answered && self.pending.is_empty() {
            match self.copy_directly(issue, remote, direction, CopyMethod::Kernel) {
                Ok(true) => return IssueResult::Complete { published: false },
                Ok(false) => return IssueResult::Partial { published: false },
                // No byte was copied. Only the target can check an access with this key (`is_indirect`), so the
                // operation is sent as fragments.
                Err(Some(Status::RemoteAccess)) if self.is_indirect(remote.key) => {}
                Err(Some(status)) => return IssueResult::Failed(status),
                Err(None) => {} // The kernel has denied the copy, so the operation is sent as fragments.
            }
        }
        self.fragment(issue, remote, direction)
    }

    /// Returns the mapping of the peer's memory with this key. `None`: there is none, and the transfer must use another
    /// method. If the memory is exported, a mapping is then requested for later transfers, unless a request was made
    /// before or a limit is reached.
    #[inline]
    pub(super) fn mapped(&mut self, context: &QpContext, key: u32) -> Option<Arc<PeerMapping>> {
        if self.mapped.key == key
            && let Some(mapped) = self.mapped.mapped.upgrade()
        {
            return Some(mapped);
        }
        let peer = &self.link.peer_side()?.peer;
        let imports = peer.imports.as_ref()?;
        if !peer.regions.entry(key).is_some_and(|entry| entry.is_exported()) {
            return None;
        }
        match imports.find(key) {
            ImportLookup::Mapped(mapped) => {
                (self.mapped.key, self.mapped.mapped) = (key, Arc::downgrade(&mapped));
                Some(mapped)
            }
            ImportLookup::MustRequest => {
                context.jobs.push(Job::RequestMapping(self.link.id, key));
                None
            }
            ImportLookup::Unavailable => None,
        }
    }

    /// Whether only the target can check an access with this key, because the memory is zero-based, or the key belongs
    /// to a window of one queue pair.
    #[cold]
    fn is_indirect(&self, key: u32) -> bool {
        let entry = self.link.peer_side().and_then(|peer_side| peer_side.peer.regions.entry(key));
        entry.is_some_and(|entry| entry.is_indirect())
    }

    /// Copies the data directly, until the request is complete or the budget of the pass is used up. Returns whether the
    /// request is complete. `Err(None)`: the kernel has denied the copy, and the caller should use another method.
    fn copy_directly(
        &mut self,
        issue: &mut Issue<'_>,
        remote: Remote,
        direction: Direction,
        method: CopyMethod<'_>,
    ) -> Result<bool, Option<Status>> {
        let total = issue.request.segments.total();
        let copier = SingleCopy::by_sender(&issue.context.regions, &self.link).ok_or(Some(Status::Transport))?;
        let right = AccessRight::remote(direction == Direction::Write);
        while issue.request.issued < total {
            self.unfinished = *issue.budget == 0;
            if self.unfinished {
                return Ok(false);
            }
            let chunk = (cma::CHUNK as u64).min(*issue.budget).min(total - issue.request.issued);
            let Some(segment) = issue.request.segments.slice(issue.request.issued, chunk).next() else { break };
            let remote = Remote { address: remote.address + issue.request.issued, ..remote };
            let target = copier.side.target(remote, segment.length, right);
            copier.copy(direction, (segment, issue.context.pd), &target, method).map_err(CopyError::status)?;
            issue.request.issued += segment.length;
            issue.request.answered += segment.length;
            issue.request.phase = RequestPhase::Running;
            *issue.budget -= segment.length;
        }
        self.unfinished = false;
        issue.request.phase = RequestPhase::Done;
        self.eager.count_direct(total);
        Ok(true)
    }

    /// Whether the ring has space for an operation to which the target must respond. The number of outstanding
    /// responses is limited, so that the target's response ring always has space for them.
    pub(super) fn can_await_response(&self) -> bool {
        let most = self.link.peer_side().map_or(0, |peer_side| peer_side.geometry.max_fragments());
        !self.requests.is_full() && self.pending.len() < most as usize
    }

    /// Maximum number of outstanding RDMA reads: the smaller of the local and the peer's limit.
    pub(super) fn most_reads(&self, context: &QpContext) -> u32 {
        context.max_reads_out.min(self.link.peer_side().map_or(0, |peer_side| peer_side.reads))
    }

    /// Sends the operation as fragments. The target copies the data of a write out of the local RMA buffer, and the
    /// data of a read into it.
    fn fragment(&mut self, issue: &mut Issue<'_>, remote: Remote, direction: Direction) -> IssueResult {
        let total = issue.request.segments.total();
        let read = direction == Direction::Read;
        let begins = read && issue.request.phase == RequestPhase::Waiting;
        if begins && self.reads >= self.most_reads(issue.context) {
            return IssueResult::Partial { published: false };
        }
        let mut published = false;
        while issue.request.issued < total {
            let length = (total - issue.request.issued).min(MAX_FRAGMENT_BYTES as u64) as usize;
            if !self.can_await_response() {
                return IssueResult::Partial { published };
            }
            let Some((line, mark)) = self.rma.reserve(1 + length.div_ceil(LINE)) else {
                return IssueResult::Partial { published };
            };
            fail_point!(FragmentReserved);
            self.pending.push_back(AwaitedResponse {
                request: issue.number,
                line,
                mark,
                offset: issue.request.issued,
                length: length as u32,
                kind: if read { AwaitedKind::Read } else { AwaitedKind::Write },
            });
            if let Err(status) = self.fill(issue, remote, line, length, read) {
                self.pending.pop_back();
                return IssueResult::Failed(status);
            }
            fail_point!(FragmentFilled);
            let kind = if read { MessageKind::RmaRead } else { MessageKind::RmaWrite };
            let payload = SlotFields { aux: line, ..self.payload(issue.context) };
            self.requests.push(Header::plain(kind, 0), &payload);
            issue.request.issued += length as u64;
            issue.request.phase = RequestPhase::Running;
            self.reads += u32::from(begins && !published);
            published = true;
        }
        // The request completes with the target's last response, not when the target has consumed a slot.
        issue.request.phase =
            if issue.request.answered == total { RequestPhase::Done } else { RequestPhase::Sent(u64::MAX) };
        IssueResult::Complete { published }
    }

    /// Writes the header of a fragment to its first line, and the payload of a write to the following lines.
    fn fill(&self, issue: &Issue<'_>, remote: Remote, line: u32, length: usize, read: bool) -> Result<(), Status> {
        let at = line as usize * LINE;
        if !read {
            let to = self.link.rma.bytes(at + LINE, length).ok_or(Status::LocalEp)?;
            // SAFETY: the lines in the local RMA buffer are reserved for this fragment.
            unsafe { issue.gather(issue.request.issued, to, length) }?;
        }
        let fragment = Fragment {
            key: remote.key,
            length: length as u32,
            address: remote.address + issue.request.issued,
            origin: issue.request.issued,
            cookie: issue.request.token.cookie,
        };
        for (n, word) in fragment.encode().into_iter().enumerate() {
            self.link.rma.word(at + n * 8).store(word, Ordering::Relaxed);
        }
        Ok(())
    }
}
