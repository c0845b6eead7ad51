//! C entries for connection requests.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call some of them too. The checks are
//! made in the order of spec/endpoints 7.

use dat_abi::*;

use super::{Cr, dapli_cr};
use crate::ep::Ep;
use crate::error::{Error, Handle};
use crate::ffi;
use crate::provider::Provider;
use crate::runtime::handle::{from_handle, from_optional};

/// `dat_cr_query`. Writes all fields and ignores the mask, because programs read fields that they have not selected.
///
/// # Safety
/// `cr_handle` may have any value; `cr_param` is null or points at a writable record.
pub unsafe extern "C" fn dapl_cr_query<P: Provider>(
    cr_handle: DAT_CR_HANDLE,
    _cr_param_mask: DAT_CR_PARAM_MASK,
    cr_param: *mut DAT_CR_PARAM,
) -> DAT_RETURN {
    let param = |cr: &Cr<P>| {
        Ok(DAT_CR_PARAM {
            remote_ia_address_ptr: cr.address.as_ptr().cast(),
            remote_port_qual: u64::from(cr.peer.port()),
            private_data_size: cr.private_data_size as DAT_COUNT,
            private_data: cr.private_data.as_ptr(),
            local_ep_handle: cr.provided.map_or(DAT_HANDLE_NULL, |provided| provided.ep.handle as DAT_EP_HANDLE),
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    ffi::guard(|| unsafe { ffi::query(cr_handle, Handle::Cr, 0, cr_param, ffi::put, param) })
}

/// `dat_cr_accept`.
///
/// # Safety
/// Handles may have any value; `private_data` is null or points at `private_data_size` bytes, which may be part of the
/// CR's own copy of the request's private data.
pub unsafe extern "C" fn dapl_cr_accept<P: Provider>(
    cr_handle: DAT_CR_HANDLE,
    ep_handle: DAT_EP_HANDLE,
    private_data_size: DAT_COUNT,
    private_data: DAT_PVOID,
) -> DAT_RETURN {
    ffi::guard(|| {
        let cr = from_handle::<Cr<P>>(cr_handle, Handle::Cr)?;
        let given = from_optional::<Ep<P>>(ep_handle, Handle::Ep)?;
        let ep = dapli_cr::target(&cr, given)?;
        if private_data_size != 0 {
            ffi::require(private_data, 4)?;
        }
        let limit = cr.ia.limits().private_data_accept;
        // SAFETY: the caller guarantees that `private_data` is null or points at `private_data_size` bytes.
        let bytes = unsafe { ffi::private_data(private_data, private_data_size, limit, 3) }?;
        dapli_cr::accept(&cr, &ep, &bytes)
    })
}

/// `dat_cr_reject`.
///
/// # Safety
/// `cr_handle` may have any value.
pub unsafe extern "C" fn dapl_cr_reject<P: Provider>(cr_handle: DAT_CR_HANDLE) -> DAT_RETURN {
    ffi::guard(|| from_handle::<Cr<P>>(cr_handle, Handle::Cr)?.reject(&[]))
}

/// `dat_cr_handoff`: passes the request to the listener on the qualifier `handoff` on this host. An error leaves the
/// request unchanged.
///
/// # Safety
/// `cr_handle` may have any value.
pub unsafe extern "C" fn dapl_cr_handoff<P: Provider>(cr_handle: DAT_CR_HANDLE, handoff: DAT_CONN_QUAL) -> DAT_RETURN {
    ffi::guard(|| {
        let cr = from_handle::<Cr<P>>(cr_handle, Handle::Cr)?;
        if handoff == 0 {
            return Err(Error::InvalidParameter(2));
        }
        cr.hand_off(handoff)
    })
}
