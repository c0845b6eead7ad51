//! Extension operations of the peer: completes a receive for an RDMA write with immediate data, executes atomic
//! operations, and reads the immediate data or the window key of a send.

use dapl::provider::{ATOMIC_SIZE, Completion, ReceivedOp, Region};
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::LocalMemory;

use super::{Delivery, RxRings};
use crate::memory::regions::AccessTarget;
use crate::proto::message::{AtomicRequest, Header, MessageKind};
use crate::qp::context::{ConnectionFault, NAK_ACCESS, QpContext};
use crate::qp::ring::SlotFields;

/// Returns how a send of this kind completes its receive.
pub(super) fn arrival(kind: MessageKind) -> ReceivedOp {
    match kind {
        MessageKind::SendImmediate => ReceivedOp::SendImmediate,
        MessageKind::SendInvalidate => ReceivedOp::SendInvalidate,
        _ => ReceivedOp::Send,
    }
}

impl RxRings {
    /// Returns the immediate data or the window key of a send; 0 for a send without either.
    pub(super) fn value(&self, header: Header, fields: &SlotFields) -> u32 {
        match header.kind {
            MessageKind::Send => 0,
            _ if header.inline => fields.aux,
            _ => self.requests.value(),
        }
    }

    /// Completes a receive for an RDMA write with immediate data. Returns false if the write waits for a receive.
    pub(super) fn notify(&mut self, delivery: &mut Delivery<'_, '_>) -> Result<bool, ConnectionFault> {
        let context = delivery.context;
        let SlotFields { ack, aux: value, total } = self.requests.fields();
        context.watch.set_carried_ack(ack);
        let bytes = total.filter(|total| *total <= context.max_rdma);
        let bytes = bytes.ok_or(ConnectionFault::InvalidData("an RDMA write longer than the maximum"))?;
        if !self.message.is_between() {
            return Err(ConnectionFault::InvalidData(
                "an RDMA write with immediate data between the fragments of a message",
            ));
        }
        // The write copies no bytes to the receive's memory, so a receive of any length matches.
        if !self.find_receive(delivery, 0)? {
            return Ok(false);
        }
        let token = delivery.take_receive()?;
        let (solicited, arrival) = (delivery.header.solicited, ReceivedOp::WriteImmediate);
        context.complete_recv(
            delivery.out,
            Completion { token, bytes, solicited, arrival, value, ..Completion::default() },
        );
        Ok(true)
    }

    /// Executes an atomic operation on local memory, and sends the response.
    pub(super) fn execute(&mut self, context: &QpContext) -> Result<bool, ConnectionFault> {
        context.watch.set_carried_ack(self.requests.fields().ack);
        let request = AtomicRequest::decode(self.requests.payload_words());
        let AtomicRequest { key, address, operation } = request
            .ok_or(ConnectionFault::InvalidData("an atomic operation of unknown type or at an unaligned address"))?;
        let right = AccessRight::RemoteAtomic;
        let range = Region { address, length: ATOMIC_SIZE };
        let held = context.regions.acquire_for_peer(key, context.peer_ids(), range, right);
        let found = held.ok().and_then(|(_hold, address)| {
            fail_point!(TargetHeld);
            // SAFETY: the memory is registered and marked in use, and the peer may execute atomic operations on it.
            unsafe { operation.apply_registered(address, || context.regions.registration(key)) }
        });
        let status = if found.is_some() { 0 } else { NAK_ACCESS };
        fail_point!(TargetCopied);
        let fields = SlotFields { total: found, ..SlotFields::default() };
        self.send_response_fields(Header::plain(MessageKind::AtomicAck, status), &fields)?;
        // If the access was denied, the connection ends, and later requests are not executed.
        if found.is_some() {
            return Ok(true);
        }
        context.report_refused(
            None,
            context.regions.entry(key),
            AccessTarget { key, pd: context.pd, address, length: ATOMIC_SIZE, right },
        );
        Err(ConnectionFault::Access)
    }
}
