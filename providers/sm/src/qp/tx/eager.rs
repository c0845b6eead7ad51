//! Eager writes: RDMA writes that the target copies, when its program polls. The payload is in the ring or in the RMA
//! buffer; a long write is split into parts. Both processes copy at the same time, and each byte twice, but this takes a
//! fraction of the time of a copy by the kernel, which has to pin each page.
//!
//! RDMA must not depend on the target's program. So if the target does not respond in time, or before this process
//! stops polling, this process reclaims the writes and copies them by the kernel (`eager_claims`). Reclaims are slow,
//! so the next writes of the connection are then not eager.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dapl::provider::{Remote, Segment, Status};
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::gather_announced;

use super::request::{Issue, IssueResult, RequestPhase};
use super::responses::{AwaitedKind, AwaitedResponse};
use super::{Tx, TxRings};
use crate::eager_claims::LastReclaim;
use crate::memory::cma::{CopyError, Direction};
use crate::memory::kernel_copy;
use crate::proto::message::{EagerWrite, Header, LINE, MessageKind};
use crate::qp::context::{ConnectionFault, QpContext};
use crate::qp::link::WAKE_ON_REQUESTS;
use crate::qp::ring::SlotFields;
use crate::qp::single_copy::SingleCopy;

/// Maximum length in bytes of a part of an eager write. The RMA buffer has space for four such parts, so both processes
/// copy at the same time, and the fixed cost of a part is small compared with its copies.
const MAX_PART_BYTES: u64 = 32 << 10;
/// Time without a response after which writes are reclaimed. A target that polls responds within 0.5 us to 8 bytes, and
/// within 1.5 us to 4 KiB (half round trips of the bench `mpi`). The time is longer by as much for each
/// [`MAX_PART_BYTES`] in the RMA buffer, of which a copy by the kernel takes a few microseconds.
const RECLAIM_AFTER: Duration = Duration::from_micros(10);
/// The same time if the target has claimed the oldest write and is copying it. It may wait for pages that are allocated
/// at the first access.
const RECLAIM_AFTER_COPY: Duration = Duration::from_millis(1);
/// Number of polls without a response after which this time begins.
const FIRST_CHECK: u32 = 4;
/// Number of RDMA operations after a reclaim during which no write is eager.
const MIN_PAUSE: u32 = 32;
/// The pause doubles up to this number if the target was late, and has responded to fewer than `MIN_PAUSE` eager writes
/// since the last reclaim. So a target that polls only its memory causes few reclaims.
const MAX_PAUSE: u32 = 1 << 16;

/// Location of the payload of an eager write.
#[derive(Clone, Copy, Debug)]
pub(super) enum EagerPayload {
    Slot,
    RmaBuffer,
}

/// Space for the bytes of a part.
struct PartSpace {
    payload: EagerPayload,
    to: *mut u8,
    length: usize,
    /// First line in the RMA buffer, and the mark for its release.
    line: u32,
    mark: u64,
}

/// State of the eager writes of a connection.
pub(super) struct EagerWrites {
    is_supported: bool,
    /// Number of parts to which the target has not responded. Their entries come first in `TxRings::pending`.
    pub(super) outstanding: usize,
    /// Number of polls since the target last responded, or since the oldest outstanding write was published.
    idle_polls: Cell<u32>,
    /// When `idle_polls` was [`FIRST_CHECK`].
    idle_since: Cell<Instant>,
    /// Whether the next pass must reclaim, because the target has not responded in time.
    is_late: Cell<bool>,
    /// Number of the next RDMA operations during which no write is eager.
    pause: u32,
    /// Value of `pause` after the next reclaim.
    next_pause: u32,
    /// Number of responses since the last reclaim.
    responses: u32,
    last_reclaim: LastReclaim,
    /// Whether the writes of the last reclaim are not copied yet, because the target has not responded to an earlier
    /// write that it has claimed.
    copies_are_due: bool,
    /// Whether a request waits until no eager write is outstanding.
    is_blocking: bool,
}

impl EagerWrites {
    pub(super) fn new(is_supported: bool) -> Self {
        EagerWrites {
            is_supported,
            outstanding: 0,
            idle_polls: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            is_late: Cell::new(false),
            pause: 0,
            next_pause: MIN_PAUSE,
            responses: 0,
            last_reclaim: LastReclaim::default(),
            copies_are_due: false,
            is_blocking: false,
        }
    }

    /// Counts the target's response to the oldest eager write, and restarts the time limit.
    pub(super) fn count_response(&mut self) {
        self.outstanding -= 1;
        self.restart_time_limit();
        self.responses = self.responses.saturating_add(1);
    }

