//! C entries `dat_pz_*`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call them too. Each entry opens its
//! handles, parses its arguments and makes one call.

use dat_abi::*;

use super::{Pz, dapls_pz};
use crate::error::Handle;
use crate::ffi::{guard, put, put_required, query};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_pz_create`.
///
/// # Safety
/// `ia` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_pz_create<P: Provider>(ia: DAT_IA_HANDLE, out: *mut DAT_PZ_HANDLE) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, || dapls_pz::create(&ia)) }
    })
}

/// `dat_pz_query`.
///
/// # Safety
/// `pz` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_pz_query<P: Provider>(
    pz: DAT_PZ_HANDLE,
    mask: DAT_PZ_PARAM_MASK,
    out: *mut DAT_PZ_PARAM,
) -> DAT_RETURN {
    let param = |pz: &Pz<P>| Ok(DAT_PZ_PARAM { ia_handle: pz.ia.consumer_handle() });
    // SAFETY: the caller also satisfies the contract of `query`.
    guard(|| unsafe { query(pz, Handle::Pz, mask & !DAT_PZ_FIELD_ALL, out, put, param) })
}

/// `dat_pz_free`.
///
/// # Safety
/// `pz` may have any value.
pub unsafe extern "C" fn dapl_pz_free<P: Provider>(pz: DAT_PZ_HANDLE) -> DAT_RETURN {
    guard(|| dapls_pz::free(&*from_handle::<Pz<P>>(pz, Handle::Pz)?))
}
