//! Post entries of DAT 2.0. They convert the triplets to those of 1.2, and call the entries of 1.2. Operations that 1.2
//! lacks, such as sends with invalidation, are posted through `dapls_post`.
//!
//! This is the hot path, so up to eight segments are converted on the stack.

use dat_abi as v1;
use dat_abi::v2::*;

use super::convert;
use super::segments::with_segments;
use crate::ep::dapls_post::{self, ParameterNumbers};
use crate::ep::{Ep, dapl_ep as ep_1_2};
use crate::error::{Error, Handle};
use crate::ffi::{self, require};
use crate::provider::{Op, Provider, Region};
use crate::rmr::dapls_rmr;
use crate::runtime::handle::from_handle;

/// `dat_ep_post_send`.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl2_ep_post_send<P: Provider>(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let flags = convert::flags(flags);
    // SAFETY: the caller also satisfies the contract of `with_segments`.
    unsafe {
        with_segments::<P>(ep, iov, count, |iov, count| ep_1_2::dapl_ep_post_send::<P>(ep, count, iov, cookie, flags))
    }
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl2_ep_post_recv<P: Provider>(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let flags = convert::flags(flags);
    // SAFETY: the caller also satisfies the contract of `with_segments`.
    unsafe {
        with_segments::<P>(ep, iov, count, |iov, count| ep_1_2::dapl_ep_post_recv::<P>(ep, count, iov, cookie, flags))
    }
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets; `remote` is null or points at a triplet.
pub unsafe extern "C" fn dapl2_ep_post_rdma_read<P: Provider>(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    remote: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let flags = convert::flags(flags);
    // SAFETY: the caller guarantees that `remote` is null or points at a triplet.
    let translated = unsafe { remote_triplet(remote) };
    let remote = at(&translated);
    // SAFETY: the caller also satisfies the contract of the entry of 1.2; the remote triplet is null or a local
    // variable.
    unsafe {
        with_segments::<P>(ep, iov, count, |iov, count| {
            ep_1_2::dapl_ep_post_rdma_read::<P>(ep, count, iov, cookie, remote, flags)
        })
    }
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets; `remote` is null or points at a triplet.
pub unsafe extern "C" fn dapl2_ep_post_rdma_write<P: Provider>(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    remote: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let flags = convert::flags(flags);
    // SAFETY: the caller guarantees that `remote` is null or points at a triplet.
    let translated = unsafe { remote_triplet(remote) };
    let remote = at(&translated);
    // SAFETY: the caller also satisfies the contract of the entry of 1.2; the remote triplet is null or a local
    // variable.
    unsafe {
        with_segments::<P>(ep, iov, count, |iov, count| {
            ep_1_2::dapl_ep_post_rdma_write::<P>(ep, count, iov, cookie, remote, flags)
        })
    }
}

/// `dat_ep_post_rdma_read_to_rmr`: an RDMA read whose local memory is given by a remote context of this IA, that of a
/// bound RMR or of an LMR.
///
/// # Safety
/// `ep` may have any value; `local` is null or points at a triplet; `remote` is null or points at a triplet.
pub unsafe extern "C" fn dapl2_ep_post_rdma_read_to_rmr<P: Provider>(
    ep: DAT_EP_HANDLE,
    local: *const DAT_RMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    remote: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    const PLACES: &[(u32, u32)] = &[(3, 2), (5, 4), (6, 5)];
    let target = || {
        let ep = from_handle::<Ep<P>>(ep, Handle::Ep)?;
        require(local, 2)?;
        // SAFETY: `local` is not null, so the caller guarantees that it points at a triplet.
        let DAT_RMR_TRIPLET { virtual_address, segment_length, rmr_context } = unsafe { local.read_unaligned() };
        let region = Region { address: virtual_address, length: segment_length.into() };
        dapls_rmr::read_target(&ep.ia, rmr_context, region)
    };
    convert::guard_then(target, |mut segment| {
        // SAFETY: the caller guarantees that `remote` is null or points at a triplet.
        let translated = unsafe { remote_triplet(remote) };
        let (iov, flags) = (&raw mut segment, convert::flags(flags));
        // SAFETY: both triplets are null or local variables, and a segment has the layout of a triplet.
        let code = unsafe { ep_1_2::dapl_ep_post_rdma_read::<P>(ep, 1, iov.cast(), cookie, at(&translated), flags) };
        convert::code_with_arguments(code, PLACES)
    })
}

/// `dat_ep_post_send_with_invalidate`: a send that unbinds the peer's RMR with this context before the peer's receive
/// completes. If `invalidate` is false, this is `dat_ep_post_send`.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl2_ep_post_send_with_invalidate<P: Provider>(
    ep: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    invalidate: DAT_BOOLEAN,
    context: DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    if invalidate == DAT_FALSE {
        // SAFETY: the caller also satisfies the contract of `dapl2_ep_post_send`.
        return unsafe { dapl2_ep_post_send::<P>(ep, count, iov, cookie, flags) };
    }
    let op = Op::SendInvalidate { key: context, solicited: flags & DAT_COMPLETION_SOLICITED_WAIT_FLAG != 0 };
    let positions = ParameterNumbers { local: 2, remote: 7, flags: 5 };
    // SAFETY: the caller also satisfies the contract of `post_extension`.
    unsafe { post_extension::<P>(ep, op, (iov, count), cookie, flags, positions) }
}

/// Posts a request with an operation that 1.2 lacks.
///
/// # Safety
/// `ep` may have any value; `iov` is null or points at `count` triplets.
pub(super) unsafe fn post_extension<P: Provider>(
    ep: DAT_EP_HANDLE,
    op: Op,
    (iov, count): (*const DAT_LMR_TRIPLET, DAT_COUNT),
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    positions: ParameterNumbers,
) -> DAT_RETURN {
    let call = |iov: *mut v1::DAT_LMR_TRIPLET, count: DAT_COUNT| {
        ffi::guard_cancellable(|| {
            let local = positions.local;
            // The call of an atomic operation has no parameter for the number of segments, which is always one.
            let list = if op.work().is_atomic() { local } else { local + 1 };
            // SAFETY: `with_segments` passes a list that is null, or that it has converted and that has this length.
            let segments = unsafe { ffi::segments(iov, count, usize::MAX) }.map_err(|error| match error {
                Error::InvalidParameter(2) => Error::InvalidParameter(local),
                Error::InvalidParameter(3) => Error::InvalidParameter(list),
                other => other,
            })?;
            // SAFETY: all union members are eight bytes wide, and any bits are a valid number.
            let cookie = unsafe { cookie.as_64 };
            let flags = convert::flags(flags);
            dapls_post::post_extension::<P>(ep, op, segments, cookie, flags, positions)
        })
    };
    // SAFETY: the caller also satisfies the contract of `with_segments`.
    unsafe { with_segments::<P>(ep, iov, count, call) }
}

/// # Safety
/// `triplet` is null or points at a triplet.
#[inline(always)]
unsafe fn remote_triplet(triplet: *const DAT_RMR_TRIPLET) -> Option<v1::DAT_RMR_TRIPLET> {
    if triplet.is_null() {
        return None;
    }
    // SAFETY: `triplet` is not null, and the caller guarantees that it is readable.
    let DAT_RMR_TRIPLET { virtual_address, segment_length, rmr_context } = unsafe { triplet.read_unaligned() };
    let segment_length = segment_length.into();
    Some(v1::DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address: virtual_address, segment_length })
}

fn at<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}
