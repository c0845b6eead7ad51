//! Delivers arriving sends: finds a receive for each message, copies the payload to it, and adds its completion.

use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Status, Token};
use dapl::runtime::slot_queue::SlotQueue;
use dapl_software::memory::scatter_gather::{ScatterBatch, scatter};

use super::{Delivery, RecvRequest, RxRings, exceeds_hard_watermark, extensions};
use crate::cq::CompletionWriter;
use crate::memory::regions::Regions;
use crate::proto::message::{Header, INLINE, LINE, MessageKind};
use crate::qp::context::{ConnectionFault, NAK_ACCESS, NAK_RESPONDER, QpContext};
use crate::qp::ring::{SlotFields, SlotRun};

/// Moves a receive from the shared receive queue to `queue`. Returns false if there is no shared receive queue, or if
/// it is empty; in the latter case the connection is added to its list of waiters.
fn move_srq_receive(context: &QpContext, queue: &mut SlotQueue<RecvRequest>) -> bool {
    let Some(pool) = &context.pool else { return false };
    let Some(buffer) = pool.srq.take_or_wait(&pool.waiter) else { return false };
    *queue.push() = RecvRequest::from_srq(pool, buffer);
    true
}

impl RxRings {
    /// Delivers consecutive messages that fit in their slots, to receives of one segment in recently used memory. This
    /// is the common case of `deliver`, with fewer steps.
    #[inline(always)]
    pub(super) fn deliver_inline(
        &mut self,
        context: &QpContext,
        batch: &mut ScatterBatch<'_, Regions>,
        queue: &mut SlotQueue<RecvRequest>,
        out: &mut CompletionWriter<'_>,
        end: u64,
    ) {
        let Some(cq) = context.recv_cq.as_ref().filter(|_| self.message.is_between()) else { return };
        let mut entries = out.free_entries(cq);
        let mut left = entries.max_completions().min((end - self.requests.consumed()) as usize);
        let mut ack = None;
        loop {
            let (run, receives) = (self.requests.next_run(), queue.front_run());
            let most = run.slots().len().min(receives.len());
            let mut consumed = 0;
            for (slot, receive) in run.slots().iter().zip(receives).take(left) {
                let Some((payload, length, is_solicited)) = run.inline_send(slot) else { break };
                // SAFETY: the payload of the slot is in the peer's mapped area, and `inline_send` has checked that
                // `length` is at most the length of the payload.
                if !unsafe { batch.scatter_recent(&receive.segments, payload, length) } {
                    batch.forget_time(); // The general path takes longer, so the stored time would be stale.
                    break;
                }
                fail_point!(FragmentCopied);
                entries.put(&receive.token, length, is_solicited);
                consumed += 1;
                if consumed > 1 {
                    SlotRun::prefetch_ahead(slot); // Messages usually arrive in sequence.
                }
            }
            if consumed == 0 {
                break;
            }
            ack = Some(self.requests.advance_run(consumed));
            queue.drop_run(consumed);
            left -= consumed;
            // If all receives or slots of the run were used, the next run may contain more.
            if consumed < most {
                break;
            }
        }
        let used = entries.used();
        out.add_filled(used);
        if let Some(ack) = ack {
            context.watch.set_carried_ack(ack);
            self.waits_for_receive = false;
        }
    }

    /// Delivers a message that is one fragment in the message buffer, to a receive of one segment. This is the common
    /// case of `deliver`, with fewer steps. Returns false if `deliver` must handle the message, which is then still in
    /// the ring, with its receive in the queue.
    pub(super) fn deliver_fragment(
        &mut self,
        batch: &mut ScatterBatch<'_, Regions>,
        delivery: &mut Delivery<'_, '_>,
    ) -> bool {
        let Delivery { context, queue, header, out, .. } = delivery;
        let (Some(cq), Some(receive)) = (&context.recv_cq, queue.front()) else { return false };
        let header = *header;
        if header.inline || !header.first || !header.last {
            return false;
        }
        let Ok(part) = self.message.check_fragment(&header, || self.requests.payload_words()) else { return false };
        let fields = self.requests.fields();
        let Ok(from) = self.fragment_address(header, &fields) else { return false };
        // SAFETY: `fragment_address` has checked that this number of bytes is in the peer's mapped area.
        if !unsafe { batch.scatter(&receive.segments, from, part.size) } {
            return false;
        }
        fail_point!(FragmentCopied);
        context.watch.set_carried_ack(fields.ack);
        self.message.advance(&header, part);
        let mut entries = out.free_entries(cq);
        entries.put(&receive.token, part.size, header.solicited);
        let used = entries.used();
        out.add_filled(used);
        queue.drop_front();
        self.waits_for_receive = false;
        true
    }

