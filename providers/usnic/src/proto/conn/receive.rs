//! Reception of the packets of a connection. Payload is placed when it arrives, in any order. Completions are reported
//! in PSN order.
//!
//! All fields of a packet are untrusted until they are checked. Only accepted packets are acked. An invalid request is
//! refused after all earlier requests are complete. Duplicates of accepted packets are detected by their PSN, and
//! dropped before memory is accessed.

use dapl::provider::{ATOMIC_SIZE, ReceivedOp as MessageKind, Status};
use dapl_software::memory::atomic::Atomic;
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, TryFromBytes};

use super::Conn;
use super::receives::IncomingMessage;
use super::send_path::SendPath;
use super::transmit::ControlPacket;
use super::types::{ConnCallbacks, INVALID_REQUEST, NotAccepted, PostedData, SendValue, SourceAddress};
use crate::proto::psn::Psn;
use crate::proto::received::Arrival;
use crate::proto::wire::{
    self, AckFields, Data, FLAG_ACK_NOW, FLAG_LAST, Kind, Message, Op, PacketHeader, Refusal, SOLICITED,
};
use crate::proto::{Nanos, challenge};

/// A small message that the fast path has delivered. Its record in `received` and the processing of the ack in its
/// packet are deferred, so that the consumer can reply first (US-12).
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredMessage {
    psn: Psn,
    ack: AckFields,
    ack_now: bool,
    at: Nanos,
    /// Whether the packet is already recorded in `received`. The ack that it carried must still be processed.
    pub(super) is_recorded: bool,
}

/// Minimum payload in bytes of an RDMA write packet that gets a prompt ack. For a shorter packet, the ack would cost as
/// much as the packet.
const PROMPT_ACK_BYTES: usize = 1024;

/// Returns whether a message is solicited, and its immediate data or the key to invalidate, if it has one of them.
fn value_of(data: &Data<'_>) -> SendValue {
    let solicited = data.message.spare[0] & SOLICITED != 0;
    let (arrival, value) = match data.op {
        Op::SendImmediate => (MessageKind::SendImmediate, data.message.key.get()),
        Op::SendInvalidate => (MessageKind::SendInvalidate, data.message.key.get()),
        Op::WriteImmediate => {
            let value = data.extension.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            (MessageKind::WriteImmediate, value)
        }
        _ => return SendValue { solicited: data.op == Op::SendSolicited, ..SendValue::default() },
    };
    SendValue { arrival, value, solicited }
}

/// Copies the payload of a write packet to its destination.
fn deliver_write<D: PostedData>(data: &Data<'_>, host: &mut impl ConnCallbacks<D>) -> Result<(), NotAccepted> {
    let Message { key, address, length, .. } = data.message;
    let (key, address, length) = (key.get(), address.get(), length.get());
    if length == 0 {
        return Ok(());
    }
    let is_whole = data.payload.len() == length as usize;
    let at = address.checked_add(u64::from(data.offset));
    let may = is_whole || host.may_touch(key, address, length, true);
    let at = at.filter(|_| may).ok_or(NotAccepted::Refused(Refusal::Access, None))?;
    host.put_remote(key, at, data.payload).map_err(|refusal| NotAccepted::Refused(refusal, None))
}

