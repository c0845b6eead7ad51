//! DAT 2.0 entries for common service points.
//!
//! The entries are called through the provider table only; `dapl_ep` uses `port_of`.

use dat_abi::v2::*;

use super::convert;
use crate::csp::{self, Csp};
use crate::ep::Communicator;
use crate::error::{Handle, Result};
use crate::evd::{Evd, dapls_evd};
use crate::ffi::{self, require};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_csp_create`: listens at the port of `address`, which must be an address of this host or the wildcard address.
///
/// # Safety
/// Handles may have any value; `communicator` is null or readable; `address` is null or points at a socket address with
/// the length of its family; `out` is null or writable.
pub unsafe extern "C" fn dapl2_csp_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    communicator: *mut DAT_COMM,
    address: DAT_IA_ADDRESS_PTR,
    evd: DAT_EVD_HANDLE,
    out: *mut DAT_CSP_HANDLE,
) -> DAT_RETURN {
    convert::guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        require(communicator, 2)?;
        require(address, 3)?;
        let evd = from_handle::<Evd<P>>(evd, Handle::EvdCr)?;
        require(out, 5)?;
        let evd = dapls_evd::use_for(&evd, DAT_EVD_CR_FLAG, Handle::EvdCr)?;
        // SAFETY: `communicator` is not null, and the caller guarantees that it is readable.
        let DAT_COMM { domain, r#type: kind, protocol } = unsafe { communicator.read_unaligned() };
        let communicator = Communicator { domain, kind, protocol };
        // SAFETY: `address` is not null, so the caller guarantees that it points at a socket address.
        let bytes = unsafe { ffi::copy_address(address) };
        let csp = csp::open(&ia, communicator, &bytes, evd)?;
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { ffi::put(out, csp.id.handle as DAT_CSP_HANDLE) };
        Ok(())
    })
}

/// `dat_csp_query`. Fills all fields, even if `mask` is 0. The communicator and the address stay valid as long as the
/// CSP exists.
///
/// # Safety
/// `csp` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_csp_query<P: Provider>(
    csp: DAT_CSP_HANDLE,
    mask: DAT_CSP_PARAM_MASK,
    out: *mut DAT_CSP_PARAM,
) -> DAT_RETURN {
    let param = |csp: &Csp<P>| {
        Ok(DAT_CSP_PARAM {
            ia_handle: csp.ia.consumer_handle(),
            comm: csp.role.communicator.as_ptr().cast(),
            address_ptr: csp.role.address.as_ptr().cast(),
            evd_handle: csp.evd_handle()? as DAT_EVD_HANDLE,
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    convert::guard(|| unsafe { ffi::query(csp, Handle::Csp, mask & !DAT_CSP_FIELD_ALL, out, ffi::put, param) })
}

/// `dat_csp_free`. Requests that have already arrived are not affected.
///
/// # Safety
/// `csp` may have any value.
pub unsafe extern "C" fn dapl2_csp_free<P: Provider>(csp: DAT_CSP_HANDLE) -> DAT_RETURN {
    convert::guard(|| from_handle::<Csp<P>>(csp, Handle::Csp)?.stop_listening())
}

/// Returns the port in the peer's address. `address` is parameter `n` of the calling entry.
///
/// # Safety
/// `address` points at a socket address with the length of its family.
pub(super) unsafe fn port_of(address: DAT_IA_ADDRESS_PTR, communicator: Communicator, n: u8) -> Result<u16> {
    // SAFETY: the caller guarantees that `address` points at a socket address of the length of its family.
    let bytes = unsafe { ffi::copy_address(address) };
    communicator.parse_address(&bytes, n).map(|(_, port)| port)
}
