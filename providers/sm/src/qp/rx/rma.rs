//! RDMA operations of the peer that this process copies. Checks the access, copies between the registered memory and
//! the peer's ring or RMA buffer, and sends the response (SM-20, SM-21, SM-27).

use std::sync::atomic::Ordering;

use dapl::provider::Region;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::memory::user_copy;

use super::RxRings;
use crate::eager_claims::Claim;
use crate::memory::regions::AccessTarget;
use crate::proto::message::{EagerWrite, Fragment, Header, LINE, MessageKind};
use crate::qp::context::{ConnectionFault, NAK_ACCESS, QpContext};

const EARLY: ConnectionFault = ConnectionFault::InvalidData("data before the set-up was complete");

impl RxRings {
    /// Processes an RMA fragment in the peer's RMA buffer: copies between this buffer and local memory, and sends the
    /// response.
    pub(super) fn process_fragment(&mut self, context: &QpContext, header: Header) -> Result<bool, ConnectionFault> {
        let fields = self.requests.fields();
        context.watch.set_carried_ack(fields.ack);
        let peer_side = self.link.peer_side().ok_or(EARLY)?;
        let line = fields.aux as usize * LINE;
        if line + 2 * LINE > peer_side.rma.len() {
            return Err(ConnectionFault::InvalidData("a fragment outside its RMA buffer"));
        }
        // The peer may change the header at any time, so each word is read once, and only the copy is used.
        let fragment =
            Fragment::decode(std::array::from_fn(|n| peer_side.rma.word(line + n * 8).load(Ordering::Relaxed)));
        let length = fragment.length as usize;
        let payload = peer_side
            .rma
            .bytes(line + LINE, length)
            .ok_or(ConnectionFault::InvalidData("a fragment outside its RMA buffer"))?;
        let right = AccessRight::remote(header.kind == MessageKind::RmaWrite);
        self.copy_for_peer(context, fragment, payload, right, fields.aux)
    }

    /// Processes an eager write: claims it, copies its payload to local memory, and sends the response. If the
    /// initiator has reclaimed the write, waits until the initiator has copied it, and sends no response.
    pub(super) fn process_eager_write(&mut self, context: &QpContext, header: Header) -> Result<bool, ConnectionFault> {
        context.watch.set_carried_ack(self.requests.fields().ack);
        let slot = self.requests.consumed();
        let claim = self.link.eager_claims().ok_or(EARLY)?.claim(slot);
        self.waits_for_initiator = claim == Claim::Pending;
        if claim != Claim::Granted {
            return Ok(claim == Claim::Copied);
        }
        fail_point!(EagerClaimed);
        let write = EagerWrite::decode(self.requests.payload_words());
        let EagerWrite { address, key } =
            write.ok_or(ConnectionFault::InvalidData("an eager write with an invalid key"))?;
        let length = header.length as usize;
        let payload = if header.inline {
            (length <= EagerWrite::INLINE).then(|| self.requests.payload().wrapping_add(EagerWrite::BYTES))
        } else {
            let rma = &self.link.peer_side().ok_or(EARLY)?.rma;
            rma.bytes(self.requests.fields().aux as usize * LINE, length).map(|bytes| bytes.cast_const())
        };
        let payload = payload
            .filter(|_| length > 0)
            .ok_or(ConnectionFault::InvalidData("an eager write outside its slot and its RMA buffer"))?;
        let fragment = Fragment { key, length: header.length, address, origin: 0, cookie: 0 };
        self.copy_for_peer(context, fragment, payload.cast_mut(), AccessRight::RemoteWrite, slot as u32)
    }

    /// Copies between registered memory and a buffer of the peer, and sends the response. `right`: the access that the
    /// peer needs. `id`: identifies the operation in the response.
    fn copy_for_peer(
        &mut self,
        context: &QpContext,
        fragment: Fragment,
        payload: *mut u8,
        right: AccessRight,
        id: u32,
    ) -> Result<bool, ConnectionFault> {
        let Fragment { key, address, length, .. } = fragment;
        let range = Region { address, length: length.into() };
        let held = context.regions.acquire_for_peer(key, context.peer_ids(), range, right);
        let is_copied = held.is_ok_and(|(_hold, address)| {
            fail_point!(TargetHeld);
            let (length, registration) = (length as usize, || context.regions.registration(key));
            // SAFETY: the bytes at `address` are in registered memory that `_hold` marks in use. The caller has checked
            // that the bytes at `payload` are in the peer's slot or mapped RMA buffer; a slot is only read.
            unsafe {
                match right {
                    AccessRight::RemoteWrite => user_copy::write(payload, address, length, registration),
                    _ => user_copy::read(address, payload, length, registration),
                }
            }
        });
        fail_point!(TargetCopied);
        let target = AccessTarget { key, pd: context.pd, address, length: length.into(), right };
        self.respond(context, if is_copied { 0 } else { NAK_ACCESS }, id, &target)
    }

    /// Sends the response to an operation. After a refused access the connection ends, and later requests are not
    /// executed.
    fn respond(
        &mut self,
        context: &QpContext,
        status: u32,
        id: u32,
        target: &AccessTarget,
    ) -> Result<bool, ConnectionFault> {
        self.send_response(Header::plain(MessageKind::RmaAck, status), id)?;
        if status == NAK_ACCESS {
            context.report_refused(None, context.regions.entry(target.key), *target);
            return Err(ConnectionFault::Access);
        }
        Ok(status == 0)
    }
}
