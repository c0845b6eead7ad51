//! C entries `dat_rmr_*`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call some of them too. Each entry opens
//! its handles, parses its arguments and makes one call.

use dat_abi::*;

use super::{Rmr, RmrBinding, RmrScope, dapls_rmr};
use crate::ep::Ep;
use crate::ep::dapls_bind;
use crate::error::{Error, Handle};
use crate::ffi::{guard, guard_cancellable, put, put_required, query, require};
use crate::lmr::dapl_lmr::{privileges, rights};
use crate::provider::{Provider, Segment};
use crate::pz::Pz;
use crate::runtime::handle::from_handle;

/// `dat_rmr_create`.
///
/// # Safety
/// `pz` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_rmr_create<P: Provider>(pz: DAT_PZ_HANDLE, out: *mut DAT_RMR_HANDLE) -> DAT_RETURN {
    guard(|| {
        let pz = from_handle::<Pz<P>>(pz, Handle::Pz)?.to_arc();
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, || dapls_rmr::create(pz, RmrScope::Pz)) }
    })
}

/// `dat_rmr_query`. For an unbound RMR, the triplet, the privileges and the remote context are zero (spec/events 9.1).
///
/// # Safety
/// `rmr` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_rmr_query<P: Provider>(
    rmr: DAT_RMR_HANDLE,
    mask: DAT_RMR_PARAM_MASK,
    out: *mut DAT_RMR_PARAM,
) -> DAT_RETURN {
    let param = |rmr: &Rmr<P>| {
        let RmrBinding { segment, rights, context } = dapls_rmr::bound(rmr).unwrap_or_default();
        Ok(DAT_RMR_PARAM {
            ia_handle: rmr.ia.consumer_handle(),
            pz_handle: rmr.pz.handle as DAT_PZ_HANDLE,
            lmr_triplet: DAT_LMR_TRIPLET {
                lmr_context: segment.key,
                pad: 0,
                virtual_address: segment.address,
                segment_length: segment.length,
            },
            mem_priv: privileges(rights),
            rmr_context: context,
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    guard(|| unsafe { query(rmr, Handle::Rmr, mask & !DAT_RMR_FIELD_ALL, out, put, param) })
}

/// `dat_rmr_bind`. Length 0 unbinds; the other fields of the triplet, the privileges and the context are then ignored.
///
/// # Safety
/// `rmr` and `ep` may have any value; `segment` is null or points at a triplet; `context` is null or writable.
pub unsafe extern "C" fn dapl_rmr_bind<P: Provider>(
    rmr: DAT_RMR_HANDLE,
    segment: *const DAT_LMR_TRIPLET,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    ep: DAT_EP_HANDLE,
    cookie: DAT_RMR_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `bind`.
    unsafe { bind::<P>(rmr, segment, mem_priv, false, ep, cookie, flags, context) }
}

/// `dat_rmr_bind` for any version of DAT. If `zero_based` is true, peers address the bound memory from 0.
///
/// # Safety
/// `rmr` and `ep` may have any value; `segment` is null or points at a triplet; `context` is null or writable.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub(crate) unsafe fn bind<P: Provider>(
    rmr: DAT_RMR_HANDLE,
    segment: *const DAT_LMR_TRIPLET,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    zero_based: bool,
    ep: DAT_EP_HANDLE,
    cookie: DAT_RMR_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    guard_cancellable(|| {
        const KNOWN: DAT_COMPLETION_FLAGS = 0x1F; // spec/events 4.1
        let rmr = from_handle::<Rmr<P>>(rmr, Handle::Rmr)?;
        let ep = from_handle::<Ep<P>>(ep, Handle::Ep)?;
        require(segment, 2)?;
        // SAFETY: `segment` is not null, so the caller guarantees that it points at a triplet; `Segment` has its
        // layout.
        let segment = unsafe { segment.cast::<Segment>().read_unaligned() };
        let wanted = if segment.length > 0 {
            require(context, 7)?;
            let mut rights = rights(mem_priv).ok_or(Error::InvalidParameter(3))?;
            rights.access.zero_based = zero_based;
            Some(RmrBinding { segment, rights, context: 0 })
        } else {
            None
        };
        if flags & !KNOWN != 0 {
            return Err(Error::InvalidParameter(6));
        }
        // SAFETY: all union members are eight bytes wide, and any bits are a valid number.
        let cookie = unsafe { cookie.as_64 };
        let new = dapls_bind::bind(&ep, &rmr, wanted, cookie, flags)?;
        if wanted.is_some() {
            // SAFETY: `context` is not null, and the caller guarantees that it is writable.
            unsafe { context.write_unaligned(new) };
        }
        Ok(())
    })
}

/// `dat_rmr_free`.
///
/// # Safety
/// `rmr` may have any value.
pub unsafe extern "C" fn dapl_rmr_free<P: Provider>(rmr: DAT_RMR_HANDLE) -> DAT_RETURN {
    guard(|| dapls_rmr::free(&*from_handle::<Rmr<P>>(rmr, Handle::Rmr)?))
}
