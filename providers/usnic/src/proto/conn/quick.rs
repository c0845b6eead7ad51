//! Posts in common cases, with as few instructions as possible: a short send that is sent at once, a request that waits
//! behind other requests, and a receive of the connection's own queue.
//!
//! Each function checks its conditions first. If a condition is false, the function changes nothing, and the caller
//! uses the general post function.

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

/// A permit to send several short sends. [`Conn::permit_short`] checks all conditions once for these sends. Every call
/// that may change a condition withdraws the permit.
#[derive(Debug, Default)]
pub(super) struct ShortPermit {
    /// Number of sends that are still permitted.
    left: u32,
    /// Maximum length of each send in bytes.
    max_length: u32,
    /// Number of bytes since the last request for an ack from which the next packet requests an ack.
    request_ack_at: u64,
    /// Whether no send of this permit was posted yet.
    is_first: bool,
    /// Whether no packet was in flight when the permit was granted.
    was_empty: bool,
    /// Whether congestion control or the pacer counts each packet, so that each packet needs its own permit.
    is_paced: bool,
}

/// Returns the heads of short packets to this peer, without and with a request for an ack.
pub(super) fn short_heads(terms: &Terms) -> [Head; 2] {
    [FLAG_LAST, FLAG_LAST | FLAG_ACK_NOW]
        .map(|flags| Head::new(Kind::Fragment, flags, terms.peer_conn, terms.peer_token))
}

/// A posted short send, from which its header is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortSend {
    psn: Psn,
    /// Number of the message.
    id: u32,
    length: u32,
    /// Whether the packet requests an ack.
    requests_ack: bool,
}

/// Work that remains after a short send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AfterShortSend {
    /// No work: the deadlines are unchanged.
    Nothing,
    /// The probe timeout is at this time or later. All other deadlines are unchanged.
    Timeout(Nanos),
    /// The caller must query the connection's pending work and events.
    Anything,
}

impl<D: Driver> Conn<D> {
    /// Whether the connection is open, and has nothing to send but new requests.
    #[inline(always)]
    fn has_only_new_work(&self) -> bool {
        self.ending.is_open()
            && self.flight.has_no_loss()
            && self.sending_pieces.is_none()
            && self.control_packets.is_empty()
            && self.confirming.is_none()
            && self.peer_reads.is_empty()
    }

    /// Whether a plain send of `length` bytes may be sent now as one packet of the command channel, before all other
    /// packets.
    #[inline(always)]
    fn may_send_short(&self, now: Nanos, length: u32) -> bool {
        let bytes = self.short_size(length);
        // If a deferred message was only noted, its ack was not processed yet and may change what is sent first
        // (`may_respond_first`).
        let is_settled = self.deferred.as_ref().is_none_or(|deferred| !deferred.is_recorded());
        self.has_only_new_work()
            && is_settled
            && self.received.is_gapless()
            && self.requests.may_start_send(self.credits.limit)
            && self.credits.deadline().is_none()
            && length <= self.config.tiny
            && self.commands < self.config.command_depth
            && self.has_window()
            && bytes <= self.send_path.path.size() as u64
            && self.send_path.would_admit(now, bytes, self.flight.bytes())
    }

    /// Returns the size in bytes of the datagram.
    #[inline(always)]
    fn short_size(&self, length: u32) -> u64 {
        (FRAGMENT + self.send_path.extra) as u64 + u64::from(length)
    }

    /// Whether there is a permit for short sends. If so, no request waits.
    #[inline(always)]
    pub(crate) fn has_short_permit(&self) -> bool {
        self.short_permit.left > 0
    }

    /// Grants a permit for plain sends, if a send of `length` bytes may be sent now, before all other packets. At most
    /// `most` requests may be outstanding. Otherwise returns false and changes nothing.
    #[inline(always)]
    pub(crate) fn permit_short(&mut self, now: Nanos, length: u32, most: u32) -> bool {
        let outstanding = self.requests.queue.len();
        if outstanding >= most || !self.may_send_short(now, length) {
            return false;
        }
        let (window, in_flight) = (self.send_path.window(), self.flight.bytes());
        let left = (most - outstanding)
            .min(self.credits.limit.wrapping_sub(self.requests.numbers.sends))
            .min(self.config.command_depth - self.commands)
            .min(self.config.window - self.commands - self.data)
            .min(self.flight.free_slots());
        let is_paced = self.send_path.is_paced();
        // An ack that is processed after the first send may change all conditions, so one send is permitted.
        let is_for_one = is_paced || self.deferred.is_some();
        let is_for_all = !is_for_one && in_flight + u64::from(left) * self.short_size(length) <= window;
        self.short_permit = ShortPermit {
            left: if is_for_all { left } else { 1 },
            max_length: length,
            request_ack_at: window / 4,
            is_first: true,
            was_empty: self.flight.is_empty(),
            is_paced,
        };
        self.now = now;
        self.record_deferred(); // The short packet acks the deferred message.
        true
    }

