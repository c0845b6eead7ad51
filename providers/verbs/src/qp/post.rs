//! Posts: converts requests of the object layer to the device's format.
//!
//! Every request is posted to the device as signalled, even a suppressed one. So the outstanding work is always known,
//! and a connection can drain. A request that the device could not accept (more bytes than it can transfer) is posted
//! so that it fails in order. Nothing here waits.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ATOMIC_SIZE, Bind, BindWr, Completion, Op, Remote, Segment, SendWr, Status, Token};
use dapl::runtime::cancel::{self, Deferral};
use dapl::stats::watermark::{Crossed, HighWatermark};
use ibverbs_sys::{ibv_send_flags, ibv_sge};
use parking_lot::MutexGuard;

use super::{Phase, QpCore, Requests, flushed};
use crate::ibv;
use crate::memory::{Mr, Mw};
use crate::qp::gather::{INVALID_LIST, gathered};
use crate::qp::work::Entry;

/// A request that waits for the connection.
pub(super) struct QueuedRequest {
    op: Op,
    segments: Vec<Segment>,
    token: Token,
    suppress: bool,
    fence: bool,
}

impl QueuedRequest {
    fn new(wr: &SendWr<'_>) -> Self {
        let SendWr { op, segments, token, suppress, fence, .. } = *wr;
        QueuedRequest { op, segments: segments.to_vec(), token, suppress, fence }
    }

    /// A bind that waits to be flushed.
    fn bind(wr: &BindWr) -> Self {
        let BindWr { token, suppress, fence } = *wr;
        QueuedRequest { op: Op::Send { solicited: false }, segments: Vec::new(), token, suppress, fence }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    fn wr(&self) -> SendWr<'_> {
        let QueuedRequest { op, segments, token, suppress, fence } = self;
        SendWr { op: *op, segments, token: *token, suppress: *suppress, fence: *fence, announced: false }
    }
}

/// Why a request was not posted to the device.
pub(super) enum Refused {
    ByDevice(std::io::Error),
    Before(Error),
}

/// The error of a post that the device refuses.
fn refusal(what: &str, error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
        _ => {
            log::error!("the device refused {what}: {error}");
            Error::Internal
        }
    }
}

impl QpCore {
    /// Defers cancellation if the device's driver has a cancellation point in the post of a request. Receives are
    /// posted to a mapped queue with every driver.
    #[inline]
    pub(super) fn defer(&self) -> Option<Deferral> {
        self.device.posts_by_kernel.then(cancel::defer)
    }

