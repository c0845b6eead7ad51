//! The end of a connection: drained with a Fin, aborted with a Reset, refused, or given up.
//!
//! In every case all posted work completes exactly once and in order. Then one event is reported. Afterwards late
//! packets are answered for some time, so that the peer is notified of the end (`closing`).

use dapl::provider::{ConnectionEvent, Status};

use super::Conn;
use super::transmit::ControlPacket;
use super::types::{Driver, Host, Outgoing, Payload, Source, Unsent};
use super::write::outgoing;
use crate::proto::closing::{CloseTiming, Closing};
use crate::proto::psn::Psn;
use crate::proto::setup::packets::{self, Fin};
use crate::proto::wire::{Kind, Refusal};
use crate::proto::{MILLIS, Nanos};

/// First interval between repetitions of a refusal; it doubles each time. A refusal is also repeated after each packet
/// of the peer.
const FIRST_REPEAT_INTERVAL: Nanos = 20 * MILLIS;
/// Maximum number of repetitions by timer.
const MAX_REPEATS: u32 = 6;

/// Time for an ack of read data that can no longer be retransmitted, in probe timeouts (PTO).
const UNREADABLE_PTOS: u64 = 3;

/// Phase of the end of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Open,
    /// A graceful end waits until the last request is complete.
    Draining,
    /// A Fin is sent until the peer answers. No more work is accepted.
    Finishing,
    /// All work was flushed, and the event is set.
    Closed,
}

/// A request of the peer that was refused locally.
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
    phase: Phase,
    event: Option<ConnectionEvent>,
    /// State that sends the Fin or Reset, if there is one.
    closing: Option<Closing>,
    /// Source of the peer's last packet. Answers are sent there, because the peer may have moved.
    last_source: Option<Source>,
    refused: Option<RefusedRequest>,
}

impl Ending {
    /// Whether the end of the connection has not begun.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether packets of the peer are no longer accepted.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self.phase, Phase::Finishing | Phase::Closed)
    }

    /// Returns the refusal that every ack contains.
    pub(super) fn refusal(&self) -> Option<(Refusal, Psn)> {
        self.refused.map(|refused| (refused.why, refused.psn))
    }

    /// Whether a Fin, a Reset or an answer must be sent now.
    pub(super) fn has_packet(&self, now: Nanos) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.has_packet(now))
    }

    /// Returns the time of the next action; `None` if there is none, or after the end.
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

impl<D: Driver> Conn<D> {
    /// Starts a graceful end: the connection ends when the last request is complete.
    pub(crate) fn drain(&mut self, now: Nanos) {
        self.now = now;
        self.withdraw_permit();
        if self.ending.phase == Phase::Open {
            self.ending.phase = Phase::Draining;
            self.check_drained();
        }
    }

    /// Called when the last request may be complete. Ends a connection whose graceful end was requested.
    pub(super) fn check_drained(&mut self) {
        // A packet behind a gap is not complete at the peer. For example, a send may have arrived although a read
        // response before it is missing.
        let has_all = || self.requests.latest.is_none_or(|latest| latest.is_before(self.flight.cumulative()));
        if self.ending.phase == Phase::Draining && self.requests.queue.is_empty() && has_all() {
            self.ending.phase = Phase::Finishing;
            let fin = Fin { end: self.flight.next_psn().0.into(), received: self.next_expected().0.into() };
            self.ending.closing = Some(Closing::finish(&self.terms, self.now, fin, self.close_timing()));
        }
    }

    /// Called before the connection ends, so that the next packet acks all received packets.
    pub(crate) fn ack_all(&mut self, now: Nanos, host: &mut impl Host<D>) {
        self.now = now;
        self.withdraw_permit();
        self.process_deferred(host);
        if self.acks.owed() && !self.ending.is_closed() {
            self.acks.send_ack_packet();
        }
    }

    /// Ends the connection immediately: flushes all posted work and sends a Reset. No event is reported.
    pub(crate) fn abort(&mut self, now: Nanos, host: &mut impl Host<D>) {
        self.now = now;
        self.withdraw_permit();
        self.process_deferred(host);
        if !self.ending.is_closed() {
            self.close(None, host);
            self.start_reset();
        }
        self.ending.event = None;
    }

