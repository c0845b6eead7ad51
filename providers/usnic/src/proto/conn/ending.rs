//! The end of a connection: a graceful disconnect (Fin), an abort (Reset), a refused or failed request, an invalid
//! packet, or a peer that has timed out.
//!
//! In every case, all posted work completes exactly once and in order. Then one event is reported, except after a local
//! abort. After that, the connection replies to late packets for some time, so that the peer detects the end even if
//! packets are lost (`closing`).

use dapl::provider::{ConnectionEvent, Status};
use zerocopy::IntoBytes;

use super::Conn;
use super::requests::PayloadOwner;
use super::transmit::ControlPacket;
use super::types::{ConnCallbacks, OutgoingPacket, Payload, PostedData, SendValue, SourceAddress};
use crate::proto::closing::{CloseTiming, Closing};
use crate::proto::psn::Psn;
use crate::proto::setup::packets::{self, Fin};
use crate::proto::wire::{Kind, Refusal};
use crate::proto::{MILLIS, Nanos};

/// First interval between repetitions of a refusal, in nanoseconds. The interval doubles each time. Each data packet of
/// the peer, and each ack packet that requests an ack, also causes a repetition.
const FIRST_REPEAT_INTERVAL: Nanos = 20 * MILLIS;
/// Maximum number of repetitions of a refusal that the timer causes.
const MAX_REPEATS: u32 = 6;

/// If data of a read must be retransmitted but its memory has become unreadable, the sender waits for an ack of the
/// data for this number of probe timeouts.
const UNREADABLE_PTOS: u64 = 3;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum ClosePhase {
    #[default]
    Open,
    /// The consumer has disconnected gracefully. The Fin is sent when the last request is complete.
    Draining,
    /// The Fin is retransmitted until the peer replies. No further data packet of the peer is accepted.
    Finishing,
    /// All work was flushed, and the event is set unless the end was a local abort.
    Closed,
}

/// A request of the peer that this host has refused.
#[derive(Clone, Copy, Debug)]
struct RefusedRequest {
    why: Refusal,
    psn: Psn,
    repeats: u32,
    repeat_at: Option<Nanos>,
    until: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Ending {
    phase: ClosePhase,
    event: Option<ConnectionEvent>,
    /// Close handshake, which sends the Fin, FinAck or Reset. `None` while the connection is open or waits for its last
    /// request. Also `None` if it has ended because this host refused a request, until a Fin or Reset of the peer
    /// arrives.
    closing: Option<Closing>,
    /// Content of the Fin.
    fin: Fin,
    /// Source of the peer's last Fin, FinAck or Reset. Replies go to this address, because the peer's address may have
    /// changed.
    last_source: Option<SourceAddress>,
    refused: Option<RefusedRequest>,
}

impl Ending {
    /// Whether neither side has begun to end the connection.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.phase == ClosePhase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == ClosePhase::Closed
    }

    /// Whether data packets of the peer are no longer accepted.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self.phase, ClosePhase::Finishing | ClosePhase::Closed)
    }

    /// If this side has refused a request, returns the reason and the PSN of the refused packet. Every further ack
    /// packet contains them.
    pub(super) fn refusal(&self) -> Option<(Refusal, Psn)> {
        self.refused.map(|refused| (refused.why, refused.psn))
    }

    /// Whether a Fin, FinAck or Reset must be sent now.
    pub(super) fn has_packet(&self, now: Nanos) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.has_packet(now))
    }

    /// Returns the time at which `end_on_time` must be called, or `None` if no timer is running or the connection can
    /// be freed.
    pub(super) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        if self.can_be_freed(now) {
            return None;
        }
        let refused = self.refused.map(|refused| refused.repeat_at.unwrap_or(refused.until));
        self.closing.as_ref().map(Closing::deadline).or(refused)
    }

    fn can_be_freed(&self, now: Nanos) -> bool {
        let may_free = self.closing.as_ref().is_none_or(|closing| closing.can_be_freed(now));
        self.is_closed() && may_free && self.refused.is_none_or(|refused| refused.until <= now)
    }
}

