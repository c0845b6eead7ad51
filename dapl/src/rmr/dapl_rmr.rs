//! `dat_rmr_*`, whose functions are left to a later version.
//!
//! Called from C only. A handle that cannot be is still told from a call that is missing.

use dat_abi::*;

use crate::error::{Error, Handle};
use crate::ffi::{guard, require};
use crate::handle::from_handle;
use crate::provider::Provider;
use crate::pz::Pz;

/// `dat_rmr_create`.
///
/// # Safety
/// `pz` is null, or a handle this library gave out: live, freed, or of another kind.
pub unsafe extern "C" fn dapl_rmr_create<P: Provider>(pz: DAT_PZ_HANDLE, out: *mut DAT_RMR_HANDLE) -> DAT_RETURN {
    guard(|| {
        from_handle::<Pz<P>>(pz, Handle::Pz)?;
        require(out, 2)?;
        Err(Error::NotImplemented)
    })
}

/// `dat_rmr_query`.
///
/// # Safety
/// Any arguments are fine: there is no RMR, so no handle is one.
pub unsafe extern "C" fn dapl_rmr_query<P: Provider>(
    _rmr: DAT_RMR_HANDLE,
    _mask: DAT_RMR_PARAM_MASK,
    _out: *mut DAT_RMR_PARAM,
) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Rmr)))
}

/// `dat_rmr_bind`.
///
/// # Safety
/// As [`dapl_rmr_query`].
pub unsafe extern "C" fn dapl_rmr_bind<P: Provider>(
    _rmr: DAT_RMR_HANDLE,
    _segment: *const DAT_LMR_TRIPLET,
    _privileges: DAT_MEM_PRIV_FLAGS,
    _ep: DAT_EP_HANDLE,
    _cookie: DAT_RMR_COOKIE,
    _flags: DAT_COMPLETION_FLAGS,
    _context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Rmr)))
}

/// `dat_rmr_free`.
///
/// # Safety
/// As [`dapl_rmr_query`].
pub unsafe extern "C" fn dapl_rmr_free<P: Provider>(_rmr: DAT_RMR_HANDLE) -> DAT_RETURN {
    guard(|| Err(Error::InvalidHandle(Handle::Rmr)))
}
