//! Posts: converts requests of the object layer to the device's format. No post waits.
//!
//! Every request is posted to the device as signalled, even one whose completion the consumer suppresses. So the number
//! of outstanding requests is always known, which draining a connection needs. A request of a supported operation that
//! the device cannot execute, for example because it is too long, is posted with an invalid key. So it fails only after
//! the earlier requests have completed. The post of an unsupported operation fails.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ATOMIC_SIZE, Bind, BindWr, Completion, Op, Remote, Segment, SendWr, Status, Token};
use dapl::runtime::cancel::{self, CancelDeferral};
use dapl::stats::watermark::{CrossedWatermarks, HighWatermark};
use ibverbs_sys::{ibv_send_flags, ibv_sge};
use parking_lot::MutexGuard;

use super::{PostPhase, QpCore, SendQueue, flushed};
use crate::ibv;
use crate::memory::{Mr, Mw};
use crate::qp::gather::{INVALID_LIST, with_sges};
use crate::qp::work::WorkEntry;

/// A request that was posted before the connection was established, or during a flush.
pub(super) struct DeferredRequest {
    op: Op,
    segments: Vec<Segment>,
    token: Token,
    suppress: bool,
    fence: bool,
}

impl DeferredRequest {
    fn new(wr: &SendWr<'_>) -> Self {
        let SendWr { op, segments, token, suppress, fence, .. } = *wr;
        DeferredRequest { op, segments: segments.to_vec(), token, suppress, fence }
    }

    /// A placeholder for a bind that is posted during a flush. It is only flushed, so the operation does not matter.
    fn bind(wr: &BindWr) -> Self {
        let BindWr { token, suppress, fence } = *wr;
        DeferredRequest { op: Op::Send { solicited: false }, segments: Vec::new(), token, suppress, fence }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    fn wr(&self) -> SendWr<'_> {
        let DeferredRequest { op, segments, token, suppress, fence } = self;
        SendWr { op: *op, segments, token: *token, suppress: *suppress, fence: *fence, announced: false }
    }
}

