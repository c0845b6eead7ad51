//! Posts in the common case, with as few instructions as possible: a short send that is sent at once, a request that waits
//! behind others, a receive of the connection's own queue.
//!
//! Each function checks its conditions first. If one is not met, nothing has changed, and the general way does the post.

use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Conn;
use super::requests::{PayloadOwner, SentPayload};
use super::types::{Driver, Host, Post};
use crate::proto::Nanos;
use crate::proto::psn::Psn;
use crate::proto::setup::Terms;
use crate::proto::wire::{Carried, FLAG_ACK_NOW, FLAG_LAST, FRAGMENT, Head, Kind, Message, Op};

/// The header of a message that is one packet.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FragmentHeader {
    head: Head,
    carried: Carried,
    message: Message,
}

const _: () = assert!(size_of::<FragmentHeader>() == FRAGMENT);

/// A permit for short sends, one after the other. [`Conn::permit_short`] checks all conditions once for several sends. Every call
/// that may change one of them withdraws the permit.
#[derive(Debug, Default)]
pub(super) struct ShortPermit {
    /// Number of sends that are left.
    left: u32,
    /// Their maximum length in bytes.
    max_length: u32,
    /// Bytes since the last request for an ack after which the next packet requests one.
    ask_at: u64,
    /// None of them was sent yet.
    is_first: bool,
    /// Nothing was in flight before the first one.
    was_empty: bool,
    /// Congestion control and pacer count each packet, and every packet needs a permit of its own.
    is_paced: bool,
}

/// The heads of short packets to this peer, without and with a request for an ack.
pub(super) fn short_heads(terms: &Terms) -> [Head; 2] {
    [FLAG_LAST, FLAG_LAST | FLAG_ACK_NOW]
        .map(|flags| Head::new(Kind::Fragment, flags, terms.peer_conn, terms.peer_token))
}

/// A short send that was posted, for its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortSend {
    psn: Psn,
    /// Number of the message.
    id: u32,
    length: u32,
    /// Whether it requests an ack.
    asks: bool,
}

/// What remains to be done after a short send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ShortSendRest {
    /// The deadlines are as before.
    Nothing,
    /// There is a probe timeout at this time or later; all other deadlines are as before.
    Timeout(Nanos),
    /// The connection has to be asked for its outlook and its events.
    Anything,
}

impl<D: Driver> Conn<D> {
    /// Whether nothing is to be sent but new requests, and the connection is open.
    #[inline(always)]
    fn is_calm(&self) -> bool {
        self.ending.is_open()
            && self.flight.has_no_loss()
            && self.sending_pieces.is_none()
            && self.notes.is_empty()
            && self.confirming.is_none()
            && self.peer_reads.is_empty()
    }

    /// Whether a plain send of `length` bytes may be sent now, as one packet of the command channel, before anything else.
    #[inline(always)]
    fn may_send_short(&self, now: Nanos, length: u32) -> bool {
        let bytes = self.short_size(length);
        // The ack of a deferred message may change what is sent first only after it was noted (`answers_first`).
        let is_settled = self.deferred.as_ref().is_none_or(|deferred| !deferred.is_noted());
        self.is_calm()
            && is_settled
            && self.received.is_gapless()
            && self.requests.may_start_send(self.credits.there)
            && self.credits.deadline().is_none()
            && length <= self.config.tiny
            && self.commands < self.config.command_depth
            && self.has_window()
            && bytes <= self.send_path.path.size() as u64
            && self.send_path.has_room(now, bytes, self.flight.bytes())
    }

    /// Size of its datagram in bytes.
    #[inline(always)]
    fn short_size(&self, length: u32) -> u64 {
        (FRAGMENT + self.send_path.extra) as u64 + u64::from(length)
    }

    /// Whether there is a permit for a short send, so that no request waits.
    #[inline(always)]
    pub(crate) fn has_short_permit(&self) -> bool {
        self.short_permit.left > 0
    }

    /// Grants a permit for plain sends, if one of `length` bytes may be sent now, before anything else. At most `most` requests
    /// may be outstanding. Returns false and changes nothing otherwise.
    #[inline(always)]
    pub(crate) fn permit_short(&mut self, now: Nanos, length: u32, most: u32) -> bool {
        let outstanding = self.requests.queue.len();
        if outstanding >= most || !self.may_send_short(now, length) {
            return false;
        }
        let (window, in_flight) = (self.send_path.window(), self.flight.bytes());
        let left = (most - outstanding)
            .min(self.credits.there.wrapping_sub(self.requests.numbers.sends))
            .min(self.config.command_depth - self.commands)
            .min(self.config.window - self.commands - self.data)
            .min(self.flight.free_slots());
        let is_paced = self.send_path.is_paced();
        // An ack that is processed after the first send may change all conditions.
        let is_for_one = is_paced || self.deferred.is_some();
        let is_for_all = !is_for_one && in_flight + u64::from(left) * self.short_size(length) <= window;
        self.short_permit = ShortPermit {
            left: if is_for_all { left } else { 1 },
            max_length: length,
            ask_at: window / 4,
            is_first: true,
            was_empty: self.flight.is_empty(),
            is_paced,
        };
        self.now = now;
        self.note_deferred(); // the packet acks it
        true
    }