    /// Begins the pause after a reclaim. It grows only if the target was late.
    fn begin_pause(&mut self) {
        if self.is_late.get() {
            self.next_pause = if self.responses >= MIN_PAUSE { MIN_PAUSE } else { self.next_pause };
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(MAX_PAUSE);
            self.responses = 0;
        } else {
            self.pause = MIN_PAUSE;
        }
    }

    fn restart_time_limit(&self) {
        self.idle_polls.set(0);
        self.is_late.set(false);
    }

    /// Counts a poll that finds no response. Returns whether the target has not responded in the time that `limit`
    /// returns, at least [`RECLAIM_AFTER`]. Reads the clock in few polls, because that takes as long as a poll.
    fn count_idle_poll(&self, limit: impl FnOnce() -> Duration) -> bool {
        let polls = self.idle_polls.get().saturating_add(1);
        self.idle_polls.set(polls);
        if polls == FIRST_CHECK {
            self.idle_since.set(Instant::now());
        } else if polls > FIRST_CHECK && (polls.is_power_of_two() || polls.is_multiple_of(16)) {
            let elapsed = self.idle_since.get().elapsed();
            self.is_late.set(elapsed > RECLAIM_AFTER && elapsed > limit());
        }
        self.is_late.get()
    }

    /// Counts an RDMA operation of this length, which this process has copied, for the pause.
    #[inline(always)]
    pub(super) fn count_direct(&mut self, length: u64) {
        self.pause = self.pause.saturating_sub(1 + (length / MAX_PART_BYTES) as u32);
    }
}

impl TxRings {
    /// Whether a write to memory with this key is sent as an eager write: both processes poll, a reclaim is possible, and
    /// the ring has space. The caller has checked that the memory of the target is not mapped in this process.
    #[inline]
    pub(super) fn is_eager(&self, key: u32) -> bool {
        let eager = &self.eager;
        eager.is_supported
            && eager.pause == 0
            && !eager.copies_are_due
            // Responses arrive in order, and a reclaim must not let a write overtake earlier operations.
            && eager.outstanding == self.pending.len()
            && !self.quick.peer_sleeps()
            && !self.link.has_wake_flags(WAKE_ON_REQUESTS)
            && self.can_reclaim(key)
            && !self.requests.is_full()
    }

    /// Whether this process can copy to the peer's memory with this key by the kernel, and `rma` is `auto` (otherwise
    /// there are no `imports`). Accesses with some keys can be checked only by the target.
    fn can_reclaim(&self, key: u32) -> bool {
        self.link.peer_side().is_some_and(|side| {
            side.peer.imports.is_some()
                && kernel_copy::reaches(&side.peer, key)
                && side.peer.regions.entry(key).is_some_and(|entry| !entry.is_indirect())
        })
    }

    /// Publishes the parts of the request that were not issued yet, as far as there is space.
    pub(super) fn write_eagerly(&mut self, issue: &mut Issue<'_>, remote: Remote) -> IssueResult {
        let (total, before) = (issue.request.segments.total(), issue.request.issued);
        while issue.request.issued < total {
            match self.publish_part(issue, remote) {
                Ok(true) => issue.request.phase = RequestPhase::Running,
                Ok(false) => return IssueResult::Partial { published: issue.request.issued > before },
                Err(status) => return IssueResult::Failed(status),
            }
        }
        issue.request.phase = RequestPhase::Sent(u64::MAX); // The request is complete when the target has responded.
        IssueResult::Complete { published: true }
    }

    /// Publishes the next part of the request. Returns false and changes nothing if there is no space.
    fn publish_part(&mut self, issue: &mut Issue<'_>, remote: Remote) -> Result<bool, Status> {
        let offset = issue.request.issued;
        let length = (issue.request.segments.total() - offset).min(MAX_PART_BYTES) as usize;
        let Some(space) = self.find_part_space(length) else { return Ok(false) };
        // SAFETY: the `length` bytes at `to` are free, and the peer does not read them before the slot is published.
        unsafe { issue.gather(offset, space.to, length) }?;
        let remote = Remote { address: remote.address + offset, ..remote };
        self.publish_filled_part(issue.context, space, remote, (issue.number, offset));
        issue.request.issued += length as u64;
        Ok(true)
    }

    /// Publishes a write of one segment of at most [`MAX_PART_BYTES`]. Returns false and changes nothing if there is no
    /// space, or if the memory is not mapped or not registered. `number`: number of the request.
    ///
    /// # Safety
    /// As [`gather_announced`]: a deregistration of the segment's memory waits for the caller's post.
    #[inline]
    pub(super) unsafe fn write_segment_eagerly(
        &mut self,
        context: &QpContext,
        remote: Remote,
        segment: &Segment,
        number: u64,
    ) -> bool {
        if segment.length > MAX_PART_BYTES {
            return false;
        }
        let Some(space) = self.find_part_space(segment.length as usize) else { return false };
        // SAFETY: the bytes at `to` are free, and the peer does not read them before the slot is published. The caller
        // guarantees that a deregistration waits (# Safety).
        if !unsafe { gather_announced(&*context.regions, context.pd, segment, space.to) } {
            return false;
        }
        self.publish_filled_part(context, space, remote, (number, 0));
        true
    }

