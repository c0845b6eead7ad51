//! Posted receives: receive n of the connection is for send n (UR-2), whichever of the send's packets arrives first.
//!
//! Binds messages to receives, and reports completed receives in order. Receives are taken from a shared receive queue
//! in the order of the messages, when a message needs one.

use super::types::{Driver, Host, SendValue};
use crate::proto::WINDOW;
use crate::proto::psn::Psn;
use crate::proto::queue::Queue;
use crate::proto::ranges::Ranges;

/// With an SRQ: maximum distance of a message from the oldest incomplete message. It limits the number of receives that
/// one peer can take.
const SHARED: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Receive<R> {
    pub(super) driver_data: R,
    /// Capacity in bytes.
    pub(super) capacity: u64,
    /// Length and value of the message, after one of its packets has arrived.
    message: Option<Incoming>,
    received: Ranges,
    is_whole: bool,
    /// The highest PSN of the message so far.
    last: Psn,
}

/// A message: its length in bytes, and its immediate data or window key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Incoming {
    pub(super) length: u32,
    pub(super) value: SendValue,
}

/// Result of a lookup of the receive for a send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReceiveLookup {
    Slot(u32),
    /// The receive is complete, because the packet was declared lost although it had arrived.
    Complete,
    None,
}

pub(super) struct Receives<D: Driver> {
    queue: Queue<Receive<D::Recv>>,
    /// Number of the next message that gets a receive, and number of the next message that completes.
    bound: u32,
    complete: u32,
    /// The last credit limit that was sent to the peer.
    reported: u32,
    shared: bool,
    /// Whether a send was not accepted for lack of a receive, and the peer was not notified yet.
    not_accepted: bool,
}

impl<D: Driver> Receives<D> {
    pub(super) fn new(capacity: u32, shared: bool) -> Self {
        let capacity = if shared { SHARED } else { capacity };
        Receives { queue: Queue::new(capacity), bound: 0, complete: 0, reported: 0, shared, not_accepted: false }
    }

    /// Starts message numbers at `number`. Only tests of the wrap-around call this.
    #[cfg(test)]
    pub(super) fn count_from(&mut self, number: u32) {
        (self.bound, self.complete, self.reported) = (number, number, number);
    }

    pub(super) fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Queues a receive. Returns the driver's part of it, which the caller must fill; `None` if the queue is full.
    #[inline(always)]
    pub(super) fn push(&mut self, capacity: u64) -> Option<&mut D::Recv> {
        let (_, receive) = self.queue.push()?;
        receive.capacity = capacity; // All other fields have the values of a new receive (see `completed`).
        Some(&mut receive.driver_data)
    }

    /// Returns the credit limit: each send whose number is below it has a receive.
    pub(super) fn credits(&self, host: &impl Host<D>) -> u32 {
        if self.shared {
            let free = SHARED - self.queue.len();
            self.bound.wrapping_add(host.shared_left().min(free))
        } else {
            self.complete.wrapping_add(self.queue.len())
        }
    }

    /// Returns the credit limit to send now. If a send was not accepted, the first limit excludes this send, even if
    /// there is a receive again. Otherwise the sender would wait for an ack.
    pub(super) fn report(&mut self, host: &impl Host<D>) -> u32 {
        let not_accepted = std::mem::take(&mut self.not_accepted);
        self.reported = if not_accepted { self.bound } else { self.credits(host) };
        self.reported
    }

    /// Whether a send was not accepted. The next ack reports it.
    pub(super) fn not_accepted(&self) -> bool {
        self.not_accepted
    }

    /// Handles an RNR probe of the peer: the peer is notified when there is a receive.
    pub(super) fn on_rnr_probe(&mut self, host: &mut impl Host<D>) {
        if self.shared && host.shared_left() == 0 {
            host.await_shared();
        }
    }