impl<D: PostedData> Conn<D> {
    /// Starts a graceful disconnect: a Fin is sent when the last request is complete.
    pub(crate) fn drain(&mut self, now: Nanos) {
        self.now = now;
        self.withdraw_permit();
        if self.ending.phase == ClosePhase::Open {
            self.ending.phase = ClosePhase::Draining;
            self.check_drained();
        }
    }

    /// Starts sending the Fin if a graceful disconnect has waited for the last request. Called when a request
    /// completes.
    pub(super) fn check_drained(&mut self) {
        // The peer completes a message only when all earlier packets have arrived. So a send may be acked but
        // incomplete at the peer, for example because an earlier read response is missing.
        let has_all = || self.requests.latest.is_none_or(|latest| latest.is_before(self.flight.cumulative()));
        if self.ending.phase == ClosePhase::Draining && self.requests.queue.is_empty() && has_all() {
            self.ending.phase = ClosePhase::Finishing;
            self.ending.fin = Fin { end: self.flight.next_psn().0.into(), received: self.next_expected().0.into() };
            self.ending.closing = Some(Closing::new(Kind::Fin, self.now, self.close_timing()));
        }
    }

    /// Makes an ack packet due if received packets were not acked yet. Called before the connection ends.
    pub(crate) fn ack_all(&mut self, now: Nanos, host: &mut impl ConnCallbacks<D>) {
        self.now = now;
        self.withdraw_permit();
        self.process_deferred(host);
        if self.acks.is_pending() && !self.ending.is_closed() {
            self.acks.send_ack_packet();
        }
    }

    /// Aborts the connection: flushes all posted work, and sends a Reset. If the connection has already ended, only
    /// discards the event that reports this.
    pub(crate) fn abort(&mut self, now: Nanos, host: &mut impl ConnCallbacks<D>) {
        self.now = now;
        self.withdraw_permit();
        self.process_deferred(host);
        if !self.ending.is_closed() {
            self.close(None, host);
            self.start_reset();
        }
        self.ending.event = None;
    }

    /// Takes the event that reports the end of the connection.
    pub(crate) fn take_event(&mut self) -> Option<ConnectionEvent> {
        self.ending.event.take()
    }

