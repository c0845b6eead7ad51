//! Rendezvous offers at the receiver: long sends whose bytes the receiver copies from the sender's memory by one copy
//! of the kernel.
//!
//! To preserve order, an offer stays in the ring until its bytes are copied completely. While the sender writes a part
//! as a copy job, this process copies the part behind it. The last bytes of the message go to a buffer until both parts
//! are complete, because programs poll them. No copy job is outstanding when the receive completes.
//!
//! If the kernel denies the copy, the receiver requests the remaining bytes part by part through the sender's staging
//! buffer. A pass waits for the sender in one case: if its own copy fails while the sender executes a copy job, it
//! waits until the sender has reported the result, but at most a second.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Remote, Segment, Status};
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::{Segments, scatter};

use super::{Delivery, RecvRequest, RxRings};
use crate::delegation::CopyJob;
use crate::memory::cma::{CopyError, Direction};
use crate::memory::regions::wait_while;
use crate::proto::message::{Header, MessageKind};
use crate::proto::offer::{MAX_SEGMENTS, STAGING_BYTES, encode_staged, offer_segments, split, truncated_slot};
use crate::qp::context::{ConnectionFault, NAK_SOURCE, QpContext};
use crate::qp::link::WAKE_ON_PROGRESS;
use crate::qp::single_copy::{CopyMethod, SingleCopy, Tail};

/// A rendezvous offer in progress.
pub(super) struct Fetch {
    /// Location of the message in the sender's memory.
    source: Segments,
    solicited: bool,
    /// Number of bytes that were copied from the start of the message.
    done: u64,
    /// The last bytes of the message, while the bytes before them are incomplete.
    tail: Cell<Tail>,
    /// Whether the last bytes of the message are copied to `tail` first.
    has_tail: bool,
    step: FetchStep,
    /// Whether the sender has failed to write a part, so that no further job is published for this offer.
    alone: bool,
}

const TAIL_BYTES: u64 = size_of::<Tail>() as u64;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FetchStep {
    /// This process must copy the next part.
    Next,
    /// The sender has claimed the job with this ticket. If it succeeds, `length` more bytes are complete: its part, and
    /// the part behind it, which this process has copied.
    Helped { ticket: u64, length: u64 },
    /// The sender must copy the next part to its staging buffer; `count` is the number of this staging copy.
    Staged { count: u64 },
    /// The offer cannot be completed: the sender has recalled it or has exited, or its memory is not accessible. The
    /// connection ends soon.
    Over,
}

impl RxRings {
    /// Starts or continues to copy an offer. Returns true if the receive is complete; false if the offer waits for a
    /// receive or for the sender, if the budget is used up, or if the offer cannot be completed.
    pub(super) fn fetch(&mut self, delivery: &mut Delivery<'_, '_>) -> Result<bool, ConnectionFault> {
        if self.fetch.is_none() && !self.begin_fetch(delivery)? {
            return Ok(false);
        }
        while let (Some(fetch), Some(receive)) = (&mut self.fetch, delivery.queue.front()) {
            match fetch.step {
                FetchStep::Over => return Ok(false),
                _ if fetch.done == fetch.source.total() => return self.arrived(delivery),
                _ if *delivery.budget == 0 => return Ok(false),
                FetchStep::Helped { ticket, length } => {
                    match self.link.copy_delegation().and_then(|help| help.outcome(ticket)) {
                        None => return Ok(false),
                        Some(true) => {
                            fetch.step = FetchStep::Next;
                            if let Err(status) = fetch.complete(delivery.context, receive, length) {
                                return Err(self.fail_receive(delivery, status));
                            }
                        }
                        Some(false) => (fetch.step, fetch.alone) = (FetchStep::Next, true),
                    }
                }
                FetchStep::Staged { count } if self.link.staged() >> 32 != count & 0xFFFF_FFFF => return Ok(false),
                FetchStep::Staged { count } => {
                    if let Err(status) = self.copy_staged(delivery, count)? {
                        return Err(self.fail_receive(delivery, status));
                    }
                }
                FetchStep::Next => match self.fetch_part(delivery.context, receive, delivery.budget) {
                    Ok(()) => {}
                    Err(CopyError::LocalMemory) => {
                        return Err(self.fail_receive(delivery, Status::LocalProtection));
                    }
                    Err(error) => self.copy_failed(error)?,
                },
            }
        }
        Ok(false)
    }