    /// Whether the peer may be waiting for the current credit limit.
    pub(super) fn is_credit_due(&self, host: &impl Host<D>) -> bool {
        let (reported, available) =
            (self.reported.wrapping_sub(self.bound) as i32, self.credits(host).wrapping_sub(self.bound));
        available > 0 && reported.max(0).unsigned_abs() <= available / 2
    }

    /// Whether the peer may be waiting for the next receive that is posted to the connection's own queue.
    #[inline(always)]
    pub(super) fn is_next_due(&self) -> bool {
        let available = self.complete.wrapping_add(self.queue.len() + 1).wrapping_sub(self.bound);
        let reported = self.reported.wrapping_sub(self.bound) as i32;
        self.shared || reported.max(0).unsigned_abs() <= available / 2
    }

    /// Finds the receive of a send.
    pub(super) fn find(&mut self, number: u32, host: &mut impl Host<D>) -> ReceiveLookup {
        if (number.wrapping_sub(self.complete) as i32) < 0 {
            return ReceiveLookup::Complete;
        }
        let beyond = number.wrapping_sub(self.bound) as i32;
        if beyond >= 0 && !self.bind(beyond.unsigned_abs() + 1, host) {
            return ReceiveLookup::None;
        }
        self.queue.find(u64::from(number)).map_or(ReceiveLookup::None, ReceiveLookup::Slot)
    }

    /// Returns the receive for this send, if it is the next receive of the QP's own queue and no earlier receive is in
    /// progress.
    pub(super) fn waiting(&self, number: u32) -> Option<&Receive<D::Recv>> {
        let is_next = number == self.bound && number == self.complete && !self.shared;
        self.queue.get(self.queue.next().filter(|_| is_next)?)
    }

    /// Completes the receive that `waiting` returned.
    pub(super) fn complete_waiting(&mut self) -> Option<&mut D::Recv> {
        self.bound = self.bound.wrapping_add(1);
        self.complete = self.complete.wrapping_add(1);
        self.queue.pop_waiting().map(|receive| &mut receive.driver_data)
    }

    /// Gives receives to the next `count` messages. Returns false and does nothing if there are not enough receives.
    fn bind(&mut self, count: u32, host: &mut impl Host<D>) -> bool {
        if self.shared {
            let fits = count <= SHARED - self.queue.len() && count <= host.shared_left();
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
            self.queue.start(u64::from(self.bound));
            self.bound = self.bound.wrapping_add(1);
        }
        true
    }

    fn bind_shared(&mut self, host: &mut impl Host<D>) -> bool {
        let Some((driver_data, capacity)) = host.take_shared() else { return false };
        let Some(slot) = self.push(capacity) else { return false };
        *slot = driver_data;
        self.queue.start(u64::from(self.bound));
        self.bound = self.bound.wrapping_add(1);
        true
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Receive<D::Recv>> {
        self.queue.get(slot)
    }

    /// Whether this is the oldest incomplete receive.
    pub(super) fn is_first(&self, slot: u32) -> bool {
        self.queue.first() == Some(slot)
    }

    /// Records that a piece of the message was copied. Returns false if the piece cannot be recorded.
    pub(super) fn record_received(&mut self, slot: u32, psn: Psn, message: Incoming, offset: u32, length: u32) -> bool {
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

    /// Returns the oldest receive, if it is complete: all bytes have arrived, and no packet before its last packet is
    /// missing.
    pub(super) fn completed(&mut self, next: Psn) -> Option<(&mut D::Recv, Incoming)> {
        let slot = self.queue.first()?;
        let receive = self.queue.get(slot)?;
        if !receive.is_whole || !receive.last.is_before(next) {
            return None;
        }
        self.complete = self.complete.wrapping_add(1);
        let receive = self.queue.remove(slot)?;
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

impl<R> Receive<R> {
    /// Whether the packet contradicts an earlier packet of the same message.
    pub(super) fn contradicts(&self, message: Incoming) -> bool {
        self.message.is_some_and(|known| known != message)
    }
}

// The bound receives cover a range that is far smaller than half of all message numbers.
const _: () = assert!(SHARED <= WINDOW);
