//! Selects the next packet of a connection (US-4): first closing and control packets, then retransmissions, then new
//! data packets, which carry acks, then MTU probes, then ack packets. A due ack packet precedes retransmissions and
//! data if a packet of the peer is missing.
//!
//! `write` encodes the packet. A small request whose turn has come is sent before read responses, on the command
//! channel unless that is full. Large requests and read responses alternate on the data channel (US-2). Messages are
//! segmented when they are sent (US-6).

use dapl::provider::Status;

use super::Conn;
use super::peer_reads::PeerRead;
use super::refragmented::SendingPieces;
use super::requests::{BlockedReason, PayloadOwner, SendLimits, SendPhase, SentPayload, is_below};
use super::types::{ConnCallbacks, OutgoingPacket, Payload, PostedData, SourceAddress};
use super::write::outgoing;
use crate::proto::flight::{PsnState, RetransmitCause};
use crate::proto::psn::Psn;
use crate::proto::wire::{FLAG_ACK_NOW, Kind, PacketHeader};
use crate::proto::{MICROS, Nanos};

/// Maximum number of retransmissions of one connection in a pass. Without the limit, one connection could delay all
/// other connections.
const MAX_RETRANSMISSIONS: u32 = 64;
/// Maximum number of queued control packets. A further one is dropped, and its cause occurs again: the peer repeats its
/// packet, or the timer expires again.
const MAX_CONTROL_PACKETS: usize = 8;
/// Time in nanoseconds between attempts to execute a deferred bind.
const BIND_RETRY: Nanos = 50 * MICROS;

/// A packet without a PSN that waits in `control_packets`. It is sent once, and not retransmitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlPacket {
    /// Reply to an MTU probe of this size in bytes.
    ProbeAck(u32),
    /// Response to the challenge with this nonce, sent to the source of the challenge.
    Response(u64, SourceAddress),
    /// Ack packet that requests an ack, for an RNR probe or to find out whether the peer has received a response.
    AckRequest,
}

impl<D: PostedData> Conn<D> {
    /// Returns the next packet that may be sent at `now`, and appends its header to `out`. Returns `None` if this pass
    /// sends no further packet of the connection.
    pub(crate) fn transmit(
        &mut self,
        now: Nanos,
        out: &mut Vec<u8>,
        host: &mut impl ConnCallbacks<D>,
    ) -> Option<OutgoingPacket> {
        self.now = now;
        self.withdraw_permit();
        let mut found = None;
        if self.may_respond_first() {
            found = self.next_packet(out, host);
        }
        if found.is_none() {
            self.process_deferred(host);
            found = self.next_packet(out, host);
        }
        if found.is_none() {
            self.resends = 0;
        }
        found
    }

    fn next_packet(&mut self, out: &mut Vec<u8>, host: &mut impl ConnCallbacks<D>) -> Option<OutgoingPacket> {
        if let Some(packet) = self.closing_packet(out) {
            return Some(packet);
        }
        if self.ending.is_closed() {
            let is_due = self.ending.refusal().is_some() && self.acks.is_due(self.now);
            return is_due.then(|| self.write_ack(out, 0, host));
        }
        if let Some(packet) = self.send_control(out, host) {
            return Some(packet);
        }
        // If packets are missing, an ack packet precedes data. Only ack packets contain the ranges received after the
        // gap, which the peer needs for its retransmissions.
        if self.acks.is_due(self.now) && !self.received.is_gapless() {
            return Some(self.write_ack(out, 0, host));
        }
        let data =
            self.send_next_piece(out, host).or_else(|| self.retransmit(out, host)).or_else(|| self.send_new(out, host));
        if self.ending.is_closed() {
            // A bind or an atomic operation has failed and ended the connection, so the next packet is a Reset or a
            // refusal.
            return self.next_packet(out, host);
        }
        let packet = data.or_else(|| self.probe_path(out));
        packet.or_else(|| self.acks.is_due(self.now).then(|| self.write_ack(out, 0, host)))
    }

