//! Posted receives. Receive n is for message n of the peer (UR-2), in whichever order the packets arrive.
//!
//! This module assigns receives to messages, and completes them in message order. With a shared receive queue, it takes
//! a receive from that queue when a message needs one, also in message order.

use super::types::{ConnCallbacks, NotAccepted, PostedData, SendValue};
use crate::proto::WINDOW;
use crate::proto::psn::Psn;
use crate::proto::queue::OrderedQueue;
use crate::proto::ranges::Ranges;

/// With an SRQ, maximum number of receives that are assigned to incomplete messages of one peer. Without the limit, one
/// peer could take all receives of the SRQ.
const MAX_SHARED_ASSIGNED: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct PostedReceive<R> {
    pub(super) driver_data: R,
    /// Capacity in bytes.
    pub(super) capacity: u64,
    /// The message, after one of its packets has arrived.
    message: Option<IncomingMessage>,
    received: Ranges,
    is_whole: bool,
    /// The highest PSN among the packets of the message that have arrived so far.
    last: Psn,
}

/// Length of a message in bytes, and its immediate data or window key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct IncomingMessage {
    pub(super) length: u32,
    pub(super) value: SendValue,
}

pub(super) struct ReceiveQueue<D: PostedData> {
    queue: OrderedQueue<PostedReceive<D::Recv>>,
    /// Number of the next message to which a receive is assigned.
    bound: u32,
    /// Number of the next message to complete.
    complete: u32,
    /// The credit limit that was last sent to the peer.
    reported: u32,
    shared: bool,
    /// With an SRQ, whether a message was not accepted for lack of a receive, which the next ack will report.
    pub(super) not_accepted: bool,
}

impl<D: PostedData> ReceiveQueue<D> {
    pub(super) fn new(capacity: u32, shared: bool) -> Self {
        let capacity = if shared { MAX_SHARED_ASSIGNED } else { capacity };
        ReceiveQueue {
            queue: OrderedQueue::new(capacity),
            bound: 0,
            complete: 0,
            reported: 0,
            shared,
            not_accepted: false,
        }
    }

    /// Starts message numbers at `number`, for tests of the wrap-around.
    #[cfg(test)]
    pub(super) fn count_from(&mut self, number: u32) {
        (self.bound, self.complete, self.reported) = (number, number, number);
    }

    pub(super) fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Queues a receive. Returns the driver's data in it, which the caller must write, or `None` if the queue is full.
    #[inline(always)]
    pub(super) fn push(&mut self, capacity: u64) -> Option<&mut D::Recv> {
        let receive = self.queue.push()?;
        receive.capacity = capacity; // `take_completed` has reset all other fields.
        Some(&mut receive.driver_data)
    }

    /// Returns the credit limit: there is a receive for each message whose number is below this value.
    pub(super) fn credits(&self, host: &impl ConnCallbacks<D>) -> u32 {
        if self.shared {
            let free = MAX_SHARED_ASSIGNED - self.queue.len();
            self.bound.wrapping_add(host.shared_left().min(free))
        } else {
            self.complete.wrapping_add(self.queue.len())
        }
    }

    /// Returns the credit limit for a packet to the peer.
    ///
    /// After a message was not accepted, the next limit excludes the message, even if there is a receive again. The
    /// decrease makes the peer withdraw and resend the message. Otherwise the peer would wait for an ack of this
    /// message.
    pub(super) fn report(&mut self, host: &impl ConnCallbacks<D>) -> u32 {
        let not_accepted = std::mem::take(&mut self.not_accepted);
        self.reported = if not_accepted { self.bound } else { self.credits(host) };
        self.reported
    }

    /// Handles an RNR probe of the peer. If the shared queue is empty, requests a callback for the next receives, so
    /// that an ack can advertise them.
    pub(super) fn on_rnr_probe(&mut self, host: &mut impl ConnCallbacks<D>) {
        if self.shared && host.shared_left() == 0 {
            host.await_shared();
        }
    }

    /// Whether an ack should advertise the current credit limit, because the peer knows at most half of the available
    /// receives.
    pub(super) fn is_credit_due(&self, host: &impl ConnCallbacks<D>) -> bool {
        let (reported, available) =
            (self.reported.wrapping_sub(self.bound) as i32, self.credits(host).wrapping_sub(self.bound));
        available > 0 && reported.max(0).unsigned_abs() <= available / 2
    }

    /// Whether an ack should advertise the next receive that is posted to the connection: the peer will then know at
    /// most half of the available receives, or the connection uses a shared queue.
    #[inline(always)]
    pub(super) fn is_next_due(&self) -> bool {
        let available = self.complete.wrapping_add(self.queue.len() + 1).wrapping_sub(self.bound);
        let reported = self.reported.wrapping_sub(self.bound) as i32;
        self.shared || reported.max(0).unsigned_abs() <= available / 2
    }

