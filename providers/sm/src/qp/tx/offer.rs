//! Long sends: rendezvous offers, whose bytes the receiver copies from this process's memory by one copy of the kernel.
//!
//! An offer uses one slot and completes like any send. While the offer is in the ring, the receiver may publish a copy
//! job: this process then writes a part of the message to the receiver's memory, so that two CPUs copy. If the receiver
//! cannot copy from this process, this process copies the bytes to its staging buffer, one part at a time. Each step
//! checks that the memory is still registered.

use std::sync::atomic::Ordering;

use dapl::provider::Status;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::gather;

use super::request::{Issue, IssueResult, RequestEntry, RequestPhase, WorkRequest};
use super::{Tx, TxRings};
use crate::delegation::CopyJob;
use crate::memory::cma::{CopyError, Direction};
use crate::memory::regions::AccessTarget;
use crate::proto::message::{Header, MessageKind};
use crate::proto::offer::{MAX_PART_BYTES, MAX_SEGMENTS, STAGING_BYTES, encode_segment, encode_staged, truncated_slot};
use crate::qp::context::{ConnectionFault, QpContext};
use crate::qp::link::WAKE_ON_REQUESTS;
use crate::qp::single_copy::{CopyMethod, SingleCopy};

impl TxRings {
    /// Sends a rendezvous offer, if the send has at least `offer_from` bytes and at most `MAX_SEGMENTS` segments, none
    /// of it was sent yet, and the receiver can copy. `None`: the send must use the message buffer. Below `offer_from`
    /// bytes, two copies in parallel on two CPUs are faster than one copy by the kernel.
    #[inline]
    pub(super) fn offer(&mut self, issue: &mut Issue<'_>, solicited: bool) -> Option<IssueResult> {
        let is_long = issue.request.segments.total() >= self.offer_from && issue.request.phase == RequestPhase::Waiting;
        if is_long && self.link.peer_can_copy() { self.offer_long(issue, solicited) } else { None }
    }

    fn offer_long(&mut self, issue: &mut Issue<'_>, solicited: bool) -> Option<IssueResult> {
        let total = issue.request.segments.total();
        let mut count = 0;
        for segment in issue.request.segments.slice(0, total) {
            if count == MAX_SEGMENTS {
                return None;
            }
            count += 1;
            if !issue.allows(&segment, AccessRight::LocalRead) {
                return Some(IssueResult::Failed(Status::LocalProtection));
            }
        }
        if self.requests.is_full() {
            return Some(IssueResult::Partial { published: false });
        }
        fail_point!(OfferReserved);
        for (n, segment) in issue.request.segments.slice(0, total).enumerate() {
            u32::try_from(segment.length).ok()?;
            let [low, high] = encode_segment(&segment);
            self.requests.store_word(2 * n, low);
            self.requests.store_word(2 * n + 1, high);
        }
        let payload = crate::qp::ring::SlotFields { total: Some(total), ..self.payload(issue.context) };
        self.requests.push(Header { solicited, ..Header::plain(MessageKind::Offer, count as u32) }, &payload);
        fail_point!(Offered);
        issue.request.issued = total;
        self.offered = self.requests.next();
        issue.request.phase = RequestPhase::Offered(self.offered);
        Some(IssueResult::Complete { published: true })
    }

    /// Whether the ring contains an offer that the receiver has not consumed yet.
    pub(super) fn has_offers(&self) -> bool {
        self.offered > self.requests.consumed()
    }
}

impl Tx {
    /// Executes the receiver's copy job, if a new one is published. Returns whether there was a new job.
    #[inline]
    pub(super) fn run_copy_job(&mut self, context: &QpContext) -> bool {
        self.rings.as_ref().is_some_and(TxRings::has_offers) && self.claim_copy_job(context).is_some()
    }

    fn claim_copy_job(&mut self, context: &QpContext) -> Option<()> {
        let rings = self.rings.as_mut()?;
        #[cfg(test)]
        if rings.link.peer_side()?.peer.allowed.load(Ordering::Relaxed) == crate::qp::link::PeerEndpoint::LAZY {
            return None;
        }
        let help = rings.link.copy_delegation()?;
        let (ticket, job) = help.published_job(rings.last_copy_job)?;
        rings.last_copy_job = ticket;
        fail_point!(HelpSeen);
        let claimed = help.claim(ticket);
        fail_point!(HelpClaimed);
        let done = claimed && {
            let mut requests = self.queue.iter().filter_map(RequestEntry::request);
            let request = requests.find(|request| request.phase == RequestPhase::Offered(job.slot));
            request.is_some_and(|request| rings.write_part(context, request, &job))
        };
        help.report(ticket, done);
        rings.link.wake_if_flagged(WAKE_ON_REQUESTS);
        Some(())
    }

    /// Copies the bytes at `offset` of the offer in this slot to the staging buffer, because the receiver cannot copy
    /// from this process.
    #[cold]
    pub(super) fn copy_to_staging(
        &mut self,
        context: &QpContext,
        slot: u32,
        offset: u64,
    ) -> Result<(), ConnectionFault> {
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        let is_meant = |request: &&mut WorkRequest| matches!(request.phase, RequestPhase::Offered(of) if truncated_slot(of) == slot);
        let mut requests = self.queue.iter_mut().filter_map(RequestEntry::request_mut);
        let request = requests
            .find(is_meant)
            .ok_or(ConnectionFault::InvalidData("a staging request for a slot without an offer"))?;
        let length = request.segments.total().saturating_sub(offset).min(STAGING_BYTES as u64) as usize;
        let staging = rings.link.rma.bytes(rings.link.geometry.staging_at(), length);
        let (true, Some(to)) = (length > 0, staging) else {
            return Err(ConnectionFault::InvalidData("a staging request beyond the length of the offer"));
        };
        // SAFETY: the `length` bytes are in the staging buffer, which is part of the local RMA segment. The receiver
        // has requested these bytes, so it does not read the staging buffer until they are published.
        if let Err(status) = unsafe { gather(&*context.regions, context.pd, &request.segments, offset, to, length) } {
            request.phase = RequestPhase::Failed(status);
            return Ok(());
        }
        rings.staged += 1;
        rings.link.publish_staged(encode_staged(rings.staged, length));
        rings.link.wake_if_flagged(WAKE_ON_REQUESTS);
        fail_point!(PartStaged);
        Ok(())
    }
}

impl TxRings {
    /// Copies the part of a job by the kernel, after a check of the destination in the receiver's table of
    /// registrations. Returns whether the part was written completely.
    fn write_part(&self, context: &QpContext, request: &WorkRequest, job: &CopyJob) -> bool {
        let Some(copier) = SingleCopy::by_sender(&context.regions, &self.link) else { return false };
        let (length, total) = (u64::from(job.length), request.segments.total());
        let fits = length <= MAX_PART_BYTES && job.offset <= total && length <= total - job.offset;
        if !fits || job.address.checked_add(length).is_none() || !copier.side.peer.cma.load(Ordering::Relaxed) {
            return false;
        }
        let mut address = job.address;
        for segment in request.segments.slice(job.offset, length) {
            let (length, right) = (segment.length, AccessRight::LocalWrite);
            let target = AccessTarget { key: job.key, pd: job.pd, address, length, right };
            let local = (segment, context.pd);
            if let Err(error) = copier.copy(Direction::Write, local, &target, CopyMethod::Kernel) {
                if error == CopyError::Denied {
                    self.link.publish_can_copy(false);
                }
                return false;
            }
            address += segment.length;
        }
        true
    }
}
