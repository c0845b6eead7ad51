//! Long RDMA writes that both processes copy while both poll. The write is split into parts. The initiator delegates a
//! part to the target, which copies it from the initiator's memory, and copies the next part itself meanwhile.
//!
//! A delegated part is in the ring like an eager write: the target claims it, and the initiator reclaims it if the
//! target does not respond. At most one part is delegated at a time. The initiator copies the next part except its last
//! bytes, which are sent as an eager write behind the delegated part. So bytes at the end of a write are visible only
//! after all earlier bytes, because programs poll them. For long sends, the receiver delegates to the sender
//! (`delegation`).

use dapl::provider::{Region, Remote, Segment};
use dapl_software::memory::rights::AccessRight;

use super::TxRings;
use super::eager::EagerPayload;
use super::request::{Issue, IssueResult, RequestPhase};
use super::responses::{AwaitedKind, AwaitedResponse};
use crate::memory::cma::Direction;
use crate::proto::message::{DelegatedWrite, Header, MAX_PART_BYTES, MessageKind};
use crate::qp::ring::SlotFields;
use crate::qp::single_copy::CopyMethod;

/// Minimum number of bytes that a write has left to be shared. A copy by the kernel of half as many bytes takes longer
/// than the slots and the last bytes cost.
const MIN_BYTES: u64 = 64 << 10;
/// Number of last bytes that are sent as an eager write. They fit in a slot.
const TAIL_BYTES: u64 = 64;

/// The part that the target copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelegatedPart {
    pub(super) slot: u64,
    /// The destination in the target's memory.
    destination: Region,
}

impl DelegatedPart {
    fn overlaps(&self, address: u64, length: u64) -> bool {
        let Region { address: start, length: size } = self.destination;
        address < start.saturating_add(size) && start < address.saturating_add(length)
    }
}

impl TxRings {
    /// Whether a write of this length is shared with the target. The caller has checked that the memory of the target
    /// is not mapped in this process.
    #[inline]
    pub(super) fn is_shared(&self, key: u32, length: u64) -> bool {
        length >= MIN_BYTES
            && self.eager.supports_delegation
            && self.can_publish_eagerly(key)
            && self.link.peer_can_copy()
    }

    /// Delegates a part of a long write, or copies the part after a delegated one. A further pass continues the write,
    /// after it has read the responses. `None`: the caller must use another method.
    pub(super) fn share_write(&mut self, issue: &mut Issue<'_>, remote: Remote) -> Option<IssueResult> {
        let (total, issued) = (issue.request.segments.total(), issue.request.issued);
        if self.eager.outstanding != self.pending.len() {
            return None; // Fragments are outstanding.
        }
        self.unfinished = false;
        let published = self.eager.delegated.is_none();
        if published {
            if !self.is_shared(remote.key, total - issued) || !self.delegate_part(issue, remote) {
                return None;
            }
            if issue.request.issued == total {
                issue.request.phase = RequestPhase::Sent(u64::MAX); // The request is complete when the target has responded.
                return Some(IssueResult::Complete { published });
            }
        }
        match self.copy_behind(issue, remote) {
            None | Some(IssueResult::Partial { .. }) if published => Some(IssueResult::Partial { published }),
            result => result,
        }
    }

    /// Publishes the next part for the target. Returns false and changes nothing if its memory is not registered, or
    /// if there is no space.
    fn delegate_part(&mut self, issue: &mut Issue<'_>, remote: Remote) -> bool {
        let Some(source) = issue.request.segments.slice(issue.request.issued, MAX_PART_BYTES).next() else {
            return false;
        };
        let is_possible = self.can_await_response() && issue.allows(&source, AccessRight::LocalRead);
        let Some((line, mark)) = self.rma.find_space(0).filter(|_| is_possible) else { return false };
        let address = remote.address + issue.request.issued;
        let Segment { key: source_key, address: source_address, length, .. } = source;
        let write = DelegatedWrite { address, key: remote.key, source_key, source_address };
        let [first, rest @ ..] = write.encode();
        rest.into_iter().enumerate().for_each(|(n, word)| self.requests.store_word(n, word));
        let slot = self.requests.next();
        let header = Header::plain(MessageKind::DelegatedWrite, length as u32);
        let fields = SlotFields { total: Some(first), ..self.payload(issue.context) };
        self.requests.push(header, &fields);
        fail_point!(WriteDelegated);
        let remote = Remote { address, ..remote };
        let (payload, offset) = (EagerPayload::Memory(source), issue.request.issued);
        let kind = AwaitedKind::Eager { slot, payload, remote };
        self.await_eager(AwaitedResponse { request: issue.number, line, mark, offset, length: length as u32, kind });
        self.eager.delegated = Some(DelegatedPart { slot, destination: Region { address, length } });
        issue.request.issued += length;
        issue.request.phase = RequestPhase::Running;
        true
    }

    /// Copies the part after a delegated one, and sends the last bytes of the write as an eager write.
    fn copy_behind(&mut self, issue: &mut Issue<'_>, remote: Remote) -> Option<IssueResult> {
        let (total, address) = (issue.request.segments.total(), remote.address + issue.request.issued);
        let left = total - issue.request.issued;
        let part = left.min(MAX_PART_BYTES);
        if left < TAIL_BYTES || self.eager.delegated.is_some_and(|delegated| delegated.overlaps(address, part)) {
            return None;
        }
        let end = issue.request.issued + if part == left { part - TAIL_BYTES } else { part };
        match self.copy_until(issue, remote, (Direction::Write, CopyMethod::Kernel), end) {
            Ok(true) => {}
            Ok(false) => return Some(IssueResult::Partial { published: false }),
            Err(Some(status)) => return Some(IssueResult::Failed(status)),
            Err(None) => return None, // The kernel has denied the copy.
        }
        self.unfinished = total - issue.request.issued > TAIL_BYTES;
        if self.unfinished {
            return Some(IssueResult::Partial { published: false });
        }
        if !self.can_publish_eagerly(remote.key) {
            self.wait_for_eager_writes(); // The last bytes are copied directly after that.
            return Some(IssueResult::Partial { published: false });
        }
        Some(self.write_eagerly(issue, remote))
    }

    /// Whether the target has claimed the delegated part and has not responded yet.
    pub(super) fn target_is_copying(&self) -> bool {
        let claims = self.link.eager_claims();
        self.eager.delegated.zip(claims).is_some_and(|(part, claims)| claims.is_claimed_by_peer(part.slot))
    }
}