    fn begin_fetch(&mut self, delivery: &mut Delivery<'_, '_>) -> Result<bool, ConnectionFault> {
        let (payload, header) = (self.requests.fields(), delivery.header);
        delivery.context.watch.set_carried_ack(payload.ack);
        if !self.message.is_between() {
            return Err(ConnectionFault::InvalidData("an offer between the fragments of a message"));
        }
        let total = payload.total.unwrap_or(0);
        let parts = offer_segments(header.length, total, self.requests.stored_words());
        let parts = parts.ok_or(ConnectionFault::InvalidData("an offer with inconsistent lengths"))?;
        if !self.find_receive(delivery, total)? {
            return Ok(false);
        }
        let (mut list, mut count) = ([Segment::default(); MAX_SEGMENTS], 0);
        for (segment, part) in list.iter_mut().zip(parts) {
            *segment = part;
            count += 1;
        }
        let source = Segments::new(&list[..count]);
        self.fetch = Some(Fetch {
            source,
            solicited: header.solicited,
            done: 0,
            tail: Cell::new([0; size_of::<Tail>()]),
            has_tail: false,
            step: FetchStep::Next,
            alone: false,
        });
        fail_point!(OfferRead);
        Ok(true)
    }

    /// Copies the next part. If the rest is long and the sender can copy, publishes this part as a copy job instead,
    /// and meanwhile copies the part behind it. If the sender has not claimed the job by then, copies both parts.
    fn fetch_part(&mut self, context: &QpContext, receive: &RecvRequest, budget: &mut u64) -> Result<(), CopyError> {
        let (Some(fetch), Some(peer_side), Some(help)) =
            (&mut self.fetch, self.link.peer_side(), self.link.copy_delegation())
        else {
            return Err(CopyError::PeerExited);
        };
        if !peer_side.peer.cma.load(Ordering::Relaxed) {
            return Err(CopyError::Denied);
        }
        let left = fetch.source.total() - fetch.done;
        let (delegated, own_part) = split(left, !fetch.alone && self.link.peer_can_copy());
        let slot = self.requests.consumed() + 1;
        let job = if delegated > 0 { copy_job(context, receive, slot, fetch.done, delegated) } else { None };
        let Some(job) = job else {
            copy_range(context, &self.link, (&fetch.source, receive), fetch.done, own_part, None)?;
            fail_point!(PartFetched);
            fetch.done += own_part;
            *budget = budget.saturating_sub(own_part);
            return Ok(());
        };
        self.tickets += 1;
        let ticket = self.tickets;
        help.publish(ticket, &job);
        fail_point!(HelpAsked);
        let mut window = delegated + own_part;
        fetch.has_tail = false;
        if window == left {
            // This process copies the last bytes, because a program that polls the last byte expects that the
            // completion is reported soon after. It copies them later if they are not in one segment with the bytes
            // before them.
            window -= TAIL_BYTES;
            fetch.has_tail = fetch.source.slice(fetch.done + window - 1, TAIL_BYTES + 1).count() == 1;
        }
        let part = u64::from(job.length);
        let tail = fetch.has_tail.then_some(&fetch.tail);
        let copied = copy_range(context, &self.link, (&fetch.source, receive), fetch.done + part, window - part, tail);
        fail_point!(PartFetched);
        if let Err(error) = copied {
            self.withdraw_job(ticket);
            return Err(error);
        }
        *budget = budget.saturating_sub(window - part);
        if help.withdraw(ticket) {
            fetch.step = FetchStep::Helped { ticket, length: window };
            return Ok(());
        }
        copy_range(context, &self.link, (&fetch.source, receive), fetch.done, part, None)?;
        *budget = budget.saturating_sub(part);
        fetch.complete(context, receive, window).map_err(|_| CopyError::LocalMemory)
    }