    /// Withdraws the permit, because a condition for it may have changed.
    #[inline(always)]
    pub(crate) fn withdraw_permit(&mut self) {
        self.short_permit.left = 0;
    }

    /// Whether there is a permit for a short send of `length` bytes.
    #[inline(always)]
    pub(crate) fn permits_short(&self, length: u64) -> bool {
        self.short_permit.left > 0 && length <= u64::from(self.short_permit.max_length)
    }

    /// Posts a plain send for which there is a permit, and records its packet as sent. Returns the driver's part of the
    /// request, which the caller must fill; `None` if the queue is full.
    #[inline(always)]
    pub(crate) fn send_short(&mut self, now: Nanos, length: u32) -> Option<(ShortSend, &mut D::Request)> {
        debug_assert!(self.short_permit.is_first || self.may_send_short(now, length), "{:?}", self.short_permit);
        let psn = self.flight.next_psn();
        let (slot, id, driver_data) = self.requests.push_sent(length, psn)?;
        self.now = now;
        self.short_permit.left -= 1;
        let bytes = (FRAGMENT + self.send_path.extra) as u64 + u64::from(length);
        let sent =
            SentPayload { what: PayloadOwner::Request, command: true, slot, offset: 0, length, is_refragmented: false };
        self.flight.sent(now, bytes, sent);
        self.prefers_responses = true;
        self.commands += 1;
        let requests_ack = self.send_path.requests_ack_at(bytes, self.short_permit.request_ack_at);
        if self.short_permit.is_paced {
            self.send_path.sent(now, bytes, &self.flight);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(length);
        Some((ShortSend { psn, id, length, requests_ack }, driver_data))
    }

    /// Returns the header of the send's packet.
    #[inline(always)]
    pub(crate) fn short_header(&mut self, send: ShortSend, host: &impl Host<D>) -> FragmentHeader {
        let ShortSend { psn, id, length, requests_ack } = send;
        let message = Message { op: Op::Send as u8, id: id.into(), length: length.into(), ..Message::default() };
        FragmentHeader { head: self.short_heads[usize::from(requests_ack)], carried: self.carried(psn, host), message }
    }

    /// Does the deferred work, after the packet of a short send was sent.
    #[inline(always)]
    pub(crate) fn after_short_send(&mut self, host: &mut impl Host<D>) -> AfterShortSend {
        if !std::mem::take(&mut self.short_permit.is_first) {
            // The probe timeout depends on the oldest packet in flight, so it is unchanged.
            return AfterShortSend::Nothing;
        }
        self.after_first_send(host)
    }

    #[inline(never)]
    fn after_first_send(&mut self, host: &mut impl Host<D>) -> AfterShortSend {
        if self.deferred.is_some() {
            // The deadline of this work is planned for the next pass, which checks all other deadlines.
            self.process_deferred(host);
            return if self.has_only_new_work() && !self.has_requests() {
                AfterShortSend::Nothing
            } else {
                AfterShortSend::Anything
            };
        }
        if !self.short_permit.was_empty {
            return AfterShortSend::Nothing;
        }
        AfterShortSend::Timeout(self.now.saturating_add(self.config.min_timeout))
    }

    /// Posts a request behind waiting requests, whose turn or deadline is already planned. Returns false if no request
    /// waits.
    #[inline(always)]
    pub(crate) fn post_behind(&mut self, post: Post, fill: impl FnOnce(&mut D::Request)) -> bool {
        self.ending.is_open() && self.has_requests() && self.requests.push(post).map(fill).is_some()
    }

    /// Posts a receive of `capacity` bytes, if the connection has fewer than `most`. Returns whether an ack is due now
    /// to announce the receive. Otherwise returns `None` and changes nothing.
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

    /// Returns the PSN and ack fields of a data packet.
    #[inline(always)]
    pub(super) fn carried(&mut self, psn: Psn, host: &impl Host<D>) -> Carried {
        if self.acks.owed() {
            self.counters.acks_carried += 1;
        }
        let delay = self.acks.carried(self.now);
        Carried { psn: psn.0.into(), ack: self.ack_fields(delay, host) }
    }
}
