//! The work queues of a queue pair: posted receives and requests, and their completions.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Completion, Extensions, Op, Outstanding, Provider, QpSpec, Segment, SendWr, Status, Token};
use dapl::stats::watermark::{CrossedWatermarks, HighWatermark};

use super::memory::Pd;
use super::reporter::ReportedCq;
use crate::memory::scatter_gather::total;

/// A posted request that is not complete.
pub struct QueuedRequest {
    pub op: Op,
    pub segments: Vec<Segment>,
    token: Token,
    suppress: bool,
}

impl QueuedRequest {
    /// Total length of the segments in bytes.
    pub fn bytes(&self) -> u64 {
        total(&self.segments)
    }
}

/// The work queues of a queue pair that has no shared receive queue.
pub struct WorkQueues<P: Provider<Cq = ReportedCq<P>>> {
    pub spec: QpSpec<P>,
    /// Protection domain in which local segments and the peer's RDMA operations are checked.
    pub pd: Pd,
    pub recvs: VecDeque<(Token, Vec<Segment>)>,
    pub requests: VecDeque<QueuedRequest>,
    watermarks: HighWatermark,
}

impl<P: Provider<Cq = ReportedCq<P>>> WorkQueues<P> {
    pub fn new(spec: QpSpec<P>, pd: &Pd) -> Self {
        let (recvs, requests, watermarks) = (VecDeque::new(), VecDeque::new(), HighWatermark::default());
        WorkQueues { spec, pd: pd.clone(), recvs, requests, watermarks }
    }

    /// Queues a receive. Errors: `Exhausted(Memory)` if the queue is full.
    pub fn post_recv(&mut self, segments: &[Segment], token: Token) -> Result<()> {
        if self.recvs.len() >= self.spec.max_recvs as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        self.recvs.push_back((token, segments.to_vec()));
        Ok(())
    }

    /// Queues a request. Errors: `Exhausted(Memory)` if the queue is full, `ModelNotSupported` for extensions.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<()> {
        if !Extensions::default().support(wr.op) {
            return Err(Error::ModelNotSupported);
        }
        if self.requests.len() >= self.spec.max_requests as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let (op, segments, token, suppress) = (wr.op, wr.segments.to_vec(), wr.token, wr.suppress);
        self.requests.push_back(QueuedRequest { op, segments, token, suppress });
        Ok(())
    }

    /// Number of posted work requests that are not complete.
    pub fn outstanding(&self) -> Outstanding {
        Outstanding { recvs: self.recvs.len() as u32, requests: self.requests.len() as u32 }
    }

    /// Sets the watermarks for the number of posted receives.
    pub fn watch_recvs(&mut self, soft: Option<u32>, hard: Option<u32>) {
        self.watermarks = HighWatermark::new(soft, hard);
    }

    /// Returns the watermarks that the number of posted receives exceeds. The soft watermark is returned only the first
    /// time after it was set.
    pub fn check_watermarks(&mut self) -> CrossedWatermarks {
        self.watermarks.check(self.recvs.len() as u32)
    }

    /// Completes all posted work as flushed.
    pub fn flush(&mut self) {
        self.flush_recvs();
        for QueuedRequest { token, .. } in std::mem::take(&mut self.requests) {
            complete(self.spec.request_cq.as_ref(), flushed(token));
        }
    }

    /// Completes all receives as flushed.
    pub fn flush_recvs(&mut self) {
        for (token, _) in std::mem::take(&mut self.recvs) {
            self.complete_recv(flushed(token));
        }
    }

    /// Pushes the completion of a receive to the receive CQ.
    pub fn complete_recv(&self, completion: Completion) {
        complete(self.spec.recv_cq.as_ref(), completion);
    }

    /// Pushes the completion of a request to the request CQ, unless the request succeeded and its completion is
    /// suppressed. `result` is the length in bytes, or the status of the failure.
    pub fn complete_request(&self, request: &QueuedRequest, result: std::result::Result<u64, Status>) {
        let (status, bytes) = result.map_or_else(|status| (status, 0), |bytes| (Status::Success, bytes));
        if status != Status::Success || !request.suppress {
            let completion = Completion { token: request.token, status, bytes, ..Completion::default() };
            complete(self.spec.request_cq.as_ref(), completion);
        }
    }
}

fn complete<P: Provider<Cq = ReportedCq<P>>>(cq: Option<&Arc<ReportedCq<P>>>, completion: Completion) {
    if let Some(cq) = cq {
        cq.push(completion);
    }
}

fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}
