//! Quick posts: sends and RDMA operations of one segment, with no flag but SUPPRESS, in the common case: no request
//! waits in the queue, the ring has space, and both processes use `membarrier`, so that the post needs no fence.
//!
//! A pass or a post of the general path checks these conditions for several posts, and grants a number of credits. Each
//! quick post that adds a request to the queue uses one credit. A post after which a condition may be false withdraws
//! the credits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Remote, Segment, Work};
use dapl::runtime::empty_check::AwaitedProgress;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::{gather_announced, gather_recent};

use super::request::{QuickRequest, RequestEntry};
use super::{MAX_UNREAD_REQUESTS, Tx, TxRings};
use crate::cq::CompletionWriter;
use crate::memory::cma::{self, Direction};
use crate::memory::kernel_copy;
use crate::memory::map::{RingSlots, SharedMapping};
use crate::memory::mapped::PeerMapping;
use crate::proto::message::{Header, LINE, MessageKind};
use crate::qp::context::QpContext;
use crate::qp::link::{WAKE_FLAGS_OFFSET, WAKE_ON_REQUESTS};
use crate::qp::ring::SlotFields;
use crate::qp::single_copy::{CopyMethod, SingleCopy};

/// Credits for quick posts, and data that a quick post reads.
pub(super) struct QuickPostCredit {
    /// Number of requests that quick posts may add to the queue before the next pass.
    remaining: u32,
    /// The peer's wake-up flags (see
    /// [`ConnectionMemory::wake_if_flagged`](crate::qp::link::ConnectionMemory::wake_if_flagged)).
    wanted: RingSlots<1>,
    /// Whether both processes execute `membarrier` when they set wake-up flags. Otherwise no credit is granted, because
    /// a post would need a fence.
    uses_membarrier: bool,
    /// What a poll waits for after a quick post.
    wait: AwaitedProgress,
}

impl QuickPostCredit {
    /// Creates the state without credits.
    pub(super) fn new(peer_area: &Arc<SharedMapping>, uses_membarrier: bool) -> Self {
        QuickPostCredit {
            remaining: 0,
            wanted: RingSlots::new(peer_area.clone(), WAKE_FLAGS_OFFSET, 1),
            uses_membarrier,
            wait: AwaitedProgress::Other,
        }
    }

    /// Whether the peer has set its wake-up flag for requests, because no thread of its program polls.
    #[inline(always)]
    pub(super) fn peer_sleeps(&self) -> bool {
        let [word] = self.wanted.words(0);
        word.load(Ordering::Relaxed) & WAKE_ON_REQUESTS != 0
    }

    /// Uses a credit for a send that was posted by the general path or as a fragment.
    #[inline(always)]
    pub(super) fn spend(&mut self) {
        self.remaining = self.remaining.saturating_sub(1);
    }
}

/// A work request of one segment, without flags or, if `SUPPRESS` is set, with only SUPPRESS.
#[derive(Clone, Copy)]
pub(crate) struct QuickWr<'a, const SUPPRESS: bool> {
    pub(crate) segment: &'a Segment,
    pub(crate) cookie: u64,
}

impl Tx {
    /// Grants credits after a pass or a post. Grants none if a request waits, if a fault was found, or if a post would
    /// need a fence.
    #[inline]
    pub(super) fn renew_credit(&mut self) {
        let is_idle = self.issued == self.queue.len() && !self.stopped && !self.halted;
        let wait =
            if self.waits_for() == AwaitedProgress::Other { AwaitedProgress::Other } else { AwaitedProgress::Count };
        let Some(rings) = self.rings.as_mut() else { return };
        let entries = rings.max_requests.min(self.queue.slots()).saturating_sub(self.issued);
        let space = rings.requests.free_slots().min(entries as u64);
        rings.quick.remaining =
            if is_idle && rings.quick.uses_membarrier { space.min(MAX_UNREAD_REQUESTS as u64) as u32 } else { 0 };
        rings.quick.wait = wait;
    }