    /// Returns the next challenge, confirmation or queued control packet. A response to another address than the peer's
    /// precedes all others, because a batch of packets has the destination of its first packet.
    fn send_control(&mut self, out: &mut Vec<u8>, host: &impl ConnCallbacks<D>) -> Option<OutgoingPacket> {
        let (start, peer) = (out.len(), self.peer());
        let is_elsewhere = |packet: &ControlPacket| matches!(packet, ControlPacket::Response(_, to) if *to != peer);
        let first = self.control_packets.iter().position(is_elsewhere).and_then(|at| self.control_packets.remove(at));
        if let Some(ControlPacket::Response(nonce, to)) = first {
            return Some(self.write_small(out, Kind::Response, &nonce.to_be_bytes(), Some(to)));
        }
        if let Some((to, nonce)) = self.peer_state.transmit(self.now, &self.flight.rtt) {
            let is_moving = to != self.peer_state.current_address();
            *if is_moving { &mut self.counters.challenges } else { &mut self.counters.keepalives } += 1;
            return Some(self.write_small(out, Kind::Challenge, &nonce.to_be_bytes(), Some(to)));
        }
        if self.confirming.as_mut().is_some_and(|it| it.transmit(self.now, &self.terms, out)) {
            return Some(outgoing(out.len() - start));
        }
        let packet = self.control_packets.pop_front()?;
        Some(match packet {
            ControlPacket::ProbeAck(size) => self.write_small(out, Kind::ProbeAck, &size.to_be_bytes(), None),
            ControlPacket::Response(nonce, to) => self.write_small(out, Kind::Response, &nonce.to_be_bytes(), Some(to)),
            ControlPacket::AckRequest => self.write_ack(out, FLAG_ACK_NOW, host),
        })
    }

    pub(super) fn queue_control(&mut self, packet: ControlPacket) {
        if self.control_packets.len() < MAX_CONTROL_PACKETS {
            self.control_packets.push_back(packet);
        }
    }

    pub(super) fn bounds(&self) -> SendLimits {
        SendLimits { ord: self.terms.ord, extensions: self.terms.extensions, credits: self.credits.limit }
    }

    /// Retransmits the first lost packet, if the window and the pacer allow it, or as a probe after a probe timeout.
    fn retransmit(&mut self, out: &mut Vec<u8>, host: &impl ConnCallbacks<D>) -> Option<OutgoingPacket> {
        if self.resends >= MAX_RETRANSMISSIONS {
            return None;
        }
        let (psn, mut sent) = self.flight.lost()?;
        let bytes = self.size(&sent);
        if self.flight.probes == 0 && !self.send_path.may_send(self.now, bytes, self.flight.bytes()) {
            return None;
        }
        if self.must_void(&sent) {
            sent = SentPayload { what: PayloadOwner::Nothing, length: 0, offset: 0, is_refragmented: false, ..sent };
            self.flight.replace_data(psn, sent);
        }
        match self.flight.retransmit_cause(psn) {
            Some(RetransmitCause::Pto) => self.counters.resent_probe += 1,
            _ if self.late > 0 => {
                self.late -= 1;
                self.counters.resent_timeout += 1;
            }
            _ => self.counters.resent_gap += 1,
        }
        self.resends += 1;
        if !sent.is_refragmented {
            self.send_path.path.lost(self.now, bytes as usize);
        }
        self.flight.record_retransmission(self.now, psn);
        self.send_path.sent(self.now, bytes, &self.flight);
        Some(self.send_data(out, psn, sent, FLAG_ACK_NOW, true, host))
    }

    /// Sends a data packet as one datagram, or in pieces if the path MTU has become smaller than the packet.
    fn send_data(
        &mut self,
        out: &mut Vec<u8>,
        psn: Psn,
        mut sent: SentPayload,
        flags: u16,
        resend: bool,
        host: &impl ConnCallbacks<D>,
    ) -> OutgoingPacket {
        let piece = self.send_path.piece().saturating_sub(self.extension_length(&sent) as u32);
        let is_refragmented = self.size(&sent) > self.send_path.path.size() as u64 && sent.length > piece;
        if is_refragmented != sent.is_refragmented {
            sent.is_refragmented = is_refragmented;
            self.flight.replace_data(psn, sent);
        }
        if !is_refragmented {
            let kind = if self.is_whole(&sent) { Kind::Fragment } else { Kind::Chunk };
            let packet = self.write_data(out, kind, psn, &sent, flags, host);
            return OutgoingPacket { command: sent.command && !resend, resend, ..packet };
        }
        self.counters.refragmented += 1;
        self.write_piece(out, SendingPieces::new(psn, sent, piece, resend), host)
    }

