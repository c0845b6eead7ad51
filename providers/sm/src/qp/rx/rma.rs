//! RDMA operations of the peer whose bytes pass through the peer's RMA buffer: checks the access, copies between the
//! buffer and the registered memory, and sends the response (SM-20, SM-21).

use std::sync::atomic::Ordering;

use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::user_copy;

use super::RxRings;
use crate::memory::regions::AccessTarget;
use crate::proto::message::{Fragment, Header, LINE, MessageKind};
use crate::qp::context::{ConnectionFault, NAK_ACCESS, QpContext};

impl RxRings {
    /// Processes an RMA fragment in the peer's RMA buffer: copies between this buffer and local memory, and sends the
    /// response.
    pub(super) fn process_fragment(&mut self, context: &QpContext, header: Header) -> Result<bool, ConnectionFault> {
        let fields = self.requests.fields();
        context.watch.set_carried_ack(fields.ack);
        let peer_side =
            self.link.peer_side().ok_or(ConnectionFault::InvalidData("data before the set-up was complete"))?;
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
        let Fragment { key, address, .. } = fragment;
        let ids = (context.pd, context.domain.number());
        let held = context.regions.acquire_for_peer(key, ids, address, length as u64, right);
        let is_copied = held.is_ok_and(|(_hold, address)| {
            fail_point!(TargetHeld);
            let registration = || context.regions.registration(key);
            // SAFETY: the bytes at `address` are in registered memory that `_hold` marks in use. The bytes at `payload`
            // are in the peer's mapped RMA buffer, as was checked above.
            unsafe {
                match right {
                    AccessRight::RemoteWrite => user_copy::write(payload, address, length, registration),
                    _ => user_copy::read(address, payload, length, registration),
                }
            }
        });
        let status = if is_copied { 0 } else { NAK_ACCESS };
        fail_point!(TargetCopied);
        self.send_response(Header::plain(MessageKind::RmaAck, status), fields.aux)?;
        // If the access was denied, the connection ends, and later requests are not executed.
        if status == 0 {
            return Ok(true);
        }
        context.report_refused(
            None,
            context.regions.entry(key),
            AccessTarget { key, pd: context.pd, address, length: length as u64, right },
        );
        Err(ConnectionFault::Access)
    }
}