    /// Whether all work was flushed.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.ending.is_closed()
    }

    /// Whether late packets need no more replies, so that the connection can be freed.
    pub(crate) fn can_be_freed(&self) -> bool {
        self.ending.can_be_freed(self.now)
    }

    /// Handles a packet that the driver could not send because the memory of its payload is unreadable. `resend` says
    /// whether the packet is a retransmission.
    pub(crate) fn source_unreadable(
        &mut self,
        payload: Payload,
        resend: bool,
        status: Status,
        host: &mut impl ConnCallbacks<D>,
    ) {
        self.withdraw_permit();
        if self.ending.is_closed() {
            return;
        }
        match payload {
            Payload::Request { slot, .. } => {
                self.requests.fail(slot, status);
                self.complete_ended_requests(host);
            }
            Payload::Remote { slot, .. } => {
                // The peer may have received the packet, and only the ack may be lost. So this side requests an ack,
                // and refuses the read only after a time limit.
                let time_limit = self.flight.rtt.pto(0).saturating_mul(UNREADABLE_PTOS);
                if resend && self.peer_reads.unreadable_for(slot, self.now) < time_limit {
                    self.queue_control(ControlPacket::AckRequest);
                    return;
                }
                self.peer_reads.mark_unreadable(slot);
                self.refuse_unreadable(host);
            }
            Payload::None | Payload::Padding(_) => {}
        }
    }

    /// Refuses a read whose memory has become unreadable, if the peer has acked the data of all earlier reads.
    pub(super) fn refuse_unreadable(&mut self, host: &mut impl ConnCallbacks<D>) {
        if let Some(psn) = self.peer_reads.refusal_due() {
            self.refuse(Refusal::Source, psn, None, host);
        }
    }

    /// Refuses the peer's request in the packet with this PSN, and ends the connection. `receive` has the slot and the
    /// status of a receive that fails with the request.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        why: Refusal,
        psn: Psn,
        receive: Option<(u32, Status)>,
        host: &mut impl ConnCallbacks<D>,
    ) {
        if self.ending.is_closed() {
            return;
        }
        self.counters.refusals_sent += 1;
        if let Some((slot, status)) = receive
            && self.receives.is_first(slot)
            && let Some(driver_data) = self.receives.pop()
        {
            host.recv_done(driver_data, status, 0, SendValue::default());
        }
        // An invalid access is an error of the peer, so the event at this side is `Disconnected`.
        let event = if why == Refusal::Access { ConnectionEvent::Disconnected } else { ConnectionEvent::Broken };
        self.close(Some(event), host);
        let (repeat_at, until) =
            (Some(self.now.saturating_add(FIRST_REPEAT_INTERVAL)), self.now.saturating_add(self.config.linger));
        self.ending.refused = Some(RefusedRequest { why, psn, repeats: 0, repeat_at, until });
        self.acks.send_ack_packet();
    }

    /// Handles the peer's refusal of the local request in the packet with this PSN.
    #[cold]
    pub(super) fn refused(&mut self, refusal: Refusal, psn: Psn, host: &mut impl ConnCallbacks<D>) {
        if self.ending.is_closed() {
            return;
        }
        self.counters.refusals_received += 1;
        let status = match refusal {
            Refusal::Access | Refusal::Source => Status::RemoteAccess,
            Refusal::Receive | Refusal::Invalid => Status::RemoteResponder,
        };
        if let Some(slot) = self.refused_request(psn).or(self.requests.queue.first()) {
            // Earlier requests can no longer complete, so they are flushed.
            while self.requests.queue.first().is_some_and(|first| first != slot) {
                self.complete_first(Status::Flushed, host);
            }
            if status == Status::RemoteAccess
                && let Some(request) = self.requests.queue.get(slot)
                && let Some(work) = request.work
            {
                host.access_refused(&request.driver_data, work, request.length);
            }
            self.complete_first(status, host);
        }
        self.reset(ConnectionEvent::Broken, host);
    }

    /// Returns the slot of the active request to which the packet with this PSN belongs. A packet that is refused on
    /// arrival is never acked. A read or atomic operation can be refused later, after its packet was acked.
    fn refused_request(&self, psn: Psn) -> Option<u32> {
        let unacked = self.flight.data(psn).filter(|sent| sent.what == PayloadOwner::Request).map(|sent| sent.slot);
        unacked.or_else(|| self.requests.answered_request_of(psn))
    }

    /// Completes the oldest request.
    fn complete_first(&mut self, status: Status, host: &mut impl ConnCallbacks<D>) {
        if let Some(request) = self.requests.queue.pop() {
            host.request_done(&mut request.driver_data, status, 0);
        }
    }

    /// Ends the connection after an invalid packet. The oldest request completes with `status`, and the event is
    /// `Broken`. If no request is outstanding, the event is `Disconnected`.
    #[cold]
    pub(super) fn end_after_invalid_packet(&mut self, status: Status, host: &mut impl ConnCallbacks<D>) {
        let is_idle = self.requests.queue.is_empty();
        self.complete_first(status, host);
        self.reset(if is_idle { ConnectionEvent::Disconnected } else { ConnectionEvent::Broken }, host);
    }

    /// Ends the connection with a Reset: after the failure of a local request (event `Broken`), or because the peer does
    /// not respond (`Disconnected`). Flushes all work.
    #[cold]
    pub(super) fn reset(&mut self, event: ConnectionEvent, host: &mut impl ConnCallbacks<D>) {
        self.close(Some(event), host);
        self.start_reset();
    }

    fn start_reset(&mut self) {
        self.ending.closing = Some(Closing::new(Kind::Reset, self.now, self.close_timing()));
    }

    fn close_timing(&self) -> CloseTiming {
        let timeout = self.flight.rtt.pto(0);
        CloseTiming { timeout, give_up: self.config.give_up, linger: self.config.linger }
    }

    /// Handles a Fin, FinAck or Reset of the peer. Returns false if the packet is malformed.
    #[cold]
    pub(super) fn receive_close(
        &mut self,
        kind: Kind,
        body: &[u8],
        from: SourceAddress,
        host: &mut impl ConnCallbacks<D>,
    ) -> bool {
        self.ending.last_source = Some(from);
        if let Some(closing) = &mut self.ending.closing {
            closing.receive(self.now, kind);
            self.check_finished(host);
            return true;
        }
        match kind {
            Kind::FinAck => return true,
            Kind::Fin if !self.ending.is_closed() => {
                let Some(fin) = packets::fin(body) else { return false };
                // A Fin contains an ack, which completes the requests whose packets the peer has received.
                let last = self.credits.with_next(fin.received);
                self.process_ack(&last, &[], host);
            }
            _ => {}
        }
        if !self.ending.is_closed() {
            self.close(Some(ConnectionEvent::Disconnected), host);
        }
        self.ending.refused = None;
        self.ending.closing = Some(Closing::reply(self.now, self.close_timing()));
        true
    }

    /// Ends the connection if the peer has confirmed the Fin, or has timed out.
    fn check_finished(&mut self, host: &mut impl ConnCallbacks<D>) {
        let is_done = self.ending.closing.as_ref().is_some_and(Closing::is_done);
        if self.ending.phase == ClosePhase::Finishing && is_done {
            self.close(Some(ConnectionEvent::Disconnected), host);
        }
    }

    /// Encodes the Fin, FinAck or Reset that is due now.
    pub(super) fn closing_packet(&mut self, out: &mut Vec<u8>) -> Option<OutgoingPacket> {
        let closing = self.ending.closing.as_mut()?;
        // A FinAck goes to the source of the Fin or Reset, whose address may not be verified. It is not longer than
        // that packet, so a forged source address causes no amplification.
        let to = self.ending.last_source.filter(|_| closing.must_reply);
        let kind = closing.transmit(self.now)?;
        let fin = self.ending.fin;
        let body = if kind == Kind::Fin { fin.as_bytes() } else { &[] };
        Some(self.write_small(out, kind, body, to))
    }

    /// Flushes the requests and then the receives, each in posting order, and stores the event for the driver.
    #[cold]
    fn close(&mut self, event: Option<ConnectionEvent>, host: &mut impl ConnCallbacks<D>) {
        self.ending.phase = ClosePhase::Closed;
        self.ending.event = event;
        while let Some(request) = self.requests.queue.pop() {
            host.request_done(&mut request.driver_data, Status::Flushed, 0);
        }
        while let Some(driver_data) = self.receives.pop() {
            host.recv_done(driver_data, Status::Flushed, 0, SendValue::default());
        }
        self.peer_reads.clear();
        self.control_packets.clear();
        self.credits.stop();
        self.bind_retry_at = None;
    }

    /// Handles the timers of a connection that ends.
    pub(super) fn end_on_time(&mut self, host: &mut impl ConnCallbacks<D>) {
        let now = self.now;
        if let Some(closing) = &mut self.ending.closing {
            closing.on_time(now);
            return self.check_finished(host);
        }
        let Some(refused) = self.ending.refused.as_mut() else { return };
        if refused.repeat_at.is_some_and(|at| at <= now) {
            refused.repeats += 1;
            refused.repeat_at =
                (refused.repeats < MAX_REPEATS).then(|| now.saturating_add(FIRST_REPEAT_INTERVAL << refused.repeats));
            self.acks.send_ack_packet();
        }
    }
}