    /// Delivers a fragment of a send. Returns false if the message waits for a receive, or if a send with invalidate
    /// waits for copies that use its window.
    pub(super) fn deliver(&mut self, delivery: &mut Delivery<'_, '_>) -> Result<bool, ConnectionFault> {
        let (context, header) = (delivery.context, delivery.header);
        let fields = self.requests.fields();
        context.watch.set_carried_ack(fields.ack);
        let part = self
            .message
            .check_fragment(&header, || self.requests.payload_words())
            .map_err(ConnectionFault::InvalidData)?;
        if header.first && !self.find_receive(delivery, part.size)? {
            return Ok(false);
        }
        if header.kind == MessageKind::SendInvalidate && header.last {
            match context.windows.invalidate(self.value(header, &fields), context.pd, &context.domain) {
                Ok(true) => {}
                Ok(false) => return Ok(false), // Copies with the key are in progress, so a later pass tries again.
                Err(_) => return Err(self.fail_receive_by(delivery, Status::LocalProtection, NAK_ACCESS)),
            }
        }
        let placed = self.copy_to_receive(delivery, &fields, part.offset);
        fail_point!(FragmentCopied);
        if let Err(status) = placed? {
            return Err(self.fail_receive(delivery, status));
        }
        self.message.advance(&header, part);
        if header.last {
            let token = delivery.take_receive()?;
            let (arrival, value) = (extensions::arrival(header.kind), self.value(header, &fields));
            let (status, solicited, bytes) = (Status::Success, header.solicited, part.size);
            context.complete_recv(delivery.out, Completion { token, status, bytes, solicited, arrival, value });
        }
        Ok(true)
    }

    /// Finds a receive for a new message. Returns false if the message waits for a receive. Errors: the message is
    /// longer than its receive, or the number of receives exceeds the hard watermark.
    #[inline]
    pub(super) fn find_receive(
        &mut self,
        delivery: &mut Delivery<'_, '_>,
        total: u64,
    ) -> Result<bool, ConnectionFault> {
        let Delivery { context, queue, marks, .. } = delivery;
        if queue.is_empty() {
            if self.waits_for_receive {
                return Ok(false);
            }
            if !move_srq_receive(context, queue) {
                self.waits_for_receive = true;
                // A load and a store are enough, because the lock of this direction excludes other writers.
                let count = context.not_ready.load(Ordering::Relaxed) + 1;
                context.not_ready.store(count, Ordering::Relaxed);
                return Ok(false);
            }
            if exceeds_hard_watermark(marks, context, queue.len()) {
                return Err(ConnectionFault::Watermark);
            }
        }
        let Some(receive) = queue.front() else { return Ok(false) };
        self.waits_for_receive = false;
        if total > receive.segments.total() {
            return Err(self.fail_receive(delivery, Status::LocalLength));
        }
        Ok(true)
    }

    /// Copies one fragment to its receive. The outer error is a fault of the peer, the inner error a fault of local
    /// memory.
    fn copy_to_receive(
        &self,
        delivery: &Delivery<'_, '_>,
        fields: &SlotFields,
        offset: u64,
    ) -> Result<Result<(), Status>, ConnectionFault> {
        let (context, header) = (delivery.context, delivery.header);
        let length = header.length as usize;
        let Some(receive) = delivery.queue.front() else {
            return Err(ConnectionFault::InvalidData("a message for which no receive is posted"));
        };
        let from = if header.inline {
            if length > INLINE {
                return Err(ConnectionFault::InvalidData("an inline message longer than a slot"));
            }
            self.requests.payload()
        } else {
            self.fragment_address(header, fields)?
        };
        // SAFETY: the `length` bytes are in the slot or in the message buffer of the peer's mapped area, as was checked
        // above.
        Ok(unsafe { scatter(&*context.regions, context.recv_pd, &receive.segments, offset, from, length) })
    }

    /// Returns the address of a fragment in the peer's message buffer.
    fn fragment_address(&self, header: Header, fields: &SlotFields) -> Result<*const u8, ConnectionFault> {
        let peer_side =
            self.link.peer_side().ok_or(ConnectionFault::InvalidData("data before the set-up was complete"))?;
        let (start, size) = (peer_side.geometry.messages_at(), peer_side.geometry.messages as usize);
        let (at, length) = (fields.aux as usize * LINE, header.length as usize);
        if at > size || length > size - at {
            return Err(ConnectionFault::InvalidData("a message outside its message buffer"));
        }
        peer_side
            .area
            .bytes(start + at, length)
            .map(<*mut u8>::cast_const)
            .ok_or(ConnectionFault::InvalidData("a message outside the shared area"))
    }

    /// Fails the current receive with `status`, because the message is too long or the receive's memory is not usable.
    /// Sends a negative response, so that the peer's send fails too. Returns the fault that ends the connection.
    #[cold]
    pub(super) fn fail_receive(&mut self, delivery: &mut Delivery<'_, '_>, status: Status) -> ConnectionFault {
        self.fail_receive_by(delivery, status, NAK_RESPONDER)
    }

    /// Fails the current receive as `fail_receive` does, with the status `nak` for the sender.
    #[cold]
    fn fail_receive_by(&mut self, delivery: &mut Delivery<'_, '_>, status: Status, nak: u32) -> ConnectionFault {
        let Delivery { context, queue, out, .. } = delivery;
        self.withdraw_copy_job();
        if let Some(receive) = queue.pop_front() {
            context.complete_recv(out, Completion { token: receive.token, status, ..Completion::default() });
        }
        let _ = self.send_response(Header::plain(MessageKind::SendNak, nak), 0);
        context.rx_consumed.store(self.requests.consumed(), Ordering::Release);
        self.link.publish_consumed(self.requests.consumed());
        ConnectionFault::Receive
    }
}

impl Delivery<'_, '_> {
    /// Removes the receive of a complete message from the queue. Returns its token.
    pub(super) fn take_receive(&mut self) -> Result<Token, ConnectionFault> {
        let receive = self.queue.front();
        let token = receive.ok_or(ConnectionFault::InvalidData("a message for which no receive is posted"))?.token;
        self.queue.drop_front();
        Ok(token)
    }
}
