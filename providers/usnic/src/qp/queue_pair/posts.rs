//! Posts work to a queue pair: receives, sends, RDMA and atomic operations, and binds. Also sets the watermarks of
//! receives, flushes receives, and counts the outstanding work. For most posts of one segment, dapl first tries the
//! functions in `fast_path.rs`.

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ATOMIC_SIZE, Bind, BindWr, Op, Outstanding, QueuePair, Remote, Segment, SendWr, Status, Token};
use dapl::stats::watermark::HighWatermark;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::scatter_gather::{self, Segments};
use parking_lot::MutexGuard;

use super::{DIRECT_SEND_BELOW, Qp, QpCore, QpPhase, QpState};
use crate::device;
use crate::proto::conn::{Post, is_extension};
use crate::qp::context::{RecvRequest, WorkRequest};
use crate::{Mr, Mw};

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    const POSTS_QUICKLY: bool = true;

    #[inline(always)]
    fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        self.0.post_recv_quickly(segment, cookie)
    }

    #[inline(always)]
    fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        self.0.post_request_quickly::<SUPPRESS>(op, segment, cookie)
    }

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &self.0;
        let mut state = core.state.lock();
        if state.outstanding().1 >= core.config.max_recvs {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let phase = state.phase;
        match (&mut state.transport, phase) {
            (Some(transport), _) => {
                let length = scatter_gather::total(segments);
                let fill = |recv: &mut RecvRequest| {
                    recv.segments.set(segments);
                    recv.token = token;
                };
                if transport.conn.post_recv(length, fill, &mut &core.context) {
                    core.schedule(state, device::now());
                } else {
                    core.take_event(&mut state);
                }
            }
            (None, QpPhase::Ended) => core.context.flush_recv(token),
            (None, _) => {
                state.recvs.push_back(RecvRequest { segments: Segments::new(segments), token });
                if state.marks.is_crossed(state.recvs.len() as u32) {
                    let recvs = state.recvs.len() as u32;
                    core.check_watermarks(&mut state, recvs);
                }
            }
        }
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let state = self.0.lock_for_request()?;
        let (post, failure) = self.0.build_post(wr);
        if is_extension(post.work) && state.transport.as_ref().is_some_and(|transport| !transport.conn.has_extensions())
        {
            return Err(Error::ModelNotSupported);
        }
        // A short request of several segments waits for the next pass, which sends it with others in one batch.
        let may_send_now = wr.segments.len() <= 1 || post.length > self.0.config.tiny;
        self.0.submit(state, post, |request| request.set(wr, failure), may_send_now);
        Ok(())
    }

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let state = self.0.lock_for_request()?;
        let (request, key) = WorkRequest::bind(&mw.0, bind, wr)?;
        let post = Post { work: None, length: 0, fence: wr.fence };
        self.0.submit(state, post, |own| *own = request, true);
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let core = &self.0;
        let mut state = core.state.lock();
        state.marks = HighWatermark::new(soft, hard);
        state.quick_recvs = core.config.max_recvs.min(state.marks.max_unchecked());
        if state.transport.is_some() {
            core.schedule(state, device::now());
        } else {
            let recvs = state.recvs.len() as u32;
            core.check_watermarks(&mut state, recvs);
        }
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        self.0.progress.run_pass_if_free(); // Receives acks that have arrived, which may complete work.
        let (requests, recvs) = self.0.state.lock().outstanding();
        Outstanding { recvs, requests }
    }

    fn flush_recvs(&self) {
        self.0.flush_recvs(&mut self.0.state.lock());
    }
}

impl QpCore {
    /// Acquires the lock. If the queue has no space for one more request, first runs a pass, unless another thread is
    /// running one: a pass may complete requests.
    ///
    /// Errors: `Exhausted(Memory)` if the queue is still full.
    #[inline]
    fn lock_for_request(&self) -> Result<MutexGuard<'_, QpState>> {
        let state = self.state.lock();
        if state.outstanding().0 < self.config.max_requests {
            return Ok(state);
        }
        drop(state);
        // The queue is full. A pass may receive acks that complete requests.
        self.progress.run_pass_if_free();
        let state = self.state.lock();
        let is_full = state.outstanding().0 >= self.config.max_requests;
        if is_full { Err(Error::Exhausted(Resource::Memory)) } else { Ok(state) }
    }

    /// Posts a request. If `may_send_now` is true and few requests are outstanding, the calling thread sends it.
    #[inline]
    fn submit(
        &self,
        mut state: MutexGuard<'_, QpState>,
        post: Post,
        fill: impl FnOnce(&mut WorkRequest),
        may_send_now: bool,
    ) {
        let phase = state.phase;
        match (&mut state.transport, phase) {
            (Some(transport), _) => {
                let now = device::now();
                let may_send_now = may_send_now && transport.conn.outstanding().0 < DIRECT_SEND_BELOW;
                let is_behind = transport.conn.has_requests();
                transport.conn.post(now, post, fill, &mut &self.context);
                if may_send_now {
                    transport.send_now(now, &mut &self.context);
                } else if is_behind {
                    // An earlier request is waiting to be sent, so a pass is already scheduled.
                    return self.take_event(&mut state);
                }
                self.schedule(state, now);
            }
            (None, phase) => {
                let mut request = WorkRequest::default();
                fill(&mut request);
                match phase {
                    QpPhase::Ended => self.context.complete_request(&mut request, Status::Flushed, 0),
                    _ => state.requests.push_back((post, request)),
                }
            }
        }
    }

    /// Builds the request for the connection. For an invalid request, also returns the status with which it completes.
    #[inline(always)]
    fn build_post(&self, wr: &SendWr<'_>) -> (Post, Option<Status>) {
        let total = scatter_gather::total(wr.segments);
        let is_atomic = wr.op.work().is_atomic();
        let atomic = wr.op.remote().filter(|_| is_atomic).and_then(|remote| check_atomic(remote, total));
        let is_registered = self.context.is_registered(wr.segments, matches!(wr.op, Op::Read(_)) || is_atomic);
        let wraps = wr.op.remote().is_some_and(|remote| remote.address.checked_add(total).is_none());
        match u32::try_from(total).ok().filter(|length| u64::from(*length) <= self.max_message) {
            Some(length) if !wraps && is_registered && atomic.is_none() => {
                (Post { work: Some(wr.op), length, fence: wr.fence }, None)
            }
            found => {
                let status = match found {
                    _ if atomic.is_some() => atomic.unwrap_or_default(),
                    None => Status::LocalLength,
                    Some(_) if !is_registered => Status::LocalProtection,
                    Some(_) => Status::RemoteAccess,
                };
                (Post { work: None, length: 0, fence: wr.fence }, Some(status))
            }
        }
    }
}

/// Returns the status with which an atomic operation fails because its length or address is invalid, or `None` if both
/// are valid.
#[cold]
fn check_atomic(remote: Remote, total: u64) -> Option<Status> {
    if total != ATOMIC_SIZE {
        return Some(Status::LocalLength);
    }
    (!Atomic::is_aligned(remote.address)).then_some(Status::RemoteResponder)
}