impl<D: PostedData> Conn<D> {
    /// Handles a packet of this connection, whose token the caller has checked. `body` is the part after the header.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        head: &PacketHeader,
        body: &[u8],
        from: SourceAddress,
        host: &mut impl ConnCallbacks<D>,
    ) {
        self.now = now;
        self.withdraw_permit();
        self.process_deferred(host);
        self.peer_state.record_packet(now, from);
        // The peer may have sent an Accept, Cookie or Reject before the confirmation or the first ack arrived there. It
        // sends any other packet only afterwards.
        if !matches!(head.kind(), Some(Kind::Accept | Kind::Cookie | Kind::Reject)) {
            self.confirming = None;
        }
        let is_known = match head.kind() {
            Some(kind @ (Kind::Fragment | Kind::Chunk | Kind::Piece)) => self.receive_data(kind, head, body, host),
            Some(Kind::Ack) => self.receive_ack(head, body, host),
            Some(kind @ (Kind::Fin | Kind::FinAck | Kind::Reset)) => self.receive_close(kind, body, from, host),
            Some(kind) => self.receive_control(kind, body, from),
            None => false,
        };
        self.counters.malformed += u64::from(!is_known);
    }

    /// Handles probes and challenges, the replies to both, and late handshake packets.
    fn receive_control(&mut self, kind: Kind, body: &[u8], from: SourceAddress) -> bool {
        let size = body.len() + size_of::<PacketHeader>() + self.send_path.extra;
        match kind {
            Kind::Probe => self.queue_control(ControlPacket::ProbeAck(u32::try_from(size).unwrap_or(0))),
            Kind::ProbeAck => {
                let Ok(size) = U32::read_from_bytes(body) else { return false };
                self.send_path.path.acked(self.now, size.get() as usize);
                self.send_path.measure();
            }
            Kind::Challenge => {
                let Some(nonce) = challenge::nonce(body) else { return false };
                self.queue_control(ControlPacket::Response(nonce, from));
            }
            Kind::Response => {
                let Some(nonce) = challenge::nonce(body) else { return false };
                if self.peer_state.responded(from, nonce) {
                    // The path is another one, so all measurements start again.
                    self.send_path = SendPath::new(&self.config, &self.terms);
                }
            }
            // The peer repeats Accept or Confirm until it receives a packet, so an ack is sent.
            Kind::Accept | Kind::Confirm => self.acks.request_ack(),
            // A late packet of the handshake gets no reply.
            _ => {}
        }
        true
    }

    fn receive_ack(&mut self, head: &PacketHeader, body: &[u8], host: &mut impl ConnCallbacks<D>) -> bool {
        let Some((ack, selective, ranges)) = wire::ack(body) else { return false };
        self.counters.acks_received += 1;
        if head.has(FLAG_ACK_NOW) {
            self.acks.request_ack();
            self.receives.on_rnr_probe(host);
        }
        if self.ending.is_closed() {
            return true; // The ack that was requested above reports the refusal again.
        }
        self.process_ack(&ack, ranges, host);
        if let Ok(refusal) = Refusal::try_read_from_bytes(&[selective.refusal]) {
            self.refused(refusal, Psn(selective.refused.get()), host);
        }
        true
    }

    /// Handles a data packet: a fragment (whole message), a chunk (part of a message), or a piece of a re-fragmented
    /// packet.
    fn receive_data(&mut self, kind: Kind, head: &PacketHeader, body: &[u8], host: &mut impl ConnCallbacks<D>) -> bool {
        let Some(data) = wire::data(kind, body) else { return false };
        if self.ending.is_unreachable() {
            self.acks.send_ack_packet(); // After a refusal, the ack packet reports it again.
            return true;
        }
        let psn = Psn(data.carried.psn.get());
        let (is_probe, is_last) = (head.has(FLAG_ACK_NOW), kind != Kind::Fragment && head.has(FLAG_LAST));
        if kind == Kind::Fragment && self.receive_fast(psn, &data, is_probe, host) {
            return true;
        }
        self.process_ack(&data.carried.ack, &[], host);
        if self.ending.is_closed() {
            return true;
        }
        let arrival = self.received.classify(psn);
        match arrival {
            Arrival::Outside => self.counters.beyond_window += 1,
            Arrival::Duplicate => {
                self.counters.duplicates += 1;
                self.acks.record_arrival(self.now, arrival, false, is_probe);
            }
            Arrival::Next | Arrival::Ahead => match self.deliver_packet(psn, &data, host) {
                Ok(Some(bytes)) => {
                    self.accept(psn, arrival, bytes, is_last, is_probe, host);
                    if data.op == Op::Write && bytes >= PROMPT_ACK_BYTES {
                        self.acks.shorten_delay();
                    }
                }
                Ok(None) if is_probe => self.acks.request_ack(),
                Ok(None) => {}
                Err(reason) => self.reject_packet(psn, arrival, reason, host),
            },
        }
        true
    }

    /// Checks a packet or piece and copies its payload. Returns the payload length of the whole packet, or `None` if
    /// other pieces of the packet are missing.
    fn deliver_packet(
        &mut self,
        psn: Psn,
        data: &Data<'_>,
        host: &mut impl ConnCallbacks<D>,
    ) -> Result<Option<usize>, NotAccepted> {
        self.pieces.check(psn, data)?;
        self.deliver_payload(psn, data, host)?;
        Ok(self.pieces.mark_delivered(psn, data))
    }

    /// Records a complete packet as received, and reports the receives and requests that it completes.
    fn accept(
        &mut self,
        psn: Psn,
        arrival: Arrival,
        bytes: usize,
        is_last: bool,
        is_probe: bool,
        host: &mut impl ConnCallbacks<D>,
    ) {
        self.counters.received += 1;
        self.counters.received_bytes += bytes as u64;
        self.counters.out_of_order += u64::from(arrival == Arrival::Ahead);
        let closes_gap = arrival == Arrival::Next && !self.received.is_gapless();
        self.received.accept(psn);
        self.acks.record_arrival(self.now, arrival, is_last, is_probe || closes_gap);
        if arrival == Arrival::Next {
            while let Some((driver_data, message)) = self.receives.take_completed(self.received.next()) {
                let IncomingMessage { length, value } = message;
                if value.arrival == MessageKind::SendInvalidate {
                    host.invalidate(value.value);
                }
                host.recv_done(driver_data, Status::Success, length.into(), value);
            }
        }
        self.complete_ended_requests(host);
    }

    /// Handles a packet that was not accepted: requests an ack, which does not cover the packet. An invalid response
    /// ends the connection. An invalid request is refused, which also ends the connection, if it is the next packet in
    /// order and all earlier requests are complete.
    #[cold]
    fn reject_packet(&mut self, psn: Psn, arrival: Arrival, reason: NotAccepted, host: &mut impl ConnCallbacks<D>) {
        self.acks.request_ack();
        match reason {
            NotAccepted::Later => self.counters.no_receive += 1,
            // Earlier requests must complete before the refusal. The peer will retransmit this packet, which is then
            // checked again.
            NotAccepted::Refused(..) if arrival != Arrival::Next || self.peer_reads.has_before(psn) => {}
            NotAccepted::Refused(refusal, receive) => self.refuse(refusal, psn, receive, host),
            NotAccepted::BadResponse => self.end_after_invalid_packet(Status::BadResponse, host),
        }
    }

    /// Checks the operation, and copies the payload to its destination.
    fn deliver_payload(
        &mut self,
        psn: Psn,
        data: &Data<'_>,
        host: &mut impl ConnCallbacks<D>,
    ) -> Result<(), NotAccepted> {
        let message = &data.message;
        let (id, key, address, length) =
            (message.id.get(), message.key.get(), message.address.get(), message.length.get());
        match data.op {
            Op::Send | Op::SendSolicited | Op::SendImmediate | Op::SendInvalidate | Op::WriteImmediate => {
                self.deliver_send(psn, data, host)
            }
            Op::Write => deliver_write(data, host),
            Op::ReadRequest => {
                if length > 0 && !host.may_touch(key, address, length, false) {
                    return Err(NotAccepted::Refused(Refusal::Access, None));
                }
                self.peer_reads.add(id, psn, key, address, length, None)
            }
            Op::FetchAdd | Op::CompareSwap => self.receive_atomic(psn, data, host),
            Op::ReadResponse | Op::AtomicResponse => self.deliver_response(data, host),
        }
    }

    /// Checks and records an atomic operation of the peer, which `execute_due` executes.
    fn receive_atomic(
        &mut self,
        psn: Psn,
        data: &Data<'_>,
        host: &mut impl ConnCallbacks<D>,
    ) -> Result<(), NotAccepted> {
        let Message { id, key, address, length, .. } = data.message;
        let (key, address) = (key.get(), address.get());
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)).ok_or(INVALID_REQUEST);
        let first = number(data.extension)?;
        let operation = match data.op {
            Op::FetchAdd => Atomic::FetchAdd(first),
            _ => Atomic::CompareSwap { compare: first, swap: number(&data.extension[8..])? },
        };
        if u64::from(length.get()) != ATOMIC_SIZE || !Atomic::is_aligned(address) {
            return Err(INVALID_REQUEST);
        }
        if !host.may_execute(key, address) {
            return Err(NotAccepted::Refused(Refusal::Access, None));
        }
        self.peer_reads.add(id.get(), psn, key, address, 0, Some(operation))
    }

    fn deliver_send(&mut self, psn: Psn, data: &Data<'_>, host: &mut impl ConnCallbacks<D>) -> Result<(), NotAccepted> {
        let Some(slot) = self.receives.find(data.message.id.get(), host)? else { return Ok(()) };
        let length = data.message.length.get();
        let message = IncomingMessage { length, value: value_of(data) };
        let receive = self.receives.get(slot).ok_or(INVALID_REQUEST)?;
        if receive.contradicts(message) {
            return Err(INVALID_REQUEST);
        }
        if data.op == Op::WriteImmediate {
            // A write with immediate data completes the receive, but does not use the receive's memory.
            deliver_write(data, host)?;
        } else {
            if u64::from(length) > receive.capacity {
                return Err(NotAccepted::Refused(Refusal::Receive, Some((slot, Status::LocalLength))));
            }
            if data.op == Op::SendInvalidate && !host.may_invalidate(message.value.value) {
                return Err(NotAccepted::Refused(Refusal::Access, Some((slot, Status::LocalProtection))));
            }
            host.put_recv(&receive.driver_data, data.offset, data.payload)
                .map_err(|status| NotAccepted::Refused(Refusal::Receive, Some((slot, status))))?;
        }
        let is_recorded = self.receives.record_received(slot, psn, message, data.offset, data.payload.len() as u32);
        is_recorded.then_some(()).ok_or(NotAccepted::Later)
    }

    /// Copies the payload of a read response, or the result of an atomic operation.
    fn deliver_response(&mut self, data: &Data<'_>, host: &mut impl ConnCallbacks<D>) -> Result<(), NotAccepted> {
        let slot = self.requests.read(data.message.id.get()).ok_or(NotAccepted::BadResponse)?;
        let request = self.requests.queue.get(slot).ok_or(NotAccepted::BadResponse)?;
        let is_atomic = request.work.and_then(Atomic::of).is_some();
        if is_atomic != (data.op == Op::AtomicResponse) {
            return Err(NotAccepted::BadResponse);
        }
        let previous;
        let bytes = if is_atomic {
            let found: [u8; 8] = data.extension.try_into().map_err(|_| NotAccepted::BadResponse)?;
            previous = u64::from_be_bytes(found).to_ne_bytes();
            &previous
        } else if request.length == data.message.length.get() {
            data.payload
        } else {
            return Err(NotAccepted::BadResponse);
        };
        if let Err(status) = host.put_read(&request.driver_data, data.offset, bytes) {
            self.requests.fail(slot, status);
            return Ok(());
        }
        let is_recorded = self.requests.record_received(slot, data.offset, bytes.len() as u32);
        is_recorded.then_some(()).ok_or(NotAccepted::Later)
    }

    /// Fast path for a small send that arrives in order while no earlier send is incomplete, without a shared receive
    /// queue: delivers the message, and defers its record and its ack (see [`DeferredMessage`]). Returns false, without
    /// effect, if the packet needs the general path.
    #[inline]
    fn receive_fast(&mut self, psn: Psn, data: &Data<'_>, ack_now: bool, host: &mut impl ConnCallbacks<D>) -> bool {
        let is_send = matches!(data.op, Op::Send | Op::SendSolicited);
        let is_due = psn == self.received.next() && self.received.is_gapless();
        if !is_send || !is_due || data.payload.len() > self.config.tiny as usize || self.deferred.is_some() {
            return false;
        }
        let Some(receive) = self.receives.waiting(data.message.id.get()) else { return false };
        if data.payload.len() as u64 > receive.capacity || host.put_recv(&receive.driver_data, 0, data.payload).is_err()
        {
            return false; // The general path finds the same error and handles it.
        }
        if let Some(driver_data) = self.receives.complete_waiting() {
            let value = SendValue { solicited: data.op == Op::SendSolicited, ..SendValue::default() };
            host.recv_done(driver_data, Status::Success, data.payload.len() as u64, value);
        }
        self.counters.fast += 1;
        self.counters.received += 1;
        self.counters.received_bytes += data.payload.len() as u64;
        self.deferred = Some(DeferredMessage { psn, ack: data.carried.ack, ack_now, at: self.now, is_recorded: false });
        true
    }

    /// Does the work that the fast path has deferred.
    #[inline]
    pub(super) fn process_deferred(&mut self, host: &mut impl ConnCallbacks<D>) {
        self.record_deferred();
        if let Some(DeferredMessage { ack, .. }) = self.deferred.take() {
            self.process_ack(&ack, &[], host);
        }
    }

    /// Records the deferred message as received. Called before an ack is encoded, so that the ack covers the message.
    #[inline]
    pub(super) fn record_deferred(&mut self) {
        if let Some(DeferredMessage { psn, ack_now, at, is_recorded: is_recorded @ false, .. }) = &mut self.deferred {
            *is_recorded = true;
            self.received.accept(*psn);
            self.acks.record_arrival(*at, Arrival::Next, false, *ack_now);
        }
    }

    /// Returns the PSN after all packets that were received in order, including a deferred message.
    pub(super) fn next_expected(&self) -> Psn {
        let is_unrecorded = self.deferred.is_some_and(|deferred| !deferred.is_recorded);
        self.received.next().plus(is_unrecorded.into())
    }

    /// Whether a waiting request may be sent before the deferred ack is processed. Returns false if this ack may change
    /// which packet is sent first. Otherwise records the deferred message, which the packet of the request then acks.
    pub(super) fn may_respond_first(&mut self) -> bool {
        let is_unrecorded = self.deferred.is_some_and(|deferred| !deferred.is_recorded);
        let has_no_loss = self.flight.lost().is_none() && self.sending_pieces.is_none() && self.flight.probes == 0;
        let is_open = !self.ending.is_closed();
        let may = is_unrecorded && has_no_loss && is_open && self.has_requests();
        if may {
            self.record_deferred();
        }
        may
    }
}
