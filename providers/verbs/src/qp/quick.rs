//! Fast path of posts with one segment that is not empty, to a queue with space: receives, sends, RDMA writes and RDMA
//! reads. A request may have the flag SUPPRESS, and no other flag.
//!
//! Requests need an established connection; receives do not. Each function returns false and changes nothing if it
//! cannot use the fast path, for example because a receive would cross the high watermark, or if the device's post
//! fails. The caller then uses the general path.
#![forbid(unsafe_code)]

use std::slice;

use dapl::provider::{Op, Segment, Token, Work};
use ibverbs_sys::ibv_send_flags;

use super::gather::sge;
use super::{PostPhase, QpCore, SendQueue};
use crate::ibv;
use crate::qp::work::WorkEntry;

impl QpCore {
    /// Posts a receive with one segment. Returns false, without a post, if the general path is needed: the segment is
    /// empty, the queue is full or flushed, a watermark would be crossed, or the device's post fails.
    #[inline(always)]
    pub(super) fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        let mut recv = self.recv.lock();
        let count = recv.work.len();
        let fits = count < self.max_recvs && !recv.high.is_crossed(count + 1);
        if recv.phase != PostPhase::Live || !fits || segment.length == 0 {
            return false;
        }
        if recv.hw.post_recv(recv.work.next_id(), &[sge(segment)]).is_err() {
            return false; // the general path tries again, and reports the error
        }
        // The receive may be complete already. Its completion is processed only under this lock, so it finds the entry.
        recv.work.save_segments(slice::from_ref(segment));
        recv.work.push(WorkEntry::recv(Token { cookie, ep: self.ep.handle, work: Work::Recv, ..Token::default() }));
        true
    }

    /// Posts a send, RDMA write or RDMA read with one segment. Returns false, without a post, if the general path is
    /// needed: for example, the connection is not established, the queue is full, or the segment is empty or too long.
    #[inline(always)]
    pub(super) fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        let _deferral = self.defer();
        let mut send = self.send.lock();
        if !send.is_established || send.outstanding() >= self.max_requests || segment.length == 0 {
            return false;
        }
        let SendQueue { hw, work, template, hint, reads, longest, .. } = &mut *send;
        let (work_kind, may_inline) = match op {
            Op::Send { solicited: false } => (Work::Send, true),
            Op::Write(_) => (Work::Write, true),
            Op::Read(_) if *reads > 0 => (Work::Read, false),
            _ => return false,
        };
        if segment.length > *longest {
            return false;
        }
        // The device does not check the key of inline data, which the CPU copies. So the key is checked here.
        // Deregistration waits for this post, because a hazard slot of this thread announces the EP.
        let is_inline = may_inline
            && segment.length <= u64::from(hw.max_inline)
            && self.device.keys.allows_announced(hint, self.pd.id(), segment);
        let signaled = ibv_send_flags::IBV_SEND_SIGNALED;
        let flags = if is_inline { signaled | ibv_send_flags::IBV_SEND_INLINE } else { signaled };
        let request = ibv::DeviceSendWr { id: work.next_id(), op, segments: &[sge(segment)], flags };
        if hw.post_send(template, &request).is_err() {
            return false; // the general path tries again, and reports the error
        }
        if !is_inline {
            work.save_segments(slice::from_ref(segment));
        }
        let token = Token { cookie, ep: self.ep.handle, work: work_kind, ..Token::default() };
        let bytes = segment.length;
        work.push(WorkEntry { token, bytes, suppress: SUPPRESS, is_read: is_inline, ..WorkEntry::default() });
        true
    }
}
