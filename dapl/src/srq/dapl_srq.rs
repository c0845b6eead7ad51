//! `dat_srq_*`, whose functions are left to a later version.
//!
//! Called from C only. A handle that cannot be is still told from a call that is missing.

use dat_abi::*;

use crate::error::{Error, Handle};
use crate::ffi::{guard, require};
use crate::handle::from_handle;
use crate::ia::Ia;
use crate::provider::Provider;
use crate::pz::Pz;

/// `dat_srq_create`.
///
/// # Safety
/// The handles are null, or ones this library gave out: live, freed, or of another kind.
pub unsafe extern "C" fn dapl_srq_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    attributes: *mut DAT_SRQ_ATTR,
    out: *mut DAT_SRQ_HANDLE,
) -> DAT_RETURN {
    guard(|| {
        from_handle::<Ia<P>>(ia, Handle::Ia)?;
        from_handle::<Pz<P>>(pz, Handle::Pz)?;
        require(attributes, 3)?;
        require(out, 4)?;
        Err(Error::NotImplemented)
    })
}

/// `dat_srq_set_lw`.
///
/// # Safety
/// Any arguments are fine: there is no SRQ, so no handle is one.
pub unsafe extern "C" fn dapl_srq_set_lw<P: Provider>(_srq: DAT_SRQ_HANDLE, _low_watermark: DAT_COUNT) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Srq)))
}

/// `dat_srq_free`.
///
/// # Safety
/// As [`dapl_srq_set_lw`].
pub unsafe extern "C" fn dapl_srq_free<P: Provider>(_srq: DAT_SRQ_HANDLE) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Srq)))
}

/// `dat_srq_query`.
///
/// # Safety
/// As [`dapl_srq_set_lw`].
pub unsafe extern "C" fn dapl_srq_query<P: Provider>(
    _srq: DAT_SRQ_HANDLE,
    _mask: DAT_SRQ_PARAM_MASK,
    _out: *mut DAT_SRQ_PARAM,
) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Srq)))
}

/// `dat_srq_resize`.
///
/// # Safety
/// As [`dapl_srq_set_lw`].
pub unsafe extern "C" fn dapl_srq_resize<P: Provider>(_srq: DAT_SRQ_HANDLE, _length: DAT_COUNT) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Srq)))
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// As [`dapl_srq_set_lw`].
pub unsafe extern "C" fn dapl_srq_post_recv<P: Provider>(
    _srq: DAT_SRQ_HANDLE,
    _count: DAT_COUNT,
    _segments: *mut DAT_LMR_TRIPLET,
    _cookie: DAT_DTO_COOKIE,
) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Srq)))
}