    /// Withdraws the permit, because a condition for it may have changed.
    #[inline(always)]
    pub(crate) fn withdraw_permit(&mut self) {
        self.short_permit.left = 0;
    }

    /// Whether there is a permit for a short send of this length.
    #[inline(always)]
    pub(crate) fn permits_short(&self, length: u64) -> bool {
        self.short_permit.left > 0 && length <= u64::from(self.short_permit.max_length)
    }

    /// Posts a plain send that is permitted, and counts its packet as sent. Returns the driver's part of it, to be filled; `None` if
    /// the queue is full.
    #[inline(always)]
    pub(crate) fn send_short(&mut self, now: Nanos, length: u32) -> Option<(ShortSend, &mut D::Request)> {
        debug_assert!(self.short_permit.is_first || self.may_send_short(now, length), "{:?}", self.short_permit);
        let psn = self.flight.next_psn();
        let (slot, id, own) = self.requests.push_sent(length, psn)?;
        self.now = now;
        self.short_permit.left -= 1;
        let bytes = (FRAGMENT + self.send_path.extra) as u64 + u64::from(length);
        let sent =
            SentPayload { what: PayloadOwner::Request, command: true, slot, offset: 0, length, in_pieces: false };
        self.flight.sent(now, bytes, sent);
        self.favours_answers = true;
        self.commands += 1;
        let asks = self.send_path.asks_at(bytes, self.short_permit.ask_at);
        if self.short_permit.is_paced {
            self.send_path.sent(now, bytes, &self.flight);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(length);
        Some((ShortSend { psn, id, length, asks }, own))
    }

    /// The header of its packet.
    #[inline(always)]
    pub(crate) fn short_header(&mut self, send: ShortSend, host: &impl Host<D>) -> FragmentHeader {
        let ShortSend { psn, id, length, asks } = send;
        let message = Message { op: Op::Send as u8, id: id.into(), length: length.into(), ..Message::default() };
        FragmentHeader { head: self.short_heads[usize::from(asks)], carried: self.carried(psn, host), message }
    }

    /// Does what was deferred, after the packet of a short send has left.
    #[inline(always)]
    pub(crate) fn after_short_send(&mut self, host: &mut impl Host<D>) -> ShortSendRest {
        if !std::mem::take(&mut self.short_permit.is_first) {
            return ShortSendRest::Nothing; // the probe timeout counts from the oldest packet in flight
        }
        self.after_first_send(host)
    }

    #[inline(never)]
    fn after_first_send(&mut self, host: &mut impl Host<D>) -> ShortSendRest {
        if self.deferred.is_some() {
            // Its deadline is planned for the next pass, which looks at all others.
            self.settle(host);
            return if self.is_calm() && !self.has_requests() {
                ShortSendRest::Nothing
            } else {
                ShortSendRest::Anything
            };
        }
        if !self.short_permit.was_empty {
            return ShortSendRest::Nothing;
        }
        ShortSendRest::Timeout(self.now.saturating_add(self.config.min_timeout))
    }

    /// Posts a request behind others that wait, whose turn or deadline is planned. Returns false if none waits.
    #[inline(always)]
    pub(crate) fn post_behind(&mut self, post: Post, fill: impl FnOnce(&mut D::Request)) -> bool {
        self.ending.is_open() && self.has_requests() && self.requests.push(post).map(fill).is_some()
    }

    /// Posts a receive of `capacity` bytes, if the connection has fewer than `most`. Returns `None` and changes nothing otherwise;
    /// else whether an ack is due now to announce it.
    #[inline(always)]
    pub(crate) fn post_recv_quickly(
        &mut self,
        capacity: u64,
        most: u32,
        fill: impl FnOnce(&mut D::Recv),
    ) -> Option<bool> {
        if self.receives.len() >= most || self.ending.is_closed() {
            return None;
        }
        let is_due = !self.carries_credits() && self.receives.is_next_due();
        self.receives.push(capacity).map(fill)?;
        if is_due {
            self.acks.at_once();
        }
        Some(is_due)
    }

    /// The PSN and ack fields of a packet with data.
    #[inline(always)]
    pub(super) fn carried(&mut self, psn: Psn, host: &impl Host<D>) -> Carried {
        if self.acks.owed() {
            self.counters.acks_carried += 1;
        }
        let delay = self.acks.carried(self.now);
        Carried { psn: psn.0.into(), ack: self.said(delay, host) }
    }
}