    /// Returns the final event. Later calls return `None`.
    pub(crate) fn take_event(&mut self) -> Option<ConnectionEvent> {
        self.ending.event.take()
    }

    /// Whether all work was flushed. Late packets are answered until `can_be_freed`.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.ending.is_closed()
    }

    /// Whether no late packet needs an answer any more, so that the connection can be freed.
    pub(crate) fn can_be_freed(&self) -> bool {
        self.ending.can_be_freed(self.now)
    }

    /// Handles a packet that could not be sent, because the memory of its payload is not readable.
    pub(crate) fn source_unreadable(&mut self, packet: &Unsent, status: Status, host: &mut impl Host<D>) {
        self.withdraw_permit();
        if self.ending.is_closed() {
            return;
        }
        match packet.payload {
            Payload::Request { slot, .. } => {
                self.requests.fail(slot, status);
                self.retire(host);
            }
            Payload::Remote { slot, .. } => {
                // Possibly only the ack of the packet is missing. So an ack is requested, and the read is refused only
                // after a time limit.
                let time_limit = self.flight.rtt().pto(0).saturating_mul(UNREADABLE_PTOS);
                if packet.resend && self.peer_reads.unreadable_for(slot, self.now) < time_limit {
                    self.queue_control(ControlPacket::AckRequest);
                    return;
                }
                self.peer_reads.mark_unreadable(slot);
                self.refuse_unreadable(host);
            }
            Payload::None | Payload::Padding(_) => {}
        }
    }

    /// Refuses a read whose memory is not readable any more, after all earlier reads were answered.
    pub(super) fn refuse_unreadable(&mut self, host: &mut impl Host<D>) {
        if let Some(psn) = self.peer_reads.refusal_due() {
            self.refuse(Refusal::Source, psn, None, host);
        }
    }

    /// Refuses a request of the peer, and ends the connection. `receive`: the receive that fails because of this
    /// request.
    #[cold]
    pub(super) fn refuse(&mut self, why: Refusal, psn: Psn, receive: Option<(u32, Status)>, host: &mut impl Host<D>) {
        if self.ending.is_closed() {
            return;
        }
        self.counters.refusals_sent += 1;
        if let Some((slot, status)) = receive
            && self.receives.is_first(slot)
            && let Some(driver_data) = self.receives.pop()
        {
            host.recv_done(driver_data, status, 0, false);
        }
        // If the peer made an invalid access, no local work has failed.
        let event = if why == Refusal::Access { ConnectionEvent::Disconnected } else { ConnectionEvent::Broken };
        self.close(Some(event), host);
        let (repeat_at, until) =
            (Some(self.now.saturating_add(FIRST_REPEAT_INTERVAL)), self.now.saturating_add(self.config.linger));
        self.ending.refused = Some(RefusedRequest { why, psn, repeats: 0, repeat_at, until });
        self.acks.send_ack_packet();
    }

    /// Handles a refusal of a local request by the peer.
    #[cold]
    pub(super) fn refused(&mut self, refusal: Refusal, psn: Psn, host: &mut impl Host<D>) {
        if self.ending.is_closed() {
            return;
        }
        self.counters.refusals_received += 1;
        let status = match refusal {
            Refusal::Access | Refusal::Source => Status::RemoteAccess,
            Refusal::Receive | Refusal::Invalid => Status::RemoteResponder,
        };
        let refused = self.requests.of_packet(psn).or(self.requests.queue.first());
        if let Some(slot) = refused {
            // The earlier requests are incomplete, and cannot complete any more.
            while let Some(first) = self.requests.queue.first().filter(|first| *first != slot) {
                self.complete(first, Status::Flushed, host);
            }
            if let Some(request) = self.requests.queue.get(slot).filter(|_| status == Status::RemoteAccess) {
                host.access_refused(&request.driver_data, request.work, request.length);
            }
            self.complete(slot, status, host);
        }
        self.reset_after_failure(host);
    }

    fn complete(&mut self, slot: u32, status: Status, host: &mut impl Host<D>) {
        if let Some(request) = self.requests.queue.remove(slot) {
            host.request_done(&mut request.driver_data, status, 0);
        }
    }

    /// Ends the connection. The oldest request completes with `status`. If there is no request, the peer counts as
    /// disconnected.
    #[cold]
    pub(super) fn end_with(&mut self, status: Status, host: &mut impl Host<D>) {
        let is_idle = self.requests.queue.is_empty();
        if let Some(request) = self.requests.queue.pop() {
            host.request_done(&mut request.driver_data, status, 0);
        }
        self.close(Some(if is_idle { ConnectionEvent::Disconnected } else { ConnectionEvent::Broken }), host);
        self.start_reset();
    }

    /// Ends the connection because the peer is given up. No local request has failed.
    #[cold]
    pub(super) fn peer_timed_out(&mut self, host: &mut impl Host<D>) {
        self.close(Some(ConnectionEvent::Disconnected), host);
        self.start_reset();
    }

    /// Sends a Reset to the peer, because a request has failed.
    #[cold]
    pub(super) fn reset_after_failure(&mut self, host: &mut impl Host<D>) {
        self.close(Some(ConnectionEvent::Broken), host);
        self.start_reset();
    }

    fn start_reset(&mut self) {
        self.ending.closing = Some(Closing::reset(&self.terms, self.now, self.close_timing()));
    }

    fn close_timing(&self) -> CloseTiming {
        let timeout = self.flight.rtt().pto(0);
        CloseTiming { timeout, give_up: self.config.give_up, linger: self.config.linger }
    }

    /// Handles a Fin or Reset of the peer. Returns false if the packet is malformed.
    #[cold]
    pub(super) fn receive_close(&mut self, kind: Kind, body: &[u8], from: Source, host: &mut impl Host<D>) -> bool {
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
                // The requests that the peer has received are complete.
                let last = self.credits.with_next(fin.received);
                self.process_ack(&last, &[], host);
            }
            _ => {}
        }
        if !self.ending.is_closed() {
            self.close(Some(ConnectionEvent::Disconnected), host);
        }
        self.ending.refused = None;
        self.ending.closing = Some(Closing::reply(&self.terms, self.now, self.close_timing()));
        true
    }

    /// Checks whether the peer has confirmed the Fin, or was given up.
    fn check_finished(&mut self, host: &mut impl Host<D>) {
        let is_done = self.ending.closing.as_ref().is_some_and(Closing::is_done);
        if self.ending.phase == Phase::Finishing && is_done {
            self.close(Some(ConnectionEvent::Disconnected), host);
        }
    }

    /// Encodes the Fin, Reset or answer that is due now.
    pub(super) fn closing_packet(&mut self, out: &mut Vec<u8>) -> Option<Outgoing> {
        let start = out.len();
        let closing = self.ending.closing.as_mut()?;
        // An answer is sent to an unverified source only if it is not longer than the packet that it answers, so
        // spoofed sources cause no amplification.
        let to = self.ending.last_source.filter(|_| closing.must_send_reply());
        let is_sent = closing.transmit(self.now, out);
        is_sent.then(|| Outgoing { to, ..outgoing(out.len() - start) })
    }

    /// Flushes all work in posting order, and sets the event.
    #[cold]
    fn close(&mut self, event: Option<ConnectionEvent>, host: &mut impl Host<D>) {
        self.ending.phase = Phase::Closed;
        self.ending.event = event;
        while let Some(request) = self.requests.queue.pop() {
            host.request_done(&mut request.driver_data, Status::Flushed, 0);
        }
        while let Some(driver_data) = self.receives.pop() {
            host.recv_done(driver_data, Status::Flushed, 0, false);
        }
        self.peer_reads.clear();
        self.control_packets.clear();
        self.credits.stop();
        self.bind_retry_at = None;
    }

    /// Handles the timers of the ending connection.
    pub(super) fn end_on_time(&mut self, host: &mut impl Host<D>) {
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
