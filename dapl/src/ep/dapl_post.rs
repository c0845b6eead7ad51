//! Posts of an EP: send, receive, RDMA read, RDMA write.
//!
//! This is the hot path. Each entry looks up the EP, checks its parameters (spec/events 4.8), and passes the work to
//! the QP. It allocates no memory, writes no log, and normally acquires no lock except the provider's. A traced post
//! may allocate and lock when it schedules a check of its trace (`stats/trace`). A post that gets no hazard slot
//! acquires the read lock of the EP's post state (`post_lock`). An invalid key, address or access right of a segment is
//! reported by the completion.

use std::slice;

use dat_abi::*;

use super::attributes::PostLimits;
use super::{Ep, PostState, post_lock};
use crate::error::{Error, Result, State};
use crate::ffi;
use crate::provider::{Op, Provider, QueuePair, Remote, Segment, SendWr, Token, Work};

const NO_FLAG: DAT_COMPLETION_FLAGS = DAT_COMPLETION_DEFAULT_FLAG;

/// `dat_ep_post_send`.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets.
pub unsafe extern "C" fn dapl_ep_post_send<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `fast_segment`.
    let Some(segment) = (unsafe { fast_segment::<P>(local_iov, num_segments, completion_flags, NO_FLAG) }) else {
        // SAFETY: the caller also satisfies the contract of `post_send_suppressed`.
        return unsafe { post_send_suppressed::<P>(ep_handle, num_segments, local_iov, user_cookie, completion_flags) };
    };
    let quick = || {
        let op = Op::Send { solicited: false };
        request_quickly::<P, false>(ep_handle, |limits| limits.fast_sends, op, segment, cookie(&user_cookie))
    };
    // SAFETY: the caller also satisfies the contract of `post_send`. The segment count and the flags are
    // the same for each post on the fast path, so constants save registers.
    let in_full = || unsafe { post_send::<P>(ep_handle, 1, local_iov, user_cookie, NO_FLAG) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_send` for posts that [`dapl_ep_post_send`] has no fast path for, such as those with flags or several
/// segments. Has a fast path for a send with only SUPPRESS.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets.
#[inline(never)]
unsafe fn post_send_suppressed<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    const SUPPRESS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG;
    // SAFETY: the caller also satisfies the contract of `fast_segment`.
    let Some(segment) = (unsafe { fast_segment::<P>(local_iov, num_segments, completion_flags, SUPPRESS) }) else {
        // SAFETY: the caller also satisfies the contract of `post_send`.
        return unsafe { post_send::<P>(ep_handle, num_segments, local_iov, user_cookie, completion_flags) };
    };
    let quick = || {
        let op = Op::Send { solicited: false };
        request_quickly::<P, true>(ep_handle, |limits| limits.fast_sends, op, segment, cookie(&user_cookie))
    };
    // SAFETY: the caller also satisfies the contract of `post_send`.
    let in_full = || unsafe { post_send::<P>(ep_handle, 1, local_iov, user_cookie, SUPPRESS) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_send` with all checks.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets.
#[inline(never)]
unsafe fn post_send<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let post = |ep: &Ep<P>, post_state: &PostState<P>, thread: Option<usize>| {
        // SAFETY: the caller guarantees that `local_iov` is null or points at `num_segments` triplets.
        let segments = unsafe { ffi::segments(local_iov, num_segments, post_state.limits.request_iov) }?;
        check_flags(completion_flags, post_state.limits.refused_request_flags, 5)?;
        let op = Op::Send { solicited: completion_flags & DAT_COMPLETION_SOLICITED_WAIT_FLAG != 0 };
        request(ep, post_state, thread, op, segments, cookie(&user_cookie), completion_flags)
    };
    ffi::guard_cancellable(|| post_lock::post(ep_handle, post))
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets.
pub unsafe extern "C" fn dapl_ep_post_recv<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `fast_segment`.
    let Some(segment) = (unsafe { fast_segment::<P>(local_iov, num_segments, completion_flags, NO_FLAG) }) else {
        // SAFETY: the caller also satisfies the contract of `post_recv`.
        return unsafe { post_recv::<P>(ep_handle, num_segments, local_iov, user_cookie, completion_flags) };
    };
    let quick = || {
        post_lock::post_quickly(ep_handle, |_: &Ep<P>, post_state, thread| {
            let Ok(qp) = post_state.qp() else { return false };
            let is_posted = post_state.limits.fast_recvs && qp.post_recv_quickly(segment, cookie(&user_cookie));
            if is_posted {
                post_state.posts.count_plain(Work::Recv, thread);
            }
            is_posted
        })
        .then_some(Ok(()))
    };
    // SAFETY: the caller also satisfies the contract of `post_recv`. The segment count and the flags are
    // the same for each post on the fast path, so constants save registers.
    let in_full = || unsafe { post_recv::<P>(ep_handle, 1, local_iov, user_cookie, NO_FLAG) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_recv` with all checks.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets.
#[inline(never)]
unsafe fn post_recv<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let post = |ep: &Ep<P>, post_state: &PostState<P>, thread: Option<usize>| {
        if post_state.limits.shared {
            return Err(Error::InvalidState(State::SrqInUse));
        }
        // SAFETY: the caller guarantees that `local_iov` is null or points at `num_segments` triplets.
        let segments = unsafe { ffi::segments(local_iov, num_segments, post_state.limits.recv_iov) }?;
        check_flags(completion_flags, post_state.limits.refused_recv_flags, 5)?;
        // If the EP notifies for solicited messages only, the receive is posted UNSIGNALLED, so that its completion
        // notifies only if the send was solicited, or if the receive failed or was flushed.
        let unsignalled = completion_flags & DAT_COMPLETION_UNSIGNALLED_FLAG != 0 || post_state.limits.recv_solicited;
        let (qp, cookie) = (post_state.qp()?, cookie(&user_cookie));
        let post = ep.trace.as_ref().map_or(0, |trace| trace.posted(Work::Recv, cookie, segments));
        let token = Token { cookie, ep: ep.id.handle, work: Work::Recv, unsignalled, post, ..Token::default() };
        let posted = qp.post_recv(segments, token);
        if post != 0 {
            ep.record_traced_result(post, Work::Recv, posted.is_ok());
        }
        posted?;
        post_state.posts.count(Work::Recv, &[], thread);
        Ok(())
    };
    ffi::guard_cancellable(|| post_lock::post(ep_handle, post))
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets; `remote_iov` is null or
/// points at a triplet.
pub unsafe extern "C" fn dapl_ep_post_rdma_read<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `fast_rdma`.
    let Some((segment, remote)) =
        (unsafe { fast_rdma::<P>(local_iov, num_segments, remote_iov, completion_flags, NO_FLAG) })
    else {
        // SAFETY: the caller also satisfies the contract of `post_rdma_read`.
        return unsafe {
            post_rdma_read::<P>(ep_handle, num_segments, local_iov, user_cookie, remote_iov, completion_flags)
        };
    };
    let quick = || {
        let op = Op::Read(remote);
        request_quickly::<P, false>(ep_handle, |limits| limits.fast_reads, op, segment, cookie(&user_cookie))
    };
    // SAFETY: the caller also satisfies the contract of `post_rdma_read`.
    let in_full = || unsafe { post_rdma_read::<P>(ep_handle, 1, local_iov, user_cookie, remote_iov, NO_FLAG) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_rdma_read` with all checks.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets; `remote_iov` is null or
/// points at a triplet.
#[inline(never)]
unsafe fn post_rdma_read<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let post = |ep: &Ep<P>, post_state: &PostState<P>, thread: Option<usize>| {
        // SAFETY: the caller guarantees that `local_iov` is null or points at `num_segments` triplets.
        let segments = unsafe { ffi::segments(local_iov, num_segments, post_state.limits.read_iov) }?;
        // SAFETY: the caller guarantees that `remote_iov` is null or points at a triplet.
        let remote = unsafe { remote(remote_iov) }?;
        check_flags(completion_flags, post_state.limits.refused_request_flags, 6)?;
        ep.state().takes_requests()?;
        if !post_state.limits.reads {
            return Err(Error::InvalidState(State::Plain)); // a read would never complete (spec/endpoints 10.3)
        }
        request(ep, post_state, thread, Op::Read(remote), segments, cookie(&user_cookie), completion_flags)
    };
    ffi::guard_cancellable(|| post_lock::post(ep_handle, post))
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets; `remote_iov` is null or
/// points at a triplet.
pub unsafe extern "C" fn dapl_ep_post_rdma_write<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `fast_rdma`.
    let Some((segment, remote)) =
        (unsafe { fast_rdma::<P>(local_iov, num_segments, remote_iov, completion_flags, NO_FLAG) })
    else {
        // SAFETY: the caller also satisfies the contract of `post_write_suppressed`.
        return unsafe {
            post_write_suppressed::<P>(ep_handle, num_segments, local_iov, user_cookie, remote_iov, completion_flags)
        };
    };
    let quick = || {
        let op = Op::Write(remote);
        request_quickly::<P, false>(ep_handle, |limits| limits.fast_writes, op, segment, cookie(&user_cookie))
    };
    // SAFETY: the caller also satisfies the contract of `post_rdma_write`.
    let in_full = || unsafe { post_rdma_write::<P>(ep_handle, 1, local_iov, user_cookie, remote_iov, NO_FLAG) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_rdma_write` for posts that [`dapl_ep_post_rdma_write`] has no fast path for, such as those with flags
/// or several segments. Has a fast path for a write with only SUPPRESS.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets; `remote_iov` is null or
/// points at a triplet.
#[inline(never)]
unsafe fn post_write_suppressed<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    const SUPPRESS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG;
    // SAFETY: the caller also satisfies the contract of `fast_rdma`.
    let fast = unsafe { fast_rdma::<P>(local_iov, num_segments, remote_iov, completion_flags, SUPPRESS) };
    let Some((segment, remote)) = fast else {
        // SAFETY: the caller also satisfies the contract of `post_rdma_write`.
        return unsafe {
            post_rdma_write::<P>(ep_handle, num_segments, local_iov, user_cookie, remote_iov, completion_flags)
        };
    };
    let quick = || {
        let op = Op::Write(remote);
        request_quickly::<P, true>(ep_handle, |limits| limits.fast_writes, op, segment, cookie(&user_cookie))
    };
    // SAFETY: the caller also satisfies the contract of `post_rdma_write`.
    let in_full = || unsafe { post_rdma_write::<P>(ep_handle, 1, local_iov, user_cookie, remote_iov, SUPPRESS) };
    ffi::guard_quick(quick, in_full)
}

/// `dat_ep_post_rdma_write` with all checks.
///
/// # Safety
/// `ep_handle` may have any value; `local_iov` is null or points at `num_segments` triplets; `remote_iov` is null or
/// points at a triplet.
#[inline(never)]
unsafe fn post_rdma_write<P: Provider>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let post = |ep: &Ep<P>, post_state: &PostState<P>, thread: Option<usize>| {
        // SAFETY: the caller guarantees that `local_iov` is null or points at `num_segments` triplets.
        let segments = unsafe { ffi::segments(local_iov, num_segments, post_state.limits.write_iov) }?;
        // SAFETY: the caller guarantees that `remote_iov` is null or points at a triplet.
        let remote = unsafe { remote(remote_iov) }?;
        check_flags(completion_flags, post_state.limits.refused_request_flags, 6)?;
        request(ep, post_state, thread, Op::Write(remote), segments, cookie(&user_cookie), completion_flags)
    };
    ffi::guard_cancellable(|| post_lock::post(ep_handle, post))
}

/// Posts a request whose arguments were checked.
///
/// Errors: `InvalidState` if the EP's state does not permit requests; those of the provider.
#[inline(always)]
pub(super) fn request<P: Provider>(
    ep: &Ep<P>,
    post_state: &PostState<P>,
    thread: Option<usize>,
    op: Op,
    segments: &[Segment],
    cookie: u64,
    flags: DAT_COMPLETION_FLAGS,
) -> Result<()> {
    ep.state().takes_requests()?;
    let (qp, work) = (post_state.qp()?, op.work());
    let has = |flag: DAT_COMPLETION_FLAGS| flags & flag != 0;
    let (suppress, unsignalled) = (has(DAT_COMPLETION_SUPPRESS_FLAG), has(DAT_COMPLETION_UNSIGNALLED_FLAG));
    let fence = has(DAT_COMPLETION_BARRIER_FENCE_FLAG);
    let post = ep.trace.as_ref().map_or(0, |trace| trace.requested(op, cookie, segments, suppress));
    let token = Token { cookie, ep: ep.id.handle, work, unsignalled, post, ..Token::default() };
    let posted = qp.post_send(&SendWr { op, segments, token, suppress, fence, announced: thread.is_some() });
    if post != 0 {
        ep.record_traced_result(post, work, posted.is_ok());
    }
    posted?;
    post_state.posts.count(work, if suppress { segments } else { &[] }, thread);
    Ok(())
}

/// Posts a request without flags, or with only SUPPRESS, on the fast path. `is_fast` returns the field of the limits
/// that allows the fast path for this operation. Returns `None` if the caller must post with all checks instead.
#[inline(always)]
fn request_quickly<P: Provider, const SUPPRESS: bool>(
    ep_handle: DAT_EP_HANDLE,
    is_fast: impl FnOnce(&PostLimits) -> bool,
    op: Op,
    segment: &Segment,
    cookie: u64,
) -> Option<Result<()>> {
    let post = |ep: &Ep<P>, post_state: &PostState<P>, thread| {
        let Ok(qp) = post_state.qp() else { return false };
        let is_posted = ep.is_connected()
            && is_fast(&post_state.limits)
            && qp.post_request_quickly::<SUPPRESS>(op, segment, cookie);
        match (is_posted, SUPPRESS) {
            (true, true) => post_state.posts.count(op.work(), slice::from_ref(segment), Some(thread)),
            (true, false) => post_state.posts.count_plain(op.work(), thread),
            (false, _) => {}
        }
        is_posted
    };
    post_lock::post_quickly(ep_handle, post).then_some(Ok(()))
}

/// Returns the segment of a post that has exactly one segment and the flags `fast`, if the provider has a fast path for
/// such posts.
///
/// # Safety
/// `list` is null or points at `count` triplets that do not change during the call.
#[inline(always)]
unsafe fn fast_segment<'a, P: Provider>(
    list: *const DAT_LMR_TRIPLET,
    count: DAT_COUNT,
    flags: DAT_COMPLETION_FLAGS,
    fast: DAT_COMPLETION_FLAGS,
) -> Option<&'a Segment> {
    let is_fast = P::Qp::POSTS_QUICKLY && flags == fast;
    // SAFETY: the caller also satisfies the contract of `single_segment`.
    if is_fast { unsafe { ffi::single_segment(list, count) } } else { None }
}

/// Like [`fast_segment`], but also returns the remote address of an RDMA operation.
///
/// # Safety
/// `list` is null or points at `count` triplets; `remote_iov` is null or points at a triplet.
#[inline(always)]
unsafe fn fast_rdma<'a, P: Provider>(
    list: *const DAT_LMR_TRIPLET,
    count: DAT_COUNT,
    remote_iov: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
    fast: DAT_COMPLETION_FLAGS,
) -> Option<(&'a Segment, Remote)> {
    // SAFETY: the caller also satisfies the contract of `fast_segment`.
    let segment = unsafe { fast_segment::<P>(list, count, flags, fast) }?;
    // SAFETY: the caller guarantees that `remote_iov` is null or points at a triplet.
    Some((segment, unsafe { remote(remote_iov) }.ok()?))
}

/// Returns `Err(InvalidParameter(n))` if `flags` contains a flag of `refused`.
#[inline(always)]
pub(super) fn check_flags(flags: DAT_COMPLETION_FLAGS, refused: DAT_COMPLETION_FLAGS, n: u8) -> Result<()> {
    if flags & refused != 0 { Err(Error::InvalidParameter(n)) } else { Ok(()) }
}

fn cookie(cookie: &DAT_DTO_COOKIE) -> u64 {
    // SAFETY: all union members are eight bytes wide, and any bits are a valid number.
    unsafe { cookie.as_64 }
}

/// Parses the remote address and key. The length in the triplet is ignored: the local segments determine the length,
/// and programs pass triplets that are shorter than their transfer (spec/events 12.1).
///
/// # Safety
/// `triplet` is null or points to a triplet.
#[inline(always)]
unsafe fn remote(triplet: *const DAT_RMR_TRIPLET) -> Result<Remote> {
    ffi::require(triplet, 5)?;
    // SAFETY: `triplet` is not null, and the caller guarantees that it is readable.
    let triplet = unsafe { triplet.read_unaligned() };
    Ok(Remote { key: triplet.rmr_context, address: triplet.target_address })
}