    /// Finds the slot of a message's receive. Assigns receives to the message and to all messages before it, if
    /// necessary. Returns `Ok(None)` if the receive is already complete: the packet is a spurious retransmission.
    pub(super) fn find(&mut self, number: u32, host: &mut impl ConnCallbacks<D>) -> Result<Option<u32>, NotAccepted> {
        if (number.wrapping_sub(self.complete) as i32) < 0 {
            return Ok(None);
        }
        let beyond = number.wrapping_sub(self.bound) as i32;
        if beyond >= 0 && !self.bind(beyond.unsigned_abs() + 1, host) {
            return Err(NotAccepted::Later);
        }
        self.queue.nth_active(number.wrapping_sub(self.complete)).map(Some).ok_or(NotAccepted::Later)
    }

    /// Returns the receive for this message, if the message is the next one, all earlier messages are complete, and
    /// there is no shared queue.
    pub(super) fn waiting(&self, number: u32) -> Option<&PostedReceive<D::Recv>> {
        let is_next = number == self.bound && number == self.complete && !self.shared;
        self.queue.get(self.queue.next().filter(|_| is_next)?)
    }

    /// Removes the receive that `waiting` has returned, because its message is complete.
    pub(super) fn complete_waiting(&mut self) -> Option<&mut D::Recv> {
        self.bound = self.bound.wrapping_add(1);
        self.complete = self.complete.wrapping_add(1);
        self.queue.pop().map(|receive| &mut receive.driver_data)
    }

    /// Assigns receives to the next `count` messages. Returns false if there are too few receives, or if a connection
    /// with a shared queue would exceed [`MAX_SHARED_ASSIGNED`]. Such a connection then waits for receives of this
    /// queue.
    fn bind(&mut self, count: u32, host: &mut impl ConnCallbacks<D>) -> bool {
        if self.shared {
            let fits = count <= MAX_SHARED_ASSIGNED - self.queue.len() && count <= host.shared_left();
            let is_bound = fits && (0..count).all(|_| self.bind_shared(host));
            if !is_bound {
                self.not_accepted = true;
                host.await_shared();
            }
            return is_bound;
        }
        if count > self.queue.waiting() {
            return false;
        }
        for _ in 0..count {
            self.queue.start();
            self.bound = self.bound.wrapping_add(1);
        }
        true
    }

    fn bind_shared(&mut self, host: &mut impl ConnCallbacks<D>) -> bool {
        let Some((driver_data, capacity)) = host.take_shared() else { return false };
        let Some(slot) = self.push(capacity) else { return false };
        *slot = driver_data;
        self.queue.start();
        self.bound = self.bound.wrapping_add(1);
        true
    }

    pub(super) fn get(&self, slot: u32) -> Option<&PostedReceive<D::Recv>> {
        self.queue.get(slot)
    }

    /// Whether this is the oldest incomplete receive.
    pub(super) fn is_first(&self, slot: u32) -> bool {
        self.queue.first() == Some(slot)
    }

    /// Records that `length` bytes of the message were copied. Returns false if there is no space to record the range.
    /// The packet must then arrive again.
    pub(super) fn record_received(
        &mut self,
        slot: u32,
        psn: Psn,
        message: IncomingMessage,
        offset: u32,
        length: u32,
    ) -> bool {
        let Some(receive) = self.queue.get_mut(slot) else { return false };
        if length > 0 && !receive.received.add(offset, offset + length) {
            return false;
        }
        if receive.message.is_none() || receive.last.is_before(psn) {
            receive.last = psn;
        }
        receive.message = Some(message);
        receive.is_whole = receive.received.is_whole(message.length) || message.length == 0;
        true
    }

    /// Removes the oldest receive if it is complete: all its bytes have arrived, and all packets before its last
    /// packet. `next` is the first PSN that has not arrived.
    pub(super) fn take_completed(&mut self, next: Psn) -> Option<(&mut D::Recv, IncomingMessage)> {
        let receive = self.queue.get(self.queue.first()?)?;
        if !receive.is_whole || !receive.last.is_before(next) {
            return None;
        }
        self.complete = self.complete.wrapping_add(1);
        let receive = self.queue.pop()?;
        let message = receive.message.take();
        receive.received.clear();
        receive.is_whole = false;
        message.map(|message| (&mut receive.driver_data, message))
    }

    /// Removes the oldest receive, whether complete or not, to flush it.
    pub(super) fn pop(&mut self) -> Option<&mut D::Recv> {
        self.queue.pop().map(|receive| &mut receive.driver_data)
    }
}

impl<R> PostedReceive<R> {
    /// Whether the packet contradicts an earlier packet of the same message.
    pub(super) fn contradicts(&self, message: IncomingMessage) -> bool {
        self.message.is_some_and(|known| known != message)
    }
}

// Message numbers wrap, so two numbers are comparable only if they are less than 2^31 apart. The number of receives
// that are assigned to incomplete messages stays far below this.
const _: () = assert!(MAX_SHARED_ASSIGNED <= WINDOW);
