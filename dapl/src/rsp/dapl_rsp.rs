//! C entries for reserved service points.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call them too. The checks are made in
//! the order of spec/endpoints 6.5.

use dat_abi::*;

use super::{Rsp, open};
use crate::ep::Ep;
use crate::ep::state::EpStep;
use crate::error::{Error, Handle};
use crate::evd::{Evd, dapls_evd};
use crate::ffi;
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_rsp_create`.
///
/// # Safety
/// Handles may have any value; `rsp_handle` is null or writable.
pub unsafe extern "C" fn dapl_rsp_create<P: Provider>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: DAT_CONN_QUAL,
    ep_handle: DAT_EP_HANDLE,
    evd_handle: DAT_EVD_HANDLE,
    rsp_handle: *mut DAT_RSP_HANDLE,
) -> DAT_RETURN {
    ffi::guard(|| {
        let ia = from_handle::<Ia<P>>(ia_handle, Handle::Ia)?.to_arc();
        let ep = from_handle::<Ep<P>>(ep_handle, Handle::Ep)?;
        let evd = from_handle::<Evd<P>>(evd_handle, Handle::EvdCr)?;
        ffi::require(rsp_handle, 5)?;
        ep.state().after(EpStep::Reserve)?;
        let evd = dapls_evd::use_for(&evd, DAT_EVD_CR_FLAG, Handle::EvdCr)?;
        if conn_qual == 0 {
            return Err(Error::InvalidParameter(2));
        }
        let rsp = open(&ia, conn_qual, &ep, evd)?;
        // SAFETY: the caller guarantees that `rsp_handle` is null or writable.
        unsafe { ffi::put(rsp_handle, rsp.id.handle as DAT_RSP_HANDLE) };
        Ok(())
    })
}

/// `dat_rsp_query`. Writes all fields and ignores the mask.
///
/// # Safety
/// `rsp_handle` may have any value; `rsp_param` is null or points at a writable record.
pub unsafe extern "C" fn dapl_rsp_query<P: Provider>(
    rsp_handle: DAT_RSP_HANDLE,
    _rsp_param_mask: DAT_RSP_PARAM_MASK,
    rsp_param: *mut DAT_RSP_PARAM,
) -> DAT_RETURN {
    let param = |rsp: &Rsp<P>| {
        Ok(DAT_RSP_PARAM {
            ia_handle: rsp.ia.consumer_handle(),
            conn_qual: rsp.qual(),
            evd_handle: rsp.evd_handle()? as DAT_EVD_HANDLE,
            ep_handle: rsp.role.ep.handle as DAT_EP_HANDLE,
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    ffi::guard(|| unsafe { ffi::query(rsp_handle, Handle::Rsp, 0, rsp_param, ffi::put, param) })
}

/// `dat_rsp_free`.
///
/// # Safety
/// `rsp_handle` may have any value.
pub unsafe extern "C" fn dapl_rsp_free<P: Provider>(rsp_handle: DAT_RSP_HANDLE) -> DAT_RETURN {
    ffi::guard(|| from_handle::<Rsp<P>>(rsp_handle, Handle::Rsp)?.stop_listening())
}