    /// Handles a failed copy. If the kernel denies it, requests the rest through the staging buffer. Otherwise gives up
    /// the offer, and sends a negative response if the sender's memory is not accessible.
    #[cold]
    fn copy_failed(&mut self, error: CopyError) -> Result<(), ConnectionFault> {
        match error {
            CopyError::Denied => {
                self.link.publish_can_copy(false);
                return self.request_staging();
            }
            CopyError::RemoteMemory => {
                self.send_response(Header::plain(MessageKind::SendNak, NAK_SOURCE), 0)?;
                self.link.wake_if_flagged(WAKE_ON_PROGRESS);
            }
            CopyError::LocalMemory | CopyError::PeerExited => {}
        }
        self.fetch.iter_mut().for_each(|fetch| fetch.step = FetchStep::Over);
        Ok(())
    }

    fn request_staging(&mut self) -> Result<(), ConnectionFault> {
        let slot = truncated_slot(self.requests.consumed() + 1);
        self.staged += 1;
        let Some(fetch) = &mut self.fetch else { return Ok(()) };
        fetch.step = FetchStep::Staged { count: self.staged };
        let offset =
            u32::try_from(fetch.done).map_err(|_| ConnectionFault::InvalidData("an offer of 4 GiB or more"))?;
        self.send_response(Header::plain(MessageKind::RequestStaging, slot), offset)?;
        self.link.wake_if_flagged(WAKE_ON_PROGRESS);
        Ok(())
    }

    /// Copies staged bytes to the receive. The outer error is a fault of the peer, the inner error a fault of local
    /// memory.
    fn copy_staged(
        &mut self,
        delivery: &mut Delivery<'_, '_>,
        count: u64,
    ) -> Result<Result<(), Status>, ConnectionFault> {
        let Delivery { context, queue, budget, .. } = delivery;
        let (Some(fetch), Some(receive), Some(peer_side)) = (&mut self.fetch, queue.front(), self.link.peer_side())
        else {
            return Err(ConnectionFault::InvalidData("a fragment for which no receive is posted"));
        };
        let left = fetch.source.total() - fetch.done;
        let length = left.min(STAGING_BYTES as u64) as usize;
        if self.link.staged() != encode_staged(count & 0xFFFF_FFFF, length) {
            return Err(ConnectionFault::InvalidData("a staging buffer with other bytes than requested"));
        }
        let staging = peer_side.rma.bytes(peer_side.geometry.staging_at(), length);
        let from = staging.ok_or(ConnectionFault::InvalidData("staged data outside the staging buffer"))?.cast_const();
        // SAFETY: the `length` bytes are in the peer's mapped RMA segment, as was checked above.
        let placed =
            unsafe { scatter(&*context.regions, context.recv_pd, &receive.segments, fetch.done, from, length) };
        if placed.is_ok() {
            fetch.done += length as u64;
            **budget = budget.saturating_sub(length as u64);
            if (length as u64) < left {
                self.request_staging()?;
            }
        }
        Ok(placed)
    }

    fn arrived(&mut self, delivery: &mut Delivery<'_, '_>) -> Result<bool, ConnectionFault> {
        let Some(fetch) = &mut self.fetch else { return Ok(false) };
        if self.link.is_recalled() {
            fetch.step = FetchStep::Over; // The sender may have reused the memory during the copy.
            return Ok(false);
        }
        let (bytes, solicited) = (fetch.source.total(), fetch.solicited);
        self.fetch = None;
        let completion = Completion { token: delivery.take_receive()?, bytes, solicited, ..Completion::default() };
        delivery.context.complete_recv(delivery.out, completion);
        Ok(true)
    }