    /// Withdraws the credits, because a posted request may have to wait.
    #[inline]
    pub(super) fn withdraw_credit(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.quick.remaining = 0;
        }
    }

    /// Whether a pass should run to grant credits: no credit remains, although this connection can get credits. The
    /// pass also retires the sends that have used the credits, if the peer has consumed them.
    #[inline]
    pub(crate) fn is_pass_due(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.quick.remaining == 0 && rings.quick.uses_membarrier)
            && !self.stopped
    }

    /// Reports the completions of the quick requests at the front of the queue that are complete. This is the common
    /// case of `retire`. Returns whether any request was removed.
    #[inline(always)]
    pub(super) fn retire_quick(&mut self, context: &QpContext, out: &mut CompletionWriter<'_>) -> bool {
        self.has_retirable = false;
        let (Some(rings), Some(cq)) = (self.rings.as_mut(), &context.request_cq) else { return false };
        let (consumed, ep, before) = (rings.requests.consumed(), context.ep.handle, self.queue.len());
        let (mut entries, mut reported) = (out.free_entries(cq), 0);
        let most = entries.max_completions();
        while let Some(RequestEntry::Quick(quick)) = self.queue.front() {
            if quick.slot > consumed || quick.failed.is_some() {
                break;
            }
            if !quick.suppress {
                if reported == most {
                    self.has_retirable = true;
                    break;
                }
                entries.put(&quick.token(ep), quick.bytes.into(), false);
                reported += 1;
            }
            fail_point!(Completed);
            self.queue.drop_front();
        }
        let used = entries.used();
        out.add_filled(used);
        self.notifying -= reported;
        let retired = before - self.queue.len();
        self.issued -= retired;
        rings.first += retired as u64;
        retired > 0
    }

    /// Posts a send of one segment. Returns false and changes nothing if the send must be posted by the general path.
    #[inline(always)]
    pub(crate) fn post_quickly<const SUPPRESS: bool>(
        &mut self,
        context: &QpContext,
        wr: QuickWr<'_, SUPPRESS>,
    ) -> bool {
        self.post_recent::<false, SUPPRESS>(context, wr)
    }

    /// Checks memory that was not used recently, and then posts the send.
    #[inline(never)]
    fn check_and_post<const SUPPRESS: bool>(&mut self, context: &QpContext, wr: QuickWr<'_, SUPPRESS>) -> bool {
        let Some(rings) = self.rings.as_mut() else { return false };
        // SAFETY: a deregistration waits for this post, by the contract of `QueuePair::post_request_quickly`. The slot
        // has space for the segment: `post_recent` compared its length with `short_max`. It is not published, so no
        // other process reads it; the post overwrites this copy.
        let is_mapped =
            unsafe { gather_announced(&*context.regions, context.pd, wr.segment, rings.requests.payload()) };
        is_mapped && self.post_recent::<true, SUPPRESS>(context, wr)
    }

    /// Like [`Self::post_quickly`]. `IS_CHECKED`: the memory of a short send was just checked.
    #[inline(always)]
    fn post_recent<const IS_CHECKED: bool, const SUPPRESS: bool>(
        &mut self,
        context: &QpContext,
        wr: QuickWr<'_, SUPPRESS>,
    ) -> bool {
        let QuickWr { segment, cookie } = wr;
        let Some(rings) = self.rings.as_mut() else { return false };
        let credit = rings.quick.remaining;
        if credit == 0 {
            return false;
        }
        if segment.length > rings.short_max {
            return self.post_fragment(context, wr);
        }
        fail_point!(SlotReserved);
        let (next, to) = (rings.requests.next_slot(), rings.requests.payload());
        let (index, length) = (next.1, segment.length as u8);
        // SAFETY: a deregistration waits for this post, by the contract of `QueuePair::post_request_quickly`. The slot
        // has space for a segment of `short_max` bytes, and no other process reads it until it is published.
        if !unsafe { gather_recent(&*context.regions, context.pd, segment, to) } {
            return !IS_CHECKED && self.check_and_post(context, wr);
        }
        let consumed = context.rx_consumed.load(Ordering::Acquire);
        rings.requests.publish_send(next, length, consumed as u32);
        rings.requests.advance(index, length, credit);
        rings.quick.remaining = credit - 1;
        let (slot, bytes, work) = (index + 1, length.into(), Work::Send);
        context.reported_consumed.store(consumed, Ordering::Relaxed);
        rings.wake_if_wanted();
        let wait = rings.quick.wait;
        let suppress = SUPPRESS;
        self.queue_quickly(
            context,
            QuickRequest { cookie, slot, bytes, work, suppress, ..QuickRequest::default() },
            wait,
        );
        true
    }

    /// Posts a send that is written to the message buffer as one fragment. Returns false and changes nothing if the
    /// send must be posted by the general path.
    #[inline(never)]
    fn post_fragment<const SUPPRESS: bool>(&mut self, context: &QpContext, wr: QuickWr<'_, SUPPRESS>) -> bool {
        let QuickWr { segment, cookie } = wr;
        let Some(rings) = self.rings.as_mut().filter(|rings| segment.length <= rings.fragment_max) else {
            return false;
        };
        let length = segment.length as usize;
        let Some((line, mark)) = rings.messages.find_space(length.div_ceil(LINE)) else { return false };
        let at = rings.link.geometry.messages_at() + line as usize * LINE;
        let Some(to) = rings.link.area.bytes(at, length) else { return false };
        // SAFETY: a deregistration waits for this post, by the contract of `QueuePair::post_request_quickly`. The
        // `length` bytes at `to` are free lines of the local area, which the peer does not read until they are
        // announced.
        if !unsafe { gather_announced(&*context.regions, context.pd, segment, to) } {
            return false;
        }
        fail_point!(LinesFilled);
        rings.messages.reserve_found(mark);
        rings.marks.push_back((rings.requests.next(), mark));
        let consumed = context.rx_consumed.load(Ordering::Acquire);
        let [total, rest @ ..] = rings.numbering.next(true, segment.length).encode();
        rest.into_iter().enumerate().for_each(|(n, word)| rings.requests.store_word(n, word));
        let bytes = length as u32;
        let header = Header { first: true, last: true, ..Header::plain(MessageKind::Send, bytes) };
        rings.requests.push(header, &SlotFields { ack: consumed as u32, aux: line, total: Some(total) });
        rings.quick.spend();
        context.reported_consumed.store(consumed, Ordering::Relaxed);
        rings.wake_if_wanted();
        let (slot, work, wait) = (rings.requests.next(), Work::Send, rings.quick.wait);
        let suppress = SUPPRESS;
        self.queue_quickly(
            context,
            QuickRequest { cookie, slot, bytes, work, suppress, ..QuickRequest::default() },
            wait,
        );
        true
    }

    /// Posts an RDMA operation of one segment, and copies its data. Returns false if the operation must be posted by
    /// the general path, which also determines why a copy has failed. `is_polled`: a polling thread will report the
    /// completion.
    #[inline(always)]
    pub(crate) fn copy_quickly<const SUPPRESS: bool>(
        &mut self,
        context: &QpContext,
        direction: Direction,
        remote: Remote,
        wr: QuickWr<'_, SUPPRESS>,
        is_polled: bool,
    ) -> bool {
        let QuickWr { segment, cookie } = wr;
        let Some(rings) = self.rings.as_mut() else { return false };
        let length = segment.length;
        let is_short = length.wrapping_sub(1) < cma::CHUNK as u64 && length <= context.max_rdma;
        if rings.quick.remaining == 0 || !is_short {
            return false;
        }
        let mapped = rings.mapped(context, remote.key);
        if direction == Direction::Write && mapped.is_none() && rings.is_eager(remote.key) {
            return is_polled && self.write_quickly(context, remote, wr);
        }
        // Data of later operations must not overtake fragments or eager writes that the target has not copied yet.
        if !rings.pending.is_empty()
            || direction == Direction::Read && rings.most_reads(context) == 0
            || !rings.copy_all(context, direction, remote, segment, mapped.as_deref())
        {
            return false;
        }
        rings.eager.count_direct(length);
        if SUPPRESS && self.queue.is_empty() {
            return true; // The operation is complete, and nothing is reported.
        }
        rings.quick.remaining -= 1;
        if !SUPPRESS {
            // The operation is complete, so a poll must not wait until the peer has consumed a request.
            rings.quick.wait = AwaitedProgress::Other;
        }
        let (work, suppress) = (if direction == Direction::Write { Work::Write } else { Work::Read }, SUPPRESS);
        let request = QuickRequest { cookie, bytes: length as u32, work, suppress, ..QuickRequest::default() };
        self.queue_quickly(context, request, AwaitedProgress::Other);
        if SUPPRESS {
            // A pass removes the request after the earlier ones.
        } else if is_polled {
            self.has_retirable = true;
        } else {
            self.retire_unpolled(context);
        }
        true
    }

    /// Posts an RDMA write of one segment as an eager write. Returns false if it must be posted by the general path.
    #[inline(never)]
    fn write_quickly<const SUPPRESS: bool>(
        &mut self,
        context: &QpContext,
        remote: Remote,
        QuickWr { segment, cookie }: QuickWr<'_, SUPPRESS>,
    ) -> bool {
        let Some(rings) = self.rings.as_mut() else { return false };
        let is_in_range = remote.address.checked_add(segment.length).is_some();
        let number = rings.first + self.queue.len() as u64;
        // SAFETY: a deregistration waits for this post, by the contract of `QueuePair::post_request_quickly`.
        if !is_in_range || !unsafe { rings.write_segment_eagerly(context, remote, segment, number) } {
            return false;
        }
        rings.quick.spend();
        rings.quick.wait = AwaitedProgress::Other;
        context.reported_consumed.store(context.rx_consumed.load(Ordering::Acquire), Ordering::Relaxed);
        rings.wake_if_wanted();
        let (slot, bytes, work) = (QuickRequest::AWAITS_RESPONSE, segment.length as u32, Work::Write);
        let request = QuickRequest { cookie, slot, bytes, work, suppress: SUPPRESS, ..QuickRequest::default() };
        self.queue_quickly(context, request, AwaitedProgress::Other);
        // The response must be read also if the completion is suppressed.
        context.watch.set_wait(AwaitedProgress::Other);
        true
    }

    /// Reports the completions at the front of the queue, because no thread polls this connection.
    #[inline(never)]
    fn retire_unpolled(&mut self, context: &QpContext) {
        self.retire_quick(context, &mut CompletionWriter::default());
        self.renew_credit();
        self.renew_wait(context);
    }

    /// Queues a request that the post itself has executed. No poll waits for a suppressed request.
    #[inline(always)]
    fn queue_quickly(&mut self, context: &QpContext, request: QuickRequest, wait: AwaitedProgress) {
        let suppress = request.suppress;
        match self.queue.push_within() {
            RequestEntry::Quick(old) => *old = request,
            other => *other = RequestEntry::Quick(request),
        }
        self.issued += 1;
        if !suppress {
            self.notifying += 1;
            context.watch.set_wait(wait);
        }
    }
}

