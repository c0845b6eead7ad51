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
    pub(crate) fn may_send_short(&self, now: Nanos, length: u32) -> bool {
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

    /// Posts and sends a plain send; [`Self::may_send_short`] has returned true. Returns the header of its packet; `None` if the
    /// queue is full.
    #[inline(always)]
    pub(crate) fn send_short(
        &mut self,
        now: Nanos,
        length: u32,
        fill: impl FnOnce(&mut D::Request),
        host: &impl Host<D>,
    ) -> Option<FragmentHeader> {
        let psn = self.flight.next_psn();
        let (slot, id, own) = self.requests.push_sent(length, psn)?;
        fill(own);
        self.now = now;
        self.note_deferred();
        let bytes = self.short_size(length);
        let sent =
            SentPayload { what: PayloadOwner::Request, command: true, slot, offset: 0, length, in_pieces: false };
        self.flight.sent(now, bytes, sent);
        self.favours_answers = true;
        self.commands += 1;
        let flags = FLAG_LAST | if self.send_path.asks(bytes) { FLAG_ACK_NOW } else { 0 };
        self.send_path.sent(now, bytes, &self.flight);
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(length);
        let message = Message { op: Op::Send as u8, id: id.into(), length: length.into(), ..Message::default() };
        Some(FragmentHeader { head: self.head(Kind::Fragment, flags), carried: self.carried(psn, host), message })
    }

    /// Does what was deferred, after the packet of a short send has left. `was_empty`: nothing was in flight before.
    #[inline(always)]
    pub(crate) fn after_short_send(&mut self, was_empty: bool, host: &mut impl Host<D>) -> ShortSendRest {
        if self.deferred.is_some() {
            // Its deadline is planned for the next pass, which looks at all others.
            self.settle(host);
            return if self.is_calm() && !self.has_requests() {
                ShortSendRest::Nothing
            } else {
                ShortSendRest::Anything
            };
        }
        if !was_empty {
            return ShortSendRest::Nothing; // the probe timeout counts from the oldest packet in flight
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
        self.counters.acks_carried += u64::from(self.acks.owed());
        let delay = self.acks.carried(self.now);
        Carried { psn: psn.0.into(), ack: self.said(delay, host) }
    }
}