impl QpCore {
    /// Converts the error of a post. Logs it unless the queue of the device is full.
    fn device_error(&self, work: &str, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
            _ => {
                log::error!(
                    "{}: queue pair {:#x}: cannot post {work}: {error}; the post fails with DAT_INTERNAL_ERROR",
                    self.device.name,
                    self.number()
                );
                Error::Internal
            }
        }
    }

    /// Defers thread cancellation if the driver's post of a request has a cancellation point. A post of a receive has
    /// none: all drivers write it to a mapped queue.
    #[inline]
    pub(super) fn defer(&self) -> Option<CancelDeferral> {
        self.device.posts_by_kernel.then(cancel::defer)
    }

    pub(super) fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let mut recv = self.recv.lock();
        if recv.work.len() >= self.max_recvs {
            // A complete receive occupies space until its completion is fetched.
            drop(recv);
            self.recv_cq.fetch();
            recv = self.recv.lock();
            if recv.work.len() >= self.max_recvs {
                return Err(Error::Exhausted(Resource::Memory));
            }
        }
        match recv.phase {
            PostPhase::Live => {}
            PostPhase::Flushing => {
                recv.work.push(WorkEntry::recv(token));
                return Ok(());
            }
            PostPhase::Broken => {
                drop(recv);
                self.recv_cq.push(flushed(token));
                return Ok(());
            }
        }
        let id = recv.work.next_id();
        with_sges(segments, |list, _| {
            recv.hw.post_recv(id, list).map_err(|error| self.device_error("a receive", &error))
        })?;
        // The receive may be complete already. Its completion is processed only under this lock, so it finds the entry.
        recv.work.save_segments(segments);
        recv.work.push(WorkEntry::recv(token));
        let count = recv.work.len();
        let crossed = recv.high.check(count);
        drop(recv);
        self.report_crossed(crossed);
        Ok(())
    }

    pub(super) fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let mut recv = self.recv.lock();
        recv.high = HighWatermark::new(soft, hard);
        let count = recv.work.len();
        let crossed = recv.high.check(count);
        drop(recv);
        self.report_crossed(crossed);
        self.counts_recvs.store(soft.is_some() || hard.is_some(), Ordering::Relaxed);
        self.recv_cq.arm_for_recv_count();
        Ok(())
    }

    #[inline]
    pub(super) fn report_crossed(&self, crossed: CrossedWatermarks) {
        if crossed.soft {
            self.run_on_engine(|core| core.device.sink.many_recvs(core.ep));
        }
        if crossed.hard {
            self.fail();
        }
    }

    pub(super) fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let _deferral = self.defer();
        let mut send = self.queue_with_space()?;
        if send.is_established { self.submit(&mut send, wr) } else { self.queue_or_flush(send, wr) }
    }

    /// Queues a request until the connection is established, or until a flush in progress reaches it. If the connection
    /// has ended, flushes the request immediately.
    #[cold]
    fn queue_or_flush(&self, mut send: MutexGuard<'_, SendQueue>, wr: &SendWr<'_>) -> Result<()> {
        if send.phase == PostPhase::Broken {
            drop(send);
            self.request_cq.push(flushed(wr.token));
        } else {
            send.queued_requests.push_back(DeferredRequest::new(wr));
        }
        Ok(())
    }

    /// Locks the send queue, if it has space for one more request. Errors: `Exhausted(Memory)`.
    #[inline(always)]
    fn queue_with_space(&self) -> Result<MutexGuard<'_, SendQueue>> {
        let send = self.send.lock();
        if send.outstanding() < self.max_requests { Ok(send) } else { self.poll_for_space(send) }
    }

    /// Fetches completions to get space in a full send queue. A consumer that suppresses completions may never poll, so
    /// the post has to do it.
    #[cold]
    fn poll_for_space<'a>(&'a self, send: MutexGuard<'a, SendQueue>) -> Result<MutexGuard<'a, SendQueue>> {
        drop(send);
        self.request_cq.fetch();
        let send = self.send.lock();
        if send.outstanding() < self.max_requests { Ok(send) } else { Err(Error::Exhausted(Resource::Memory)) }
    }

    /// Posts the queued requests to the device, in order.
    pub(super) fn submit_queued(&self, send: &mut SendQueue) -> Result<()> {
        while let Some(request) = send.queued_requests.pop_front() {
            if let Err(error) = self.submit(send, &request.wr()) {
                send.queued_requests.push_front(request);
                return Err(error);
            }
        }
        Ok(())
    }

    #[inline]
    fn submit(&self, send: &mut SendQueue, wr: &SendWr<'_>) -> Result<()> {
        with_sges(wr.segments, |list, bytes| self.post_to_device(send, wr, list, bytes))
    }

    #[inline(always)]
    fn post_to_device(&self, send: &mut SendQueue, wr: &SendWr<'_>, list: &[ibv_sge], bytes: u64) -> Result<()> {
        let limits = &self.device.limits;
        let mut flags = ibv_send_flags::IBV_SEND_SIGNALED;
        let (most, is_local) = match wr.op {
            Op::Send { solicited } => {
                if solicited {
                    flags |= ibv_send_flags::IBV_SEND_SOLICITED;
                }
                (limits.max_message, true)
            }
            Op::Write(_) => (limits.max_rdma, true),
            Op::Read(_) => (limits.max_rdma, false),
            extension => self.extension(extension, &mut flags)?,
        };
        if wr.fence {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        let forced_status = match wr.op {
            _ if bytes > most => Some(Status::LocalLength),
            // If the peer allows no reads, the device would never complete this operation.
            Op::Read(_) | Op::FetchAdd { .. } | Op::CompareSwap { .. } if send.reads == 0 => {
                Some(Status::RemoteResponder)
            }
            Op::FetchAdd { remote, .. } | Op::CompareSwap { remote, .. } => check_atomic(remote, bytes),
            _ => None,
        };
        let (op, segments) =
            if forced_status.is_some() { (Op::Send { solicited: false }, &INVALID_LIST[..]) } else { (wr.op, list) };
        // With inline data the CPU reads the segments in this call, so their keys are checked here. A request with an
        // invalid key is not sent inline: the device checks the key and fails the request. `allowed` is held until the
        // data were copied, because deregistration waits for it.
        let may_inline = is_local && bytes <= u64::from(send.hw.max_inline);
        let SendQueue { hw, work, template, hint, .. } = send;
        let allowed = if may_inline && forced_status.is_none() {
            self.device.keys.lock_if_valid(hint, self.pd.id(), wr.segments)
        } else {
            None
        };
        let is_inline = allowed.is_some();
        if is_inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE;
        }
        let id = work.next_id();
        let request = ibv::DeviceSendWr { id, op, segments, flags };
        hw.post_send(template, &request).map_err(|error| self.device_error("a request", &error))?;
        // The request may be complete already. Its completion is processed only under this lock, so it finds the entry.
        if !is_inline {
            work.save_segments(wr.segments);
        }
        work.push(WorkEntry { token: wr.token, bytes, suppress: wr.suppress, is_read: is_inline, forced_status });
        Ok(())
    }

    /// Sets the flags of an extension operation. Returns its maximum length in bytes, and whether it only reads local
    /// memory. Errors: `ModelNotSupported`.
    #[cold]
    fn extension(&self, op: Op, flags: &mut u32) -> Result<(u64, bool)> {
        let limits = &self.device.limits;
        if !limits.extensions.support(op) {
            return Err(Error::ModelNotSupported);
        }
        if let Op::SendImmediate { solicited: true, .. } | Op::WriteImmediate { solicited: true, .. } = op {
            *flags |= ibv_send_flags::IBV_SEND_SOLICITED;
        }
        Ok(match op {
            Op::SendImmediate { .. } => (limits.max_message, true),
            Op::WriteImmediate { .. } => (limits.max_rdma, true),
            _ => (limits.max_rdma, false),
        })
    }

    pub(super) fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let _deferral = self.defer();
        let mut send = self.queue_with_space()?;
        match send.phase {
            PostPhase::Live => {}
            PostPhase::Flushing => {
                send.queued_requests.push_back(DeferredRequest::bind(wr));
                return Ok(mw.0.flush_unposted(bind.is_some()));
            }
            PostPhase::Broken => {
                drop(send);
                let key = mw.0.flush_unposted(bind.is_some());
                self.request_cq.push(flushed(wr.token));
                return Ok(key);
            }
        }
        if !send.is_rts || !send.queued_requests.is_empty() {
            // The device assigns the key of a bind when the bind is posted to it, and this call returns the key. So a
            // bind cannot wait until the queue pair accepts requests, or until earlier requests are posted.
            log::warn!(
                "{}: queue pair {:#x}: cannot post a bind before the queue pair is in RTS, or while earlier requests \
                 wait for the connection; bind after the ESTABLISHED event",
                self.device.name,
                self.number()
            );
            return Err(Error::Exhausted(Resource::Memory));
        }
        let mut flags = ibv_send_flags::IBV_SEND_SIGNALED;
        if wr.fence {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        let id = send.work.next_id();
        let (begun, key) = mw.0.begin(bind, |window, what| send.hw.bind(window, id, flags, what))?;
        send.work.push_bind(
            WorkEntry { token: wr.token, bytes: 0, suppress: wr.suppress, is_read: false, forced_status: None },
            begun,
        );
        Ok(key)
    }
}

impl SendQueue {
    pub(super) fn outstanding(&self) -> u32 {
        self.work.len() + self.queued_requests.len() as u32
    }
}

/// Returns the status with which an atomic operation of invalid length or alignment fails; `None` if both are valid.
/// Drivers handle invalid ones differently: some fail the post, others never complete the operation.
#[cold]
fn check_atomic(remote: Remote, bytes: u64) -> Option<Status> {
    if bytes != ATOMIC_SIZE {
        return Some(Status::LocalLength);
    }
    (!remote.address.is_multiple_of(ATOMIC_SIZE)).then_some(Status::RemoteResponder)
}

/// Returns the completion of work that has succeeded.
pub(super) fn success(token: Token, bytes: u64) -> Completion {
    Completion { token, status: Status::Success, bytes, ..Completion::default() }
}