impl TxRings {
    /// Wakes the peer if it sleeps, as `wake_if_flagged` does. No fence is needed, because the peer executes
    /// `membarrier` when it sets its flags.
    #[inline(always)]
    fn wake_if_wanted(&self) {
        // The compiler must not move the load of the flags before the publication. `wake_if_flagged` reads the flags
        // again.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if self.quick.peer_sleeps() {
            self.link.wake_if_flagged(WAKE_ON_REQUESTS);
        }
    }

    /// Copies a segment of at most `CHUNK` bytes, through the mapping of the peer's memory if there is one. Returns
    /// false if no method can copy it, or if the copy has failed. A deregistration must wait for the caller's post.
    #[inline(always)]
    fn copy_all(
        &self,
        context: &QpContext,
        direction: Direction,
        remote: Remote,
        segment: &Segment,
        mapped: Option<&PeerMapping>,
    ) -> bool {
        let Some(copier) = SingleCopy::by_sender(&context.regions, &self.link) else { return false };
        let method = match mapped {
            // If the range is outside of the mapping, the copy fails, and the general path selects another method.
            Some(mapped) => CopyMethod::Mapping(mapped),
            _ if kernel_copy::reaches(&copier.side.peer, remote.key) => CopyMethod::Kernel,
            _ => return false,
        };
        let target = copier.side.target(remote, segment.length, AccessRight::remote(direction == Direction::Write));
        // SAFETY: a deregistration waits for this post, by the contract of `QueuePair::post_request_quickly`.
        unsafe { copier.copy_announced(direction, (*segment, context.pd), &target, method) }.is_ok()
    }
}