    /// Returns the next piece of the packet that is being sent in pieces. Returns `None` if there is no such packet, if
    /// it is no longer in flight (acked, or declared lost), or if its payload can no longer be sent.
    fn send_next_piece(&mut self, out: &mut Vec<u8>, host: &impl ConnCallbacks<D>) -> Option<OutgoingPacket> {
        let pieces = self.sending_pieces.take()?;
        let has_ended = self.flight.state(pieces.psn) != PsnState::InFlight || self.has_no_payload(&pieces.sent);
        (!has_ended).then(|| self.write_piece(out, pieces, host))
    }

    /// Whether the payload of a packet can no longer be sent: its request has ended, or its memory is unreadable.
    fn has_no_payload(&self, sent: &SentPayload) -> bool {
        match sent.what {
            PayloadOwner::Nothing => false,
            PayloadOwner::Response => {
                self.peer_reads.request(sent.slot).is_none() || self.peer_reads.is_unreadable(sent.slot)
            }
            PayloadOwner::Request => {
                self.requests.queue.get(sent.slot).is_none_or(|request| matches!(request.phase, SendPhase::Failed(_)))
            }
        }
    }

    /// Whether a lost packet must be retransmitted without its payload, to deliver only its PSN. Withdraws a send for
    /// which the peer has no receive.
    fn must_void(&mut self, sent: &SentPayload) -> bool {
        if self.has_no_payload(sent) {
            return true;
        }
        let request = self.requests.queue.get(sent.slot).filter(|_| sent.what == PayloadOwner::Request);
        // The peer's SRQ has become empty after the packet was sent. The peer would not accept a retransmission with
        // payload, and the missing PSN would block the completion of all later messages.
        let has_no_receive = request.is_some_and(|it| it.takes_receive() && !is_below(it.id, self.credits.limit));
        if has_no_receive {
            self.counters.withdrawn_sends += 1;
            self.requests.withdraw(*sent);
        }
        has_no_receive
    }

    /// Executes an atomic operation of the peer that is due, and completes requests that need no packet, such as binds.
    /// Then sends the next new data packet.
    fn send_new(&mut self, out: &mut Vec<u8>, host: &mut impl ConnCallbacks<D>) -> Option<OutgoingPacket> {
        if self.peer_reads.has_atomics() {
            self.execute_due(host);
        }
        let mut payload = self.next_payload();
        while let Err(wait @ (BlockedReason::BindReady | BlockedReason::Unsupported)) = payload
            && self.complete_without_packet(wait, host)
        {
            payload = self.next_payload();
        }
        match payload {
            Err(BlockedReason::Credit) => {
                let round_trip = self.flight.rtt.srtt().unwrap_or(self.config.min_timeout);
                self.credits.wait(self.now, round_trip, self.requests.numbers.sends);
            }
            Err(_) if self.has_window() => self.note_app_limited(),
            _ => {}
        }
        let sent = payload.ok()?;
        let bytes = self.size(&sent);
        if self.flight.probes == 0 && !self.send_path.may_send(self.now, bytes, self.flight.bytes()) {
            return None;
        }
        let psn = self.flight.sent(self.now, bytes, sent);
        match sent.what {
            PayloadOwner::Request => self.requests.record_sent(&sent, psn),
            _ => self.peer_reads.record_sent(&sent),
        }
        self.prefers_responses = sent.what == PayloadOwner::Request;
        if self.credits.deadline().is_some() && !matches!(self.next_request(), Err(BlockedReason::Credit)) {
            self.credits.stop();
        }
        *if sent.command { &mut self.commands } else { &mut self.data } += 1;
        let flags = if self.send_path.requests_ack(bytes) { FLAG_ACK_NOW } else { 0 };
        self.send_path.sent(self.now, bytes, &self.flight);
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(sent.length);
        Some(self.send_data(out, psn, sent, flags, false, host))
    }

    /// Executes the peer's next atomic operation, if all packets before it have arrived and all earlier responses were
    /// sent. Executes each operation once, and stores the result until the peer has acked the response.
    #[cold]
    fn execute_due(&mut self, host: &mut impl ConnCallbacks<D>) {
        let Some((id, PeerRead { key, address, .. }, operation)) = self.peer_reads.due_atomic(self.received.next())
        else {
            return;
        };
        match host.execute(key, address, operation) {
            Some(previous) => self.peer_reads.record_executed(id, previous),
            None => {
                self.peer_reads.mark_unreadable(id);
                self.refuse_unreadable(host);
            }
        }
    }