    /// Finds space for a part, in the next slot or in the RMA buffer. Returns `None` if there is none.
    #[inline]
    fn find_part_space(&self, length: usize) -> Option<PartSpace> {
        if !self.can_await_response() {
            return None;
        }
        if length <= EagerWrite::INLINE {
            let (line, mark) = self.rma.find_space(0)?;
            let to = self.requests.payload().wrapping_add(EagerWrite::BYTES);
            return Some(PartSpace { payload: EagerPayload::Slot, to, length, line, mark });
        }
        let (line, mark) = self.rma.find_space(length.div_ceil(LINE))?;
        let to = self.link.rma.bytes(line as usize * LINE, length)?;
        Some(PartSpace { payload: EagerPayload::RmaBuffer, to, length, line, mark })
    }

    /// Publishes a part whose bytes are in its space. `request` and `offset`: number of its request, and its first byte
    /// in the request.
    #[inline]
    fn publish_filled_part(
        &mut self,
        context: &QpContext,
        PartSpace { payload, length, line, mark, .. }: PartSpace,
        remote: Remote,
        (request, offset): (u64, u64),
    ) {
        self.rma.reserve_found(mark);
        let [address, key] = EagerWrite { address: remote.address, key: remote.key }.encode();
        self.requests.store_word(0, key);
        let (slot, length, inline) = (self.requests.next(), length as u32, matches!(payload, EagerPayload::Slot));
        let header = Header { inline, ..Header::plain(MessageKind::EagerWrite, length) };
        let fields = SlotFields { aux: line, total: Some(address), ..self.payload(context) };
        self.requests.push(header, &fields);
        let kind = AwaitedKind::Eager { slot, payload, remote };
        self.pending.push_back(AwaitedResponse { request, line, mark, offset, length, kind });
        if self.eager.outstanding == 0 {
            self.eager.restart_time_limit();
        }
        self.eager.outstanding += 1;
    }

    /// Records that the next request waits until all eager writes are complete, because it must not overtake them.
    /// Returns true if only eager writes are outstanding.
    pub(super) fn wait_for_eager_writes(&mut self) -> bool {
        let waits = self.eager.outstanding > 0 && self.eager.outstanding == self.pending.len();
        self.eager.is_blocking |= waits;
        waits
    }

    /// Whether any outstanding eager write can be reclaimed. The target claims in order, so the last one decides.
    fn has_reclaimable(&self) -> bool {
        let last = self.eager.outstanding.checked_sub(1).and_then(|index| self.pending.get(index));
        last.is_some_and(|last| {
            let AwaitedKind::Eager { slot, remote, .. } = last.kind else { return false };
            self.eager.is_supported
                && slot >= self.eager.last_reclaim.end
                && self.link.eager_claims().is_some_and(|claims| !claims.is_claimed_by_peer(slot))
                && self.can_reclaim(remote.key)
        })
    }

    /// Counts a poll for the time limit of eager writes. Returns whether a pass must reclaim them.
    #[inline]
    pub(super) fn count_poll_of_eager_writes(&self) -> bool {
        if self.eager.outstanding == 0 {
            return false;
        }
        let limit = || {
            let parts = self.rma.bytes_in_use() / MAX_PART_BYTES;
            if self.target_is_copying() { RECLAIM_AFTER_COPY } else { RECLAIM_AFTER * (1 + parts as u32) }
        };
        self.eager.count_idle_poll(limit) && self.has_reclaimable()
    }

    /// Whether the target has claimed the oldest eager write and has not responded yet.
    fn target_is_copying(&self) -> bool {
        let oldest = self.pending.front().and_then(AwaitedResponse::eager_slot);
        oldest.zip(self.link.eager_claims()).is_some_and(|(slot, claims)| claims.is_claimed_by_peer(slot))
    }

