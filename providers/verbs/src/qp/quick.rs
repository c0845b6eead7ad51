//! Posts of one segment without flags in the common case: a connected queue pair with space in its queues. A post that does not
//! meet the conditions changes nothing, and takes the way of all posts.
#![forbid(unsafe_code)]

use std::slice;

use dapl::provider::{Op, Segment, SendWr, Token, Work};

use super::gather::sge;
use super::{Phase, QpCore};
use crate::cq::Side;
use crate::qp::work::{Entry, WorkId};

impl QpCore {
    /// See [`QueuePair::post_recv_quickly`](dapl::provider::QueuePair::post_recv_quickly).
    #[inline(always)]
    pub(super) fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        let mut recv = self.recv.lock();
        let count = recv.work.len();
        let fits = count < self.max_recvs && !recv.high.is_crossed(count + 1);
        if recv.phase != Phase::Live || !fits || segment.length == 0 {
            return false;
        }
        let (epoch, number) = recv.work.next();
        let id = WorkId::pack(self.slot(Side::Recv), epoch, number);
        if recv.hw.post_recv(id, &[sge(segment)]).is_err() {
            return false; // the general way tries again, and reports why
        }
        // Its completion may exist already, but is processed only under this lock.
        recv.work.keep(slice::from_ref(segment));
        recv.work.push(Entry::recv(Token { cookie, ep: self.ep.handle, work: Work::Recv, ..Token::default() }));
        true
    }

    /// See [`QueuePair::post_request_quickly`](dapl::provider::QueuePair::post_request_quickly).
    #[inline(always)]
    pub(super) fn post_request_quickly(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        let _deferral = self.defer();
        let mut send = self.send.lock();
        if !send.open || send.outstanding() >= self.max_requests || segment.length == 0 {
            return false;
        }
        let token = Token { cookie, ep: self.ep.handle, work: op.work(), ..Token::default() };
        let segments = slice::from_ref(segment);
        let wr = SendWr { op, segments, token, suppress: false, fence: false, announced: true };
        self.hand_over(&mut send, &wr, &[sge(segment)], segment.length).is_ok()
    }
}