    /// Whether the limits on the number of packets allow one more data packet in flight.
    #[inline]
    pub(super) fn has_window(&self) -> bool {
        let is_open = self.commands + self.data < self.config.window && self.data < self.config.data_depth;
        self.flight.free_slots() > 0 && is_open
    }

    /// Marks the connection as app-limited if no lost packet waits for retransmission and the congestion window is not
    /// full: CheckIfApplicationLimited() (draft-ietf-ccwg-bbr-06, 4.1.2.4). The caller has checked that no new data
    /// waits.
    pub(super) fn note_app_limited(&mut self) {
        if self.flight.lost().is_none() && self.flight.bytes() < self.send_path.cwnd() {
            self.flight.mark_app_limited();
        }
    }

    fn next_request(&self) -> Result<SentPayload, BlockedReason> {
        let (fragment, chunk) = self.send_path.payloads();
        self.requests.next(self.bounds(), fragment, chunk)
    }

    /// Returns the next new packet of a request or of a read response, if its channel may have one more packet in
    /// flight.
    pub(super) fn next_payload(&self) -> Result<SentPayload, BlockedReason> {
        let (fragment, chunk) = self.send_path.payloads();
        let request = self.requests.next(self.bounds(), fragment, chunk);
        // A bind or an unsupported request sends no packet, so it does not wait for the window.
        if let Err(wait @ (BlockedReason::BindReady | BlockedReason::Unsupported)) = request {
            let is_due = wait == BlockedReason::Unsupported || self.bind_retry_at.is_none_or(|at| at <= self.now);
            if is_due {
                return Err(wait);
            }
        }
        if self.flight.free_slots() == 0 || self.commands + self.data >= self.config.window {
            return Err(BlockedReason::Idle);
        }
        let response = self.peer_reads.next(self.received.next(), fragment, chunk);
        let is_tiny = |sent: &SentPayload| sent.length <= self.config.tiny && self.is_whole(sent);
        let mut sent = match (request, response) {
            (Ok(request), Some(_)) if is_tiny(&request) || !self.prefers_responses => request,
            (_, Some(response)) => response,
            (Ok(request), None) => request,
            (Err(BlockedReason::BindReady), None) => return Err(BlockedReason::Idle),
            (Err(wait), None) => return Err(wait),
        };
        sent.command =
            sent.what == PayloadOwner::Request && self.commands < self.config.command_depth && is_tiny(&sent);
        if !sent.command && self.data >= self.config.data_depth {
            return Err(BlockedReason::Idle);
        }
        Ok(sent)
    }

    /// Executes the bind at the front of the queue, or fails the unsupported request there. Returns false if the bind
    /// is deferred or has failed, or the request is unsupported.
    #[cold]
    fn complete_without_packet(&mut self, wait: BlockedReason, host: &mut impl ConnCallbacks<D>) -> bool {
        let Some(request) = self.requests.queue.next().and_then(|slot| self.requests.queue.get(slot)) else {
            return false;
        };
        let outcome = if wait == BlockedReason::BindReady {
            host.execute_bind(&request.driver_data)
        } else {
            Err(Status::RemoteResponder)
        };
        self.bind_retry_at = (outcome == Ok(false)).then(|| self.now.saturating_add(BIND_RETRY));
        if self.bind_retry_at.is_some() {
            return false;
        }
        if let Err(status) = outcome {
            self.fail_next(status);
        } else if let Some(request) = self.requests.start() {
            request.phase = SendPhase::Done;
        }
        self.complete_ended_requests(host);
        outcome.is_ok() && !self.ending.is_closed()
    }

    /// Fails the request whose packet would be sent next.
    pub(super) fn fail_next(&mut self, status: Status) {
        if let Some(sent) = self.requests.withdrawn.front() {
            let slot = sent.slot;
            self.requests.fail(slot, status);
        } else if let Some(slot) = self.requests.queue.next() {
            self.requests.start();
            self.requests.fail(slot, status);
        }
    }

    /// Sends a probe of the path MTU.
    fn probe_path(&mut self, out: &mut Vec<u8>) -> Option<OutgoingPacket> {
        let size = self.send_path.path.next_probe(self.now)?;
        let padding = size.saturating_sub(size_of::<PacketHeader>() + self.send_path.extra);
        self.counters.mtu_probes += 1;
        let mut packet = self.write_small(out, Kind::Probe, &[], None);
        packet.payload = Payload::Padding(u32::try_from(padding).unwrap_or(0));
        packet.command = false;
        Some(packet)
    }
}