    /// Copies the payload of a reclaimed write to the target.
    fn copy_reclaimed(&self, context: &QpContext, write: &AwaitedResponse) -> Result<(), CopyError> {
        let copier = SingleCopy::by_sender(&context.regions, &self.link);
        let (Some(copier), AwaitedKind::Eager { slot, payload, remote }) = (copier, write.kind) else {
            return Err(CopyError::PeerExited);
        };
        let target = copier.side.target(remote, write.length.into(), AccessRight::RemoteWrite);
        let in_buffer = || self.link.rma.bytes(write.line as usize * LINE, write.length as usize);
        let from = match payload {
            EagerPayload::Slot => self.requests.payload_of(slot).wrapping_add(EagerWrite::BYTES),
            EagerPayload::RmaBuffer => in_buffer().ok_or(CopyError::LocalMemory)?.cast_const(),
        };
        // SAFETY: the bytes are in the slot or in the RMA buffer of this connection. Both stay mapped, and this process
        // reuses them only after the write is complete.
        unsafe { copier.copy_buffer(Direction::Write, from.expose_provenance() as u64, &target) }
            // The target logs the access that its registration does not permit.
            .inspect_err(|error| {
                if *error == CopyError::RemoteMemory {
                    self.link.publish_refused(&target)
                }
            })
    }
}

impl Tx {
    /// For tests: permits eager writes and ends their pause, or forbids them.
    #[cfg(test)]
    pub(crate) fn permit_eager_writes(&mut self, is_permitted: bool) {
        self.rings.iter_mut().for_each(|rings| (rings.eager.is_supported, rings.eager.pause) = (is_permitted, 0));
    }

    /// Reclaims the outstanding eager writes. Called before the wake-up flags are set.
    pub(crate) fn end_eager_writes(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
        if self.stopped {
            return Ok(());
        }
        self.reclaim_eager_writes(context).inspect_err(|_| self.stopped = true)
    }

    /// Whether the target has not responded to eager writes in time, as the last poll has found.
    pub(super) fn has_late_eager_write(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.eager.is_late.get())
    }

    /// Whether a request waits for outstanding eager writes that can be reclaimed. Clears the record of this wait.
    pub(super) fn is_blocked_by_eager_writes(&mut self) -> bool {
        self.rings.as_mut().is_some_and(|rings| std::mem::take(&mut rings.eager.is_blocking) && rings.has_reclaimable())
    }

    /// Reclaims the outstanding eager writes that the target has not claimed, and copies them, if possible at once.
    pub(super) fn reclaim_eager_writes(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
        let is_possible = |rings: &&mut TxRings| !self.halted && rings.has_reclaimable();
        let Some(rings) = self.rings.as_mut().filter(is_possible) else { return Ok(()) };
        let Some(claims) = rings.link.eager_claims() else { return Ok(()) };
        match claims.reclaim(rings.requests.next(), rings.eager.last_reclaim) {
            Some(last) => {
                fail_point!(EagerReclaimed);
                rings.eager.last_reclaim = last;
                rings.eager.copies_are_due = true;
                rings.eager.begin_pause();
            }
            None => rings.eager.is_supported = false, // The target copies the outstanding writes.
        }
        // The target may sleep since it has found that a claim is pending.
        rings.link.wake_if_flagged(WAKE_ON_REQUESTS);
        self.copy_reclaimed_writes(context)
    }

    /// Copies the reclaimed writes, unless the target has not responded to an earlier write yet: they must not overtake
    /// it. After a failed write no further write is copied, and the connection ends when the failure is reported.
    pub(super) fn copy_reclaimed_writes(&mut self, context: &QpContext) -> Result<(), ConnectionFault> {
        let is_due = |rings: &&mut TxRings| !self.halted && rings.eager.copies_are_due;
        let Some(rings) = self.rings.as_mut().filter(is_due) else { return Ok(()) };
        let last = rings.eager.last_reclaim;
        let front = rings.pending.front().and_then(AwaitedResponse::eager_slot);
        if front.is_some_and(|slot| slot < last.first) {
            return Ok(());
        }
        rings.eager.copies_are_due = false;
        let mut copied = last.end;
        while let Some(rings) = self.rings.as_mut()
            && let Some(write) = rings.pending.front().copied()
            && let Some(slot) = write.eager_slot()
        {
            let outcome = match rings.copy_reclaimed(context, &write) {
                // The target must copy this write and the later ones.
                Err(CopyError::Denied) => {
                    copied = slot;
                    break;
                }
                outcome => outcome.map_err(|error| error.status().unwrap_or(Status::Transport)),
            };
            rings.pending.pop_front();
            rings.eager.outstanding -= 1;
            rings.rma.release(write.mark);
            self.finish_part(context, &write, outcome)?;
            self.has_retirable = true;
            if outcome.is_err() {
                return Ok(());
            }
        }
        let Some(rings) = self.rings.as_mut() else { return Ok(()) };
        if let Some(claims) = rings.link.eager_claims() {
            rings.eager.last_reclaim = claims.report_copied(copied, last);
        }
        rings.link.wake_if_flagged(WAKE_ON_REQUESTS);
        Ok(())
    }
}
