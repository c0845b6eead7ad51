//! Fast paths of posts: a short send that is transmitted immediately, a request that waits behind other requests, and a
//! receive that is posted to the connection.
//!
//! The conditions of a fast path are checked first. If one is false, nothing changes, and the caller uses the general
//! function.

use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Conn;
use super::requests::{PayloadOwner, SentPayload};
use super::types::{ConnCallbacks, Post, PostedData};
use crate::proto::Nanos;
use crate::proto::psn::Psn;
use crate::proto::setup::ConnectionTerms;
use crate::proto::wire::{DataFields, FLAG_ACK_NOW, FLAG_LAST, FRAGMENT, Kind, Message, Op, PacketHeader};

/// The header of a message that is one packet.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FragmentHeader {
    head: PacketHeader,
    carried: DataFields,
    message: Message,
}

const _: () = assert!(size_of::<FragmentHeader>() == FRAGMENT);

/// A permit for short sends, whose conditions [`Conn::permit_short`] has checked in advance. Each call that may change
/// a condition withdraws the permit.
#[derive(Debug, Default)]
pub(super) struct ShortPermit {
    /// Number of sends that are still permitted.
    left: u32,
    /// Maximum length of each send in bytes.
    max_length: u32,
    /// A packet requests an ack if this number of bytes was sent since the last ack request.
    request_ack_at: u64,
    /// Whether no send of this permit was posted yet.
    is_first: bool,
    /// Whether no packet was in flight when the permit was granted.
    was_empty: bool,
    /// Whether congestion control or the pacer must record each packet. The permit is then for one send.
    is_paced: bool,
}

/// Returns the packet headers of short sends to this peer. The second one requests an ack.
pub(super) fn short_heads(terms: &ConnectionTerms) -> [PacketHeader; 2] {
    [FLAG_LAST, FLAG_LAST | FLAG_ACK_NOW]
        .map(|flags| PacketHeader::new(Kind::Fragment, flags, terms.peer_conn, terms.peer_token))
}

/// Fields of a posted short send, for its packet header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortSend {
    psn: Psn,
    id: u32,
    length: u32,
    /// Whether the packet requests an ack.
    requests_ack: bool,
}

/// What the driver must do after a short send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AfterShortSend {
    /// The deadline of the connection is unchanged.
    Nothing,
    /// The driver must schedule this deadline. The probe timeout expires at this time or later.
    Timeout(Nanos),
    /// The driver must query the connection's pending work and events.
    Anything,
}

impl<D: PostedData> Conn<D> {
    /// Whether the connection is open, no retransmission, piece, control packet or confirmation waits to be sent, and
    /// the peer has acked the responses to all its reads.
    #[inline(always)]
    fn has_only_new_work(&self) -> bool {
        self.ending.is_open()
            && self.flight.has_no_loss()
            && self.sending_pieces.is_none()
            && self.control_packets.is_empty()
            && self.confirming.is_none()
            && self.peer_reads.is_empty()
    }

    /// Whether a send of `length` bytes without flags would be sent next, as one packet on the command channel.
    #[inline(always)]
    fn may_send_short(&self, now: Nanos, length: u32) -> bool {
        let bytes = self.short_size(length);
        // A deferred message that is already recorded has an unprocessed ack, which may change which packet is next.
        let is_settled = self.deferred.as_ref().is_none_or(|deferred| !deferred.is_recorded);
        self.has_only_new_work()
            && is_settled
            && self.received.is_gapless()
            && self.requests.may_start_send(self.credits.limit)
            && self.credits.deadline().is_none()
            && length <= self.config.tiny
            && self.commands < self.config.command_depth
            && self.has_window()
            && bytes <= self.send_path.path.size() as u64
            && self.send_path.may_send_at(now, bytes, self.flight.bytes()) == Some(0)
    }

    /// Returns the datagram size in bytes of a short send.
    #[inline(always)]
    fn short_size(&self, length: u32) -> u64 {
        (FRAGMENT + self.send_path.extra) as u64 + u64::from(length)
    }