    pub(super) fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let mut recv = self.recv.lock();
        if recv.work.len() >= self.max_recvs {
            // Some requests may have completed without having been polled.
            drop(recv);
            self.recv_cq.fetch();
            recv = self.recv.lock();
            if recv.work.len() >= self.max_recvs {
                return Err(Error::Exhausted(Resource::Memory));
            }
        }
        match recv.phase {
            Phase::Live => {}
            Phase::Flushing => {
                recv.work.push(Entry::recv(token));
                return Ok(());
            }
            Phase::Broken => {
                drop(recv);
                self.recv_cq.push(flushed(token));
                return Ok(());
            }
        }
        let id = recv.work.next_id();
        gathered(segments, |list, _| recv.hw.post_recv(id, list).map_err(|error| refusal("a receive", &error)))?;
        // Its completion may exist already, but is processed only under this lock.
        recv.work.keep(segments);
        recv.work.push(Entry::recv(token));
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
        self.recv_cq.guard_count();
        Ok(())
    }

    #[inline]
    pub(super) fn report_crossed(&self, crossed: Crossed) {
        if crossed.soft {
            self.soon(|core| core.device.sink.many_recvs(core.ep));
        }
        if crossed.hard {
            self.fail();
        }
    }

    pub(super) fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let _deferral = self.defer();
        let mut send = self.queue_with_space()?;
        if send.open { self.submit(&mut send, wr) } else { self.hold(send, wr) }
    }

    /// Handles a request that is not posted to the device, because the connection is not established or has ended.
    #[cold]
    fn hold(&self, mut send: MutexGuard<'_, Requests>, wr: &SendWr<'_>) -> Result<()> {
        if send.phase == Phase::Broken {
            drop(send);
            self.request_cq.push(flushed(wr.token));
        } else {
            send.held.push_back(QueuedRequest::new(wr));
        }
        Ok(())
    }

    /// The send queue, with space for one more request.
    #[inline(always)]
    fn queue_with_space(&self) -> Result<MutexGuard<'_, Requests>> {
        let send = self.send.lock();
        if send.outstanding() < self.max_requests { Ok(send) } else { self.poll_for_space(send) }
    }

    /// Polls for completions if the queue is full: a consumer that suppresses completions need not poll.
    #[cold]
    fn poll_for_space<'a>(&'a self, send: MutexGuard<'a, Requests>) -> Result<MutexGuard<'a, Requests>> {
        drop(send);
        self.request_cq.fetch();
        let send = self.send.lock();
        if send.outstanding() < self.max_requests { Ok(send) } else { Err(Error::Exhausted(Resource::Memory)) }
    }

    /// Posts waiting requests to the device, in order.
    pub(super) fn submit_waiting(&self, send: &mut Requests) -> Result<()> {
        while let Some(held) = send.held.pop_front() {
            if let Err(error) = self.submit(send, &held.wr()) {
                send.held.push_front(held);
                return Err(error);
            }
        }
        Ok(())
    }

    #[inline]
    fn submit(&self, send: &mut Requests, wr: &SendWr<'_>) -> Result<()> {
        gathered(wr.segments, |list, bytes| {
            self.hand_over(send, wr, list, bytes).map_err(|refused| match refused {
                Refused::ByDevice(error) => refusal("a request", &error),
                Refused::Before(error) => error,
            })
        })
    }

    #[inline(always)]
    pub(super) fn hand_over(
        &self,
        send: &mut Requests,
        wr: &SendWr<'_>,
        list: &[ibv_sge],
        bytes: u64,
    ) -> std::result::Result<(), Refused> {
        let limits = &self.device.limits;
        let mut flags = ibv_send_flags::IBV_SEND_SIGNALED;
        let (op, most, is_local) = match wr.op {
            Op::Send { solicited } => {
                if solicited {
                    flags |= ibv_send_flags::IBV_SEND_SOLICITED;
                }
                (ibv::Op::Send, limits.max_message, true)
            }
            Op::Write(remote) => (ibv::Op::Write(remote), limits.max_rdma, true),
            Op::Read(remote) => (ibv::Op::Read(remote), limits.max_rdma, false),
            extension => self.extension(extension, &mut flags).map_err(Refused::Before)?,
        };
        if wr.fence {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        let forced_status = match wr.op {
            _ if bytes > most => Some(Status::LocalLength),
            // The device would never complete this operation.
            Op::Read(_) | Op::FetchAdd { .. } | Op::CompareSwap { .. } if send.reads == 0 => {
                Some(Status::RemoteResponder)
            }
            Op::FetchAdd { remote, .. } | Op::CompareSwap { remote, .. } => check_atomic(remote, bytes),
            _ => None,
        };
        let (op, segments) = if forced_status.is_some() { (ibv::Op::Send, &INVALID_LIST[..]) } else { (op, list) };
        // The CPU reads inline data in this call, so their keys are checked here; data with an invalid key are not sent
        // inline, and the device checks them. The permission is kept until the device has copied the data.
        let may_inline = is_local && bytes <= u64::from(send.hw.max_inline());
        let Requests { hw, work, template, hint, .. } = send;
        let allowed = if may_inline && forced_status.is_none() {
            self.device.keys.allow(hint, &self.pd.0, wr.segments)
        } else {
            None
        };
        let is_inline = allowed.is_some();
        if is_inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE;
        }
        let id = work.next_id();
        let request = ibv::Wr { id, op, segments, flags: flags.0 };
        hw.post_send(template, &request).map_err(Refused::ByDevice)?;
        // Its completion may exist already, but is processed only under this lock.
        if !is_inline {
            work.keep(wr.segments);
        }
        work.push(Entry { token: wr.token, bytes, suppress: wr.suppress, is_read: is_inline, forced_status });
        Ok(())
    }

    /// An extension operation for the device, its longest transfer, and whether local memory is only read.
    #[cold]
    fn extension(&self, op: Op, flags: &mut ibv_send_flags) -> Result<(ibv::Op, u64, bool)> {
        let limits = &self.device.limits;
        if !limits.extensions.support(op) {
            return Err(Error::ModelNotSupported);
        }
        if let Op::SendImmediate { solicited: true, .. } | Op::WriteImmediate { solicited: true, .. } = op {
            *flags |= ibv_send_flags::IBV_SEND_SOLICITED;
        }
        Ok(match op {
            Op::SendImmediate { data, .. } => (ibv::Op::SendImmediate(data), limits.max_message, true),
            Op::WriteImmediate { remote, data, .. } => (ibv::Op::WriteImmediate(remote, data), limits.max_rdma, true),
            Op::FetchAdd { remote, add } => (ibv::Op::FetchAdd(remote, add), limits.max_rdma, false),
            Op::CompareSwap { remote, compare, swap } => {
                (ibv::Op::CompareSwap(remote, compare, swap), limits.max_rdma, false)
            }
            Op::Send { .. } | Op::Write(_) | Op::Read(_) | Op::SendInvalidate { .. } => {
                return Err(Error::ModelNotSupported);
            }
        })
    }

    pub(super) fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let _deferral = self.defer();
        let mut send = self.queue_with_space()?;
        match send.phase {
            Phase::Live => {}
            Phase::Flushing => {
                send.held.push_back(QueuedRequest::bind(wr));
                return Ok(mw.0.lose(bind.is_some()));
            }
            Phase::Broken => {
                drop(send);
                let key = mw.0.lose(bind.is_some());
                self.request_cq.push(flushed(wr.token));
                return Ok(key);
            }
        }
        if !send.held.is_empty() {
            // The key must be returned now. The device assigns a bind's key when it accepts the bind, which is after
            // the waiting requests.
            log::warn!("a bind behind requests that wait for the connection is refused; bind after it is established");
            return Err(Error::Exhausted(Resource::Memory));
        }
        let mut flags = ibv_send_flags::IBV_SEND_SIGNALED;
        if wr.fence {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        let id = send.work.next_id();
        let (begun, key) = mw.0.begin(bind, |window, what| send.hw.bind(window, id, flags.0, what))?;
        send.work.push_bind(
            Entry { token: wr.token, bytes: 0, suppress: wr.suppress, is_read: false, forced_status: None },
            begun,
        );
        Ok(key)
    }
}

impl Requests {
    pub(super) fn outstanding(&self) -> u32 {
        self.work.len() + self.held.len() as u32
    }
}

/// Status of an atomic operation that some drivers refuse at once and others never complete.
#[cold]
fn check_atomic(remote: Remote, bytes: u64) -> Option<Status> {
    if bytes != ATOMIC_SIZE {
        return Some(Status::LocalLength);
    }
    (!remote.address.is_multiple_of(ATOMIC_SIZE)).then_some(Status::RemoteResponder)
}

/// The completion of a successful request.
pub(super) fn done(token: Token, bytes: u64) -> Completion {
    Completion { token, status: Status::Success, bytes, ..Completion::default() }
}