    /// Whether another pass would make progress on the offer, or no offer is in progress.
    pub(super) fn can_continue_fetch(&self) -> bool {
        let Some(fetch) = &self.fetch else { return true };
        match fetch.step {
            FetchStep::Next => true,
            FetchStep::Helped { ticket, .. } => {
                self.link.copy_delegation().is_some_and(|help| help.outcome(ticket).is_some())
            }
            FetchStep::Staged { count } => self.link.staged() >> 32 == count & 0xFFFF_FFFF,
            FetchStep::Over => false,
        }
    }

    /// Called before a receive with an incomplete message completes: withdraws the claimed copy job, so that the sender
    /// writes no more bytes to the receive's memory.
    pub(super) fn withdraw_copy_job(&self) {
        if let Some(Fetch { step: FetchStep::Helped { ticket, .. }, .. }) = self.fetch {
            self.withdraw_job(ticket);
        }
    }

    /// Withdraws a copy job. If the sender has claimed it, waits for the result, with the time limit of `wait_while`.
    #[cold]
    fn withdraw_job(&self, ticket: u64) {
        let Some(help) = self.link.copy_delegation() else { return };
        if help.withdraw(ticket) {
            wait_while(|| help.outcome(ticket).is_none());
        }
    }
}

impl Fetch {
    /// Records that `length` more bytes are complete, and copies the buffered last bytes to the receive. Fails if their
    /// memory is not registered or not mapped.
    fn complete(&mut self, context: &QpContext, receive: &RecvRequest, length: u64) -> Result<(), Status> {
        self.done += length;
        if self.has_tail {
            let (regions, from) = (&*context.regions, self.tail.as_ptr().cast());
            // SAFETY: the buffer `tail` has the bytes that are copied.
            unsafe {
                scatter(regions, context.recv_pd, &receive.segments, self.done, from, size_of::<Tail>())?;
            }
            self.has_tail = false;
            self.done += TAIL_BYTES;
        }
        Ok(())
    }
}

/// Returns the copy job for a part of a message. The job has fewer than `length` bytes if the receive's segment ends
/// earlier.
fn copy_job(context: &QpContext, receive: &RecvRequest, slot: u64, offset: u64, length: u64) -> Option<CopyJob> {
    let Segment { key, address, length, .. } = receive.segments.slice(offset, length).next()?;
    Some(CopyJob { slot, offset, length: u32::try_from(length).ok()?, key, pd: context.recv_pd, address })
}

/// Copies `length` bytes of a message, starting at `offset`, from the sender's memory to the receive. If `tail` is
/// given, copies the bytes after them to it. These bytes are in one segment of the sender with the byte before them.
fn copy_range(
    context: &QpContext,
    link: &crate::qp::link::ConnectionMemory,
    (source, receive): (&Segments, &RecvRequest),
    mut offset: u64,
    length: u64,
    tail: Option<&Cell<Tail>>,
) -> Result<(), CopyError> {
    let copier = SingleCopy::by_receiver(&context.regions, link).ok_or(CopyError::PeerExited)?;
    let end = offset + length;
    while offset < end {
        let from = source.slice(offset, end - offset).next().ok_or(CopyError::RemoteMemory)?;
        let to = receive.segments.slice(offset, from.length).next().ok_or(CopyError::LocalMemory)?;
        let Segment { key, address, .. } = from;
        let (method, length) = match tail {
            Some(tail) if offset + to.length == end => (CopyMethod::KernelWithTail(tail), to.length + TAIL_BYTES),
            _ => (CopyMethod::Kernel, to.length),
        };
        let target = copier.side.target(Remote { key, address }, length, AccessRight::LocalRead);
        copier.copy(Direction::Read, (to, context.recv_pd), &target, method)?;
        offset += to.length;
    }
    Ok(())
}
