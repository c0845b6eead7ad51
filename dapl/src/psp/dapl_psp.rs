//! C entries for public service points.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call them too. The checks are made in
//! the order of spec/endpoints 6.

use dat_abi::*;

use super::{Psp, open};
use crate::error::{Error, Handle, Result};
use crate::evd::{Evd, dapls_evd};
use crate::ffi;
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_psp_create`.
///
/// # Safety
/// Handles may have any value; `psp_handle` is null or writable.
pub unsafe extern "C" fn dapl_psp_create<P: Provider>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: DAT_CONN_QUAL,
    evd_handle: DAT_EVD_HANDLE,
    psp_flags: DAT_PSP_FLAGS,
    psp_handle: *mut DAT_PSP_HANDLE,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ia = from_handle::<Ia<P>>(ia_handle, Handle::Ia)?.to_arc();
        let evd = from_handle::<Evd<P>>(evd_handle, Handle::EvdCr)?;
        ffi::require(psp_handle, 5)?;
        let evd = dapls_evd::use_for(&evd, DAT_EVD_CR_FLAG, Handle::EvdCr)?;
        let creates_eps = creates_eps(psp_flags)?;
        if conn_qual == 0 {
            return Err(Error::InvalidParameter(2));
        }
        let psp = open(&ia, Some(conn_qual), evd, creates_eps)?;
        // SAFETY: the caller guarantees that `psp_handle` is null or writable.
        unsafe { ffi::put(psp_handle, psp.id.handle as DAT_PSP_HANDLE) };
        Ok(())
    })
}

/// `dat_psp_create_any`.
///
/// # Safety
/// Handles may have any value; `conn_qual` and `psp_handle` are null or writable.
pub unsafe extern "C" fn dapl_psp_create_any<P: Provider>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: *mut DAT_CONN_QUAL,
    evd_handle: DAT_EVD_HANDLE,
    psp_flags: DAT_PSP_FLAGS,
    psp_handle: *mut DAT_PSP_HANDLE,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ia = from_handle::<Ia<P>>(ia_handle, Handle::Ia)?.to_arc();
        let evd = from_handle::<Evd<P>>(evd_handle, Handle::EvdCr)?;
        ffi::require(psp_handle, 5)?;
        ffi::require(conn_qual, 2)?;
        let evd = dapls_evd::use_for(&evd, DAT_EVD_CR_FLAG, Handle::EvdCr)?;
        let psp = open(&ia, None, evd, creates_eps(psp_flags)?)?;
        // SAFETY: the caller guarantees that each out pointer is null or writable.
        unsafe {
            ffi::put(conn_qual, psp.qual());
            ffi::put(psp_handle, psp.id.handle as DAT_PSP_HANDLE);
        }
        Ok(())
    })
}

/// `dat_psp_query`. Writes all fields and ignores the mask.
///
/// # Safety
/// `psp_handle` may have any value; `psp_param` is null or points at a writable record.
pub unsafe extern "C" fn dapl_psp_query<P: Provider>(
    psp_handle: DAT_PSP_HANDLE,
    _psp_param_mask: DAT_PSP_PARAM_MASK,
    psp_param: *mut DAT_PSP_PARAM,
) -> DAT_RETURN {
    let param = |psp: &Psp<P>| {
        Ok(DAT_PSP_PARAM {
            ia_handle: psp.ia.consumer_handle(),
            conn_qual: psp.qual(),
            evd_handle: psp.evd_handle()? as DAT_EVD_HANDLE,
            psp_flags: if psp.role.creates_eps { DAT_PSP_PROVIDER_FLAG } else { DAT_PSP_CONSUMER_FLAG },
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    ffi::guard(|| unsafe { ffi::query(psp_handle, Handle::Psp, 0, psp_param, ffi::put, param) })
}

/// `dat_psp_free`.
///
/// # Safety
/// `psp_handle` may have any value.
pub unsafe extern "C" fn dapl_psp_free<P: Provider>(psp_handle: DAT_PSP_HANDLE) -> DAT_RETURN {
    ffi::guard(|| from_handle::<Psp<P>>(psp_handle, Handle::Psp)?.stop_listening())
}

fn creates_eps(flags: DAT_PSP_FLAGS) -> Result<bool> {
    match flags {
        DAT_PSP_CONSUMER_FLAG => Ok(false),
        DAT_PSP_PROVIDER_FLAG => Ok(true),
        _ => Err(Error::InvalidParameter(4)),
    }
}
