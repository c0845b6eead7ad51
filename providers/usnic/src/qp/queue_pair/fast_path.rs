//! Fast paths for posts of one segment: a short send that is transmitted immediately, a request behind waiting
//! requests, and a receive. A request may have the flag SUPPRESS, and no other flag.
//!
//! If the conditions of a fast path are not met, its function returns false without effect, and the caller uses the
//! general function.

use dapl::provider::{Op, Segment, Token, Work};
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::unlock_rarely;

use super::{DIRECT_SEND_BELOW, QpCore, QpState};
use crate::device;
use crate::proto::Nanos;
use crate::proto::conn::{AfterShortSend, Post};
use crate::proto::schedule::PendingWork;
use crate::qp::context::RecvRequest;
use crate::qp::transport::Transport;

impl QpCore {
    /// Implements [`QueuePair::post_recv_quickly`](dapl::provider::QueuePair::post_recv_quickly).
    #[inline(always)]
    pub(super) fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        let mut state = self.state.lock();
        let most = state.quick_recvs;
        if let Some(transport) = &mut state.transport {
            let fill = |recv: &mut RecvRequest| {
                recv.segments.set_one(segment);
                recv.token = Token { cookie, ep: self.context.ep.handle, work: Work::Recv, ..Token::default() };
            };
            if let Some(is_announced) = transport.conn.post_recv_quickly(segment.length, most, fill) {
                if is_announced {
                    self.schedule_ack(transport);
                }
                return true;
            }
        }
        unlock_rarely(state);
        false
    }

    /// Implements [`QueuePair::post_request_quickly`](dapl::provider::QueuePair::post_request_quickly).
    #[inline(always)]
    pub(super) fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        let mut state = self.state.lock();
        if self.post_under_lock::<SUPPRESS>(&mut state, op, segment, cookie) {
            return true;
        }
        unlock_rarely(state);
        false
    }

    /// Posts a request if earlier requests wait to be sent, or if it is a send that may be transmitted now as a short
    /// packet. Otherwise returns false.
    #[inline(always)]
    fn post_under_lock<const SUPPRESS: bool>(
        &self,
        state: &mut QpState,
        op: Op,
        segment: &Segment,
        cookie: u64,
    ) -> bool {
        let Some(transport) = &mut state.transport else { return false };
        if transport.conn.has_short_permit() || !transport.conn.has_requests() {
            if !matches!(op, Op::Send { .. }) {
                return false;
            }
            let (now, most) = (device::now(), DIRECT_SEND_BELOW.min(self.config.max_requests));
            let sent = transport.send_short::<SUPPRESS>(now, segment, cookie, most, &self.context);
            let Some(rest) = sent else { return false };
            self.after_short_send(state, now, rest);
            return true;
        }
        let outstanding = transport.conn.outstanding().0;
        let is_written = match op {
            Op::Send { .. } | Op::Write(_) => false,
            Op::Read(_) => true,
            _ => return false,
        };
        let wraps = op.remote().is_some_and(|remote| remote.address.checked_add(segment.length).is_none());
        let Some(length) = u32::try_from(segment.length).ok().filter(|length| u64::from(*length) <= self.max_message)
        else {
            return false;
        };
        let token = Token { cookie, ep: self.context.ep.handle, work: op.work(), ..Token::default() };
        let post = Post { work: Some(op), length, fence: false };
        !wraps
            && outstanding < self.config.max_requests
            && self.context.regions.allows_segment(self.context.pd, segment, is_written)
            && transport.conn.post_behind(post, |request| request.set_plain(segment, token, SUPPRESS))
    }

    #[inline(always)]
    fn after_short_send(&self, state: &mut QpState, now: Nanos, rest: AfterShortSend) {
        let deadline = match rest {
            AfterShortSend::Nothing => return,
            AfterShortSend::Timeout(deadline) => deadline,
            AfterShortSend::Anything => 0,
        };
        if let Some(transport) = &state.transport
            && transport.next_service.is_before(deadline)
        {
            return; // The next scheduled call is early enough.
        }
        self.schedule_pending(state, now);
    }

    /// Schedules the transmission of an ack.
    #[cold]
    #[inline(never)]
    fn schedule_ack(&self, transport: &Transport) {
        self.device.schedule(
            transport.number,
            &transport.next_service,
            &PendingWork { ack: true, ..PendingWork::default() },
        );
    }

    /// Handles a pending event of the connection, and schedules its pending work.
    #[cold]
    #[inline(never)]
    fn schedule_pending(&self, state: &mut QpState, now: Nanos) {
        let pending_work = self.update(state, now);
        if let Some(transport) = &state.transport {
            self.device.schedule(transport.number, &transport.next_service, &pending_work);
        }
    }
}