    /// Whether short sends are permitted. In this case no request waits to be sent.
    #[inline(always)]
    pub(crate) fn has_short_permit(&self) -> bool {
        self.short_permit.left > 0
    }

    /// Permits sends without flags of up to `length` bytes. Returns false, without effect, if such a send could not be
    /// sent now as the next packet, or if `most` or more requests are outstanding.
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
        // A deferred ack is processed after the first send and may change all conditions, so the permit is for only one
        // send.
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
        self.record_deferred(); // The packet of the short send acks the deferred message.
        true
    }

    /// Withdraws the permit, because a condition for it may have changed.
    #[inline(always)]
    pub(crate) fn withdraw_permit(&mut self) {
        self.short_permit.left = 0;
    }

    /// Whether a short send of `length` bytes is permitted.
    #[inline(always)]
    pub(crate) fn permits_short(&self, length: u64) -> bool {
        self.short_permit.left > 0 && length <= u64::from(self.short_permit.max_length)
    }

    /// Posts a permitted send without flags, and records its packet as sent. Returns the driver's data of the request,
    /// which the caller must write. Returns `None` if the queue is full.
    #[inline(always)]
    pub(crate) fn send_short(&mut self, now: Nanos, length: u32) -> Option<(ShortSend, &mut D::Request)> {
        debug_assert!(
            self.short_permit.is_first || self.may_send_short(now, length),
            "a short send needs a permit, not {:?}",
            self.short_permit
        );
        let psn = self.flight.next_psn();
        let (slot, id, driver_data) = self.requests.push_sent(length, psn)?;
        self.now = now;
        self.short_permit.left -= 1;
        let bytes = (FRAGMENT + self.send_path.extra) as u64 + u64::from(length);
        let sent = SentPayload { command: true, ..SentPayload::new(PayloadOwner::Request, slot, 0, length) };
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

    /// Builds the packet header of a short send.
    #[inline(always)]
    pub(crate) fn short_header(&mut self, send: ShortSend, host: &impl ConnCallbacks<D>) -> FragmentHeader {
        let ShortSend { psn, id, length, requests_ack } = send;
        let message = Message { op: Op::Send as u8, id: id.into(), length: length.into(), ..Message::default() };
        FragmentHeader {
            head: self.short_heads[usize::from(requests_ack)],
            carried: self.data_fields(psn, host),
            message,
        }
    }

    /// Does deferred work after the packet of a short send was sent. Returns what the driver must do.
    #[inline(always)]
    pub(crate) fn after_short_send(&mut self, host: &mut impl ConnCallbacks<D>) -> AfterShortSend {
        if !std::mem::take(&mut self.short_permit.is_first) {
            // The probe timeout depends on the oldest packet in flight, which was sent earlier.
            return AfterShortSend::Nothing;
        }
        self.after_first_send(host)
    }

    #[inline(never)]
    fn after_first_send(&mut self, host: &mut impl ConnCallbacks<D>) -> AfterShortSend {
        if self.deferred.is_some() {
            // The driver has already scheduled the next pass for the deferred work. That pass checks all deadlines.
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

    /// Posts a request behind waiting requests, whose transmission is already scheduled. Returns false, without effect,
    /// if no request waits, the connection is ending, or the queue is full.
    #[inline(always)]
    pub(crate) fn post_behind(&mut self, post: Post, fill: impl FnOnce(&mut D::Request)) -> bool {
        self.ending.is_open() && self.has_requests() && self.requests.push(post).map(fill).is_some()
    }

    /// Posts a receive of `capacity` bytes. Returns `None`, without effect, if the connection has ended or already has
    /// `most` receives. Otherwise returns whether an ack must be sent now to advertise the credit.
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
            self.acks.request_ack();
        }
        Some(is_due)
    }

    /// Builds the PSN and ack fields of a data packet.
    #[inline(always)]
    pub(super) fn data_fields(&mut self, psn: Psn, host: &impl ConnCallbacks<D>) -> DataFields {
        if self.acks.is_pending() {
            self.counters.acks_carried += 1;
        }
        let delay = self.acks.take_piggybacked(self.now);
        DataFields { psn: psn.0.into(), ack: self.ack_fields(delay, host) }
    }
}
