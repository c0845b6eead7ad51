//! C entries `dat_srq_*`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call them too. Each entry opens its
//! handles, parses its arguments and makes one call. A post is on the hot path: it allocates no memory, writes no log,
//! and acquires no lock except the provider's.

use dat_abi::*;

use super::{Srq, dapls_srq};
use crate::error::{Error, Handle};
use crate::ffi::{guard, guard_cancellable, require, segments};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::pz::Pz;
use crate::runtime::handle::from_handle;

/// `dat_srq_create`.
///
/// # Safety
/// Handles may have any value; `attributes` is null or readable; `out` is null or writable.
pub unsafe extern "C" fn dapl_srq_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    attributes: *mut DAT_SRQ_ATTR,
    out: *mut DAT_SRQ_HANDLE,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        let pz = from_handle::<Pz<P>>(pz, Handle::Pz)?.to_arc();
        require(attributes, 3)?;
        require(out, 4)?;
        if !attributes.is_aligned() {
            return Err(Error::InvalidParameter(3));
        }
        // SAFETY: `attributes` is neither null nor misaligned, and the caller guarantees that it is readable.
        let srq = dapls_srq::create(&ia, pz, unsafe { attributes.read() })?;
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(srq) };
        Ok(())
    })
}

/// `dat_srq_set_lw`.
///
/// # Safety
/// `srq` may have any value.
pub unsafe extern "C" fn dapl_srq_set_lw<P: Provider>(srq: DAT_SRQ_HANDLE, low_watermark: DAT_COUNT) -> DAT_RETURN {
    guard(|| dapls_srq::set_low(&*from_handle::<Srq<P>>(srq, Handle::Srq)?, low_watermark))
}

/// `dat_srq_free`.
///
/// # Safety
/// `srq` may have any value.
pub unsafe extern "C" fn dapl_srq_free<P: Provider>(srq: DAT_SRQ_HANDLE) -> DAT_RETURN {
    guard(|| dapls_srq::free(&*from_handle::<Srq<P>>(srq, Handle::Srq)?))
}

/// `dat_srq_query`.
///
/// # Safety
/// `srq` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_srq_query<P: Provider>(
    srq: DAT_SRQ_HANDLE,
    mask: DAT_SRQ_PARAM_MASK,
    out: *mut DAT_SRQ_PARAM,
) -> DAT_RETURN {
    guard(|| {
        let srq = from_handle::<Srq<P>>(srq, Handle::Srq)?;
        require(out, 3)?;
        if mask & !DAT_SRQ_FIELD_ALL != 0 {
            return Err(Error::InvalidParameter(2));
        }
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(dapls_srq::param(&srq)) };
        Ok(())
    })
}

/// `dat_srq_resize`.
///
/// # Safety
/// `srq` may have any value.
pub unsafe extern "C" fn dapl_srq_resize<P: Provider>(srq: DAT_SRQ_HANDLE, length: DAT_COUNT) -> DAT_RETURN {
    guard(|| dapls_srq::resize(&*from_handle::<Srq<P>>(srq, Handle::Srq)?, length))
}

/// `dat_srq_post_recv`. Keys, addresses and rights are not checked here; the completion reports an error in them.
///
/// # Safety
/// `srq` may have any value; `list` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl_srq_post_recv<P: Provider>(
    srq: DAT_SRQ_HANDLE,
    count: DAT_COUNT,
    list: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
) -> DAT_RETURN {
    guard_cancellable(|| {
        let srq = from_handle::<Srq<P>>(srq, Handle::Srq)?;
        // SAFETY: the caller also satisfies the contract of `segments`.
        let segments = unsafe { segments(list, count, srq.max_iov as usize) }?;
        // SAFETY: all union members are eight bytes wide, and any bits are a valid number.
        dapls_srq::post_recv(&srq, segments, unsafe { cookie.as_64 })
    })
}
